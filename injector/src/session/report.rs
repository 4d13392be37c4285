//! The report after the run: one line for people, and a file for programs (`--stats`).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gmon::counted;
use gmon::output::Target;
use gprofinject_plan::Verdict;
use serde::Serialize;

use crate::os::child::Ending;
use crate::os::say::{Level, Voice};
use crate::profile::collect::Account;
use crate::profile::gmon_out::LibraryProfile;
use crate::profile::model::{Module, Profile};
use crate::profile::placement::{Placed, Unseen};
use crate::program::library::Library;
use crate::program::planned::Planned;
use crate::session::member::{Other, Unhooked, Who};

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
    functions: Functions,
    /// The functions that ran and that gprof cannot show.
    unseen: Vec<Unseen>,
    /// The basic-block counts, with `--count`.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<Blocks>,
    /// The libraries, if they were to be hooked.
    #[serde(skip_serializing_if = "Option::is_none")]
    libraries: Option<Vec<LibraryStats>>,
    calls: u64,
    /// The number of different pairs of call site and function.
    arcs: u64,
    /// The number of threads that have made calls.
    threads: u64,
    samples: Samples,
    lost: Lost,
    memory: Memory,
    setup_ns: Setup,
    /// Whether the plan was made in an earlier run.
    plan_cached: bool,
    /// The processes other than the first: children, and executed programs.
    processes: Vec<Process>,
}

#[derive(Debug, Serialize)]
struct Process {
    /// The process's number, with `--per-process`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<i32>,
    /// The number of the program's processes, without `--per-process`.
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<u32>,
    program: String,
    profile: String,
    calls: u64,
    samples_inside: u64,
    samples_outside: u64,
    lost_calls: u64,
    threads: u64,
    unseen: Vec<Unseen>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Exit {
    Status(u8),
    Signal(i32),
}

#[derive(Debug, Serialize)]
struct Functions {
    /// The number of functions, without `.cold` parts, which are parts of functions, and without the entry
    /// point, which nobody calls.
    found: usize,
    hooked: usize,
    hooked_by_tactic: BTreeMap<&'static str, usize>,
    refused_by_reason: BTreeMap<&'static str, usize>,
    /// The number of instructions that were removed: calls of another profiler's counters and hooks, and what
    /// only those calls needed.
    instructions_removed: usize,
}

#[derive(Debug, Serialize)]
struct Blocks {
    /// The number of functions whose basic blocks were counted.
    functions: usize,
    uncounted_by_reason: BTreeMap<&'static str, usize>,
    found: usize,
    /// The number of basic blocks that were executed.
    executed: usize,
    /// The number of counters. The counts of the other basic blocks follow from theirs.
    counters: u64,
}

/// A library that the program has loaded.
#[derive(Debug, Serialize)]
struct LibraryStats {
    path: String,
    /// `hooked`, `left-out` (by `--libs`) or `refused`.
    status: &'static str,
    /// Why it was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    functions: Option<Functions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    blocks: Option<Blocks>,
}

#[derive(Debug, Serialize)]
struct Samples {
    sampler: &'static str,
    /// The samples per second of CPU time.
    rate: u32,
    inside: u64,
    /// The number of samples in libraries, in the kernel's vdso or elsewhere.
    outside: u64,
}

#[derive(Debug, Serialize)]
struct Lost {
    calls: u64,
    threads: u64,
    /// The number of calls that were counted and whose exit was not hooked.
    bare_calls: u64,
    samples: u64,
    /// The number of threads that could not be sampled.
    timers: u64,
    throttled: bool,
}

#[derive(Debug, Serialize)]
struct Memory {
    arena_bytes: u64,
    /// The memory that counters occupy, in bytes.
    region_bytes: u64,
    plan_bytes: u64,
    /// The memory for samples in the injector, in bytes: the kernel's buffers and the histogram.
    sampler_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Setup {
    /// The time for reading the program and planning.
    plan: u64,
    /// The agent's set-up time, inside the program.
    agent: u64,
    /// The time for which Frida's gum worked, inside the program.
    frida: u64,
    /// The time from the injector's start to the program's, without the agent's.
    injector: u64,
    total: u64,
}

/// Everything that is known after a run.
pub(crate) struct Run<'r> {
    pub(crate) planned: &'r Planned<'r, 'r>,
    pub(crate) engine: &'static str,
    pub(crate) binary: &'r Path,
    pub(crate) ending: Ending,
    pub(crate) profile: &'r Profile,
    pub(crate) account: &'r Account,
    pub(crate) placed: &'r Placed,
    pub(crate) sampler: &'static str,
    pub(crate) rate: u32,
    pub(crate) lost_samples: u64,
    pub(crate) throttled: bool,
    pub(crate) sampler_bytes: u64,
    pub(crate) plan_bytes: u64,
    pub(crate) injector_ns: u64,
    pub(crate) notes: &'r [String],
    /// The value of `--libs`.
    pub(crate) libs: &'r str,
    /// The libraries that are not hooked, each with the number of the program that has loaded it.
    pub(crate) unhooked: &'r BTreeMap<(u32, PathBuf), Unhooked>,
    /// The number of processes that the profile is of.
    pub(crate) processes: u32,
    pub(crate) others: &'r [Other],
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
        for (_, verdict) in planned.callable() {
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
    fn of(planned: &Planned, executed: usize, in_vain: bool) -> Option<Blocks> {
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
    fn hooked(&self) -> usize {
        let patched = self.planned.hooked().saturating_sub(self.account.unpatched as usize);
        if self.account.trouble.is_some() { 0 } else { patched }
    }

    /// Returns what was counted in basic blocks of the program, or `None` if they were not to be counted.
    fn blocks(&self) -> Option<Blocks> {
        let executed = self.profile.modules.first().map_or(0, |program| program.blocks().1);
        Blocks::of(self.planned, executed, self.account.trouble.is_some())
    }

    /// Returns the modules that are libraries.
    fn hooked_libraries(&self) -> impl Iterator<Item = (&'static Library, &Module)> {
        self.profile.modules.iter().filter_map(|module| Some((module.library?, module)))
    }

    /// Returns the libraries of the first program that are not hooked.
    fn unhooked(&self) -> impl Iterator<Item = (&Path, &Unhooked)> {
        let own = self.unhooked.iter().filter(|((program, _), _)| *program == 0);
        let hooked = |path: &Path| self.hooked_libraries().any(|(library, _)| library.binary == path);
        own.map(|((_, path), why)| (path.as_path(), why)).filter(move |(path, _)| !hooked(path))
    }

    fn removed(&self) -> usize {
        let agent = self.planned.plan.is_some() && self.account.trouble.is_none();
        self.planned.image().filter(|_| agent).map_or(0, |image| image.removed.len())
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
            notes: self.notes.to_vec(),
            functions,
            unseen: self.placed.unseen.clone(),
            blocks: self.blocks(),
            libraries: self.planned.libraries.map(|_| self.library_stats()),
            calls: self.profile.calls(),
            arcs: self.profile.arcs.len() as u64,
            threads: self.profile.threads,
            samples: Samples {
                sampler: self.sampler,
                rate: self.rate,
                inside: self.placed.inside,
                outside: self.placed.outside,
            },
            lost: Lost {
                calls: account.lost_calls,
                threads: account.lost_threads,
                bare_calls: account.bare_calls,
                samples: self.lost_samples,
                timers: account.lost_timers,
                throttled: self.throttled,
            },
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

    /// Returns a sentence for each kind of data that is missing in the profile.
    pub(crate) fn losses(&self) -> Vec<String> {
        let account = self.account;
        let mut losses = Vec::new();
        let mut say = |count: u64, text: String| {
            if count > 0 {
                losses.push(text);
            }
        };
        let calls = account.lost_calls;
        let threads = account.lost_threads;
        if account.frozen {
            let lost = counted(calls, "call", "calls");
            say(calls, format!("{lost} lost: the program entered seccomp"));
        } else {
            let (lost, without) = (counted(calls, "call", "calls"), counted(threads, "thread", "threads"));
            say(calls, format!("{lost} could not be counted: no memory for counters"));
            say(threads, format!("{without} could not be counted: no memory for counters"));
        }
        let timers = account.lost_timers;
        let without = counted(timers, "thread", "threads");
        say(timers, format!("{without} could not be sampled: no timer to be had"));
        if account.trouble.is_none() {
            let unpatched = account.unpatched;
            say(unpatched, not_patched(unpatched));
        }
        let libraries = account.lost_libraries;
        let unhooked = counted(libraries, "library was", "libraries were");
        say(libraries, format!("{unhooked} not hooked, because there was no room or no answer"));
        let samples = self.lost_samples;
        let lost = counted(samples, "sample was", "samples were");
        say(samples, format!("{lost} lost; a lower --rate helps"));
        losses
    }

    /// Prints one line for each other profile.
    pub(crate) fn list_others(&self, voice: Voice) {
        const MOST: usize = 20;
        for other in self.others.iter().take(MOST) {
            let samples = other.placed.inside + other.placed.outside;
            let title = other.title();
            voice.note(format_args!(
                "{title}: {}; {}",
                calls_and_samples(other.calls, samples),
                commands(&other.symbols, &other.file, other.whole.as_ref(), other.is_hidden())
            ));
            lead_to_libraries(&other.libraries, voice);
            other.placed.report(voice, &other.profilee.shown.to_string_lossy(), Some(&title));
            if let Some(trouble) = &other.account.trouble {
                voice.warn(format_args!("{title}: nothing was hooked: {trouble}"));
            }
        }
        let unpatched = |other: &&Other| other.account.trouble.is_none() && other.account.unpatched > 0;
        for other in self.others.iter().filter(unpatched) {
            voice.warn(format_args!("{}: {}", other.title(), not_patched(other.account.unpatched)));
        }
        if self.others.len() > MOST {
            let more = self.others.len() - MOST;
            voice.note(format_args!("and {}", counted(more, "more profile", "more profiles")));
        }
        let others = || self.others.iter().map(|other| &other.account);
        let frozen: u64 = others().filter(|c| c.frozen).map(|c| c.lost_calls).sum();
        if frozen > 0 {
            let frozen = counted(frozen, "call", "calls");
            voice.warn(format_args!("{frozen} of other processes lost: they entered seccomp"));
        }
        let lost: u64 = others().filter(|c| !c.frozen).map(|c| c.lost_calls).sum();
        if lost > 0 {
            let lost = counted(lost, "call", "calls");
            voice.warn(format_args!("{lost} of other processes could not be counted: no memory"));
        }
        let all = || others().chain([self.account]);
        let children: u64 = all().map(|c| c.lost_children).sum();
        if children > 0 {
            let children = counted(children, "forked child", "forked children");
            voice.note(format_args!("{children} could not be profiled: no memory"));
        }
        if all().any(|c| c.lost_programs > 0) {
            voice.note(
                "some programs that were executed were not followed: the process had changed its root, its user \
                 or its limits, entered seccomp, or has a very large environment",
            );
        }
    }

    /// Returns the line that is printed at the end.
    pub(crate) fn summary(&self) -> String {
        let (hooked, found) = (self.hooked(), self.planned.found());
        let found = counted(found, "function", "functions");
        let calls = counted(self.profile.calls(), "call", "calls");
        let samples = counted(self.placed.inside + self.placed.outside, "sample", "samples");
        let of_libraries =
            self.hooked_libraries().filter_map(|(_, m)| Blocks::of(m.program, m.blocks().1, false));
        let mut blocks = String::new();
        if let Some(own) = self.blocks() {
            let (mut executed, mut found, mut functions) = (own.executed, own.found, own.functions);
            for blocks in of_libraries {
                executed += blocks.executed;
                found += blocks.found;
                functions += blocks.functions;
            }
            let found = counted(found, "block", "blocks");
            let functions = counted(functions, "function", "functions");
            blocks = format!(", {executed} of {found} of {functions} ran");
        }
        let processes = match self.processes {
            1 => String::new(),
            processes => format!(" in {processes} processes"),
        };
        let libraries = self.libraries();
        let all = self.placed.inside + self.placed.outside;
        let share = match self.planned.libraries {
            Some(_) if all > 0 => {
                let share = 100.0 * self.profile.samples_inside() as f64 / all as f64;
                format!(" ({share:.0} % in hooked code)")
            }
            _ => String::new(),
        };
        format!("hooked {hooked} of {found}{libraries}, {calls}{processes}{blocks}, {samples}{share}")
    }

    /// Returns the other program that did most of the work, if the program that was started only led to it: a shell, a
    /// shim, or a command such as env.
    pub(crate) fn worker(&self) -> Option<&Other> {
        let own = self.placed.inside + self.placed.outside;
        let samples = |other: &&Other| other.placed.inside + other.placed.outside;
        let is_program = |other: &&Other| matches!(other.who, Who::Program { .. });
        let most = self.others.iter().filter(is_program).max_by_key(samples)?;
        (samples(&most) > 2 * own).then_some(most)
    }

    /// Returns the part of the summary about libraries.
    fn libraries(&self) -> String {
        let (hooked, found) = self.hooked_libraries().fold((0, 0), |(hooked, found), (_, module)| {
            (hooked + module.program.hooked(), found + module.program.found())
        });
        let number = self.hooked_libraries().count();
        let refused = self.unhooked().filter(|(_, why)| matches!(why, Unhooked::Refused(_))).count();
        let left_out = self.unhooked().count() - refused;
        let mut less = Vec::new();
        if left_out > 0 {
            less.push(format!("{left_out} left out by --libs {}", quoted(OsStr::new(self.libs))));
        }
        if refused > 0 {
            less.push(format!("{refused} refused"));
        }
        let less = if less.is_empty() { String::new() } else { format!(" ({})", less.join(", ")) };
        match number {
            // Every program has a C library.
            0 if refused == 0 => String::new(),
            0 => format!(" and no library{less}"),
            number => {
                let libraries = counted(number, "library", "libraries");
                let found = counted(found, "function", "functions");
                format!(" and {hooked} of {found} of {libraries}{less}")
            }
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

    /// Prints which libraries are not hooked. Those that cannot be are always named.
    fn list_unhooked(&self, voice: Voice) {
        const NAMED: usize = 3;
        let refused = self.unhooked().filter_map(|(path, why)| match why {
            Unhooked::Refused(why) => Some((path, why)),
            Unhooked::LeftOut => None,
        });
        for (index, (path, why)) in refused.enumerate() {
            let line = format!("{} is not hooked: {why}", path.display());
            if index < NAMED { voice.note(line) } else { voice.detail(line) }
        }
        for (path, _) in self.unhooked().filter(|(_, why)| **why == Unhooked::LeftOut) {
            voice.detail(format_args!("{} is left out by --libs {}", path.display(), self.libs));
        }
        for ((_, path), why) in self.unhooked.iter().filter(|((program, _), _)| *program != 0) {
            if let Unhooked::Refused(why) = why {
                voice.detail(format_args!("{} is not hooked in another program: {why}", path.display()));
            }
        }
    }

    /// Prints what `-v` adds.
    pub(crate) fn details(&self, voice: Voice) {
        let stats = self.stats();
        for (reason, count) in &stats.functions.refused_by_reason {
            voice.detail(format_args!("not hooked, {reason}: {count}"));
        }
        for (reason, count) in stats.blocks.iter().flat_map(|blocks| &blocks.uncounted_by_reason) {
            voice.detail(format_args!("blocks not counted, {reason}: {count}"));
        }
        for library in stats.libraries.iter().flatten() {
            let name = library.path.rsplit('/').next().unwrap_or_default();
            for (reason, count) in library.functions.iter().flat_map(|functions| &functions.refused_by_reason)
            {
                voice.detail(format_args!("{name}: not hooked, {reason}: {count}"));
            }
            for (reason, count) in library.blocks.iter().flat_map(|blocks| &blocks.uncounted_by_reason) {
                voice.detail(format_args!("{name}: blocks not counted, {reason}: {count}"));
            }
        }
        self.list_unhooked(voice);
        let removed = stats.functions.instructions_removed;
        if removed > 0 {
            let removed = counted(removed, "instruction", "instructions");
            voice.detail(format_args!("removed calls of another profiler: {removed}"));
        }
        let Samples { sampler, rate, inside, outside } = stats.samples;
        voice.detail(format_args!(
            "samples by {sampler}, {rate} per second: {inside} in the program, {outside} outside of it"
        ));
        let Memory { arena_bytes, region_bytes, plan_bytes, sampler_bytes } = stats.memory;
        voice.detail(format_args!(
            "memory: arena {arena_bytes}, counters {region_bytes}, plan {plan_bytes}, sampler {sampler_bytes} bytes"
        ));
        let Setup { plan, agent, frida, injector, .. } = stats.setup_ns;
        voice.detail(format_args!(
            "set-up: {:.1} ms here ({:.1} {}), {:.1} ms in the program",
            injector as f64 / 1e6,
            plan as f64 / 1e6,
            if stats.plan_cached { "for a plan from the cache" } else { "planning" },
            (agent + frida) as f64 / 1e6
        ));
        let deep = stats.lost.bare_calls;
        if deep > 0 {
            let deep = counted(deep, "call", "calls");
            voice.detail(format_args!(
                "{deep} on stacks that got no shadow stack (no memory): no exit was hooked there"
            ));
        }
        if stats.lost.throttled {
            voice.detail("the kernel throttled the sampling");
        }
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
            profile: other.file.display().to_string(),
            calls: other.calls,
            samples_inside: other.placed.inside,
            samples_outside: other.placed.outside,
            lost_calls: other.account.lost_calls,
            threads: other.threads,
            unseen: other.placed.unseen.clone(),
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

/// Returns the command that shows a profile and, in a comment of the shell, the one that shows the whole process if there
/// is such a view. If gprof shows nothing of the profile or too little (`is_hidden`), only the latter is returned.
pub(crate) fn commands(
    symbols: &OsStr,
    profile: &Path,
    whole: Option<&[PathBuf; 2]>,
    is_hidden: bool,
) -> String {
    let own = format!("gprof {} {}", quoted(symbols), quoted(profile.as_os_str()));
    match whole {
        None => own,
        Some([symbols, profile]) => {
            let whole = format!("gprof {} {}", quoted(symbols.as_os_str()), quoted(profile.as_os_str()));
            if is_hidden { whole } else { format!("{own} # whole process: {whole}") }
        }
    }
}

/// Says how many calls and samples a process has in its profile.
pub(crate) fn calls_and_samples(calls: u64, samples: u64) -> String {
    format!("{}, {}", counted(calls, "call", "calls"), counted(samples, "sample", "samples"))
}

/// Prints the commands that show the lines or basic blocks of libraries.
pub(crate) fn lead_to_libraries(libraries: &[LibraryProfile], voice: Voice) {
    const NAMED: usize = 3;
    for (index, LibraryProfile { library, file, has_lines }) in libraries.iter().enumerate() {
        let what = if *has_lines { "lines" } else { "blocks" };
        let name = library.file_name().unwrap_or(library.as_os_str()).to_string_lossy();
        let (library, file) = (quoted(library.as_os_str()), quoted(file.as_os_str()));
        let command = format!("{what} of {name}: gmon {what} {library} {file}");
        if index < NAMED { voice.note(command) } else { voice.detail(command) }
    }
    let more = libraries.len().saturating_sub(NAMED);
    if more > 0 && voice.0 < Level::Verbose {
        voice.note(format_args!("and of {} (-v)", counted(more, "more library", "more libraries")));
    }
}

fn not_patched(functions: u64) -> String {
    format!("Frida did not patch {}", counted(functions, "function", "functions"))
}

/// Returns a word with the quotes that a shell needs.
pub(crate) fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=~".contains(c);
    if !text.is_empty() && !text.starts_with(['~', '=']) && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        let quote = |text: &str| quoted(OsStr::new(text));
        assert_eq!(quote("./a-b_c"), "./a-b_c");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), "'it'\\''s'");
        assert_eq!(quote(""), "''");
    }
}
