//! Lets threads run for a short time and watches them at each of their system calls meanwhile.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use crate::target::threads::calls::ends_call_with_eintr;
use crate::target::threads::requests;
use crate::target::threads::requests::{Event, poll, registers};
use crate::target::threads::thread::Thread;

/// A thread that runs for a short time; `n` is its place among the stopped ones.
pub(super) struct Running {
    pub(super) n: usize,
    pub(super) tid: i32,
    pub(super) state: State,
}

/// What a watched thread does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Runs,
    /// It stands behind a system call that is about to return EINTR, and continues when it is asked to stop.
    BehindCall,
    /// A signal such as SIGSTOP is stopping the whole process.
    Stands,
}

/// Until the given time, makes the threads continue after each system call and each signal.
///
/// # Errors
/// waitpid(2) fails.
pub(super) fn watch(running: &mut [Running], until: Instant) -> io::Result<()> {
    const STEP: Duration = Duration::from_micros(20);
    while running.iter().any(|thread| thread.state == State::Runs) {
        let pass = Instant::now();
        for thread in running.iter_mut().filter(|thread| thread.state == State::Runs) {
            let signal = match poll(thread.tid)? {
                // The caller that waits for the thread next finds that it has ended.
                None | Some(Event::Gone) => continue,
                Some(Event::Call) if registers(thread.tid).is_ok_and(|now| ends_call_with_eintr(&now)) => {
                    thread.state = State::BehindCall;
                    continue;
                }
                Some(Event::Interrupted) => {
                    thread.state = State::Stands;
                    continue;
                }
                Some(Event::Call | Event::Executed) => 0,
                Some(Event::Signal(signal)) => signal,
            };
            // A thread that is killed meanwhile is found to have ended later.
            let _ = requests::resume_to_call(thread.tid, signal);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        // With many threads, each pass takes long. Half of the time is left to the threads.
        std::thread::sleep(left.min(STEP.max(pass.elapsed())));
    }
    Ok(())
}

/// Lets all stopped threads run for `pause` while the main thread is still about to stop. `seized` has the
/// traced threads and whether they are still about to stop; threads that are asked to stop again are entered
/// there.
///
/// # Errors
/// waitpid(2) fails.
pub(super) fn run_watched(
    threads: &mut Vec<Thread>,
    seized: &mut HashMap<i32, bool>,
    pause: Duration,
) -> io::Result<()> {
    let mut running = Vec::new();
    for (n, mut thread) in threads.drain(..).enumerate() {
        thread.settle()?;
        requests::resume_to_call(thread.tid, 0)?;
        running.push(Running { n, tid: thread.tid, state: State::Runs });
    }
    let until = Instant::now() + pause;
    watch(&mut running, until)?;
    // The threads that stay behind a call continue only until they stop as they are asked now.
    for thread in running.iter().filter(|thread| thread.state != State::Runs) {
        let _ = requests::interrupt(thread.tid);
        let _ = requests::resume(thread.tid, 0);
        seized.insert(thread.tid, true);
    }
    // None of the threads may run.
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
    Ok(())
}
