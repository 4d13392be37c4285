//! Cold parts: the unlikely blocks of a function, moved away, jumped into and never called.
//!
//! Names alone do not tell:
//!
//! - `f.cold`: gcc 9 and later, clang's machine function splitter. Always a part.
//! - `f.__part.3`: clang's basic block sections. Always a part.
//! - `f.cold.3`: gcc 8 (a part), BOLT (a part), but also clang's hot-cold splitting, which outlines a real
//!   function that is called or tail-called.
//!
//! So a numbered one is a part unless its frame starts as a function's does (CFA = rsp + 8) and clang had
//! a hand in the program and BOLT had none. Should a part of gcc 8's slip through (a program of both
//! compilers, a part of a leaf function) it is entered like a tail call, which does no harm but a count.
//!
//! Whatever its name, what starts with another frame than a function's cannot be called.

use super::elf::Elf;
use super::symbols::Label;
use std::collections::HashMap;

/// The name of the function whose cold part has this name: `f` for `f.cold` and `f.cold.3`.
pub(super) fn parent_name(name: &str) -> Option<&str> {
    if let Some(parent) = name.strip_suffix(".cold") {
        return Some(parent);
    }
    let name = numberless(name)?;
    name.strip_suffix(".cold.").or_else(|| name.strip_suffix(".__part."))
}

/// The name without the number at its end, if it has one.
fn numberless(name: &str) -> Option<&str> {
    // Nearly every name ends here.
    if !name.as_bytes().last()?.is_ascii_digit() {
        return None;
    }
    Some(name.trim_end_matches(|letter: char| letter.is_ascii_digit()))
}

/// What made the program, as far as it matters for the meaning of `f.cold.3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Makers {
    outlines: bool,
}

impl Makers {
    pub(super) fn of(elf: &Elf<'_>) -> Self {
        let comment = elf.section(b".comment").and_then(|section| section.bytes).unwrap_or_default();
        let clang = comment.split(|&byte| byte == 0).any(|maker| contains(maker, b"clang"));
        let bolt = elf.section(b".note.bolt_info").is_some() || elf.section(b".bolt.org.text").is_some();
        Makers { outlines: clang && !bolt }
    }

    /// Whether something that has the name of a cold part is one.
    pub(super) fn is_part(self, name: &str, frame: Option<bool>) -> bool {
        let numbered = numberless(name).is_some_and(|name| name.ends_with(".cold."));
        !(numbered && self.outlines && frame != Some(false))
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

/// A cold part whose function is looked for.
#[derive(Debug)]
pub(super) struct Orphan<'d> {
    /// Index in the list of functions.
    pub(super) part: usize,
    pub(super) parent: &'d str,
    pub(super) file: u32,
}

/// Which symbols may be meant by a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Scope {
    File(u32),
    Global,
    /// A local symbol of any object file: taken only if there is just one.
    Anywhere,
}

#[derive(Clone, Copy)]
enum Found {
    Nothing,
    At(u64),
    Several,
}

/// The addresses of the orphans' functions: the local one of the same object file, the global one, or the
/// only one there is.
pub(super) fn parents(orphans: &[Orphan<'_>], labels: &[Label<'_>]) -> Vec<Option<u64>> {
    let mut wanted: HashMap<(&str, Scope), Found> = HashMap::with_capacity(orphans.len() * 3);
    for orphan in orphans {
        for scope in [Scope::File(orphan.file), Scope::Global, Scope::Anywhere] {
            wanted.insert((orphan.parent, scope), Found::Nothing);
        }
    }
    if wanted.is_empty() {
        return Vec::new();
    }
    for label in labels {
        let scopes: &[Scope] =
            if label.local { &[Scope::Anywhere, Scope::File(label.file)] } else { &[Scope::Global] };
        for &scope in scopes {
            // Not wanted anywhere: not wanted in a file.
            let Some(found) = wanted.get_mut(&(label.name, scope)) else { break };
            *found = match *found {
                Found::Nothing => Found::At(label.address),
                Found::At(address) if address == label.address => Found::At(address),
                _ => Found::Several,
            };
        }
    }
    let find = |orphan: &Orphan<'_>| {
        [Scope::File(orphan.file), Scope::Global, Scope::Anywhere].into_iter().find_map(|scope| match wanted
            .get(&(orphan.parent, scope))
        {
            Some(&Found::At(address)) => Some(address),
            _ => None,
        })
    };
    orphans.iter().map(find).collect()
}
