//! Gives the records of a gmon.out to the symbols to which they belong.
//!
//! Arcs belong to the symbols of their addresses. The hits of a bin belong to the symbols that it covers, in proportion to the
//! bytes, as gprof has it (binutils 2.40, `gprof/hist.c`, `hist_assign_samples_1`): gprof counts addresses in units of two
//! bytes.

use std::collections::HashMap;

use gmon::{Histogram, Profile};

use crate::load::names::demangle_all;
use crate::model::{Arc, Function, Run, Time};

/// Nanoseconds of a second.
const SECOND: f64 = 1e9;
/// gprof's unit of addresses, in bytes.
const UNIT: u64 = 2;

/// A symbol, or code that is treated as one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Symbol {
    /// The address at which its code begins. It extends to the next symbol.
    pub(crate) start: u64,
    pub(crate) name: String,
    /// The index of its module.
    pub(crate) module: Option<u32>,
    /// The link address in the module, and the size.
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The index of the symbol of which this is a part; what is in the part belongs to it.
    pub(crate) whole: Option<usize>,
}

/// The symbols of a profile's addresses.
pub(crate) struct Symbols {
    /// Sorted by start, one for each.
    pub(crate) list: Vec<Symbol>,
    /// The address after the last one.
    pub(crate) end: u64,
}

impl Symbols {
    /// Returns the index of the symbol to which an address belongs.
    fn at(&self, address: u64) -> Option<usize> {
        let index = self.list.partition_point(|symbol| symbol.start <= address).checked_sub(1)?;
        (address < self.end).then(|| self.list[index].whole.unwrap_or(index))
    }
}

/// The hits at an address of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hits {
    pub(crate) function: u32,
    pub(crate) address: u64,
    pub(crate) hits: f64,
}

/// Gives a profile's records to symbols. `run` gets the functions that occur, their arcs, calls and samples.
///
/// Returns the hits by address.
pub(crate) fn charge(run: &mut Run, symbols: &Symbols, profile: &Profile) -> Vec<Hits> {
    let mut known = Known { symbols, index: HashMap::new(), functions: Vec::new() };
    let mut arcs = Vec::with_capacity(profile.arcs.len());
    for arc in &profile.arcs {
        let Some(callee) = symbols.at(arc.to) else { continue };
        let callee = known.function(callee);
        let from = symbols.at(arc.from);
        let caller = from.map(|from| known.function(from));
        // What is charged to the start of a function has no call site: no call is the first instruction there.
        let is_site = |&at: &u64| from.is_some_and(|from| symbols.list[from].start != at);
        arcs.push(Arc {
            caller,
            callee,
            site: Some(arc.from).filter(is_site),
            calls: arc.count,
            ..Arc::default()
        });
    }
    let mut hits = Vec::new();
    let (mut all, mut period) = (0_u64, 0.0);
    for histogram in &profile.histograms {
        if histogram.rate > 0 {
            period = SECOND / f64::from(profile.rate().unwrap_or(histogram.rate).max(1));
        }
        all = all.saturating_add(histogram.hits());
        add_hits(&mut hits, histogram, symbols, &mut known);
    }
    run.functions = known.functions;
    run.arcs = arcs;
    run.sort_arcs();
    for arc in &run.arcs {
        let function = &mut run.functions[arc.callee as usize];
        function.calls = function.calls.saturating_add(arc.calls);
        if arc.caller != Some(arc.callee) {
            function.primitive = function.primitive.saturating_add(arc.calls);
        }
    }
    let mut sums = vec![0.0; run.functions.len()];
    hits.iter().for_each(|hit: &Hits| sums[hit.function as usize] += hit.hits);
    for (function, sum) in run.functions.iter_mut().zip(sums) {
        function.samples = sum.round() as u64;
        function.self_ns = (sum * period).round() as u64;
    }
    run.samples = all;
    run.sample_period_ns = period.round() as u64;
    run.time = if period > 0.0 { Time::Estimated } else { Time::None };
    demangle_all(&mut run.functions);
    hits
}

/// The functions that were found so far.
struct Known<'s> {
    symbols: &'s Symbols,
    index: HashMap<usize, u32>,
    functions: Vec<Function>,
}

impl Known<'_> {
    fn function(&mut self, symbol: usize) -> u32 {
        *self.index.entry(symbol).or_insert_with(|| {
            let Symbol { name, module, address, size, .. } = &self.symbols.list[symbol];
            let (module, address, size) = (*module, *address, *size);
            self.functions.push(Function {
                name: name.clone(),
                module,
                address,
                size,
                ..Function::default()
            });
            self.functions.len() as u32 - 1
        })
    }
}

fn add_hits(into: &mut Vec<Hits>, histogram: &Histogram, symbols: &Symbols, known: &mut Known) {
    let list = &symbols.list;
    let unit_of = |index: usize| list.get(index).map_or(symbols.end.div_ceil(UNIT), |next| next.start / UNIT);
    for (bin, &count) in histogram.bins.iter().enumerate().filter(|&(_, &count)| count > 0) {
        let (low, high) = (histogram.bin_address(bin), histogram.bin_address(bin + 1));
        // gprof drops the odd byte of a bin.
        let (from, to) = (low / UNIT, (high / UNIT).max(low / UNIT + 1));
        let units = (to - from) as f64;
        let mut index = list.partition_point(|symbol| symbol.start / UNIT <= from).saturating_sub(1);
        while index < list.len() && unit_of(index) < to {
            let overlap = unit_of(index + 1).min(to).saturating_sub(unit_of(index).max(from));
            if overlap > 0 {
                let symbol = list[index].whole.unwrap_or(index);
                let function = known.function(symbol);
                let hits = count as f64 * overlap as f64 / units;
                into.push(Hits { function, address: low.max(list[index].start), hits });
            }
            index += 1;
        }
    }
}
