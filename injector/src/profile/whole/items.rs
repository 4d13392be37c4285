//! The functions of the view of the whole process.

use std::collections::HashMap;
use std::ops::Range;

use crate::profile::model::{ModuleIndex, NOWHERE, Place, Profile};
use crate::profile::totals::Seed;

/// A function of the view: that at a link address of a module (or a stub of its PLT), or code without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

/// An item in which there are records.
#[derive(Clone, Copy)]
pub(super) struct Found<'p> {
    pub(super) item: Item,
    /// The number of bytes that records reach into it.
    pub(super) reach: u64,
    /// The size of the function, or 1.
    pub(super) size: u64,
    /// The name of the function, if it has one.
    pub(super) name: &'p str,
}

/// The items of a profile, in the order in which they were found.
pub(super) struct Items<'p> {
    profile: &'p Profile,
    pub(super) all: Vec<Found<'p>>,
    places: HashMap<Item, usize, Seed>,
    /// Where the entries of functions are, which are mostly called by several others.
    entries: HashMap<Place, (usize, u64), Seed>,
    /// The code in which the last place was.
    last: Option<(Code, usize)>,
    /// The index of the function that was found last. Records are sorted, so the next one is often near it.
    near: usize,
    /// See [`Items::parts`].
    parts: HashMap<(ModuleIndex, u64), Option<(u64, u64)>>,
}

/// Code of which the whole belongs to one item: a function, up to the next one.
#[derive(Clone)]
struct Code {
    module: ModuleIndex,
    addresses: Range<u64>,
    /// What is added to an offset in it.
    before: u64,
}

impl Code {
    /// Returns the offset of a place in the item to which the code belongs, if the place is in it.
    fn offset(&self, place: Place) -> Option<u64> {
        let is_in = self.module == place.module && self.addresses.contains(&place.address);
        is_in.then(|| self.before + (place.address - self.addresses.start))
    }
}

impl<'p> Items<'p> {
    pub(super) fn new(profile: &'p Profile) -> Items<'p> {
        Items {
            profile,
            all: Vec::new(),
            places: HashMap::default(),
            entries: HashMap::default(),
            last: None,
            near: 0,
            parts: HashMap::new(),
        }
    }

    /// Returns the index of an item, into which records reach so far at least.
    pub(super) fn index(&mut self, item: Item, reach: u64) -> usize {
        self.index_of(Found { item, reach, size: 1, name: "" })
    }

    fn index_of(&mut self, found: Found<'p>) -> usize {
        let at = *self.places.entry(found.item).or_insert_with(|| {
            self.all.push(found);
            self.all.len() - 1
        });
        self.reach(at, found.reach);
        at
    }

    fn reach(&mut self, at: usize, reach: u64) {
        if let Some(known) = self.all.get_mut(at) {
            known.reach = known.reach.max(reach);
        }
    }

    /// Returns the index of the item to which the entry of a function belongs, and the offset in it.
    pub(super) fn entry(&mut self, place: Place) -> (usize, u64) {
        if let Some(&known) = self.entries.get(&place) {
            return known;
        }
        let found = self.place(place);
        self.entries.insert(place, found);
        found
    }

    /// Returns the index of the item to which a place belongs, and the offset in it.
    pub(super) fn place(&mut self, place: Place) -> (usize, u64) {
        if let Some((code, at)) = &self.last
            && let Some(offset) = code.offset(place)
        {
            let at = *at;
            self.reach(at, offset + 1);
            return (at, offset);
        }
        if place.module == NOWHERE {
            return (self.index(Item::Outside, 1), 0);
        }
        let planned = self.profile.modules.get(place.module as usize).map(|module| module.program);
        let function = planned.and_then(|planned| {
            let functions = planned.subject.functions();
            let index = functions.last_up_to(place.address, self.near)?;
            self.near = index;
            let function = functions.function(index)?;
            let end = function.address.saturating_add(function.size);
            let next = functions.address(index + 1).unwrap_or(end);
            let addresses = function.address..end.min(next);
            addresses.contains(&place.address).then(|| (planned.parent(&function), function, addresses))
        });
        if let Some((parent, function, addresses)) = function {
            // A cold part is a part of its function; its own addresses are after those of the function.
            let before = parent.as_ref().map_or(0, |parent| parent.size);
            let whole = parent.as_ref().unwrap_or(&function);
            let (item, name) = (Item::Function(place.module, whole.address), whole.name);
            if parent.is_some() {
                let own = Some((function.address, function.size));
                let known = self.parts.entry((place.module, whole.address)).or_insert(own);
                *known = known.filter(|_| *known == own);
            }
            let code = Code { module: place.module, addresses, before };
            let offset = code.offset(place).unwrap_or(0);
            let at = self.index_of(Found { item, reach: offset + 1, size: whole.size, name });
            self.last = Some((code, at));
            return (at, offset);
        }
        match planned.and_then(|planned| planned.stub_at(place.address)) {
            Some(stub) => {
                let offset = place.address - stub.address;
                let item = Item::Function(place.module, stub.address);
                let found = Found { item, reach: offset + 1, size: stub.size, name: &stub.name };
                (self.index_of(found), offset)
            }
            None => (self.index(Item::Code(place.module, place.address), 1), 0),
        }
    }

    /// Returns the address and the size of the cold part of each function in one of whose cold parts there are records. If there
    /// are several, they have the same addresses in the view, and nothing is known of them.
    pub(super) fn parts(&self) -> &HashMap<(ModuleIndex, u64), Option<(u64, u64)>> {
        &self.parts
    }
}
