//! Gives the records of a gmon.out to the symbols to which they belong.
//!
//! Arcs belong to the symbols of their addresses. The hits of a bin belong to the symbols that it covers, in proportion to the
//! bytes, as gprof has it (binutils 2.40, `gprof/hist.c`, `hist_assign_samples_1`): gprof counts addresses in units of two
//! bytes.

use std::collections::HashMap;

use gmon::{Histogram, Profile};
use gmon_run::{Block, Calls, Function, Hits, Recording};

use crate::load::samples::{Hit, Samples};

/// Nanoseconds of a second.
const SECOND: f64 = 1e9;
/// gprof's unit of addresses, in bytes.
const UNIT: u64 = 2;

/// A symbol, or code that is treated as one. It extends from its function's address to the next symbol.
#[derive(Clone, Debug, Default)]
pub(crate) struct Symbol {
    pub(crate) function: Function,
    /// The index of the symbol of which this is a part; what is in the part belongs to it.
    pub(crate) whole: Option<usize>,
}

/// The symbols of a profile's addresses.
pub(crate) struct Symbols {
    /// Sorted by address, one for each.
    pub(crate) list: Vec<Symbol>,
    /// The address after the last one.
    pub(crate) end: u64,
}

impl Symbol {
    pub(crate) fn new(name: &str, address: u64, size: u64) -> Symbol {
        let function = Function { name: name.to_owned(), address, size, ..Function::default() };
        Symbol { function, whole: None }
    }
}

impl Symbols {
    /// Returns the index of the symbol to which an address belongs.
    fn at(&self, address: u64) -> Option<usize> {
        let index = self.list.partition_point(|symbol| symbol.function.address <= address).checked_sub(1)?;
        (address < self.end).then(|| self.list[index].whole.unwrap_or(index))
    }
}

/// Adds what a profile has counted to the recording of a program: the functions that occur, calls and basic blocks. Returns the
/// samples, of which functions may have fractions.
pub(crate) fn charge(recording: &mut Recording, symbols: &Symbols, profile: &Profile) -> Samples {
    let mut known = Known { symbols, index: HashMap::new(), functions: &mut recording.functions };
    for arc in &profile.arcs {
        let Some(callee) = symbols.at(arc.to) else { continue };
        let callee = known.function(callee);
        let caller = symbols.at(arc.from).map(|from| known.function(from));
        let site = caller.map_or(0, |_| arc.from);
        recording.calls.push(Calls { program: 0, caller, site, callee, calls: arc.count });
    }
    let mut samples = Samples::default();
    for histogram in &profile.histograms {
        if histogram.rate > 0 {
            samples.period_ns = SECOND / f64::from(profile.rate().unwrap_or(histogram.rate).max(1));
        }
        samples.all = samples.all.saturating_add(histogram.hits());
        add_hits(&mut samples.hits, histogram, symbols, &mut known);
    }
    let block =
        |block: &gmon::Block| Block { address: block.addr, executions: block.count, ..Block::default() };
    recording.blocks = profile.blocks.iter().map(block).collect();
    recording.sample_period_ns = samples.period_ns.round() as u64;
    add_whole(recording, &samples);
    samples
}

/// Adds the samples to a recording, in which they are whole: each function has as many in all as the rounded sum of its fractions.
fn add_whole(recording: &mut Recording, samples: &Samples) {
    let mut sums = vec![(0.0_f64, 0_u64); recording.functions.len()];
    for hit in &samples.hits {
        let (exact, whole) = &mut sums[hit.function as usize];
        *exact += hit.samples;
        let before = std::mem::replace(whole, exact.round() as u64);
        let (function, address, samples) = (hit.function, hit.address, whole.saturating_sub(before));
        recording.hits.push(Hits { program: 0, function, address, samples });
    }
}

/// The functions that were found so far.
struct Known<'s> {
    symbols: &'s Symbols,
    index: HashMap<usize, u32>,
    functions: &'s mut Vec<Function>,
}

impl Known<'_> {
    fn function(&mut self, symbol: usize) -> u32 {
        *self.index.entry(symbol).or_insert_with(|| {
            self.functions.push(self.symbols.list[symbol].function.clone());
            self.functions.len() as u32 - 1
        })
    }
}

fn add_hits(into: &mut Vec<Hit>, histogram: &Histogram, symbols: &Symbols, known: &mut Known) {
    let list = &symbols.list;
    let unit_of = |index: usize| {
        list.get(index).map_or(symbols.end.div_ceil(UNIT), |next| next.function.address / UNIT)
    };
    for (bin, &count) in histogram.bins.iter().enumerate().filter(|&(_, &count)| count > 0) {
        let (low, high) = (histogram.bin_address(bin), histogram.bin_address(bin + 1));
        // gprof drops the odd byte of a bin.
        let (from, to) = (low / UNIT, (high / UNIT).max(low / UNIT + 1));
        let units = (to - from) as f64;
        let mut index =
            list.partition_point(|symbol| symbol.function.address / UNIT <= from).saturating_sub(1);
        while index < list.len() && unit_of(index) < to {
            let overlap = unit_of(index + 1).min(to).saturating_sub(unit_of(index).max(from));
            if overlap > 0 {
                let symbol = list[index].whole.unwrap_or(index);
                let function = known.function(symbol);
                let samples = count as f64 * overlap as f64 / units;
                into.push(Hit { function, address: low.max(list[index].function.address), samples });
            }
            index += 1;
        }
    }
}
