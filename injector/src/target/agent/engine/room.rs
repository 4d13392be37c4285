//! Where the agent can lie, and threads that are in the way of the patches.

use crate::os::proc::Mapping;
use crate::target::agent::engine::*;

/// A place for `len` bytes from where the C library's code can be reached.
pub(super) fn gap(mappings: &[Mapping], near: u64, len: u64) -> Option<u64> {
    const REACH: u64 = 1 << 30;
    const LOWEST: u64 = 1 << 20;
    const AWAY: u64 = 256 << 20;
    let below = mappings.iter().rposition(|mapping| mapping.lo <= near)?;
    for n in (0..=below).rev() {
        let hi = mappings[n].lo;
        let lo = n.checked_sub(1).map_or(LOWEST, |n| mappings[n].hi);
        // A page stays free on either side.
        if hi.saturating_sub(lo) >= len + 2 * PAGE && near - hi < REACH {
            // Right below is where the process's next memory comes from.
            let away = ((hi - lo - len - 2 * PAGE) / 2).min(AWAY) & !(PAGE - 1);
            return Some(hi - PAGE - len - away);
        }
    }
    let mut lo = mappings.get(below)?.hi;
    for mapping in mappings.get(below + 1..)? {
        if mapping.lo.saturating_sub(lo) >= len + 2 * PAGE && lo - near < REACH {
            return Some(lo + PAGE);
        }
        lo = mapping.hi;
    }
    None
}

/// The C library's code.
pub(super) fn libc_code(mappings: &[Mapping]) -> Option<&Mapping> {
    let is_libc = |path: &str| {
        let name = path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or_default();
        name.starts_with("libc.so.") || name.starts_with("libc-2.")
    };
    mappings.iter().find(|mapping| mapping.executable && is_libc(&mapping.path))
}

/// How much of the C library's code is read. Another file may have its name, and any length.
pub(super) fn code_len(libc: &Mapping) -> usize {
    const MOST: u64 = 64 << 20;
    (libc.hi - libc.lo).min(MOST) as usize
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Address of a `syscall` instruction in a piece of code.
pub(super) fn find_syscall(code: &[u8]) -> Option<u64> {
    code.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL).map(|at| at as u64)
}

/// The addresses in a patch at which no thread may stand.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Midst {
    addresses: Range<u64>,
    /// A jump that stands among other code, or a call in its place: its first byte is one of them. Who is at the first
    /// byte of a function has not begun.
    cave: bool,
}

impl Midst {
    pub(super) fn addresses(&self) -> &Range<u64> {
        &self.addresses
    }
}

/// Of all patches, sorted.
pub(super) fn midst(plan: &Plan, bias: u64) -> Vec<Midst> {
    let patches = plan.patches().iter();
    let midst = patches.map(|p| {
        let cave = !plan.is_hook_point(p.address);
        let first = p.address + u64::from(!cave);
        let end = p.address + u64::from(p.len);
        Midst { addresses: first.wrapping_add(bias)..end.wrapping_add(bias), cave }
    });
    midst.filter(|midst| !midst.addresses.is_empty()).collect()
}

/// The same, made before threads stand still; asked for each word of their stacks.
pub(super) struct Overwritten {
    extent: Range<u64>,
    /// A bit for each address.
    bits: Vec<u64>,
    /// First bytes of caves.
    caves: HashSet<u64>,
}

impl Overwritten {
    pub(super) fn new(patched: &[Midst]) -> Overwritten {
        let ends = patched.first().zip(patched.last());
        let extent = ends.map_or(0..0, |(first, last)| first.addresses.start..last.addresses.end);
        let mut bits = vec![0; ((extent.end - extent.start) / 64 + 1) as usize];
        for at in patched.iter().flat_map(|midst| midst.addresses.clone()) {
            let n = at - extent.start;
            bits[(n / 64) as usize] |= 1 << (n % 64);
        }
        let caves = patched.iter().filter(|midst| midst.cave).map(|midst| midst.addresses.start).collect();
        Overwritten { extent, bits, caves }
    }

    pub(super) fn contains(&self, at: u64) -> bool {
        let n = at.wrapping_sub(self.extent.start);
        self.bits.get((n / 64) as usize).is_some_and(|bits| bits >> (n % 64) & 1 != 0)
    }

    /// Whether a word on a stack leads there. What stands at a cave's first byte, behind a call that never returns,
    /// does not.
    fn is_led_to(&self, word: u64) -> bool {
        self.contains(word) && !self.caves.contains(&word)
    }
}

impl Attached {
    /// Sees to it that no thread is where something will be overwritten.
    pub(super) fn make_room(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        mappings: &[Mapping],
        libc: &Range<u64>,
        (moved, overwritten): (&Moved<'_>, &Overwritten),
        until: Instant,
    ) -> Result<Step<()>> {
        loop {
            let late = Instant::now() > until;
            let busy = self.move_away(stopped, memory, mappings, libc, (moved, overwritten));
            match busy.first() {
                None => return Ok(Step::Done(())),
                Some(&(tid, at)) if late => return Ok(Step::Later(stays(tid, at))),
                Some(&(tid, at)) => {
                    let is_busy = |thread: &Thread| busy.iter().any(|(tid, _)| *tid == thread.tid);
                    if !stopped.run_some(is_busy, stopped.turn().0, until)? {
                        return Ok(Step::Later(stays(tid, at)));
                    }
                }
            }
        }
    }

    /// Moves threads out of what will be overwritten. The ones that need another moment, and where they are.
    fn move_away(
        &self,
        stopped: &mut Stopped,
        memory: &Memory,
        mappings: &[Mapping],
        libc: &Range<u64>,
        (moved, overwritten): (&Moved<'_>, &Overwritten),
    ) -> Vec<(i32, u64)> {
        let mut busy = Vec::new();
        for thread in stopped.threads.iter_mut().filter(|thread| thread.fresh) {
            let at = thread.registers.rip;
            if makes_thread(memory, thread, libc)
                || self.detours.iter().any(|d| inside(d.at, d.before.len() as u32, at))
            {
                busy.push((thread.tid, at));
            } else if overwritten.contains(at) {
                match moved(at) {
                    Some(copy) => thread.move_to(copy),
                    None => busy.push((thread.tid, at)),
                }
            }
        }
        let patched = [overwritten.extent.clone()];
        for thread in stopped.threads.iter_mut().filter(|thread| thread.fresh) {
            if deadline::has_passed() {
                // As good as in the way: then nothing is changed.
                busy.push((thread.tid, thread.registers.rip));
                break;
            }
            thread.fresh = false;
            let saved = stacks::find(memory, thread, mappings, &patched, |at, word| {
                overwritten.is_led_to(word) && stacks::may_go_on_at(memory, at, word, &self.arena)
            });
            busy.extend(saved.map(|word| (thread.tid, word)));
        }
        busy
    }

    /// Whether a thread is where something is overwritten, or will be when a signal handler returns.
    pub(super) fn is_in_patch(&self, thread: &Thread, memory: &Memory, mappings: &[Mapping]) -> bool {
        let ends = self.patched.first().zip(self.patched.last());
        let extent = ends.map_or(0..0, |(first, last)| first.addresses.start..last.addresses.end);
        self.is_overwritten(thread.registers.rip)
            || stacks::find(memory, thread, mappings, &[extent], |at, word| {
                self.is_overwritten(word) && stacks::is_interrupted(memory, at, &self.arena)
            })
            .is_some()
    }

    fn is_overwritten(&self, at: u64) -> bool {
        let after = self.patched.partition_point(|midst| midst.addresses.start <= at);
        let midst = after.checked_sub(1).and_then(|n| self.patched.get(n));
        midst.is_some_and(|midst| midst.addresses.contains(&at))
    }
}

fn stays(tid: i32, at: u64) -> anyhow::Error {
    anyhow!(
        "thread {tid} stays at {at:#x}, among instructions that are to be overwritten; try again, or leave the \
         function out with -X"
    )
}

fn inside(address: u64, len: u32, at: u64) -> bool {
    at > address && at < address + u64::from(len)
}

/// Whether a thread is about to make another one by a system call that will be led to the agent: it must not be
/// between the two instructions, nor be told by the kernel to make the call again.
fn makes_thread(memory: &Memory, thread: &Thread, libc: &Range<u64>) -> bool {
    const RESTART: i64 = -513;
    let registers = &thread.registers;
    let calls = [libc::SYS_clone, libc::SYS_clone3];
    if registers.rax as i64 == RESTART && calls.contains(&(registers.orig_rax as i64)) {
        return true;
    }
    libc.contains(&registers.rip)
        && memory.bytes(registers.rip - 5, 7).is_ok_and(|bytes| {
            let number = i64::from(bytes[1]) | i64::from(bytes[2]) << 8;
            bytes[0] == 0xb8 && bytes[3..] == [0, 0, 0x0f, 0x05] && calls.contains(&number)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_overwritten() {
        let midst = |addresses, cave| Midst { addresses, cave };
        let patches =
            [midst(0x1006..0x100a, false), midst(0x100f..0x1012, false), midst(0x4000..0x4010, true)];
        let overwritten = Overwritten::new(&patches);
        let found: Vec<u64> = (0xff0..0x4100).filter(|&at| overwritten.contains(at)).collect();
        let expected = (0x1006..0x100a).chain(0x100f..0x1012).chain(0x4000..0x4010);
        assert_eq!(found, expected.collect::<Vec<u64>>());
        assert!(![0, 0xfff, u64::MAX].iter().any(|&at| overwritten.contains(at)));
        assert!(!Overwritten::new(&[]).contains(0));
        // A call that does not return may stand before a cave.
        assert_eq!([0x1006, 0x4000, 0x4001].map(|word| overwritten.is_led_to(word)), [true, false, true]);
    }
}
