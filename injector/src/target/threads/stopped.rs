//! The threads of another process, stopped by ptrace(2), and what can be done with them meanwhile.
//!
//! Threads are seized and interrupted, which sends no signal that the process could notice. The kernel
//! restarts most system calls in which a thread waits. It does not restart some others (`epoll_wait` and
//! similar calls return EINTR; see signal(7), "Interruption of system calls by stop signals"); the injector
//! makes the kernel restart those.
//!
//! The kernel drops a signal that the process ignores when the signal is sent, but not if the thread that it
//! is sent to is traced; a signal to the whole process counts as sent to the main thread. The signal then
//! wakes any thread, whose `epoll_wait` ends with EINTR. The injector can correct that only in threads that
//! stand still. So it traces the main thread only while no other thread runs freely: it stops the main thread
//! last, and borrows another thread if it can. Threads that run while the main thread stands still are
//! watched at each of their system calls (`watch`).

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::{self, Error};
use std::time::{Duration, Instant};

use crate::os::proc;
use crate::target::threads::calls::{ends_with_eintr, may_end_with_eintr};
use crate::target::threads::requests;
use crate::target::threads::requests::{registers, wait_interrupted};
use crate::target::threads::thread::Thread;
use crate::target::threads::tracer::Tracer;
use crate::target::threads::urgency::Urgent;
use crate::target::threads::watch::run_watched;
use serde::{Deserialize, Serialize};

/// How long a thread may take to stop. A thread that waits for the disk, or for its vfork child, cannot stop.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long the other threads stand still meanwhile before they run again. The time grows with each try,
/// because many threads or a slow disk may need more.
const SHORT: Duration = Duration::from_millis(30);
const LONG: Duration = Duration::from_millis(240);

/// For how long threads stood still, and how many there were.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Pause {
    pub(crate) took: Duration,
    pub(crate) threads: usize,
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let threads = gmon::counted(self.threads, "thread", "threads");
        write!(f, "{threads} stood still for {:.1} ms", self.took.as_secs_f64() * 1e3)
    }
}

/// All threads of a process, stopped. They continue when the tracer's work is done.
pub(crate) struct Stopped {
    pub(crate) pid: i32,
    pub(crate) threads: Vec<Thread>,
    since: Instant,
    pub(super) urgent: Urgent,
    /// The threads that were asked to stop and have not stopped in time.
    pub(super) late: Vec<i32>,
    /// The auxiliary vector, which shows whether the process executes another program; see
    /// [`crate::os::proc::auxiliary`].
    pub(crate) auxiliary: Vec<[u64; 2]>,
    /// Whether all seccomp filters of the process are inherited from this one.
    pub(crate) has_own_filters: bool,
}

impl Stopped {
    /// Stops all threads.
    ///
    /// # Errors
    /// A thread does not stop in time (`ETIMEDOUT`), the injector may not trace the process, or the process
    /// has ended.
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
                has_own_filters: false,
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

    /// Lets the threads that have stopped run for the time `pause`, before all are asked to stop again.
    /// Threads that are late are not asked again: they will still stop, and the next round waits for them.
    ///
    /// The threads that have stopped are detached, the main one first, so that the kernel drops ignored
    /// signals again. If the main thread is late, it stays traced, and ignored signals continue to wake other
    /// threads. Those are then watched, as threads in [`Stopped::run_some`] are.
    fn let_run(&mut self, seized: &mut HashMap<i32, bool>, pause: Duration) -> io::Result<()> {
        // The threads get their usual priority back before they run.
        self.urgent = Urgent::new();
        let late = std::mem::take(&mut self.late);
        if late.contains(&self.pid) {
            self.urgent.add(self.pid);
            return run_watched(&mut self.threads, seized, pause);
        }
        self.threads.sort_by_key(|thread| thread.tid != self.pid);
        for mut thread in self.threads.drain(..) {
            thread.settle()?;
            requests::detach(thread.tid)?;
            seized.remove(&thread.tid);
        }
        std::thread::sleep(pause);
        Ok(())
    }

    /// Stops the threads that are not yet stopped. `seized` has the threads that are already traced, and
    /// whether they are still about to stop as asked. A thread that is asked twice would stop twice.
    fn stop_all(&mut self, seized: &mut HashMap<i32, bool>, until: Instant) -> io::Result<()> {
        /// The number of times that the other threads are listed before the main thread is stopped, even if
        /// they still create threads.
        const LISTINGS: usize = 4;
        let pid = self.pid;
        let mut known = HashSet::new();
        loop {
            // The main thread comes last (see the top of this file), after the threads that are created while
            // others are being stopped.
            for _ in 0..LISTINGS {
                let mut others = proc::thread_ids(pid)?;
                others.retain(|&tid| tid != pid && known.insert(tid));
                if others.is_empty() {
                    break;
                }
                let stand = self.stop_these(others, seized, until);
                if stand.is_err() && seized.contains_key(&pid) && known.insert(pid) {
                    // The main thread was late in an earlier round. If it has stopped by now, it is released
                    // with the others, instead of being traced while they run.
                    self.stop_these(vec![pid], seized, until)?;
                }
                stand?;
            }
            if known.insert(pid) {
                self.stop_these(vec![pid], seized, until)?;
                continue;
            }
            let ids = proc::thread_ids(pid)?;
            if ids.iter().all(|tid| known.contains(tid)) {
                if self.are_all(&ids)? {
                    return Ok(());
                }
                if Instant::now() > until {
                    return Err(Error::from_raw_os_error(libc::ETIMEDOUT));
                }
            }
        }
    }

    /// Returns whether the threads that have just been listed are certainly all of them.
    pub(super) fn are_all(&self, ids: &[i32]) -> io::Result<bool> {
        let standing: HashSet<i32> = self.threads.iter().map(|thread| thread.tid).collect();
        proc::are_all_threads(self.pid, ids, |tid| standing.contains(&tid))
    }

    fn stop_these(
        &mut self,
        mut tids: Vec<i32>,
        seized: &mut HashMap<i32, bool>,
        until: Instant,
    ) -> io::Result<()> {
        for &tid in &tids {
            if let Entry::Vacant(place) = seized.entry(tid) {
                match requests::seize(tid) {
                    Ok(()) => _ = place.insert(false),
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    // The kernel answers in this way also if the thread is about to end.
                    Err(_) if proc::has_ended(self.pid, tid) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        tids.retain(|tid| seized.contains_key(tid));
        for &tid in &tids {
            if seized.insert(tid, true) == Some(false) {
                let _ = requests::interrupt(tid);
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
                    let thread = Thread::new(tid, registers);
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

    /// Stops one thread only, the first one that can be stopped.
    ///
    /// # Errors
    /// No thread can be stopped, or the injector may not trace the process.
    pub(crate) fn one(pid: i32, _: &Tracer) -> io::Result<Stopped> {
        let mut refusal = Error::from_raw_os_error(libc::ESRCH);
        let mut late = Vec::new();
        let mut threads = proc::thread_ids(pid)?;
        // The key is computed once for each thread, because it changes while the injector looks.
        threads.sort_by_cached_key(|&tid| (tid == pid, ends_with_eintr(pid, tid)));
        for tid in threads {
            let (since, mut urgent) = (Instant::now(), Urgent::new());
            let seized = requests::seize(tid);
            if let Err(error) = seized {
                refusal = error;
                continue;
            }
            let _ = requests::interrupt(tid);
            urgent.add(tid);
            match wait_interrupted(tid, since + PATIENCE / 4).and_then(|_| registers(tid)) {
                Ok(registers) => {
                    let thread = Thread::new(tid, registers);
                    return Ok(Stopped {
                        pid,
                        threads: vec![thread],
                        since,
                        urgent,
                        late,
                        auxiliary: proc::auxiliary(pid)?,
                        has_own_filters: false,
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

    /// Returns a process that has just executed a program and whose only thread stands still.
    ///
    /// # Errors
    /// The process has ended.
    pub(super) fn at_first_instruction(pid: i32) -> io::Result<Stopped> {
        Ok(Stopped {
            pid,
            threads: vec![Thread::new(pid, registers(pid)?)],
            since: Instant::now(),
            urgent: Urgent::new(),
            late: Vec::new(),
            auxiliary: proc::auxiliary(pid)?,
            has_own_filters: proc::are_filters_own(pid),
        })
    }

    /// Writes the registers of all threads that were changed.
    ///
    /// # Errors
    /// A thread cannot be written to, and has not ended.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        for thread in &mut self.threads {
            match thread.settle() {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns for how long the threads have stood still until now, and their number.
    pub(crate) fn pause(&self) -> Pause {
        Pause { took: self.since.elapsed(), threads: self.threads.len() }
    }
}

/// Waits, before threads are released, for those that were asked to stop and are late. The request has woken
/// them, and those in a call that the kernel does not restart would see EINTR. A thread that cannot be woken
/// is not waited for.
fn wait_for(pid: i32, late: &mut Vec<i32>) {
    let until = Instant::now() + PATIENCE / 4;
    for tid in late.drain(..).filter(|&tid| may_end_with_eintr(pid, tid)) {
        if let Ok(true) = wait_interrupted(tid, until)
            && let Ok(registers) = registers(tid)
        {
            let _ = Thread::new(tid, registers).settle();
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
