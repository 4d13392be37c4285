//! The times for which a thread that makes measured calls did not run: it waited for something, or other threads had the processor.
//!
//! The kernel says that a thread has been off the processor by clearing a word of the thread, `rseq_cs` in `struct rseq` (rseq(2),
//! linux/rseq.h): whenever the thread returns to user code after that, or to a signal handler, and its instruction is not within
//! the *restartable sequence* that the word points to, the kernel sets the word to 0. glibc registers such a structure for each
//! thread (since 2.35), and `__rseq_offset` says where it is. Here the word points to a sequence that no code ever runs. The gates
//! test the word after they have read the clock, and take the slow path if it is 0; this asks the kernel for the thread's CPU time
//! and the number of its waits, and sets the word again. So nothing is asked, and no system call is made, as long as a thread runs.
//!
//! The time off the processor is that on the clock less the CPU time. If the thread was ready and other threads were running, it is added
//! to `paused`, so that it is in no duration, as if the thread had a processor for itself. The rest, in which the thread waited for
//! something, is the waiting time of the innermost open call.
//!
//! Programs that use restartable sequences themselves set the same word for the time of a sequence, and leave it set afterwards. A
//! switch between the kernel's last one and theirs is not noticed until the next one, whose call then gets the time of both.
#![allow(unsafe_code, reason = "the word and the sequence are the kernel's interface")]

use crate::hot::sharers;
use crate::hot::times::{area, clock, nodes, trace};
use crate::os::words;
use crate::os::{kernel, lookup, stat};
use crate::program::agent::Agent;
use core::arch::{asm, global_asm};
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::plan::ThreadWords;
use gprofinject_abi::shared::{BlockRef, TimesRef};
use linux_raw_sys::general;

/// The offset from the thread pointer of a word that is 0 if the thread has been off the processor: of `rseq_cs`, or of a word that is
/// never 0 if there is none. Stored before the first hook is in place.
pub(crate) static WORD: AtomicU64 = AtomicU64::new(0);

/// struct rseq_cs (linux/rseq.h): version and flags, the first address, the number of bytes, and where an interrupted sequence continues.
#[repr(C, align(32))]
struct Sequence([AtomicU64; 4]);

/// A sequence that no code runs.
static SEQUENCE: Sequence = Sequence([const { AtomicU64::new(0) }; 4]);

/// How old the kernel's last answer is at least, in nanoseconds, when it is asked again for how long a thread has been ready.
const OLD_NS: u64 = 1_000_000;

/// How often the clocks are read at most until all of them show one moment.
const TRIES: u32 = 3;

/// The offset of `rseq_cs` in struct rseq.
const SEQUENCE_WORD: u64 = 8;

// Before the address at which an interrupted sequence continues there must be the signature with which glibc has registered the
// structure (RSEQ_SIG in sysdeps/unix/sysv/linux/x86/bits/rseq.h).
global_asm!(
    ".text",
    ".p2align 4",
    ".long {signature}",
    ".globl gpi_never_interrupted",
    ".hidden gpi_never_interrupted",
    "gpi_never_interrupted:",
    "ud2",
    ".globl gpi_never_run",
    ".hidden gpi_never_run",
    "gpi_never_run:",
    "ud2",
    signature = const 0x5305_3053_u32,
);

/// Makes the gates notice no switch, as in a process whose threads have no such word.
pub(crate) fn ignore() {
    let never_zero = words::offset() as u64 + offset_of!(ThreadWords, block) as u64;
    WORD.store(never_zero, Ordering::Relaxed);
}

/// Makes the gates notice switches from now on, if the C library has registered the word. `dynamic_linker` is the address of ld.so's ELF
/// header. A process that runs already is left as it is: the sequence would vanish with the agent.
pub(crate) fn prepare(dynamic_linker: u64) {
    if words::is_attached() {
        return;
    }
    let [offset, size] =
        [&b"__rseq_offset"[..], b"__rseq_size"].map(|name| lookup::start_of(dynamic_linker, name));
    if offset == 0 || size == 0 {
        return;
    }
    // SAFETY: glibc defines the two as `const ptrdiff_t` and `const unsigned int`, and has set them before it runs any other library.
    let (offset, size) =
        unsafe { (*(offset as *const u64), (*(size as *const AtomicU32)).load(Ordering::Relaxed)) };
    // If the program has forbidden the registration (glibc.pthread.rseq), the size is 0.
    if u64::from(size) < SEQUENCE_WORD + 8 {
        return;
    }
    let (first, interrupted): (u64, u64);
    // SAFETY: the instructions take the addresses of two symbols.
    unsafe {
        asm!("lea {}, [rip + gpi_never_run]", out(reg) first, options(nostack, pure, nomem));
        asm!("lea {}, [rip + gpi_never_interrupted]", out(reg) interrupted, options(nostack, pure, nomem));
    }
    for (place, word) in SEQUENCE.0.iter().zip([0, first, 1, interrupted]) {
        place.store(word, Ordering::Relaxed);
    }
    WORD.store(offset.wrapping_add(SEQUENCE_WORD), Ordering::Relaxed);
}

/// Begins to watch the calling thread, whose measurements begin, or which continues its parent's in a forked child.
pub(crate) fn begin(block: BlockRef) {
    let [_, prepared, ..] = &SEQUENCE.0;
    if prepared.load(Ordering::Relaxed) != 0 && may_ask() {
        block.times().seen().store(0, Ordering::Relaxed);
        look(block.times());
    }
}

/// If the calling thread has been off the processor since the last look, adds that time to where it belongs. Returns the present time of the
/// clock, of which `now` is an earlier reading.
pub(crate) fn note(agent: &Agent, block: BlockRef, now: u64) -> u64 {
    if !has_switched() {
        return now;
    }
    if !may_ask() {
        watch();
        return now;
    }
    let (now, passed) = look(block.times());
    if let Some(passed) = passed {
        charge(agent, block, now, &passed);
    }
    now
}

/// Adds what has passed since `since`, a time without pauses, to the pauses of the calling thread, whether the thread was on the processor
/// or not. Returns how much that is.
pub(crate) fn pause(agent: &Agent, block: BlockRef, since: u64) -> u64 {
    let (now, passed) = match has_switched() && may_ask() {
        true => look(block.times()),
        false => (clock::now(), None),
    };
    let took = clock::pause(block.times(), since, now);
    // What the thread was off the processor for longer than that, it was before.
    if let Some(passed) = passed.and_then(|passed| passed.without(took)) {
        charge(agent, block, now, &passed);
    }
    took
}

/// Whether the calling thread has been off the processor since the last look, as far as that is known.
pub(crate) fn has_switched() -> bool {
    word().load(Ordering::Relaxed) == 0
}

/// Returns the calling thread's word.
fn word() -> &'static AtomicU64 {
    let at = words::thread_pointer().wrapping_add(WORD.load(Ordering::Relaxed));
    // SAFETY: the word is in the thread's control block or in its thread words. The kernel and the C library write to it on this thread only.
    unsafe { AtomicU64::from_ptr(at as *mut u64) }
}

/// Has the kernel clear the word at the next switch.
fn watch() {
    word().store(&raw const SEQUENCE as u64, Ordering::Relaxed);
}

/// Whether the agent may make system calls on this thread, and what they say is of this thread alone.
fn may_ask() -> bool {
    !kernel::is_frozen() && !sharers::has_calling_thread()
}

/// What has passed between two looks at a thread's clocks.
struct Passed {
    ticks: u64,
    wall_ns: u64,
    /// The time off the processor.
    off_ns: u64,
    /// The part of it in which the thread was ready.
    ready_ns: u64,
}

impl Passed {
    /// Returns a part of the time in ticks.
    fn ticks(&self, ns: u64) -> u64 {
        let ticks = (u128::from(ns) * u128::from(self.ticks)).checked_div(u128::from(self.wall_ns));
        ticks.and_then(|ticks| u64::try_from(ticks).ok()).unwrap_or(u64::MAX)
    }

    /// Returns what is left if the thread was off the processor for these ticks; `None` if that is nothing.
    fn without(self, ticks: u64) -> Option<Passed> {
        let part = |of: u64, ns: u64| {
            let part = (u128::from(ns) * u128::from(of)).checked_div(u128::from(self.off_ns));
            part.and_then(|part| u64::try_from(part).ok()).unwrap_or(0)
        };
        let ns = (u128::from(ticks) * u128::from(self.wall_ns)).checked_div(u128::from(self.ticks))?;
        let off_ns = self.off_ns.checked_sub(u64::try_from(ns).ok()?).filter(|&off_ns| off_ns > 0)?;
        Some(Passed { off_ns, ready_ns: part(off_ns, self.ready_ns), ..self })
    }
}

/// Looks what the calling thread's clocks show, and has the kernel tell the next switch. Returns the time of the clock and what has passed
/// since the last look; `None` if this is the first one.
fn look(times: TimesRef) -> (u64, Option<Passed>) {
    let read = || {
        watch();
        let now = clock::now();
        (now, usage())
    };
    let (mut now, mut usage) = read();
    for _ in 1..TRIES {
        // The clocks are of one moment unless the thread has just been off the processor again.
        if !has_switched() {
            break;
        }
        (now, usage) = read();
    }
    let before = |field: &AtomicU64, now: u64| field.swap(now, Ordering::Relaxed);
    let seen = before(times.seen(), now);
    let wall_ns = before(times.seen_wall_ns(), usage.wall_ns);
    let cpu_ns = before(times.seen_cpu_ns(), usage.cpu_ns);
    let waits = before(times.seen_waits(), usage.waits);
    times.seen_system_ns().store(usage.system_ns, Ordering::Relaxed);
    // A thread block may have had another thread, whose CPU time was another one.
    if seen == 0 || usage.cpu_ns < cpu_ns || usage.wall_ns <= wall_ns {
        ready_since(times, usage.wall_ns);
        return (now, None);
    }
    let wall_ns = usage.wall_ns - wall_ns;
    let off_ns = wall_ns.saturating_sub(usage.cpu_ns - cpu_ns);
    // To ask the kernel takes as long as several system calls, and short waits are frequent.
    let is_old = usage.wall_ns.wrapping_sub(times.seen_ready_at_ns().load(Ordering::Relaxed)) >= OLD_NS;
    let asked = if is_old { ready_since(times, usage.wall_ns) } else { 0 };
    // Without a wait, it was ready all the time.
    let ready_ns = if usage.waits == waits { off_ns } else { asked.min(off_ns) };
    (now, Some(Passed { ticks: now.wrapping_sub(seen), wall_ns, off_ns, ready_ns }))
}

/// Asks the kernel for how long the calling thread has been ready since this was last called, in nanoseconds. `wall_ns` is the present moment.
fn ready_since(times: TimesRef, wall_ns: u64) -> u64 {
    times.seen_ready_at_ns().store(wall_ns, Ordering::Relaxed);
    let now = stat::ready_ns().unwrap_or(0);
    now.saturating_sub(times.seen_ready_ns().swap(now, Ordering::Relaxed))
}

/// Adds the time off the processor to the thread's pauses and to the waiting time of its innermost open call and its path.
fn charge(agent: &Agent, block: BlockRef, now: u64, passed: &Passed) {
    let times = block.times();
    let load = |field: &AtomicU64| field.load(Ordering::Relaxed);
    // Since the thread's last event, at most: the clocks of the CPU time and of the wall differ by the time of interrupts.
    let top = area::call(load(times.top()));
    let last = load(times.last()).max(top.map_or(0, |top| load(top.start())));
    let since = clock::without_pauses(times, now).saturating_sub(last);
    let ready = passed.ticks(passed.ready_ns).min(since);
    let waited = passed.ticks(passed.off_ns - passed.ready_ns).min(since - ready);
    if ready > 0 {
        times.ready().fetch_add(ready, Ordering::Relaxed);
        times.paused().fetch_add(ready, Ordering::Relaxed);
        trace::was_ready(agent, block, ready);
    }
    if let Some(top) = top.filter(|_| waited > 0) {
        if let Some(arc) = nodes::arc(load(top.arc())) {
            arc.waited().fetch_add(waited, Ordering::Relaxed);
        }
        if let Some(node) = nodes::node(load(top.node())) {
            node.waited().fetch_add(waited, Ordering::Relaxed);
        }
    }
}

/// What the kernel knows of the calling thread's use of the processor.
#[derive(Clone, Copy)]
struct Usage {
    /// CLOCK_MONOTONIC_RAW, in nanoseconds: the clock that no adjustment of the time changes.
    wall_ns: u64,
    /// The CPU time of the thread, in nanoseconds, up to this moment. (getrusage(2) tells that up to the last tick of the kernel.)
    cpu_ns: u64,
    /// The part of it in the kernel, up to the last tick.
    system_ns: u64,
    /// How often the thread has waited for something: ru_nvcsw.
    waits: u64,
}

/// Returns the calling thread's use of the processor up to now.
fn usage() -> Usage {
    const SECOND: u64 = 1_000_000_000;
    let time = |clock: u32| {
        // struct timespec.
        let mut time = [0_u64; 2];
        // SAFETY: the kernel writes the time.
        let _ = unsafe { kernel::call(general::__NR_clock_gettime, [clock.into(), &raw mut time as u64]) };
        time[0] * SECOND + time[1]
    };
    let (wall_ns, cpu_ns) = (time(general::CLOCK_MONOTONIC_RAW), time(general::CLOCK_THREAD_CPUTIME_ID));
    // struct rusage: two struct timeval and 14 longs.
    let mut used = [0_u64; 18];
    let arguments = [general::RUSAGE_THREAD.into(), &raw mut used as u64];
    // SAFETY: the kernel writes the usage.
    let _ = unsafe { kernel::call(general::__NR_getrusage, arguments) };
    let [_, _, system_s, system_us, .., waits, _] = used;
    Usage { wall_ns, cpu_ns, system_ns: system_s * SECOND + system_us * 1000, waits }
}
