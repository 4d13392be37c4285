//! Where each record goes, so that gprof prints it with the function that it is of.
//!
//! gprof charges an address to the nearest symbol that it takes at or before that address ([`gmon::Program`]).
//! It does not take all: the records of a function that it does not know would be printed with whatever stands
//! before. So they are given the address of the function that theirs is a part or a version of, and where there is
//! none they are kept out of the profile and reported apart.

use std::collections::BTreeMap;

use gmon::{Arc, HistogramBuilder, Program, Relation};
use gprofinject_image::{Function, FunctionKind};
use serde::Serialize;

use crate::os::say::Voice;
use crate::program::planned::Planned;
use crate::store::shape::Place;
use gprofinject_image::names::demangle::demangle;

/// A function that ran and that gprof cannot show.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub(crate) struct Unseen {
    /// As in the symbol table, or its address.
    pub(crate) name: String,
    /// Calls of it that are not in the profile.
    pub(crate) calls: u64,
    /// Its samples, which are not in the profile.
    pub(crate) samples: u64,
}

/// Samples as they are in the profile, and what is not in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    /// In functions of the program, those of `unseen` too.
    pub(crate) inside: u64,
    pub(crate) outside: u64,
    /// Calls of functions of the program, those of `unseen` too.
    pub(crate) calls: u64,
    /// Those with the most samples come first, then those with the most calls.
    pub(crate) unseen: Vec<Unseen>,
}

impl Placed {
    /// Says which functions are not in the profile of `program`. Where they do not matter, only -v shows it.
    pub(crate) fn report(&self, voice: Voice, program: &str, process: Option<i32>) {
        let Some(remark) = self.remark(program) else { return };
        let remark = match process {
            Some(pid) => format!("process {pid}: {remark}"),
            None => remark,
        };
        match self.misses_much() {
            true => voice.note(remark),
            false => voice.detail(remark),
        }
    }

    /// Whether more than one in a hundred of the program's samples or calls are not in the profile. A function that ran
    /// once and in no time, as each C++ file's constructors do, does not count however few calls there are.
    fn misses_much(&self) -> bool {
        let ran_once = |unseen: &&Unseen| unseen.calls <= 1 && unseen.samples == 0;
        let (mut calls, mut samples) = (0_u64, 0_u64);
        for unseen in self.unseen.iter().filter(|unseen| !ran_once(unseen)) {
            calls = calls.saturating_add(unseen.calls);
            samples = samples.saturating_add(unseen.samples);
        }
        let is_much = |part: u64, whole: u64| part > whole / 100;
        is_much(calls, self.calls) || is_much(samples, self.inside)
    }

    /// What there is to say about the functions that are not in the profile of `program`.
    fn remark(&self, program: &str) -> Option<String> {
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
                "gprof cannot show {functions} of {program} with {share:.1} % of its samples and {calls}, \
                 so these are not in the profile: {}{more}. gprof leaves out local names with a '$' and most with a '.'; of \
                 a copy made by objcopy -w --globalize-symbol='*' it shows all. --stats FILE lists them",
                named.join(", ")
            )
        })
    }
}

/// As much of a name as fits into a message.
fn shortened(name: &str) -> String {
    const LONGEST: usize = 60;
    match name.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

/// What gprof makes of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    /// It finds the right function.
    Here,
    /// It finds the right function at this address instead, to which the address's own function is related.
    At(u64, Option<Relation>),
    /// It does not know the function that begins at this address, nor one that it is a part of.
    Unseen(u64),
    /// The address is in no function.
    Nobody,
}

/// Places the records of one profile.
pub(crate) struct Placement<'p> {
    planned: &'p Planned<'p, 'p>,
    /// None: gprof has no symbols at all. Then addresses stay what they are, for other readers.
    gprof: Option<&'p Program>,
    builder: HistogramBuilder,
    arcs: Vec<Arc>,
    inside: u64,
    outside: u64,
    /// By the function's address: calls and samples.
    unseen: BTreeMap<u64, (u64, u64)>,
}

impl<'p> Placement<'p> {
    /// `rate`: samples per second.
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
            unseen: BTreeMap::new(),
        }
    }

    /// Samples that are nowhere in the program.
    pub(crate) fn add_outside(&mut self, samples: u64) {
        self.outside += samples;
    }

    pub(crate) fn add_samples(&mut self, place: Place, samples: u64) {
        let Some(address) = self.planned.text_address(place) else {
            self.outside += samples;
            return;
        };
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

    pub(crate) fn add_arc(&mut self, arc: Arc) {
        let Some(to) = self.callee(&arc) else { return };
        // Where gprof has nobody to charge, the root of the call graph is charged.
        let from = self.known(arc.from).or_else(|| self.known(self.planned.root()));
        match from {
            Some(from) => self.arcs.push(Arc { from, to, count: arc.count }),
            // gprof would drop the call, or take whatever stands before the root for the caller.
            None => self.unseen_calls(arc.to, arc.count),
        }
    }

    fn unseen_calls(&mut self, function: u64, count: u64) {
        let calls = &mut self.unseen.entry(function).or_default().0;
        *calls = calls.saturating_add(count);
    }

    /// The address at which gprof finds the function that an address is in.
    fn known(&self, address: u64) -> Option<u64> {
        match self.seat(address) {
            Seat::Here => Some(address),
            Seat::At(start, _) => Some(start),
            Seat::Unseen(_) | Seat::Nobody => None,
        }
    }

    /// The address by which gprof knows the called function. None: this is no call of a function that it knows.
    fn callee(&mut self, arc: &Arc) -> Option<u64> {
        match self.seat(arc.to) {
            Seat::Here => Some(arc.to),
            Seat::At(_, Some(Relation::Piece)) => None,
            Seat::At(start, Some(Relation::Rest)) => {
                // The function goes on in its own rest. When the rest calls itself, that is a call of the function.
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

    /// The start of the symbol that gprof is to print for an address.
    fn home(&self, address: u64) -> Option<u64> {
        self.gprof?.symbol(self.known(address)?).map(|symbol| symbol.start)
    }

    /// An address in the same function that gprof has a bin for: between two symbols at odd addresses there may be
    /// none. Else the function's address.
    fn bin(&self, address: u64) -> Result<u64, u64> {
        let Some(function) = self.planned.function_at(address) else { return Ok(address) };
        let own = |&address: &u64| self.builder.has_bin(address) && self.seat(address) == Seat::Here;
        let last = function.address + function.size.max(1) - 1;
        let mut candidates = [address, function.address, last].into_iter();
        candidates.find(own).ok_or(function.address)
    }

    fn seat(&self, address: u64) -> Seat {
        let (Some(gprof), true) = (self.gprof, self.planned.functions().next().is_some()) else {
            return Seat::Here;
        };
        let functions = self.planned.subject.functions();
        let Some(function) = self.planned.function_at(address) else { return self.in_gap(gprof, address) };
        let function = match function.kind {
            FunctionKind::Cold(Some(parent)) => functions.get(parent).unwrap_or(function),
            _ => function,
        };
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

    /// Code in no function that the plan knows: a PLT, or assembly behind a label of its own.
    fn in_gap(&self, gprof: &Program, address: u64) -> Seat {
        let functions = self.planned.subject.functions();
        let before = functions[..functions.partition_point(|f| f.address <= address)].last();
        let gap = before.map_or(0, |function| function.address + function.size);
        let label = gprof.symbol(address).filter(|label| label.start >= gap && !gprof.is_data(label));
        let same =
            |label: &gmon::Function| gprof.code_at(address).is_some_and(|code| code.contains(&label.start));
        if label.is_some_and(same) { Seat::Here } else { Seat::Nobody }
    }

    /// The arcs, the samples and what is in neither.
    pub(crate) fn finish(self) -> (Vec<Arc>, HistogramBuilder, Placed) {
        let name = |address| {
            let function = self.planned.function_at(address).map(Function::names);
            let name = function.and_then(|mut names| names.find(|name| !name.is_empty()));
            name.map_or_else(|| format!("{address:#x}"), str::to_owned)
        };
        let unseen = self.unseen.iter().filter(|&(_, &counts)| counts != (0, 0));
        let mut unseen: Vec<_> =
            unseen.map(|(&at, &(calls, samples))| Unseen { name: name(at), calls, samples }).collect();
        unseen.sort_by_key(|unseen| std::cmp::Reverse((unseen.samples, unseen.calls)));
        let counts = self.arcs.iter().map(|arc| arc.count).chain(unseen.iter().map(|unseen| unseen.calls));
        let calls = counts.fold(0, u64::saturating_add);
        let placed = Placed { inside: self.inside, outside: self.outside, calls, unseen };
        (self.arcs, self.builder, placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn misses_much(calls: u64, samples: u64, unseen: &[(u64, u64)]) -> bool {
        let unseen = unseen.iter().map(|&(calls, samples)| Unseen { name: "f".to_owned(), calls, samples });
        Placed { inside: samples, outside: 0, calls, unseen: unseen.collect() }.misses_much()
    }

    #[test]
    fn one_in_a_hundred_is_not_much() {
        for (calls, samples, unseen, expected) in [
            (1000, 1000, &[][..], false),
            (1000, 1000, &[(10, 10)], false),
            (1000, 1000, &[(11, 0)], true),
            (1000, 1000, &[(0, 11)], true),
            (1000, 1000, &[(6, 0), (5, 0)], true),
            // What ran once in no time, of however few calls.
            (4, 0, &[(1, 0), (1, 0)], false),
            (4, 0, &[(2, 0)], true),
            (4, 3, &[(1, 1)], true),
            (0, 0, &[(0, 1)], true),
        ] {
            assert_eq!(misses_much(calls, samples, unseen), expected, "{calls} {samples} {unseen:?}");
        }
    }
}
