//! The content of the `--stats` file.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use gmon::output::Target;
use gmon_run::ticks::Thread;
use gprofinject_abi::times::{ArcTimes, FunctionTimes, PathNode};
use gprofinject_plan::Verdict;
use serde::Serialize;

use crate::options::Clock;
use crate::os::child::Ending;
use crate::profile::place::Place;
use crate::profile::placement::Unseen;
use crate::profile::times::Times;
use crate::program::planned::Planned;
use crate::session::member::{Other, Unhooked, Who};
use crate::session::outcome::Run;
use crate::trace::messages::Summary;

/// The content of the `--stats` file.
#[derive(Debug, Serialize)]
pub(crate) struct Stats {
    version: &'static str,
    /// The program's path.
    program: String,
    exit: Exit,
    engine: &'static str,
    /// `both`, `entry` or `none`: what was hooked, which may be less than was asked for.
    hooks: &'static str,
    /// The reasons why less was done than was asked for.
    notes: Vec<String>,
    pub(super) functions: Functions,
    /// The functions that ran and that gprof cannot show.
    unseen: Vec<Unseen>,
    /// The basic-block counts, with `--count`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) blocks: Option<Blocks>,
    /// The libraries, if they were to be hooked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) libraries: Option<Vec<LibraryStats>>,
    calls: u64,
    /// The number of different pairs of call site and function.
    arcs: u64,
    /// The number of threads that have made calls.
    threads: u64,
    pub(super) samples: Samples,
    pub(super) lost: Lost,
    /// What was measured, with `--times` and `--paths`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) measured: Option<Measured>,
    /// What was traced, with `--trace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    trace: Option<Traced>,
    pub(super) memory: Memory,
    pub(super) setup_ns: Setup,
    /// Whether the plan was made in an earlier run.
    pub(super) plan_cached: bool,
    /// The processes other than the first: children, and executed programs.
    processes: Vec<Process>,
}

#[derive(Debug, Serialize)]
pub(super) struct Process {
    /// The process's number, with `--per-process`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    /// The number of the program's processes, without `--per-process`.
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<u32>,
    program: String,
    calls: u64,
    samples_inside: u64,
    samples_outside: u64,
    samples_own: u64,
    lost_calls: u64,
    threads: u64,
}

/// What was traced of all processes.
#[derive(Debug, Serialize)]
struct Traced {
    calls: u64,
    /// All events, with those of ends and pauses.
    events: u64,
    lost: u64,
    /// The length of the file, or of what is kept.
    bytes: u64,
    files: Vec<String>,
}

impl Traced {
    fn of(summary: &Summary) -> Traced {
        Traced {
            calls: summary.calls,
            events: summary.events,
            lost: summary.lost,
            bytes: summary.bytes,
            files: summary.files.iter().map(|file| file.display().to_string()).collect(),
        }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Exit {
    Status(u8),
    Signal(i32),
}

#[derive(Debug, Serialize)]
pub(super) struct Functions {
    /// The number of functions, without `.cold` parts, which are parts of functions, and without the entry
    /// point, which nobody calls.
    found: usize,
    hooked: usize,
    pub(super) hooked_by_tactic: BTreeMap<&'static str, usize>,
    pub(super) refused_by_reason: BTreeMap<&'static str, usize>,
    /// The number of instructions that were removed: calls of another profiler's counters and hooks, and what
    /// only those calls needed.
    pub(super) instructions_removed: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct Blocks {
    /// The number of functions whose basic blocks were counted.
    pub(super) functions: usize,
    pub(super) uncounted_by_reason: BTreeMap<&'static str, usize>,
    pub(super) found: usize,
    /// The number of basic blocks that were executed.
    pub(super) executed: usize,
    /// The number of counters. The counts of the other basic blocks follow from theirs.
    counters: u64,
}

/// A library that the program has loaded.
#[derive(Debug, Serialize)]
pub(super) struct LibraryStats {
    pub(super) path: String,
    /// `hooked`, `left-out` (by `--libs`) or `refused`.
    status: &'static str,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) functions: Option<Functions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) blocks: Option<Blocks>,
}

#[derive(Debug, Serialize)]
pub(super) struct Samples {
    pub(super) sampler: &'static str,
    /// The samples per second of CPU time.
    pub(super) rate: u32,
    pub(super) inside: u64,
    /// The number of samples in libraries, in the kernel's vdso or elsewhere.
    pub(super) outside: u64,
    /// The number of samples in gprofinject's own code, which are left out of the profile.
    pub(super) own: u64,
    /// The time that they stand for, in seconds of CPU time.
    pub(super) own_seconds: f64,
    /// Their share in all samples, in percent.
    pub(super) own_percent: f64,
}

#[derive(Debug, Serialize)]
pub(super) struct Lost {
    calls: u64,
    threads: u64,
    /// The number of calls that were counted and whose exit was not hooked.
    pub(super) bare_calls: u64,
    samples: u64,
    /// The number of threads that could not be sampled.
    timers: u64,
    pub(super) throttled: bool,
}

/// What was measured of the durations of calls.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    /// `tsc` or `gettime`.
    clock: &'static str,
    pub(super) threads: usize,
    /// The number of arcs of all threads.
    pub(super) arcs: usize,
    /// The number of nodes of the calling-context trees of all threads, with `--paths`.
    pub(super) paths: usize,
    /// The memory of the records of arcs, functions and nodes, in bytes.
    pub(super) record_bytes: usize,
    /// How often threads have calibrated the overhead of their calls.
    pub(super) calibrations: u64,
}

impl Measured {
    fn of(times: &Times) -> Measured {
        let count = |of: fn(&Thread<Place>) -> usize| times.threads.iter().map(of).sum();
        let (arcs, paths): (usize, usize) =
            (count(|thread| thread.arcs.len()), count(|thread| thread.nodes.len()));
        Measured {
            clock: match times.overhead.clock {
                Clock::Tsc => "tsc",
                Clock::Gettime => "gettime",
                Clock::Instructions => "instructions",
            },
            threads: times.threads.len(),
            arcs,
            paths,
            record_bytes: arcs * size_of::<ArcTimes>()
                + count(|thread| thread.functions.len()) * size_of::<FunctionTimes>()
                + paths * size_of::<PathNode>(),
            calibrations: times.calibrations,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Memory {
    pub(super) arena_bytes: u64,
    /// The memory that counters occupy, in bytes.
    pub(super) region_bytes: u64,
    pub(super) plan_bytes: u64,
    /// The memory for samples in the injector, in bytes: the kernel's buffers and the histogram.
    pub(super) sampler_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct Setup {
    /// The time for reading the program and planning.
    pub(super) plan: u64,
    /// The agent's set-up time, inside the program.
    pub(super) agent: u64,
    /// The time for which Frida's gum worked, inside the program.
    pub(super) frida: u64,
    /// The time from the injector's start to the program's, without the agent's.
    pub(super) injector: u64,
    total: u64,
}

impl Functions {
    /// Returns what the plan says of the functions of a module.
    fn of(planned: &Planned) -> Functions {
        let mut functions = Functions {
            found: planned.found(),
            hooked: planned.hooked(),
            hooked_by_tactic: BTreeMap::new(),
            refused_by_reason: BTreeMap::new(),
            instructions_removed: 0,
        };
        for verdict in planned.verdicts() {
            let (table, name) = match verdict {
                Verdict::Hooked(tactic) => (&mut functions.hooked_by_tactic, tactic.name()),
                Verdict::Refused(reason) => (&mut functions.refused_by_reason, reason.name()),
            };
            *table.entry(name).or_default() += 1;
        }
        functions
    }
}

impl Blocks {
    /// Returns what was counted in the basic blocks of a module, of which `executed` have run, or `None` if they were not
    /// to be counted. If nothing was hooked after all, nothing was counted.
    pub(super) fn of(planned: &Planned, executed: usize, in_vain: bool) -> Option<Blocks> {
        let plan = planned.plan.as_ref().filter(|_| planned.counts)?;
        let mut uncounted_by_reason = BTreeMap::new();
        for (function, _) in planned.functions() {
            if let Err(why) = plan.counting(function.address) {
                *uncounted_by_reason.entry(why.name()).or_default() += 1;
            }
        }
        if in_vain {
            return Some(Blocks { functions: 0, uncounted_by_reason, found: 0, executed: 0, counters: 0 });
        }
        let (functions, found) = plan.counted();
        Some(Blocks { functions, uncounted_by_reason, found, executed, counters: plan.counter_bytes() / 8 })
    }
}

impl Run<'_> {
    /// Returns what was counted in basic blocks of the program, or `None` if they were not to be counted.
    pub(super) fn blocks(&self) -> Option<Blocks> {
        let executed = self.profile.modules.first().map_or(0, |program| program.blocks().1);
        Blocks::of(self.planned, executed, self.account.trouble.is_some())
    }

    /// Returns the content of the `--stats` file.
    pub(crate) fn stats(&self) -> Stats {
        let account = self.account;
        let functions = Functions {
            hooked: self.hooked(),
            instructions_removed: self.removed(),
            ..Functions::of(self.planned)
        };
        Stats {
            version: env!("CARGO_PKG_VERSION"),
            program: self.binary.display().to_string(),
            exit: match self.ending {
                Ending::Exited(status) => Exit::Status(status),
                Ending::Killed(signal) => Exit::Signal(signal),
            },
            engine: self.engine,
            hooks: if self.hooked() > 0 { self.planned.hooks() } else { "none" },
            notes: self.notes.iter().cloned().chain(self.losses()).collect(),
            functions,
            unseen: self.placed.unseen.clone(),
            blocks: self.blocks(),
            libraries: self.planned.wants_libraries().then(|| self.library_stats()),
            calls: self.profile.calls(),
            arcs: self.profile.arcs.len() as u64,
            threads: self.profile.threads,
            samples: Samples {
                sampler: self.sampler,
                rate: self.rate,
                inside: self.placed.inside,
                outside: self.placed.outside,
                own: self.placed.own,
                own_seconds: self.own_seconds(),
                own_percent: self.placed.own_percent(),
            },
            lost: Lost {
                calls: account.lost_calls,
                threads: account.lost_threads,
                bare_calls: account.bare_calls,
                samples: self.tally.lost,
                timers: account.lost_timers,
                throttled: self.tally.throttled,
            },
            measured: self.profile.times.as_ref().map(Measured::of),
            trace: self.traced.map(Traced::of),
            memory: Memory {
                arena_bytes: self.planned.shape.arena_len,
                region_bytes: account.committed,
                plan_bytes: self.plan_bytes,
                sampler_bytes: self.sampler_bytes,
            },
            setup_ns: Setup {
                plan: self.planned.took.as_nanos() as u64,
                agent: account.setup_ns,
                frida: account.frida_ns,
                injector: self.injector_ns,
                total: self.injector_ns + account.setup_ns + account.frida_ns,
            },
            plan_cached: self.planned.is_cached,
            processes: self.others.iter().map(Process::of).collect(),
        }
    }

    /// Returns what `--stats` says of the libraries of the first program, in the order of their names.
    fn library_stats(&self) -> Vec<LibraryStats> {
        let hooked = self.hooked_libraries().map(|(library, module)| LibraryStats {
            path: library.binary.display().to_string(),
            status: "hooked",
            reason: None,
            functions: Some(Functions::of(module.program)),
            blocks: Blocks::of(module.program, module.blocks().1, false),
        });
        let unhooked = self.unhooked().map(|(path, why)| {
            let (status, reason) = match why {
                Unhooked::LeftOut => ("left-out", None),
                Unhooked::Refused(why) => ("refused", Some(why.to_string())),
            };
            LibraryStats { path: path.display().to_string(), status, reason, functions: None, blocks: None }
        });
        let mut all: Vec<LibraryStats> = hooked.chain(unhooked).collect();
        all.sort_by(|one, other| one.path.cmp(&other.path));
        all
    }
}

impl Process {
    fn of(other: &Other) -> Process {
        let (pid, processes) = match other.who {
            Who::Process(pid) => (Some(pid), None),
            Who::Program { processes } => (None, Some(processes)),
        };
        Process {
            pid,
            processes,
            program: other.profilee.binary.display().to_string(),
            calls: other.calls,
            samples_inside: other.placed.inside,
            samples_outside: other.placed.outside,
            samples_own: other.placed.own,
            lost_calls: other.account.lost_calls,
            threads: other.threads,
        }
    }
}

impl Stats {
    /// Writes the file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn write(&self, target: &Target) -> Result<()> {
        let mut text = serde_json::to_vec_pretty(self).context("the facts do not fit into JSON")?;
        text.push(b'\n');
        target.write(&text).context("cannot write the file named by --stats")
    }
}
