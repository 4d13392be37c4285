//! What the user has asked for, independent of the names of options.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use crate::live::view::Look;
use crate::options::Verb;
use crate::options::{EngineArg, Export, HooksArg, Measure, SamplerArg};
use crate::os::say::Voice;
use crate::profile::recorder;
use crate::program::arguments::ArgsChoice;
use crate::program::filters::Filters;
use crate::program::libs::Libs;
use crate::program::plan_cache::PlanCache;
use crate::program::planner::Planner;
use crate::store::logbook::Entries;
use crate::store::output::Naming;

/// The file of a trace.
#[derive(Debug)]
pub(crate) struct TraceFile {
    pub(crate) path: PathBuf,
    /// What is kept until the file is written; `None` if everything is written at once.
    pub(crate) kept: Option<Kept>,
}

/// The last part of a trace, which is kept in memory.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The greatest length of the file in bytes.
    pub(crate) bytes: u64,
    /// The functions at whose calls the file is written.
    pub(crate) triggers: Vec<Filters>,
}

/// Which calls are kept by `--slow`.
#[derive(Debug)]
pub(crate) struct SlowCalls {
    /// The functions, as the user has typed them.
    pub(crate) typed: Vec<String>,
    pub(crate) wanted: Filters,
    /// The greatest number of calls.
    pub(crate) most: usize,
    /// The least duration of a call.
    pub(crate) least: Duration,
}

impl SlowCalls {
    /// Returns the functions that match these patterns.
    ///
    /// # Errors
    /// A pattern is malformed.
    pub(crate) fn filters(typed: &[String]) -> Result<Filters> {
        Filters::any_of("--slow", typed)
    }
}

/// What the user has asked for.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) command: Vec<OsString>,
    pub(crate) output: Naming,
    pub(crate) stats: Option<PathBuf>,
    pub(crate) exports: Vec<Export>,
    /// Which hooks; `None` if the user has not said it, which means `both` wherever exit hooks are safe.
    pub(crate) hooks: Option<HooksArg>,
    pub(crate) engine: EngineArg,
    /// What is measured of durations; `None` if nothing is.
    pub(crate) measure: Option<Measure>,
    /// Which arguments are traced, if any are.
    pub(crate) args: Option<ArgsChoice>,
    /// Where the trace is written; `None` if there is none.
    pub(crate) trace: Option<TraceFile>,
    /// Which calls are kept; `None` if none are.
    pub(crate) slow: Option<SlowCalls>,
    pub(crate) rate: u32,
    pub(crate) sampler: SamplerArg,
    pub(crate) filters: Filters,
    pub(crate) libs: Libs,
    /// Whether the process runs already (`--pid`).
    pub(crate) running: bool,
    /// Whether the processor keeps shadow stacks for the processes, or may do so: see [`gprofinject_plan::Options::shadow_stack`].
    pub(crate) shadow_stacks: bool,
    /// Where the arena of a standalone program begins that runs already: see [`gprofinject_plan::Options::arena`].
    pub(crate) arena: Option<u64>,
    pub(crate) follow: bool,
    /// Whether CPython is asked to name its functions.
    pub(crate) python: bool,
    /// Whether each process has a profile of its own, instead of each program.
    pub(crate) per_process: bool,
    pub(crate) list: bool,
    /// gmon, if it is to write a report for a browser and open it.
    pub(crate) opener: Option<PathBuf>,
    /// How a live view is shown; `None` if there is none.
    pub(crate) look: Option<Look>,
    /// What the injector does when it receives each of these signals. A second signal ends a pause.
    pub(crate) signals: Vec<(i32, Verb)>,
    pub(crate) voice: Voice,
    pub(crate) cache: Arc<PlanCache>,
}

impl Settings {
    /// Returns the planner for this run's programs.
    pub(crate) fn planner(&self) -> Planner<'_> {
        Planner {
            hooks: self.hooks,
            engine: self.engine,
            measure: self.measure,
            args: self.args.as_ref(),
            filters: &self.filters,
            libs: &self.libs,
            running: self.running,
            shadow_stacks: self.shadow_stacks,
            arena: self.arena,
            cache: &self.cache,
        }
    }

    /// Returns what `--recover` needs to know about a run that samples at `rate`.
    pub(crate) fn entries(&self, rate: u32) -> Entries {
        let (include, exclude, min_size) = self.filters.typed();
        Entries {
            version: gprofinject_abi::VERSION,
            output: self.output.absolute(),
            hooks: self.hooks,
            engine: self.engine,
            measure: self.measure,
            include,
            exclude,
            min_size,
            count: self.filters.count(),
            files: self.filters.files(),
            libs: self.libs.typed().to_owned(),
            outermost: self.libs.outermost().to_vec(),
            values: self.args.as_ref().and_then(|args| args.typed_values()).map(str::to_owned),
            origin: Some(recorder::origin()),
            running: self.running,
            shadow_stacks: self.shadow_stacks,
            arena: self.arena,
            rate,
            programs: Vec::new(),
            libraries: Vec::new(),
        }
    }
}
