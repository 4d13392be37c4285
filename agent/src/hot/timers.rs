//! The timers of all threads: stopped while no sample may be taken, and started again.

use crate::hot::thread_blocks;
use crate::hot::threads;
use crate::hot::timer;
use crate::program::agent::Agent;

/// Ends all timers of the process. A thread that is making its timer at the same time keeps it, as if it had made the timer
/// later.
pub(crate) fn stop(agent: &Agent) {
    if agent.timer_rate == 0 {
        return;
    }
    thread_blocks::all(agent).for_each(timer::stop_of);
    timer::stop_for_process();
}

/// Starts the calling thread's timer again, or the process's. Other threads' timers stay stopped until they get a block.
pub(crate) fn start_again(agent: &Agent) {
    if agent.timer_rate == 0 {
        return;
    }
    if agent.functions.is_empty() {
        let _ = timer::start_for_process(agent);
    } else if let Some(block) = threads::block(agent) {
        timer::restart(agent, block);
    }
}
