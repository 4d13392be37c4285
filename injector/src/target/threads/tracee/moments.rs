//! Threads that are let run for a moment, to leave code that is to change, while the others stand still.
//!
//! The main thread is traced then, so signals that the process ignores are queued, and wake one of the threads that run. If
//! another one of these takes the signal first, the one that was woken finds nothing to stop for, and its `epoll_wait` would
//! return EINTR. So each thread stops at its system calls, and stays behind one that ends so until all stand still again.

use std::collections::{HashMap, HashSet};
use std::io::{self, Error};
use std::time::{Duration, Instant};

use crate::os::proc;
use crate::target::threads::tracee::calls::ends_call_with_eintr;
use crate::target::threads::tracee::requests::{Event, poll, registers, request, wait_interrupted};
use crate::target::threads::tracee::{Stopped, Thread};

/// A thread that has been let run: its place among the stopped ones.
struct Running {
    n: usize,
    tid: i32,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// It stands behind a system call that is about to return EINTR, and goes on when it has been told to stop.
    BehindCall,
    /// The whole process is being stopped by a signal such as SIGSTOP.
    Stands,
}

/// Lets the threads go on behind each system call and each signal until that time.
fn watch(running: &mut [Running], until: Instant) -> io::Result<()> {
    const STEP: Duration = Duration::from_micros(20);
    while running.iter().any(|thread| thread.state == State::Runs) {
        let pass = Instant::now();
        for thread in running.iter_mut().filter(|thread| thread.state == State::Runs) {
            let signal = match poll(thread.tid)? {
                // That it has ended is found once more by whoever waits for it.
                None | Some(Event::Gone) => continue,
                Some(Event::Call) if registers(thread.tid).is_ok_and(|now| ends_call_with_eintr(&now)) => {
                    thread.state = State::BehindCall;
                    continue;
                }
                Some(Event::Interrupted) => {
                    thread.state = State::Stands;
                    continue;
                }
                Some(Event::Call) => 0,
                Some(Event::Signal(signal)) => signal,
            };
            // One that is killed at this moment is found to have ended.
            let _ = request(libc::PTRACE_SYSCALL, thread.tid, 0, signal as usize);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        // Of many threads, each pass takes long. Half of the time is left to those who run.
        std::thread::sleep(left.min(STEP.max(pass.elapsed())));
    }
    Ok(())
}

impl Stopped {
    /// Lets all stopped threads run for that long while the main thread is still to stop. `seized` is what
    /// `Stopped::stop_all` takes: this notes the threads that have been told to stop once more.
    pub(super) fn run_watched(&mut self, seized: &mut HashMap<i32, bool>, pause: Duration) -> io::Result<()> {
        let mut running = Vec::new();
        for (n, mut thread) in self.threads.drain(..).enumerate() {
            thread.settle()?;
            request(libc::PTRACE_SYSCALL, thread.tid, 0, 0)?;
            running.push(Running { n, tid: thread.tid, state: State::Runs });
        }
        let until = Instant::now() + pause;
        watch(&mut running, until)?;
        // Those that stay where they are go on only until they stop as they are told now.
        for thread in running.iter().filter(|thread| thread.state != State::Runs) {
            let _ = request(libc::PTRACE_INTERRUPT, thread.tid, 0, 0);
            let _ = request(libc::PTRACE_CONT, thread.tid, 0, 0);
            seized.insert(thread.tid, true);
        }
        // None of them may run.
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        Ok(())
    }

    /// What a thread gets to leave code that is to change, while the others stand still; and how many at once.
    pub(crate) fn moment(&self) -> (Duration, usize) {
        // Each has to be scheduled, and once more to stand still again.
        const MOMENT: Duration = Duration::from_micros(300);
        const AT_ONCE: usize = 16;
        // They run at once, but take no turns.
        const SHORTER: Duration = Duration::from_micros(50);
        match self.urgent.is_possible() {
            true => (SHORTER, std::thread::available_parallelism().map_or(1, |n| n.get())),
            false => (MOMENT, AT_ONCE),
        }
    }

    /// Lets some of the threads run for that long. False: one of them does not stand still again by `until`, or soon after,
    /// because the machine has other things to do; then all are to be let go.
    pub(crate) fn stir(
        &mut self,
        which: impl Fn(&Thread) -> bool,
        pause: Duration,
        until: Instant,
    ) -> io::Result<bool> {
        const SOON: Duration = Duration::from_millis(5);
        match self.stir_until(which, pause, until.max(Instant::now() + pause) + SOON) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn stir_until(
        &mut self,
        which: impl Fn(&Thread) -> bool,
        pause: Duration,
        until: Instant,
    ) -> io::Result<()> {
        let (mut gone, mut trouble) = (Vec::new(), None);
        let mut running = Vec::new();
        for (n, thread) in self.threads.iter_mut().enumerate().filter(|(_, thread)| which(thread)) {
            thread.settle()?;
            request(libc::PTRACE_SYSCALL, thread.tid, 0, 0)?;
            running.push(Running { n, tid: thread.tid, state: State::Runs });
        }
        watch(&mut running, Instant::now() + pause)?;
        for thread in running.iter().filter(|thread| thread.state != State::Stands) {
            let _ = request(libc::PTRACE_INTERRUPT, thread.tid, 0, 0);
            if thread.state == State::BehindCall {
                let _ = request(libc::PTRACE_CONT, thread.tid, 0, 0);
            }
        }
        for &Running { n, state, .. } in &running {
            let thread = &mut self.threads[n];
            let stands = if state == State::Stands { Ok(true) } else { wait_interrupted(thread.tid, until) };
            match stands {
                Ok(true) => {
                    thread.registers = registers(thread.tid)?;
                    thread.fresh = true;
                    thread.restart_call();
                }
                Ok(false) => gone.push(thread.tid),
                Err(error) => {
                    self.late.push(thread.tid);
                    trouble = Some(error);
                }
            }
        }
        self.threads.retain(|thread| !gone.contains(&thread.tid));
        if let Some(error) = trouble {
            return Err(error);
        }
        // They may have made others.
        let known: HashSet<i32> = self.threads.iter().map(|thread| thread.tid).collect();
        if proc::thread_ids(self.pid)?.iter().any(|tid| !known.contains(tid)) {
            self.stop_more(&known, until)?;
        }
        match proc::auxiliary(self.pid)? == self.auxiliary {
            true => Ok(()),
            false => Err(Error::other("it executes another program now")),
        }
    }

    fn stop_more(&mut self, known: &HashSet<i32>, until: Instant) -> io::Result<()> {
        for tid in proc::thread_ids(self.pid)?.into_iter().filter(|tid| !known.contains(tid)) {
            if request(libc::PTRACE_SEIZE, tid, 0, libc::PTRACE_O_TRACESYSGOOD as usize).is_err() {
                continue;
            }
            let _ = request(libc::PTRACE_INTERRUPT, tid, 0, 0);
            self.urgent.add(tid);
            match wait_interrupted(tid, until) {
                Ok(true) => {
                    let mut thread = Thread { tid, registers: registers(tid)?, changed: false, fresh: true };
                    thread.restart_call();
                    self.threads.push(thread);
                }
                Ok(false) => {}
                Err(error) => {
                    self.late.push(tid);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
