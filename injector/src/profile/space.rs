//! The address space of a process, as far as its calls are counted: the program, and the libraries that were hooked.
//!
//! Function numbers and keys, which agents write, enter; places leave, which consist of a module and a link address.

use std::collections::HashMap;
use std::ops::Range;

use gmon::Arc;
use gprofinject_abi::plan::LIBRARIES;
use gprofinject_abi::region::{
    CALLER, Load, LoadRecord, NO_FUNCTION, OWN, RETURN_ADDRESS, ROOT, SITE, SLOTS, TAIL, TWICE, is_archived,
};

use crate::profile::falls;
use crate::profile::homes::Homes;
use crate::profile::model::{self, GENERATED, ModuleIndex, PROGRAM, Place, Profile};
use crate::program::arguments::Kept;
use crate::program::library::Library;
use crate::program::numbered::Numbered;
use crate::program::planned::Planned;
use crate::store::region::layout::AgentReport;
use crate::store::region::read::Counter;

/// The hooked modules of a process.
pub(crate) struct Space {
    pub(crate) program: &'static Planned<'static, 'static>,
    /// Runtime address minus link address of the program.
    bias: u64,
    /// The runtime addresses of the agent's library.
    pub(crate) agent: Range<u64>,
    /// What is charged with calls that nothing in the program makes.
    root: Place,
    /// The libraries, in the order of their function numbers.
    loads: Vec<Loaded>,
    /// The extents of their texts, sorted, with their indices in `loads`.
    texts: Vec<(u64, u64, usize)>,
}

/// A library at the place where a process has loaded it.
struct Loaded {
    /// Its index in the process's table.
    index: u32,
    module: ModuleIndex,
    planned: &'static Planned<'static, 'static>,
    at: LoadRecord,
}

impl Loaded {
    fn offset_in_arena(&self, address: u64) -> Option<u64> {
        address.checked_sub(self.at.arena).filter(|offset| *offset < self.at.arena_len)
    }

    /// Returns what an address in the arena would be if the arena were as far from the library as in the plan, and other
    /// addresses unchanged.
    fn as_planned(&self, address: u64) -> u64 {
        match self.offset_in_arena(address) {
            Some(offset) => self.planned.shape.arena.wrapping_add(offset).wrapping_add(self.at.bias),
            None => address,
        }
    }
}

/// What a counter says.
pub(crate) struct Counted {
    /// The arc with the true caller.
    pub(crate) whole: Option<model::Arc>,
    /// The arc in the program's own view.
    pub(crate) own: Option<Arc>,
}

impl Space {
    /// Returns the address space of the process of a profile, to which the modules of its libraries are added. `loads` are
    /// the entries of its region file, and `report` is what its agent says of the process.
    pub(crate) fn new(
        profile: &mut Profile,
        libraries: &Numbered<Library>,
        report: &AgentReport,
        loads: &[(u32, LoadRecord)],
    ) -> Space {
        let (bias, agent) = (report.bias, report.agent.0..report.agent.1);
        let program = profile.modules[PROGRAM as usize].program;
        let loads = loads.iter().filter_map(|&(index, at)| {
            let library = libraries.get(at.plan)?;
            let functions = library.planned.plan.as_ref().map_or(0, |plan| plan.records.len());
            // The process can write to its table.
            let is_it = at.first_function >= LIBRARIES && at.functions as usize == functions;
            is_it.then(|| Loaded { index, module: profile.module_of(library), planned: library.planned, at })
        });
        let loads: Vec<Loaded> = loads.collect();
        let mut texts: Vec<(u64, u64, usize)> = Vec::new();
        for (index, load) in loads.iter().enumerate() {
            // The keys of archived ones name the library.
            if load.at.state.get() != Some(Load::Archived) {
                texts.push((load.at.lo, load.at.hi, index));
            }
        }
        texts.sort_unstable();
        let root = Place { module: PROGRAM, address: program.root() };
        Space { program, bias, agent, root, loads, texts }
    }

    /// Returns the entries of the process's table of libraries, each with the index of the library's module.
    pub(crate) fn loads(&self) -> impl Iterator<Item = (ModuleIndex, &LoadRecord)> {
        self.loads.iter().map(|load| (load.module, &load.at))
    }

    /// Returns what is charged with calls that nothing in the program makes.
    pub(crate) fn root(&self) -> Place {
        self.root
    }

    /// Returns the place of a runtime address in the program, in a library, or in the arena of one of them.
    pub(crate) fn place(&self, address: u64) -> Option<Place> {
        let in_program = address.wrapping_sub(self.bias);
        match self.program.shape.place(in_program) {
            Some(_) => Some(Place { module: PROGRAM, address: in_program }),
            None => self.in_library(address),
        }
    }

    /// Returns the runtime address minus the link address in a module.
    pub(crate) fn bias(&self, module: ModuleIndex) -> Option<u64> {
        if module == PROGRAM {
            return Some(self.bias);
        }
        let is_hooked = |load: &&Loaded| load.module == module && load.at.state.get() == Some(Load::Hooked);
        self.loads.iter().find(is_hooked).map(|load| load.at.bias)
    }

    /// Returns which functions' home slots are where in a thread's counters.
    pub(crate) fn homes(&self) -> Homes {
        let mut homes = Homes::default();
        homes.add(self.program, 0, 0);
        for load in &self.loads {
            let shift = u64::from(load.at.first_slot).wrapping_sub(SLOTS);
            homes.add(load.planned, shift, load.at.first_function);
        }
        homes
    }

    fn load_of(&self, function: u32) -> Option<&Loaded> {
        let after = self.loads.partition_point(|load| load.at.first_function <= function);
        let load = self.loads.get(after.checked_sub(1)?)?;
        (function - load.at.first_function < load.at.functions).then_some(load)
    }

    /// Returns the entry of a hooked function.
    pub(crate) fn entry(&self, function: u32) -> Option<Place> {
        if function < LIBRARIES {
            return Some(Place { module: PROGRAM, address: self.program.entry(function)? });
        }
        let load = self.load_of(function)?;
        let address = load.planned.entry(function - load.at.first_function)?;
        Some(Place { module: load.module, address })
    }

    /// Returns the values of a function that are kept: see [`Planned::kept`].
    pub(crate) fn kept(&self, function: u32, is_result: bool) -> Option<&'static [Kept]> {
        if function < LIBRARIES {
            return self.program.kept(function, is_result);
        }
        let load = self.load_of(function)?;
        load.planned.kept(function - load.at.first_function, is_result)
    }

    /// Returns the runtime addresses of the exit labels of functions, with their entries, sorted by the lower halves of the addresses.
    pub(crate) fn exit_labels(&self) -> Vec<(u64, Place)> {
        let program = (PROGRAM, self.program, self.program.shape.arena.wrapping_add(self.bias));
        let libraries = self.loads.iter().map(|load| (load.module, load.planned, load.at.arena));
        let mut labels = Vec::new();
        for (module, planned, arena) in libraries.chain([program]) {
            let records = planned.plan.as_ref().map_or(&[][..], |plan| &plan.records);
            for record in records.iter().filter(|record| record.exit != 0) {
                let place = Place { module, address: record.entry };
                labels.push((arena.wrapping_add(record.exit.into()), place));
            }
        }
        labels.sort_unstable_by_key(|(address, _)| *address as u32);
        labels
    }

    /// Returns the address of the call that has left this runtime return address.
    pub(crate) fn caller(&self, return_address: u64) -> Option<Place> {
        if let Some(address) = self.program.caller(return_address.wrapping_sub(self.bias)) {
            return Some(Place { module: PROGRAM, address });
        }
        // A return address may be the first byte after the text.
        let after = self.texts.partition_point(|&(lo, ..)| lo < return_address);
        if let Some(&(_, hi, index)) = self.texts.get(after.wrapping_sub(1))
            && return_address <= hi
        {
            return self.caller_in(self.loads.get(index)?, return_address);
        }
        let load = self.loads.iter().find(|load| load.offset_in_arena(return_address).is_some())?;
        self.caller_in(load, load.as_planned(return_address))
    }

    /// Returns the address of the call in an archived key; see [`ARCHIVED`](gprofinject_abi::region::ARCHIVED).
    fn archived(&self, index: u32, key: u64) -> Option<Place> {
        let load = self.loads.iter().find(|load| load.index == index)?;
        self.caller_in(load, key & RETURN_ADDRESS)
    }

    fn caller_in(&self, load: &Loaded, return_address: u64) -> Option<Place> {
        let address = load.planned.caller(return_address.wrapping_sub(load.at.bias))?;
        Some(Place { module: load.module, address })
    }

    /// Returns the place of a runtime address in the arena of a library.
    pub(crate) fn in_arena(&self, address: u64) -> Option<Place> {
        self.loads.iter().find_map(|load| {
            let address = load.planned.shape.arena.wrapping_add(load.offset_in_arena(address)?);
            Some(Place { module: load.module, address })
        })
    }

    /// Returns the place of a runtime address in the arena of a library, or in its text.
    pub(crate) fn in_library(&self, address: u64) -> Option<Place> {
        let in_text = |load: &&Loaded| {
            (load.at.lo..load.at.hi).contains(&address) && load.at.state.get() == Some(Load::Hooked)
        };
        self.in_arena(address).or_else(|| {
            let load = self.loads.iter().find(in_text)?;
            let address = address.wrapping_sub(load.at.bias);
            Some(Place { module: load.module, address })
        })
    }

    /// Returns the place from which a tail call comes: that of the only jump that can have made it, otherwise the
    /// caller's entry.
    fn tail_caller(&self, caller: u32, callee: u32) -> Option<Place> {
        let entry = self.entry(caller)?;
        if caller < LIBRARIES && callee < LIBRARIES {
            let address = self.program.tail_caller(caller, callee)?;
            return Some(Place { module: PROGRAM, address });
        }
        let load = self.load_of(caller);
        let site = load
            .filter(|load| callee.wrapping_sub(load.at.first_function) < load.at.functions)
            .and_then(|load| {
                let first = load.at.first_function;
                load.planned.tail_caller(caller - first, callee - first)
            });
        Some(Place { address: site.unwrap_or(entry.address), ..entry })
    }

    /// Returns what a counter says. There is nothing if no module has a function of the counter's number, because the
    /// program has overwritten the counter, and if the counted event was not a call.
    pub(crate) fn counted(&self, counter: &Counter) -> Counted {
        const NOTHING: Counted = Counted { whole: None, own: None };
        let Counter { function, key, count } = *counter;
        let Some(to) = self.entry(function) else { return NOTHING };
        if self.is_fall(counter, to) {
            return NOTHING;
        }
        let is_own = key & OWN != 0 && key & SITE == 0 && key != ROOT;
        let key = if is_own { key & !OWN } else { key };
        let number = (key & !(CALLER | TAIL)) as u32;
        let known = match key {
            ROOT => None,
            key if key & CALLER != 0 => {
                Some(number).filter(|&n| n != NO_FUNCTION).and_then(|n| self.entry(n))
            }
            key if key & TAIL != 0 => self.tail_caller(number, function),
            key if key & SITE != 0 => self.site(function, key & !SITE),
            key => match is_archived(key) {
                Some(index) => self.archived(index, key),
                None => self.caller(key & !TWICE),
            },
        };
        // Code that is in no hooked module has a return address alone.
        let is_address = known.is_none() && key & !(RETURN_ADDRESS | TWICE) == 0 && key & RETURN_ADDRESS != 0;
        let outside = is_address.then_some(Place { module: GENERATED, address: key & RETURN_ADDRESS });
        let root = self.root;
        let is_of_program = to.module == PROGRAM;
        // A caller in the program, or none, is the same in both views. A call from a library that is counted once, by its
        // return address, has no caller in the program's own view: no shadow stack tells which function that is.
        let is_in_both = is_of_program
            && (known.is_none_or(|from| from.module == PROGRAM) || key & (CALLER | TAIL | SITE | TWICE) == 0);
        let own = (is_of_program && (is_own || is_in_both)).then(|| {
            let from = known.filter(|from| from.module == PROGRAM).unwrap_or(root);
            Arc { from: from.address, to: to.address, count }
        });
        let whole = (!is_own).then(|| {
            let from = known.or(outside).unwrap_or(if is_of_program { root } else { Place::NOWHERE });
            model::Arc { from, to, count }
        });
        Counted { whole, own }
    }

    /// Returns the place of a jump to a function, by the address in a key.
    fn site(&self, function: u32, address: u64) -> Option<Place> {
        if function < LIBRARIES {
            return Some(Place { module: PROGRAM, address });
        }
        Some(Place { module: self.load_of(function)?.module, address })
    }

    /// Whether a counter has counted how often control ran on into a function.
    fn is_fall(&self, counter: &Counter, to: Place) -> bool {
        if counter.function < LIBRARIES {
            return falls::is_one(counter, to.address, self.program, self.bias);
        }
        let Some(load) = self.load_of(counter.function) else { return false };
        let first = load.at.first_function;
        let is_tail = counter.key & (CALLER | TAIL) == TAIL;
        let is_return_address = counter.key & !(RETURN_ADDRESS | TWICE) == 0;
        let key = match (counter.key & !TAIL) as u32 {
            _ if is_return_address => load.as_planned(counter.key),
            // The jump came from another module.
            number if is_tail && number.wrapping_sub(first) >= load.at.functions => return false,
            number if is_tail => TAIL | u64::from(number - first),
            _ => counter.key,
        };
        let local = Counter { function: counter.function - first, key, count: counter.count };
        falls::is_one(&local, to.address, load.planned, load.at.bias)
    }

    /// Whether a module has entry hooks alone, so that [`falls::ran_on`] may find something.
    pub(crate) fn has_entry_hooks(&self) -> bool {
        let mut all = self.loads.iter().map(|load| load.planned).chain([self.program]);
        all.any(|planned| planned.hooks() == "entry")
    }

    /// Removes from arcs what [`falls::ran_on`] finds, in each module. The arcs stay sorted.
    pub(crate) fn without_falls(&self, arcs: Vec<model::Arc>) -> Vec<model::Arc> {
        let mut modules: HashMap<ModuleIndex, &'static Planned<'static, 'static>> =
            self.loads.iter().map(|load| (load.module, load.planned)).collect();
        modules.insert(PROGRAM, self.program);
        modules.retain(|_, planned| planned.hooks() == "entry");
        if modules.is_empty() {
            return arcs;
        }
        let counts: HashMap<(Place, Place), u64> =
            arcs.iter().map(|arc| ((arc.from, arc.to), arc.count)).collect();
        let rest = arcs.into_iter().filter_map(|arc| {
            let ran_on = modules.get(&arc.to.module).and_then(|planned| {
                // A call from another module goes through a pointer.
                let site = (arc.from.module == arc.to.module).then_some(arc.from.address);
                let before = Place { address: falls::ran_on(planned, site, arc.to.address)?, ..arc.to };
                counts.get(&(arc.from, before)).copied()
            });
            let count = arc.count.saturating_sub(ran_on.unwrap_or(0));
            Some(model::Arc { count, ..arc }).filter(|arc| arc.count > 0)
        });
        rest.collect()
    }
}
