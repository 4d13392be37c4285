//! A thread that makes a system call for us, or runs code of ours.

use std::io::{self, Error};
use std::time::Instant;

use libc::user_regs_struct;

use crate::target::threads::requests;
use crate::target::threads::requests::{Event, registers, set_registers, wait};
use crate::target::threads::thread::Thread;

/// A stopped thread that runs something else for a while, with all signals blocked. At the end it stands still as
/// before, whatever happens.
///
/// SIGSTOP cannot be blocked. It is passed on at once: the other threads stop, and this one, being traced, goes on with our
/// work, and stops with them when we let it go; unless a SIGCONT comes first, of which the kernel takes care.
pub(super) struct Borrowed {
    pub(super) tid: i32,
    registers: user_regs_struct,
    mask: u64,
}

impl Borrowed {
    pub(super) fn new(thread: &Thread) -> io::Result<Borrowed> {
        let mask = requests::signal_mask(thread.tid)?;
        requests::set_signal_mask(thread.tid, u64::MAX)?;
        Ok(Borrowed { tid: thread.tid, registers: thread.registers, mask })
    }

    /// Stops it again, while it runs.
    pub(super) fn interrupt(&self, until: Instant) -> io::Result<()> {
        requests::interrupt(self.tid)?;
        self.wait(until)
    }

    /// Only a fault of the code is not blocked: the kernel has stopped the thread for it. It is not the program's own.
    pub(super) fn fault(&self, until: Instant) -> Error {
        let at = registers(self.tid).map_or(0, |registers| registers.rip);
        // A signal that a thread was stopped for ends it when we go, if it has not gone on without.
        let gone_on = set_registers(self.tid, &self.registers)
            .and_then(|()| requests::interrupt(self.tid))
            .and_then(|()| requests::resume(self.tid, 0))
            .and_then(|()| self.wait(until));
        Error::other(match gone_on {
            Ok(()) => format!("the agent was stopped at {at:#x}"),
            Err(error) => {
                format!("the agent was stopped at {at:#x}, and stays: {}", crate::os::sys::reason(&error))
            }
        })
    }

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
        let _ = set_registers(self.tid, &self.registers);
        let _ = requests::set_signal_mask(self.tid, self.mask);
    }
}
