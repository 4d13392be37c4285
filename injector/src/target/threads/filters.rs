//! The seccomp filters of a process's threads, read by ptrace(2).
//!
//! A thread inherits the filters of the one that makes it, and no filter can be removed. So what all filters of all present threads
//! allow is allowed to later threads as well, as long as none of them installs another one.

use std::collections::HashSet;
use std::io::{self, Error};

use serde::{Deserialize, Serialize};

use crate::os::filter::{Call, Filter};
use crate::os::proc::{self, Seccomp};
use crate::target::threads::deadline;
use crate::target::threads::requests;
use crate::target::threads::stopped::Stopped;

/// What is known of a process's filters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Filters {
    /// No thread has one.
    #[default]
    None,
    /// Each filter that some thread has.
    Read(Vec<Filter>),
    /// The process has inherited all of its filters from this one, which makes the same system calls under them.
    Own,
}

impl Filters {
    /// Whether the process may make a system call, in any of its threads.
    pub(crate) fn allow(&self, call: &Call) -> bool {
        match self {
            Filters::None | Filters::Own => true,
            Filters::Read(all) => all.iter().all(|filter| filter.allows(call)),
        }
    }
}

impl Stopped {
    /// Returns the filters that these threads have.
    ///
    /// # Errors
    /// EACCES: the injector may not see them. EOPNOTSUPP: the kernel cannot show them, or there is one that it does not show. E2BIG: they
    /// are too many to be evaluated. ETIMEDOUT: the order's time is over.
    pub(crate) fn filters(&self) -> io::Result<Filters> {
        /// What one thread can have, twice; different threads may have different filters.
        const MOST_INSTRUCTIONS: usize = 2 * 32768;
        let mut all = HashSet::new();
        let mut instructions = 0;
        for thread in &self.threads {
            if deadline::has_passed() {
                return Err(Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            for filter in of_thread(self.pid, thread.tid)? {
                let len = filter.0.len();
                instructions += if all.insert(filter) { len } else { 0 };
                if instructions > MOST_INSTRUCTIONS {
                    return Err(Error::from_raw_os_error(libc::E2BIG));
                }
            }
        }
        Ok(if all.is_empty() { Filters::None } else { Filters::Read(all.into_iter().collect()) })
    }

    /// Whether one of these threads has a filter, as far as the injector may see that.
    pub(crate) fn has_filters(&self) -> bool {
        self.threads.iter().any(|thread| requests::filter_len(thread.tid, 0).is_ok())
    }

    /// Checks that a thread's filters let it make a system call. Filters that cannot be read are a refusal, unless they are
    /// this process's own.
    ///
    /// # Errors
    /// EPERM: they do not, or that is not known.
    pub(super) fn check_call(&self, tid: i32, number: i64, arguments: [u64; 6]) -> io::Result<()> {
        let call = Call { number: number as u32, arguments: arguments.map(Some) };
        let is_allowed = match of_thread(self.pid, tid) {
            Ok(filters) => filters.iter().all(|filter| filter.allows(&call)),
            Err(_) => self.has_own_filters && proc::seccomp(self.pid, tid) == Some(Seccomp::Filters),
        };
        if is_allowed { Ok(()) } else { Err(Error::from_raw_os_error(libc::EPERM)) }
    }
}

/// Returns the filters of a stopped thread; see [`Stopped::filters`].
fn of_thread(pid: i32, tid: i32) -> io::Result<Vec<Filter>> {
    /// The kernel limits their instructions to 32768 altogether, and each filter counts as four more.
    const MOST: usize = 32768 / 4;
    let mut all = Vec::new();
    for index in 0..MOST {
        match requests::filter(tid, index) {
            Ok(Some(filter)) => all.push(filter),
            Ok(None) => return Ok(all),
            // The kernel says so too if the thread is in the strict mode, and if it shows no filters at all.
            Err(_) if index == 0 && proc::seccomp(pid, tid) == Some(Seccomp::Off) => return Ok(all),
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => return Err(error),
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(error),
            Err(_) => break,
        }
    }
    Err(Error::from_raw_os_error(libc::EOPNOTSUPP))
}
