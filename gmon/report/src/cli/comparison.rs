//! Two runs, and what of the second is worse.

use anyhow::{Result, bail};
use gmon_export::diff::{Change, Cost, Diff, Key, diff};
use gmon_export::{Run, Time};

use crate::cli::diff_args::Compared;

/// A change of a time by samples counts if it is larger than so many standard deviations of what chance does.
const SIGMAS: f64 = 3.0;
/// A change of a time counts if it is larger than so many times the median change of what has not changed.
const SPREADS: f64 = 3.0;

/// Two runs, and how they are compared.
pub(crate) struct Comparison<'r> {
    pub(crate) old: &'r Run,
    pub(crate) new: &'r Run,
    pub(crate) found: Diff,
    /// What decides whether something has become worse.
    pub(crate) gates: Vec<Compared>,
    /// What is shown but decides nothing.
    pub(crate) shown: Vec<Compared>,
    /// Whether the times of both runs are of one kind.
    pub(crate) has_times: bool,
    /// Whether these are instructions, and not times.
    pub(crate) executed: bool,
    /// How far the times of unchanged functions spread, as a part of 1; `None` if that is not known.
    pub(crate) spread: Option<f64>,
    /// The part of a total, in percent, by which a function has to become worse.
    pub(crate) threshold: f64,
}

impl<'r> Comparison<'r> {
    /// Compares two runs, by `sort` or else by what is exact in both.
    ///
    /// # Errors
    /// The runs do not have in common what is to be compared.
    pub(crate) fn new(
        old: &'r Run,
        new: &'r Run,
        sort: Option<Compared>,
        threshold: f64,
    ) -> Result<Comparison<'r>> {
        let has_times = match (old.time, new.time) {
            (old, new) if old.is_sampled() => new.is_sampled(),
            (old, new) => old.is_comparable(new),
        };
        let executed = has_times && old.time == Time::Executed;
        let has_instructions = executed || old.has_instructions && new.has_instructions;
        match sort {
            Some(Compared::Own | Compared::Inclusive) if !has_times => bail!(
                "the times cannot be compared: those of one run are measured, those of the other are samples or instructions, or there \
                 are none; --sort calls compares calls"
            ),
            Some(Compared::Inclusive) if old.time.is_sampled() && old.time != new.time => bail!(
                "inclusive times cannot be compared: those of one run are by sampled stacks, those of the other are estimates; \
                 --sort self compares self times"
            ),
            Some(Compared::Instructions) if !has_instructions => {
                bail!(
                    "--sort instructions: not both runs have counted them; `gprofinject --count lines PROG` does"
                )
            }
            _ => {}
        }
        let gates = match sort {
            Some(by) => vec![by],
            None if has_instructions => vec![Compared::Calls, Compared::Instructions],
            None => vec![Compared::Calls],
        };
        let shown = if has_times && !executed && sort.is_none() { vec![Compared::Own] } else { Vec::new() };
        let found = diff(old, new);
        let spread = if has_times { found.spread() } else { None };
        Ok(Comparison { old, new, found, gates, shown, has_times, executed, spread, threshold })
    }

    /// Returns the name of a quantity.
    pub(crate) fn name(&self, by: Compared) -> &'static str {
        match by {
            Compared::Own if self.executed => "instructions",
            Compared::Inclusive if self.executed => "inclusive instructions",
            Compared::Own => "self time",
            Compared::Inclusive => "inclusive time",
            Compared::Calls => "calls",
            Compared::Instructions => "instructions",
        }
    }

    /// Returns the total of a quantity in the old and in the new run.
    pub(crate) fn totals(&self, by: Compared) -> (u64, u64) {
        let total = |run: &Run| match by {
            Compared::Calls => run.calls(),
            Compared::Own | Compared::Inclusive => run.self_ns(),
            Compared::Instructions => run.instructions(),
        };
        (total(self.old), total(self.new))
    }

    /// Whether something that decides has become worse.
    pub(crate) fn is_worse(&self) -> bool {
        self.gates.iter().any(|&by| !self.worse(by).is_empty())
    }

    /// Returns the functions that have become worse, those that have most first.
    pub(crate) fn worse(&self, by: Compared) -> Vec<&Change<Key>> {
        let threshold = self.totals(by).0 as f64 * self.threshold / 100.0;
        let mut worse: Vec<_> = self
            .found
            .functions
            .iter()
            .filter(|change| change_of(by, change) as f64 > threshold && change_of(by, change) > 0)
            .filter(|change| self.is_certain(by, change))
            .collect();
        worse.sort_by_key(|change| std::cmp::Reverse(change_of(by, change)));
        worse
    }

    /// Whether a change is larger than what chance does. Numbers of calls and instructions know no chance.
    pub(crate) fn is_certain<K>(&self, by: Compared, change: &Change<K>) -> bool {
        if self.executed || matches!(by, Compared::Calls | Compared::Instructions) {
            return true;
        }
        let (old, new) = change.costs();
        let changed = change_of(by, change).unsigned_abs() as f64;
        // The number of samples in a function is a Poisson variable: its variance is the number itself.
        let variance = |cost: Cost, run: &Run| value(by, cost) as f64 * run.sample_period_ns as f64;
        let chance = match self.old.time {
            Time::Sampled | Time::Estimated => {
                SIGMAS * (variance(old, self.old) + variance(new, self.new)).sqrt()
            }
            Time::None | Time::Measured { .. } | Time::Executed => 0.0,
        };
        let spread = SPREADS * self.spread.unwrap_or(0.0) * value(by, old).max(value(by, new)) as f64;
        changed > chance.max(spread)
    }
}

/// Returns a quantity of a cost.
pub(crate) fn value(by: Compared, cost: Cost) -> u64 {
    match by {
        Compared::Own => cost.self_ns,
        Compared::Inclusive => cost.inclusive_ns,
        Compared::Calls => cost.calls,
        Compared::Instructions => cost.instructions,
    }
}

/// Returns by how much a quantity has grown.
pub(crate) fn change_of<K>(by: Compared, change: &Change<K>) -> i128 {
    let (old, new) = change.costs();
    i128::from(value(by, new)) - i128::from(value(by, old))
}
