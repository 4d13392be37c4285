//! What the processes of one program have counted, by module, while it is collected.
//!
//! This is not the model of a run, which is [`gmon_run::Recording`]: `recorder` adds each program's profile to it at the end. A
//! profile has what a recording has no place for. Counts are by address, so that those of thousands of processes are added up
//! quickly, and those of before an attachment are subtracted; functions are known by the plan of their module, basic blocks by
//! their counters, durations in ticks; and there is the program's own view of its calls, which only gmon.out has. The live view
//! reads a profile too, many times in a run.
//!
//! All addresses are link addresses.

use std::collections::HashMap;

use gmon::Block;
use serde::{Deserialize, Serialize};

use crate::profile::place::GeneratedNames;
pub(crate) use crate::profile::place::{GENERATED, ModuleIndex, NOWHERE, PROGRAM, Place, UnhookedPlace};
use crate::profile::stacks::Tree;
use crate::profile::times::Times;
use crate::profile::totals::Totals;
use crate::profile::values::{self, Values};
use crate::program::library::Library;
use crate::program::planned::Planned;
use crate::sampling::histogram::Histogram;
use crate::store::shape;

/// What one process has counted.
pub(crate) struct Profile {
    /// The file name of the program.
    pub(crate) name: String,
    /// The path of the program.
    pub(crate) path: String,
    /// The files whose code was profiled: first the program, then the libraries in the order in which they were first
    /// loaded.
    pub(crate) modules: Vec<Module>,
    /// The calls, by caller and called function, with the true callers. The arcs are sorted, each pair once, unless the profile
    /// `is_part` of another one, or others were added to it: then [`Profile::settle`] does that.
    pub(crate) arcs: Vec<Arc>,
    /// The calls of the program's functions as the program's own view has them: the caller is the newest live function of
    /// the program, whatever libraries are between. Sorted in the same way. Empty unless the profile `has_own`.
    pub(crate) own: Vec<gmon::Arc>,
    /// Whether a gmon.out may be made of the profile, which has the program's own view.
    pub(super) has_own: bool,
    /// The calls of further processes, which [`Profile::settle`] adds to both.
    pub(super) totals: Option<Totals>,
    /// Whether the profile is only needed as a part of one of several processes, so that its calls may be unsorted.
    pub(super) is_part: bool,
    /// The samples in code that is not hooked, by place.
    pub(crate) unhooked: Vec<UnhookedPlace>,
    /// The names of the functions of [`GENERATED`] that have made calls.
    pub(crate) generated: GeneratedNames,
    /// The stacks of samples, as far as they are known.
    pub(crate) stacks: Tree,
    /// The samples in the agent's library.
    pub(crate) in_agent: u64,
    /// The number of threads that have counted.
    pub(crate) threads: u64,
    /// The samples per second of CPU time; 0 means that none were taken.
    pub(crate) rate: u32,
    /// The measured durations; `None` if nothing was measured.
    pub(crate) times: Option<Times>,
    /// The values of arguments and results.
    pub(crate) values: Vec<Values>,
}

/// What was counted in the code of one file.
pub(crate) struct Module {
    /// The file, its functions and its plan.
    pub(crate) program: &'static Planned<'static, 'static>,
    /// The library that it is; `None` for the program.
    pub(crate) library: Option<&'static Library>,
    /// The samples by address.
    pub(crate) samples: Histogram,
    /// What the basic-block counters say.
    pub(crate) counters: Counters,
}

/// The values of a module's basic-block counters. The plan has the basic blocks that each of them stands for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// The values, in the plan's order; empty if basic blocks were not counted.
    pub(crate) values: Vec<u64>,
    /// The link address of the instruction at which the process was killed, if it is in a function whose
    /// basic blocks are counted.
    pub(crate) stopped: Option<u64>,
}

impl Counters {
    pub(crate) fn add(&mut self, other: Counters) {
        self.values.resize(self.values.len().max(other.values.len()), 0);
        for (sum, value) in self.values.iter_mut().zip(other.values) {
            *sum = sum.saturating_add(value);
        }
        self.stopped = self.stopped.or(other.stopped);
    }
}

/// How often one call site has called one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Arc {
    pub(crate) from: Place,
    pub(crate) to: Place,
    pub(crate) count: u64,
}

impl Module {
    /// Returns the number of samples in what gprofinject has added to the module's code: thunks and stubs.
    pub(crate) fn samples_in_hooks(&self) -> u64 {
        let own = self.samples.places().filter(|&(place, _)| self.program.text_address(place).is_none());
        own.fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// Returns the number of samples in the module's own code.
    pub(crate) fn samples_inside(&self) -> u64 {
        self.samples.inside().saturating_sub(self.samples_in_hooks())
    }

    /// Returns where the function begins in whose own code a place is. What gprofinject has added belongs to none.
    pub(crate) fn function_at(&self, place: shape::Place) -> Option<u64> {
        // What lies behind the end of a function, such as a stub of the PLT, is none of its code.
        self.program.function_at(self.program.text_address(place)?).map(|function| function.address)
    }

    /// Returns how often each basic block was executed, and how many were executed at all. There is nothing if
    /// basic blocks were not counted.
    pub(crate) fn blocks(&self) -> (Vec<Block>, usize) {
        let plan = self.program.plan.as_ref().filter(|_| !self.counters.values.is_empty());
        let Some(plan) = plan else { return (Vec::new(), 0) };
        let (counts, executed) = plan.block_counts(&self.counters.values, self.counters.stopped);
        (counts.into_iter().map(|(addr, count)| Block { addr, count }).collect(), executed)
    }
}

impl Profile {
    /// Returns the file name of a module.
    pub(crate) fn name_of(&self, module: &Module) -> &str {
        module.library.map_or(&self.name, |library| library.name())
    }

    /// Returns the profile of a process that has counted nothing yet. Its only module is the program.
    pub(crate) fn of_program(program: &'static Planned<'static, 'static>, rate: u32) -> Profile {
        let samples = Histogram::new(program.shape);
        let module = Module { program, library: None, samples, counters: Counters::default() };
        Profile {
            name: String::new(),
            path: String::new(),
            modules: vec![module],
            arcs: Vec::new(),
            own: Vec::new(),
            has_own: true,
            totals: None,
            is_part: false,
            unhooked: Vec::new(),
            generated: GeneratedNames::default(),
            stacks: Tree::default(),
            in_agent: 0,
            threads: 0,
            rate,
            times: None,
            values: Vec::new(),
        }
    }

    /// Returns the index of a library's module, which is added if there is none yet.
    pub(crate) fn module_of(&mut self, library: &'static Library) -> ModuleIndex {
        let is_it = |module: &Module| module.library.is_some_and(|known| known.number == library.number);
        let known = self.modules.iter().position(is_it);
        let index = known.unwrap_or_else(|| {
            let samples = Histogram::new(library.planned.shape);
            let (program, counters) = (library.planned, Counters::default());
            self.modules.push(Module { program, library: Some(library), samples, counters });
            self.modules.len() - 1
        });
        index as ModuleIndex
    }

    /// Sorts the calls, and adds up those of each pair.
    pub(crate) fn sum_arcs(&mut self) {
        sum(&mut self.arcs, |arc| (arc.from, arc.to), |arc| &mut arc.count);
    }

    /// Counts samples at a place. Returns whether its module has such a place.
    pub(crate) fn add_samples(&mut self, place: Place, count: u64) -> bool {
        let module = self.modules.get_mut(place.module as usize);
        module.is_some_and(|module| module.samples.add_many(place.address, count))
    }

    /// Returns the number of counted calls.
    pub(crate) fn calls(&self) -> u64 {
        let further = self.totals.iter().flat_map(|totals| &totals.arcs.all).map(|&(.., count)| count);
        self.arcs.iter().map(|arc| arc.count).chain(further).fold(0, u64::saturating_add)
    }

    /// Adds what another process that runs the same program has counted. The calls are in their lists when [`Profile::settle`] has
    /// added them.
    pub(crate) fn add(&mut self, other: Profile) {
        // The libraries of the other process may have been loaded in another order.
        let indices: Vec<ModuleIndex> = other
            .modules
            .iter()
            .map(|module| module.library.map_or(PROGRAM, |library| self.module_of(library)))
            .collect();
        let generated: Vec<Place> = other.generated.iter().map(|name| self.generated.place(name)).collect();
        let place = |place: Place| match indices.get(place.module as usize) {
            Some(&module) => Place { module, ..place },
            None if place.module == GENERATED => {
                generated.get(place.address as usize).copied().unwrap_or(Place::NOWHERE)
            }
            None => place,
        };
        let totals = self.totals.get_or_insert_default();
        let Totals { arcs, own } = other.totals.unwrap_or_default();
        totals.arcs.rewind();
        let further = arcs.all.into_iter().map(|(from, to, count)| Arc { from, to, count });
        for Arc { from, to, count } in other.arcs.into_iter().chain(further) {
            totals.arcs.add(place(from), place(to), count);
        }
        totals.own.rewind();
        let further = own.all.into_iter().map(|(from, to, count)| gmon::Arc { from, to, count });
        for gmon::Arc { from, to, count } in other.own.into_iter().chain(further) {
            totals.own.add(from, to, count);
        }
        if !other.unhooked.is_empty() {
            self.unhooked.extend(other.unhooked);
            sum(
                &mut self.unhooked,
                |place| (place.module.path.clone(), place.address, place.function.clone()),
                |place| &mut place.samples,
            );
        }
        self.stacks.add_all(&other.stacks, place);
        self.in_agent = self.in_agent.saturating_add(other.in_agent);
        self.threads = self.threads.saturating_add(other.threads);
        let threads = self.times.as_ref().map_or(0, |times| times.threads.len()) as u32;
        let moved = other.values.into_iter().map(|mut of| {
            of.key.function = place(of.key.function);
            of.key.caller = of.key.caller.map(place);
            of.key.path = of.key.path.map(|(thread, node)| (threads.saturating_add(thread), node));
            of
        });
        values::add(&mut self.values, moved);
        match (&mut self.times, other.times) {
            (Some(times), Some(other)) => times.add(other, place),
            (times @ None, other) => *times = other,
            (Some(_), None) => {}
        }
        for (module, &index) in other.modules.into_iter().zip(&indices) {
            if let Some(own) = self.modules.get_mut(index as usize) {
                own.samples.add_all(&module.samples);
                own.counters.add(module.counters);
            }
        }
    }

    /// Sorts the calls, and adds up those of each pair.
    pub(crate) fn settle(&mut self) {
        let Totals { arcs, own } = self.totals.take().unwrap_or_default();
        self.arcs.extend(arcs.all.into_iter().map(|(from, to, count)| Arc { from, to, count }));
        self.sum_arcs();
        self.own.extend(own.all.into_iter().map(|(from, to, count)| gmon::Arc { from, to, count }));
        sum(&mut self.own, |arc| (arc.from, arc.to), |arc| &mut arc.count);
    }

    /// Returns the samples in each function itself.
    pub(crate) fn samples_by_function(&self) -> HashMap<Place, u64> {
        let mut sums: HashMap<Place, u64> = HashMap::new();
        for (index, module) in (0..).zip(&self.modules) {
            for (place, count) in module.samples.places() {
                if let Some(address) = module.function_at(place) {
                    *sums.entry(Place { module: index, address }).or_default() += count;
                }
            }
        }
        sums
    }

    /// Returns the number of samples in hooked modules.
    pub(crate) fn samples_inside(&self) -> u64 {
        self.modules.iter().fold(0, |sum, module| sum.saturating_add(module.samples_inside()))
    }

    /// Returns the number of samples in the program itself.
    pub(crate) fn samples_in_program(&self) -> u64 {
        self.modules.first().map_or(0, Module::samples_inside)
    }

    /// Returns the number of samples in gprofinject's own code that are outside of the program and of what hooks it: in the
    /// agent's library, and in what hooks libraries.
    pub(crate) fn own_samples_outside(&self) -> u64 {
        let libraries = self.modules.iter().filter(|module| module.library.is_some());
        libraries.fold(self.in_agent, |sum, module| sum.saturating_add(module.samples_in_hooks()))
    }

    /// Subtracts what an earlier profile of the same process has counted. The number of threads stays.
    pub(crate) fn subtract(&mut self, before: &Profile) {
        subtract(&mut self.arcs, &before.arcs, |arc| (arc.from, arc.to), |arc| &mut arc.count);
        subtract(&mut self.own, &before.own, |arc| (arc.from, arc.to), |arc| &mut arc.count);
        if let (Some(times), Some(before)) = (&mut self.times, &before.times) {
            times.subtract(before);
        }
        values::subtract(&mut self.values, &before.values);
        for (module, before) in self.modules.iter_mut().zip(&before.modules) {
            for (count, before) in module.counters.values.iter_mut().zip(&before.counters.values) {
                *count = count.saturating_sub(*before);
            }
            module.samples.subtract(&before.samples);
        }
    }
}

/// Sorts a list and adds up the counts of entries with equal keys.
fn sum<A, K: Ord>(list: &mut Vec<A>, key: impl Fn(&A) -> K, count: impl Fn(&mut A) -> &mut u64) {
    // If the list consists of sorted runs, a stable sort merges them.
    list.sort_by_key(&key);
    list.dedup_by(|next, first| {
        let same = key(next) == key(first);
        if same {
            let sum = count(first).saturating_add(*count(next));
            *count(first) = sum;
        }
        same
    });
}

/// Subtracts the counts of earlier arcs. Both lists are sorted.
fn subtract<A: Copy, K: Ord>(
    arcs: &mut Vec<A>,
    before: &[A],
    key: impl Fn(&A) -> K,
    count: impl Fn(&mut A) -> &mut u64,
) {
    let mut old = before.iter().copied().peekable();
    for arc in arcs.iter_mut() {
        while old.next_if(|old| key(old) < key(arc)).is_some() {}
        if let Some(mut old) = old.next_if(|old| key(old) == key(arc)) {
            let left = count(arc).saturating_sub(*count(&mut old));
            *count(arc) = left;
        }
    }
    arcs.retain(|arc| *count(&mut arc.clone()) > 0);
}
