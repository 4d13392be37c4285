//! When the calls end that had not returned: at the end of their thread, of the process, or when it was looked at.

use std::collections::HashMap;

use crate::os::clock::Moment;
use crate::sampling::samples::Threads;

/// Up to when a process's calls are measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// Nobody knows: up to each thread's last event.
    Unknown,
    /// The process runs, and this is the present moment.
    Running(Moment),
    /// The process has ended, was left or has executed another program, which was noticed at this moment.
    Noticed(Moment),
}

/// When the threads of a process have ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    /// The end of those that are not in `threads`.
    pub(crate) process: Option<Moment>,
    /// By the number of the thread, the earliest first. Threads may have the same number one after the other.
    pub(crate) threads: HashMap<u32, Vec<Moment>>,
}

impl Ends {
    /// Returns the ends of a process's threads by what the kernel has reported.
    pub(crate) fn new(end: End, kernel: &Threads) -> Ends {
        let mut threads: HashMap<u32, Vec<Moment>> = HashMap::new();
        for &(tid, moment) in &kernel.ended {
            threads.entry(tid).or_default().push(moment);
        }
        threads.values_mut().for_each(|ends| ends.sort_by_key(|end| end.nanoseconds));
        let process = match end {
            End::Unknown => None,
            End::Running(now) => Some(now),
            // A process ends with its last thread. If it was left, its first one usually runs.
            End::Noticed(noticed) => {
                let ended = kernel.ended.iter().map(|(_, end)| *end).filter(|_| kernel.has_first_ended);
                let last = ended.max_by_key(|end| end.nanoseconds).unwrap_or(noticed);
                Some(if last.nanoseconds < noticed.nanoseconds { last } else { noticed })
            }
        };
        Ends { process, threads }
    }
}
