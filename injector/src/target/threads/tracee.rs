//! Another process's threads, stopped by ptrace(2), and what can be done with them meanwhile.
//!
//! Threads are seized and interrupted, so no signal is involved that the process could see, and a system call
//! that a thread waits in is restarted by the kernel. Where it is not (`epoll_wait` and its like answer EINTR
//! even so, see signal(7), "Interruption of system calls by stop signals"), we have the kernel restart it.
//!
//! A signal that the process ignores is dropped when it is sent, but not if the thread that it is sent to is traced; for a
//! signal to the process, that thread is the main one. It then wakes any thread, whose `epoll_wait` ends
//! with EINTR. That can be mended only in threads that stand still. So the main thread is traced only while no other thread
//! runs freely: it is the last one that is stopped, and the last choice where one thread is borrowed. Threads that are let
//! run while the main one stands still are watched at each of their system calls (`moments`).
#![allow(unsafe_code)]

mod borrowed;
mod calls;
pub(crate) mod memory;
mod moments;
mod requests;
pub(crate) mod urgency;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Error};
use std::time::{Duration, Instant};

use libc::user_regs_struct;

use crate::os::proc;
use crate::target::threads::tracee::borrowed::Borrowed;
use crate::target::threads::tracee::calls::{ends_call_with_eintr, ends_with_eintr, may_end_with_eintr};
use crate::target::threads::tracee::memory::Memory;
use crate::target::threads::tracee::requests::{
    Event, poll, registers, request, set_registers, wait, wait_interrupted,
};
use crate::target::threads::tracee::urgency::Urgent;

/// How long a thread may take to stop. One that waits for the disk, or for its vfork child, cannot.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the others stand still meanwhile, before they get another moment; and each time longer, since more threads
/// than the machine has processors for, or a slow disk, may need that.
const SHORT: Duration = Duration::from_millis(30);
const LONG: Duration = Duration::from_millis(240);
/// How long code of ours may take in a borrowed thread.
const CALL_PATIENCE: Duration = Duration::from_secs(20);
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// What a system call that a signal has interrupted leaves in rax, for the kernel's own use, if it is to be made again
/// unless a handler runs.
const ERESTARTNOHAND: i64 = 514;

/// Who stops threads: a thread of ours, made for that. At its end the kernel lets all of them go at the same time.
/// Otherwise those that go on first would be woken by signals that the process ignores, which are no more ignored
/// as long as the thread that they are sent to is traced.
pub(crate) struct Tracer(());

fn thread_id() -> i32 {
    // SAFETY: it has no arguments.
    unsafe { libc::gettid() }
}

/// Runs what stops threads of a process.
pub(crate) fn apart<T: Send>(pid: i32, work: impl FnOnce(&Tracer) -> T + Send) -> T {
    let (result, tracer) = std::thread::scope(|scope| {
        let tracer = scope.spawn(|| (work(&Tracer(())), thread_id()));
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    // It is known to have ended before it lets go.
    let until = Instant::now() + PATIENCE;
    let line = format!("\nTracerPid:\t{tracer}\n");
    while fs::read_to_string(format!("/proc/{}/status", proc::visible_thread(pid)))
        .is_ok_and(|status| status.contains(&line))
        && Instant::now() < until
    {
        std::thread::sleep(Duration::from_micros(50));
    }
    result
}

/// All threads of a process, stopped. They go on when the tracer's work is done.
pub(crate) struct Stopped {
    pub(crate) pid: i32,
    pub(crate) threads: Vec<Thread>,
    since: Instant,
    urgent: Urgent,
    /// Threads that have been told to stop and had not done so in time.
    late: Vec<i32>,
    /// Tells whether it executes another program: see [`auxiliary`].
    pub(crate) auxiliary: Vec<[u64; 2]>,
}

pub(crate) struct Thread {
    pub(crate) tid: i32,
    pub(crate) registers: user_regs_struct,
    /// `registers` are not the thread's own any more.
    changed: bool,
    /// It has run since it was looked at.
    pub(crate) fresh: bool,
}

impl Stopped {
    /// Stops all threads.
    pub(crate) fn all(pid: i32, _: &Tracer) -> io::Result<Stopped> {
        let until = Instant::now() + PATIENCE;
        let mut seized = HashMap::new();
        let mut window = SHORT;
        loop {
            let mut stopped = Stopped {
                pid,
                threads: Vec::new(),
                since: Instant::now(),
                urgent: Urgent::new(),
                late: Vec::new(),
                auxiliary: Vec::new(),
            };
            match stopped.stop_all(&mut seized, stopped.since + window) {
                Ok(()) if stopped.threads.is_empty() => return Err(Error::from_raw_os_error(libc::ESRCH)),
                Ok(()) => {
                    stopped.auxiliary = proc::auxiliary(pid)?;
                    return Ok(stopped);
                }
                Err(error) if error.raw_os_error() != Some(libc::ETIMEDOUT) || Instant::now() > until => {
                    return Err(error);
                }
                Err(_) => stopped.let_run(&mut seized, 2 * window)?,
            }
            window = (2 * window).min(LONG);
        }
    }

    /// Lets the threads that have stopped run for that long, before all are told to stop once more. The late ones are
    /// not told twice: they are still to stop, and the next round waits for them.
    ///
    /// The threads that have stopped are detached, the main one first, so that the kernel drops ignored signals again.
    /// A main thread that is late itself stays traced, so ignored signals go on waking other threads. These are watched
    /// then, as the threads that get a moment to run are.
    fn let_run(&mut self, seized: &mut HashMap<i32, bool>, pause: Duration) -> io::Result<()> {
        // Its threads have their usual priority back before they run.
        self.urgent = Urgent::new();
        let late = std::mem::take(&mut self.late);
        if late.contains(&self.pid) {
            self.urgent.add(self.pid);
            return self.run_watched(seized, pause);
        }
        self.threads.sort_by_key(|thread| thread.tid != self.pid);
        for mut thread in self.threads.drain(..) {
            thread.settle()?;
            request(libc::PTRACE_DETACH, thread.tid, 0, 0)?;
            seized.remove(&thread.tid);
        }
        std::thread::sleep(pause);
        Ok(())
    }

    /// `seized`: threads that we trace already, and whether they are still to stop as they were told: told twice, they
    /// would stop twice.
    fn stop_all(&mut self, seized: &mut HashMap<i32, bool>, until: Instant) -> io::Result<()> {
        /// How often the other threads are listed before the main thread is stopped even though they make new threads.
        const LISTINGS: usize = 4;
        let pid = self.pid;
        let mut known = HashSet::new();
        loop {
            // The main thread comes last (see the top of this file), after the threads that are made while others are being
            // stopped.
            for _ in 0..LISTINGS {
                let mut others = proc::thread_ids(pid)?;
                others.retain(|&tid| tid != pid && known.insert(tid));
                if others.is_empty() {
                    break;
                }
                let stand = self.stop_these(others, seized, until);
                if stand.is_err() && seized.contains_key(&pid) && known.insert(pid) {
                    // The main thread was late in an earlier round. If it stands by now, it is let go with the others,
                    // instead of being traced while they run.
                    self.stop_these(vec![pid], seized, until)?;
                }
                stand?;
            }
            if known.insert(pid) {
                self.stop_these(vec![pid], seized, until)?;
            } else if proc::thread_ids(pid)?.iter().all(|tid| known.contains(tid)) {
                return Ok(());
            }
        }
    }

    fn stop_these(
        &mut self,
        mut tids: Vec<i32>,
        seized: &mut HashMap<i32, bool>,
        until: Instant,
    ) -> io::Result<()> {
        for &tid in &tids {
            if let Entry::Vacant(place) = seized.entry(tid) {
                match request(libc::PTRACE_SEIZE, tid, 0, libc::PTRACE_O_TRACESYSGOOD as usize) {
                    Ok(()) => _ = place.insert(false),
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    // So the kernel answers if it is about to end, too.
                    Err(_) if proc::has_ended(self.pid, tid) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        tids.retain(|tid| seized.contains_key(tid));
        for &tid in &tids {
            if seized.insert(tid, true) == Some(false) {
                let _ = request(libc::PTRACE_INTERRUPT, tid, 0, 0);
            }
            self.urgent.add(tid);
        }
        let mut trouble = None;
        for tid in tids {
            let stands = wait_interrupted(tid, until)
                .and_then(|alive| if alive { registers(tid).map(Some) } else { Ok(None) });
            match stands {
                Ok(Some(registers)) => {
                    seized.insert(tid, false);
                    let mut thread = Thread { tid, registers, changed: false, fresh: true };
                    thread.restart_call();
                    self.threads.push(thread);
                }
                Ok(None) => _ = seized.remove(&tid),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => _ = seized.remove(&tid),
                Err(error) => {
                    self.late.push(tid);
                    trouble = Some(error);
                }
            }
        }
        trouble.map_or(Ok(()), Err)
    }

    /// Stops one thread only, the first that can be stopped.
    pub(crate) fn one(pid: i32, _: &Tracer) -> io::Result<Stopped> {
        let mut refusal = Error::from_raw_os_error(libc::ESRCH);
        let mut late = Vec::new();
        let mut threads = proc::thread_ids(pid)?;
        // Asked once of each: it changes as we look.
        threads.sort_by_cached_key(|&tid| (tid == pid, ends_with_eintr(pid, tid)));
        for tid in threads {
            let (since, mut urgent) = (Instant::now(), Urgent::new());
            let seized = request(libc::PTRACE_SEIZE, tid, 0, libc::PTRACE_O_TRACESYSGOOD as usize);
            if let Err(error) = seized {
                refusal = error;
                continue;
            }
            let _ = request(libc::PTRACE_INTERRUPT, tid, 0, 0);
            urgent.add(tid);
            match wait_interrupted(tid, since + PATIENCE / 4).and_then(|_| registers(tid)) {
                Ok(registers) => {
                    let mut thread = Thread { tid, registers, changed: false, fresh: true };
                    thread.restart_call();
                    return Ok(Stopped {
                        pid,
                        threads: vec![thread],
                        since,
                        urgent,
                        late,
                        auxiliary: proc::auxiliary(pid)?,
                    });
                }
                Err(error) => {
                    refusal = error;
                    late.push(tid);
                }
            }
        }
        wait_for(pid, &mut late);
        Err(refusal)
    }

    /// How long they have stood still.
    pub(crate) fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Has the first thread make a system call.
    pub(crate) fn call(&mut self, instruction: u64, number: i64, arguments: [u64; 6]) -> io::Result<u64> {
        let Some(thread) = self.threads.first() else { return Err(Error::from_raw_os_error(libc::ESRCH)) };
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
            request(libc::PTRACE_SYSCALL, borrowed.tid, 0, signal as usize)?;
            signal = 0;
            match wait(borrowed.tid, until)? {
                Event::Call => seen += 1,
                Event::Interrupted => {}
                Event::Signal(libc::SIGSTOP) => signal = libc::SIGSTOP,
                Event::Gone => return Err(Error::from_raw_os_error(libc::ESRCH)),
                _ => return Err(borrowed.fault(until)),
            }
        }
        let result = crate::target::threads::tracee::registers(borrowed.tid)?.rax;
        // It stands behind the call; only an interrupted thread goes back to what it did before.
        request(libc::PTRACE_INTERRUPT, borrowed.tid, 0, 0)?;
        request(libc::PTRACE_CONT, borrowed.tid, 0, 0)?;
        borrowed.wait(until)?;
        match result as i64 {
            errno @ -4095..0 => Err(Error::from_raw_os_error(-errno as i32)),
            _ => Ok(result),
        }
    }

    /// Has the first thread run code that sets the word at `done` to 1 at its end and then sleeps.
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
        request(libc::PTRACE_CONT, borrowed.tid, 0, 0)?;
        while memory.word(done)? != 1 {
            match poll(borrowed.tid)? {
                None => {}
                Some(Event::Interrupted) => {
                    request(libc::PTRACE_CONT, borrowed.tid, 0, 0)?;
                    continue;
                }
                Some(Event::Signal(libc::SIGSTOP)) => {
                    request(libc::PTRACE_CONT, borrowed.tid, 0, libc::SIGSTOP as usize)?;
                    continue;
                }
                Some(Event::Gone) => return Err(Error::from_raw_os_error(libc::ESRCH)),
                Some(_) => return Err(borrowed.fault(until)),
            }
            if Instant::now() > until {
                borrowed.interrupt(until + PATIENCE)?;
                return Err(Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        borrowed.interrupt(until)
    }
}

/// Waits for threads that have been told to stop, before they are let go: that has woken them, and those whose call the
/// kernel does not restart would see EINTR. One that cannot be woken is not waited for.
fn wait_for(pid: i32, late: &mut Vec<i32>) {
    let until = Instant::now() + PATIENCE / 4;
    for tid in late.drain(..).filter(|&tid| may_end_with_eintr(pid, tid)) {
        if let Ok(true) = wait_interrupted(tid, until)
            && let Ok(registers) = registers(tid)
        {
            let mut thread = Thread { tid, registers, changed: false, fresh: true };
            thread.restart_call();
            let _ = thread.settle();
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        wait_for(self.pid, &mut self.late);
        for thread in &mut self.threads {
            let _ = thread.settle();
        }
    }
}

impl Thread {
    /// Where it goes on, if not where it stands.
    pub(crate) fn move_to(&mut self, address: u64) {
        self.registers.rip = address;
        self.changed = true;
    }

    /// The same where an exception has landed it, with what it lands with; out of a system call of ours.
    pub(crate) fn land(&mut self, pad: u64, rax: u64) {
        self.registers.rax = rax;
        self.registers.orig_rax = u64::MAX;
        self.move_to(pad);
    }

    /// Its registers are what they are said to be.
    fn settle(&mut self) -> io::Result<()> {
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

/// Address of a `syscall` instruction in a piece of code.
pub(crate) fn find_syscall(code: &[u8]) -> Option<u64> {
    code.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL).map(|at| at as u64)
}
