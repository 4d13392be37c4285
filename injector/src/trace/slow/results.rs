//! The functions and programs of all processes, by the numbers that the results have for them.

use std::collections::HashMap;

use gmon_run::Slow;

use crate::profile::slowest::{Function, Slowest};
use crate::trace::names::Name;

/// The functions and programs.
#[derive(Default)]
pub(crate) struct Names {
    functions: Vec<Function>,
    /// By module and address.
    known: HashMap<(String, u64), u32>,
    programs: Vec<String>,
}

impl Names {
    /// Returns the number of a function.
    pub(crate) fn function(&mut self, name: &Name) -> u32 {
        let Name { name, module, address, size, .. } = name;
        *self.known.entry((module.clone(), *address)).or_insert_with(|| {
            let (module, name) = (module.clone(), name.clone());
            self.functions.push(Function { module, address: *address, size: *size, name });
            self.functions.len() as u32 - 1
        })
    }

    /// Returns the number of a program with this path.
    pub(crate) fn program(&mut self, path: &str) -> u32 {
        let known = self.programs.iter().position(|program| program == path);
        let index = known.unwrap_or_else(|| {
            self.programs.push(path.to_owned());
            self.programs.len() - 1
        });
        index as u32
    }

    /// Returns the results, with the functions and programs to which they refer.
    pub(crate) fn results(&self, slow: Slow) -> Slowest {
        Slowest { slow, functions: self.functions.clone(), programs: self.programs.clone() }
    }
}
