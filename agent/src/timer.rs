//! Sampling without perf: a timer on every thread's CPU clock.
//!
//! The signal is SIGSTKFLT, which Linux on x86 never sends and programs do not use: SIGPROF and
//! ITIMER_PROF stay the program's own. A program that blocks every signal blocks this one too.
#![allow(unsafe_code)]

use crate::agent::{Agent, add};
use crate::counters;
use crate::sys;
use crate::threads;
use core::arch::global_asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::region::BlockHeader;

const SIGSTKFLT: i32 = 16;
const SA_SIGINFO_RESTART_ONSTACK_RESTORER: u64 = 4 | 0x1000_0000 | 0x0800_0000 | 0x0400_0000;
/// Index of rip in the general registers of a ucontext.
const REG_RIP: usize = 16;
/// Offset of the general registers in a ucontext (flags, link, stack).
const GREGS: usize = 40;
/// Offset of si_overrun in a siginfo of a timer.
const SI_OVERRUN: usize = 20;

global_asm!(
    ".text",
    ".globl gpi_restorer",
    ".hidden gpi_restorer",
    ".type gpi_restorer, @function",
    "nop", // unwinders look up the byte before
    "gpi_restorer:",
    "mov eax, 15",
    "syscall",
    ".size gpi_restorer, . - gpi_restorer",
);

unsafe extern "C" {
    fn gpi_restorer();
}

/// Installs the handler.
pub(crate) fn prepare() -> Result<(), i32> {
    let action = sys::SignalAction {
        handler: tick as *const () as u64,
        flags: SA_SIGINFO_RESTART_ONSTACK_RESTORER,
        restorer: gpi_restorer as *const () as u64,
        mask: !0,
    };
    // SAFETY: `tick` uses its own stack frame and adds to counters, nothing else.
    unsafe { sys::set_signal_action(SIGSTKFLT, &action) }.map(|_| ())
}

fn interval(agent: &Agent) -> u64 {
    1_000_000_000 / u64::from(agent.timer_rate)
}

/// Where nothing is hooked, nobody tells of new threads: one timer for the process.
pub(crate) fn start_for_process(agent: &Agent) -> Result<(), i32> {
    let id = sys::start_timer(None, SIGSTKFLT, interval(agent))?;
    FOR_PROCESS.store(id as u64 + 1, Ordering::Relaxed);
    Ok(())
}

/// The process's timer's id + 1, or 0.
static FOR_PROCESS: AtomicU64 = AtomicU64::new(0);

/// Ends all timers of the process.
pub(crate) fn stop_all(agent: &Agent) {
    if agent.timer_rate == 0 {
        return;
    }
    for header in threads::headers(agent) {
        // SAFETY: a block's header stays mapped. Its thread may be making the timer just now: then it is
        // left running, as if it had been made later.
        unsafe {
            let id = AtomicU64::from_ptr(&raw mut (*header).timer).swap(0, Ordering::Relaxed);
            if id != 0 {
                sys::stop_timer(id as i32 - 1);
            }
        }
    }
    let id = FOR_PROCESS.swap(0, Ordering::Relaxed);
    if id != 0 {
        sys::stop_timer(id as i32 - 1);
    }
}

/// Starts the calling thread's timer again, or the process's.
pub(crate) fn start_again(agent: &Agent) {
    if agent.timer_rate == 0 {
        return;
    }
    if agent.functions_count == 0 {
        let _ = start_for_process(agent);
    } else if let Some(block) = threads::block(agent) {
        // SAFETY: the calling thread's block.
        unsafe { restart(agent, block as *mut BlockHeader) };
    }
}

/// Starts the calling thread's timer; the block's last owner's, if any, is deleted.
///
/// # Safety
/// `header` must be the calling thread's block.
pub(crate) unsafe fn restart(agent: &Agent, header: *mut BlockHeader) {
    if agent.timer_rate == 0 {
        return;
    }
    // SAFETY: passed on; the region header stays mapped.
    unsafe {
        if (*header).timer != 0 {
            sys::stop_timer((*header).timer as i32 - 1);
            (*header).timer = 0;
        }
        match sys::start_timer(Some(sys::gettid()), SIGSTKFLT, interval(agent)) {
            Ok(id) => (*header).timer = id as u64 + 1,
            Err(_) => {
                add(&raw mut (*agent.header()).lost_timers, 1);
            }
        }
    }
}

/// The signal handler: one sample, or as many as timer expirations have come together.
extern "C" fn tick(_signal: i32, info: *const u8, context: *const u8) {
    let agent = Agent::get();
    if agent.timer_rate == 0 {
        return;
    }
    // SAFETY: the kernel passes a siginfo and a ucontext; see the offsets above.
    let (pc, overrun) =
        unsafe { (*context.add(GREGS).cast::<u64>().add(REG_RIP), *info.add(SI_OVERRUN).cast::<i32>()) };
    let pc = counters::original(agent, pc);
    let samples = 1 + overrun.max(0) as u32;
    let header = agent.header();
    // SAFETY: the histogram follows the header in the same mapping; indices are checked against it.
    unsafe {
        let bin = if (agent.text_lo..agent.text_hi).contains(&pc) {
            (pc - agent.text_lo) >> ((*header).orders.text_shift & 63)
        } else if agent.in_arena(pc) {
            (*header).orders.text_bins + ((pc - agent.arena_lo) >> ((*header).orders.arena_shift & 63))
        } else {
            add(&raw mut (*header).samples_outside, samples.into());
            return;
        };
        if bin < (*header).orders.text_bins + (*header).orders.arena_bins {
            let bins = header.cast::<u8>().add((*header).orders.histogram_offset as usize).cast::<u32>();
            AtomicU32::from_ptr(bins.add(bin as usize)).fetch_add(samples, Ordering::Relaxed);
        }
    }
}
