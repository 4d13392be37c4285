//! A place in the code of a process's modules.

use serde::{Deserialize, Serialize};

/// The index of a module in a profile's list of modules.
pub(crate) type ModuleIndex = u32;

/// The module of the program itself.
pub(crate) const PROGRAM: ModuleIndex = 0;
/// The module of a caller that is not known: code that is not hooked, while no hooked function was running.
pub(crate) const NOWHERE: ModuleIndex = ModuleIndex::MAX;

/// An address in the code of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) module: ModuleIndex,
    /// The link address.
    pub(crate) address: u64,
}

impl Place {
    /// The caller that is not known.
    pub(crate) const NOWHERE: Place = Place { module: NOWHERE, address: 0 };
}

/// The samples at a place in code that is not hooked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnhookedPlace {
    /// Its file, or what stands for memory without one.
    pub(crate) module: std::sync::Arc<gmon_run::Module>,
    /// The name of its function in the symbol table, or an empty text.
    pub(crate) function: String,
    /// The link address and the number of bytes of its function. If no function is known there, `start` is the address of the place
    /// and `size` is 0. If the file could not be read, both are 0.
    pub(crate) start: u64,
    pub(crate) size: u64,
    /// The link address of the place; 0 if it is not known.
    pub(crate) address: u64,
    pub(crate) samples: u64,
}
