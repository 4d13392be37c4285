//! From a profile to a snapshot.

use std::collections::HashMap;

use gmon_export::values::{in_short, real, shown as shown_value};
use gmon_run::ValueCounts;
use gprofinject_image::names::demangle::demangle;
use gprofinject_image::names::short;

use crate::live::snapshot::{Argument, Function, Snapshot};
use crate::os::say::visible;
use crate::profile::model::{ModuleIndex, NOWHERE, Place, Profile};
use crate::program::choice::{Part, Switched};
use crate::program::planned::Planned;

/// The greatest number of functions in a snapshot. The rest is called least often.
const MOST: usize = 100_000;
/// The greatest number of functions that are switched off and were not called.
const IDLE_MOST: usize = 10_000;
/// The greatest length of a name in bytes. A process chooses its names.
const LONGEST: usize = 1024;

/// The names of functions, which are demangled once.
#[derive(Default)]
pub(crate) struct Names {
    known: HashMap<(usize, u64), (String, Option<String>)>,
}

impl Names {
    /// Returns a function's name in short, and its symbol's if that is another one.
    pub(crate) fn of(
        &mut self,
        planned: &'static Planned<'static, 'static>,
        module: &str,
        address: u64,
    ) -> (String, Option<String>) {
        let key = (std::ptr::from_ref(planned) as usize, address);
        let known = self.known.entry(key).or_insert_with(|| {
            match planned.function_at(address).filter(|function| !function.name.is_empty()) {
                Some(function) => {
                    let name = shown(&short(&demangle(function.name)));
                    let is_same = name == function.name;
                    (name, (!is_same).then(|| shown(function.name)))
                }
                // An empty pattern would stand for all functions.
                None => (shown(&format!("{module}+{address:#x}")), None),
            }
        });
        known.clone()
    }
}

/// Returns a name as it can be shown: without characters that would move the cursor, and not too long.
pub(crate) fn shown(name: &str) -> String {
    let mut text = visible(name).into_owned();
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

/// The functions of a snapshot, by module and address.
struct Functions<'n> {
    names: &'n mut Names,
    profile: &'n Profile,
    switched: &'n Switched,
    index: HashMap<(ModuleIndex, u64), usize>,
    list: Vec<Function>,
}

impl Functions<'_> {
    /// Returns the function at a place, which is added if it is not there yet.
    fn at(&mut self, place: Place) -> Option<&mut Function> {
        let index = match self.index.get(&(place.module, place.address)) {
            Some(&index) => index,
            None => {
                let function = self.made(place)?;
                self.index.insert((place.module, place.address), self.list.len());
                self.list.push(function);
                self.list.len() - 1
            }
        };
        self.list.get_mut(index)
    }

    fn made(&mut self, Place { module, address }: Place) -> Option<Function> {
        let part = self.profile.modules.get(module as usize)?;
        let planned = part.program;
        let (name, symbol) = self.names.of(planned, self.profile.name_of(part), address);
        let functions = planned.subject.functions();
        let number = planned.plan.as_ref().and_then(|plan| {
            let index = functions.binary_search_by_key(&address, |function| function.address).ok()?;
            plan.function_of.binary_search(&u32::try_from(index).ok()?).ok()
        });
        let switch = part.library.map_or(Part::Program, |library| Part::Library(library.number));
        let is_named = functions
            .binary_search_by_key(&address, |function| function.address)
            .is_ok_and(|index| !functions[index].name.is_empty());
        Some(Function {
            module,
            id: address,
            name,
            symbol,
            is_hooked: number.is_some() && is_named,
            is_off: number.is_some_and(|number| self.switched.is_off(switch, number as u32)),
            ..Function::default()
        })
    }
}

/// Returns the snapshot of a profile. What is not in the profile is left as it is by default.
pub(crate) fn snapshot(profile: &Profile, switched: &Switched, names: &mut Names) -> Snapshot {
    let mut functions = Functions { names, profile, switched, index: HashMap::new(), list: Vec::new() };
    for arc in &profile.arcs {
        if let Some(function) = functions.at(arc.to).filter(|_| arc.to.module != NOWHERE) {
            function.calls = function.calls.saturating_add(arc.count);
        }
    }
    for (place, count) in profile.samples_by_function() {
        let planned = profile.modules.get(place.module as usize).map(|module| module.program);
        // Samples in a cold part are the function's.
        let parent = planned.and_then(|planned| planned.parent(&planned.function_at(place.address)?));
        let place = Place { address: parent.map_or(place.address, |parent| parent.address), ..place };
        if let Some(function) = functions.at(place) {
            function.samples = function.samples.saturating_add(count);
        }
    }
    if let Some(times) = &profile.times {
        let rate = times.overhead.ticks_per_ns();
        let ns = |ticks: u64| (ticks as f64 / rate) as u64;
        for arc in times.threads.iter().flat_map(|thread| &thread.arcs) {
            if let Some(function) = functions.at(arc.callee) {
                function.own_ns = function.own_ns.saturating_add(ns(arc.own.max(0) as u64));
            }
        }
        for measured in times.threads.iter().flat_map(|thread| &thread.functions) {
            if let Some(function) = functions.at(measured.function) {
                function.inclusive_ns = function.inclusive_ns.saturating_add(ns(measured.inclusive));
            }
        }
    }
    let values = values(profile, functions.names);
    let mut idle = 0;
    for (index, module) in (0_u32..).zip(&profile.modules) {
        let part = module.library.map_or(Part::Program, |library| Part::Library(library.number));
        let Some(plan) = &module.program.plan else { continue };
        for number in switched.numbers(part) {
            if let Some(record) = plan.records.get(number as usize).filter(|_| idle < IDLE_MOST) {
                idle += 1;
                let _ = functions.at(Place { module: index, address: record.entry });
            }
        }
    }
    let mut list = functions.list;
    let mut modules: Vec<String> =
        profile.modules.iter().map(|module| shown(profile.name_of(module))).collect();
    add_unhooked(profile, &mut modules, &mut list);
    if list.len() > MOST {
        list.sort_by_key(|function| std::cmp::Reverse((function.calls, function.samples)));
        list.truncate(MOST);
    }
    Snapshot {
        program: shown(&profile.name),
        modules,
        functions: list,
        values,
        rate: profile.rate,
        own_samples: profile.in_agent
            + profile.modules.iter().fold(0, |sum, module| sum + module.samples_in_hooks()),
        is_measured: profile.times.is_some(),
        off: switched.count() as u64,
        ..Snapshot::default()
    }
}

/// Returns the values of arguments, those with the most calls first.
fn values(profile: &Profile, names: &mut Names) -> Vec<Argument> {
    /// Arguments, and values of each. Who wants all of them has `gmon values`.
    const MOST: (usize, usize) = (1000, 100);
    let mut places = HashMap::new();
    let mut sums: Vec<(Place, &str, ValueCounts)> = Vec::new();
    for of in &profile.values {
        let (key, counts) = (&of.key, &of.counts);
        let at = *places.entry((key.function, key.index, key.name.as_str())).or_insert_with(|| {
            let empty = ValueCounts { kind: counts.kind, ..ValueCounts::default() };
            sums.push((key.function, key.name.as_str(), empty));
            sums.len() - 1
        });
        if let Some((.., sum)) = sums.get_mut(at) {
            sum.add(counts.clone());
        }
    }
    sums.sort_by_cached_key(|(.., counts)| std::cmp::Reverse(counts.calls()));
    let argument = |(place, name, counts): (Place, &str, ValueCounts)| {
        let module = profile.modules.get(place.module as usize)?;
        let (function, _) = names.of(module.program, profile.name_of(module), place.address);
        let kept = counts.kept.iter().take(MOST.1);
        let all = counts.summary();
        let total = all.integer_sum.filter(|_| all.calls > 0);
        let total = total.map_or_else(String::new, |sum| format!(", sum {}", real(sum as f64)));
        Some(Argument {
            name: shown(&format!("{function} {name}")),
            calls: all.calls,
            summary: shown(&format!("{}{total}", in_short(&counts))),
            values: kept.map(|kept| (shown(&shown_value(counts.kind, kept)), kept.count)).collect(),
        })
    };
    sums.into_iter().take(MOST.0).filter_map(argument).collect()
}

/// Adds the functions that are not hooked and have samples.
fn add_unhooked(profile: &Profile, modules: &mut Vec<String>, list: &mut Vec<Function>) {
    let mut known: HashMap<&str, u32> = HashMap::new();
    let mut functions: HashMap<(u32, u64, &str), usize> = HashMap::new();
    for place in &profile.unhooked {
        let path = place.module.path.as_str();
        let module = *known.entry(path).or_insert_with(|| {
            modules.push(shown(place.module.name()));
            modules.len() as u32 - 1
        });
        let index = *functions.entry((module, place.start, &place.function)).or_insert_with(|| {
            let name = match place.function.as_str() {
                "" => format!("{}+{:#x}", modules[module as usize], place.start),
                name => shown(&short(&demangle(name))),
            };
            // FNV-1a, so that the function is found again in the next snapshot.
            let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            let id = name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, hash) | 1 << 63;
            list.push(Function { module, id, name, ..Function::default() });
            list.len() - 1
        });
        if let Some(function) = list.get_mut(index) {
            function.samples = function.samples.saturating_add(place.samples);
        }
    }
}
