//! Where the agent can lie, and threads that are in the way of the patches.

use super::*;

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

/// Which addresses lie in patches, behind the first byte: who is at the first has not begun. Made before threads
/// stand still; asked for each word of their stacks.
pub(super) struct Overwritten {
    extent: Range<u64>,
    /// A bit for each address.
    bits: Vec<u64>,
}

impl Overwritten {
    /// `patches`: address and length, sorted.
    pub(super) fn new(patches: &[(u64, u32)]) -> Overwritten {
        let ends = patches.first().zip(patches.last());
        let extent = ends.map_or(0..0, |(first, last)| first.0..last.0 + u64::from(last.1));
        let mut bits = vec![0; ((extent.end - extent.start) / 64 + 1) as usize];
        for &(address, len) in patches {
            for at in address + 1..address + u64::from(len) {
                let n = at - extent.start;
                bits[(n / 64) as usize] |= 1 << (n % 64);
            }
        }
        Overwritten { extent, bits }
    }

    pub(super) fn contains(&self, at: u64) -> bool {
        let n = at.wrapping_sub(self.extent.start);
        self.bits.get((n / 64) as usize).is_some_and(|bits| bits >> (n % 64) & 1 != 0)
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
                    if !stopped.stir(is_busy, MOMENT, until)? {
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
            thread.fresh = false;
            let saved =
                stacks::find(memory, thread, mappings, &patched, |_, word| overwritten.contains(word));
            busy.extend(saved.map(|word| (thread.tid, word)));
        }
        busy
    }

    /// Behind the first byte of a patch: who is at the first has not begun.
    pub(super) fn is_overwritten(&self, at: u64) -> bool {
        let after = self.patched.partition_point(|&(address, _)| address <= at);
        let patch = after.checked_sub(1).and_then(|n| self.patched.get(n));
        patch.is_some_and(|&(address, len)| inside(address, len, at))
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
        let patches = [(0x1005, 5), (0x100e, 4), (0x3000, 1), (0x4000, 16)];
        let overwritten = Overwritten::new(&patches);
        let found: Vec<u64> = (0xff0..0x4100).filter(|&at| overwritten.contains(at)).collect();
        let expected = (0x1006..0x100a).chain(0x100f..0x1012).chain(0x4001..0x4010);
        assert_eq!(found, expected.collect::<Vec<u64>>());
        assert!(![0, 0xfff, u64::MAX].iter().any(|&at| overwritten.contains(at)));
        assert!(!Overwritten::new(&[]).contains(0));
    }
}
