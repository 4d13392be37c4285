//! Threads that are to stand still, or to run code of ours, do not wait for a processor as long as others of the machine's
//! work have it: each that has to wait keeps all others standing.
//!
//! Where the kernel lets us: who may not is as quick as the machine's work permits.
#![allow(unsafe_code, reason = "it maps a shared page and changes the scheduling of threads")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::os::sys::check;

/// More than this have the threads that stop them: see `helper`.
const URGENT: i32 = 1;
const MORE_URGENT: i32 = 2;

/// Lets the calling thread, and those it makes, run before all that has no realtime priority.
pub(crate) fn hurry() {
    // SAFETY: plain data, and numbers.
    unsafe {
        let priority = libc::sched_param { sched_priority: MORE_URGENT };
        if libc::sched_setscheduler(0, libc::SCHED_RR, &priority) != 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, -20);
        }
    }
}

/// Threads that have a realtime priority from us, in memory that the helper and its guard share. A thread is noted before
/// it gets the priority, so whoever takes over from a killed helper knows of each.
struct Given {
    count: AtomicUsize,
    threads: [AtomicI32; GIVEN_MAX],
}

/// More threads than that do not get a priority.
const GIVEN_MAX: usize = (1 << 16) - 2;

static GIVEN: OnceLock<&'static Given> = OnceLock::new();

/// Has processes that are forked from now on share what is noted.
pub(crate) fn share() {
    let (len, access) = (size_of::<Given>(), libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh mapping at a place that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    if at != libc::MAP_FAILED {
        // SAFETY: of that length, page-aligned, all zeros, which are values of the atomics; never unmapped.
        let _ = GIVEN.set(unsafe { &*at.cast::<Given>() });
    }
}

impl Given {
    /// False: there is no room.
    fn note(&self, tid: i32) -> bool {
        let place = self.threads.get(self.count.load(Ordering::Acquire));
        if let Some(place) = place {
            place.store(tid, Ordering::Release);
            self.count.fetch_add(1, Ordering::AcqRel);
        }
        place.is_some()
    }

    /// Those of a value that is dropped, the last ones noted.
    fn forget(&self, count: usize) {
        self.count.fetch_sub(count, Ordering::AcqRel);
    }
}

/// Takes the priorities back that a helper has given to threads of `process` and not taken back itself. Numbers of
/// threads may have other owners by now: only threads with the very priority that we give are changed.
pub(crate) fn take_back(process: i32) {
    let Some(given) = GIVEN.get() else { return };
    let count = given.count.load(Ordering::Acquire);
    for tid in given.threads.iter().take(count).map(|tid| tid.load(Ordering::Acquire)) {
        let is_its = std::path::Path::new(&format!("/proc/{process}/task/{tid}")).exists();
        // SAFETY: the call takes numbers only, and touches no memory of ours.
        if is_its && unsafe { libc::sched_getscheduler(tid) } == libc::SCHED_RR | libc::SCHED_RESET_ON_FORK {
            give_usual(tid);
        }
    }
}

fn give_usual(tid: i32) {
    let usual = libc::sched_param { sched_priority: 0 };
    // SAFETY: numbers, and a structure that is only read. It may have ended.
    unsafe { libc::sched_setscheduler(tid, libc::SCHED_OTHER, &usual) };
}

/// Threads of another process with a realtime priority. They have their own back when this is dropped.
pub(super) struct Urgent {
    threads: Vec<i32>,
    /// Not if we have none ourselves: a busy one would keep us from stopping it.
    possible: bool,
}

impl Urgent {
    pub(super) fn new() -> Urgent {
        // SAFETY: the call takes numbers only, and touches no memory of ours.
        let own = unsafe { libc::sched_getscheduler(0) };
        Urgent { threads: Vec::new(), possible: own == libc::SCHED_RR }
    }

    /// Whether threads that are let go run at once.
    pub(super) fn is_possible(&self) -> bool {
        self.possible
    }

    /// A thread that was asked to stop. What has a priority of its own keeps it. A child that it makes
    /// meanwhile has the priority that it would have without us.
    pub(super) fn add(&mut self, tid: i32) {
        if !self.possible {
            return;
        }
        let priority = libc::sched_param { sched_priority: URGENT };
        let Some(given) = GIVEN.get() else { return };
        // SAFETY: numbers, and a structure that is only read.
        unsafe {
            if libc::sched_getscheduler(tid) != libc::SCHED_OTHER
                || libc::getpriority(libc::PRIO_PROCESS, tid as libc::id_t) != 0
            {
                return;
            }
            if !given.note(tid) {
                return;
            }
            match check(libc::sched_setscheduler(tid, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &priority))
            {
                Ok(_) => self.threads.push(tid),
                Err(error) => {
                    given.forget(1);
                    self.possible = error.raw_os_error() == Some(libc::ESRCH);
                }
            }
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        for &tid in &self.threads {
            give_usual(tid);
        }
        if let Some(given) = GIVEN.get() {
            given.forget(self.threads.len());
        }
    }
}
