//! A thread that makes a system call for the injector or runs the agent's code.

use std::io::{self, Error};
use std::time::Instant;

use libc::user_regs_struct;

use crate::os::sys;
use crate::target::threads::requests;
use crate::target::threads::requests::{Event, registers, set_registers, wait};
use crate::target::threads::thread::Thread;

/// The code that a borrowed thread ran has caused a fault at this address. The thread stands still again.
#[derive(Debug, thiserror::Error)]
#[error("the agent was stopped at {0:#x}")]
pub(crate) struct Fault(u64);

/// A stopped thread that runs something else for a while, with all signals blocked. At the end it stands
/// still as before, whatever happens.
///
/// A thread cannot block SIGSTOP, so the signal is passed on at once. The other threads then stop. The
/// borrowed one, being traced, continues with the agent's work, and stops with them when it is released,
/// unless a SIGCONT comes first; the kernel handles that case.
pub(super) struct Borrowed {
    pub(super) tid: i32,
    registers: user_regs_struct,
    /// The pointer to the thread's shadow stack, if it has one. Code that is taken out in the middle has not returned.
    shadow_stack: Option<u64>,
    mask: u64,
}

impl Borrowed {
    /// Blocks all signals of a stopped thread.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) fn new(thread: &Thread) -> io::Result<Borrowed> {
        let mask = requests::signal_mask(thread.tid)?;
        requests::set_signal_mask(thread.tid, u64::MAX)?;
        let shadow_stack = requests::shadow_stack(thread.tid);
        Ok(Borrowed { tid: thread.tid, registers: thread.registers, shadow_stack, mask })
    }

    /// Stops the thread while it runs.
    ///
    /// # Errors
    /// The thread does not stop before `until`.
    pub(super) fn interrupt(&self, until: Instant) -> io::Result<()> {
        requests::interrupt(self.tid)?;
        self.wait(until)
    }

    /// Returns the error for a fault of the code that the thread runs. Faults cannot be blocked: the kernel
    /// has stopped the thread for this one. It is not a fault of the program.
    pub(super) fn fault(&self, until: Instant) -> Error {
        let at = registers(self.tid).map_or(0, |registers| registers.rip);
        // A signal for which the thread was stopped would end it after its release, unless it has continued
        // without the signal.
        let gone_on = self
            .restore()
            .and_then(|()| requests::interrupt(self.tid))
            .and_then(|()| requests::resume(self.tid, 0))
            .and_then(|()| self.wait(until));
        match gone_on {
            Ok(()) => Error::other(Fault(at)),
            Err(error) => Error::other(format!("{}, and stays: {}", Fault(at), sys::reason(&error))),
        }
    }

    /// Lets the stopped thread be again where it was when it was borrowed.
    fn restore(&self) -> io::Result<()> {
        set_registers(self.tid, &self.registers)?;
        self.shadow_stack.map_or(Ok(()), |pointer| requests::set_shadow_stack(self.tid, pointer))
    }

    /// Waits until the thread stops. Signals that come first are kept for later.
    ///
    /// # Errors
    /// The thread has ended, or does not stop before `until`.
    pub(super) fn wait(&self, until: Instant) -> io::Result<()> {
        loop {
            match wait(self.tid, until)? {
                Event::Interrupted => return Ok(()),
                Event::Gone => return Err(Error::from_raw_os_error(libc::ESRCH)),
                Event::Signal(libc::SIGSTOP) => {
                    requests::resume(self.tid, libc::SIGSTOP)?;
                }
                _ => requests::resume(self.tid, 0)?,
            }
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let _ = self.restore();
        let _ = requests::set_signal_mask(self.tid, self.mask);
    }
}
