//! Reads and plans the programs of a run.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use gprofinject_abi::attach::{self, DETOURED};
use gprofinject_abi::plan::HookMode;
use gprofinject_image::{Function, headers};
use gprofinject_plan::{Hooks, Measured, Options, Plan, Reason, Role, Told, Verdict};

use crate::options::{Clock, CountArg, EngineArg, HooksArg, Measure};
use crate::os::progress;
use crate::program::arguments::{self, ArgsChoice};
use crate::program::contents::Contents;
use crate::program::filters::Filters;
use crate::program::image_kind::ImageKind;
use crate::program::libs::Libs;
use crate::program::memory;
use crate::program::plan_cache::PlanCache;
use crate::program::plan_cache::entry::Source;
use crate::program::plan_cache::key::{Question, ReadFor};
use crate::program::planned::Planned;
use crate::program::subject::{Binary, Subject};
use crate::store::purpose::Purpose;
use crate::store::region::layout::LibraryHooks;
use crate::store::shape::Shape;

/// What is the same for all programs of a run.
#[derive(Clone, Copy)]
pub(crate) struct Planner<'a> {
    /// Which hooks; `None` if the user has not said it, so that both entry and exit are hooked where exit
    /// hooks are safe.
    pub(crate) hooks: Option<HooksArg>,
    pub(crate) engine: EngineArg,
    pub(crate) measure: Option<Measure>,
    /// Which arguments are traced, if any are.
    pub(crate) args: Option<&'a ArgsChoice>,
    pub(crate) filters: &'a Filters,
    pub(crate) libs: &'a Libs,
    /// Whether the process runs already when it is hooked.
    pub(crate) running: bool,
    /// See [`Options::shadow_stack`].
    pub(crate) shadow_stacks: bool,
    /// See [`Options::arena`]: where a program's arena begins, if the process runs already and is that of a standalone
    /// program.
    pub(crate) arena: Option<u64>,
    pub(crate) cache: &'a PlanCache,
}

/// What a file is for a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Program {
        /// Whether the agent is needed even if nothing is hooked.
        agent_wanted: bool,
    },
    Library(Purpose),
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

impl Planner<'_> {
    /// Reads a program's file and keeps it in memory to the end of this process.
    pub(crate) fn subject(&self, path: &Path) -> &'static Subject<'static> {
        match self.caches() {
            true => examined(self.cache.read(path, ReadFor::Program)),
            false => subject(path, false),
        }
    }

    /// Reads a program's file in a way that tells whether it is that of an earlier run ([`Subject::is_labelled`]), which may have had a
    /// cache although there is none now.
    pub(crate) fn subject_to_compare(&self, path: &Path) -> &'static Subject<'static> {
        if self.caches() { self.subject(path) } else { subject(path, true) }
    }

    /// Reads a program that another user runs.
    pub(crate) fn foreign_subject(&self, path: &Path) -> &'static Subject<'static> {
        examined(Binary::new(path, Contents::open_foreign(path), self.caches()))
    }

    /// Whether the plan may be one that an earlier run has kept.
    fn caches(&self) -> bool {
        self.cache.takes(self.filters)
    }

    /// Plans a program, or finds its plan in the cache.
    ///
    /// If nothing is to be hooked, or nothing can be, there is a plan only if `agent_wanted`: the agent is
    /// needed for its timers, or to follow children. In patterns `MODULE!FUNCTION` the program has two names, that of its
    /// file and an empty one.
    pub(crate) fn plan<'s, 'd>(
        &self,
        subject: &'s Subject<'d>,
        binary: &Path,
        agent_wanted: bool,
    ) -> Planned<'s, 'd> {
        let what = || "planning the program".to_owned();
        let names = ["", file_name(binary)];
        let planned = progress::during(self.cache.voice(), what, || {
            let planned = self.plan_part(subject, &names, Part::Program { agent_wanted });
            self.with_arguments(planned, binary, &names)
        });
        memory::plan_made();
        planned
    }

    /// Reads a library's file and keeps it in memory to the end of this process.
    pub(crate) fn library_subject(&self, path: &Path) -> &'static Subject<'static> {
        let binary = match self.caches() {
            true => self.cache.read(path, ReadFor::Library),
            false => Binary::new(path, Contents::open(path, true), false),
        };
        let binary: &'static Binary = Box::leak(Box::new(binary));
        Box::leak(Box::new(binary.examine_library()))
    }

    /// Plans a library, or finds its plan in the cache. In patterns `MODULE!FUNCTION` the library has the name of its file
    /// and the one by which others need it. Several threads may do this at the same time.
    pub(crate) fn library<'s, 'd>(
        &self,
        subject: &'s Subject<'d>,
        path: &Path,
        purpose: Purpose,
    ) -> Planned<'s, 'd> {
        let name = file_name(path);
        let soname = gprofinject_image::headers::soname(subject.bytes);
        let names = [name, soname.as_deref().unwrap_or(name)];
        let planned = self.plan_part(subject, &names, Part::Library(purpose));
        self.with_arguments(planned, path, &names)
    }

    /// Adds what is known of the arguments of a program's or library's hooked functions, if they are traced.
    fn with_arguments<'s, 'd>(
        &self,
        mut planned: Planned<'s, 'd>,
        path: &Path,
        names: &[&str],
    ) -> Planned<'s, 'd> {
        if let (Some(choice), Some(plan)) = (self.args, &planned.plan) {
            let subject = planned.subject;
            let module = arguments::Module {
                path,
                names,
                bytes: subject.bytes,
                debug_file: subject.debug_file,
                is_static: matches!(subject.kind, ImageKind::Static(_)),
            };
            let functions = plan.records.iter().zip(0_u32..).filter_map(|(record, number)| {
                Some((number, subject.functions().get(subject.functions().index_at(record.entry)?)?))
            });
            planned.arguments = Some(arguments::signatures(&module, choice, functions));
        }
        planned
    }

    /// Whether functions are hooked, some of them on their exits. Where basic blocks are counted, functions of libraries are hooked even
    /// with `--hooks none`.
    pub(crate) fn hooks_functions(&self) -> bool {
        self.hooks != Some(HooksArg::None) || self.filters.count().is_some()
    }

    /// Returns where the agent's words of each thread will be in a process that runs this program.
    fn words(&self, subject: &Subject) -> i64 {
        match (subject.kind.is_standalone(), self.running) {
            (true, _) => 0,
            (false, true) => attach::WORDS as i64,
            (false, false) => gprofinject_plan::offset_of_words(headers::tls(subject.bytes)),
        }
    }

    /// Which hooks the libraries get of a process that runs this program.
    fn library_hooks(&self, subject: &Subject) -> Option<LibraryHooks> {
        let is_musl = subject.kind.is_musl();
        let is_possible = match subject.kind {
            // The agent has to be called from musl's dynamic linker, whatever the user wants.
            ImageKind::Musl { .. } => true,
            ImageKind::Dynamic { .. } => {
                (self.libs.wants_any() || self.hooks_functions()) && self.engine == EngineArg::Builtin
            }
            _ => false,
        };
        // The counters of a standalone program's threads follow their records, where there is no room for those of libraries.
        let counts = self.filters.count().is_some() && !is_musl;
        let mode = match self.hooks {
            // As in the program, counting must not cost more than necessary.
            Some(HooksArg::None) if counts => HookMode::Entry,
            None if counts && self.measure.is_none() => HookMode::Entry,
            Some(HooksArg::None) => return None,
            Some(HooksArg::Entry) => HookMode::Entry,
            _ if self.shadow_stacks => HookMode::Entry,
            Some(HooksArg::Both) | None => HookMode::Both,
        };
        let wanted = self.libs.wants_any() || is_musl;
        is_possible.then_some(LibraryHooks { mode, counts, wanted })
    }

    fn plan_part<'s, 'd>(&self, subject: &'s Subject<'d>, names: &[&str], part: Part) -> Planned<'s, 'd> {
        let Planner { hooks, engine, measure, args, filters, libs, running, shadow_stacks, arena, cache } =
            *self;
        let agent_wanted = part == Part::Program { agent_wanted: true };
        let role = match part {
            Part::Program { .. } if subject.kind.is_standalone() => Role::Standalone,
            Part::Program { .. } => Role::Program,
            Part::Library(purpose) if purpose.is_musl() => Role::StandaloneLibrary,
            Part::Library(_) => Role::Library,
        };
        let start = Instant::now();
        let outermost = libs.is_outermost(names);
        let counting = filters.count().is_some();
        // Without line information, nothing could be shown of a library's lines.
        let is_without_lines =
            || role.is_library() && filters.count() == Some(CountArg::Lines) && subject.lines().is_none();
        // Return addresses in copies would be unknown to such a runtime. A shadow stack would not have those that some copies leave.
        let has_runtime = shadow_stacks || subject.image().is_some_and(|image| image.facts.runtime.is_some());
        let is_uncounted = role == Role::StandaloneLibrary;
        let counts = counting && !has_runtime && !is_uncounted && !is_without_lines();
        let blocks_only = counting && !has_runtime && hooks == Some(HooksArg::None);
        let hooks = if blocks_only { Some(HooksArg::Entry) } else { hooks };
        // Unless the user says otherwise, counting must not cost more than necessary. Durations need exits.
        let entry = hooks == Some(HooksArg::Entry) || counting && hooks.is_none() && measure.is_none();
        let is_left_out = matches!(part, Part::Library(purpose) if !purpose.is_wanted());
        let clock = measure.is_some_and(|measure| measure.clock == Clock::Instructions) && !has_runtime;
        let nothing = hooks == Some(HooksArg::None) || subject.kind.unhookable().is_some();
        let lines = filters.asks_for_files().then(|| subject.lines());
        let counted = |function: &Function| {
            let (lo, hi) = (function.address, function.address + function.size);
            let in_files = |lines: &Option<gprofinject_image::debug::Lines>| {
                lines.as_ref().is_some_and(|lines| files(lines, lo, hi).any(|file| filters.counts_file(file)))
            };
            lines.as_ref().is_none_or(in_files)
        };
        // The start of these functions leads to the agent in such a process, unless it is musl's.
        let is_detoured = |function: &Function| {
            running
                && part == Part::Library(Purpose::Hooks)
                && function.names().any(|name| DETOURED.contains(&name))
        };
        let running_go = subject.image().filter(|image| running && image.facts.go);
        let is_reentered = |function: &Function| {
            running_go.is_some_and(|image| gprofinject_plan::is_reentered(image, function))
        };
        let selected = |function: &Function| {
            !nothing
                && !is_left_out
                && filters.select(names, function.names())
                && !is_detoured(function)
                && !is_reentered(function)
        };
        let selects = match nothing || is_left_out {
            true => Some(false),
            false => (filters.selects_all() && !running).then_some(true),
        };
        let told = |function: &Function| args.map_or(Told::default(), |args| args.told(names, function));
        let insist = hooks.is_some() && !blocks_only;
        let hooks = if entry { Hooks::Entry } else { Hooks::Both };
        let image = subject.image().filter(|_| agent_wanted || !nothing);
        let counted = counts.then_some(&counted as &dyn Fn(&Function) -> bool);
        let options = Options {
            hooks,
            engine: engine.engine(),
            selected: &selected,
            min_size: filters.min_size(),
            insist,
            shadow_stack: shadow_stacks,
            counted,
            clock,
            outermost,
            role,
            measured: match measure {
                None => Measured::None,
                Some(measure) if !measure.measures() => Measured::Chosen,
                Some(measure) if measure.trace.is_some_and(|trace| trace.depth > 0) => Measured::Outer,
                Some(Measure { min_ns: 1.., .. }) => Measured::Long,
                Some(_) => Measured::All,
            },
            told: args.map(|_| &told as &dyn Fn(&Function) -> Told),
            arena: arena.filter(|_| !role.is_library()),
            words: match part {
                Part::Program { .. } => self.words(subject),
                Part::Library(_) => 0,
            },
        };
        let question =
            image.map(|image| Question { subject, image, options: &options, selects, hookless: nothing });
        let key = question.as_ref().and_then(|question| cache.key(question));
        let asked = question.as_ref().zip(key.as_ref());
        let kept = asked.and_then(|(question, key)| cache.find(question, key));
        let (kept, file) = kept.map_or((None, None), |(plan, file)| (Some(plan), Some(file)));
        // What was found otherwise is kept under this key as well.
        let cached = kept.or_else(|| cache.find_by_bytes(asked?.0));
        let is_cached = cached.is_some();
        memory::expect_results(cached.as_ref().map_or(0, |plan| plan.records.len()));
        let plan_anew = |image| {
            memory::expect_plan(subject.bytes.len());
            Plan::new(image, &options)
        };
        let mut plan = cached.or_else(|| image.map(plan_anew));
        let obstacle = plan.as_ref().and_then(obstacle);
        if obstacle.is_some() {
            plan = None;
        }
        if let Some(plan) = plan.as_mut().filter(|_| nothing) {
            plan.caution = None;
            plan.downgrade = None;
            for verdict in
                plan.verdicts.to_mut().iter_mut().filter(|v| **v == Verdict::Refused(Reason::NotSelected))
            {
                *verdict = Verdict::Refused(Reason::NoHooks);
            }
        }
        if let Some(plan) = plan.as_mut().filter(|_| running && !nothing) {
            for (function, verdict) in subject.functions().iter().zip(plan.verdicts.to_mut()) {
                if *verdict != Verdict::Refused(Reason::NotSelected) {
                    continue;
                }
                if is_detoured(function) {
                    *verdict = Verdict::Refused(Reason::Agent);
                } else if filters.select(names, function.names()) && is_reentered(function) {
                    *verdict = Verdict::Refused(Reason::JumpedInto);
                }
            }
        }
        let shape = match &plan {
            Some(plan) => {
                let starts = subject.functions().addresses().map(|address| address.wrapping_sub(plan.text.0));
                let owners = plan.arena_owners.iter().map(|&[start, _]| u64::from(start));
                Shape {
                    text: plan.text,
                    arena: plan.arena,
                    arena_len: plan.arena_len,
                    text_shift: widest_bins(starts),
                    // The instructions of copies can have any length.
                    arena_shift: if plan.counted() == (0, 0) { widest_bins(owners) } else { 0 },
                }
            }
            None => Shape { text: text_extents(subject), ..Shape::default() },
        };
        Planned {
            subject,
            plan,
            shape,
            took: start.elapsed(),
            obstacle,
            is_cached,
            key,
            is_kept: file.is_some(),
            // A process to which gprofinject attaches may be another user's, and gets rid of all files of gprofinject's in the end.
            file: file.filter(|_| !running),
            counts,
            copies: counts || clock,
            blocks_only,
            measure: measure.filter(|_| !role.is_library()),
            libraries: if role.is_library() { None } else { self.library_hooks(subject) },
            arguments: None,
            wants_whole: libs.wants_any(),
            stubs: OnceLock::new(),
            gprof: OnceLock::new(),
        }
    }

    /// Adds a new plan, which [`PlanCache::keep_fresh`] writes to the cache.
    pub(crate) fn keep(&self, path: &Path, purpose: ReadFor, planned: &'static Planned<'static, 'static>) {
        if self.caches() {
            self.cache.add_file(path, purpose, planned.subject);
        }
        if let (Some(key), Some(plan), false) = (planned.key, &planned.plan, planned.is_kept) {
            let Subject { bytes, version, .. } = *planned.subject;
            // The dynamic linker would relocate the program's own text, and not the image's.
            let is_relocated =
                planned.subject.image().is_some_and(|image| !image.facts.text_relocations.is_empty());
            let version = version.filter(|_| !is_relocated);
            self.cache.add(key, Source::Plan { plan, bytes, version });
        }
    }
}

/// Returns why a plan must not be carried out: the program and the agent would change each other's gs, or a new thread would share the
/// words of its parent.
fn obstacle(plan: &Plan) -> Option<String> {
    if let Some(at) = plan.uses_gs {
        let use_of_it = match plan.role.is_standalone() {
            true => "by which gprofinject would reach its counters",
            false => "by which basic blocks are counted; omit --count",
        };
        return Some(format!("its code at {at:#x} uses the register gs, {use_of_it}"));
    }
    // A library may make threads that run functions of the program.
    let at = plan.unredirected.first().filter(|_| plan.role.is_library() || !plan.records.is_empty())?;
    Some(format!("its system call at {at:#x} may make threads, and cannot be led to the agent"))
}

/// Reads a program's file. If its plan may be `cached`, its contents get a mark for the key.
pub(crate) fn subject(path: &Path, cached: bool) -> &'static Subject<'static> {
    examined(Binary::new(path, Contents::open(path, true), cached))
}

fn examined(binary: Binary) -> &'static Subject<'static> {
    let binary: &'static Binary = Box::leak(Box::new(binary));
    Box::leak(Box::new(binary.examine()))
}

/// Returns the binary logarithm of the largest number of bytes, up to 16, that a bin can cover without
/// covering bytes of two owners.
fn widest_bins(starts: impl Iterator<Item = u64>) -> u32 {
    const MOST: u32 = 4;
    starts.map(u64::trailing_zeros).fold(MOST, u32::min)
}

/// Returns the source files of the code in a range, some of them several times.
fn files(lines: &gprofinject_image::debug::Lines, lo: u64, hi: u64) -> impl Iterator<Item = &Path> {
    let rows = lines.rows();
    let from = rows.partition_point(|row| row.end <= lo);
    let inside = rows[from..].iter().take_while(move |row| row.start < hi);
    inside.filter_map(|row| lines.files().get(row.location?.file).map(Path::new))
}

/// Returns the extent of the functions, or of all code if none are known.
fn text_extents(subject: &Subject) -> (u64, u64) {
    if let Some(extent) = subject.functions().extent() {
        return extent;
    }
    let lo = subject.code.iter().map(|segment| segment.address).min().unwrap_or(0);
    let ends = subject.code.iter().map(|segment| segment.address.saturating_add(segment.len));
    (lo, ends.max().unwrap_or(0))
}
