//! Counts by source line and by file.

use std::collections::{BTreeMap, HashMap};

use crate::lines::{FileIndex, Lines, Location};
use crate::report::Report;

/// Columns of the reports by function and file, in the terms of Weinberger's and Bishop's listings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Instructions executed.
    pub ie: u64,
    /// Calls.
    pub calls: u64,
    /// Instructions.
    pub i: u64,
    /// Instructions never executed.
    pub ine: u64,
    /// Basic blocks executed.
    pub bbe: u64,
    /// Basic blocks.
    pub bb: u64,
    /// Basic blocks never executed.
    pub bbne: u64,
}

impl Sums {
    pub(crate) fn add_block(&mut self, count: u64) {
        self.bb += 1;
        self.bbe = self.bbe.saturating_add(count);
        self.bbne += u64::from(count == 0);
    }

    pub(crate) fn add_instructions(&mut self, count: u64, instructions: u64) {
        self.i += instructions;
        self.ie = self.ie.saturating_add(count.saturating_mul(instructions));
        self.ine += if count == 0 { instructions } else { 0 };
    }

    pub fn add(&mut self, other: &Sums) {
        self.ie = self.ie.saturating_add(other.ie);
        self.calls = self.calls.saturating_add(other.calls);
        self.bbe = self.bbe.saturating_add(other.bbe);
        self.i += other.i;
        self.ine += other.ine;
        self.bb += other.bb;
        self.bbne += other.bbne;
    }
}

/// All lines and files that have code.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub lines: BTreeMap<Location, LineCounts>,
    pub files: BTreeMap<FileIndex, FileCounts>,
}

/// A line's counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Each copy of the line's code, by address.
    pub copies: Vec<Copy>,
}

/// The code of a line in one function, or in one function inlined at one place: templates are functions
/// of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The function, as an index into [`Report::functions`].
    pub function: usize,
    /// Its first instruction.
    pub address: u64,
    /// The inlined calls that it is part of, innermost first; empty for the function's own code.
    inlined: Vec<usize>,
    /// The parts of blocks that are the line's, by address; None where the function was not counted.
    pub blocks: Option<Vec<(u64, u64)>>,
    /// Instructions executed.
    pub ie: u64,
}

/// A file's counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    pub sums: Sums,
    /// Functions that begin in it, as indices, with their lines.
    pub functions: Vec<(usize, u32)>,
}

impl Copy {
    /// How often the line ran, by [`LineCounts::count`]'s rule.
    pub fn count(&self) -> Option<u64> {
        self.blocks.as_ref().map(|blocks| blocks.iter().map(|&(_, count)| count).max().unwrap_or(0))
    }

    pub fn is_inlined(&self) -> bool {
        !self.inlined.is_empty()
    }
}

impl LineCounts {
    /// How often the line ran; None if none of its code was counted.
    ///
    /// The most that any of its blocks ran, summed over the copies of its code. A `for` line has a block
    /// each for the start, the test and the step; the test runs most often.
    pub fn count(&self) -> Option<u64> {
        self.copies.iter().filter_map(Copy::count).reduce(u64::saturating_add)
    }

    /// Did some of its code run, and some never?
    pub fn is_partial(&self) -> bool {
        let mut counts = self.copies.iter().filter_map(|copy| copy.blocks.as_ref()).flatten();
        self.count() > Some(0) && counts.any(|&(_, count)| count == 0)
    }

    pub fn ie(&self) -> u64 {
        self.copies.iter().fold(0, |sum, copy| sum.saturating_add(copy.ie))
    }
}

pub(crate) fn tally(report: &Report, lines: &Lines) -> Tally {
    let mut tally = Tally::default();
    for index in 0..report.functions.len() {
        add_function(&mut tally, report, lines, index);
        if let Some(location) = lines.location(report.functions[index].symbol.start)
            && report.functions[index].part_of.is_none()
        {
            let file = tally.files.entry(location.file).or_default();
            file.functions.push((index, location.line));
            if report.is_counted(index) {
                file.sums.calls = file.sums.calls.saturating_add(report.functions[index].calls);
            }
        }
    }
    for line in tally.lines.values_mut() {
        line.copies.sort_by_key(|copy| copy.address);
    }
    tally
}

fn add_function(tally: &mut Tally, report: &Report, lines: &Lines, function: usize) {
    let counted = report.is_counted(function);
    let whole = report.whole(function);
    let mut blocks = report.functions[function].blocks.iter().flatten().peekable();
    // (line, inlined calls) -> the copy, and the block that its last part is of.
    let mut copies: HashMap<(Location, Vec<usize>), (usize, u64)> = HashMap::new();
    let mut block = 0;
    for step in report.steps(function) {
        let address = step.instruction.ip();
        let location = lines.location(address);
        if let Some(next) = blocks.next_if(|block| block.start == address) {
            block = next.start;
            if let Some(location) = location {
                tally.files.entry(location.file).or_default().sums.add_block(next.count);
            }
        }
        // Padding in a function that was counted is nobody's.
        let (Some(location), true) = (location, step.count.is_some() || !counted) else { continue };
        if let Some(count) = step.count {
            tally.files.entry(location.file).or_default().sums.add_instructions(count, 1);
        }
        let inlined = lines.inlined(address);
        let line = tally.lines.entry(location).or_default();
        let key = (location, inlined);
        let (copy, last_block) = match copies.get_mut(&key) {
            Some((copy, last_block)) => (*copy, Some(last_block)),
            None => {
                // The cold part's code of the line, if that came first.
                let found = line.copies.iter().position(|c| c.function == whole && c.inlined == key.1);
                let copy = found.unwrap_or_else(|| {
                    let inlined = key.1.clone();
                    let blocks = counted.then(Vec::new);
                    line.copies.push(Copy { function: whole, address, inlined, blocks, ie: 0 });
                    line.copies.len() - 1
                });
                copies.insert(key, (copy, block));
                (copy, None)
            }
        };
        let copy = &mut line.copies[copy];
        copy.address = copy.address.min(address);
        let Some(count) = step.count else { continue };
        copy.ie = copy.ie.saturating_add(count);
        let goes_on = last_block.as_deref() == Some(&block);
        if let Some(last_block) = last_block {
            *last_block = block;
        }
        if !goes_on {
            copy.blocks.get_or_insert_default().push((address, count));
        }
    }
}
