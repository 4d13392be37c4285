//! The differences between two runs of a program, or of two builds of it.
//!
//! Functions are matched by their demangled names and modules; the program's own module matches the other's whatever both are
//! called, if each run is of one program. Functions of one name in one module count together. What has no partner is matched once more without the suffixes of
//! compilers' clones (`f.isra.0`, `f.constprop.1`, `f.part.2`, `f.cold`), because another build may have others.

use std::collections::{BTreeMap, HashMap, HashSet};

use gprofinject_image::names::demangle::demangle;
use gprofinject_image::names::suffixes::split;

use crate::model::{Function, Run, Time};

/// What was measured of a function or an arc in one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub calls: u64,
    pub self_ns: u64,
    pub inclusive_ns: u64,
    /// The executed instructions: those of basic blocks if these were counted, of arcs 0; or those that were counted in place of times.
    pub instructions: u64,
}

/// A function, as it is known in both runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The file name of the module; empty for the program itself.
    pub module: String,
    /// The demangled name.
    pub name: String,
}

/// The cost in both runs. A cost is `None` if what has it does not occur in the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<K> {
    pub key: K,
    pub old: Option<Cost>,
    pub new: Option<Cost>,
}

/// An arc, as it is known in both runs. The caller is `None` if no known function was running.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArcKey {
    pub caller: Option<Key>,
    pub callee: Key,
}

/// The differences of two runs. Both lists are sorted by their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diff {
    pub functions: Vec<Change<Key>>,
    pub arcs: Vec<Change<ArcKey>>,
}

impl<K> Change<K> {
    /// Returns the costs in the old and in the new run, which are 0 where there are none.
    pub fn costs(&self) -> (Cost, Cost) {
        (self.old.unwrap_or_default(), self.new.unwrap_or_default())
    }
}

/// Compares two runs.
pub fn diff(old: &Run, new: &Run) -> Diff {
    let keys = matched(old, new);
    let mut functions: BTreeMap<&Key, [Option<Cost>; 2]> = BTreeMap::new();
    let mut arcs: BTreeMap<(Option<&Key>, &Key), [Option<Cost>; 2]> = BTreeMap::new();
    for (side, (run, keys)) in [old, new].into_iter().zip(&keys).enumerate() {
        for (function, key) in run.functions.iter().zip(keys) {
            let cost = Cost {
                calls: function.calls,
                self_ns: function.self_ns,
                inclusive_ns: function.inclusive_ns,
                instructions: run.instructions_of(function),
            };
            functions.entry(key).or_default()[side].get_or_insert_default().add(cost);
        }
        for arc in run.pairs() {
            let key = (arc.caller.map(|caller| &keys[caller as usize]), &keys[arc.callee as usize]);
            let cost = Cost {
                calls: arc.calls,
                self_ns: arc.self_ns,
                inclusive_ns: arc.inclusive_ns,
                instructions: if run.time == Time::Executed { arc.self_ns } else { 0 },
            };
            arcs.entry(key).or_default()[side].get_or_insert_default().add(cost);
        }
    }
    let functions = functions.into_iter().map(|(key, [old, new])| Change { key: key.clone(), old, new });
    let arcs = arcs.into_iter().map(|((caller, callee), [old, new])| Change {
        key: ArcKey { caller: caller.cloned(), callee: callee.clone() },
        old,
        new,
    });
    Diff { functions: functions.collect(), arcs: arcs.collect() }
}

impl Cost {
    fn add(&mut self, other: Cost) {
        self.calls = self.calls.saturating_add(other.calls);
        self.self_ns = self.self_ns.saturating_add(other.self_ns);
        self.inclusive_ns = self.inclusive_ns.saturating_add(other.inclusive_ns);
        self.instructions = self.instructions.saturating_add(other.instructions);
    }
}

/// The smallest number of functions from which a spread can be told.
const SPREAD_FROM: usize = 5;
/// The share of all time, in percent, from which on a function's time says something of the spread.
const SPREAD_SHARE: u64 = 1;

impl Diff {
    /// Returns how far the self times of functions spread that did the same in both runs: those with as many calls as before. It is
    /// the median of the changes, as a part of the larger time; half of these functions have changed more, though nothing in them
    /// has changed. `None` if there are too few of them.
    pub fn spread(&self) -> Option<f64> {
        let total = |side: fn(&Change<Key>) -> Option<Cost>| {
            self.functions.iter().filter_map(side).fold(0_u64, |sum, cost| sum.saturating_add(cost.self_ns))
        };
        let least = total(|change| change.old).min(total(|change| change.new)) / 100 * SPREAD_SHARE;
        let mut changes: Vec<f64> = self
            .functions
            .iter()
            .filter_map(|change| Some((change.old?, change.new?)))
            .filter(|(old, new)| {
                old.calls == new.calls && old.calls > 0 && old.self_ns.min(new.self_ns) > least
            })
            .map(|(old, new)| old.self_ns.abs_diff(new.self_ns) as f64 / old.self_ns.max(new.self_ns) as f64)
            .collect();
        changes.sort_by(f64::total_cmp);
        (changes.len() >= SPREAD_FROM).then(|| changes[changes.len() / 2])
    }
}

/// Returns the key of each function of both runs.
pub(crate) fn matched(old: &Run, new: &Run) -> [Vec<Key>; 2] {
    let is_of_one = old.programs.len() <= 1 && new.programs.len() <= 1;
    let mut keys = [old, new].map(|run| {
        let key = |function: &Function| Key {
            module: module(run, function, is_of_one),
            name: function.demangled.clone(),
        };
        run.functions.iter().map(key).collect::<Vec<_>>()
    });
    let sets = [0, 1].map(|side: usize| keys[side].iter().cloned().collect::<HashSet<Key>>());
    // The keys that occur in one run only, by what is left of their names without suffixes.
    let runs = [old, new];
    let alone = [0, 1].map(|side: usize| {
        let mut bases: HashMap<Key, Vec<usize>> = HashMap::new();
        for (index, key) in keys[side].iter().enumerate().filter(|(_, key)| !sets[1 - side].contains(key)) {
            let name = demangle(base(&runs[side].functions[index].name)).into_owned();
            bases.entry(Key { module: key.module.clone(), name }).or_default().push(index);
        }
        bases
    });
    for (side, bases) in alone.iter().enumerate() {
        for (key, indexes) in bases.iter().filter(|(key, _)| alone[1 - side].contains_key(key)) {
            indexes.iter().for_each(|&index| keys[side][index] = key.clone());
        }
    }
    keys
}

/// Returns the file name of a function's module, which is empty for the program itself if each run is of one program.
fn module(run: &Run, function: &Function, is_of_one: bool) -> String {
    match function.module {
        Some(0) if is_of_one => String::new(),
        _ => run.module_of(function).map_or_else(String::new, |module| module.name().to_owned()),
    }
}

/// Returns a name without the suffixes that compilers have added.
fn base(name: &str) -> &str {
    let mut base = name;
    while let Some(split) = split(base) {
        base = split.base;
    }
    base
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Arc;
    use gmon_run::Module;

    fn run(program: &str, functions: &[(&str, u32, u64)], arcs: &[(u32, u32, u64)]) -> Run {
        let module = |path: &str| Module { path: path.to_owned(), ..Module::default() };
        let function = |&(name, module, calls): &(&str, u32, u64)| Function {
            name: name.to_owned(),
            demangled: demangle(name).into_owned(),
            module: Some(module),
            calls,
            self_ns: 10 * calls,
            ..Function::default()
        };
        let arc = |&(caller, callee, calls): &(u32, u32, u64)| Arc {
            caller: Some(caller),
            callee,
            calls,
            ..Arc::default()
        };
        Run {
            modules: vec![module(program), module("/lib/a.so")],
            functions: functions.iter().map(function).collect(),
            arcs: arcs.iter().map(arc).collect(),
            ..Run::default()
        }
    }

    #[test]
    fn functions_of_two_builds() {
        let old = run(
            "/old/p",
            &[
                ("main", 0, 1),
                ("f.isra.0", 0, 5),
                ("g", 0, 7),
                ("g", 1, 3),
                ("gone", 0, 1),
                ("h.part.0", 0, 2),
            ],
            &[(0, 1, 5), (1, 2, 7)],
        );
        let new = run(
            "/new/p2",
            &[
                ("main", 0, 1),
                ("f", 0, 6),
                ("g", 0, 8),
                ("g", 1, 3),
                ("h.part.0", 0, 2),
                ("h", 0, 9),
                ("g.cold", 0, 1),
            ],
            &[(0, 1, 6), (1, 2, 8), (0, 5, 9)],
        );
        let found = diff(&old, &new);
        let calls = |cost: Option<Cost>| cost.map(|cost| cost.calls);
        let shown: Vec<_> = found
            .functions
            .iter()
            .map(|change| {
                (change.key.module.as_str(), change.key.name.as_str(), calls(change.old), calls(change.new))
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("", "f", Some(5), Some(6)),
                ("", "g", Some(7), Some(8)),
                ("", "g.cold", None, Some(1)),
                ("", "gone", Some(1), None),
                ("", "h", None, Some(9)),
                ("", "h.part.0", Some(2), Some(2)),
                ("", "main", Some(1), Some(1)),
                ("a.so", "g", Some(3), Some(3)),
            ]
        );
        let arcs: Vec<_> = found
            .arcs
            .iter()
            .map(|change| {
                let caller = change.key.caller.as_ref().map(|key| key.name.as_str());
                (caller, change.key.callee.name.as_str(), calls(change.old), calls(change.new))
            })
            .collect();
        assert_eq!(
            arcs,
            [
                (Some("f"), "g", Some(7), Some(8)),
                (Some("main"), "f", Some(5), Some(6)),
                (Some("main"), "h", None, Some(9)),
            ]
        );
    }

    #[test]
    fn times_of_the_same_work_spread() {
        let cost = |calls, self_ns| Some(Cost { calls, self_ns, ..Cost::default() });
        let change = |old, new| Change { key: Key::default(), old, new };
        let mut found = Diff::default();
        for new in [100, 102, 104, 106, 300] {
            found.functions.push(change(cost(5, 100), cost(5, new)));
        }
        // What has other calls, or next to no time, says nothing.
        found.functions.push(change(cost(5, 100), cost(6, 900)));
        found.functions.push(change(cost(5, 1), cost(5, 9)));
        assert_eq!(found.spread(), Some(4.0 / 104.0));
        found.functions.remove(0);
        assert_eq!(found.spread(), None);
    }

    #[test]
    fn names_without_what_compilers_add() {
        assert_eq!(base("f.constprop.0.isra.1"), "f");
        assert_eq!(base("f.lto_priv.0"), "f.lto_priv.0");
        assert_eq!(demangle(base("_ZN3foo3barEi.part.3")), "foo::bar(int)");
    }
}
