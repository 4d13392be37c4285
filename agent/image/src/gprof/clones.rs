//! Finds the function to which a hidden one belongs.
//!
//! Compilers name what they make of a function `f` by a suffix: `f.isra.0` is a version of it, `f.part.0` the
//! rest of it, `f.cold` a piece of it. A function `f` in the same program need not be the same one: two
//! source files may each have a function of that name, and `f` itself is often gone. So the names decide only
//! where no other function can have them: within a source file, and between C++ names that the whole program
//! shares. In all other cases, the code of `f` must lead to the part.

use std::cell::Cell;
use std::collections::HashMap;

use gmon::{Function, Relation, Whole};

use crate::names::suffixes::{Suffix, split};

/// A symbol in code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label<'d> {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) name: &'d str,
    pub(crate) local: bool,
    /// Whether it has the type of a function.
    pub(crate) function: bool,
    /// Whether it is the name of data.
    pub(crate) data: bool,
    /// Whether gprof accepts it.
    pub(crate) shown: bool,
    /// The number of its source file, if it is known.
    pub(crate) file: Option<u32>,
}

impl Label<'_> {
    /// Returns the function of this label.
    pub(crate) fn to_function(self) -> Function {
        Function { start: self.start, size: self.size, name: self.name.to_owned() }
    }
}

/// Returns the name without the last suffix that a compiler has added, and the meaning of the suffix. Returns
/// `None` if there is no known suffix, or one that means another function (`f.lto_priv.0` and `f.llvm.1`
/// belong to another file than `f`).
fn shorter(name: &str) -> Option<(&str, Relation)> {
    let split = split(name)?;
    let relation = match split.suffix {
        Suffix::Version => Relation::Version,
        Suffix::Rest => Relation::Rest,
        Suffix::Cold | Suffix::Blocks | Suffix::Piece => Relation::Piece,
    };
    Some((split.base, relation))
}

/// The bytes of code that are searched at most, for each byte of all code. Each part of a function takes a search of the
/// function; only a damaged file has many parts of large functions that overlap.
const SEARCHED: u64 = 64;
/// The number of functions of one name whose code is searched at most.
const CANDIDATES: usize = 1000;
/// The number of suffixes of a name that are taken off at most. Compilers add three or four.
const SUFFIXES: usize = 16;

/// Returns the hidden labels in their order, with the functions to which they belong. `text` returns the code
/// at an address, of which there are `len` bytes.
pub(crate) fn wholes<'l, 'd>(
    labels: &'l [Label<'d>],
    len: u64,
    text: &dyn Fn(u64, u64) -> Option<&'d [u8]>,
) -> Vec<(&'l Label<'d>, Option<Whole>)> {
    let hidden = || labels.iter().filter(|label| !label.shown);
    // The names that are looked up, with the labels that have them.
    let mut named: HashMap<&str, Named<'_, '_>> = HashMap::new();
    for label in hidden() {
        named.extend(bases(label.name).map(|(name, _)| (name, Named::default())));
    }
    if !named.is_empty() {
        for label in labels.iter().filter(|label| label.shown && label.function) {
            if let Some(found) = named.get_mut(label.name) {
                found.add(label);
            }
        }
    }
    let budget = Cell::new(len.saturating_mul(SEARCHED));
    let text = |address: u64, size: u64| {
        budget.set(budget.get().checked_sub(size)?);
        text(address, size)
    };
    let whole = |part: &Label<'_>| {
        let mut relation = Relation::Version;
        bases(part.name).find_map(|(name, step)| {
            relation = relation.max(step);
            let label = named.get(name)?.whole_of(part, relation, &text)?;
            Some(Whole { start: label.start, relation })
        })
    };
    hidden().map(|label| (label, whole(label))).collect()
}

/// Returns a name without its last suffix, without its last two, and so on, each with the meaning of the suffix before it.
fn bases(name: &str) -> impl Iterator<Item = (&str, Relation)> {
    std::iter::successors(shorter(name), |(name, _)| shorter(name)).take(SUFFIXES)
}

/// The functions of one name.
#[derive(Default)]
struct Named<'l, 'd> {
    /// The first one that is not local.
    global: Option<&'l Label<'d>>,
    /// The first one of each source file that is local to it.
    locals: HashMap<u32, &'l Label<'d>>,
    /// The first [`CANDIDATES`] of all.
    all: Vec<&'l Label<'d>>,
}

impl<'l, 'd> Named<'l, 'd> {
    fn add(&mut self, label: &'l Label<'d>) {
        match label.file.filter(|_| label.local) {
            Some(file) => _ = self.locals.entry(file).or_insert(label),
            None if !label.local => _ = self.global.get_or_insert(label),
            None => {}
        }
        if self.all.len() < CANDIDATES {
            self.all.push(label);
        }
    }

    /// Returns the function to which a part belongs that has its name.
    fn whole_of(
        &self,
        part: &Label<'_>,
        relation: Relation,
        text: &dyn Fn(u64, u64) -> Option<&'d [u8]>,
    ) -> Option<&'l Label<'d>> {
        let of_file = part.file.and_then(|file| self.locals.get(&file));
        let of_all = || self.global.filter(|whole| whole.name.starts_with("_Z"));
        let leads = |whole: &&Label<'_>| {
            text(whole.start, whole.size).is_some_and(|code| leads_to(code, whole.start, part.start))
        };
        // Other functions call a version, but not the function itself.
        let by_code = || self.all.iter().copied().find(|whole| relation != Relation::Version && leads(whole));
        of_file.copied().or_else(of_all).or_else(by_code)
    }
}

/// Whether the code contains a displacement at the end of an instruction, or a number, that leads to an
/// address.
fn leads_to(code: &[u8], address: u64, target: u64) -> bool {
    code.windows(4).zip(address + 4..).any(|(word, end)| {
        let word = word.first_chunk().map_or(0, |word| i32::from_le_bytes(*word));
        end.wrapping_add_signed(word.into()) == target || i64::from(word) as u64 == target
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_suffix_means() {
        let all = |name: &'static str| {
            let steps = std::iter::successors(shorter(name), |(name, _)| shorter(name));
            steps.collect::<Vec<_>>()
        };
        assert_eq!(all("f.isra.0"), [("f", Relation::Version)]);
        assert_eq!(all("f.1.part.0"), [("f.1", Relation::Rest)]);
        let chain = [("f.constprop.0", Relation::Version), ("f", Relation::Version)];
        assert_eq!(all("f.constprop.0.isra.0"), chain);
        assert_eq!(all("main._omp_fn.0"), [("main", Relation::Piece)]);
        for other in ["f", "f.0", "f.llvm.123", "f.lto_priv.0", "f$1", ".part.0", "a..b"] {
            assert_eq!(all(other), [], "{other}");
        }
    }

    #[test]
    fn the_same_name_is_not_the_same_function() {
        let label = |name, start, local: bool, file| Label {
            start,
            size: 5,
            name,
            local,
            function: true,
            data: false,
            shown: !name.contains('.'),
            file,
        };
        // At 0x1000: jmp 0x2000.
        let code = [0xe9, 0xfb, 0x0f, 0, 0];
        let text = |start: u64, _: u64| Some(if start == 0x1000 { &code[..] } else { &[0; 5] });
        let find = |labels: &[Label<'static>]| wholes(labels, 0x1000, &text)[0].1.map(|whole| whole.start);
        let part = label("f.part.0", 0x2000, true, Some(1));
        assert_eq!(find(&[label("f", 0x1000, false, None), part]), Some(0x1000), "its code leads there");
        assert_eq!(find(&[label("f", 0x1100, false, None), part]), None, "another file's");
        assert_eq!(find(&[label("f", 0x1100, true, Some(2)), part]), None, "another file's");
        assert_eq!(find(&[label("f", 0x1100, true, Some(1)), part]), Some(0x1100));
        let version = label("f.isra.0", 0x2000, true, Some(1));
        assert_eq!(find(&[label("f", 0x1000, false, None), version]), None);
        let version = label("_Z1fv.isra.0", 0x2000, true, Some(1));
        assert_eq!(find(&[label("_Z1fv", 0x1100, false, None), version]), Some(0x1100));
    }
}
