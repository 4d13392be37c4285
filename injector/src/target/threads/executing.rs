//! A process that is traced while it executes a program.

use std::io::{self, Error};
use std::time::{Duration, Instant};

use crate::os::proc;
use crate::target::threads::requests::{self, Event};
use crate::target::threads::stopped::Stopped;

/// A process whose threads are traced and run. It will stop when one of them has executed a program.
pub(crate) struct Executing {
    pid: i32,
    /// The threads that are traced. The injector does not know which of them executes the program.
    threads: Vec<i32>,
}

impl Stopped {
    /// Begins to trace a process that is about to execute a program. The calling thread is the one that traces.
    ///
    /// # Errors
    /// The process cannot be traced, or has ended.
    pub(crate) fn about_to_execute(pid: i32) -> io::Result<Executing> {
        let mut executing = Executing { pid, threads: Vec::new() };
        for tid in proc::thread_ids(pid)? {
            match requests::seize_to_execute(tid) {
                Ok(()) => executing.threads.push(tid),
                // Another thread may just have ended.
                Err(_) if tid != pid && proc::has_ended(pid, tid) => {}
                Err(error) => {
                    executing.give_up();
                    return Err(error);
                }
            }
        }
        Ok(executing)
    }

    /// Lets the threads run that were stopped, with the registers that they have been given.
    ///
    /// # Errors
    /// A thread has ended.
    pub(crate) fn release(mut self) -> io::Result<()> {
        for thread in &mut self.threads {
            thread.settle()?;
            requests::detach(thread.tid)?;
        }
        self.threads.clear();
        Ok(())
    }
}

impl Executing {
    /// Waits until the process has executed the program. Returns the process, stopped before the program's first
    /// instruction, or `None` if it has ended.
    ///
    /// The kernel ends all threads but the one that executes the program, which then has the process's number.
    ///
    /// # Errors
    /// The process has not executed a program before `until`. It is not traced any more.
    pub(crate) fn executed(mut self, until: Instant) -> io::Result<Option<Stopped>> {
        let mut is_executed = false;
        let mut pauses = 0_u32;
        while Instant::now() < until {
            let mut is_quiet = true;
            for tid in self.threads.clone() {
                let Some(event) = requests::poll(tid)? else { continue };
                is_quiet = false;
                match event {
                    Event::Gone if tid == self.pid => return Ok(None),
                    Event::Gone => self.threads.retain(|&other| other != tid),
                    Event::Executed => {
                        is_executed = true;
                        self.threads = vec![self.pid];
                        // The thread stops once more when it has left the system call.
                        requests::interrupt(self.pid)?;
                        requests::resume(self.pid, 0)?;
                    }
                    Event::Interrupted if is_executed => {
                        return Stopped::at_first_instruction(self.pid).map(Some);
                    }
                    Event::Interrupted => requests::listen(tid)?,
                    Event::Signal(signal) => requests::resume(tid, signal)?,
                    Event::Call => requests::resume(tid, 0)?,
                }
            }
            if is_quiet {
                pauses += 1;
                std::thread::sleep(Duration::from_micros(if pauses < 200 { 5 } else { 200 }));
            }
        }
        self.give_up();
        Err(Error::other("it has executed nothing for too long"))
    }

    /// Ends the tracing.
    fn give_up(&self) {
        let until = Instant::now() + Duration::from_secs(1);
        for &tid in &self.threads {
            let is_stopped = requests::interrupt(tid).is_ok()
                && requests::wait_interrupted(tid, until).is_ok_and(|alive| alive);
            if is_stopped {
                let _ = requests::detach(tid);
            }
        }
    }
}
