//! The functions in whose code the records of a profile are.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use crate::profile::model::{ModuleIndex, Place, Profile};
use crate::profile::totals::Seed;

/// A function of a module: one that is planned, a stub of the PLT, or code that no function contains.
#[derive(Clone)]
pub(super) struct Found<'p> {
    pub(super) module: ModuleIndex,
    /// The link address.
    pub(super) address: u64,
    /// The number of bytes; 0 for code that no function contains.
    pub(super) size: u64,
    /// The name in the symbol table, or an empty text.
    pub(super) name: Cow<'p, str>,
}

/// Finds the functions of a profile's modules. `N` is what the caller knows a function by.
pub(super) struct Places<'p, N> {
    profile: &'p Profile,
    /// By module and link address of the function.
    known: HashMap<(ModuleIndex, u64), N, Seed>,
    /// The functions by their entries, which are mostly called by several others.
    entries: HashMap<Place, N, Seed>,
    /// The code in which the last place was.
    last: Option<(Code, N)>,
    /// The index of the function that was found last. Records are sorted, so the next one is often near it.
    near: usize,
}

/// Code of which the whole belongs to one function, up to the next one.
#[derive(Clone)]
struct Code {
    module: ModuleIndex,
    addresses: Range<u64>,
}

impl<'p, N: Copy> Places<'p, N> {
    pub(super) fn new(profile: &'p Profile) -> Places<'p, N> {
        Places { profile, known: HashMap::default(), entries: HashMap::default(), last: None, near: 0 }
    }

    /// Returns what stands for the function whose entry a place is; `new` says it for those that were not met before.
    pub(super) fn entry(&mut self, place: Place, new: impl FnOnce(Found<'p>) -> N) -> N {
        if let Some(&known) = self.entries.get(&place) {
            return known;
        }
        let found = self.at(place, new);
        self.entries.insert(place, found);
        found
    }

    /// Returns what stands for the function to which a place belongs. A cold part belongs to its function.
    pub(super) fn at(&mut self, place: Place, new: impl FnOnce(Found<'p>) -> N) -> N {
        let is_in = |code: &Code| code.module == place.module && code.addresses.contains(&place.address);
        if let Some((_, known)) = self.last.as_ref().filter(|(code, _)| is_in(code)) {
            return *known;
        }
        let (found, addresses) = self.find(place);
        let key = (found.module, found.address);
        let known = *self.known.entry(key).or_insert_with(|| new(found));
        if let Some(addresses) = addresses {
            self.last = Some((Code { module: place.module, addresses }, known));
        }
        known
    }

    /// Returns the function, and the code around the place that belongs to it as well, if it is a planned one.
    fn find(&mut self, place: Place) -> (Found<'p>, Option<Range<u64>>) {
        let Place { module, address } = place;
        let nameless = Found { module, address, size: 0, name: "".into() };
        let Some(planned) = self.profile.modules.get(module as usize).map(|module| module.program) else {
            return (nameless, None);
        };
        let functions = planned.subject.functions();
        let function = functions.last_up_to(address, self.near).and_then(|index| {
            self.near = index;
            let function = functions.function(index)?;
            let end = function.address.saturating_add(function.size);
            let next = functions.address(index + 1).unwrap_or(end);
            let addresses = function.address..end.min(next);
            addresses.contains(&address).then_some((function, addresses))
        });
        if let Some((function, addresses)) = function {
            let whole = planned.parent(&function).unwrap_or(function);
            let found = Found { module, address: whole.address, size: whole.size, name: whole.name.into() };
            return (found, Some(addresses));
        }
        match planned.stub_at(address) {
            Some(stub) => {
                let (address, size, name) = (stub.address, stub.size, stub.name.as_str().into());
                (Found { module, address, size, name }, None)
            }
            None => (nameless, None),
        }
    }
}
