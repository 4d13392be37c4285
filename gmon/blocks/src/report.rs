//! What the counts of basic blocks say about functions, blocks and instructions.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use iced_x86::Instruction;

use crate::counts::{BlockCounts, FunctionCounts, Step, Sums};
use gmon::Function;
use gmon::{Arc, Block, Profile};
use gprofinject_image::debug::Lines;
use gprofinject_image::instructions::Code;
use gprofinject_image::names::suffixes::before_cold;
use gprofinject_image::x86::{goes_on, is_direct_branch};

/// The counts of a program's functions, ready to be shown.
pub struct Report<'p> {
    pub code: &'p Code,
    pub lines: Option<&'p Lines>,
    /// The functions, sorted by address.
    pub functions: Vec<FunctionCounts>,
    records: Vec<Block>,
    /// The `.cold` parts of each function that has any.
    parts: HashMap<usize, Vec<usize>>,
}

impl<'p> Report<'p> {
    /// Makes a report. `profile` may be the sum of several runs; see [`align`](crate::split::align).
    pub fn new(profile: &Profile, code: &'p Code, lines: Option<&'p Lines>) -> Report<'p> {
        let mut records = profile.blocks.clone();
        records.sort_unstable();
        let symbols = with_nameless(code, &records, &profile.arcs);
        let wholes = wholes(code, &symbols);
        let mut functions: Vec<_> = symbols
            .into_iter()
            .zip(wholes)
            .map(|(symbol, part_of)| FunctionCounts { symbol, calls: 0, blocks: None, part_of })
            .collect();
        count_calls(&mut functions, &profile.arcs);
        let mut parts: HashMap<usize, Vec<usize>> = HashMap::new();
        for (index, function) in functions.iter().enumerate() {
            if let Some(whole) = function.part_of {
                parts.entry(whole).or_default().push(index);
            }
        }
        let mut report = Report { code, lines, functions, records, parts };
        let targets = report.branch_targets();
        let starts = lines.map(Lines::starts).unwrap_or_default();
        for index in 0..report.functions.len() {
            let blocks = report.blocks(index, &targets, &starts);
            let function = &mut report.functions[index];
            // A function that gprof cannot show has no arcs.
            let may_be_hidden = function.calls == 0 && function.symbol.name.contains(['.', '$']);
            if (profile.arcs.is_empty() || may_be_hidden) && function.part_of.is_none() {
                let first = blocks.first().filter(|block| block.start == function.symbol.start);
                function.calls = first.map_or(0, |block| block.count);
            }
            function.blocks = Some(blocks).filter(|blocks| !blocks.is_empty());
        }
        report
    }

    /// Returns the function's records.
    fn records_of(&self, symbol: &Function) -> &[Block] {
        let from = self.records.partition_point(|record| record.addr < symbol.start);
        let to = self.records.partition_point(|record| record.addr < symbol.end());
        &self.records[from..to.max(from)]
    }

    /// Returns the instructions of a function in the order of their addresses.
    pub fn steps(&self, function: usize) -> Vec<Step> {
        let symbol = &self.functions[function].symbol;
        let mut records = self.records_of(symbol).iter().peekable();
        let mut steps = Vec::new();
        let (mut at, mut count) = (symbol.start, None);
        while at < symbol.end() {
            let begun = at;
            for instruction in self.code.instructions(at) {
                if at >= symbol.end() {
                    break;
                }
                let record = records.next_if(|record| record.addr == at);
                count = record.map_or(count, |record| Some(record.count));
                steps.push(Step { instruction, count, starts: record.is_some() });
                if !goes_on(&instruction) {
                    count = None;
                }
                at = instruction.next_ip();
                if let Some(record) = records.peek().filter(|record| record.addr < at) {
                    // The bytes before were data that was decoded as an instruction. The address of a record
                    // is an instruction in any case.
                    at = record.addr;
                    break;
                }
            }
            if at == begun {
                // There is no instruction, whatever a record says.
                (at, count) = (at + 1, None);
                while records.next_if(|record| record.addr < at).is_some() {}
            }
        }
        steps
    }

    /// Returns the targets of all direct branches in functions that were counted, sorted.
    fn branch_targets(&self) -> Vec<u64> {
        let mut targets = Vec::new();
        for (index, function) in self.functions.iter().enumerate() {
            if !self.records_of(&function.symbol).is_empty() {
                let steps = self.steps(index).into_iter();
                let branches = steps.filter(|step| is_direct_branch(&step.instruction));
                targets.extend(branches.map(|step| step.instruction.near_branch_target()));
            }
        }
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// Returns the function's basic blocks. A record where a line begins within a block does not begin a
    /// block; see [`at_lines`](crate::split::at_lines).
    fn blocks(&self, function: usize, targets: &[u64], line_starts: &[u64]) -> Vec<BlockCounts> {
        if self.records_of(&self.functions[function].symbol).is_empty() {
            return Vec::new();
        }
        let mut blocks: Vec<BlockCounts> = Vec::new();
        let mut before: Option<Step> = None;
        for step in self.steps(function) {
            let (start, end) = (step.instruction.ip(), step.instruction.next_ip());
            let within = before.is_some_and(|before| {
                before.count == step.count
                    && before.instruction.next_ip() == start
                    && goes_straight_on(&before.instruction)
                    && line_starts.binary_search(&start).is_ok()
                    && targets.binary_search(&start).is_err()
            });
            match (step.count, blocks.last_mut()) {
                (Some(_), Some(block)) if !step.starts || within => {
                    block.end = end;
                    block.instructions += 1;
                }
                (Some(count), _) => blocks.push(BlockCounts { start, end, count, instructions: 1 }),
                (None, _) => {}
            }
            before = Some(step);
        }
        blocks
    }

    /// Returns the function to which the calls and lines belong: the function itself, or the one of which it
    /// is a part.
    pub fn whole(&self, function: usize) -> usize {
        self.functions[function].part_of.unwrap_or(function)
    }

    /// Returns the `.cold` parts of a function.
    pub fn parts(&self, function: usize) -> &[usize] {
        self.parts.get(&function).map_or(&[], Vec::as_slice)
    }

    /// Whether the function has a record.
    pub fn is_counted(&self, function: usize) -> bool {
        self.functions[function].blocks.is_some()
    }

    /// Returns the sums of the function's blocks and instructions, without those of its parts.
    pub fn sums(&self, function: usize) -> Sums {
        let function = &self.functions[function];
        let mut sums = Sums { calls: function.calls, ..Sums::default() };
        for block in function.blocks.iter().flatten() {
            sums.add_block(block.count);
            sums.add_instructions(block.count, block.instructions);
        }
        sums
    }
}

/// Returns the code's functions. Where code with records has no symbol (in a stripped program), each address
/// that was called begins a function that extends to the next, and so does the code before the first of them.
fn with_nameless(code: &Code, records: &[Block], arcs: &[Arc]) -> Vec<Function> {
    let called: BTreeSet<u64> = arcs.iter().map(|arc| arc.to).collect();
    let mut nameless: Vec<Function> = Vec::new();
    for record in records.iter().filter(|record| code.function_at(record.addr).is_none()) {
        let Some(section) = code.section_at(record.addr) else { continue };
        let start = record.addr;
        match nameless.last_mut().filter(|last| start < last.end()) {
            Some(_) if !called.contains(&start) => continue,
            Some(last) => last.size = start - last.start,
            None => {}
        }
        let after = code.functions().partition_point(|function| function.start <= start);
        let next = code.functions().get(after).map_or(u64::MAX, |function| function.start);
        nameless.push(Function { start, size: section.end.min(next) - start, name: format!("{start:#x}") });
    }
    let mut functions = code.functions().to_vec();
    functions.append(&mut nameless);
    functions.sort_by_key(|function| function.start);
    functions
}

/// Returns for each function the one of which it is a `.cold` part. Of several functions with the same name
/// (static ones of several files), it is the one that branches to the part.
fn wholes(code: &Code, symbols: &[Function]) -> Vec<Option<usize>> {
    let mut named: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, symbol) in symbols.iter().enumerate() {
        named.entry(&symbol.name).or_default().push(index);
    }
    let whole = |part: &Function| {
        let candidates = named.get(before_cold(&part.name)?)?;
        let leads_there = |&&index: &&usize| {
            let end = symbols[index].end();
            let inside = code.instructions(symbols[index].start).take_while(|i| i.ip() < end);
            let mut targets = inside.filter(is_direct_branch).map(|branch| branch.near_branch_target());
            targets.any(|target| (part.start..part.end()).contains(&target))
        };
        match candidates.as_slice() {
            [only] => Some(*only),
            several => several.iter().find(leads_there).copied(),
        }
    };
    symbols.iter().map(whole).collect()
}

/// Adds the calls of arcs to the functions that contain their `to`.
fn count_calls(functions: &mut [FunctionCounts], arcs: &[Arc]) {
    let mut calls: BTreeMap<u64, u64> = BTreeMap::new();
    for arc in arcs {
        let sum = calls.entry(arc.to).or_default();
        *sum = sum.saturating_add(arc.count);
    }
    for function in functions {
        let range = function.symbol.start..function.symbol.end();
        function.calls = calls.range(range).fold(0, |sum, (_, &count)| sum.saturating_add(count));
    }
}

/// Whether an instruction is neither a branch nor a call, so that a basic block does not end after it.
fn goes_straight_on(instruction: &Instruction) -> bool {
    goes_on(instruction) && !is_direct_branch(instruction)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two static functions of one name, each with a cold part to which it branches.
    #[test]
    fn cold_parts_of_functions_of_one_name() {
        let je = |from: u64, to: u64| {
            let distance = (to - (from + 6)) as u32;
            [&[0x0f, 0x84][..], &distance.to_le_bytes(), &[0xc3]].concat()
        };
        let code = Code::of_bytes(&[
            (0x1000, "f", &je(0x1000, 0x2010)),
            (0x1010, "f", &je(0x1010, 0x2000)),
            (0x1020, "g", &je(0x1020, 0x2020)),
            (0x2000, "f.cold", &[0xc3]),
            (0x2010, "f.cold", &[0xc3]),
            (0x2020, "g.cold", &[0xc3]),
            (0x2030, "h.cold", &[0xc3]),
        ]);
        let expected = [None, None, None, Some(1), Some(0), Some(2), None];
        assert_eq!(wholes(&code, code.functions()), expected);
    }

    #[test]
    fn records_without_a_symbol() {
        let code = Code::of_bytes(&[(0x1000, "f", &[0x90, 0xc3])]);
        let record = |addr| Block { addr, count: 1 };
        assert_eq!(with_nameless(&code, &[record(0x1000)], &[]).len(), 1);
        assert_eq!(with_nameless(&Code::of_bytes(&[]), &[record(0x1000)], &[]), []);

        let mut bare = Code::of_bytes(&[(0x1000, "f", &[0x90; 32])]);
        bare.take_no_symbols();
        let records = [record(0x1000), record(0x1004), record(0x1008), record(0x1010)];
        let arcs = [0x1008, 0x1010].map(|to| Arc { from: 0x1000, to, count: 1 });
        let functions = with_nameless(&bare, &records, &arcs).into_iter();
        let functions: Vec<_> = functions.map(|f| (f.start, f.size, f.name)).collect();
        let name = |text: &str| text.to_owned();
        let expected =
            [(0x1000, 8, name("0x1000")), (0x1008, 8, name("0x1008")), (0x1010, 16, name("0x1010"))];
        assert_eq!(functions, expected);
    }
}
