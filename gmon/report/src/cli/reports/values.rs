//! `gmon values`: prints which values arguments and results had, and how often.

use std::collections::HashMap;
use std::io::Write;

use anyhow::{Result, bail};
use gmon_run::{KeptValue, ValueCounts, ValueKind, ValueSummary, Values};
use gprofinject_image::names::fit;
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::run_view::RunView;
use crate::cli::table_args::ValuesArgs;
use crate::cli::text::{percent, plain};

/// The values, and the callers, that text has of each argument unless `-n` says otherwise.
const ROWS: usize = 10;
/// The columns of a histogram's longest bar.
const BAR: u64 = 40;

/// The values of an argument in the calls by all callers, and by each of them.
struct Argument<'r> {
    function: u32,
    name: &'r str,
    all: ValueCounts,
    callers: Vec<(Option<u32>, ValueCounts)>,
}

/// Prints the values as text or as JSON.
///
/// # Errors
/// There are none, or `out` cannot be written to.
pub(crate) fn values(view: &RunView, args: &ValuesArgs, out: &mut impl Write) -> Result<()> {
    if view.run.values.is_empty() {
        bail!(
            "no values of arguments in the run of {}; `gprofinject --values 'FUNCTION@arg1/u64' PROG` keeps them",
            plain(&view.run.program)
        );
    }
    let arguments = arguments(view);
    if args.common.shown.json { json_of(view, &arguments, out) } else { text(view, args, &arguments, out) }
}

/// Returns the arguments of the chosen functions, those with the most calls first.
fn arguments<'r>(view: &RunView<'r>) -> Vec<Argument<'r>> {
    let mut places: HashMap<(u32, &str, ValueKind), usize> = HashMap::new();
    let mut all: Vec<Argument> = Vec::new();
    for Values { function, caller, name, counts, .. } in
        view.run.values.iter().filter(|of| view.chooses(of.function))
    {
        let at = *places.entry((*function, name, counts.kind)).or_insert_with(|| {
            let empty = ValueCounts { kind: counts.kind, ..ValueCounts::default() };
            all.push(Argument { function: *function, name, all: empty, callers: Vec::new() });
            all.len() - 1
        });
        let Some(argument) = all.get_mut(at) else { continue };
        argument.all.add(counts.clone());
        // A caller may occur in several programs.
        match argument.callers.iter_mut().find(|(known, _)| known == caller) {
            Some((_, sum)) => sum.add(counts.clone()),
            None => argument.callers.push((*caller, counts.clone())),
        }
    }
    let calls = |counts: &ValueCounts| std::cmp::Reverse(counts.summary().calls);
    for argument in &mut all {
        argument.callers.sort_by_cached_key(|(_, counts)| calls(counts));
    }
    // The arguments of a function stay together, in their order.
    let mut of_function: HashMap<u32, u64> = HashMap::new();
    for argument in &all {
        let most = of_function.entry(argument.function).or_default();
        *most = (*most).max(argument.all.summary().calls);
    }
    let key = |argument: &Argument| (of_function.get(&argument.function).copied(), argument.function);
    all.sort_by_cached_key(|argument| std::cmp::Reverse(key(argument)));
    all
}

/// Returns a value as text.
fn shown(kind: ValueKind, kept: &KeptValue) -> String {
    let value = kept.value;
    match (kind, &kept.text) {
        (ValueKind::Text, Some(text)) => format!("\"{}\"", plain(text)),
        (ValueKind::Text, None) => format!("(a text that was not kept, {value:016x})"),
        (_, Some(name)) => format!("{} ({})", number(kind, value), plain(name)),
        (_, None) => number(kind, value),
    }
}

/// Returns a number as text.
fn number(kind: ValueKind, value: u64) -> String {
    match kind {
        ValueKind::Unsigned => value.to_string(),
        ValueKind::Signed => (value as i64).to_string(),
        ValueKind::Hex | ValueKind::Text => format!("{value:#x}"),
        ValueKind::Char => match u8::try_from(value) {
            Ok(byte) if byte.is_ascii_graphic() || byte == b' ' => format!("'{}'", char::from(byte)),
            _ => (value as i64).to_string(),
        },
        ValueKind::Double | ValueKind::Single => kind.number(value).to_string(),
    }
}

/// Returns a mean or a sum as text, with no more digits than say something.
fn real(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e15 { format!("{value:.0}") } else { format!("{value:.4}") }
}

fn json_number(kind: ValueKind, value: u64) -> Value {
    match kind {
        ValueKind::Unsigned | ValueKind::Hex => json!(value),
        ValueKind::Signed | ValueKind::Char => json!(value as i64),
        ValueKind::Double | ValueKind::Single => json!(kind.number(value)),
        ValueKind::Text => Value::Null,
    }
}

fn text(view: &RunView, args: &ValuesArgs, arguments: &[Argument], out: &mut impl Write) -> Result<()> {
    let most = if args.common.rows.limit.is_none() { ROWS } else { args.common.rows.most() };
    view.head(out)?;
    let callers = arguments.iter().flat_map(|of| of.callers.iter().filter_map(|(caller, _)| *caller));
    let names = view.names(arguments.iter().map(|of| of.function).chain(callers));
    let style = view.style;
    let width = style.width().unwrap_or(usize::MAX);
    for argument in arguments {
        let counts = &argument.all;
        let (kind, all) = (counts.kind, counts.summary());
        let name = plain(argument.name);
        let title = format!("{} {name}", names.of(argument.function));
        writeln!(out, "\n{}: {}", style.heading(&title), sentence(kind, &all))?;
        let column = |count: &str, share: &str, value: &str| {
            let row = format!("{count:>12}  {share:>7}  {value}");
            if width == usize::MAX { row } else { fit(&row, width).into_owned() }
        };
        writeln!(out, "{}", style.faint(column("calls", "share", "value")))?;
        for kept in counts.kept.iter().take(most) {
            let error = if kept.error > 0 { format!(" (up to {} more)", kept.error) } else { String::new() };
            let value = format!("{}{error}", shown(kind, kept));
            writeln!(out, "{}", column(&kept.count.to_string(), &percent(kept.count, all.calls), &value))?;
        }
        let rest = counts.kept.iter().skip(most).fold(counts.others.count, |sum, kept| sum + kept.count);
        if rest > 0 {
            let kept = counts.kept.len().saturating_sub(most);
            let which = match (kept, counts.others.count) {
                (kept, 0) => gmon::counted(kept, "other value", "other values"),
                (0, _) => "values of which no count was kept".to_owned(),
                (kept, _) => format!(
                    "{}, and others of which no count was kept",
                    gmon::counted(kept, "other value", "other values")
                ),
            };
            let bound = match counts.missing {
                0 => String::new(),
                most => format!(": each at most {most} times"),
            };
            writeln!(
                out,
                "{}",
                column(&rest.to_string(), &percent(rest, all.calls), &format!("{which}{bound}"))
            )?;
        }
        if args.histogram && kind.is_number() {
            histogram(&all, out)?;
        }
        if argument.callers.len() > 1 || argument.callers.iter().any(|(caller, _)| caller.is_some()) {
            by_caller(argument, &names, most, &column, &style, out)?;
        }
    }
    Ok(())
}

/// Returns what all values have in common, in words.
fn sentence(kind: ValueKind, all: &ValueSummary) -> String {
    let calls = gmon::counted(all.calls, "call", "calls");
    match kind {
        ValueKind::Text => calls,
        ValueKind::Hex => {
            format!("{calls}, from {} to {}", number(kind, all.least), number(kind, all.greatest))
        }
        _ => format!(
            "{calls}, mean {}, from {} to {}, sum {}",
            real(all.mean),
            number(kind, all.least),
            number(kind, all.greatest),
            all.integer_sum.map_or_else(|| real(all.sum), |sum| sum.to_string()),
        ),
    }
}

/// Prints a bar for each interval up to the last one with a value, numbers below 0 first.
fn histogram(all: &ValueSummary, out: &mut impl Write) -> Result<()> {
    let most = all.histogram.iter().copied().max().unwrap_or(0).max(1);
    let first = all.histogram.iter().position(|&count| count > 0).unwrap_or(0);
    let last = all.histogram.iter().take(gmon_run::INTERVALS - 1).rposition(|&count| count > 0);
    let negative = all.histogram.get(gmon_run::INTERVALS - 1).map(|&count| (gmon_run::INTERVALS - 1, count));
    let others = all.histogram.iter().copied().enumerate().take(last.map_or(0, |last| last + 1)).skip(first);
    for (interval, count) in negative.into_iter().chain(others) {
        let bar = (u128::from(count) * u128::from(BAR) / u128::from(most)) as usize;
        writeln!(out, "{count:>12}  {:<24} {}", range(interval), "#".repeat(bar))?;
    }
    Ok(())
}

/// Returns the least value of an interval, and the one that is behind it.
fn bounds(interval: usize) -> (Option<u128>, Option<u128>) {
    match interval {
        0 => (Some(0), Some(1)),
        interval if interval < gmon_run::INTERVALS - 1 => (Some(1 << (interval - 1)), Some(1 << interval)),
        _ => (None, Some(0)),
    }
}

fn range(interval: usize) -> String {
    match bounds(interval) {
        (None, _) => "below 0".to_owned(),
        (Some(0), _) => "0".to_owned(),
        (Some(1), _) => "1".to_owned(),
        (Some(low), high) => format!("{low} to {}", high.unwrap_or(0).saturating_sub(1)),
    }
}

fn by_caller(
    argument: &Argument,
    names: &crate::cli::run_view::Names,
    most: usize,
    column: &dyn Fn(&str, &str, &str) -> String,
    style: &crate::cli::text::Style,
    out: &mut impl Write,
) -> Result<()> {
    let all = argument.all.summary().calls;
    writeln!(out, "{}", style.faint(column("calls", "share", "caller: values")))?;
    for (caller, counts) in argument.callers.iter().take(most) {
        let summary = counts.summary();
        let name = caller.map_or("[outside]", |caller| names.of(caller));
        let kept = counts.kept.first();
        let frequent = kept.map_or(String::new(), |kept| {
            format!("mostly {} ({})", shown(counts.kind, kept), percent(kept.count, summary.calls))
        });
        let mean = match counts.kind {
            ValueKind::Text | ValueKind::Hex => String::new(),
            _ => format!("mean {}, ", real(summary.mean)),
        };
        let row = format!("{name}: {mean}{frequent}");
        writeln!(out, "{}", column(&summary.calls.to_string(), &percent(summary.calls, all), &row))?;
    }
    let more = argument.callers.len().saturating_sub(most);
    if more > 0 {
        let hidden = gmon::counted(more, "caller", "callers");
        writeln!(out, "{}", style.faint(format!("{hidden} more; -n shows them")))?;
    }
    Ok(())
}

fn json_of(view: &RunView, arguments: &[Argument], out: &mut impl Write) -> Result<()> {
    write!(out, "{{{}", view.json_head("gmon-values"))?;
    array(out, "values", arguments, |argument| {
        let mut json = view.json_node(Some(argument.function), "");
        json["argument"] = json!(argument.name);
        add_counts(&mut json, &argument.all);
        let callers = argument.callers.iter().map(|(caller, counts)| {
            let mut json = view.json_node(*caller, "[outside]");
            add_counts(&mut json, counts);
            json
        });
        json["callers"] = json!(callers.collect::<Vec<_>>());
        json
    })?;
    writeln!(out, "}}")?;
    Ok(())
}

/// Adds what is known of values to an object.
fn add_counts(json: &mut Value, counts: &ValueCounts) {
    let kind = counts.kind;
    let all = counts.summary();
    let known = |value: u64| if kind.is_number() { json_number(kind, value) } else { Value::Null };
    json["kind"] = json!(match kind {
        ValueKind::Unsigned => "unsigned",
        ValueKind::Signed => "signed",
        ValueKind::Hex => "hex",
        ValueKind::Char => "char",
        ValueKind::Double => "double",
        ValueKind::Single => "single",
        ValueKind::Text => "text",
    });
    json["calls"] = json!(all.calls);
    let is_number = kind.is_number() && all.calls > 0;
    let exact = all.integer_sum.and_then(|sum| match (u64::try_from(sum), i64::try_from(sum)) {
        (Ok(sum), _) => Some(json!(sum)),
        (_, Ok(sum)) => Some(json!(sum)),
        _ => None,
    });
    json["sum"] = if is_number { exact.unwrap_or_else(|| json!(all.sum)) } else { Value::Null };
    json["mean"] = json!(is_number.then_some(all.mean));
    json["min"] = if is_number { known(all.least) } else { Value::Null };
    json["max"] = if is_number { known(all.greatest) } else { Value::Null };
    json["other_calls"] = json!(counts.others.count);
    json["missing"] = json!(counts.missing);
    let intervals = all.histogram.iter().enumerate().filter(|&(_, &count)| count > 0 && is_number);
    let intervals = intervals.map(|(interval, count)| {
        let (low, high) = bounds(interval);
        let float = |bound: Option<u128>| {
            bound.map(|bound| u64::try_from(bound).map_or_else(|_| json!(bound as f64), |bound| json!(bound)))
        };
        json!({"from": float(low), "below": float(high), "calls": count})
    });
    json["histogram"] = json!(intervals.collect::<Vec<_>>());
    let kept = counts.kept.iter().map(|kept| {
        json!({
            "value": json_number(kind, kept.value),
            "text": kept.text,
            "calls": kept.count,
            "error": kept.error,
        })
    });
    json["values"] = json!(kept.collect::<Vec<_>>());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_as_text() {
        let of = |kind, value: u64, text: Option<&str>| {
            shown(kind, &KeptValue { value, text: text.map(str::to_owned), ..KeptValue::default() })
        };
        assert_eq!(of(ValueKind::Signed, u64::MAX, None), "-1");
        assert_eq!(of(ValueKind::Char, u64::from(b'x'), None), "'x'");
        assert_eq!(of(ValueKind::Signed, 2, Some("RED")), "2 (RED)");
        assert_eq!(of(ValueKind::Text, 2, Some("a\nb")), "\"a\\nb\"");
        assert_eq!(of(ValueKind::Hex, 255, None), "0xff");
        assert_eq!(of(ValueKind::Double, 0.5_f64.to_bits(), None), "0.5");
    }

    #[test]
    fn intervals_as_text() {
        let names: Vec<_> = [0, 1, 2, 3, 64, 65].into_iter().map(range).collect();
        let last = format!("{} to {}", 1_u64 << 63, u64::MAX);
        assert_eq!(names, ["0", "1", "2 to 3", "4 to 7", last.as_str(), "below 0"]);
    }
}
