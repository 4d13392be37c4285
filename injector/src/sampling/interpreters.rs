//! The Python functions of the threads that have been sampled, read as soon as there is a sample.
//!
//! The kernel copies a thread's stack, but the interpreter's frames are elsewhere. They are read when a sample arrives, which is some
//! microseconds later; if it is much later, they are not those of the sample.

use std::collections::HashMap;

use crate::os::sys;
use crate::python::{self, Found, Reader};
use crate::sampling::maps::Maps;
use crate::sampling::records::{Event, Python, Record};

/// How many nanoseconds after its sample a thread is read in time, and how many after it what is read may be used at all: where no processor
/// is idle, the injector waits for its turn. Functions in native frames that have changed since are not taken for the sample's.
const IN_TIME: u64 = 1_000_000;
const LATEST: u64 = 10_000_000;
/// How long samples of Python programs are waited for after the last one, in nanoseconds.
const BUSY: u64 = 50_000_000;
/// A process that has fewer samples may end before its interpreter is loaded.
const FEW: u64 = 20;
/// The number of sentences that are kept.
const SENTENCES: usize = 16;

/// What is known of the interpreters of processes.
#[derive(Default)]
pub(crate) struct Interpreters {
    processes: HashMap<u32, Process>,
    /// When the last sample of a process was seen that has one.
    last: u64,
    /// Why the functions of some processes have no names.
    reasons: Vec<String>,
    /// The oldest version that was read, by its second number.
    oldest: Option<u32>,
    pub(crate) tally: Tally,
}

/// How many samples were taken of Python programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) samples: u64,
    /// Of these, how many were read late, how many too late, and how many had frames that could not be read.
    pub(crate) late: u64,
    pub(crate) too_late: u64,
    pub(crate) unread: u64,
}

/// What is known of a process.
#[derive(Default)]
struct Process {
    /// The version of the mappings by which the interpreter was looked for.
    version: u64,
    reader: Option<Reader>,
    /// Why there is none although there should be.
    why: Option<String>,
    samples: u64,
}

impl Interpreters {
    /// Reads what the threads execute of which there are new samples, and adds it to them. `now` is the time at which these have arrived.
    pub(crate) fn attend<'m>(
        &mut self,
        records: &mut [Record],
        now: u64,
        maps: impl Fn(u32) -> Option<&'m Maps>,
    ) {
        let mut read: Vec<(u32, Python)> = Vec::new();
        // The newest sample of a thread is the one that may be in time. Older ones are read together with it.
        for record in records.iter_mut().rev() {
            let Event::Sample(_, Some(dump)) = &mut record.event else { continue };
            let Some(maps) = maps(record.pid) else { continue };
            let (pid, tid) = (record.pid.cast_signed(), record.tid.cast_signed());
            let process = self.processes.entry(record.pid).or_default();
            process.look(pid, tid, maps);
            let Some(reader) = &mut process.reader else { continue };
            self.oldest = Some(self.oldest.map_or(reader.minor(), |oldest| oldest.min(reader.minor())));
            self.last = now;
            self.tally.samples += 1;
            let age = sys::monotonic_ns().saturating_sub(record.time);
            if age > LATEST {
                self.tally.too_late += 1;
                dump.python = Python::Unknown;
                continue;
            }
            self.tally.late += u64::from(age > IN_TIME);
            let known = read.iter().find(|(known, _)| *known == record.tid).map(|(_, python)| python.clone());
            dump.python = known.unwrap_or_else(|| {
                let python = match reader.read(pid, tid) {
                    Found::Frames(frames) => Python::Frames(frames),
                    Found::Nothing => Python::None,
                    Found::Unknown => Python::Unknown,
                };
                read.push((record.tid, python.clone()));
                python
            });
            self.tally.unread += u64::from(dump.python == Python::Unknown);
        }
    }

    /// Whether samples of Python programs are to be expected.
    pub(crate) fn are_busy(&self, now: u64) -> bool {
        self.last != 0 && now.saturating_sub(self.last) < BUSY
    }

    /// Forgets a process, which has ended or executes another program.
    pub(crate) fn forget(&mut self, pid: u32) {
        let process = self.processes.remove(&pid).unwrap_or_default();
        let has_room = self.reasons.len() < SENTENCES;
        self.reasons.extend(process.reason().filter(|why| has_room && !self.reasons.contains(why)));
    }

    /// Returns why functions of Python programs have no names, and the second number of the oldest version that was read.
    pub(crate) fn account(&self) -> (Vec<String>, Option<u32>) {
        let mut reasons = self.reasons.clone();
        for why in self.processes.values().filter_map(Process::reason).take(SENTENCES) {
            if !reasons.contains(&why) {
                reasons.push(why);
            }
        }
        (reasons, self.oldest)
    }
}

impl Process {
    /// Looks for the interpreter, if more was mapped since the last time, and now and then: it cannot be read before it is ready.
    fn look(&mut self, pid: i32, tid: i32, maps: &Maps) {
        self.samples += 1;
        let (has_more, is_due) = (self.version != maps.version(), self.samples.is_power_of_two());
        if self.reader.is_some() || !has_more && !is_due {
            return;
        }
        self.version = maps.version();
        let is_named = maps.files().any(python::may_be);
        // The program may be an interpreter by any name.
        if is_named || is_due {
            let none = || is_named.then(|| "the interpreter cannot be found".to_owned());
            match Reader::of(pid, tid) {
                Ok(reader) => (self.reader, self.why) = (Some(reader), None),
                Err(why) => self.why = why.or_else(none),
            }
        }
    }

    fn reason(&self) -> Option<String> {
        self.why.clone().filter(|_| self.samples >= FEW)
    }
}
