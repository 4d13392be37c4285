//! A process that is traced while it executes a program.

use std::io::{self, Error};
use std::time::Instant;

use crate::target::threads::requests::{self, Event, wait};
use crate::target::threads::stopped::Stopped;

/// A process with one thread that is traced and runs, and will stop when it has executed a program.
pub(crate) struct Executing(i32);

impl Stopped {
    /// Begins to trace a process that is about to execute a program. The calling thread is the one that traces.
    ///
    /// # Errors
    /// The process cannot be traced, or has ended.
    pub(crate) fn about_to_execute(pid: i32) -> io::Result<Executing> {
        requests::seize_to_execute(pid).map(|()| Executing(pid))
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
    /// # Errors
    /// The process has not executed a program before `until`. It is not traced any more.
    pub(crate) fn executed(self, until: Instant) -> io::Result<Option<Stopped>> {
        let Executing(pid) = self;
        let mut is_executed = false;
        loop {
            let event = match wait(pid, until) {
                Err(error) if error.raw_os_error() == Some(libc::ETIMEDOUT) => {
                    self.give_up();
                    return Err(Error::other("it has executed nothing for too long"));
                }
                event => event?,
            };
            match event {
                Event::Gone => return Ok(None),
                Event::Executed => {
                    is_executed = true;
                    // The thread stops once more when it has left the system call.
                    requests::interrupt(pid)?;
                    requests::resume(pid, 0)?;
                }
                Event::Interrupted if is_executed => return Stopped::at_first_instruction(pid).map(Some),
                Event::Interrupted => requests::listen(pid)?,
                Event::Signal(signal) => requests::resume(pid, signal)?,
                Event::Call => requests::resume(pid, 0)?,
            }
        }
    }

    /// Ends the tracing.
    fn give_up(&self) {
        let until = Instant::now() + std::time::Duration::from_secs(1);
        if requests::interrupt(self.0).is_ok()
            && requests::wait_interrupted(self.0, until).is_ok_and(|alive| alive)
        {
            let _ = requests::detach(self.0);
        }
    }
}
