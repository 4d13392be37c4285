//! The scheduling of single threads, by system calls: musl's functions of these names only fail, because POSIX means whole
//! processes.
#![allow(unsafe_code, reason = "it makes system calls")]

use std::io;
use std::time::Duration;

use crate::os::sys::check;

/// The kernel's `struct sched_param`.
#[repr(C)]
struct Parameters {
    priority: libc::c_int,
}

/// The kernel's `struct sched_attr`, as far as Linux 3.14 has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

const SCHED_DEADLINE: u32 = 6;
/// A child of a thread with this flag does not inherit its policy.
const RESET_ON_FORK: u64 = 1;

/// How the program is scheduled if it does not inherit that from the injector.
#[derive(Clone, Copy)]
pub(crate) struct Scheduling(Option<Attributes>);

impl Scheduling {
    /// Makes the injector able to make processes: a thread with SCHED_DEADLINE cannot. It gives that up only if the program can get it
    /// back.
    pub(crate) fn leave() -> Scheduling {
        let Some(attributes) = attributes() else { return Scheduling(None) };
        let is_deadline = attributes.policy == SCHED_DEADLINE;
        let is_inherited = !is_deadline && attributes.flags & RESET_ON_FORK == 0;
        if is_inherited || set_attributes(&attributes).is_err() {
            return Scheduling(None);
        }
        if is_deadline && set(0, libc::SCHED_OTHER, 0).is_err() {
            return Scheduling(None);
        }
        Scheduling(Some(attributes))
    }

    /// Schedules the calling thread like the injector at its start. To be called in the child, between fork and exec.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub(crate) fn restore(&self) -> io::Result<()> {
        /// The kernel keeps the share of the processor that the injector has given up for as long as it may have used it in advance, which
        /// is less than a period. The longest one that the kernel allows by default is 4 seconds.
        const TRIES: u32 = 500;
        let Some(attributes) = &self.0 else { return Ok(()) };
        let mut result = set_attributes(attributes);
        for _ in 1..TRIES {
            if !result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            result = set_attributes(attributes);
        }
        result
    }
}

/// Whether the calling thread is scheduled by SCHED_DEADLINE.
pub(crate) fn is_deadline() -> bool {
    attributes().is_some_and(|attributes| attributes.policy == SCHED_DEADLINE)
}

/// Returns how the calling thread is scheduled, if the kernel tells.
fn attributes() -> Option<Attributes> {
    let size = size_of::<Attributes>() as u32;
    let mut attributes =
        Attributes { size, policy: 0, flags: 0, nice: 0, priority: 0, runtime: 0, deadline: 0, period: 0 };
    // SAFETY: the kernel writes no more than `size` bytes.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    (result == 0).then_some(attributes)
}

fn set_attributes(attributes: &Attributes) -> io::Result<()> {
    // SAFETY: the kernel reads the structure, which has its own layout and is valid for the call.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const *attributes, 0) } as libc::c_int)
        .map(drop)
}

/// Sets the policy and the priority of a thread; 0 is the calling one. A signal handler may call this.
///
/// # Errors
/// It is not permitted, or there is no such thread.
pub(crate) fn set(tid: i32, policy: i32, priority: i32) -> io::Result<()> {
    let parameters = Parameters { priority };
    // SAFETY: the kernel reads the structure, which has its own layout and is valid for the call.
    let result = unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const parameters) };
    check(result as libc::c_int).map(|_| ())
}

/// A realtime priority of the calling thread, from which it returns to its own when this is dropped. Threads and processes that it makes
/// do not have it.
pub(crate) struct Prompt(());

impl Prompt {
    /// Gives the calling thread the lowest realtime priority, with which it does not wait for threads that have none. Returns `None` if that is
    /// not permitted, or the thread has a policy of its own.
    pub(crate) fn new() -> Option<Prompt> {
        let is_usual = policy(0) == libc::SCHED_OTHER;
        let given = || set(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1);
        (is_usual && given().is_ok()).then(|| Prompt(()))
    }
}

impl Drop for Prompt {
    fn drop(&mut self) {
        // The kernel keeps the thread's nice value and slice.
        let _ = set(0, libc::SCHED_OTHER, 0);
    }
}

/// Returns the policy of a thread, or -1 if there is none; 0 is the calling one.
pub(crate) fn policy(tid: i32) -> i32 {
    // SAFETY: the call takes a number only and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_sched_getscheduler, tid) as i32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_this_thread() {
        assert_eq!(policy(0), libc::SCHED_OTHER);
        set(0, libc::SCHED_BATCH, 0).expect("a policy that everybody may have");
        assert_eq!(policy(0), libc::SCHED_BATCH);
        set(0, libc::SCHED_OTHER, 0).expect("the usual policy");
        assert_eq!(
            set(0, libc::SCHED_OTHER, 7).map_err(|error| error.raw_os_error()),
            Err(Some(libc::EINVAL))
        );
        assert_eq!(policy(i32::MAX), -1);
    }

    #[test]
    fn a_prompt_thread() {
        if let Some(prompt) = Prompt::new() {
            assert_eq!(policy(0), libc::SCHED_RR | libc::SCHED_RESET_ON_FORK);
            assert!(Prompt::new().is_none(), "it has a policy of its own");
            let of_another = std::thread::spawn(|| policy(0)).join().expect("a thread");
            assert_eq!(of_another, libc::SCHED_OTHER);
            drop(prompt);
        }
        assert_eq!(policy(0), libc::SCHED_OTHER);
        set(0, libc::SCHED_BATCH, 0).expect("a policy that everybody may have");
        assert!(Prompt::new().is_none());
        assert_eq!(policy(0), libc::SCHED_BATCH);
    }
}
