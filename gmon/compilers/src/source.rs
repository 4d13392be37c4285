//! Counts by place in the source: a tree for each function, with the functions that were inlined into it.
//!
//! A place is a line, counted from the line of the function's declaration on so that changes elsewhere in the file do not matter, and
//! a discriminator, which tells apart the basic blocks of one line. Its count is the highest one of its instructions, because code that
//! the compiler has moved may run less often than the place; and it is multiplied by the number of copies that the compiler has made of
//! the place, which LLVM writes into the discriminator (`llvm/IR/DebugInfoMetadata.h`, "DWARF discriminators"). Copies of a whole
//! function are added.

use std::collections::BTreeMap;

use gmon_blocks::Step;
use gprofinject_image::positions::{Compiler, Position, Positions};
use gprofinject_image::x86::is_call;
use iced_x86::FlowControl;

use crate::module::{Module, Names, is_part};

/// A place in a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The line, less that of the function's declaration, modulo 2^16 as compilers count.
    pub line: u16,
    /// What remains of the discriminator for basic blocks, without the number of copies.
    pub discriminator: u32,
}

/// What is known of a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub count: u64,
    /// The functions that were called there.
    pub callees: BTreeMap<String, Callee>,
}

/// The calls of a function from a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Callee {
    pub calls: u64,
    /// Whether the place names another function, or none, so that only the run knows this one.
    pub is_indirect: bool,
}

/// The counts of a function, or of one that was inlined at a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// The number of calls; 0 if it was inlined.
    pub head: u64,
    pub places: BTreeMap<Place, Count>,
    pub inlined: BTreeMap<(Place, String), Function>,
}

/// The counts of a program by place in the source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    pub functions: BTreeMap<String, Function>,
    pub facts: Facts,
}

/// What a profile covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The functions that ran and that are in the profile.
    pub functions: usize,
    /// The functions that ran and whose blocks were counted.
    pub counted: usize,
    /// The functions that were called and whose blocks were not counted.
    pub uncounted: usize,
    /// The instructions that counted functions executed.
    pub executed: u64,
    /// Those of them that have a place.
    pub placed: u64,
    /// The places that ran.
    pub places: usize,
    /// The places with code that ran differently often, which no discriminator tells apart.
    pub mixed: usize,
    /// The functions by LLVM's compilers with several blocks, and those of them without any discriminator.
    pub of_llvm: usize,
    pub without_discriminators: usize,
    /// The functions by gcc.
    pub of_gcc: usize,
}

impl Function {
    /// Returns the sum of the counts of all places, also of what was inlined.
    pub fn total(&self) -> u64 {
        let own = self.places.values().fold(0_u64, |sum, place| sum.saturating_add(place.count));
        self.inlined.values().fold(own, |sum, inlined| sum.saturating_add(inlined.total()))
    }

    /// Adds the counts of another copy.
    pub fn add(&mut self, other: &Function) {
        self.head = self.head.saturating_add(other.head);
        for (place, count) in &other.places {
            let sum = self.places.entry(*place).or_default();
            sum.count = sum.count.saturating_add(count.count);
            for (name, callee) in &count.callees {
                let known = sum.callees.entry(name.clone()).or_default();
                known.calls = known.calls.saturating_add(callee.calls);
                known.is_indirect |= callee.is_indirect;
            }
        }
        for (place, inlined) in &other.inlined {
            self.inlined.entry(place.clone()).or_default().add(inlined);
        }
    }
}

impl Source {
    /// Adds what a module's counts say.
    pub fn add(&mut self, module: &Module, positions: &Positions) {
        let names = Names { code: module.code(), positions };
        for (index, function) in module.report.functions.iter().enumerate() {
            if function.part_of.is_some() {
                continue;
            }
            if function.blocks.is_none() {
                self.facts.uncounted += usize::from(module.calls_of(function.symbol.start) > 0);
                continue;
            }
            self.add_function(module, &names, index);
        }
        self.facts.functions = self.functions.len();
    }

    /// Adds a function with its `.cold` parts.
    fn add_function(&mut self, module: &Module, names: &Names, index: usize) {
        let function = &module.report.functions[index];
        let mut copy =
            Copy { names, module, found: BTreeMap::new(), seen: BTreeMap::new(), executed: 0, placed: 0 };
        let mut blocks = 0;
        for &part in [index].iter().chain(module.report.parts(index)) {
            blocks += module.report.functions[part].blocks.as_ref().map_or(0, Vec::len);
            for step in module.report.steps(part) {
                copy.add(&step);
            }
        }
        let facts = &mut self.facts;
        facts.executed = facts.executed.saturating_add(copy.executed);
        facts.placed = facts.placed.saturating_add(copy.placed);
        if copy.executed == 0 {
            return;
        }
        facts.counted += 1;
        facts.places += copy.seen.len();
        facts.mixed += copy.seen.values().filter(|(least, most)| least < most).count();
        let of = names.positions.function_at(function.symbol.start);
        match of.map(|(_, compiler)| compiler) {
            Some(Compiler::Llvm) if blocks > 1 => {
                facts.of_llvm += 1;
                let symbol = &function.symbol;
                facts.without_discriminators +=
                    usize::from(!names.positions.has_discriminators(symbol.start, symbol.end()));
            }
            Some(Compiler::Gcc) => facts.of_gcc += 1,
            _ => {}
        }
        let whole = of.map(|(function, _)| function.name.clone());
        for (name, mut found) in copy.found {
            // A part of a function that was split off is called by what remains of it.
            if whole.as_ref() == Some(&name) && !is_part(&function.symbol.name) {
                found.head = function.calls;
            }
            self.functions.entry(name).or_default().add(&found);
        }
    }
}

/// One copy of a function's code.
struct Copy<'c> {
    names: &'c Names<'c>,
    module: &'c Module<'c>,
    found: BTreeMap<String, Function>,
    /// The lowest and the highest count of each place.
    seen: BTreeMap<Vec<Position>, (u64, u64)>,
    executed: u64,
    placed: u64,
}

impl Copy<'_> {
    /// Adds an instruction.
    fn add(&mut self, step: &Step) {
        let Some(count) = step.count else { return };
        let (instruction, names) = (&step.instruction, self.names);
        self.executed = self.executed.saturating_add(count);
        let address = instruction.ip();
        let Some(path) = names.positions.at(address) else { return };
        let Some((root, compiler)) = names.positions.function_at(address) else { return };
        let Some((last, outer)) = path.split_last() else { return };
        self.placed = self.placed.saturating_add(count);
        let mut function = self.found.entry(root.name.clone()).or_default();
        let named = |position: &Position| names.positions.functions().get(position.function as usize);
        for (position, inner) in outer.iter().zip(&path[1..]) {
            let (Some(of), Some(inner)) = (named(position), named(inner)) else { return };
            let place = place(position, of.line, compiler).0;
            function = function.inlined.entry((place, inner.name.clone())).or_default();
        }
        let Some(of) = named(last) else { return };
        let (place, copies) = place(last, of.line, compiler);
        let count = count.saturating_mul(copies);
        let known = function.places.entry(place).or_default();
        known.count = known.count.max(count);
        for (name, callee) in callees(self.module, names, step) {
            let known = known.callees.entry(name).or_default();
            known.calls = known.calls.max(callee.calls.saturating_mul(copies));
            known.is_indirect |= callee.is_indirect;
        }
        if count > 0 {
            let seen = self.seen.entry(path).or_insert((count, count));
            *seen = (seen.0.min(count), seen.1.max(count));
        }
    }
}

/// Returns the functions that an instruction has called, by a call or by a jump at a function's end.
fn callees(module: &Module, names: &Names, step: &Step) -> Vec<(String, Callee)> {
    let instruction = &step.instruction;
    let target = match instruction.flow_control() {
        FlowControl::Call | FlowControl::UnconditionalBranch => Some(instruction.near_branch_target()),
        FlowControl::IndirectCall => None,
        _ => return Vec::new(),
    };
    let is_jump = !is_call(instruction);
    let functions = module.code().functions();
    let begins = |address| functions.binary_search_by_key(&address, |function| function.start).is_ok();
    if let Some(target) = target.filter(|&target| begins(target)) {
        let name = names.of_function(target).filter(|_| {
            !is_jump || module.code().function_at(target) != module.code().function_at(instruction.ip())
        });
        let calls = step.count.unwrap_or(0);
        return name
            .map(|name| (name.to_owned(), Callee { calls, is_indirect: false }))
            .into_iter()
            .collect();
    }
    if is_jump {
        return Vec::new();
    }
    // A call by way of the linkage table names its function in the source.
    let is_indirect = target.is_none();
    let callee =
        |(address, calls)| Some((names.of_function(address)?.to_owned(), Callee { calls, is_indirect }));
    module.callees(instruction).filter_map(callee).collect()
}

/// Returns a position as a place in a function declared at `line`, and the number of copies that the compiler has made of it.
fn place(position: &Position, line: u32, compiler: Compiler) -> (Place, u64) {
    let line = position.line.wrapping_sub(line) as u16;
    match compiler {
        Compiler::Llvm => {
            let (discriminator, copies) = decoded(position.discriminator);
            (Place { line, discriminator }, copies)
        }
        Compiler::Gcc | Compiler::Other => (Place { line, discriminator: position.discriminator }, 1),
    }
}

/// Returns the two parts of a discriminator of LLVM's that matter here: the one that tells basic blocks apart, and the number of copies.
///
/// Each part is a number in prefix code: a set lowest bit is 0; otherwise 5 bits follow and a bit that says whether there are 7 more.
fn decoded(discriminator: u32) -> (u32, u64) {
    let number = |bits: u32| match (bits & 1, bits & 0x40) {
        (1, _) => 0,
        (_, 0) => bits >> 1 & 0x1f,
        _ => bits >> 2 & 0xfe0 | bits >> 1 & 0x1f,
    };
    let rest = match (discriminator & 1, discriminator & 0x40) {
        (1, _) => discriminator >> 1,
        (_, 0) => discriminator >> 7,
        _ => discriminator >> 14,
    };
    (number(discriminator), u64::from(number(rest).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Discriminators as clang writes them: the number of the block, that of copies, and what follows.
    #[test]
    fn parts_of_discriminators() {
        for (discriminator, expected) in [
            (0, (0, 1)),
            // Block 1 and block 31, without copies.
            (1 << 1, (1, 1)),
            (31 << 1, (31, 1)),
            // Block 33: the low five bits, the mark, and the high seven bits.
            ((1 << 1) | 0x40 | (1 << 7), (33, 1)),
            // Block 0 in four copies; block 2 in four.
            (1 | (4 << 2), (0, 4)),
            ((2 << 1) | (4 << 8), (2, 4)),
        ] {
            assert_eq!(decoded(discriminator), expected, "{discriminator:#x}");
        }
    }

    #[test]
    fn places_count_from_the_declaration() {
        let position = |line| Position { function: 0, line, discriminator: 0 };
        assert_eq!(place(&position(12), 10, Compiler::Gcc).0.line, 2);
        // A line before the declaration, of a macro for example.
        assert_eq!(place(&position(8), 10, Compiler::Llvm).0.line, 0xfffe);
    }

    #[test]
    fn copies_are_added() {
        let place = Place { line: 1, discriminator: 0 };
        let mut function = Function { head: 1, ..Function::default() };
        let callees = BTreeMap::from([("f".to_owned(), Callee { calls: 3, is_indirect: true })]);
        function.places.insert(place, Count { count: u64::MAX - 1, callees });
        function
            .inlined
            .entry((place, "g".to_owned()))
            .or_default()
            .places
            .insert(place, Count { count: 5, ..Count::default() });
        let copy = function.clone();
        function.add(&copy);
        assert_eq!(function.head, 2);
        assert_eq!(function.places[&place].count, u64::MAX);
        assert_eq!(function.places[&place].callees["f"].calls, 6);
        assert_eq!(function.inlined[&(place, "g".to_owned())].total(), 10);
        assert_eq!(function.total(), u64::MAX);
    }
}
