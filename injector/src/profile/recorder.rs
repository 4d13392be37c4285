//! From the profiles of programs to the recording of their run.

mod places;
mod times;

use std::collections::HashMap;
use std::time::{Duration, UNIX_EPOCH};

use gmon_run::{Block, Calls, Function, Hits, Module, Program, Recording};

use crate::os::clock;
use crate::profile::model::{self, NOWHERE, Place, Profile};
use crate::profile::recorder::places::{Found, Places};
use crate::profile::recorder::times::Sources;
use crate::profile::totals::Seed;
use crate::program::planned::Planned;

/// The name of the module of a function in memory without a file.
const MEMORY: &str = "[memory]";

/// The recording of a run, to which one program after the other is added.
pub(crate) struct Recorder {
    recording: Recording,
    /// By path and build-id.
    modules: HashMap<(String, Vec<u8>), u32>,
    /// By module and link address.
    functions: HashMap<(u32, u64), u32, Seed>,
    /// By module and name, where only these are known.
    named: HashMap<(u32, String), u32>,
    sources: Sources,
}

/// The processes in which a program was profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Processes {
    pub(crate) number: u32,
    /// The number of the only one, or 0.
    pub(crate) pid: u32,
}

impl Recorder {
    /// Returns the recording of a run that begins with this program, which has done nothing yet.
    pub(crate) fn new(name: &str, path: &str, planned: &Planned) -> Recorder {
        let begin = clock::beginning().date;
        let date = begin.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let recording = Recording { start_unix_ns: date.as_nanos() as u64, ..Recording::default() };
        let mut recorder = Recorder {
            recording,
            modules: HashMap::new(),
            functions: HashMap::default(),
            named: HashMap::new(),
            sources: Sources::default(),
        };
        let module = recorder.module(module(path, planned));
        recorder.recording.programs.push(Program { name: name.to_owned(), module, ..Program::default() });
        recorder
    }

    /// Adds what the first program has done. `own` is the number of samples in gprofinject's code.
    pub(crate) fn add_first(&mut self, profile: &Profile, own: u64, processes: Processes) {
        self.add_to(0, profile, own, processes);
    }

    /// Adds what another program has done.
    pub(crate) fn add(&mut self, profile: &Profile, own: u64, processes: Processes) {
        let Some(first) = profile.modules.first() else { return };
        let module = self.module(module(&profile.path, first.program));
        let number = self.recording.programs.len() as u32;
        self.recording.programs.push(Program { name: profile.name.clone(), module, ..Program::default() });
        self.add_to(number, profile, own, processes);
    }

    /// Whether a program has done anything.
    pub(crate) fn is_empty(&self) -> bool {
        self.recording.programs.iter().all(|program| program.processes == 0)
    }

    /// Returns the recording.
    pub(crate) fn finish(self) -> Recording {
        let begin = clock::beginning().date;
        let passed = begin.elapsed().unwrap_or(Duration::ZERO);
        Recording { duration_ns: passed.as_nanos() as u64, ..self.recording }
    }

    fn add_to(&mut self, program: u32, profile: &Profile, own: u64, processes: Processes) {
        if let Some(period) = 1_000_000_000_u64.checked_div(profile.rate.into()) {
            self.recording.sample_period_ns = period;
        }
        let modules: Vec<u32> =
            profile.modules.iter().map(|module| self.module(module_of(profile, module))).collect();
        let mut places = Places::new(profile);
        let outside = profile.modules.first().map_or(0, |program| program.samples.outside);
        let mut elsewhere = outside.saturating_sub(profile.in_agent);
        for named in &profile.named {
            let function = self.named(&named.module, &named.function);
            self.recording.hits.push(Hits { program, function, address: 0, samples: named.samples });
            elsewhere = elsewhere.saturating_sub(named.samples);
        }
        for (index, module) in (0..).zip(&profile.modules) {
            if module.library.is_some() {
                // The program's samples outside of it include those in libraries.
                elsewhere = elsewhere.saturating_sub(module.samples.inside());
            }
            for (place, samples) in module.samples.places() {
                let Some(address) = module.program.text_address(place) else { continue };
                let function =
                    places.at(Place { module: index, address }, |found| self.function(&modules, &found));
                self.recording.hits.push(Hits { program, function, address, samples });
            }
            let (blocks, _) = module.blocks();
            let module = modules.get(index as usize).copied().unwrap_or(0);
            self.recording.blocks.extend(blocks.into_iter().map(|block| Block {
                program,
                module,
                address: block.addr,
                executions: block.count,
            }));
        }
        self.recording.calls.reserve(profile.arcs.len());
        for arc in &profile.arcs {
            let caller = match arc.from.module {
                NOWHERE => None,
                _ => Some(places.at(arc.from, |found| self.function(&modules, &found))),
            };
            let callee = places.entry(arc.to, |found| self.function(&modules, &found));
            let site = if caller.is_some() { arc.from.address } else { 0 };
            self.recording.calls.push(Calls { program, caller, site, callee, calls: arc.count });
        }
        if let Some(times) = &profile.times {
            times::add(self, program, profile, times, &modules, &mut places);
        }
        if let Some(known) = self.recording.programs.get_mut(program as usize) {
            known.processes = known.processes.saturating_add(processes.number);
            known.pid = processes.pid;
            known.elsewhere = known.elsewhere.saturating_add(elsewhere);
            known.overhead = known.overhead.saturating_add(own);
        }
    }

    /// Returns the index of a module.
    fn module(&mut self, module: Module) -> u32 {
        let all = &mut self.recording.modules;
        *self.modules.entry((module.name.clone(), module.build_id.clone())).or_insert_with(|| {
            all.push(module);
            all.len() as u32 - 1
        })
    }

    /// Returns the index of a function. `modules` are the indexes of the profile's modules.
    fn function(&mut self, modules: &[u32], found: &Found) -> u32 {
        let module = modules.get(found.module as usize).copied().unwrap_or(0);
        let all = &mut self.recording.functions;
        *self.functions.entry((module, found.address)).or_insert_with(|| {
            let (address, size, name) = (found.address, found.size, found.name.clone().into_owned());
            all.push(Function { name, module, address, size, ..Function::default() });
            all.len() as u32 - 1
        })
    }

    /// Returns the index of a function of which no more than the file name of its module is known.
    fn named(&mut self, module: &str, function: &str) -> u32 {
        let name = if module.is_empty() { MEMORY } else { module };
        let module = self.module(Module { name: name.to_owned(), ..Module::default() });
        let all = &mut self.recording.functions;
        *self.named.entry((module, function.to_owned())).or_insert_with(|| {
            all.push(Function { name: function.to_owned(), module, ..Function::default() });
            all.len() as u32 - 1
        })
    }
}

/// Returns what the recording has of a profile's module.
fn module_of(profile: &Profile, of: &model::Module) -> Module {
    match of.library {
        Some(library) => module(&library.binary.display().to_string(), of.program),
        None => module(&profile.path, of.program),
    }
}

/// Returns what the recording has of a file.
fn module(path: &str, planned: &Planned) -> Module {
    let build_id = planned.image().and_then(|image| image.facts.build_id.clone()).unwrap_or_default();
    let (start, limit) = planned.shape.text;
    let segment = planned.subject.code.iter().find(|segment| segment.address <= start);
    // The file may be read in another folder.
    let absolute = std::path::absolute(path).map(|path| path.display().to_string());
    Module {
        name: absolute.unwrap_or_else(|_| path.to_owned()),
        build_id,
        start: segment.map_or(start, |segment| segment.address),
        limit: segment.map_or(limit, |segment| segment.address + segment.len),
        offset: segment.map_or(0, |segment| segment.offset),
    }
}
