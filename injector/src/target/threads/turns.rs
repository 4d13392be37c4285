//! Lets some of the stopped threads run for a short time, to leave code that is about to change, while the
//! others stand still.
//!
//! The main thread is traced meanwhile, so signals that the process ignores are queued and wake one of the
//! threads that run. If another thread takes the signal first, the one that was woken has no reason to stop,
//! and its `epoll_wait` would return EINTR. So each thread stops at its system calls, and stays behind a call
//! that ends with EINTR until all threads stand still again.

use std::collections::HashSet;
use std::io::{self, Error};
use std::time::{Duration, Instant};

use crate::os::proc;
use crate::target::threads::requests;
use crate::target::threads::requests::{registers, wait_interrupted};
use crate::target::threads::stopped::Stopped;
use crate::target::threads::thread::Thread;
use crate::target::threads::watch::{Running, State, watch};

impl Stopped {
    /// Returns for how long a thread runs in its turn, and how many threads run at once.
    pub(crate) fn turn(&self) -> (Duration, usize) {
        // Each thread has to be scheduled once to run and once more to stop.
        const TURN: Duration = Duration::from_micros(300);
        const AT_ONCE: usize = 16;
        // Threads with a realtime priority run at once, without waiting for a processor.
        const SHORTER: Duration = Duration::from_micros(50);
        match self.urgent.is_possible() {
            true => (SHORTER, std::thread::available_parallelism().map_or(1, |n| n.get())),
            false => (TURN, AT_ONCE),
        }
    }

    /// Lets some of the threads run for `pause`. Returns false if one of them has not stopped again by
    /// `until` or soon after, because the machine is busy. All threads have to be released then.
    pub(crate) fn run_some(
        &mut self,
        which: impl Fn(&Thread) -> bool,
        pause: Duration,
        until: Instant,
    ) -> io::Result<bool> {
        const SOON: Duration = Duration::from_millis(5);
        match self.run_some_until(which, pause, until.max(Instant::now() + pause) + SOON) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn run_some_until(
        &mut self,
        which: impl Fn(&Thread) -> bool,
        pause: Duration,
        until: Instant,
    ) -> io::Result<()> {
        let (mut gone, mut trouble) = (Vec::new(), None);
        let mut running = Vec::new();
        for (n, thread) in self.threads.iter_mut().enumerate().filter(|(_, thread)| which(thread)) {
            thread.settle()?;
            requests::resume_to_call(thread.tid, 0)?;
            running.push(Running { n, tid: thread.tid, state: State::Runs });
        }
        watch(&mut running, Instant::now() + pause)?;
        for thread in running.iter().filter(|thread| thread.state != State::Stands) {
            let _ = requests::interrupt(thread.tid);
            if thread.state == State::BehindCall {
                let _ = requests::resume(thread.tid, 0);
            }
        }
        for &Running { n, state, .. } in &running {
            let thread = &mut self.threads[n];
            let stands = if state == State::Stands { Ok(true) } else { wait_interrupted(thread.tid, until) };
            match stands {
                Ok(true) => {
                    *thread = Thread::new(thread.tid, registers(thread.tid)?);
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
        // The threads that ran may have created others.
        self.stop_others(until)?;
        match proc::auxiliary(self.pid)? == self.auxiliary {
            true => Ok(()),
            false => Err(Error::other("it executes another program now")),
        }
    }

    /// Stops all threads that were created since the others were stopped.
    fn stop_others(&mut self, until: Instant) -> io::Result<()> {
        // Those that have ended, or are about to.
        let mut gone = HashSet::new();
        loop {
            let ids = proc::thread_ids(self.pid)?;
            let known: HashSet<i32> = self.threads.iter().map(|thread| thread.tid).collect();
            let is_new = |tid: &i32| !known.contains(tid) && !gone.contains(tid);
            let others: Vec<i32> = ids.iter().copied().filter(is_new).collect();
            if others.is_empty() {
                if self.are_all(&ids)? {
                    return Ok(());
                }
                if Instant::now() > until {
                    return Err(Error::from_raw_os_error(libc::ETIMEDOUT));
                }
            }
            for tid in others {
                if !self.stop_another(tid, until)? {
                    gone.insert(tid);
                }
            }
        }
    }

    /// Stops a thread. Returns false if it has ended, or is about to.
    fn stop_another(&mut self, tid: i32, until: Instant) -> io::Result<bool> {
        if requests::seize(tid).is_err() {
            return Ok(false);
        }
        let _ = requests::interrupt(tid);
        self.urgent.add(tid);
        match wait_interrupted(tid, until) {
            Ok(true) => self.threads.push(Thread::new(tid, registers(tid)?)),
            Ok(false) => return Ok(false),
            Err(error) => {
                self.late.push(tid);
                return Err(error);
            }
        }
        Ok(true)
    }
}
