//! From the profiles of programs to the recording of their run.

mod interpreted;
mod places;
mod tables;
mod times;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, UNIX_EPOCH};

use gmon_run::{Block, Calls, Hits, LineSamples, Module, Origin, Process, Program, Recording, Stack, Values};

use crate::os::clock;
use crate::profile::file;
use crate::profile::generated;
use crate::profile::model::{self, GENERATED, NOWHERE, Place, Profile};
use crate::profile::recorder::places::Places;
use crate::profile::recorder::tables::Tables;
use crate::profile::recorder::times::Sources;
use crate::profile::slowest::Slowest;
use crate::profile::stacks::{self, Frame};
use crate::profile::values::REST;
use crate::program::planned::Planned;
use crate::store::rank;

/// The name that stands for all functions of a program that was not followed.
const NOT_FOLLOWED: &str = "[not followed]";

/// The recording of a run, to which one program after the other is added.
pub(crate) struct Recorder {
    tables: Tables,
    sources: Sources,
    /// The samples in code that was not hooked, by the index of its module.
    unhooked: BTreeMap<u32, u64>,
}

/// The processes in which a program was profiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Processes {
    pub(crate) number: u32,
    /// The number of the only one, or 0.
    pub(crate) pid: u32,
    /// What all of them are labelled with, or nothing.
    pub(crate) label: String,
    /// The processes of which more than the number is known. [`Recorder`] fills in their program, their run and their measured times.
    pub(crate) each: Vec<Process>,
}

impl Processes {
    /// Returns the only one, of which no more than its number is known.
    pub(crate) fn one(pid: u32) -> Processes {
        Processes { number: 1, pid, ..Processes::default() }
    }
}

impl Recorder {
    /// Returns the recording of a run that begins with this program, which has done nothing yet.
    pub(crate) fn new(name: &str, path: &str, planned: &Planned) -> Recorder {
        let origin = origin();
        let recording =
            Recording { runs: vec![run(origin)], start_unix_ns: origin.1, ..Recording::default() };
        let mut tables = Tables::of(recording);
        let module = tables.module(module(path, planned));
        tables.recording.programs.push(Program { name: name.to_owned(), module, ..Program::default() });
        Recorder { tables, sources: Sources::default(), unhooked: BTreeMap::new() }
    }

    /// Returns the same for a run of another gprofinject, of which its [`origin`] is known or nothing.
    pub(crate) fn of_another(mut self, origin: Option<(u64, u64)>) -> Recorder {
        self.tables.recording.start_unix_ns = origin.map_or(0, |(_, start_unix_ns)| start_unix_ns);
        self.tables.recording.runs = origin.map(run).into_iter().collect();
        self
    }

    /// Adds what the first program has done. `own` is the number of samples in gprofinject's code.
    pub(crate) fn add_first(&mut self, profile: &Profile, own: u64, processes: &Processes) {
        self.add_to(0, profile, own, processes);
    }

    /// Adds what another program has done.
    pub(crate) fn add(&mut self, profile: &Profile, own: u64, processes: &Processes) {
        let Some(first) = profile.modules.first() else { return };
        let module = self.tables.module(module(&profile.path, first.program));
        let number = self.tables.recording.programs.len() as u32;
        self.tables.recording.programs.push(Program {
            name: profile.name.clone(),
            module,
            ..Program::default()
        });
        self.add_to(number, profile, own, processes);
    }

    /// Adds a program that was not followed, of which no more is known than that it has run so often and had so many samples.
    pub(crate) fn add_unfollowed(&mut self, path: &str, processes: u32, samples: u64) {
        let module = Module { path: path.to_owned(), ..Module::default() };
        let name = module.name().to_owned();
        let module = self.tables.module(module);
        let function = self.tables.function(module, 0, 0, NOT_FOLLOWED);
        let program = self.tables.recording.programs.len() as u32;
        self.tables.recording.programs.push(Program { name, module, processes, ..Program::default() });
        self.tables.recording.hits.push(Hits { program, function, address: 0, samples });
    }

    /// Adds the slowest calls of the programs that have been added.
    pub(crate) fn add_slowest(&mut self, slowest: &Slowest) {
        let Slowest { slow, functions, programs } = slowest;
        let recording = &self.tables.recording;
        let modules: HashMap<&str, u32> =
            recording.modules.iter().zip(0..).map(|(module, index)| (module.path.as_str(), index)).collect();
        let of_path = |path: &String| {
            let module = *modules.get(path.as_str())?;
            let program = recording.programs.iter().position(|program| program.module == module)?;
            Some(program as u32)
        };
        let programs: Vec<Option<u32>> = programs.iter().map(of_path).collect();
        let of = functions.iter().map(|function| modules.get(function.module.as_str()).copied());
        let of: Vec<Option<u32>> = of.collect();
        let indexes = functions.iter().zip(of).map(|(function, module)| {
            let unknown = || Module { path: function.module.clone(), ..Module::default() };
            let module = module.unwrap_or_else(|| self.tables.module(unknown()));
            self.tables.function(module, function.address, function.size, &function.name)
        });
        let functions: Vec<u32> = indexes.collect();
        let program = |program: u32| programs.get(program as usize).copied().flatten();
        let function = |function: u32| functions.get(function as usize).copied().unwrap_or(0);
        self.tables.recording.slow.append(slow.clone(), program, function);
    }

    /// Whether a program has done anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.tables.recording.programs.iter().all(|program| program.processes == 0)
    }

    /// Returns what was added up to now.
    pub(crate) fn recording(&self) -> &Recording {
        &self.tables.recording
    }

    /// Returns the samples in code that was not hooked, by the index of its module.
    pub(crate) fn unhooked(&self) -> &BTreeMap<u32, u64> {
        &self.unhooked
    }

    /// Returns the recording of a run of this duration.
    pub(crate) fn finish(mut self, duration: Duration) -> Recording {
        let duration_ns = duration.as_nanos() as u64;
        self.tables.recording.runs.iter_mut().for_each(|run| run.duration_ns = duration_ns);
        Recording { duration_ns, ..self.tables.recording }
    }

    fn add_to(&mut self, program: u32, profile: &Profile, own: u64, processes: &Processes) {
        if let Some(period) = 1_000_000_000_u64.checked_div(profile.rate.into()) {
            self.tables.recording.sample_period_ns = period;
        }
        let modules: Vec<u32> =
            profile.modules.iter().map(|module| self.tables.module(module_of(profile, module))).collect();
        let mut places = Places::new(profile);
        let first_hit = self.tables.recording.hits.len();
        let outside = profile.modules.first().map_or(0, |program| program.samples.outside);
        let mut elsewhere = outside.saturating_sub(profile.in_agent);
        for place in &profile.unhooked {
            let module = self.tables.module(gmon_run::Module::clone(&place.module));
            let function = self.tables.function(module, place.start, place.size, &place.function);
            let (address, samples) = (place.address, place.samples);
            self.tables.recording.hits.push(Hits { program, function, address, samples });
            let sum = self.unhooked.entry(module).or_default();
            *sum = sum.saturating_add(samples);
            elsewhere = elsewhere.saturating_sub(samples);
        }
        for (index, module) in (0..).zip(&profile.modules) {
            if module.library.is_some() {
                // The program's samples outside of it include those in libraries.
                elsewhere = elsewhere.saturating_sub(module.samples.inside());
            }
            for (place, samples) in module.samples.places() {
                let Some(address) = module.program.text_address(place) else { continue };
                let function = places
                    .at(Place { module: index, address }, |found| self.tables.of_profile(&modules, &found));
                self.tables.recording.hits.push(Hits { program, function, address, samples });
            }
            let (blocks, _) = module.blocks();
            let module = modules.get(index as usize).copied().unwrap_or(0);
            self.tables.recording.blocks.extend(blocks.into_iter().map(|block| Block {
                program,
                module,
                address: block.addr,
                executions: block.count,
            }));
        }
        self.add_stacks((program, first_hit), profile, &modules, &mut places);
        self.tables.recording.calls.reserve(profile.arcs.len());
        for arc in &profile.arcs {
            let caller = match arc.from.module {
                NOWHERE => None,
                GENERATED => profile.generated.name(arc.from).map(|name| {
                    let module = Module { path: generated::NAME.to_owned(), ..Module::default() };
                    let module = self.tables.module(module);
                    self.tables.function(module, 0, 0, name)
                }),
                _ => Some(places.at(arc.from, |found| self.tables.of_profile(&modules, &found))),
            };
            let callee = places.entry(arc.to, |found| self.tables.of_profile(&modules, &found));
            let site = if caller.is_some() && arc.from.module != GENERATED { arc.from.address } else { 0 };
            self.tables.recording.calls.push(Calls { program, caller, site, callee, calls: arc.count });
        }
        let run = self.tables.recording.runs.first().map_or(0, |run| run.id);
        let first = self.tables.recording.processes.len();
        for process in &processes.each {
            let calls = if profile.times.is_some() { 0 } else { process.calls };
            self.tables.recording.add_process(Process { program, run, calls, ..*process });
        }
        let mut nodes = Vec::new();
        if let Some(times) = &profile.times {
            self.tables.begin_processes(first);
            let of = times::Of { program, profile, modules: &modules };
            nodes = times::add(&mut self.tables, &mut self.sources, &of, times, &mut places);
        }
        let mut rests = HashMap::new();
        for of in &profile.values {
            let mut index = |place| places.at(place, |found| self.tables.of_profile(&modules, &found));
            let (function, caller) = (index(of.key.function), of.key.caller.map(&mut index));
            let path = of.key.path.and_then(|(thread, node)| Some((nodes.get(thread as usize)?, node)));
            let node = path.and_then(|(of_thread, node)| self.node(&mut rests, of_thread, node));
            let (name, counts) = (of.key.name.clone(), of.counts.clone());
            self.tables.recording.values.push(Values { program, function, caller, node, name, counts });
        }
        if let Some(known) = self.tables.recording.programs.get_mut(program as usize) {
            known.processes = known.processes.saturating_add(processes.number);
            known.pid = processes.pid;
            known.label.clone_from(&processes.label);
            known.elsewhere = known.elsewhere.saturating_add(elsewhere);
            known.overhead = known.overhead.saturating_add(own);
        }
    }

    /// Returns the index of a thread's node, or of one for all paths together for which there was no room. `rests` has the latter, by the first
    /// nodes of their threads.
    fn node(&mut self, rests: &mut HashMap<u32, u32>, of_thread: &Range<u32>, node: u32) -> Option<u32> {
        if node != REST {
            return of_thread.clone().nth(node as usize);
        }
        if let Some(&known) = rests.get(&of_thread.start) {
            return Some(known);
        }
        let nodes = &mut self.tables.recording.nodes;
        let own = nodes.get(of_thread.start as usize..of_thread.end as usize)?;
        let thread = own.first()?.thread;
        let found = own.iter().position(|node| node.function.is_none());
        let index = found.map_or(nodes.len() as u32, |at| of_thread.start + at as u32);
        if found.is_none() {
            nodes.push(gmon_run::Node { thread, ..gmon_run::Node::default() });
        }
        rests.insert(of_thread.start, index);
        Some(index)
    }

    /// Adds the stacks of a program's samples, of which the first hit has this index.
    fn add_stacks<'p>(
        &mut self,
        (program, first_hit): (u32, usize),
        profile: &'p Profile,
        modules: &[u32],
        places: &mut Places<'p, u32>,
    ) {
        let frames = profile.stacks.frames().iter().map(|frame| match frame {
            Frame::Hooked(place) => places.at(*place, |found| self.tables.of_profile(modules, &found)),
            Frame::Other(place) => {
                let module = self.tables.module(gmon_run::Module::clone(&place.module));
                self.tables.function(module, place.start, place.size, &place.function)
            }
            Frame::Python(function) => self.tables.python(function),
        });
        let frames: Vec<u32> = frames.collect();
        interpreted::add_hits(&mut self.tables.recording, first_hit, program, profile, &frames);
        let lines = profile.stacks.lines().into_iter().filter_map(|(line, samples)| {
            let function = frames.get(line.frame as usize).copied()?;
            let stacks::LineSamples { own, inclusive, nested } = samples;
            Some(LineSamples { program, function, line: line.number, own, inclusive, nested })
        });
        self.tables.recording.lines.extend(lines);
        let first = self.tables.recording.stacks.len() as u32;
        self.tables.recording.stacks.extend(profile.stacks.nodes().iter().map(|node| Stack {
            program,
            parent: node.parent.map(|parent| first + parent),
            function: node.frame.and_then(|frame| frames.get(frame as usize).copied()),
            samples: node.samples,
        }));
    }
}

/// Returns what this run is known by, and when it began, in nanoseconds since 1970 (UTC).
pub(crate) fn origin() -> (u64, u64) {
    static ID: OnceLock<u64> = OnceLock::new();
    let date = clock::beginning().date.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let start_unix_ns = date.as_nanos() as u64;
    // The keys of the standard library's hash maps are random.
    let id = *ID.get_or_init(|| RandomState::new().hash_one((std::process::id(), start_unix_ns)).max(1));
    (id, start_unix_ns)
}

/// Returns where a run on this machine took place.
fn run((id, start_unix_ns): (u64, u64)) -> Origin {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Origin { id, host, rank: rank::own(), start_unix_ns, duration_ns: 0 }
}

/// Returns what the recording has of a profile's module.
fn module_of(profile: &Profile, of: &model::Module) -> Module {
    match of.library {
        Some(library) => module(&library.binary.display().to_string(), of.program),
        None => module(&profile.path, of.program),
    }
}

/// Returns what the recording has of a planned file.
fn module(path: &str, planned: &Planned) -> Module {
    file::module(path, planned.subject, planned.shape.text)
}
