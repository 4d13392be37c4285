//! The timers of all threads: stopped while no samples may be taken, and restarted.

use crate::hot::thread_blocks;
use crate::hot::threads;
use crate::hot::timer;
use crate::program::agent::Agent;
use crate::program::libraries;

/// Deletes all timers of the process. A thread that is making its timer at the same time keeps it, as if it had made
/// the timer later.
pub(crate) fn stop(agent: &Agent) {
    if agent.timer_rate == 0 {
        return;
    }
    thread_blocks::all(agent).for_each(timer::stop_of);
    timer::stop_for_process();
}

/// Restarts the calling thread's timer, or the process's. Timers of other threads remain stopped until those threads
/// get a thread block.
pub(crate) fn start_again(agent: &Agent) {
    if agent.timer_rate == 0 {
        return;
    }
    if agent.program.functions.is_empty() && libraries::used() == 0 {
        let _ = timer::start_for_process(agent);
    } else if let Some(block) = threads::block(agent) {
        timer::restart(agent, block);
    }
}
