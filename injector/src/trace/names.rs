//! Finds the functions of a process by the numbers in its events.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use gmon_trace::value::Signature;
use gprofinject_abi::plan::LIBRARIES;
use gprofinject_abi::region::LoadRecord;

use crate::program::filters::Filters;
use crate::program::library::Library;
use crate::program::planned::Planned;

/// A function, with the data that the trace defines for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// The name as in the symbol table.
    pub(crate) name: String,
    /// The path of the module.
    pub(crate) module: String,
    /// The link address.
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The kinds of the arguments and of the result.
    pub(crate) signature: Option<Signature>,
}

/// The libraries that the processes of a run may have, by the number of their plan.
///
/// The recorder shares this list with the thread that plans libraries. That thread adds a library before a process may call the
/// library's functions, so the recorder finds the function of each event that it reads.
#[derive(Clone, Default)]
pub(crate) struct Libraries(Arc<Mutex<HashMap<u32, &'static Library>>>);

impl Libraries {
    pub(crate) fn add(&self, library: &'static Library) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(library.number, library);
    }

    fn get(&self, plan: u32) -> Option<&'static Library> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&plan).copied()
    }
}

/// The data by which the number of a function is resolved.
pub(crate) struct Known<'a> {
    pub(crate) libraries: &'a Libraries,
    /// The functions whose calls trigger the writing of the trace.
    pub(crate) triggers: &'a [Filters],
    /// Reads the process's table of libraries.
    pub(crate) loads: &'a dyn Fn() -> Vec<LoadRecord>,
}

/// The function numbers of a process that have been resolved.
pub(crate) struct Numbers {
    binary: String,
    planned: &'static Planned<'static, 'static>,
    loads: Vec<LoadRecord>,
    known: HashSet<u32>,
    /// A cache of resolved numbers, each at the index of its lower bits.
    recent: Vec<u32>,
    triggers: HashSet<u32>,
    /// The count of numbers that are not those of functions. A process can write any numbers.
    unknown: u32,
}

/// The number of invalid numbers after which no further ones are looked up.
const UNKNOWN: u32 = 1000;
/// The size of the cache of resolved numbers.
const RECENT: usize = 1 << 12;

impl Numbers {
    pub(crate) fn new(binary: String, planned: &'static Planned<'static, 'static>) -> Numbers {
        Numbers {
            binary,
            planned,
            loads: Vec::new(),
            known: HashSet::new(),
            recent: vec![u32::MAX; RECENT],
            triggers: HashSet::new(),
            unknown: 0,
        }
    }

    /// Returns whether a call of the function with this number triggers the writing of the trace.
    pub(crate) fn is_trigger(&self, number: u32) -> bool {
        !self.triggers.is_empty() && self.triggers.contains(&number)
    }

    /// Returns the function with this number when the number occurs for the first time.
    pub(crate) fn learn(&mut self, number: u32, by: &Known<'_>) -> Option<Name> {
        let recent = self.recent.get_mut(number as usize % RECENT)?;
        if *recent == number {
            return None;
        }
        *recent = number;
        if self.known.contains(&number) || self.unknown >= UNKNOWN {
            return None;
        }
        let found = self.find(number, by);
        match found {
            Some(_) => drop(self.known.insert(number)),
            None => self.unknown += 1,
        }
        found
    }

    fn find(&mut self, number: u32, by: &Known<'_>) -> Option<Name> {
        if number < LIBRARIES {
            return self.of(number, number, self.planned, self.binary.clone(), by.triggers);
        }
        if load_of(&self.loads, number).is_none() {
            self.loads = (by.loads)();
        }
        let load = load_of(&self.loads, number)?;
        let library = by.libraries.get(load.plan)?;
        let (index, binary) = (number - load.first_function, library.binary.display().to_string());
        self.of(number, index, library.planned, binary, by.triggers)
    }

    fn of(
        &mut self,
        number: u32,
        index: u32,
        planned: &'static Planned<'static, 'static>,
        module: String,
        triggers: &[Filters],
    ) -> Option<Name> {
        let address = planned.entry(index)?;
        let function = planned.function_at(address);
        let (name, size) = function.as_ref().map_or((String::new(), 0), |f| (f.name.to_owned(), f.size));
        if let Some(function) = function {
            let file = module.rsplit('/').next().unwrap_or(&module);
            let modules = [module.as_str(), file];
            if triggers.iter().any(|filters| filters.select(&modules, function.names())) {
                self.triggers.insert(number);
            }
        }
        Some(Name { name, module, address, size, signature: planned.signature(index).cloned() })
    }
}

/// Returns the library to which a number belongs. The table is not trusted, because the process can write to it.
fn load_of(loads: &[LoadRecord], number: u32) -> Option<&LoadRecord> {
    loads.iter().find(|load| {
        load.first_function >= LIBRARIES
            && number.checked_sub(load.first_function).is_some_and(|n| n < load.functions)
    })
}
