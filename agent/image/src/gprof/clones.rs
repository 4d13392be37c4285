//! Finds the function to which a hidden one belongs.
//!
//! Compilers name what they make of a function `f` by a suffix: `f.isra.0` is a version of it, `f.part.0` the
//! rest of it, `f.cold` a piece of it. A function `f` in the same program need not be the same one: two
//! source files may each have a function of that name, and `f` itself is often gone. So the names decide only
//! where no other function can have them: within a source file, and between C++ names that the whole program
//! shares. In all other cases, the code of `f` must lead to the part.

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

/// Returns the hidden labels in their order, with the functions to which they belong. `text` returns the code
/// at an address.
pub(crate) fn wholes<'l, 'd>(
    labels: &'l [Label<'d>],
    text: &dyn Fn(u64, u64) -> Option<&'d [u8]>,
) -> Vec<(&'l Label<'d>, Option<Whole>)> {
    let hidden = || labels.iter().filter(|label| !label.shown);
    // The names that are looked up, each with the labels that have it.
    let mut named: HashMap<&str, Vec<&Label<'_>>> = HashMap::new();
    for label in hidden() {
        let names = std::iter::successors(shorter(label.name), |(name, _)| shorter(name));
        named.extend(names.map(|(name, _)| (name, Vec::new())));
    }
    if !named.is_empty() {
        for label in labels.iter().filter(|label| label.shown && label.function) {
            if let Some(found) = named.get_mut(label.name) {
                found.push(label);
            }
        }
    }
    let whole = |part: &Label<'_>| {
        let mut relation = Relation::Version;
        let mut name = part.name;
        while let Some((whole, step)) = shorter(name) {
            (name, relation) = (whole, relation.max(step));
            let mut candidates = named.get(name).into_iter().flatten();
            if let Some(label) = candidates.find(|label| is_same(part, label, relation, text)) {
                return Some(Whole { start: label.start, relation });
            }
        }
        None
    };
    hidden().map(|label| (label, whole(label))).collect()
}

/// Whether the part belongs to this function, which has its name.
fn is_same<'d>(
    part: &Label<'_>,
    whole: &Label<'_>,
    relation: Relation,
    text: &dyn Fn(u64, u64) -> Option<&'d [u8]>,
) -> bool {
    if whole.local && whole.file.is_some() && whole.file == part.file {
        return true;
    }
    if !whole.local && whole.name.starts_with("_Z") {
        return true;
    }
    // Other functions call a version, but not the function itself.
    relation != Relation::Version
        && text(whole.start, whole.size).is_some_and(|code| leads_to(code, whole.start, part.start))
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
        let find = |labels: &[Label<'static>]| wholes(labels, &text)[0].1.map(|whole| whole.start);
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
