//! The messages to the thread that records a trace, and the summary that this thread returns.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::os::clock::Moment;
use crate::profile::ends::Ends;
use crate::profile::slowest::Slowest;
use crate::program::planned::Planned;
use crate::sampling::sampler::Switched;
use crate::store::region::ring::{LoadTable, Rings};

/// A message to the recorder.
pub(crate) enum Message {
    Begun(Box<Begun>),
    /// The scheduler's decisions up to this moment.
    Switches(Vec<Switched>, Moment),
    /// A process has ended at this moment, and its threads at these moments.
    Ended {
        process: u32,
        moment: Moment,
        ends: Ends,
        names: ThreadNames,
    },
    /// The recorder is to write the kept chunks. Its answer is the file's name, or the reason why there is none.
    Save(SyncSender<Result<PathBuf, String>>),
    /// The slowest calls up to now are wanted.
    Slowest(SyncSender<Slowest>),
    /// The calls up to now are to be forgotten.
    Reset,
    /// This is the last message.
    Finish,
}

/// The names of threads that have one of their own, by thread ID.
pub(crate) type ThreadNames = BTreeMap<u32, Arc<str>>;

/// A process that starts to execute a program.
pub(crate) struct Begun {
    pub(crate) process: u32,
    pub(crate) parent: Option<u32>,
    pub(crate) pid: u32,
    pub(crate) binary: String,
    pub(crate) planned: &'static Planned<'static, 'static>,
    /// Whether the process's clock is the time stamp counter.
    pub(crate) is_tsc: bool,
    /// The process's rings. They are opened as soon as the process is known, because its files are removed when it has ended.
    pub(crate) rings: Rings,
    pub(crate) loads: LoadTable,
}

/// A summary of the recording.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) events: u64,
    pub(crate) calls: u64,
    pub(crate) lost: u64,
    pub(crate) bytes: u64,
    /// The files that were written.
    pub(crate) files: Vec<PathBuf>,
    /// The number of chunks that were dropped because they were too old to be kept.
    pub(crate) dropped: u64,
    pub(crate) troubles: Vec<String>,
    /// The slowest calls, if these were kept instead of a trace.
    pub(crate) slowest: Option<Slowest>,
}
