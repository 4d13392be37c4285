//! The samples of CPU time, as functions get them.
//!
//! A recording has whole samples at addresses. A bin of a gmon.out's histogram may cover several functions, of which each gets a
//! fraction of the bin's samples by gprof's rule. Rounding them in the recording would change the times of small functions, so
//! the reader of a gmon.out returns them beside it.

use gmon_run::Recording;

/// The samples of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples {
    pub(crate) hits: Vec<Hit>,
    /// The number of all samples, also of those in no function.
    pub(crate) all: u64,
    /// The CPU time for which a sample stands, in nanoseconds; 0 if there are none.
    pub(crate) period_ns: f64,
}

/// The samples at an address of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    /// The index of the function in the recording.
    pub(crate) function: u32,
    /// The link address, or 0 if only the function is known.
    pub(crate) address: u64,
    pub(crate) samples: f64,
}

impl Samples {
    /// Returns the samples of a recording. Those in no function are [elsewhere](gmon_run::Program::elsewhere).
    pub(crate) fn of(recording: &Recording) -> Samples {
        let hit = |hits: &gmon_run::Hits| Hit {
            function: hits.function,
            address: hits.address,
            samples: hits.samples as f64,
        };
        let in_functions = recording.hits.iter().map(|hits| hits.samples);
        let elsewhere = recording.programs.iter().map(|program| program.elsewhere);
        Samples {
            hits: recording.hits.iter().map(hit).collect(),
            all: in_functions.chain(elsewhere).fold(0, u64::saturating_add),
            period_ns: recording.sample_period_ns as f64,
        }
    }
}
