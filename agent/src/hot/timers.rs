//! Stops the sampling timers of all threads while no samples may be taken, and starts them again.

use crate::hot::thread_blocks;
use crate::hot::threads;
use crate::hot::timer;
use crate::program::agent::Agent;

/// Ends all timers of the process. A thread that creates its timer at the same time keeps it, as if it had
/// created the timer afterwards.
pub(crate) fn stop(agent: &Agent) {
    if agent.timer_rate == 0 {
        return;
    }
    thread_blocks::all(agent).for_each(timer::stop_of);
    timer::stop_for_process();
}

/// Restarts the calling thread's timer, or the process's timer if no functions are hooked. Other threads'
/// timers stay stopped until these threads get a thread block.
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
