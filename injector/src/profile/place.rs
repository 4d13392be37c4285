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
