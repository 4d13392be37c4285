//! Realtime priorities for threads that are about to stop or that run the agent's code. While one thread
//! waits for a processor, all others stand still, so these threads should not wait for other work of the
//! machine.
//!
//! The priorities need a permission. Without it, the duration of a stop depends on the other load of the
//! machine.
#![allow(unsafe_code, reason = "it maps a shared page and changes the scheduling of threads")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use crate::os::scheduling;

/// The priority that the threads get. The threads that stop them have a higher one; see `helper`.
const URGENT: i32 = 1;
const MORE_URGENT: i32 = 2;

/// Gives the calling thread, and those it creates, precedence over all threads without a realtime priority.
pub(crate) fn hurry() {
    if scheduling::set(0, libc::SCHED_RR, MORE_URGENT).is_err() {
        // SAFETY: the arguments are numbers.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, -20) };
    }
}

/// The threads that have a realtime priority from the injector, in memory that the helper and its guard
/// share. A thread is entered before it gets the priority, so the process that takes over from a killed
/// helper knows all of them.
struct Given {
    count: AtomicUsize,
    threads: [AtomicI32; GIVEN_MAX],
}

/// The number of threads that get a priority at most.
const GIVEN_MAX: usize = (1 << 16) - 2;

static GIVEN: OnceLock<&'static Given> = OnceLock::new();

/// Makes processes that are forked from now on share this list.
pub(crate) fn share() {
    let (len, access) = (size_of::<Given>(), libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: this is a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    if at != libc::MAP_FAILED {
        // SAFETY: the mapping has that length, is page-aligned and all zeros, which are valid values of the
        // atomics, and is never unmapped.
        let _ = GIVEN.set(unsafe { &*at.cast::<Given>() });
    }
}

impl Given {
    /// Enters a thread. Returns false if there is no room.
    fn note(&self, tid: i32) -> bool {
        let place = self.threads.get(self.count.load(Ordering::Acquire));
        if let Some(place) = place {
            place.store(tid, Ordering::Release);
            self.count.fetch_add(1, Ordering::AcqRel);
        }
        place.is_some()
    }

    /// Removes the `count` threads that were entered last.
    fn forget(&self, count: usize) {
        self.count.fetch_sub(count, Ordering::AcqRel);
    }
}

/// Takes back the priorities that a helper has given to threads of `process` and has not taken back itself.
/// The numbers may meanwhile belong to other threads, so only threads with exactly the injector's priority
/// are changed.
pub(crate) fn take_back(process: i32) {
    let Some(given) = GIVEN.get() else { return };
    let count = given.count.load(Ordering::Acquire);
    for tid in given.threads.iter().take(count).map(|tid| tid.load(Ordering::Acquire)) {
        let is_its = std::path::Path::new(&format!("/proc/{process}/task/{tid}")).exists();
        if is_its && scheduling::policy(tid) == libc::SCHED_RR | libc::SCHED_RESET_ON_FORK {
            give_usual(tid);
        }
    }
}

fn give_usual(tid: i32) {
    // The thread may have ended.
    let _ = scheduling::set(tid, libc::SCHED_OTHER, 0);
}

/// Threads of another process that have a realtime priority. They get their own priority back when this is
/// dropped.
pub(super) struct Urgent {
    threads: Vec<i32>,
    /// Whether the injector has a realtime priority itself. Without one, a busy thread that has one could
    /// keep the injector from stopping it.
    possible: bool,
}

impl Urgent {
    /// Returns an empty list.
    pub(super) fn new() -> Urgent {
        Urgent { threads: Vec::new(), possible: scheduling::policy(0) == libc::SCHED_RR }
    }

    /// Whether threads that are released run at once.
    pub(super) fn is_possible(&self) -> bool {
        self.possible
    }

    /// Gives a thread that was asked to stop the priority. A thread with a priority of its own keeps it. A
    /// child that the thread creates meanwhile has the priority that it would have without gprofinject.
    pub(super) fn add(&mut self, tid: i32) {
        if !self.possible {
            return;
        }
        let Some(given) = GIVEN.get() else { return };
        // SAFETY: the arguments are numbers.
        let niceness = unsafe { libc::getpriority(libc::PRIO_PROCESS, tid as libc::id_t) };
        if scheduling::policy(tid) != libc::SCHED_OTHER || niceness != 0 || !given.note(tid) {
            return;
        }
        match scheduling::set(tid, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, URGENT) {
            Ok(()) => self.threads.push(tid),
            Err(error) => {
                given.forget(1);
                self.possible = error.raw_os_error() == Some(libc::ESRCH);
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
