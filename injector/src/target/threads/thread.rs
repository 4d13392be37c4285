//! One stopped thread of another process.

use std::io;

use libc::user_regs_struct;

use crate::target::threads::calls::ends_call_with_eintr;
use crate::target::threads::requests::set_registers;

/// What a system call that a signal has interrupted leaves in rax, for the kernel's own use, if it is to be made again
/// unless a handler runs.
const ERESTARTNOHAND: i64 = 514;

/// A stopped thread, and what its registers are to be when it goes on.
pub(crate) struct Thread {
    pub(crate) tid: i32,
    pub(crate) registers: user_regs_struct,
    /// `registers` are not the thread's own any more.
    changed: bool,
    /// It has run since it was last looked at.
    pub(crate) fresh: bool,
}

impl Thread {
    /// A thread that has just stopped with these registers.
    pub(super) fn new(tid: i32, registers: user_regs_struct) -> Thread {
        let mut thread = Thread { tid, registers, changed: false, fresh: true };
        thread.restart_call();
        thread
    }

    /// Has it go on at another address.
    pub(crate) fn move_to(&mut self, address: u64) {
        self.registers.rip = address;
        self.changed = true;
    }

    /// Has it go on at the landing pad of an exception, with the register that the pad expects, and not in the system call of
    /// ours in which it waits.
    pub(crate) fn land(&mut self, pad: u64, rax: u64) {
        self.registers.rax = rax;
        self.registers.orig_rax = u64::MAX;
        self.move_to(pad);
    }

    /// Writes its registers, if they were changed.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.changed) {
            set_registers(self.tid, &self.registers)?;
        }
        Ok(())
    }

    /// Leaves it to the kernel to make a system call again that has ended with EINTR because we stopped the thread.
    ///
    /// The thread stands where the kernel is about to look for signals. With ERESTARTNOHAND in rax, it does what it does
    /// for `poll`: if a handler runs in this very thread, the call ends with EINTR, as it would have without us;
    /// else it is made again.
    fn restart_call(&mut self) {
        if ends_call_with_eintr(&self.registers) {
            self.registers.rax = -ERESTARTNOHAND as u64;
            self.changed = true;
        }
    }
}
