//! Code of the agent, run by a stopped thread.

use std::io::{self, Error};
use std::time::{Duration, Instant};

use crate::target::threads::borrowed::Borrowed;
use crate::target::threads::memory::Memory;
use crate::target::threads::requests::{self, Event, poll, set_registers, wait};
use crate::target::threads::stopped::Stopped;

/// For how long code of the agent may run in a borrowed thread.
const CALL_PATIENCE: Duration = Duration::from_secs(20);
/// How long the thread may take to stop when that time is over.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

impl Stopped {
    /// Makes the first thread make a system call, and returns the call's result.
    ///
    /// # Errors
    /// The system call fails, the thread cannot be borrowed, or a seccomp filter of the thread's may refuse the call, which is then not
    /// made (EPERM).
    pub(crate) fn call(&mut self, instruction: u64, number: i64, arguments: [u64; 6]) -> io::Result<u64> {
        let Some(thread) = self.threads.first() else { return Err(Error::from_raw_os_error(libc::ESRCH)) };
        self.check_call(thread.tid, number, arguments)?;
        let borrowed = Borrowed::new(thread)?;
        let mut registers = thread.registers;
        registers.rip = instruction;
        registers.rax = number as u64;
        registers.orig_rax = u64::MAX;
        let [a, b, c, d, e, f] = arguments;
        (registers.rdi, registers.rsi, registers.rdx) = (a, b, c);
        (registers.r10, registers.r8, registers.r9) = (d, e, f);
        set_registers(borrowed.tid, &registers)?;
        let until = Instant::now() + CALL_PATIENCE;
        let mut seen = 0;
        let mut signal = 0;
        while seen < 2 {
            requests::resume_to_call(borrowed.tid, signal)?;
            signal = 0;
            match wait(borrowed.tid, until)? {
                Event::Call => seen += 1,
                Event::Interrupted => {}
                Event::Signal(libc::SIGSTOP) => signal = libc::SIGSTOP,
                Event::Gone => return Err(Error::from_raw_os_error(libc::ESRCH)),
                _ => return Err(borrowed.fault(until)),
            }
        }
        let result = requests::registers(borrowed.tid)?.rax;
        // The thread stands behind the call. Only an interrupted thread returns to what it did before.
        requests::interrupt(borrowed.tid)?;
        requests::resume(borrowed.tid, 0)?;
        borrowed.wait(until)?;
        match result as i64 {
            errno @ -4095..0 => Err(Error::from_raw_os_error(-errno as i32)),
            _ => Ok(result),
        }
    }

    /// Makes the first thread run code that ends by setting the word at `done` to 1 and sleeping.
    ///
    /// # Errors
    /// The code faults or does not end in time, or the thread cannot be borrowed.
    pub(crate) fn run(
        &mut self,
        memory: &Memory,
        entry: u64,
        stack: u64,
        argument: u64,
        done: u64,
    ) -> io::Result<()> {
        let Some(thread) = self.threads.first() else { return Err(Error::from_raw_os_error(libc::ESRCH)) };
        let borrowed = Borrowed::new(thread)?;
        let mut registers = thread.registers;
        registers.rip = entry;
        registers.rsp = stack;
        registers.rdi = argument;
        registers.orig_rax = u64::MAX;
        registers.eflags &= !0x400;
        memory.write(done, &[0; 8])?;
        set_registers(borrowed.tid, &registers)?;
        let until = Instant::now() + CALL_PATIENCE;
        requests::resume(borrowed.tid, 0)?;
        while memory.word(done)? != 1 {
            match poll(borrowed.tid)? {
                None => {}
                Some(Event::Interrupted) => {
                    requests::resume(borrowed.tid, 0)?;
                    continue;
                }
                Some(Event::Signal(libc::SIGSTOP)) => {
                    requests::resume(borrowed.tid, libc::SIGSTOP)?;
                    continue;
                }
                Some(Event::Gone) => return Err(Error::from_raw_os_error(libc::ESRCH)),
                Some(_) => return Err(borrowed.fault(until)),
            }
            if Instant::now() > until {
                borrowed.interrupt(until + STOP_PATIENCE)?;
                return Err(Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        borrowed.interrupt(until)
    }
}
