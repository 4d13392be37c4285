//! `gmon check --budget`: whether a run keeps the bounds of a file.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use gmon_export::Run;
use gmon_export::load::Detail;
use serde_json::{Value, json};

use crate::cli::args::CheckArgs;
use crate::cli::budget::file::{Budget, Mistake, Most};
use crate::cli::budget::judge::Verdict;
use crate::cli::json::array;
use crate::cli::run::Source;
use crate::cli::run_args::RunArgs;
use crate::cli::run_view::{json_function, json_head};
use crate::cli::text::{plain, standard_output};
use crate::cli::{files, run};

mod file;
mod judge;

/// The largest size of a budget's file, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// The number of functions that a note has.
const NAMED: usize = 3;

/// Prints which bounds the run does not keep. Returns whether there are any.
///
/// # Errors
/// A file cannot be read, is no budget, or the run has not counted what the budget bounds.
pub(crate) fn run(path: &Path, args: &CheckArgs) -> Result<bool> {
    let name = plain(&path.display().to_string());
    let text = files::read_text(path, MAX_SIZE)?;
    let at = |Mistake { line, what }| anyhow!("{name}:{line}: {what}");
    let budgets = file::parse(&text).map_err(at)?;
    let source = run::open(&RunArgs { run: args.files.clone(), form: args.form, ..RunArgs::default() })?;
    if let Some(library) = source.library() {
        bail!("{}: a library; MODULE!FUNCTION in a budget selects the functions of one", library.display());
    }
    let run = source.run(Detail::Functions)?;
    let parts = parts(&source, &budgets).map_err(at)?;
    let mut verdicts = Vec::new();
    for budget in &budgets {
        let part = match &budget.label {
            None => Some(&run),
            Some(label) => parts.get(label.as_str()),
        };
        if let Some(part) = part {
            verdicts.extend(judge::judge(part, std::slice::from_ref(budget)).map_err(at)?);
        }
    }
    notes(&name, &verdicts)?;
    let is_exceeded = verdicts.iter().any(|verdict| !verdict.holds);
    let mut out = standard_output();
    if args.json {
        write_json(&run, path, budgets.len(), &verdicts, &mut out)?;
    } else {
        for verdict in verdicts.iter().filter(|verdict| !verdict.holds) {
            writeln!(out, "{}", exceeded(&name, verdict))?;
        }
        if !is_exceeded {
            writeln!(out, "{}", gmon::counted(budgets.len(), "budget holds", "budgets hold"))?;
        }
    }
    out.flush()?;
    Ok(is_exceeded)
}

/// Returns the parts of a run that budgets are of, by the patterns of their labels. A part that does not exist is not there, if a budget
/// allows that.
///
/// # Errors
/// No process has such a label.
fn parts<'b>(source: &Source, budgets: &'b [Budget]) -> Result<BTreeMap<&'b str, Run>, Mistake> {
    let mut parts = BTreeMap::new();
    for budget in budgets {
        let Some(label) = &budget.label else { continue };
        if parts.contains_key(label.as_str()) {
            continue;
        }
        match source.labelled(label).and_then(|part| part.run(Detail::Functions)) {
            Ok(part) => drop(parts.insert(label.as_str(), part)),
            Err(_) if budget.optional => {}
            Err(error) => return Err(Mistake { line: budget.line, what: error.to_string() }),
        }
    }
    Ok(parts)
}

/// Says which functions a sum lacks.
fn notes(file: &str, verdicts: &[Verdict]) -> io::Result<()> {
    let mut out = io::stderr();
    for verdict in verdicts.iter().filter(|verdict| !verdict.not_counted.is_empty()) {
        let all = &verdict.not_counted;
        let names = all.iter().take(NAMED).map(|&index| name(verdict.run, index));
        let names: Vec<String> = names.collect();
        let more = match all.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let (line, quantity) = (verdict.bound.line, verdict.bound.quantity);
        writeln!(
            out,
            "gmon: {file}:{line}: {}: not counted of {}, which ran: {}{more}; {}",
            quantity.key(),
            gmon::counted(all.len(), "function", "functions"),
            names.join(", "),
            judge::why(quantity),
        )?;
    }
    Ok(())
}

fn name(run: &Run, function: u32) -> String {
    run.functions.get(function as usize).map_or_else(String::new, |function| plain(&function.demangled))
}

/// Returns the line for a bound that does not hold.
fn exceeded(file: &str, verdict: &Verdict) -> String {
    let Verdict { run, budget, bound, .. } = verdict;
    let label = budget.label.as_ref().map_or_else(String::new, |label| format!(" of {}", plain(label)));
    let amount = |value: u64| match bound.most {
        Most::Number(_) => value.to_string(),
        Most::Percent(most) => percent(verdict.percent(value), most),
    };
    let most = match verdict.largest.map(|largest| name(run, largest)) {
        Some(name) if verdict.functions > 1 && bound.quantity.is_inclusive() => format!(", by {name}"),
        Some(name) if verdict.functions > 1 => {
            format!(
                ", by {}, most by {name}: {}",
                gmon::counted(verdict.functions, "function", "functions"),
                amount(verdict.of_largest)
            )
        }
        _ => String::new(),
    };
    format!(
        "{file}:{}: {}{label}: {} {}, allowed {}{most}",
        bound.line,
        plain(&budget.function),
        bound.quantity.key(),
        amount(verdict.value),
        bound.most,
    )
}

/// Returns a share that is compared with another, with so many digits that it is not the same.
fn percent(share: f64, most: f64) -> String {
    let short = format!("{share:.2}");
    match short.parse::<f64>() {
        Ok(rounded) if (rounded > most) == (share > most) => format!("{short} %"),
        _ => format!("{share} %"),
    }
}

/// Prints all bounds as JSON.
///
/// # Errors
/// `out` cannot be written to.
fn write_json(
    run: &Run,
    path: &Path,
    budgets: usize,
    verdicts: &[Verdict],
    out: &mut impl Write,
) -> io::Result<()> {
    let holds = verdicts.iter().all(|verdict| verdict.holds);
    write!(out, "{{\"schema\":\"gmon-budget\",\"version\":1,\"file\":{},", json!(path.to_string_lossy()))?;
    write!(out, "\"holds\":{holds},\"budgets\":{budgets},\n{}", json_head(run))?;
    array(out, "bounds", verdicts, |verdict| {
        let Verdict { run, budget, bound, .. } = verdict;
        let amount = |value: u64| match bound.most {
            Most::Number(_) => json!(value),
            Most::Percent(_) => json!(verdict.percent(value)),
        };
        let function = |&index: &u32| {
            run.functions.get(index as usize).map_or(Value::Null, |function| json_function(run, function))
        };
        let largest = verdict.largest.as_ref().map_or(Value::Null, |index| {
            let mut largest = function(index);
            largest["value"] = amount(verdict.of_largest);
            largest
        });
        json!({
            "line": bound.line,
            "function": budget.function,
            "label": budget.label,
            "bound": bound.quantity.key(),
            "value": amount(verdict.value),
            "allowed": match bound.most {
                Most::Number(most) => json!(most),
                Most::Percent(most) => json!(most),
            },
            "holds": verdict.holds,
            "functions": verdict.functions,
            "largest": largest,
            "not_counted": verdict.not_counted.iter().map(function).collect::<Vec<_>>(),
        })
    })?;
    writeln!(out, "}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_differ_from_what_is_allowed() {
        assert_eq!(percent(31.239, 30.0), "31.24 %");
        assert_eq!(percent(30.001, 30.0), "30.001 %");
        assert_eq!(percent(29.996, 29.999), "29.996 %");
        assert_eq!(percent(30.0, 30.0), "30.00 %");
    }
}
