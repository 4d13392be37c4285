//! The functions of cold parts that have no name which leads to one, as in stripped files.
//!
//! Code that begins inside a frame cannot be called: its frame description does not begin as a function's does. It is
//! a part of a function if these hold, as the bytes show:
//!
//! - Jumps lead into it, and all of them are in this function or in other parts of it.
//! - No call leads into it, and no instruction computes an address in it from its own.
//! - No name is exported for an address in it. (Data may contain one: tables of jumps do.)
//!
//! The branches are found without decoding all code. Any four bytes of code, at any alignment, may be the distance of a
//! branch, if the bytes before them are a branch's: this finds all branches with such a distance, and some that are none.
//! If all of those that lead into a part are jumps in one function, and the frame descriptions of both give the same
//! frame at the jump and at its target, this function is the part's. Otherwise the functions with these bytes are
//! decoded from their starts, and so are all functions from which a branch with a distance of one byte can reach a part.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::function::{Function, FunctionKind};
use crate::image::{Code, Image};
use crate::names::suffixes::parent_name;
use crate::x86;

/// The number of bytes of a distance.
const DISTANCE: usize = 4;

/// The number of bytes above which a second thread is worth its cost.
const LARGE: usize = 1 << 20;

/// No branch with a distance of one byte leads over as many bytes.
const NEAR: u64 = 130;

impl Image<'_> {
    /// Returns the index of the function to which the code of function `index` belongs: the parent of a cold
    /// part, if it is known, and otherwise `index` itself.
    pub fn owner(&self, index: usize) -> usize {
        self.parent(index).unwrap_or(index)
    }

    /// Returns the index of the function to which a cold part belongs, or `None` if that is not known, or `index` is no cold
    /// part.
    pub fn parent(&self, index: usize) -> Option<usize> {
        match self.functions.kind(index)? {
            FunctionKind::Cold(Some(parent)) => Some(parent),
            FunctionKind::Cold(None) => {
                let parts = self.nameless_parts();
                parts.binary_search_by_key(&index, |&(part, _)| part).ok().map(|at| parts[at].1)
            }
            _ => None,
        }
    }

    /// Returns the cold parts to whose functions no name leads, but jumps do: the index of each part and that of its
    /// function, sorted by parts. The first call takes longer than reading the file, so
    /// kept plans have the result.
    pub fn nameless_parts(&self) -> &[(usize, usize)] {
        self.nameless_parts.get_or_init(|| find(self))
    }

    /// Makes known what [`Image::nameless_parts`] has returned for the same file before. Returns whether it may be true.
    pub fn set_nameless_parts(&self, parts: Vec<(usize, usize)>) -> bool {
        let is_part = |index: usize| self.functions.kind(index) == Some(FunctionKind::Cold(None));
        let is_function = |index: usize| {
            self.functions.kind(index).is_some_and(|kind| !matches!(kind, FunctionKind::Cold(_)))
        };
        let fits = parts.iter().all(|&(part, function)| is_part(part) && is_function(function))
            && parts.is_sorted_by(|one, other| one.0 < other.0);
        if fits {
            // Another thread may have found the same.
            self.nameless_parts.set(parts).unwrap_or_default();
        }
        fits
    }
}

/// Finds the functions of the cold parts that have none. Returns the index of each such part and that of its function, sorted
/// by parts.
fn find(image: &Image<'_>) -> Vec<(usize, usize)> {
    let is_orphan = |f: &Function<'_>| {
        let is_nameless = f.name.is_empty() || parent_name(f.name).is_some();
        f.kind == FunctionKind::Cold(None) && is_nameless && f.size > 0
    };
    let orphans: Vec<bool> = image.functions.iter().map(is_orphan).collect();
    let Some(first) = orphans.iter().position(|&orphan| orphan) else { return Vec::new() };
    let last = orphans.iter().rposition(|&orphan| orphan).unwrap_or(first);
    let extent = (image.functions[first].address, end(&image.functions[last]));
    let owners = vec![Owner::Unknown; orphans.len()];
    let mut search = Search { image, orphans, extent, owners, jumps: Vec::new() };
    search.look_at_data();
    search.look_at_code();
    search.solve()
}

fn end(f: &Function<'_>) -> u64 {
    f.address.saturating_add(f.size)
}

/// The function to which a part belongs, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// No jump into the part has been found yet.
    Unknown,
    Function(usize),
    /// None that is known: several functions jump into the part, or something else may lead into it.
    Nobody,
}

/// Four bytes that may be the distance of a branch into a part.
#[derive(Clone, Copy, Debug)]
struct Distance {
    part: usize,
    function: usize,
    at: u64,
    /// The length of the opcode if the branch is a jump; `None` if it is a call, or the operand of another instruction.
    jump: Option<u64>,
}

/// How code refers to parts.
#[derive(Debug, Default)]
struct References {
    /// The jumps: from a function or a part, to a part.
    jumps: Vec<(usize, usize)>,
    /// The parts that something else than a jump may enter.
    others: Vec<usize>,
}

struct Search<'i, 'd> {
    image: &'i Image<'d>,
    /// For each function, whether it is a part whose function is searched.
    orphans: Vec<bool>,
    /// From the start of the first such part to the end of the last one.
    extent: (u64, u64),
    /// The owner of each part.
    owners: Vec<Owner>,
    /// The jumps into parts: from a function or a part, to a part.
    jumps: Vec<(usize, usize)>,
}

impl Search<'_, '_> {
    /// Returns the part that contains an address.
    fn part_at(&self, address: u64) -> Option<usize> {
        let may_be = (self.extent.0..self.extent.1).contains(&address);
        self.image.function_at(address).filter(|&index| may_be && self.orphans[index])
    }

    /// Excludes parts to which names or data lead. Where a part begins inside a frame, data that has an address in it is a
    /// table of jumps, because nothing else than a jump in that frame can lead there.
    fn look_at_data(&mut self) {
        let image = self.image;
        let is_entered = |part: usize| image.functions[part].frame != Some(false);
        let named = image.details().exported.iter().filter_map(|&address| self.part_at(address));
        let pointed = image.details().code_pointers.iter().filter_map(|&address| self.part_at(address));
        let excluded: Vec<usize> = named.chain(pointed.filter(|&part| is_entered(part))).collect();
        excluded.into_iter().for_each(|part| self.owners[part] = Owner::Nobody);
    }

    /// Finds the branches into the parts.
    fn look_at_code(&mut self) {
        // Neither reading needs the result of the other.
        let ((mut distances, strays), near) = std::thread::scope(|scope| {
            let this = &*self;
            let decode = || this.decode_near();
            let is_large = this.image.code.iter().any(|code| code.bytes.len() > LARGE);
            let near = is_large.then(|| std::thread::Builder::new().spawn_scoped(scope, decode).ok());
            (this.scan(), near.flatten().and_then(|thread| thread.join().ok()))
        });
        let (decoded, references) = near.unwrap_or_else(|| self.decode_near());
        self.note(strays);
        self.note(references);
        distances.retain(|distance| !decoded.contains(&distance.function));
        let frames = self.same_frames(&distances);
        distances.sort_by_key(|distance| distance.part);
        // Up to which address other functions have to be decoded.
        let mut ends: BTreeMap<usize, u64> = BTreeMap::new();
        for all in distances.chunk_by(|one, other| one.part == other.part) {
            let pair = (all[0].function, all[0].part);
            let are_jumps = all.iter().all(|distance| distance.function == pair.0 && distance.jump.is_some());
            if are_jumps && frames.contains(&pair) {
                self.jumps.push(pair);
                continue;
            }
            for distance in all {
                let end = ends.entry(distance.function).or_default();
                *end = (*end).max(distance.at);
            }
        }
        distances.sort_by_key(|distance| distance.function);
        for (function, end) in ends {
            let mut found = References::default();
            if self.decode(function, end, &mut found).is_none() {
                // The bytes may mean something else than what was decoded.
                let own = &distances[distances.partition_point(|distance| distance.function < function)..];
                let own = own.iter().take_while(|distance| distance.function == function);
                found.others.extend(own.map(|distance| distance.part));
            }
            self.note(found);
        }
    }

    fn note(&mut self, found: References) {
        self.jumps.extend(found.jumps);
        found.others.into_iter().for_each(|part| self.owners[part] = Owner::Nobody);
    }

    /// Decodes the functions, and the parts, from which a branch with a distance of one byte can reach a part. Returns those
    /// that could be decoded, and how they refer to parts.
    fn decode_near(&self) -> (HashSet<usize>, References) {
        let parts = (0..self.orphans.len()).filter(|&index| self.orphans[index]);
        let near: BTreeSet<usize> = parts.flat_map(|part| self.near(part)).collect();
        let (mut decoded, mut found) = (HashSet::new(), References::default());
        for function in near {
            if self.decode(function, u64::MAX, &mut found).is_some() {
                decoded.insert(function);
            } else {
                found.others.extend(self.near(function).filter(|&index| self.orphans[index]));
            }
        }
        (decoded, found)
    }

    /// Returns the pairs of a function and a part for which the frame at some jump is that at its target. `distances` are
    /// sorted by functions.
    fn same_frames(&self, distances: &[Distance]) -> HashSet<(usize, usize)> {
        let image = self.image;
        let mut same: HashSet<(usize, usize)> = HashSet::new();
        let mut frame_at: HashMap<u64, Option<(u16, i64)>> = HashMap::new();
        for all in distances.chunk_by(|one, other| one.function == other.function) {
            let function = all[0].function;
            let Some(frames) = image.cfas(image.functions[function].address) else { continue };
            for distance in all {
                let pair = (function, distance.part);
                let (Some(jump), false) = (distance.jump, same.contains(&pair)) else { continue };
                let Some(target) = self.target(distance.at) else { continue };
                let target = *frame_at.entry(target).or_insert_with(|| image.cfa(target));
                if target.is_some() && frames.at(distance.at - jump) == target {
                    same.insert(pair);
                }
            }
        }
        same
    }

    /// Returns the address to which the distance at an address leads.
    fn target(&self, at: u64) -> Option<u64> {
        let distance = self.image.code_at(at, DISTANCE as u64)?.first_chunk()?;
        Some(at.wrapping_add(DISTANCE as u64).wrapping_add_signed(i32::from_le_bytes(*distance).into()))
    }

    /// Returns the functions between which and this one a branch with a distance of one byte is possible, and this one.
    fn near(&self, index: usize) -> impl Iterator<Item = usize> + use<'_> {
        let functions: &[Function<'_>] = &self.image.functions;
        let this = &functions[index];
        let (lo, hi) = (this.address.saturating_sub(NEAR), end(this).saturating_add(NEAR));
        let before = (0..index).rev().take_while(move |&other| end(&functions[other]) > lo);
        let after = (index..functions.len()).take_while(move |&other| functions[other].address < hi);
        before.chain(after)
    }

    /// Finds all bytes that may be the distance of a branch into a part, or of an operand in one. They are sorted by functions. Those in
    /// no function are not among them.
    fn scan(&self) -> (Vec<Distance>, References) {
        let (mut distances, mut strays) = (Vec::new(), References::default());
        for code in &self.image.code {
            self.scan_segment(code, &mut distances, &mut strays);
        }
        distances.sort_unstable_by_key(|distance| (distance.function, distance.at));
        (distances, strays)
    }

    fn scan_segment(&self, code: &Code<'_>, distances: &mut Vec<Distance>, strays: &mut References) {
        let (lo, len) = (self.extent.0, self.extent.1 - self.extent.0);
        // The offset from the first part of the address to which a distance of 0 leads.
        let start = code.address.wrapping_add(DISTANCE as u64).wrapping_sub(lo);
        for (at, bytes) in (0_u64..).zip(code.bytes.windows(DISTANCE)) {
            let distance = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            let offset = start.wrapping_add(at).wrapping_add_signed(distance.into());
            if offset >= len {
                continue;
            }
            let before = &code.bytes[..at as usize];
            let jump = match before {
                // jmp
                [.., 0xe9] => Some(1),
                // jcc, xbegin
                [.., 0x0f, 0x80..=0x8f] | [.., 0xc7, 0xf8] => Some(2),
                // call, [rip + distance]
                [.., 0xe8] => None,
                [.., modrm] if modrm & 0xc7 == 0x05 => None,
                _ => continue,
            };
            let Some(part) = self.part_at(lo + offset) else { continue };
            let at = code.address + at;
            match self.image.function_at(at - jump.unwrap_or(1)) {
                Some(function) => distances.push(Distance { part, function, at, jump }),
                None => strays.others.push(part),
            }
        }
    }

    /// Decodes a function at least up to an address, and notes how it refers to parts. Returns `None` if some bytes are
    /// no instruction.
    fn decode(&self, function: usize, until: u64, found: &mut References) -> Option<()> {
        let f = &self.image.functions[function];
        let bytes = self.image.code_at(f.address, f.size)?;
        let mut decoder = Decoder::with_ip(64, bytes, f.address, DecoderOptions::NONE);
        let mut i = Instruction::default();
        while decoder.can_decode() && decoder.ip() <= until {
            decoder.decode_out(&mut i);
            if i.is_invalid() {
                return None;
            }
            if x86::has_branch(&i) {
                match self.part_at(i.near_branch_target()) {
                    Some(part) if x86::is_call(&i) => found.others.push(part),
                    Some(part) if part != function => found.jumps.push((function, part)),
                    _ => {}
                }
            } else if i.is_ip_rel_memory_operand()
                && let Some(part) = self.part_at(i.ip_rel_memory_address())
            {
                found.others.push(part);
            }
        }
        // Control may run on into a part.
        if let Some(part) = self.part_at(decoder.ip())
            && part != function
            && decoder.ip() == end(f)
            && x86::goes_on(&i)
        {
            found.jumps.push((function, part));
        }
        Some(())
    }

    /// Returns the parts that belong to one function each, and these functions.
    fn solve(mut self) -> Vec<(usize, usize)> {
        self.jumps.sort_unstable();
        self.jumps.dedup();
        let count = self.owners.len();
        let mut open: Vec<usize> = (0..count).filter(|&part| self.owners[part] == Owner::Nobody).collect();
        for &(from, part) in &self.jumps {
            let owner = match self.image.functions[from].kind {
                FunctionKind::Cold(Some(parent)) => Owner::Function(parent),
                FunctionKind::Cold(None) if self.orphans[from] => Owner::Unknown,
                FunctionKind::Cold(None) => Owner::Nobody,
                _ => Owner::Function(from),
            };
            if self.owners[part].join(owner) {
                open.push(part);
            }
        }
        // An owner changes at most twice.
        while let Some(from) = open.pop() {
            let start = self.jumps.partition_point(|&(other, _)| other < from);
            let owner = self.owners[from];
            for &(_, part) in self.jumps[start..].iter().take_while(|&&(other, _)| other == from) {
                if self.owners[part].join(owner) {
                    open.push(part);
                }
            }
        }
        let known = self.owners.into_iter().enumerate().filter_map(|(part, owner)| match owner {
            Owner::Function(parent) => Some((part, parent)),
            Owner::Unknown | Owner::Nobody => None,
        });
        known.collect()
    }
}

impl Owner {
    /// Adds an owner from which a jump leads. Returns whether this changes anything.
    fn join(&mut self, other: Owner) -> bool {
        let joined = match (*self, other) {
            (owner, Owner::Unknown) | (Owner::Unknown, owner) => owner,
            (one, two) if one == two => one,
            _ => Owner::Nobody,
        };
        let changed = joined != *self;
        *self = joined;
        changed
    }
}
