//! The records of the threads of a standalone program, to which their gs leads (`agent/src/os/records.rs`).

use std::io;
use std::mem::offset_of;

use anyhow::{Context, Result, bail};
use gprofinject_abi::attach::{Command, Order, THREADS_MAX, ThreadOrder};
use zerocopy::IntoBytes;

use crate::os::proc;
use crate::target::agent::attachment::Attachment;
use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::Stopped;

impl Attachment {
    /// Checks that the threads do not use gs for anything else.
    ///
    /// # Errors
    /// One of them does.
    pub(super) fn check_gs(&self, stopped: &Stopped) -> Result<()> {
        let is_other = |base: u64, selector: u64| selector != 0 || base != 0 && !self.is_record(base);
        let threads = || stopped.threads.iter().map(|thread| &thread.registers);
        if self.is_standalone && threads().any(|registers| is_other(registers.gs_base, registers.gs)) {
            bail!(
                "process {} uses the register gs itself, by which hooks in a static program find the data of a thread",
                self.pid
            );
        }
        Ok(())
    }

    /// Whether an address is that of a record.
    fn is_record(&self, address: u64) -> bool {
        self.image().is_some_and(|image| image.memory.contains(&address))
            || self.guest().is_some_and(|guest| guest.records.contains(&address))
    }

    /// Gives each of the stopped threads a record of its own, in a standalone program, and what else it needs. When this returns, their gs is set, so that hooks can be
    /// written even if this process ends.
    ///
    /// # Errors
    /// The process's memory cannot be accessed, or the agent fails.
    pub(super) fn give_records(&self, stopped: &mut Stopped, memory: &Memory) -> Result<()> {
        let order = self.image().context("the agent is not mapped")?.order;
        for first in (0..stopped.threads.len()).step_by(THREADS_MAX) {
            let last = (first + THREADS_MAX).min(stopped.threads.len());
            // The agent compares it with what the kernel tells the thread.
            let of = |registers: &libc::user_regs_struct, tid: i32| ThreadOrder {
                tid: proc::number_inside(self.pid, tid) as u64,
                fs: registers.fs_base,
                gs: registers.gs_base,
            };
            let threads: Vec<ThreadOrder> =
                stopped.threads[first..last].iter().map(|thread| of(&thread.registers, thread.tid)).collect();
            let count = (threads.len() as u64).to_le_bytes();
            let place = order + offset_of!(Order, threads) as u64;
            memory.write(place, threads.as_bytes())?;
            memory.write(order + offset_of!(Order, threads_count) as u64, &count)?;
            self.command(stopped, memory, Command::Records)
                .context("the threads could not get their records")?;
            let given: Vec<ThreadOrder> = memory.records(place, threads.len())?;
            let given = given.into_iter().filter(|_| self.is_standalone);
            for (thread, given) in stopped.threads[first..last].iter_mut().zip(given) {
                thread.set_gs(given.gs);
            }
        }
        stopped.settle()?;
        Ok(())
    }

    /// Takes the records from the stopped threads, whose gs was 0 before.
    ///
    /// # Errors
    /// A thread has ended.
    pub(super) fn take_records(&self, stopped: &mut Stopped) -> io::Result<()> {
        for thread in stopped.threads.iter_mut().filter(|_| self.is_standalone) {
            if self.is_record(thread.registers.gs_base) {
                thread.set_gs(0);
            }
        }
        stopped.settle()
    }
}
