//! One stopped thread of another process.

use std::io;

use libc::user_regs_struct;

use crate::target::threads::calls::ends_call_with_eintr;
use crate::target::threads::requests::set_registers;

/// The value in rax of an interrupted system call that the kernel makes again unless a signal handler runs.
/// It is internal to the kernel.
const ERESTARTNOHAND: i64 = 514;

/// A stopped thread, and the registers that it will have when it continues.
pub(crate) struct Thread {
    pub(crate) tid: i32,
    pub(crate) registers: user_regs_struct,
    /// Whether `registers` are no longer those of the thread.
    changed: bool,
    /// Whether the thread has run since it was last examined.
    pub(crate) fresh: bool,
}

impl Thread {
    /// Returns a thread that has just stopped with these registers.
    pub(super) fn new(tid: i32, registers: user_regs_struct) -> Thread {
        let mut thread = Thread { tid, registers, changed: false, fresh: true };
        thread.restart_call();
        thread
    }

    /// Makes the thread continue at another address.
    pub(crate) fn move_to(&mut self, address: u64) {
        self.registers.rip = address;
        self.changed = true;
    }

    /// Sets the thread's base of gs.
    pub(crate) fn set_gs(&mut self, base: u64) {
        self.changed |= self.registers.gs_base != base;
        self.registers.gs_base = base;
    }

    /// Whether the kernel repeats the thread's system call when the thread continues, by the `syscall` instruction that is
    /// directly before the next instruction.
    pub(crate) fn repeats_call(&self) -> bool {
        /// ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND and ERESTART_RESTARTBLOCK.
        const RESTARTS: [i64; 4] = [-512, -513, -514, -516];
        self.registers.orig_rax as i64 >= 0 && RESTARTS.contains(&(self.registers.rax as i64))
    }

    /// Makes the thread continue at the start of a function with one argument.
    pub(crate) fn begin_at(&mut self, function: u64, argument: u64) {
        self.registers.rdi = argument;
        self.registers.orig_rax = u64::MAX;
        self.move_to(function);
    }

    /// Makes the thread continue at the landing pad of an exception, with the register that the pad expects,
    /// and not in the agent's system call in which it waits.
    pub(crate) fn land(&mut self, pad: u64, rax: u64) {
        self.registers.rax = rax;
        self.registers.orig_rax = u64::MAX;
        self.move_to(pad);
    }

    /// Writes the thread's registers if they were changed.
    ///
    /// # Errors
    /// The thread has ended.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.changed) {
            set_registers(self.tid, &self.registers)?;
        }
        Ok(())
    }

    /// Makes the kernel restart a system call that has ended with EINTR because the injector has stopped the
    /// thread.
    ///
    /// The thread stands where the kernel is about to look for signals. With ERESTARTNOHAND in rax, the
    /// kernel does what it does for `poll`: if a handler runs in this thread, the call ends with EINTR, as it
    /// would have without gprofinject; otherwise the kernel makes the call again.
    fn restart_call(&mut self) {
        if ends_call_with_eintr(&self.registers) {
            self.registers.rax = -ERESTARTNOHAND as u64;
            self.changed = true;
        }
    }
}
