//! How the work of a parallel job is spread over its processes: for each function, the least, the mean and the most of all of
//! them. One process after the other enters, and none is kept.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gmon_export::load::KnownProgram;
use gmon_export::{Run, Time};

use crate::cli::fold::{self, Sum};
use crate::cli::run::Subject;
use crate::cli::table_args::FlatArgs;
use crate::cli::{files, rank, run};

/// The processes of a job.
pub(crate) struct Ranks {
    /// The file of each process, and its rank if the name says it.
    pub(crate) files: Vec<(PathBuf, Option<u32>)>,
    pub(crate) functions: Vec<Row>,
    /// The sums of whole processes.
    pub(crate) total: Row,
    /// What the times are.
    pub(crate) time: Time,
}

/// A function in all processes.
#[derive(Default)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) demangled: String,
    /// The path of the module, if it is known.
    pub(crate) module: String,
    pub(crate) calls: Spread,
    pub(crate) self_ns: Spread,
}

/// The values of a quantity in all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    min: u64,
    pub(crate) max: u64,
    sum: u128,
    /// The number of processes that have a value. In the others it is 0.
    seen: usize,
    /// The index of the first process with the largest value.
    pub(crate) max_at: usize,
}

impl Spread {
    fn add(&mut self, index: usize, value: u64) {
        self.join(&Spread { min: value, max: value, sum: value.into(), seen: 1, max_at: index });
    }

    /// Adds the values of later processes.
    fn join(&mut self, later: &Spread) {
        if self.seen == 0 {
            *self = *later;
        } else if later.seen > 0 {
            if later.max > self.max {
                (self.max, self.max_at) = (later.max, later.max_at);
            }
            self.min = self.min.min(later.min);
            self.sum += later.sum;
            self.seen += later.seen;
        }
    }

    /// Returns the smallest value of `all` processes.
    pub(crate) fn min(&self, all: usize) -> u64 {
        if self.seen < all { 0 } else { self.min }
    }

    /// Returns the mean of `all` processes.
    pub(crate) fn mean(&self, all: usize) -> f64 {
        self.sum as f64 / all.max(1) as f64
    }

    /// Returns the largest value divided by the mean; 0 if all values are 0.
    pub(crate) fn imbalance(&self, all: usize) -> f64 {
        if self.sum == 0 { 0.0 } else { self.max as f64 / self.mean(all) }
    }
}

impl Ranks {
    /// Reads all files.
    ///
    /// # Errors
    /// A file cannot be read, or is of another program.
    pub(crate) fn load(args: &FlatArgs) -> Result<Ranks> {
        let named = &args.common.files.run;
        let (first, rest) = named
            .split_first()
            .context("--spread: compares the processes of a parallel job, expected the results of several")?;
        // The program, if there is one, comes first.
        let mut program = None;
        let mut paths: &[PathBuf] = named;
        if std::fs::metadata(first).is_ok_and(|found| found.is_file()) {
            let bytes = files::read_any_kind(first)?;
            if files::is_elf(&bytes) {
                let known = KnownProgram::read(first, &bytes).with_context(|| first.display().to_string())?;
                (program, paths) = (Some(Subject { path: first.clone(), known }), rest);
            }
        }
        if paths.is_empty() {
            bail!("{}: a program without profiles, expected `PROG FILE...`", first.display());
        }
        let threads = fold::processors();
        let new = || Adding {
            args,
            program: program.as_ref(),
            functions: HashMap::new(),
            total: Row::default(),
            time: Time::None,
        };
        let sum = fold::sum(paths, threads, new)?;
        let files = paths.iter().map(|path| (path.clone(), rank::of_file(path))).collect();
        let mut functions: Vec<Row> = sum.functions.into_values().collect();
        functions.sort_by(|a, b| (&a.demangled, &a.module).cmp(&(&b.demangled, &b.module)));
        Ok(Ranks { files, functions, total: sum.total, time: sum.time })
    }
}

/// What is known of the processes up to now.
struct Adding<'a> {
    args: &'a FlatArgs,
    program: Option<&'a Subject>,
    /// By module, link address and name.
    functions: HashMap<(String, u64, String), Row>,
    total: Row,
    /// What the times of the first process are.
    time: Time,
}

impl Adding<'_> {
    fn run(&mut self, index: usize, run: Run) {
        let (mut calls, mut self_ns) = (0_u64, 0_u64);
        self.time = if self.time.is_some() { self.time } else { run.time };
        for function in run.functions {
            calls = calls.saturating_add(function.calls);
            self_ns = self_ns.saturating_add(function.self_ns);
            let module = function.module.and_then(|module| run.modules.get(module as usize));
            let module = module.map_or_else(String::new, |module| module.path.clone());
            let nameless =
                || format!("{}+{:#x}", module.rsplit('/').next().unwrap_or_default(), function.address);
            let demangled = if function.name.is_empty() { nameless() } else { function.demangled };
            let key = (module, function.address, function.name);
            let row = match self.functions.get_mut(&key) {
                Some(row) => row,
                None => {
                    let row = Row { name: key.2.clone(), demangled, module: key.0.clone(), ..Row::default() };
                    self.functions.entry(key).or_insert(row)
                }
            };
            row.calls.add(index, function.calls);
            row.self_ns.add(index, function.self_ns);
        }
        self.total.calls.add(index, calls);
        self.total.self_ns.add(index, self_ns);
    }
}

impl Sum for Adding<'_> {
    fn add(&mut self, index: usize, file: &Path) -> Result<()> {
        let run = run::functions(file, &self.args.common.files, self.program)?;
        self.run(index, run);
        Ok(())
    }

    fn join(&mut self, later: Self) -> Result<()> {
        for (key, row) in later.functions {
            match self.functions.get_mut(&key) {
                Some(known) => {
                    known.calls.join(&row.calls);
                    known.self_ns.join(&row.self_ns);
                }
                None => {
                    self.functions.insert(key, row);
                }
            }
        }
        self.time = if self.time.is_some() { self.time } else { later.time };
        self.total.calls.join(&later.total.calls);
        self.total.self_ns.join(&later.total.self_ns);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads() {
        let mut spread = Spread::default();
        for (index, value) in [(0, 10), (2, 30), (5, 30)] {
            spread.add(index, value);
        }
        assert_eq!((spread.min(3), spread.min(4), spread.max, spread.max_at), (10, 0, 30, 2));
        assert_eq!((spread.mean(7), spread.imbalance(7)), (10.0, 3.0));
        assert_eq!((Spread::default().mean(3), Spread::default().imbalance(3)), (0.0, 0.0));
        let mut parts = Spread::default();
        parts.join(&Spread::default());
        parts.add(0, 10);
        let mut later = Spread::default();
        later.add(2, 30);
        later.add(5, 30);
        parts.join(&later);
        assert_eq!(parts, spread);
    }
}
