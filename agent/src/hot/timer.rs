//! Sampling without perf: a timer on every thread's CPU clock.
//!
//! The signal is SIGSTKFLT, which Linux on x86 never sends and programs do not use, so SIGPROF and ITIMER_PROF remain
//! available to the program. A program that blocks every signal blocks this one too.
#![allow(
    unsafe_code,
    reason = "a signal handler reads what the kernel passes, and counts in the mapped histogram"
)]

use crate::os::kernel::gpi_restorer;
use crate::os::task;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::region::{SAMPLE_PROBES, SAMPLES_MAX, SampleRecord, sample_entry};
use gprofinject_abi::shared::{BlockRef, SampleRef};
use linux_raw_sys::general;

pub(crate) const SIGNAL: u32 = general::SIGSTKFLT;
const FLAGS: u32 = general::SA_SIGINFO | general::SA_RESTART | general::SA_ONSTACK | general::SA_RESTORER;
/// Index of rip in the general registers of a ucontext.
const REG_RIP: usize = 16;
/// Offset of the general registers in a ucontext (flags, link, stack).
const GREGS: usize = 40;
/// Offset of si_overrun in a siginfo of a timer.
const SI_OVERRUN: usize = 20;

/// Installs the signal handler for samples.
///
/// # Errors
/// Returns the error number of rt_sigaction.
pub(crate) fn prepare() -> Result<(), i32> {
    let action = task::SignalAction {
        handler: tick as *const () as u64,
        flags: FLAGS.into(),
        restorer: gpi_restorer as *const () as u64,
        mask: !0,
    };
    // SAFETY: `tick` may run at any instruction: it uses only its own stack frame, and only adds to counters.
    unsafe { task::set_signal_action(SIGNAL, &action) }.map(|_| ())
}

/// Returns the time between samples in nanoseconds. The rate is not 0 where this function is called.
fn interval(agent: &Agent) -> u64 {
    1_000_000_000 / u64::from(agent.timer_rate.max(1))
}

/// Starts one timer for the whole process, because the agent's code does not run in new threads if no function is
/// hooked.
pub(crate) fn start_for_process(agent: &Agent) -> Result<(), i32> {
    let id = task::start_timer(None, SIGNAL, interval(agent))?;
    FOR_PROCESS.store(id as u64 + 1, Ordering::Relaxed);
    Ok(())
}

/// The id + 1 of the process's timer, or 0. The threads that set up, pause and resume write it; the injector and the
/// kernel's seccomp calls let only one of them run at a time.
static FOR_PROCESS: AtomicU64 = AtomicU64::new(0);

/// Deletes the process's own timer, if it has one.
pub(crate) fn stop_for_process() {
    stop(&FOR_PROCESS);
}

/// Deletes a thread block's timer, if it has one.
pub(crate) fn stop_of(block: BlockRef) {
    stop(block.timer());
}

fn stop(timer: &AtomicU64) {
    let id = timer.swap(0, Ordering::Relaxed);
    if id != 0 {
        task::stop_timer(id as i32 - 1);
    }
}

/// Starts the calling thread's timer. `block` is the thread's thread block; a timer of its last owner is deleted.
pub(crate) fn restart(agent: &Agent, block: BlockRef) {
    if agent.timer_rate == 0 {
        return;
    }
    stop_of(block);
    match task::start_timer(Some(task::gettid()), SIGNAL, interval(agent)) {
        Ok(id) => block.timer().store(id as u64 + 1, Ordering::Relaxed),
        Err(_) => {
            agent.region.lost_timers().fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Counts samples at an address outside of the program. If the table has no entry for the address and no room for one,
/// only their number is counted.
fn count_elsewhere(agent: &Agent, address: u64, samples: u32) {
    agent.region.samples_outside().fetch_add(samples.into(), Ordering::Relaxed);
    let table = agent.region.address() + agent.orders.elsewhere_offset;
    let first = sample_entry(address);
    for index in (first..first + SAMPLE_PROBES).map(|index| index % SAMPLES_MAX) {
        let at = table + (index * size_of::<SampleRecord>()) as u64;
        // SAFETY: the table is a part of the region file that is mapped as long as the process lives, and the index is
        // less than its length. All accesses to it are atomic.
        let Some(entry) = (unsafe { SampleRef::at(at) }) else { return };
        let known = entry.pc().compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
        if known.map_or_else(|known| known == address, |_| true) {
            entry.count().fetch_add(samples.into(), Ordering::Relaxed);
            return;
        }
    }
}

/// The signal handler: takes one sample, or as many as the number of timer expirations since the last signal.
pub(crate) extern "C" fn tick(_signal: i32, info: *const u8, context: *const u8) {
    let agent = Agent::get();
    if agent.timer_rate == 0 {
        return;
    }
    // SAFETY: the kernel passes a siginfo and a ucontext, which have these fields at these offsets.
    let (pc, overrun) =
        unsafe { (*context.add(GREGS).cast::<u64>().add(REG_RIP), *info.add(SI_OVERRUN).cast::<i32>()) };
    let program = &agent.program;
    let samples = 1 + overrun.max(0) as u32;
    let orders = &agent.orders;
    // The arena comes first: it may lie in a gap of the text.
    let bin = if program.in_arena(pc) {
        orders.text_bins + ((pc - program.arena_lo) >> (orders.arena_shift & 63))
    } else if (program.text_lo..program.text_hi).contains(&pc) {
        (pc - program.text_lo) >> (orders.text_shift & 63)
    } else {
        count_elsewhere(agent, pc, samples);
        return;
    };
    if bin < orders.text_bins + orders.arena_bins {
        let at = agent.region.address() + orders.histogram_offset + bin * size_of::<u32>() as u64;
        // SAFETY: the histogram follows the header in the same mapping, which the injector has made as long as its
        // orders state, and the number of the bin is less than the number of bins. All threads add to bins with
        // atomics only.
        unsafe { AtomicU32::from_ptr(at as *mut u32) }.fetch_add(samples, Ordering::Relaxed);
    }
}
