//! Sums the counts by source line and by file.

use std::collections::{BTreeMap, HashMap};

use crate::counts::Sums;
use crate::flow::Flow;
use crate::report::Report;
use gprofinject_image::debug::{FileIndex, Lines, Location};

/// All lines and files that have code.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub lines: BTreeMap<Location, LineCounts>,
    pub files: BTreeMap<FileIndex, FileCounts>,
}

/// The counts of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// The instances of the line's code, by address.
    pub instances: Vec<Instance>,
}

/// The code of a line in one function, or in one function that was inlined at one place. Each instance of a
/// template is a function of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The index of the function in [`Report::functions`].
    pub function: usize,
    /// The address of its first instruction.
    pub address: u64,
    /// The inlined calls of which it is a part, the innermost first; empty for the function's own code.
    inlined: Vec<usize>,
    /// The line's parts of basic blocks, by address; `None` if the function was not counted.
    pub blocks: Option<Vec<(u64, u64)>>,
    /// How often the line ran, by the rule of [`LineCounts::count`].
    executions: u64,
    /// The number of executed instructions.
    pub ie: u64,
}

/// The counts of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    pub sums: Sums,
    /// The indices of the functions that begin in it, with their lines.
    pub functions: Vec<(usize, u32)>,
}

impl Instance {
    /// Returns how often the line ran, by the rule of [`LineCounts::count`], or `None` if it was not counted.
    pub fn count(&self) -> Option<u64> {
        self.blocks.as_ref().map(|_| self.executions)
    }

    /// Whether the code is part of an inlined call.
    pub fn is_inlined(&self) -> bool {
        !self.inlined.is_empty()
    }
}

impl LineCounts {
    /// Returns how often the line ran, or `None` if none of its code was counted.
    ///
    /// This is the largest count of its basic blocks: a `for` line has a block each for the start, the test
    /// and the step, of which the test runs most often. Counts of blocks of which none leads to the other are
    /// added, such as those of two ends of a function that both clean up. So are the counts of the line's
    /// instances.
    pub fn count(&self) -> Option<u64> {
        self.instances.iter().filter_map(Instance::count).reduce(u64::saturating_add)
    }

    /// Whether some of its code ran, and some never did.
    pub fn is_partial(&self) -> bool {
        let mut counts = self.instances.iter().filter_map(|instance| instance.blocks.as_ref()).flatten();
        self.count() > Some(0) && counts.any(|&(_, count)| count == 0)
    }

    /// Returns the number of executed instructions.
    pub fn ie(&self) -> u64 {
        self.instances.iter().fold(0, |sum, instance| sum.saturating_add(instance.ie))
    }
}

impl Tally {
    /// Returns the sums of a report by line and by file, or nothing without line information.
    pub fn of(report: &Report) -> Tally {
        report.lines.map(|lines| tally(report, lines)).unwrap_or_default()
    }
}

fn tally(report: &Report, lines: &Lines) -> Tally {
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
    let made_up = |instance: &Instance| is_made_up(&report.functions[instance.function].symbol.name);
    let mut by_function: HashMap<usize, Vec<&mut Instance>> = HashMap::new();
    for line in tally.lines.values_mut() {
        line.instances.sort_by_key(|instance| instance.address);
        if !line.instances.iter().all(made_up) {
            line.instances.retain(|instance| !made_up(instance));
        }
        for instance in &mut line.instances {
            by_function.entry(instance.function).or_default().push(instance);
        }
    }
    for (function, instances) in by_function {
        let mut flow = flow(report, function);
        for instance in instances {
            instance.executions = flow.executions(instance.blocks.as_deref().unwrap_or_default());
        }
    }
    tally
}

/// Analyses a function with its parts.
fn flow(report: &Report, function: usize) -> Flow {
    let entry = report.functions[function].symbol.start;
    let parts = std::iter::once(function).chain(report.parts(function).iter().copied());
    let mut blocks: Vec<_> =
        parts.flat_map(|part| report.functions[part].blocks.iter().flatten().copied()).collect();
    blocks.sort_by_key(|block| block.start);
    Flow::new(report.code, blocks, entry)
}

/// Whether a function is one in which the compiler calls the constructors of static objects. Such functions
/// begin and end on lines with which they have nothing to do, so they count only on lines that have no other
/// code.
fn is_made_up(name: &str) -> bool {
    name.starts_with("_GLOBAL__sub_") || name.starts_with("_Z41__static_initialization_and_destruction_0")
}

fn add_function(tally: &mut Tally, report: &Report, lines: &Lines, function: usize) {
    let counted = report.is_counted(function);
    let whole = report.whole(function);
    let mut blocks = report.functions[function].blocks.iter().flatten().peekable();
    // By line and inlined calls: the instance, and the block to which its last part belongs.
    let mut instances: HashMap<(Location, Vec<usize>), (usize, u64)> = HashMap::new();
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
        // Padding in a function that was counted belongs to no line.
        let (Some(location), true) = (location, step.count.is_some() || !counted) else { continue };
        if let Some(count) = step.count {
            tally.files.entry(location.file).or_default().sums.add_instructions(count, 1);
        }
        let inlined = lines.inlined(address);
        let line = tally.lines.entry(location).or_default();
        let key = (location, inlined);
        let (instance, last_block) = match instances.get_mut(&key) {
            Some((instance, last_block)) => (*instance, Some(last_block)),
            None => {
                // The code of the line in the cold part, if that came first.
                let found = line.instances.iter().position(|c| c.function == whole && c.inlined == key.1);
                let instance = found.unwrap_or_else(|| {
                    let inlined = key.1.clone();
                    let blocks = counted.then(Vec::new);
                    let (function, executions, ie) = (whole, 0, 0);
                    line.instances.push(Instance { function, address, inlined, blocks, executions, ie });
                    line.instances.len() - 1
                });
                instances.insert(key, (instance, block));
                (instance, None)
            }
        };
        let instance = &mut line.instances[instance];
        instance.address = instance.address.min(address);
        let Some(count) = step.count else { continue };
        instance.ie = instance.ie.saturating_add(count);
        let goes_on = last_block.as_deref() == Some(&block);
        if let Some(last_block) = last_block {
            *last_block = block;
        }
        if !goes_on {
            instance.blocks.get_or_insert_default().push((address, count));
        }
    }
}
