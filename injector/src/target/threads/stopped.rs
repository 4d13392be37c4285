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
//! run while the main one stands still are watched at each of their system calls (`watch`).

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

/// How long a thread may take to stop. One that waits for the disk, or for its vfork child, cannot.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the others stand still meanwhile, before they run again; and each time longer, since more threads
/// than the machine has processors for, or a slow disk, may need that.
const SHORT: Duration = Duration::from_millis(30);
const LONG: Duration = Duration::from_millis(240);

/// How long threads stood still, and how many of them.
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

/// All threads of a process, stopped. They go on when the tracer's work is done.
pub(crate) struct Stopped {
    pub(crate) pid: i32,
    pub(crate) threads: Vec<Thread>,
    since: Instant,
    pub(super) urgent: Urgent,
    /// Threads that were asked to stop and had not stopped in time.
    pub(super) late: Vec<i32>,
    /// Tells whether it executes another program: see [`auxiliary`].
    pub(crate) auxiliary: Vec<[u64; 2]>,
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

    /// Lets the threads that have stopped run for that long, before all are asked to stop once more. The late ones are
    /// not asked twice: they are still to stop, and the next round waits for them.
    ///
    /// The threads that have stopped are detached, the main one first, so that the kernel drops ignored signals again.
    /// A main thread that is late itself stays traced, so ignored signals go on waking other threads. These are watched
    /// then, as the threads that take turns are.
    fn let_run(&mut self, seized: &mut HashMap<i32, bool>, pause: Duration) -> io::Result<()> {
        // Its threads have their usual priority back before they run.
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

    /// `seized`: threads that we trace already, and whether they are still to stop as they were asked: asked twice, they
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
                match requests::seize(tid) {
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

    /// Stops one thread only, the first that can be stopped.
    pub(crate) fn one(pid: i32, _: &Tracer) -> io::Result<Stopped> {
        let mut refusal = Error::from_raw_os_error(libc::ESRCH);
        let mut late = Vec::new();
        let mut threads = proc::thread_ids(pid)?;
        // Asked once of each: it changes as we look.
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

    /// How long they have stood still by now.
    pub(crate) fn pause(&self) -> Pause {
        Pause { took: self.since.elapsed(), threads: self.threads.len() }
    }
}

/// Waits for threads that were asked to stop, before they are let go: that has woken them, and those whose call the
/// kernel does not restart would see EINTR. One that cannot be woken is not waited for.
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
