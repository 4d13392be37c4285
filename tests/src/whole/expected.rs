//! What the view of the whole process should contain: callgrind's records as calls between hooked functions.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use super::modules::{Key, Modules};
use crate::callgrind::{Node, Profile};
use crate::tool::Hooks;
use crate::x86::{self, Branch};

/// The calls of one function whose callers are known only as a set.
#[derive(Debug, Default)]
pub(super) struct Loose {
    pub(super) count: u64,
    pub(super) callers: BTreeSet<Key>,
}

/// What callgrind has counted, by keys.
#[derive(Default)]
pub(super) struct Expected {
    pub(super) arcs: BTreeMap<(Key, Key), u64>,
    pub(super) loose: BTreeMap<Key, Loose>,
    /// How often each function was entered.
    pub(super) entries: BTreeMap<Key, u64>,
    /// The calls of addresses in hooked modules at which no function starts.
    pub(super) unknown_targets: BTreeMap<String, u64>,
    /// The entries that callgrind's calls and jumps do not explain.
    pub(super) unexplained: BTreeMap<Key, u64>,
    /// The functions that code calls which asks the processor for its features: valgrind's processor has fewer.
    pub(super) by_processor: BTreeSet<Key>,
}

/// A place in a module, or in code that is not hooked.
#[derive(Debug, Clone, Copy)]
struct Place {
    module: usize,
    address: u64,
}

struct Record<'p> {
    from: Option<Place>,
    node: &'p Node,
    to: Option<Place>,
    callee: Option<&'p Node>,
    pub(super) count: u64,
}

/// Finds places by callgrind's objects and addresses.
struct Places<'m> {
    modules: &'m Modules,
    /// The module of each object.
    of_object: Vec<Option<usize>>,
    /// Where modules were loaded.
    bases: HashMap<usize, u64>,
    unknown: Option<usize>,
    /// The functions from which jumps lead to a piece of code that is in no function: a cold part without a name.
    parents: HashMap<(usize, u64), BTreeSet<u64>>,
}

impl<'m> Places<'m> {
    fn new(modules: &'m Modules, profile: &Profile) -> Self {
        let of_object: Vec<Option<usize>> = profile
            .objects
            .iter()
            .map(|object| modules.modules.iter().position(|m| m.path == Path::new(object)))
            .collect();
        let unknown = profile.objects.iter().position(|object| object == "???");
        let mut bases = HashMap::new();
        for call in profile.calls.iter().filter(|call| Some(call.callee.object) == unknown) {
            let Some(module) = of_object[call.caller.object] else { continue };
            let code = modules.modules[module].code.code(call.site);
            let Branch::Call { length } = x86::branch(code) else { continue };
            let length = length as usize;
            if length < 5 || code[length - 5] != 0xe8 {
                continue;
            }
            let Some(bytes) = code.get(length - 4..length).and_then(|b| <[u8; 4]>::try_from(b).ok()) else {
                continue;
            };
            let displacement = i64::from(i32::from_le_bytes(bytes)) as u64;
            let target = call.site.wrapping_add(length as u64).wrapping_add(displacement);
            bases.entry(module).or_insert(call.target.wrapping_sub(target));
        }
        Places { modules, of_object, bases, unknown, parents: HashMap::new() }
    }

    fn at(&self, object: usize, address: u64) -> Option<Place> {
        if let Some(module) = self.of_object[object] {
            return Some(Place { module, address });
        }
        if Some(object) != self.unknown {
            return None;
        }
        self.bases.iter().find_map(|(&module, &base)| {
            let address = address.checked_sub(base)?;
            let code = &self.modules.modules[module].code;
            (!code.code(address).is_empty()).then_some(Place { module, address })
        })
    }

    fn is_plt(&self, place: Option<Place>) -> bool {
        place.is_some_and(|at| self.modules.modules[at.module].code.is_plt(at.address))
    }

    /// Returns the start of the function that contains a place, or of the only one to which it belongs as a cold part.
    fn owner(&self, place: Place) -> Option<u64> {
        self.modules.modules[place.module].owner(place.address).or_else(|| {
            let mut parents = self.parents.get(&self.piece(place)?)?.iter();
            parents.next().copied().filter(|_| parents.next().is_none())
        })
    }

    /// Returns all functions to which a place may belong, if it is in a cold part of more than one.
    fn possible_owners(&self, place: Place) -> BTreeSet<Key> {
        let parents = self.piece(place).and_then(|piece| self.parents.get(&piece));
        parents.into_iter().flatten().map(|&parent| self.modules.key(place.module, parent)).collect()
    }

    fn piece(&self, place: Place) -> Option<(usize, u64)> {
        let pieces = &self.modules.modules[place.module].pieces;
        let after = pieces.partition_point(|&start| start <= place.address);
        Some((place.module, *pieces.get(after.checked_sub(1)?)?))
    }

    /// Finds the functions to which cold parts without names belong, by the jumps that led to them.
    fn find_parents(&mut self, profile: &Profile) {
        loop {
            let mut grew = false;
            for jump in &profile.jumps {
                let places = (self.at(jump.from.object, jump.site), self.at(jump.from.object, jump.target));
                let (Some(from), Some(to)) = places else { continue };
                let module = &self.modules.modules[to.module];
                let (Some(piece), None) = (self.piece(to), module.owner(to.address)) else { continue };
                let found = match module.owner(from.address) {
                    Some(owner) => BTreeSet::from([owner]),
                    None => self
                        .piece(from)
                        .and_then(|piece| self.parents.get(&piece))
                        .cloned()
                        .unwrap_or_default(),
                };
                if self.piece(from) != Some(piece) && !found.is_empty() {
                    let parents = self.parents.entry(piece).or_default();
                    let before = parents.len();
                    parents.extend(found);
                    grew |= parents.len() > before;
                }
            }
            if !grew {
                return;
            }
        }
    }

    /// Returns the functions that have executed `cpuid`.
    fn ask_the_processor(&self, profile: &Profile) -> HashSet<(usize, u64)> {
        let executed = profile.instructions.keys().filter_map(|&(object, address)| self.at(object, address));
        let ask = executed
            .filter(|at| self.modules.modules[at.module].code.code(at.address).starts_with(&[0x0f, 0xa2]));
        ask.filter_map(|at| Some((at.module, self.owner(at)?))).collect()
    }

    fn is_hooked(&self, place: Place, function: u64) -> bool {
        self.modules.modules[place.module].functions.get(&function).is_some_and(|f| f.is_hooked)
    }
}

/// Returns what the view of the whole process should contain.
pub(super) fn expected(modules: &Modules, profile: &Profile, hooks: Hooks) -> Expected {
    let mut places = Places::new(modules, profile);
    places.find_parents(profile);
    let places = places;
    let records = records(&places, profile);
    let mut by_callee: HashMap<&Node, Vec<&Record>> = HashMap::new();
    for record in &records {
        if let Some(callee) = record.callee {
            by_callee.entry(callee).or_default().push(record);
        }
    }
    let mut ancestors: HashMap<&Node, BTreeSet<Key>> = HashMap::new();
    let mut expected = Expected::default();
    let mut tail_calls: Vec<(Key, Key, u64)> = Vec::new();
    let mut loops: HashMap<(usize, u64), u64> = HashMap::new();
    let mut explained: HashMap<(usize, u64), u64> = HashMap::new();
    let ask = places.ask_the_processor(profile);
    for record in &records {
        let Some(to) = record.to else { continue };
        let module = &modules.modules[to.module];
        let branch = match record.from {
            Some(from) => x86::branch(modules.modules[from.module].code.code(from.address)),
            None => Branch::Other,
        };
        let is_call = matches!(branch, Branch::Call { .. });
        if !module.functions.contains_key(&to.address) {
            if is_call && !places.is_plt(record.to) {
                let target = format!("{}+{:#x}", module.file, to.address);
                *expected.unknown_targets.entry(target).or_default() += record.count;
            }
            continue;
        }
        if module.owner(to.address) != Some(to.address) || !places.is_hooked(to, to.address) {
            continue;
        }
        let callee = modules.key(to.module, to.address);
        let owner = record.from.and_then(|from| Some((from, places.owner(from)?)));
        let is_loop = owner.is_some_and(|(from, owner)| from.module == to.module && owner == to.address);
        if is_loop && !is_call {
            *loops.entry((to.module, to.address)).or_default() += record.count;
            continue;
        }
        if owner.is_some_and(|(from, owner)| ask.contains(&(from.module, owner))) {
            expected.by_processor.insert(callee.clone());
        }
        *explained.entry((to.module, to.address)).or_default() += record.count;
        let caller =
            owner.map(|(from, owner)| (modules.key(from.module, owner), places.is_hooked(from, owner)));
        match caller {
            Some((caller, _)) if is_call && hooks == Hooks::Entry => {
                *expected.arcs.entry((caller, callee)).or_default() += record.count;
            }
            Some((caller, true)) if !is_call && modules.has_no_frame(&caller) => {
                tail_calls.push((caller, callee, record.count));
            }
            Some((caller, true)) if is_call || hooks == Hooks::Both => {
                *expected.arcs.entry((caller, callee)).or_default() += record.count;
            }
            Some((caller, _)) if hooks == Hooks::Entry => tail_calls.push((caller, callee, record.count)),
            other => {
                let loose = expected.loose.entry(callee).or_default();
                loose.count += record.count;
                let possible = record.from.map(|from| places.possible_owners(from)).unwrap_or_default();
                if !possible.is_empty() {
                    loose.callers.extend(possible);
                    continue;
                }
                if hooks == Hooks::Entry {
                    loose.callers.insert(Key::Nobody);
                    continue;
                }
                // A refused function is the caller by its call instruction; otherwise its hooked callers are.
                loose.callers.extend(other.map(|(caller, _)| caller));
                let found = ancestors
                    .entry(record.node)
                    .or_insert_with(|| leading_to(&places, &by_callee, record.node));
                loose.callers.extend(found.iter().cloned());
            }
        }
    }
    let mut entered: HashMap<(usize, u64), u64> = HashMap::new();
    for (&(object, address), &count) in &profile.instructions {
        if let Some(at) = places.at(object, address)
            && modules.modules[at.module].functions.contains_key(&at.address)
        {
            *entered.entry((at.module, at.address)).or_default() += count;
        }
    }
    for (&(module, address), &count) in &entered {
        let at = Place { module, address };
        if !places.is_hooked(at, address) || modules.modules[module].owner(address) != Some(address) {
            continue;
        }
        // Callgrind writes the count of an instruction twice that is a call or a jump, and a function of its own.
        if x86::branch(modules.modules[module].code.code(address)) != Branch::Other {
            continue;
        }
        let count = count.saturating_sub(loops.get(&(module, address)).copied().unwrap_or(0));
        let explained = explained.get(&(module, address)).copied().unwrap_or(0);
        let key = modules.key(module, address);
        if count > explained {
            *expected.unexplained.entry(key).or_default() += count - explained;
        }
    }
    inherit(&mut expected, &tail_calls);
    expected.arcs.retain(|(caller, callee), _| modules.is_same_in_both(caller, callee));
    for ((_, callee), count) in &expected.arcs {
        *expected.entries.entry(callee.clone()).or_default() += count;
    }
    for (callee, loose) in &expected.loose {
        *expected.entries.entry(callee.clone()).or_default() += loose.count;
    }
    expected
}

/// Returns callgrind's calls and jumps without PLT stubs.
fn records<'p>(places: &Places, profile: &'p Profile) -> Vec<Record<'p>> {
    let mut records: Vec<Record> = Vec::new();
    for call in &profile.calls {
        records.push(Record {
            from: places.at(call.caller.object, call.site),
            node: &call.caller,
            to: places.at(call.callee.object, call.target),
            callee: Some(&call.callee),
            count: call.count,
        });
    }
    for jump in &profile.jumps {
        records.push(Record {
            from: places.at(jump.from.object, jump.site),
            node: &jump.from,
            to: places.at(jump.from.object, jump.target),
            callee: None,
            count: jump.count,
        });
    }
    let (stubs, mut others): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|record| places.is_plt(record.from));
    let mut behind: HashMap<(usize, u64), &Record> = HashMap::new();
    for stub in &stubs {
        if let Some(from) = stub.from {
            behind.insert((from.module, from.address & !7), stub);
        }
    }
    for record in others.iter_mut().filter(|record| places.is_plt(record.to)) {
        if let Some(to) = record.to
            && let Some(stub) = behind.get(&(to.module, to.address & !7))
        {
            record.to = stub.to;
            record.callee = stub.callee;
        }
    }
    others
}

/// Walks back from code that is not hooked to all hooked functions that have led to it.
fn leading_to(places: &Places, by_callee: &HashMap<&Node, Vec<&Record>>, node: &Node) -> BTreeSet<Key> {
    let mut found = BTreeSet::new();
    let mut seen: HashSet<&Node> = HashSet::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        let Some(calls) = by_callee.get(node) else {
            found.insert(Key::Nobody);
            continue;
        };
        for call in calls {
            let owner = call.from.and_then(|from| Some((from, places.owner(from)?)));
            match owner.filter(|&(from, owner)| places.is_hooked(from, owner)) {
                Some((from, owner)) => {
                    found.insert(places.modules.key(from.module, owner));
                }
                None if seen.insert(call.node) => open.push(call.node),
                None => {}
            }
        }
    }
    found
}

/// Adds tail calls for entry hooks. A function to which f has jumped finds the return address of f's caller, or of that
/// function's caller, and so on; or f itself, if the jump is what was hooked.
fn inherit(expected: &mut Expected, tail_calls: &[(Key, Key, u64)]) {
    let mut possible: BTreeMap<&Key, BTreeSet<Key>> = BTreeMap::new();
    for (caller, callee) in expected.arcs.keys() {
        possible.entry(callee).or_default().insert(caller.clone());
    }
    for (callee, loose) in &expected.loose {
        possible.entry(callee).or_default().extend(loose.callers.iter().cloned());
    }
    loop {
        let mut grew = false;
        for (caller, callee, _) in tail_calls {
            let inherited = possible.get(caller).cloned().unwrap_or(BTreeSet::from([Key::Nobody]));
            let callers = possible.entry(callee).or_default();
            let before = callers.len();
            callers.extend(inherited);
            grew |= callers.len() > before;
        }
        if !grew {
            break;
        }
    }
    let mut added: Vec<(Key, u64, BTreeSet<Key>)> = Vec::new();
    for (caller, callee, count) in tail_calls {
        let mut callers = possible.get(caller).cloned().unwrap_or_default();
        callers.insert(caller.clone());
        callers.insert(Key::Nobody);
        added.push((callee.clone(), *count, callers));
    }
    for (callee, count, callers) in added {
        let loose = expected.loose.entry(callee).or_default();
        loose.count += count;
        loose.callers.extend(callers);
    }
}

impl Expected {
    /// Returns the functions that are not called as often, or not by the same functions, in two runs under callgrind.
    pub(super) fn changing(&self, other: &Expected) -> BTreeSet<Key> {
        let keys = self.entries.keys().chain(other.entries.keys());
        let counts = keys.filter(|key| self.entries.get(key) != other.entries.get(key));
        let arcs = self.arcs.keys().chain(other.arcs.keys());
        let callees = arcs.filter(|arc| self.arcs.get(arc) != other.arcs.get(arc)).map(|(_, callee)| callee);
        counts.chain(callees).cloned().collect()
    }
}
