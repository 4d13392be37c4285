//! Finds for each record the address with which gprof prints it under the right function.
//!
//! gprof charges an address to the nearest symbol that it accepts at or before that address
//! ([`gmon::Program`]). It does not accept all symbols, and would print the records of a function that it
//! does not know under the function before it. Such records get the address of the function of which theirs
//! is a part or a clone. If there is none, they are left out of the profile and reported separately.

use std::collections::BTreeMap;

use gmon::{Arc, HistogramBuilder, Program, Relation};
use serde::Serialize;

use crate::program::planned::Planned;
use gprofinject_image::names::demangle::demangle;

/// A function that ran and that gprof cannot show.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub(crate) struct Unseen {
    /// The name in the symbol table, or the address.
    pub(crate) name: String,
    /// The number of calls of it, which are not in the profile.
    pub(crate) calls: u64,
    /// The number of its samples, which are not in the profile.
    pub(crate) samples: u64,
}

/// The samples as they are in the profile, and what is missing there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    /// The number of samples in functions of the program, including those of `unseen`.
    pub(crate) inside: u64,
    /// The number of samples in code that is neither the program's nor gprofinject's.
    pub(crate) outside: u64,
    /// The number of samples in gprofinject's own code, wherever it is. They are in no profile.
    pub(crate) own: u64,
    /// The number of calls of functions of the program, including those of `unseen`.
    pub(crate) calls: u64,
    /// The functions that are missing, sorted by samples and then by calls, both in descending order.
    pub(crate) unseen: Vec<Unseen>,
}

impl Placed {
    /// Returns the number of all samples.
    pub(crate) fn all(&self) -> u64 {
        self.inside.saturating_add(self.outside).saturating_add(self.own)
    }

    /// Returns the share of gprofinject's own code in all samples, in percent.
    pub(crate) fn own_percent(&self) -> f64 {
        100.0 * self.own as f64 / self.all().max(1) as f64
    }

    /// Whether more than one percent of the program's samples or calls are missing in the profile. A function
    /// that ran once and has no samples, as each C++ file's constructors do, does not count, however few
    /// calls there are.
    pub(crate) fn misses_much(&self) -> bool {
        let ran_once = |unseen: &&Unseen| unseen.calls <= 1 && unseen.samples == 0;
        let (mut calls, mut samples) = (0_u64, 0_u64);
        for unseen in self.unseen.iter().filter(|unseen| !ran_once(unseen)) {
            calls = calls.saturating_add(unseen.calls);
            samples = samples.saturating_add(unseen.samples);
        }
        let is_much = |part: u64, whole: u64| part > whole / 100;
        is_much(calls, self.calls) || is_much(samples, self.inside)
    }

    /// Returns what is to be said of the functions that are missing in the profile of `program`, if there are any.
    pub(crate) fn remark(&self, program: &str) -> Option<String> {
        const NAMED: usize = 3;
        let count = self.unseen.len();
        let (calls, samples) = self.unseen.iter().fold((0_u64, 0_u64), |(calls, samples), unseen| {
            (calls.saturating_add(unseen.calls), samples.saturating_add(unseen.samples))
        });
        let named: Vec<_> =
            self.unseen.iter().take(NAMED).map(|unseen| shortened(&demangle(&unseen.name))).collect();
        let more = if count > NAMED { ", ..." } else { "" };
        let share = 100.0 * samples as f64 / self.inside.max(1) as f64;
        let functions = gmon::counted(count, "function", "functions");
        let calls = gmon::counted(calls, "call", "calls");
        (count > 0).then(|| {
            format!(
                "gprof cannot show {functions} of {program} in gmon.out, because of their names: {}{more}. They have {share:.1} % \
                 of its samples and {calls}, which gmon shows",
                named.join(", ")
            )
        })
    }
}

/// Returns as much of a name as fits into a message.
fn shortened(name: &str) -> String {
    const LONGEST: usize = 60;
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

/// How gprof interprets an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    /// It finds the right function.
    Here,
    /// It finds the right function at this other address, to whose function the address's own function is
    /// related.
    At(u64, Option<Relation>),
    /// It knows neither the function that begins at this address nor one of which that is a part.
    Unseen(u64),
    /// The address is in no function.
    Nobody,
}

/// Places the records of one profile.
pub(crate) struct Placement<'p> {
    planned: &'p Planned<'p, 'p>,
    /// The program as gprof sees it; `None` if it has no symbols at all. Then the addresses stay, for other
    /// readers.
    gprof: Option<&'p Program>,
    builder: HistogramBuilder,
    arcs: Vec<Arc>,
    inside: u64,
    outside: u64,
    own: u64,
    /// The calls and samples of functions that gprof cannot show, by the function's address.
    unseen: BTreeMap<u64, (u64, u64)>,
}

impl<'p> Placement<'p> {
    /// Returns a placement without records. `rate` is the number of samples per second.
    pub(crate) fn new(planned: &'p Planned<'p, 'p>, rate: u32) -> Placement<'p> {
        let gprof = planned.gprof();
        let (low, high) = planned.shape.text;
        let starts = gprof.into_iter().flat_map(|gprof| gprof.functions().iter().map(|symbol| symbol.start));
        Placement {
            planned,
            gprof,
            builder: HistogramBuilder::new(low..high, rate).functions(starts),
            arcs: Vec::new(),
            inside: 0,
            outside: 0,
            own: 0,
            unseen: BTreeMap::new(),
        }
    }

    /// Adds samples outside the program.
    pub(crate) fn add_outside(&mut self, samples: u64) {
        self.outside += samples;
    }

    /// Adds samples in code of gprofinject's.
    pub(crate) fn add_own(&mut self, samples: u64) {
        self.own += samples;
    }

    /// Adds samples at an address in the program.
    pub(crate) fn add_samples(&mut self, address: u64, samples: u64) {
        let given = match self.seat(address) {
            Seat::Here => self.bin(address),
            Seat::At(start, _) => self.bin(start),
            Seat::Unseen(function) => Err(function),
            Seat::Nobody => {
                self.outside += samples;
                return;
            }
        };
        self.inside += samples;
        match given {
            Ok(address) => self.builder.add(address, samples),
            Err(function) => self.unseen.entry(function).or_default().1 += samples,
        }
    }

    /// Adds an arc.
    pub(crate) fn add_arc(&mut self, arc: Arc) {
        let Some(to) = self.callee(&arc) else { return };
        // If gprof has no function to charge, the root of the call graph is charged.
        let from = self.known(arc.from).or_else(|| self.known(self.planned.root()));
        match from {
            Some(from) => self.arcs.push(Arc { from, to, count: arc.count }),
            // gprof would drop the call, or take the function before the root for the caller.
            None => self.unseen_calls(arc.to, arc.count),
        }
    }

    fn unseen_calls(&mut self, function: u64, count: u64) {
        let calls = &mut self.unseen.entry(function).or_default().0;
        *calls = calls.saturating_add(count);
    }

    /// Returns an address at which gprof finds the function that contains `address`.
    fn known(&self, address: u64) -> Option<u64> {
        match self.seat(address) {
            Seat::Here => Some(address),
            Seat::At(start, _) => Some(start),
            Seat::Unseen(_) | Seat::Nobody => None,
        }
    }

    /// Returns the address by which gprof knows the called function, or `None` if it knows none, or if the
    /// arc is not a call.
    fn callee(&mut self, arc: &Arc) -> Option<u64> {
        match self.seat(arc.to) {
            Seat::Here => Some(arc.to),
            Seat::At(_, Some(Relation::Piece)) => None,
            Seat::At(start, Some(Relation::Rest)) => {
                // The function continues in a part of its own. When that part calls the part itself, that is
                // a call of the function.
                let within = self.home(arc.from) == Some(start) && !self.planned.is_in(arc.from, arc.to);
                (!within).then_some(start)
            }
            Seat::At(start, _) => Some(start),
            Seat::Unseen(function) => {
                self.unseen_calls(function, arc.count);
                None
            }
            Seat::Nobody => None,
        }
    }

    /// Returns the start of the symbol that gprof has to print for an address.
    fn home(&self, address: u64) -> Option<u64> {
        self.gprof?.symbol(self.known(address)?).map(|symbol| symbol.start)
    }

    /// Returns an address in the same function for which gprof has a bin. Between two symbols at odd
    /// addresses there may be none; then the error is the function's address.
    fn bin(&self, address: u64) -> Result<u64, u64> {
        let Some(function) = self.planned.function_at(address) else { return Ok(address) };
        let own = |&address: &u64| self.builder.has_bin(address) && self.seat(address) == Seat::Here;
        let last = function.address + function.size.max(1) - 1;
        let mut candidates = [address, function.address, last].into_iter();
        candidates.find(own).ok_or(function.address)
    }

    fn seat(&self, address: u64) -> Seat {
        let (Some(gprof), true) = (self.gprof, !self.planned.subject.functions().is_empty()) else {
            return Seat::Here;
        };
        let Some(function) = self.planned.function_at(address) else { return self.in_gap(gprof, address) };
        let function = self.planned.parent(&function).unwrap_or(function);
        let is_own = function.address <= address && address - function.address < function.size;
        let known = |address| gprof.symbol(address).is_some_and(|symbol| symbol.start == function.address);
        let label = gprof.symbol(address).filter(|symbol| symbol.start > function.address);
        if is_own && (label.is_some_and(|label| !gprof.is_data(label)) || label.is_none() && known(address)) {
            return Seat::Here;
        }
        if known(function.address) {
            return Seat::At(function.address, None);
        }
        match gprof.hidden_at(function.address).and_then(|hidden| hidden.whole) {
            Some(whole) => Seat::At(whole.start, Some(whole.relation)),
            None => Seat::Unseen(function.address),
        }
    }

    /// Finds the place of code in no function that the plan knows: a PLT, or assembly after a label of its
    /// own.
    fn in_gap(&self, gprof: &Program, address: u64) -> Seat {
        let functions = self.planned.subject.functions();
        let before = functions.last_up_to(address, usize::MAX).and_then(|index| functions.function(index));
        let gap = before.map_or(0, |function| function.address + function.size);
        let label = gprof.symbol(address).filter(|label| label.start >= gap && !gprof.is_data(label));
        let same =
            |label: &gmon::Function| gprof.code_at(address).is_some_and(|code| code.contains(&label.start));
        if label.is_some_and(same) { Seat::Here } else { Seat::Nobody }
    }

    /// Returns the arcs, the histogram, and what is in neither.
    pub(crate) fn finish(self) -> (Vec<Arc>, HistogramBuilder, Placed) {
        let name = |address| {
            let function = self.planned.function_at(address);
            let name = function.and_then(|function| function.names().find(|name| !name.is_empty()));
            name.map_or_else(|| format!("{address:#x}"), str::to_owned)
        };
        let unseen = self.unseen.iter().filter(|&(_, &counts)| counts != (0, 0));
        let mut unseen: Vec<_> =
            unseen.map(|(&at, &(calls, samples))| Unseen { name: name(at), calls, samples }).collect();
        unseen.sort_by_key(|unseen| std::cmp::Reverse((unseen.samples, unseen.calls)));
        let counts = self.arcs.iter().map(|arc| arc.count).chain(unseen.iter().map(|unseen| unseen.calls));
        let calls = counts.fold(0, u64::saturating_add);
        let placed = Placed { inside: self.inside, outside: self.outside, own: self.own, calls, unseen };
        (self.arcs, self.builder, placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses_much(calls: u64, samples: u64, unseen: &[(u64, u64)]) -> bool {
        let unseen = unseen.iter().map(|&(calls, samples)| Unseen { name: "f".to_owned(), calls, samples });
        Placed { inside: samples, outside: 0, own: 0, calls, unseen: unseen.collect() }.misses_much()
    }

    #[test]
    fn one_in_a_hundred_is_not_much() {
        for (calls, samples, unseen, expected) in [
            (1000, 1000, &[][..], false),
            (1000, 1000, &[(10, 10)], false),
            (1000, 1000, &[(11, 0)], true),
            (1000, 1000, &[(0, 11)], true),
            (1000, 1000, &[(6, 0), (5, 0)], true),
            // Functions that ran once and have no samples, with few calls in total.
            (4, 0, &[(1, 0), (1, 0)], false),
            (4, 0, &[(2, 0)], true),
            (4, 3, &[(1, 1)], true),
            (0, 0, &[(0, 1)], true),
        ] {
            assert_eq!(misses_much(calls, samples, unseen), expected, "{calls} {samples} {unseen:?}");
        }
    }
}
