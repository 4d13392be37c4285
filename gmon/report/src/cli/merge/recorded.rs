//! The sum of recordings.

use anyhow::Result;
use gmon_run::{MergeError, Recording, Sum};

/// The sum of recordings up to now.
pub(super) enum Recorded {
    /// Threads of the same name are one thread.
    ByName(Box<Sum>),
    /// Each thread is by itself, so the sum grows with each file.
    Apart(Box<Recording>),
}

impl Recorded {
    pub(super) fn new(keep_threads: bool) -> Recorded {
        if keep_threads { Recorded::Apart(Box::default()) } else { Recorded::ByName(Box::default()) }
    }

    /// Adds a run.
    pub(super) fn add(&mut self, run: Recording) -> Result<(), MergeError> {
        match self {
            Recorded::ByName(sum) => sum.add(run),
            // The intervals of the first run would depend on which files are summed first.
            Recorded::Apart(sum) => sum.merge(run.with_common_intervals()),
        }
    }

    /// Adds the sum of the files that come after those of this one.
    pub(super) fn join(&mut self, later: Recorded) -> Result<()> {
        Ok(self.add(later.finish())?)
    }

    /// Returns the bytes of the file with the sum.
    pub(super) fn bytes(self) -> Vec<u8> {
        self.finish().write()
    }

    fn finish(self) -> Recording {
        match self {
            Recorded::ByName(sum) => sum.finish(),
            Recorded::Apart(sum) => *sum,
        }
    }
}
