//! A place in the code of a process's modules.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The index of a module in a profile's list of modules.
pub(crate) type ModuleIndex = u32;

/// The module of the program itself.
pub(crate) const PROGRAM: ModuleIndex = 0;
/// The module of a caller that is not known: code that is not hooked, while no hooked function was running.
pub(crate) const NOWHERE: ModuleIndex = ModuleIndex::MAX;

/// The module of callers in code that the process has made at run time, or in other code that is not known. The address is a return address
/// until [`Generated::name_callers`] has replaced it by the index of a name of the profile.
///
/// [`Generated::name_callers`]: crate::profile::generated::Generated::name_callers
pub(crate) const GENERATED: ModuleIndex = NOWHERE - 1;

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

/// The names of functions that processes have made at run time.
#[derive(Clone, Debug, Default)]
pub(crate) struct GeneratedNames {
    all: Vec<Arc<str>>,
    known: HashMap<Arc<str>, u64>,
}

impl GeneratedNames {
    /// Returns the place that stands for the function of a name.
    pub(crate) fn place(&mut self, name: &Arc<str>) -> Place {
        let address = *self.known.entry(Arc::clone(name)).or_insert_with(|| {
            self.all.push(Arc::clone(name));
            self.all.len() as u64 - 1
        });
        Place { module: GENERATED, address }
    }

    /// Returns the name of the function for which a place stands. There is none for a return address.
    pub(crate) fn name(&self, place: Place) -> Option<&Arc<str>> {
        let is_one = place.module == GENERATED;
        usize::try_from(place.address).ok().filter(|_| is_one).and_then(|index| self.all.get(index))
    }

    /// Returns all names, in the order of their places.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<str>> {
        self.all.iter()
    }
}

/// The samples at a place in code that is not hooked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnhookedPlace {
    /// Its file, or what stands for memory without one.
    pub(crate) module: Arc<gmon_run::Module>,
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
