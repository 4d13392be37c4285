//! Whether a run keeps the bounds of a budget.

use gmon_export::{Function, Run, Time};
use gprofinject_image::names::similar::similar;

use crate::cli::budget::file::{Bound, Budget, Mistake, Most, Quantity};
use crate::cli::text::{chosen_in_module, plain};

/// Whether a run keeps a bound.
#[derive(Debug)]
pub(crate) struct Verdict<'b> {
    /// The run, or the part of it, of which the indexes are.
    pub(crate) run: &'b Run,
    pub(crate) budget: &'b Budget,
    pub(crate) bound: &'b Bound,
    /// What the functions have together, or of an [inclusive](Quantity::is_inclusive) quantity the one that has most.
    pub(crate) value: u64,
    /// What the whole run has, of which shares are.
    pub(crate) total: u64,
    /// The index of the function that has most; `None` if all have nothing.
    pub(crate) largest: Option<u32>,
    /// What that function has.
    pub(crate) of_largest: u64,
    /// How many functions match the pattern.
    pub(crate) functions: usize,
    /// The indexes of those that ran and of which the quantity was not counted.
    pub(crate) not_counted: Vec<u32>,
    pub(crate) holds: bool,
}

impl Verdict<'_> {
    /// Returns the share of a value in the whole run, in percent.
    pub(crate) fn percent(&self, value: u64) -> f64 {
        share(value, self.total)
    }
}

fn share(value: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { 100.0 * value as f64 / total as f64 }
}

/// Returns whether a run keeps each of the bounds, in their order.
///
/// # Errors
/// A pattern matches no function, or the run has not counted what is bounded.
pub(crate) fn judge<'b>(run: &'b Run, budgets: &'b [Budget]) -> Result<Vec<Verdict<'b>>, Mistake> {
    let mut verdicts = Vec::new();
    for budget in budgets {
        let matching = matching(run, budget)?;
        for bound in &budget.bounds {
            verdicts.push(verdict(run, budget, bound, &matching)?);
        }
    }
    Ok(verdicts)
}

/// Returns the functions that the pattern of a budget matches.
fn matching(run: &Run, budget: &Budget) -> Result<Vec<u32>, Mistake> {
    let pattern = std::slice::from_ref(&budget.function);
    let is_it = |function: &Function| {
        let module = run.module_of(function).map_or("", |module| &module.path);
        chosen_in_module(pattern, module, &function.name)
    };
    let matching: Vec<u32> =
        (0..).zip(&run.functions).filter(|(_, function)| is_it(function)).map(|(index, _)| index).collect();
    if !matching.is_empty() || budget.optional {
        return Ok(matching);
    }
    let near = similar(pattern, run.functions.iter().map(|function| plain(&function.demangled)));
    let near = if near.is_empty() { String::new() } else { format!("; similar names: {}", near.join(", ")) };
    let what = format!(
        "no function of the run is called {}{near}; with `optional = true` the run may have none",
        budget.function
    );
    Err(Mistake { line: budget.line, what })
}

fn verdict<'b>(
    run: &'b Run,
    budget: &'b Budget,
    bound: &'b Bound,
    matching: &[u32],
) -> Result<Verdict<'b>, Mistake> {
    let quantity = bound.quantity;
    let mistake = |what: String| Mistake { line: bound.line, what: format!("{}: {what}", quantity.key()) };
    let total = total(run, quantity).map_err(|what| mistake(what.to_owned()))?;
    let (mut sum, mut of_largest, mut largest, mut not_counted) = (0_u64, 0, None, Vec::new());
    for &index in matching {
        let Some(function) = run.functions.get(index as usize) else { continue };
        let Some(value) = value(run, function, quantity) else {
            // What is in no module is no function, but a sum of samples elsewhere.
            if function.module.is_some() {
                not_counted.push(index);
            }
            continue;
        };
        sum = sum.saturating_add(value);
        if value > of_largest {
            (of_largest, largest) = (value, Some(index));
        }
    }
    if let (None, Some(&first)) = (largest, not_counted.first()) {
        let name = run.functions.get(first as usize).map_or("", |function| &function.demangled);
        return Err(mistake(format!("not counted of {}, which ran; {}", plain(name), why(quantity))));
    }
    let value = if quantity.is_inclusive() { of_largest } else { sum };
    let holds = match bound.most {
        Most::Number(most) => value <= most,
        Most::Percent(most) => share(value, total) <= most,
    };
    let functions = matching.len();
    Ok(Verdict { run, budget, bound, value, total, largest, of_largest, functions, not_counted, holds })
}

/// Returns what the whole run has of a quantity.
///
/// # Errors
/// The run has not counted it: which option does.
fn total(run: &Run, quantity: Quantity) -> Result<u64, &'static str> {
    let executed = run.time == Time::Executed;
    match quantity {
        Quantity::Calls => match run.calls() {
            0 => Err("the run has not counted calls; `gprofinject PROG` does, without --hooks none"),
            calls => Ok(calls),
        },
        Quantity::Instructions | Quantity::InstructionsPercent => match run.instructions() {
            0 => Err("the run has not counted instructions; `gprofinject --clock instructions PROG` does"),
            instructions => Ok(instructions),
        },
        Quantity::InclusiveInstructions | Quantity::InclusiveInstructionsPercent if executed => {
            Ok(run.self_ns())
        }
        Quantity::InclusiveInstructions | Quantity::InclusiveInstructionsPercent => Err(
            "the run has not counted the instructions of functions with what they call; `gprofinject --clock instructions PROG` does",
        ),
        Quantity::TimePercent if executed => Err(
            "the run has counted instructions in place of time, of which instructions_percent is the share; \
             `gprofinject --times PROG` measures time",
        ),
        Quantity::InclusiveTimePercent if executed => Err(
            "the run has counted instructions in place of time, of which inclusive_instructions_percent is the share; \
             `gprofinject --times PROG` measures time",
        ),
        Quantity::InclusiveTimePercent if run.time == Time::Estimated => Err(
            "the run has estimates only of the time of functions with what they call; `gprofinject --times PROG` measures it",
        ),
        Quantity::TimePercent | Quantity::InclusiveTimePercent => match run.total_ns() {
            0 => Err("the run has no times; `gprofinject --times PROG` measures them"),
            time => Ok(time),
        },
    }
}

/// Returns what a function has of a quantity that the run has counted; `None` if the function ran and it was not counted there.
fn value(run: &Run, function: &Function, quantity: Quantity) -> Option<u64> {
    let (value, ran) = match quantity {
        // Hooks count a call before anything else of it.
        Quantity::Calls => {
            let ran = function.samples > 0 || function.instructions > 0 || function.self_ns > 0;
            (function.calls, ran)
        }
        // Each call has one instruction at least.
        Quantity::Instructions | Quantity::InstructionsPercent => {
            (run.instructions_of(function), function.calls > 0 || function.samples > 0)
        }
        Quantity::InclusiveInstructions | Quantity::InclusiveInstructionsPercent => {
            (function.inclusive_ns, function.calls > 0 || function.samples > 0)
        }
        // A function of which only calls were counted has its time in its callers'.
        Quantity::TimePercent | Quantity::InclusiveTimePercent if function.is_short => return None,
        // There are functions without a sample that ran, but they have taken next to no time.
        Quantity::TimePercent if run.time.is_sampled() => return Some(function.self_ns),
        Quantity::InclusiveTimePercent if run.time.is_sampled() => return Some(function.inclusive_ns),
        Quantity::TimePercent => (function.self_ns, function.samples > 0 && function.calls == 0),
        Quantity::InclusiveTimePercent => {
            (function.inclusive_ns, function.samples > 0 && function.calls == 0)
        }
    };
    (value > 0 || !ran).then_some(value)
}

/// Returns what tells why a quantity of a function was not counted.
pub(crate) fn why(quantity: Quantity) -> &'static str {
    match quantity {
        Quantity::Calls => "`gprofinject --list PROG` says why functions are not hooked",
        Quantity::TimePercent | Quantity::InclusiveTimePercent => {
            "--min-time leaves out the times of short calls, and `gprofinject --list PROG` says why functions are not hooked"
        }
        _ => "`gprofinject --count blocks --list PROG` says why functions are not counted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::budget::file::parse;

    /// Three functions, of which `outer` calls the others, and one that is not hooked.
    fn run(time: Time) -> Run {
        let function = |name: &str, calls, samples, self_ns, inclusive_ns| Function {
            name: name.to_owned(),
            demangled: name.to_owned(),
            module: Some(0),
            calls,
            samples,
            self_ns,
            inclusive_ns,
            ..Function::default()
        };
        Run {
            time,
            samples: 100,
            sample_period_ns: 10,
            functions: vec![
                function("outer", 1, 10, 100, 1000),
                function("parse_a", 30, 50, 500, 500),
                function("parse_b", 70, 40, 400, 450),
                function("unhooked", 0, 1, 0, 0),
            ],
            ..Run::default()
        }
    }

    fn budget(function: &str, bounds: &str) -> Vec<Budget> {
        parse(&format!("[[budget]]\nfunction = '{function}'\n{bounds}")).expect("a budget")
    }

    /// Returns whether the only bound of a budget holds, and what there is of it.
    fn judged(run: &Run, function: &str, bound: &str) -> (bool, u64) {
        let budgets = budget(function, bound);
        let verdicts = judge(run, &budgets).expect("verdicts");
        (verdicts[0].holds, verdicts[0].value)
    }

    fn refused(run: &Run, function: &str, bound: &str) -> (usize, String) {
        let Mistake { line, what } = judge(run, &budget(function, bound)).expect_err(bound);
        (line, what)
    }

    #[test]
    fn a_bound_is_the_most_that_is_allowed() {
        let run = run(Time::Executed);
        for (function, key, value) in [
            ("outer", "calls", 1),
            ("parse_*", "calls", 100),
            ("*", "calls", 101),
            ("parse_*", "instructions", 900),
            ("*", "instructions", 1000),
            ("outer", "inclusive_instructions", 1000),
            // Of several functions, the largest one.
            ("parse_*", "inclusive_instructions", 500),
        ] {
            let of = |most: u64| judged(&run, function, &format!("{key} = {most}"));
            assert_eq!((of(value), of(value - 1)), ((true, value), (false, value)), "{function} {key}");
        }
        for (function, key, percent) in [
            ("parse_*", "instructions_percent", 90.0),
            ("outer", "inclusive_instructions_percent", 100.0),
            ("parse_*", "inclusive_instructions_percent", 50.0),
        ] {
            let of = |most: f64| judged(&run, function, &format!("{key} = {most:?}")).0;
            assert_eq!((of(percent), of(percent - 0.001)), (true, false), "{function} {key}");
        }
    }

    #[test]
    fn shares_of_time() {
        for time in [Time::Sampled, Time::Measured { error_ns: 1.0 }] {
            for (function, key, percent) in [
                ("parse_*", "time_percent", 90.0),
                ("parse_*", "inclusive_time_percent", 50.0),
                ("outer", "inclusive_time_percent", 100.0),
            ] {
                let of = |most: f64| judged(&run(time), function, &format!("{key} = {most:?}")).0;
                assert_eq!((of(percent), of(percent - 0.001)), (true, false), "{time:?} {function} {key}");
            }
        }
        // The share is one of all samples, also of those in no function.
        let mut sampled = run(Time::Estimated);
        sampled.samples = 200;
        assert_eq!(judged(&sampled, "parse_*", "time_percent = 45"), (true, 900));
    }

    #[test]
    fn instructions_of_basic_blocks() {
        let mut run = run(Time::Sampled);
        run.has_instructions = true;
        run.functions[1].instructions = 50;
        assert_eq!(judged(&run, "parse_a", "instructions = 49"), (false, 50));
        assert_eq!(judged(&run, "parse_a", "instructions_percent = 100"), (true, 50));
        assert!(refused(&run, "parse_a", "inclusive_instructions = 1").1.contains("--clock instructions"));
        // The blocks of one function were not counted, so that the sum is too low, and the verdict says so.
        let budgets = budget("parse_*", "instructions = 100");
        let verdicts = judge(&run, &budgets).expect("verdicts");
        assert_eq!((verdicts[0].holds, verdicts[0].not_counted.as_slice()), (true, &[2][..]));
    }

    #[test]
    fn what_was_not_counted_is_not_kept() {
        let sampled = run(Time::Sampled);
        for (time, bound, option) in [
            (Time::Sampled, "instructions = 1", "--clock instructions"),
            (Time::Sampled, "instructions_percent = 1", "--clock instructions"),
            (Time::Measured { error_ns: 0.0 }, "inclusive_instructions = 1", "--clock instructions"),
            (Time::Executed, "time_percent = 1", "--times"),
            (Time::Executed, "inclusive_time_percent = 1", "which inclusive_instructions_percent"),
            (Time::Estimated, "inclusive_time_percent = 1", "--times"),
            (Time::None, "time_percent = 1", "--times"),
        ] {
            let mut run = run(time);
            if time == Time::None {
                run.functions.iter_mut().for_each(|function| function.self_ns = 0);
            }
            let (line, what) = refused(&run, "outer", bound);
            let key = bound.split(' ').next().unwrap_or_default();
            assert!(line == 3 && what.starts_with(&format!("{key}: ")) && what.contains(option), "{what}");
        }
        let mut silent = run(Time::Sampled);
        silent.functions.iter_mut().for_each(|function| function.calls = 0);
        assert!(refused(&silent, "outer", "calls = 1").1.contains("--hooks none"));
        assert_eq!(
            refused(&sampled, "unhooked", "calls = 1").1,
            "calls: not counted of unhooked, which ran; `gprofinject --list PROG` says why functions are not hooked"
        );
        assert!(
            refused(&run(Time::Executed), "unhooked", "instructions = 1").1.contains("--count blocks --list")
        );
        let mut short = run(Time::Measured { error_ns: 0.0 });
        short.functions[1].is_short = true;
        assert!(refused(&short, "parse_a", "time_percent = 1").1.contains("--min-time"));
        assert_eq!(judged(&short, "parse_a", "calls = 30"), (true, 30));
    }

    #[test]
    fn names() {
        let run = run(Time::Sampled);
        let (line, what) = refused(&run, "parse_c", "calls = 1");
        assert!(
            line == 2
                && what.starts_with(
                    "no function of the run is called parse_c; similar names: parse_a, parse_b;"
                ),
            "{what}"
        );
        let (_, what) = refused(&run, "zzzzzzzzz", "calls = 1");
        assert!(what.starts_with("no function of the run is called zzzzzzzzz; with `optional"), "{what}");
        assert_eq!(judged(&run, "parse_c", "optional = true\ncalls = 0"), (true, 0));
        assert_eq!(judged(&run, "outer", "optional = true\ncalls = 0"), (false, 1));
        // What the run has not counted is not kept by a function that it does not have either.
        assert_eq!(refused(&run, "parse_c", "optional = true\ninstructions = 0").0, 4);
    }

    #[test]
    fn sums_have_an_end() {
        let mut run = run(Time::Executed);
        run.functions.iter_mut().for_each(|function| function.calls = u64::MAX);
        assert_eq!(judged(&run, "*", "calls = 5"), (false, u64::MAX));
    }
}
