//! The tables of a recording, with what finds their entries again.

use std::collections::HashMap;
use std::sync::Arc;

use gmon_run::{Function, Module, Process, Recording};

use crate::profile::recorder::places::Found;
use crate::profile::totals::Seed;
use crate::python;

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
    /// Those of Python by name and file: two files may have functions of the same name.
    python: HashMap<Arc<python::Function>, u32>,
    /// The processes of the program that is being added, by number.
    processes: HashMap<u32, usize>,
}

impl Tables {
    /// Returns the tables of a recording that has no entries yet.
    pub(super) fn of(recording: Recording) -> Tables {
        Tables { recording, ..Tables::default() }
    }

    /// Notes that the processes from an index on are those of the program that is being added.
    pub(super) fn begin_processes(&mut self, first: usize) {
        self.processes = (first..)
            .zip(self.recording.processes.iter().skip(first))
            .map(|(index, known)| (known.pid, index))
            .collect();
    }

    /// Returns the process of this number of the program that is being added.
    pub(super) fn process(&mut self, pid: u32) -> Option<&mut Process> {
        self.recording.processes.get_mut(*self.processes.get(&pid)?)
    }

    /// Returns the index of a module.
    pub(super) fn module(&mut self, module: Module) -> u32 {
        let all = &mut self.recording.modules;
        *self.modules.entry((module.path.clone(), module.build_id.clone(), module.digest)).or_insert_with(
            || {
                all.push(module);
                all.len() as u32 - 1
            },
        )
    }

    /// Returns the index of a function of the profile. `modules` are the indexes of the profile's modules.
    pub(super) fn of_profile(&mut self, modules: &[u32], found: &Found) -> u32 {
        let module = modules.get(found.module as usize).copied().unwrap_or(0);
        self.function(module, found.address, found.size, &found.name)
    }

    /// Returns the index of a Python function.
    pub(super) fn python(&mut self, python: &Arc<python::Function>) -> u32 {
        let module = self.module(Module { path: gmon_run::PYTHON.to_owned(), ..Module::default() });
        let all = &mut self.recording.functions;
        *self.python.entry(Arc::clone(python)).or_insert_with(|| {
            let python::Function { name, file, line } = python::Function::clone(python);
            all.push(Function { name, file, line, module, ..Function::default() });
            all.len() as u32 - 1
        })
    }

    /// Returns the index of a function, which is known by its name if its address is 0.
    pub(super) fn function(&mut self, module: u32, address: u64, size: u64, name: &str) -> u32 {
        let all = &mut self.recording.functions;
        let add = || {
            all.push(Function { name: name.to_owned(), module, address, size, ..Function::default() });
            all.len() as u32 - 1
        };
        match address {
            0 => *self.named.entry((module, name.to_owned())).or_insert_with(add),
            _ => *self.functions.entry((module, address)).or_insert_with(add),
        }
    }
}
