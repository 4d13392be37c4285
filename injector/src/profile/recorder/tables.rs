//! The tables of a recording, with what finds their entries again.

use std::collections::HashMap;

use gmon_run::{Function, Module, Recording};

use crate::profile::recorder::places::Found;
use crate::profile::totals::Seed;

/// The name of the module of a function in memory without a file.
const MEMORY: &str = "[memory]";

/// The tables.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) recording: Recording,
    /// By path, build-id and digest.
    modules: HashMap<(String, Vec<u8>, u64), u32>,
    /// By module and link address.
    functions: HashMap<(u32, u64), u32, Seed>,
    /// By module and name, where only these are known.
    named: HashMap<(u32, String), u32>,
}

impl Tables {
    /// Returns the tables of a recording that has no entries yet.
    pub(super) fn of(recording: Recording) -> Tables {
        Tables { recording, ..Tables::default() }
    }

    /// Returns the index of a module.
    pub(super) fn module(&mut self, module: Module) -> u32 {
        let all = &mut self.recording.modules;
        *self.modules.entry((module.name.clone(), module.build_id.clone(), module.digest)).or_insert_with(
            || {
                all.push(module);
                all.len() as u32 - 1
            },
        )
    }

    /// Returns the index of a function. `modules` are the indexes of the profile's modules.
    pub(super) fn function(&mut self, modules: &[u32], found: &Found) -> u32 {
        let module = modules.get(found.module as usize).copied().unwrap_or(0);
        let all = &mut self.recording.functions;
        *self.functions.entry((module, found.address)).or_insert_with(|| {
            let (address, size, name) = (found.address, found.size, found.name.clone().into_owned());
            all.push(Function { name, module, address, size, ..Function::default() });
            all.len() as u32 - 1
        })
    }

    /// Returns the index of a function of which no more than the file name of its module is known.
    pub(super) fn named(&mut self, module: &str, function: &str) -> u32 {
        let name = if module.is_empty() { MEMORY } else { module };
        let module = self.module(Module { name: name.to_owned(), ..Module::default() });
        let all = &mut self.recording.functions;
        *self.named.entry((module, function.to_owned())).or_insert_with(|| {
            all.push(Function { name: function.to_owned(), module, ..Function::default() });
            all.len() as u32 - 1
        })
    }
}
