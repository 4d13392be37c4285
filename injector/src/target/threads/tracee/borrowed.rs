//! A thread that makes a system call for us, or runs code of ours.

use std::io::{self, Error};
use std::time::Instant;

use libc::user_regs_struct;

use crate::target::threads::tracee::Thread;
use crate::target::threads::tracee::requests::{Event, registers, request, set_registers, wait};

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

const MASK_LEN: usize = 8;

impl Borrowed {
    pub(super) fn new(thread: &Thread) -> io::Result<Borrowed> {
        let mut mask = 0_u64;
        request(libc::PTRACE_GETSIGMASK, thread.tid, MASK_LEN, &raw mut mask as usize)?;
        let all = u64::MAX;
        request(libc::PTRACE_SETSIGMASK, thread.tid, MASK_LEN, &raw const all as usize)?;
        Ok(Borrowed { tid: thread.tid, registers: thread.registers, mask })
    }

    /// Stops it again, while it runs.
    pub(super) fn interrupt(&self, until: Instant) -> io::Result<()> {
        request(libc::PTRACE_INTERRUPT, self.tid, 0, 0)?;
        self.wait(until)
    }

    /// Only a fault of the code is not blocked: the kernel has stopped the thread for it. It is not the program's own.
    pub(super) fn fault(&self, until: Instant) -> Error {
        let at = registers(self.tid).map_or(0, |registers| registers.rip);
        // A signal that a thread was stopped for ends it when we go, if it has not gone on without.
        let gone_on = set_registers(self.tid, &self.registers)
            .and_then(|()| request(libc::PTRACE_INTERRUPT, self.tid, 0, 0))
            .and_then(|()| request(libc::PTRACE_CONT, self.tid, 0, 0))
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
                    request(libc::PTRACE_CONT, self.tid, 0, libc::SIGSTOP as usize)?;
                }
                _ => request(libc::PTRACE_CONT, self.tid, 0, 0)?,
            }
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        let _ = set_registers(self.tid, &self.registers);
        let _ = request(libc::PTRACE_SETSIGMASK, self.tid, MASK_LEN, &raw const self.mask as usize);
    }
}
