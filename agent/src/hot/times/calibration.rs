//! Measures the overhead of a measured call: before the first hook is in place, and [again and again](again) on each thread while the
//! program runs, since a call may cost more while the processor does other work, too, or runs at another frequency.
//!
//! One loop calls a function that consists of a thunk's code and a small body; another loop calls a function that has only the
//! body. The difference of their durations is the overhead of a call. The part inside the measured interval is the duration that
//! the gates record, less that of the body; the rest is outside of the interval, in the caller's time. The result is the median
//! of several rounds. A round is so short that few rounds are disturbed. The minimum, which is used elsewhere (Malony and Shende,
//! Overhead Compensation in Performance Profiling, 2004), is smaller than the overhead in real programs.
#![allow(unsafe_code, reason = "records are in memory that is mapped here")]

use crate::hot::sharers;
use crate::hot::times::{clock, switches};
use crate::os::words;
use crate::os::{kernel, task};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gprofinject_abi::clock::ClockKind;
use gprofinject_abi::shared::{ArcTimesRef, BlockRef, RegionRef, TimesRef};
use gprofinject_abi::times::PROBE;
use loops::Scratch;

mod loops;

/// The number of calls in a round of the first calibration.
const CALLS: u64 = 256;
/// The number of its rounds.
const ROUNDS: usize = 24;
/// The number of calls in a round of a later calibration, of which all rounds take some 25 us.
const FEW_CALLS: u64 = 16;
/// The number of its rounds.
const FEW_ROUNDS: usize = 5;
/// How many ticks of the clock there are at least between two calibrations of a thread: some 25 ms.
const INTERVAL: u64 = 1 << 26;
/// The work of the called function in each of several kinds of functions, as the length of a chain of dependent multiplications.
///
/// The processor overlaps a function's first instructions with the read of the clock at the beginning of the call. So the
/// overhead inside the interval is largest for a function that does nothing, and up to 9 ns smaller for one that is bound by the
/// latency of its own results. The agent does not know which kind a function is: it subtracts the mean of the greatest overhead and the
/// least.
const WORK: [u64; 4] = [1, 6, 20, 80];

/// What is calibrated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    /// The addresses of the gates at the beginning and the end of a call, which read the time stamp counter.
    pub(crate) gates: [u64; 2],
    /// Whether each path of calls is measured.
    pub(crate) has_paths: bool,
    /// Whether some calls are only counted.
    pub(crate) has_short: bool,
    /// Whether events are traced. A trace has one overhead for all of its calls, so it is calibrated only once.
    pub(crate) is_traced: bool,
}

/// The address of the [`Scratch`], or 0 if calls are not calibrated again.
static SCRATCH: AtomicU64 = AtomicU64::new(0);
/// The arc's record in it.
static ARC: AtomicU64 = AtomicU64::new(0);
/// Whether calls that are only counted are calibrated too.
static HAS_SHORT: AtomicBool = AtomicBool::new(false);
/// Whether a thread uses the memory. In a child that another thread has forked meanwhile, this stays set, and the first calibration is the only one.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Whether a thread block is that of a calibration, in which nothing is measured.
pub(crate) fn is_scratch(block: BlockRef) -> bool {
    block.address() == SCRATCH.load(Ordering::Relaxed)
}

/// Measures the overhead of a call and stores it in the region header. If memory is short, the stored overhead remains 0, and
/// nothing is subtracted from durations.
pub(crate) fn run(region: RegionRef, subject: Subject) {
    match clock::kind() {
        ClockKind::Tsc => {}
        ClockKind::Gettime => return of_the_clock(region),
        // The agent's own instructions are not counted.
        ClockKind::None | ClockKind::Instructions => return,
    }
    let Some((scratch, arc)) = Scratch::make(subject.gates, subject.has_paths) else { return };
    scratch.used(|| measure(region, scratch, arc, subject.has_short));
    if subject.is_traced {
        scratch.remove();
        return;
    }
    HAS_SHORT.store(subject.has_short, Ordering::Relaxed);
    ARC.store(arc.address(), Ordering::Relaxed);
    SCRATCH.store(scratch.block(), Ordering::Relaxed);
}

/// Calibrates again if the calling thread, of which this is the header, has not done so for some time. The present time is `now`. What this takes
/// must be no part of any duration.
pub(crate) fn again(times: TimesRef, now: u64) {
    let since = now.wrapping_sub(times.calibrated_at().load(Ordering::Relaxed));
    let block = SCRATCH.load(Ordering::Relaxed);
    if since < INTERVAL || block == 0 || clock::SLOWLY.load(Ordering::Relaxed) != 0 {
        return;
    }
    times.calibrated_at().store(now, Ordering::Relaxed);
    // Signals are blocked by a system call. Threads of a process that gprofinject may leave must be as its own code knows them.
    if kernel::is_frozen() || sharers::has_calling_thread() || words::is_attached() {
        return;
    }
    if IS_USED.swap(true, Ordering::Acquire) {
        return;
    }
    // SAFETY: `run` has stored the address of a record that stays mapped.
    let arc = unsafe { ArcTimesRef::at(ARC.load(Ordering::Relaxed)) };
    if let (Some(arc), Ok(blocked)) = (arc, task::block_signals()) {
        let scratch = Scratch::at(block);
        let measured =
            scratch.used(|| scratch.measure::<FEW_ROUNDS>(arc, FEW_CALLS, HAS_SHORT.load(Ordering::Relaxed)));
        // If the thread has been off the processor, its gates have taken slow paths, which measure nothing.
        if !switches::has_switched() {
            note(times, &measured);
        }
        let _ = task::set_blocked_signals(blocked);
    }
    IS_USED.store(false, Ordering::Release);
}

/// Adds what a calibration has measured to the sums of a thread.
fn note(times: TimesRef, measured: &Measured) {
    let add = |sum: &AtomicU64, value: u64| sum.fetch_add(value, Ordering::Relaxed);
    let all = measured.inside + measured.outside;
    add(times.calibrated_inside_256(), measured.inside);
    add(times.calibrated_outside_256(), measured.outside);
    add(times.calibrated_short_256(), measured.short);
    add(times.calibrated_square_256(), all.saturating_mul(all) >> 8);
    add(times.calibrations(), 1);
}

/// The overhead of a call, in 256ths of a tick.
#[derive(Clone, Copy, Default)]
struct Overhead {
    all: u64,
    inside: u64,
    /// How far apart the middle half of the rounds is.
    noise: u64,
}

/// What a calibration has measured, in 256ths of a tick.
#[derive(Clone, Copy)]
struct Measured {
    /// The mean of the least and the greatest of all kinds of [`WORK`].
    inside: u64,
    outside: u64,
    /// How far from that the overhead may be: the distance of these two, and by how much rounds differ from it, and half as much again.
    /// Programs have functions of other kinds, too: chains of operations in tests/known are that far from the mean.
    spread: u64,
    /// What a call costs that is only counted, or 0 if that was not asked for.
    short: u64,
}

/// Runs the first calibration, and stores what it has measured.
fn measure(region: RegionRef, scratch: Scratch, arc: ArcTimesRef, is_short: bool) {
    let measured = scratch.measure::<ROUNDS>(arc, CALLS, is_short);
    region.inside_256().store(measured.inside, Ordering::Relaxed);
    region.outside_256().store(measured.outside, Ordering::Relaxed);
    region.spread_256().store(measured.spread, Ordering::Relaxed);
    region.short_256().store(measured.short, Ordering::Relaxed);
}

impl Scratch {
    /// Measures the overhead in rounds of so many calls.
    fn measure<const N: usize>(self, arc: ArcTimesRef, calls: u64, is_short: bool) -> Measured {
        let [first, others @ ..] = WORK.map(|work| self.of_loop::<N>(arc, calls, work, is_short));
        let (mut least, mut most, mut noise) = (first.inside, first.inside, first.noise);
        for other in others {
            (least, most) = (least.min(other.inside), most.max(other.inside));
            noise = noise.max(other.noise);
        }
        Measured {
            inside: least.midpoint(most),
            // This part is the same for all kinds: at the end gate, all of the function's work is complete.
            outside: first.all - first.inside,
            spread: (most - least + noise) * 3 / 4,
            short: if is_short { self.of_short::<N>(arc, calls) } else { 0 },
        }
    }

    /// Returns what a call costs that is only counted, of a function that does next to nothing, as those do that are only counted.
    fn of_short<const N: usize>(self, arc: ArcTimesRef, calls: u64) -> u64 {
        // None of the calls is one that is measured nevertheless.
        const { assert!(CALLS < PROBE && FEW_CALLS < PROBE) };
        let [work, ..] = WORK;
        arc.short().store(1, Ordering::Relaxed);
        let (mut hooked, mut plain) = ([0_u64; N], [0_u64; N]);
        for (hooked, plain) in hooked.iter_mut().zip(&mut plain) {
            arc.begun_short().store(0, Ordering::Relaxed);
            *hooked = self.short(calls, work);
            *plain = self.plain(calls, work);
        }
        arc.short().store(0, Ordering::Relaxed);
        hooked.sort_unstable();
        plain.sort_unstable();
        part_256(hooked[N / 2].saturating_sub(plain[N / 2]), calls)
    }

    /// Runs the rounds of one kind of work. `is_short` is whether the thunks are those of a run in which short calls are only counted.
    fn of_loop<const N: usize>(self, arc: ArcTimesRef, calls: u64, work: u64, is_short: bool) -> Overhead {
        // For each round: the duration with the thunk, and the sum of the durations that the gates recorded in it; the duration
        // without the thunk; and the duration when the called function does minimal work.
        let mut hooked = [(0_u64, 0_u64); N];
        let (mut plain, mut empty) = ([0_u64; N], [0_u64; N]);
        for ((hooked, plain), empty) in hooked.iter_mut().zip(&mut plain).zip(&mut empty) {
            let inside = arc.inclusive().load(Ordering::Relaxed);
            hooked.0 = if is_short { self.short(calls, work) } else { self.hooked(calls, work) };
            *plain = self.plain(calls, work);
            *empty = self.plain(calls, 1);
            hooked.1 = arc.inclusive().load(Ordering::Relaxed) - inside;
        }
        hooked.sort_unstable();
        plain.sort_unstable();
        empty.sort_unstable();
        let ((took, inside), plain, empty) = (hooked[N / 2], plain[N / 2], empty[N / 2]);
        let all = took.saturating_sub(plain);
        let inside = inside.saturating_sub(plain.saturating_sub(empty)).min(all);
        let noise = hooked[3 * N / 4].0 - hooked[N / 4].0;
        let [all, inside, noise] = [all, inside, noise].map(|ticks| part_256(ticks, calls));
        Overhead { all, inside, noise }
    }
}

/// Returns what one of so many calls has of some ticks, in 256ths.
fn part_256(ticks: u64, calls: u64) -> u64 {
    (ticks << 8).checked_div(calls).unwrap_or(0)
}

/// Stores the duration of one read of the clock as the overhead inside and outside of the interval. This is for clocks other than
/// the time stamp counter, with which every call takes the slow path.
fn of_the_clock(region: RegionRef) {
    const TIMES: u64 = 64;
    let mut least = u64::MAX;
    for _ in 0..ROUNDS {
        let before = clock::now();
        for _ in 0..TIMES {
            clock::now();
        }
        least = least.min(clock::now() - before);
    }
    region.inside_256().store((least << 8) / TIMES, Ordering::Relaxed);
    region.outside_256().store((least << 8) / TIMES, Ordering::Relaxed);
    region.spread_256().store((least << 8) / TIMES, Ordering::Relaxed);
}
