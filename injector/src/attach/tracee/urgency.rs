//! Threads that are to stand still, or to run code of ours, do not wait for a processor as long as others of the machine's
//! work have it: each that has to wait keeps all others standing.
//!
//! Where the kernel lets us: who may not is as quick as the machine's work permits.

use crate::sys::check;

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

/// Threads of another process with a realtime priority. They have their own back when this is dropped.
pub(super) struct Urgent {
    threads: Vec<i32>,
    /// Not if we have none ourselves: a busy one would keep us from stopping it.
    possible: bool,
}

impl Urgent {
    pub(super) fn new() -> Urgent {
        // SAFETY: numbers only.
        let own = unsafe { libc::sched_getscheduler(0) };
        Urgent { threads: Vec::new(), possible: own == libc::SCHED_RR }
    }

    /// Whether threads that are let go run at once.
    pub(super) fn is_possible(&self) -> bool {
        self.possible
    }

    /// A thread that has been told to stop. What has a priority of its own keeps it. A child that it makes in this
    /// moment has the priority that it would have.
    pub(super) fn add(&mut self, tid: i32) {
        if !self.possible {
            return;
        }
        let priority = libc::sched_param { sched_priority: URGENT };
        // SAFETY: numbers, and a structure that is only read.
        unsafe {
            if libc::sched_getscheduler(tid) != libc::SCHED_OTHER
                || libc::getpriority(libc::PRIO_PROCESS, tid as libc::id_t) != 0
            {
                return;
            }
            match check(libc::sched_setscheduler(tid, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &priority))
            {
                Ok(_) => self.threads.push(tid),
                Err(error) => self.possible = error.raw_os_error() == Some(libc::ESRCH),
            }
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        let usual = libc::sched_param { sched_priority: 0 };
        for &tid in &self.threads {
            // SAFETY: numbers, and a structure that is only read. It may have ended.
            unsafe { libc::sched_setscheduler(tid, libc::SCHED_OTHER, &usual) };
        }
    }
}
