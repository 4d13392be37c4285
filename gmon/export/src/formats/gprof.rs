//! A run for gprof: one call graph of all modules.
//!
//! A gmon.out has the addresses of one file, and gprof reads names from one file. Therefore a run becomes a pair of files. The first is
//! an ELF file that contains nothing but symbols, one for each function with calls or times, at addresses that are made up. The second
//! is a gmon.out with these addresses. Functions do not share bins of the histogram there, names that gprof would leave out do not
//! occur, and functions of the same name in two modules are told apart.
//!
//! gprof takes a histogram of samples for times. If times were measured, each function gets as many samples, at a high rate, as its
//! own time amounts to.

mod names;
mod symbols;

use gmon::{Arc, BILLIONS, Format, HistogramBuilder, Profile, SECONDS};

use crate::formats::gprof::names::Name;
use crate::load::OUTSIDE;
use crate::model::{Run, Time};

/// The two files.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The ELF file with the symbols.
    pub symbols: Vec<u8>,
    /// The gmon.out.
    pub profile: Vec<u8>,
}

/// The reason why a run cannot be written for gprof.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PairError {
    #[error("the symbols cannot be written: {0}")]
    Symbols(#[from] object::write::Error),
    #[error("the profile does not fit into a gmon.out: {0}")]
    Profile(#[from] gmon::WriteError),
}

/// The address of the first function. Every function has [`ROOM`] bytes.
const FIRST: u64 = 0x10_0000;
const _: () = assert!(FIRST >= symbols::BEFORE);
const ROOM: u64 = 16;

/// The rates that the histogram of measured times can have, in samples per second, each with the longest own time of a function in
/// seconds up to which it is taken. A bin of 16 bits needs another copy of the whole histogram for each 65,535 samples. The rates are
/// few, so that profiles of similar runs have the same one and gprof can sum them.
const RATES: [(u32, f64); 2] = [(100_000, 20.0), (10_000, 200.0)];
/// The rate for longer times.
const LOWEST: u32 = 1000;
/// Nanoseconds of a second.
const SECOND: f64 = 1e9;

/// Returns the samples per second that stand for measured times. `longest_ns` is the longest own time of a function.
pub fn rate_of_times(longest_ns: u64) -> u32 {
    let seconds = longest_ns as f64 / SECOND;
    RATES.into_iter().find(|(_, most)| seconds <= *most).map_or(LOWEST, |(rate, _)| rate)
}

/// Returns the two files.
///
/// # Errors
/// The formats cannot represent the run.
pub fn pair(run: &Run) -> Result<Pair, PairError> {
    // Addresses are given out in the order of modules and addresses.
    let mut order: Vec<u32> = (0..run.functions.len() as u32).collect();
    order.sort_by_key(|&index| {
        let function = &run.functions[index as usize];
        (function.module.map_or(u32::MAX, |module| module), function.address)
    });
    let mut starts = vec![FIRST; run.functions.len()];
    for (start, &index) in (FIRST..).step_by(ROOM as usize).zip(&order) {
        starts[index as usize] = start;
    }
    let outside = FIRST + ROOM * run.functions.len() as u64;
    let has_outside = run.arcs.iter().any(|arc| arc.caller.is_none() && arc.calls > 0);
    let end = if has_outside { outside + ROOM } else { outside };

    let modules = names::distinct(run.modules.iter().map(|module| module.name()));
    let module_of = |module: Option<u32>| {
        module.and_then(|module| modules.get(module as usize)).map_or("", String::as_str)
    };
    let functions = order.iter().map(|&index| {
        let function = &run.functions[index as usize];
        Name { function: function.name.as_str(), module: module_of(function.module) }
    });
    let outsiders = has_outside.then_some(Name { function: OUTSIDE, module: "" });
    let named: Vec<Name> = functions.chain(outsiders).collect();
    let named = names::told_apart(&named, module_of(run.programs.first().map(|program| program.module)));
    let addresses = (FIRST..end).step_by(ROOM as usize);
    let symbols = symbols::encode(addresses.clone().zip(named.iter().map(String::as_str)), end)?;

    let mut profile = Profile::new(Format::LITTLE_64);
    let counted = run.pairs().into_iter().filter(|arc| arc.calls > 0);
    let arcs = counted.map(|arc| Arc {
        from: arc.caller.map_or(outside, |caller| starts[caller as usize]),
        to: starts[arc.callee as usize],
        count: arc.calls,
    });
    profile.arcs = arcs.collect();
    profile.arcs.sort_unstable();
    let rate = match run.time {
        Time::None => 0,
        Time::Sampled | Time::Estimated => (SECOND / run.sample_period_ns.max(1) as f64).round() as u32,
        Time::Measured { .. } | Time::Executed => {
            rate_of_times(run.functions.iter().map(|function| function.self_ns).max().unwrap_or(0))
        }
    };
    if rate > 0 {
        let unit = if run.time == Time::Executed { BILLIONS } else { SECONDS };
        let mut builder = HistogramBuilder::new(FIRST..end, rate).unit(unit).functions(addresses);
        for (function, &start) in run.functions.iter().zip(&starts) {
            let samples = match run.time {
                Time::Measured { .. } | Time::Executed => {
                    (function.self_ns as f64 * f64::from(rate) / SECOND).round() as u64
                }
                Time::None | Time::Sampled | Time::Estimated => function.samples,
            };
            if samples > 0 {
                builder.add(start, samples);
            }
        }
        profile.histograms = builder.build().histograms;
    }
    profile.fit();
    let mut bytes = Vec::new();
    gmon::write(&profile, &mut bytes)?;
    Ok(Pair { symbols, profile: bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmon_run::Program;

    use crate::model::{self, Function};
    use gmon_run::Module;

    #[test]
    fn what_gprof_reads() {
        let function = |name: &str, module, address, samples| Function {
            name: name.to_owned(),
            module: Some(module),
            address,
            samples,
            ..Function::default()
        };
        let arc = |caller, callee, calls| model::Arc { caller, callee, calls, ..model::Arc::default() };
        let module = |path: &str| Module { path: path.to_owned(), ..Module::default() };
        let run = Run {
            programs: vec![Program { module: 1, ..Program::default() }],
            modules: vec![module("/lib/x.so"), module("/bin/prog")],
            functions: vec![
                function("f", 0, 0x20, 70_000),
                function("main", 1, 0x10, 0),
                function("f", 1, 0x90, 3),
            ],
            arcs: vec![arc(None, 1, 1), arc(Some(1), 0, 5_000_000_000), arc(Some(1), 2, 2)],
            time: Time::Estimated,
            sample_period_ns: 1_000_000,
            ..Run::default()
        };
        let pair = pair(&run).expect("a pair of files");
        let program = gprofinject_image::gprof::parse(&pair.symbols).expect("symbols");
        let names: Vec<_> = program.functions().iter().map(|function| function.name.as_str()).collect();
        assert_eq!(names, ["[code]", "f@x.so", "main", "f", OUTSIDE, "[end]"]);
        let profile = gmon::read(&pair.profile).expect("a profile");
        let at = |name: &str| program.functions().iter().find(|f| f.name == name).expect("a symbol").start;
        let arc = |from, to, count| Arc { from: at(from), to: at(to), count };
        let mut expected =
            [arc(OUTSIDE, "main", 1), arc("main", "f@x.so", 5_000_000_000), arc("main", "f", 2)];
        expected.sort_unstable();
        assert_eq!(profile.arcs, expected);
        assert_eq!(profile.rate(), Some(1000));
        assert_eq!(profile.histograms.iter().map(gmon::Histogram::hits).sum::<u64>(), 70_003);
    }

    #[test]
    fn rates() {
        let rates = [0, 20_000_000_000, 20_000_000_001, 200_000_000_001].map(rate_of_times);
        assert_eq!(rates, [100_000, 100_000, 10_000, 1000]);
    }
}
