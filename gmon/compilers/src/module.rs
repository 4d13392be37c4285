//! What is known of a module: its code, its counts, and its calls.

use std::collections::BTreeMap;

use gmon::Profile;
use gmon_blocks::Report;
use gprofinject_image::instructions::Code;
use gprofinject_image::names::suffixes::{Suffix, split};
use gprofinject_image::positions::Positions;
use iced_x86::Instruction;

/// A program or library with counts of basic blocks.
pub struct Module<'p> {
    pub report: Report<'p>,
    /// The arcs from each call site: the address within the call instruction, the address of the called function, and the calls.
    arcs: BTreeMap<(u64, u64), u64>,
    /// The calls of each address, from wherever.
    called: BTreeMap<u64, u64>,
}

impl<'p> Module<'p> {
    /// Returns what a profile says of some code.
    pub fn new(profile: &Profile, code: &'p Code) -> Module<'p> {
        let mut arcs: BTreeMap<(u64, u64), u64> = BTreeMap::new();
        let mut called: BTreeMap<u64, u64> = BTreeMap::new();
        for arc in &profile.arcs {
            let sums = [arcs.entry((arc.from, arc.to)).or_default(), called.entry(arc.to).or_default()];
            sums.into_iter().for_each(|sum| *sum = sum.saturating_add(arc.count));
        }
        Module { report: Report::new(profile, code, None), arcs, called }
    }

    /// The code of the module.
    pub fn code(&self) -> &'p Code {
        self.report.code
    }

    /// Whether calls were counted.
    pub fn has_arcs(&self) -> bool {
        !self.arcs.is_empty()
    }

    /// Returns all arcs: the address within each call instruction, the address of the called function, and the calls.
    pub(crate) fn all_arcs(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.arcs.iter().map(|(&(from, to), &calls)| (from, to, calls))
    }

    /// Returns the functions that a call or jump instruction has called, with the number of calls.
    pub(crate) fn callees(&self, instruction: &Instruction) -> impl Iterator<Item = (u64, u64)> {
        let within = (instruction.ip(), 0)..(instruction.next_ip(), 0);
        self.arcs.range(within).map(|(&(_, to), &calls)| (to, calls))
    }

    /// Returns how often an address was called, from wherever.
    pub(crate) fn calls_of(&self, address: u64) -> u64 {
        self.called.get(&address).copied().unwrap_or(0)
    }
}

/// The names of functions as compilers know them.
pub struct Names<'n> {
    pub code: &'n Code,
    pub positions: &'n Positions,
}

impl<'n> Names<'n> {
    /// Returns the name of the function that begins at an address, without what compilers add to the names of copies and parts.
    pub(crate) fn of_function(&self, address: u64) -> Option<&'n str> {
        if let Some((function, _)) = self.positions.function_at(address) {
            return Some(&function.name);
        }
        let functions = self.code.functions();
        let function = functions.get(self.code.function_at(address)?)?;
        (function.start == address).then(|| whole_name(&function.name))
    }
}

/// Returns a name without the suffixes that compilers add: `f` for `f.constprop.0`, `f.llvm.17` and `f.part.0.cold`.
pub(crate) fn whole_name(name: &str) -> &str {
    let mut name = name;
    loop {
        let shorter = split(name).map(|split| split.base).or_else(|| {
            // Those of local functions that became global.
            let (base, number) = name.rsplit_once('.')?;
            let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_hexdigit());
            let base = base.strip_suffix(".llvm").or_else(|| base.strip_suffix(".lto_priv"))?;
            (is_number && !base.is_empty()).then_some(base)
        });
        match shorter {
            Some(shorter) => name = shorter,
            None => return name,
        }
    }
}

/// Whether the name is that of a part of a function, whose first instruction is not the function's.
pub(crate) fn is_part(name: &str) -> bool {
    let mut name = name;
    while let Some(found) = split(name) {
        if !matches!(found.suffix, Suffix::Version) {
            return true;
        }
        name = found.base;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_suffixes() {
        for (name, whole, part) in [
            ("f", "f", false),
            ("f.constprop.0", "f", false),
            ("f.isra.0.cold", "f", true),
            ("f.part.0", "f", true),
            ("f.llvm.12345678901234", "f", false),
            ("f.lto_priv.3", "f", false),
            (".llvm.1", ".llvm.1", false),
            ("_ZN1a1bEv.cold", "_ZN1a1bEv", true),
            ("a.b", "a.b", false),
        ] {
            assert_eq!((whole_name(name), is_part(name)), (whole, part), "{name}");
        }
    }
}
