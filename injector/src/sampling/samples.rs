//! What is known of a member of the family by the kernel's records: its samples, and its threads.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::generated;
use crate::os::clock::Moment;
use crate::sampling::histogram::{ALWAYS, Histogram};
use crate::sampling::maps::Maps;
use crate::sampling::records::{Dump, Event};
use crate::sampling::stacks::Stacks;
use crate::store::shape::Shape;

/// The number of threads of a member that are told apart at most, and of ends that are kept.
const THREADS_MAX: usize = 1 << 14;
const ENDED_MAX: usize = 1 << 20;

/// What is known of a member by the kernel's records.
#[derive(Clone)]
pub(crate) struct Samples {
    pub(crate) histogram: Histogram,
    /// The same for each thread, by its number, and the threads that have ended; nothing unless that was asked for.
    pub(crate) threads: Threads,
    /// The stacks of samples, as far as they were taken.
    pub(crate) stacks: Stacks,
    /// The files that the process has mapped and that have the name of a jitdump. As long as there is none, the times of samples do not
    /// matter.
    pub(crate) dumps: Vec<Arc<str>>,
    /// The code that the process has mapped.
    pub(crate) maps: Maps,
}

/// The number of jitdumps of a process at most.
const DUMPS_MAX: usize = 16;

/// What is known of the threads of a member.
#[derive(Clone, Default)]
pub(crate) struct Threads {
    pub(crate) histograms: BTreeMap<u32, Histogram>,
    /// Whether the kernel lets nobody sample its own code for this user.
    pub(crate) is_without_kernel: bool,
    /// The numbers of threads that have ended, and when. A number may be there several times.
    pub(crate) ended: Vec<(u32, Moment)>,
    /// Whether the first thread has ended, as it does when the process ends.
    pub(crate) has_first_ended: bool,
    /// The names of threads that have been given one, or were made by such a thread.
    pub(crate) names: BTreeMap<u32, Arc<str>>,
}

impl Threads {
    /// Notes what a thread of process `pid` did at a moment.
    pub(crate) fn note(&mut self, pid: u32, tid: u32, event: Event, moment: Moment) {
        let has_room = self.names.len() < THREADS_MAX;
        match event {
            Event::End if self.ended.len() < ENDED_MAX => {
                self.ended.push((tid, moment));
                self.has_first_ended |= tid == pid;
            }
            Event::Named(name) if has_room => {
                self.names.insert(tid, name);
            }
            Event::Began { by } => match self.names.get(&by).cloned() {
                Some(name) if has_room => {
                    self.names.insert(tid, name);
                }
                // The number may have been that of another thread.
                _ => {
                    self.names.remove(&tid);
                }
            },
            _ => {}
        }
    }
}

impl Samples {
    pub(crate) fn new(shape: Shape) -> Samples {
        Histogram::new(shape).into()
    }

    /// Notes a file that the process has mapped as code, if it may be a jitdump.
    pub(crate) fn note_file(&mut self, file: &Arc<str>) {
        if generated::is_dump(file, None) && self.dumps.len() < DUMPS_MAX && !self.dumps.contains(file) {
            self.dumps.push(Arc::clone(file));
        }
    }

    /// Counts a sample of a thread of one of so many processes, if threads are told apart, taken at a time: at a link address of the
    /// program, or where its runtime address says.
    pub(crate) fn add(
        &mut self,
        (tid, time): (Option<u32>, u64),
        (place, pc): (Option<u64>, Option<u64>),
        dump: Option<&Dump>,
        maps: &Maps,
        processes: usize,
    ) {
        let time = if self.dumps.is_empty() { ALWAYS } else { time };
        if let Some(dump) = dump {
            self.stacks.add(dump, maps, processes);
        }
        add(&mut self.histogram, place, (pc, time), maps);
        let histograms = &mut self.threads.histograms;
        if let Some(tid) = tid.filter(|tid| histograms.len() < THREADS_MAX || histograms.contains_key(tid)) {
            let shape = self.histogram.shape;
            add(histograms.entry(tid).or_insert_with(|| Histogram::new(shape)), place, (pc, ALWAYS), maps);
        }
    }
}

impl From<Histogram> for Samples {
    /// Returns samples of which the threads are not known.
    fn from(histogram: Histogram) -> Samples {
        Samples {
            histogram,
            threads: Threads::default(),
            stacks: Stacks::default(),
            dumps: Vec::new(),
            maps: Maps::default(),
        }
    }
}

/// Counts a sample.
fn add(histogram: &mut Histogram, place: Option<u64>, (pc, time): (Option<u64>, u64), maps: &Maps) {
    let outside = histogram.outside;
    histogram.add(place);
    if histogram.outside != outside
        && let Some(pc) = pc
    {
        maps.count(pc, time, 1, &mut histogram.elsewhere);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_the_names_of_those_that_made_them() {
        let mut threads = Threads::default();
        let moment = Moment::now();
        let mut note = |tid, event| threads.note(7, tid, event, moment);
        note(8, Event::Began { by: 7 });
        note(8, Event::Named("io".into()));
        note(9, Event::Began { by: 8 });
        note(9, Event::End);
        assert!(!threads.has_first_ended);
        assert_eq!(threads.names.get(&9).map(|name| &**name), Some("io"));
        // Another thread with the same number.
        threads.note(7, 9, Event::Began { by: 7 }, moment);
        threads.note(7, 7, Event::End, moment);
        assert!(threads.has_first_ended && threads.ended.len() == 2);
        assert_eq!(threads.names.keys().copied().collect::<Vec<_>>(), [8]);
    }
}
