//! Cold parts: the unlikely basic blocks of a function, which the compiler has moved to another place. They are
//! jumped to and never called.
//!
//! A name alone does not decide whether code is a cold part:
//!
//! - `f.cold`: gcc 9 and later, clang's machine function splitter. Always a part.
//! - `f.__part.3`: clang's basic block sections. Always a part.
//! - `f.cold.3`: gcc 8 (a part), BOLT (a part), but also clang's hot-cold splitting, which outlines a real
//!   function that is called or tail-called.
//!
//! So code with a numbered name is a part, unless its frame starts as a function's does (CFA = rsp + 8), clang
//! has compiled some of the program, and BOLT has not changed it. If a part made by gcc 8 is mistaken for a
//! function (in a program of both compilers, a part of a leaf function), it is entered like a tail call, which
//! has no effect except a count.
//!
//! Code that starts with another frame than a function's cannot be called, whatever its name is.

use crate::file::elf::Elf;
use crate::functions::label::Label;
use crate::names::suffixes::{Suffix, split};
use std::collections::HashMap;

/// What has made the program, as far as it matters for the meaning of `f.cold.3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Makers {
    outlines: bool,
}

impl Makers {
    /// Finds out by the program's notes and sections.
    pub(crate) fn of(elf: &Elf<'_>) -> Self {
        let comment = elf.section(b".comment").and_then(|section| section.bytes).unwrap_or_default();
        let clang = comment.split(|&byte| byte == 0).any(|maker| contains(maker, b"clang"));
        let bolt = elf.section(b".note.bolt_info").is_some() || elf.section(b".bolt.org.text").is_some();
        Makers { outlines: clang && !bolt }
    }

    /// Whether code with the name of a cold part is one.
    pub(crate) fn is_part(self, name: &str, frame: Option<bool>) -> bool {
        let numbered = split(name).is_some_and(|split| split.suffix == Suffix::Cold && split.numbered);
        !(numbered && self.outlines && frame != Some(false))
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

/// A cold part whose function is searched.
#[derive(Debug)]
pub(crate) struct Orphan<'d> {
    /// The index in the list of functions.
    pub(crate) part: usize,
    pub(crate) parent: &'d str,
    pub(crate) file: u32,
}

/// The file number of global symbols. The numbers of files begin at 0.
const GLOBAL: u32 = u32::MAX;

/// Returns the addresses of the orphans' functions: the local function of the same object file, otherwise the
/// global one, otherwise the only one there is.
pub(crate) fn parents(orphans: &[Orphan<'_>], labels: &[Label<'_>]) -> Vec<Option<u64>> {
    if orphans.is_empty() {
        return Vec::new();
    }
    let wanted = Wanted::new(orphans);
    // (name, file, address)
    let mut found: Vec<(u32, u32, u64)> = Vec::with_capacity(orphans.len());
    for label in labels {
        if let Some(name) = wanted.find(label.name) {
            found.push((name, if label.local { label.file } else { GLOBAL }, label.address));
        }
    }
    found.sort_unstable();
    found.dedup();
    // Returns the only entry between two keys, or `None` if there are none or several.
    let only = |from: (u32, u32, u64), to: (u32, u32, u64)| {
        let start = found.partition_point(|&entry| entry < from);
        let mut same = found[start..].iter().take_while(|&&entry| entry < to);
        same.next().filter(|_| same.next().is_none()).map(|&(_, _, address)| address)
    };
    let find = |orphan: &Orphan<'_>| {
        let name = wanted.find(orphan.parent)?;
        only((name, orphan.file, 0), (name, orphan.file + 1, 0))
            .or_else(|| only((name, GLOBAL, 0), (name + 1, 0, 0)))
            .or_else(|| only((name, 0, 0), (name, GLOBAL, 0)))
    };
    orphans.iter().map(find).collect()
}

/// A set of numbered names. Most names that are looked up are not in it.
struct Wanted<'d> {
    numbers: HashMap<&'d str, u32>,
    /// The values of [`quick_hash`] for which there may be a name. The map's own hash is slower, because it
    /// resists names that are made to collide.
    filter: Vec<bool>,
}

impl<'d> Wanted<'d> {
    fn new(orphans: &[Orphan<'d>]) -> Self {
        let mut numbers = HashMap::with_capacity(orphans.len());
        let mut filter = vec![false; (8 * orphans.len()).next_power_of_two()];
        let mask = filter.len() - 1;
        for orphan in orphans {
            let next = numbers.len() as u32;
            numbers.entry(orphan.parent).or_insert(next);
            filter[quick_hash(orphan.parent) & mask] = true;
        }
        Wanted { numbers, filter }
    }

    fn find(&self, name: &str) -> Option<u32> {
        let maybe = self.filter[quick_hash(name) & (self.filter.len() - 1)];
        if maybe { self.numbers.get(name).copied() } else { None }
    }
}

fn quick_hash(name: &str) -> usize {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = name.as_bytes().as_chunks::<8>();
    let tail = rest.iter().fold(name.len() as u64, |tail, &byte| tail << 8 | u64::from(byte));
    let mixed = words.iter().fold(tail.wrapping_mul(ODD), |hash, word| {
        (hash.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(ODD)
    });
    (mixed >> 32) as usize
}
