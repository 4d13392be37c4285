//! What the thread that records a trace is told, and what it says at the end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use crate::os::clock::Moment;
use crate::profile::ends::Ends;
use crate::program::planned::Planned;
use crate::sampling::sampler::Switched;
use crate::store::region::ring::{LoadTable, Rings};

/// What the recorder is told.
pub(crate) enum Message {
    Begun(Box<Begun>),
    /// What the scheduler has done up to this moment.
    Switches(Vec<Switched>, Moment),
    /// A process has ended at this moment, and its threads at these.
    Ended {
        process: u32,
        moment: Moment,
        ends: Ends,
        names: ThreadNames,
    },
    /// Write what is kept. The answer is the file's name, or why there is none.
    Save(SyncSender<Result<PathBuf, String>>),
    /// There will be no more messages.
    Finish,
}

/// The names of threads that have been given one, by the number of the thread.
pub(crate) type ThreadNames = BTreeMap<u32, Arc<str>>;

/// A program in a process.
pub(crate) struct Begun {
    pub(crate) process: u32,
    pub(crate) parent: Option<u32>,
    pub(crate) pid: u32,
    pub(crate) binary: String,
    pub(crate) planned: &'static Planned<'static, 'static>,
    /// Whether the time stamp counter is its clock.
    pub(crate) is_tsc: bool,
    /// They are opened as soon as the process is known, because its files are removed when it has ended.
    pub(crate) rings: Rings,
    pub(crate) loads: LoadTable,
}

/// What was recorded.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) events: u64,
    pub(crate) calls: u64,
    pub(crate) lost: u64,
    pub(crate) bytes: u64,
    /// The files that were written.
    pub(crate) files: Vec<PathBuf>,
    /// The number of chunks that were too old to be kept.
    pub(crate) dropped: u64,
    pub(crate) troubles: Vec<String>,
}
