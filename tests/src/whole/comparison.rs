//! The comparison of the view of the whole process with what is expected, and its report.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};

use super::expected::Expected;
use super::modules::{Key, Modules};
use crate::elf::Program;
use crate::gprofdata;

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Report {
    pub modules: usize,
    /// The number of functions whose counts were compared.
    pub functions: usize,
    /// The number of pairs of caller and callee that were compared.
    pub arcs: usize,
    /// The number of functions some of whose callers were compared with a set.
    pub loose: usize,
    pub wrong_counts: Vec<String>,
    pub wrong_arcs: Vec<String>,
    /// The functions that were left out, because they are not called as often in each run.
    pub changing: Vec<String>,
    /// The functions that were left out, because code calls them that asks the processor for its features.
    pub by_processor: Vec<String>,
    pub refused: usize,
    pub their_calls: u64,
    pub our_calls: u64,
    pub notes: Vec<String>,
}

impl Report {
    pub fn is_equal(&self) -> bool {
        self.wrong_counts.is_empty() && self.wrong_arcs.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for (why, names) in [
            ("callgrind's own runs differ", &self.changing),
            ("they are called as the processor's features require", &self.by_processor),
        ] {
            if !names.is_empty() {
                writeln!(f, "left out, because {why}: {}", names.join(", "))?;
            }
        }
        for (what, differences) in [("count", &self.wrong_counts), ("arc", &self.wrong_arcs)] {
            for difference in differences.iter().take(40) {
                writeln!(f, "- {what}: {difference}")?;
            }
        }
        write!(
            f,
            "{}: {} modules, {} functions, {} arcs ({} functions with a set of callers), {} wrong counts, {} wrong arcs, \
             {} functions left out, {} refused; calls: callgrind {}, ours {}",
            if self.is_equal() { "equal" } else { "DIFFERENT" },
            self.modules,
            self.functions,
            self.arcs,
            self.loose,
            self.wrong_counts.len(),
            self.wrong_arcs.len(),
            self.changing.len() + self.by_processor.len(),
            self.refused,
            self.their_calls,
            self.our_calls
        )
    }
}

/// Compares the pair of files with what callgrind has counted. Functions in `changing` are left out.
///
/// # Errors
/// The files cannot be read, or have functions that `--list` does not have.
pub(super) fn compare(
    expected: &Expected,
    modules: &Modules,
    changing: &BTreeSet<Key>,
    symbols: &Path,
    whole: &Path,
) -> Result<Report> {
    let view = Program::read(symbols)?;
    let mut keys: BTreeMap<u64, Key> = BTreeMap::new();
    let mut near = 0;
    for function in view.functions().filter(|f| !matches!(f.name(), "[code]" | "[end]" | "[elsewhere]")) {
        // Functions that have only samples may be of modules that are not hooked.
        let Ok(key) = modules.named(function.name(), near) else { continue };
        if let Key::Function(module, _) = key {
            near = module;
        }
        keys.insert(function.address, key);
    }
    let key = |address: u64| -> Result<Key> {
        let function = view.containing(address).with_context(|| format!("nothing at {address:#x}"))?;
        let key = keys.get(&function.address).cloned();
        key.with_context(|| format!("the view has calls of an unknown function {}", function.name()))
    };
    let mut ours: BTreeMap<(Key, Key), u64> = BTreeMap::new();
    let mut our_entries: BTreeMap<Key, u64> = BTreeMap::new();
    let mut by_linker: BTreeMap<Key, u64> = BTreeMap::new();
    for (&(from, to), &count) in &gprofdata::read(whole)?.arcs {
        let (from, to) = (key(from)?, key(to)?);
        if !modules.is_same_in_both(&from, &to) {
            *by_linker.entry(to).or_default() += count;
            continue;
        }
        *our_entries.entry(to.clone()).or_default() += count;
        *ours.entry((from, to)).or_default() += count;
    }
    let labels = |keys: &BTreeSet<Key>| {
        let is_linkers =
            |key: &Key| matches!(key, Key::Function(module, _) if modules.is_dynamic_linker(*module));
        keys.iter().filter(|key| !is_linkers(key)).map(|key| modules.label(key)).collect()
    };
    let mut report = Report {
        modules: modules.len(),
        refused: modules.refused(),
        changing: labels(changing),
        by_processor: labels(&expected.by_processor),
        ..Report::default()
    };
    // Code of `.init` and `.fini` runs in an object that valgrind does not identify.
    let is_compared = |key: &Key| match key {
        Key::Nobody => false,
        Key::Function(module, name) => {
            !changing.contains(key)
                && !expected.by_processor.contains(key)
                && !(crate::elf::START_UP.contains(&name.as_str())
                    && !(expected.entries.contains_key(key) && our_entries.contains_key(key)))
                && !modules.is_outside_text(*module, name)
                && !modules.is_dynamic_linker(*module)
                && modules.is_same_in_both(&Key::Nobody, key)
        }
    };
    let functions: BTreeSet<&Key> =
        expected.entries.keys().chain(our_entries.keys()).filter(|key| is_compared(key)).collect();
    for &function in &functions {
        let (theirs, our) = (expected.entries.get(function), our_entries.get(function));
        let (theirs, our) = (theirs.copied().unwrap_or(0), our.copied().unwrap_or(0));
        report.their_calls += theirs;
        report.our_calls += our;
        // With entry hooks, a tail call of a function that the dynamic linker has called is one of the dynamic linker.
        let is_tail = expected.loose.get(function).is_some_and(|loose| {
            loose.callers.iter().any(|caller| !modules.is_same_in_both(caller, function))
        });
        let by_linker = by_linker.get(function).copied().filter(|_| is_tail).unwrap_or(0);
        let unexplained = expected.unexplained.get(function).copied().unwrap_or(0);
        if theirs + unexplained < our || theirs > our + by_linker {
            report.wrong_counts.push(format!("{}: callgrind {theirs}, ours {our}", modules.label(function)));
        }
    }
    report.functions = functions.len();
    let pairs: BTreeSet<&(Key, Key)> = ours
        .keys()
        .chain(expected.arcs.keys())
        .filter(|(caller, callee)| is_compared(callee) && !changing.contains(caller))
        .collect();
    for pair in &pairs {
        let theirs = expected.arcs.get(pair).copied().unwrap_or(0);
        let our = ours.get(pair).copied().unwrap_or(0);
        let loose = expected.loose.get(&pair.1);
        let may_be = loose.filter(|loose| loose.callers.contains(&pair.0)).map_or(0, |loose| loose.count);
        let unexplained = expected.unexplained.get(&pair.1).copied().unwrap_or(0);
        let is_within = our >= theirs && our - theirs <= may_be + unexplained;
        if our != theirs && !is_within {
            report.wrong_arcs.push(format!(
                "{} -> {}: callgrind {theirs}, ours {our}{}",
                modules.label(&pair.0),
                modules.label(&pair.1),
                loose.map_or(String::new(), |loose| {
                    let callers: Vec<_> = loose.callers.iter().take(6).map(|c| modules.label(c)).collect();
                    format!(" (and {} calls from one of {})", loose.count, callers.join(", "))
                })
            ));
        }
    }
    report.arcs = pairs.len();
    report.loose = expected.loose.keys().filter(|key| is_compared(key)).count();
    for (key, count) in expected.unexplained.iter().filter(|(key, _)| is_compared(key)).take(20) {
        let our = our_entries.get(key).copied().unwrap_or(0);
        let theirs = expected.entries.get(key).copied().unwrap_or(0);
        report.notes.push(format!(
            "{} was entered {count} times more than by callgrind's {theirs} calls; ours {our}",
            modules.label(key)
        ));
    }
    for (target, count) in expected.unknown_targets.iter().take(10) {
        report.notes.push(format!("{count} calls to {target}, where no function starts"));
    }
    Ok(report)
}
