//! `gmon times`: prints the measured times of functions, modules or threads.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Result, bail};
use clap::ValueEnum;
use gmon_run::{FunctionTimes, Intervals, Thread};
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::measured::{Measurement, file_name, thread_name};
use crate::cli::measured_args::{By, Column, TimesArgs};
use crate::cli::table::Table;
use crate::cli::text::percent;
use crate::cli::units::duration;

/// A row of the table.
#[derive(Default)]
struct Row {
    name: String,
    module: String,
    times: FunctionTimes,
    samples: u64,
    /// The time of which the CPU time is a part. The rest is waiting.
    wall_ns: u64,
    /// The thread, in the table of threads.
    thread: Option<Thread>,
    json: Value,
}

/// What is known of all rows.
struct Kind<'a> {
    by: By,
    intervals: &'a Intervals,
    /// The CPU time of a sample, in nanoseconds. 0 if there is no CPU time for these rows.
    period_ns: u64,
    /// Whether a call had not returned at the end.
    open: bool,
    raw: bool,
}

/// Prints the table.
///
/// # Errors
/// There is no such function, the rows have no such column, or `out` cannot be written to.
pub(crate) fn times(measurement: &Measurement, args: &TimesArgs, out: &mut impl Write) -> Result<()> {
    let measured = &measurement.measured;
    let chosen = measurement.chosen(&args.function)?;
    let mut rows = match args.by {
        By::Function => functions(measurement, &chosen),
        By::Module => modules(measurement, &chosen),
        By::Thread => threads(measurement, &chosen),
    };
    let mut total = Row { name: "total".to_owned(), ..Row::default() };
    for row in &rows {
        total.times.add(&row.times);
        total.samples = total.samples.saturating_add(row.samples);
        total.wall_ns = total.wall_ns.saturating_add(row.wall_ns);
    }
    let kind = Kind {
        by: args.by,
        intervals: &measured.intervals,
        // The samples of timers inside the program do not know their thread.
        period_ns: match args.by {
            By::Thread if measured.threads.iter().all(|thread| thread.samples == 0) => 0,
            _ => measured.sample_period_ns,
        },
        open: total.times.open > 0,
        raw: args.raw,
    };
    if !kind.has(args.sort) {
        let name = args.sort.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned());
        bail!("--sort {name}: there is no such column here{}", kind.hint(args.sort));
    }
    sort(&mut rows, args.sort, &kind);
    rows.truncate(args.rows.limit.unwrap_or(usize::MAX));
    if measurement.args.shown.json {
        write!(out, "{{{}", measurement.json_head())?;
        write!(out, ",\n\"histogram_starts_ns\":{}", json!(measured.intervals.starts()))?;
        array(out, "rows", &rows, |row| json_row(row, &kind))?;
        let total = json_total(&total, &kind);
        writeln!(out, ",\n\"total\":{total}}}")?;
        return Ok(());
    }
    measurement.head(out)?;
    writeln!(out)?;
    // Shares are of everything that was measured, also of functions that are not shown.
    let all = measured.rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.self_ns));
    let columns = kind.columns();
    let mut headings: Vec<&'static str> = columns.iter().flat_map(|&column| headings(column)).collect();
    let names = match args.by {
        By::Function => &["name", "module"][..],
        By::Module => &["module"],
        By::Thread => &["thread"],
    };
    headings.extend(names);
    let mut table = Table::new(headings, names.len());
    for row in &rows {
        let mut texts: Vec<String> =
            columns.iter().flat_map(|&column| texts(column, row, &kind, all)).collect();
        texts.push(row.name.clone());
        if args.by == By::Function {
            texts.push(row.module.clone());
        }
        table.push(texts);
    }
    let mut texts: Vec<String> = columns
        .iter()
        .flat_map(|&column| {
            let texts = texts(column, &total, &kind, all);
            // The time of a call is in the inclusive time of each of its callers.
            if column.is_sum() { texts } else { texts.into_iter().map(|_| String::new()).collect() }
        })
        .collect();
    texts.push(total.name);
    table.push(texts);
    Ok(table.print(true, measurement.style, out)?)
}

/// Returns a row for each function that was called.
fn functions(measurement: &Measurement, chosen: &[bool]) -> Vec<Row> {
    let measured = &measurement.measured;
    let mut sums: BTreeMap<u32, FunctionTimes> = BTreeMap::new();
    for row in measured.rows.iter().filter(|row| chosen[row.function as usize]) {
        sums.entry(row.function).or_default().add(row);
    }
    let samples = measured.samples_by_function();
    let row = |(index, times): (u32, FunctionTimes)| {
        let function = &measured.functions[index as usize];
        let mut json = measurement.json_function(index);
        json["address"] = json!(function.address);
        json["file"] = if function.file.is_empty() { Value::Null } else { json!(function.file) };
        json["line"] = if function.line == 0 { Value::Null } else { json!(function.line) };
        Row {
            name: measurement.name(index),
            module: measurement.module(index),
            wall_ns: times.self_ns,
            times,
            samples: samples[index as usize],
            thread: None,
            json,
        }
    };
    sums.into_iter().map(row).collect()
}

/// Returns a row for each module with functions that were called.
fn modules(measurement: &Measurement, chosen: &[bool]) -> Vec<Row> {
    let measured = &measurement.measured;
    let mut rows: BTreeMap<u32, Row> = BTreeMap::new();
    let samples = measured.samples_by_function();
    let mut counted = vec![false; measured.functions.len()];
    for times in measured.rows.iter().filter(|row| chosen[row.function as usize]) {
        let function = &measured.functions[times.function as usize];
        let module = &measured.modules[function.module as usize].name;
        let row = rows.entry(function.module).or_insert_with(|| Row {
            name: file_name(module),
            json: json!({"module": module}),
            ..Row::default()
        });
        row.times.add(times);
        row.wall_ns = row.times.self_ns;
        if !std::mem::replace(&mut counted[times.function as usize], true) {
            row.samples = row.samples.saturating_add(samples[times.function as usize]);
        }
    }
    rows.into_values().collect()
}

/// Returns a row for each thread.
fn threads(measurement: &Measurement, chosen: &[bool]) -> Vec<Row> {
    let measured = &measurement.measured;
    let mut sums = vec![FunctionTimes::default(); measured.threads.len()];
    for row in measured.rows.iter().filter(|row| chosen[row.function as usize]) {
        sums[row.thread as usize].add(row);
    }
    let all = !chosen.contains(&false);
    let row = |(thread, times): (&Thread, FunctionTimes)| Row {
        name: thread_name(thread),
        // Unless functions are chosen, the CPU time is that of the whole thread, also in code that is not hooked.
        samples: if all { thread.samples } else { times.samples },
        wall_ns: if all { times.self_ns.saturating_add(thread.outside_ns) } else { times.self_ns },
        times,
        json: json!({
            "pid": thread.pid,
            "tid": thread.tid,
            "name": thread.name,
            "life_ns": thread.life_ns,
            "outside_ns": thread.outside_ns,
            "overhead_ns": thread.overhead_ns,
        }),
        thread: Some(thread.clone()),
        ..Row::default()
    };
    measured.threads.iter().zip(sums).map(row).collect()
}

impl Kind<'_> {
    /// Returns the columns in front of the names.
    fn columns(&self) -> Vec<Column> {
        use Column::*;
        let mut columns = match self.by {
            By::Function => vec![Calls, Primitive, Own, Inclusive, Mean, Min, Max, P50, P99],
            By::Module => vec![Calls, Own],
            By::Thread => vec![Calls, Own, Life, Outside, Overhead],
        };
        if self.period_ns > 0 {
            columns.extend([Cpu, Waiting]);
        }
        if self.open {
            columns.push(Open);
        }
        if self.raw {
            columns.push(SelfRaw);
            if self.by == By::Function {
                columns.push(InclusiveRaw);
            }
        }
        columns
    }

    /// Whether rows can be sorted by a column.
    fn has(&self, column: Column) -> bool {
        match column {
            Column::Name => true,
            Column::Module => self.by == By::Function,
            // The numbers are there, whether or not they are shown.
            Column::Open | Column::SelfRaw => true,
            Column::InclusiveRaw => self.by == By::Function,
            column => self.columns().contains(&column),
        }
    }

    /// Returns why there is no such column, for a message.
    fn hint(&self, column: Column) -> &'static str {
        match column {
            Column::Life | Column::Outside | Column::Overhead => "; --by thread has it",
            Column::Cpu | Column::Waiting if self.by != By::Thread => "; CPU time was not sampled",
            Column::Cpu | Column::Waiting => {
                "; --by function and --by module have it if CPU time was sampled, and --by thread if perf events have \
                 sampled it"
            }
            _ => "; --by function has it",
        }
    }
}

impl Column {
    /// Whether the column of the table's last row has the sum of those above.
    fn is_sum(self) -> bool {
        use Column::*;
        matches!(self, Calls | Primitive | Own | Cpu | Waiting | Open | SelfRaw)
    }
}

fn headings(column: Column) -> Vec<&'static str> {
    use Column::*;
    match column {
        Own => vec!["self", "share"],
        Calls => vec!["calls"],
        Primitive => vec!["primitive"],
        Inclusive => vec!["inclusive"],
        Mean => vec!["mean"],
        Min => vec!["min"],
        Max => vec!["max"],
        P50 => vec!["p50"],
        P99 => vec!["p99"],
        Cpu => vec!["cpu"],
        Waiting => vec!["waiting"],
        Open => vec!["open"],
        SelfRaw => vec!["raw self"],
        InclusiveRaw => vec!["raw inclusive"],
        Life => vec!["life"],
        Outside => vec!["outside"],
        Overhead => vec!["overhead"],
        Name => vec!["name"],
        Module => vec!["module"],
    }
}

/// Returns the texts of a column, as many as it has headings.
fn texts(column: Column, row: &Row, kind: &Kind, all: u64) -> Vec<String> {
    let Some(value) = value(column, row, kind) else { return vec!["-".to_owned()] };
    match column {
        Column::Calls | Column::Primitive | Column::Open => vec![value.to_string()],
        Column::Own => vec![duration(value), percent(value, all)],
        _ => vec![duration(value)],
    }
}

/// Returns a number, in nanoseconds if it is a time.
fn value(column: Column, row: &Row, kind: &Kind) -> Option<u64> {
    let times = &row.times;
    let closed = Some(times).filter(|times| times.calls > times.open);
    match column {
        Column::Calls => Some(times.calls),
        Column::Primitive => Some(times.primitive),
        Column::Own => Some(times.self_ns),
        Column::Inclusive => Some(times.inclusive_ns),
        Column::Mean => mean(times).map(|mean| mean.round() as u64),
        Column::Min => closed.map(|times| times.min_ns),
        Column::Max => closed.map(|times| times.max_ns),
        Column::P50 => times.quantile_ns(kind.intervals, 0.5),
        Column::P99 => times.quantile_ns(kind.intervals, 0.99),
        Column::Cpu => cpu(row, kind),
        Column::Waiting => cpu(row, kind).map(|cpu| row.wall_ns.saturating_sub(cpu)),
        Column::Open => Some(times.open),
        Column::SelfRaw => Some(times.self_raw_ns),
        Column::InclusiveRaw => Some(times.inclusive_raw_ns),
        Column::Life => row.thread.as_ref().map(|thread| thread.life_ns),
        Column::Outside => row.thread.as_ref().map(|thread| thread.outside_ns),
        Column::Overhead => row.thread.as_ref().map(|thread| thread.overhead_ns),
        Column::Name | Column::Module => None,
    }
}

/// Returns the inclusive time of a call. Calls within another call of the function are in that call's time.
fn mean(times: &FunctionTimes) -> Option<f64> {
    let calls = if times.primitive > 0 { times.primitive } else { times.calls };
    (calls > 0).then(|| times.inclusive_ns as f64 / calls as f64)
}

/// Returns the CPU time, if it was sampled.
fn cpu(row: &Row, kind: &Kind) -> Option<u64> {
    (kind.period_ns > 0).then(|| row.samples.saturating_mul(kind.period_ns))
}

/// Sorts the rows. Those without a value come last, and equal ones are sorted by name.
fn sort(rows: &mut [Row], column: Column, kind: &Kind) {
    match column {
        Column::Name => rows.sort_by(|a, b| (&a.name, &a.module).cmp(&(&b.name, &b.module))),
        Column::Module => rows.sort_by(|a, b| (&a.module, &a.name).cmp(&(&b.module, &b.name))),
        _ => rows.sort_by_cached_key(|row| (Reverse(value(column, row, kind)), row.name.clone())),
    }
}

fn json_row(row: &Row, kind: &Kind) -> Value {
    let times = &row.times;
    let mut json = row.json.clone();
    json["calls"] = json!(times.calls);
    json["open"] = json!(times.open);
    json["self_ns"] = json!(times.self_ns);
    json["self_raw_ns"] = json!(times.self_raw_ns);
    if kind.by != By::Thread || kind.period_ns > 0 {
        json["samples"] = json!(row.samples);
        json["cpu_ns"] = json!(value(Column::Cpu, row, kind));
        json["waiting_ns"] = json!(value(Column::Waiting, row, kind));
    }
    if kind.by == By::Function {
        json["primitive"] = json!(times.primitive);
        json["inclusive_ns"] = json!(times.inclusive_ns);
        json["inclusive_raw_ns"] = json!(times.inclusive_raw_ns);
        json["mean_ns"] = json!(mean(times));
        json["histogram"] = json!(times.histogram);
        for (name, column) in [
            ("min_ns", Column::Min),
            ("max_ns", Column::Max),
            ("p50_ns", Column::P50),
            ("p99_ns", Column::P99),
        ] {
            json[name] = json!(value(column, row, kind));
        }
    }
    json
}

fn json_total(total: &Row, kind: &Kind) -> Value {
    let times = &total.times;
    let mut json = json!({
        "calls": times.calls,
        "open": times.open,
        "self_ns": times.self_ns,
        "self_raw_ns": times.self_raw_ns,
    });
    if kind.period_ns > 0 {
        json["cpu_ns"] = json!(value(Column::Cpu, total, kind));
    }
    json
}
