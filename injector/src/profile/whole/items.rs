//! The functions of the view of the whole process.

use crate::profile::model::{Module, ModuleIndex, NOWHERE, Place, Profile};

/// A function of the view: that at a link address of a module (or a stub of its PLT), or code without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    Function(ModuleIndex, u64),
    /// Code that no function contains, at this link address.
    Code(ModuleIndex, u64),
    /// Callers that are not known: code that is not hooked, while no hooked function was running.
    Outside,
    /// Samples elsewhere: in code that is not hooked and whose functions are not known.
    Elsewhere,
    /// A function that is not hooked, by its index in [`Profile::named`].
    Named(usize),
}

pub(super) fn module(profile: &Profile, index: ModuleIndex) -> Option<&Module> {
    profile.modules.get(index as usize)
}

/// Returns the item to which a place belongs, and the offset in it.
pub(super) fn item(profile: &Profile, place: Place) -> (Item, u64) {
    if place.module == NOWHERE {
        return (Item::Outside, 0);
    }
    let planned = module(profile, place.module).map(|module| module.program);
    let function = planned.and_then(|planned| {
        let function = planned.function_at(place.address)?;
        let offset = place.address - function.address;
        Some(match planned.parent(function) {
            // A cold part is a part of its function; its own addresses are after those of the function.
            Some(parent) => (parent.address, parent.size + offset),
            None => (function.address, offset),
        })
    });
    let stub = || planned?.stub_at(place.address).map(|stub| (stub.address, place.address - stub.address));
    match function.or_else(stub) {
        Some((start, offset)) => (Item::Function(place.module, start), offset),
        None => (Item::Code(place.module, place.address), 0),
    }
}

pub(super) fn size(profile: &Profile, item: Item) -> u64 {
    let Item::Function(index, address) = item else { return 1 };
    let Some(module) = module(profile, index) else { return 1 };
    match module.program.function_at(address) {
        Some(function) => function.size,
        None => module.program.stub_at(address).map_or(1, |stub| stub.size),
    }
}
