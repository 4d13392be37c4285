//! `gmon flat`: prints a table of functions, modules, programs or threads with their times and calls.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;

use anyhow::{Result, bail};
use gmon_export::processes::{failure, is_seen};
use gmon_export::{Ending, Module, Origin, Process, Program, Run};
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::reports::columns::{COUNTS, Kind, Numbers, OPTIONAL};
use crate::cli::reports::modules::interfaces;
use crate::cli::run_view::RunView;
use crate::cli::table::Table;
use crate::cli::table_args::{By, Column, FlatArgs};
use crate::cli::text::{file_name, plain};

/// The number of lines on a terminal that are no rows: the head, the headings, the sum, what is not shown, and the prompt.
const OTHER_LINES: usize = 9;

/// A row of the table.
#[derive(Default)]
struct Row {
    name: String,
    module: String,
    numbers: Numbers,
    json: Value,
}

/// Prints the table.
///
/// # Errors
/// The table has no such column or no rows, or `out` cannot be written to.
pub(crate) fn flat(view: &RunView, args: &FlatArgs, out: &mut impl Write) -> Result<()> {
    let run = view.run;
    let mut rows = match args.by {
        By::Function => functions(view),
        By::Module => modules(view),
        By::Program => programs(view)?,
        By::Label => labels(view)?,
        By::Process => processes(view)?,
        By::Thread => threads(view)?,
    };
    let numbers: Vec<Numbers> = rows.iter().map(|row| row.numbers.clone()).collect();
    let kind = Kind::new(run, args.by, args.raw, &numbers);
    if args.raw && !run.time.is_measured() {
        bail!("--raw: only measured times have overhead in them; `gprofinject --times` measures them");
    }
    if args.raw && matches!(args.by, By::Program | By::Label | By::Process) {
        let what = format!("{:?}", args.by).to_lowercase();
        bail!("--raw: --by {what} does not have these times; --by function, module and thread have them");
    }
    let order = args.sort.unwrap_or(kind.order());
    if !kind.has(order) {
        bail!("--sort {}: there is no such column here{}", order.name(), kind.hint(order));
    }
    sort(&mut rows, order, &kind);
    let json = args.common.shown.json;
    let most = if json { args.common.rows.most() } else { args.common.rows.most_on_screen(OTHER_LINES) };
    let hidden = rows.len().saturating_sub(most);
    rows.truncate(most);
    if args.by == By::Function {
        name(view, &mut rows);
    }
    let mut total = Numbers::default();
    numbers.iter().for_each(|row| total.add(row));
    if json {
        write!(out, "{{{}", view.json_head("gmon-flat"))?;
        write!(out, ",\n\"by\":{},\"not_shown\":{hidden}", json!(format!("{:?}", args.by).to_lowercase()))?;
        if args.by == By::Process {
            write!(out, ",\"left_out\":{}", run.processes_left_out)?;
        }
        if run.time.is_measured() {
            write!(out, ",\"histogram_starts_ns\":{}", json!(run.intervals.starts()))?;
        }
        array(out, "rows", &rows, |row| json_row(row, &kind))?;
        writeln!(out, ",\n\"total\":{}}}", json_total(&total, &kind))?;
        return Ok(());
    }
    view.head(out)?;
    writeln!(out)?;
    text(view, args, (&kind, order), &rows, &total, out)?;
    if args.by == By::Module && kind.has(Column::Inclusive) {
        let note = "inclusive: while the module or what it had called was running; between: the other time; from outside: calls by \
                    other modules";
        writeln!(out, "{}", view.style.wrap(note))?;
    }
    if hidden > 0 {
        let what = format!("{:?}", args.by).to_lowercase();
        let more = if what.ends_with('s') { format!("{what}es") } else { format!("{what}s") };
        let hidden = gmon::counted(hidden, &what, &more);
        writeln!(out, "{}", view.style.faint(format!("{hidden} more; -n 0 shows all")))?;
    }
    if args.by == By::Process && run.processes_left_out > 0 {
        let more = gmon::counted(run.processes_left_out, "process", "processes");
        let said = format!("{more} more had no room in the file; --by program has what they have done");
        writeln!(out, "{}", view.style.wrap(&said))?;
    }
    Ok(())
}

fn text(
    view: &RunView,
    args: &FlatArgs,
    (kind, order): (&Kind, Column),
    rows: &[Row],
    total: &Numbers,
    out: &mut impl Write,
) -> Result<()> {
    let columns = kind.columns();
    let mut headings: Vec<&'static str> = columns.iter().flat_map(|&column| kind.headings(column)).collect();
    let has_module = args.by == By::Function && view.has_modules();
    let names = match args.by {
        By::Function if has_module => &["function", "module"][..],
        By::Function => &["function"],
        By::Module => &["module"],
        By::Program => &["program"],
        By::Label => &["label"],
        By::Process => &["process"],
        By::Thread => &["thread"],
    };
    headings.extend(names);
    // The names of rows stay.
    let optional: Vec<&str> =
        OPTIONAL.into_iter().filter(|&heading| args.by != By::Module || heading != "module").collect();
    let mut table =
        Table::new(headings, names.len()).optional(&optional).counts(&COUNTS).keep(kind.sorted_by(order));
    let mut cumulative = 0_u64;
    // Shares are of everything that was measured, also of functions that are not shown.
    let all = view.run.total_ns();
    for row in rows {
        cumulative = cumulative.saturating_add(row.numbers.self_ns);
        let texts =
            columns.iter().flat_map(|&column| kind.texts(column, &row.numbers, all, Some(cumulative)));
        let mut texts: Vec<String> = texts.collect();
        texts.push(row.name.clone());
        if has_module {
            texts.push(row.module.clone());
        }
        table.push(texts);
    }
    let texts = columns.iter().flat_map(|&column| match Kind::is_sum(column) {
        true => kind.texts(column, total, all, None),
        // The time of a call is in the inclusive time of each of its callers.
        false => vec![String::new(); kind.headings(column).len()],
    });
    let mut texts: Vec<String> = texts.collect();
    texts.push("total".to_owned());
    table.push(texts);
    Ok(table.print(true, view.style, out)?)
}

/// Returns a row for each function that was called, or has samples or instructions. Their names are added later.
fn functions(view: &RunView) -> Vec<Row> {
    let run = view.run;
    let row = |index: u32| {
        let function = &run.functions[index as usize];
        Row {
            numbers: Numbers::of(function),
            json: json!(index),
            name: function.demangled.clone(),
            module: view.module(function),
        }
    };
    // A function that only calls others says nothing here, but for those of an interpreter or a virtual machine, which mostly do.
    let says = |&index: &u32| {
        let function = &run.functions[index as usize];
        let is_generated = || run.module_of(function).is_some_and(Module::is_generated);
        (function.calls, function.self_ns, function.samples, function.instructions) != (0, 0, 0, 0)
            || function.inclusive_ns > 0 && is_generated()
    };
    view.chosen().filter(says).map(row).collect()
}

/// Gives the rows of functions that are shown their names, and all that JSON says of them.
fn name(view: &RunView, rows: &mut [Row]) {
    let run = view.run;
    let index = |row: &Row| row.json.as_u64().unwrap_or(0) as u32;
    let names = view.names(rows.iter().map(index));
    let mut histograms: BTreeMap<u32, Vec<u64>> = rows.iter().map(|row| (index(row), Vec::new())).collect();
    for times in &run.rows {
        let Some(histogram) = histograms.get_mut(&times.function) else { continue };
        histogram.resize(histogram.len().max(times.histogram.len()), 0);
        histogram.iter_mut().zip(&times.histogram).for_each(|(to, &calls)| *to = to.saturating_add(calls));
    }
    for row in rows {
        let index = index(row);
        let Some(function) = run.functions.get(index as usize) else { continue };
        let cycle = function.cycle.map_or_else(String::new, |cycle| format!(" <cycle {}>", cycle + 1));
        row.name = format!("{}{cycle}", names.of(index));
        row.module = view.module(function);
        let mut json = view.json_function(function);
        json["address"] = json!(function.address);
        json["file"] = json!(function.source.map(|line| run.file_of(line)));
        json["line"] = json!(function.source.map(|line| line.line));
        json["cycle"] = json!(function.cycle.map(|cycle| cycle + 1));
        if run.time.is_measured() {
            json["histogram"] = json!(histograms.get(&index));
        }
        row.json = json;
    }
}

/// Returns a row for each module with functions that were called or have samples.
fn modules(view: &RunView) -> Vec<Row> {
    let run = view.run;
    let mut rows: BTreeMap<Option<u32>, Row> = BTreeMap::new();
    for function in view.chosen().map(|index| &run.functions[index as usize]) {
        let module = run.module_of(function);
        let row = rows.entry(function.module).or_insert_with(|| Row {
            name: module.map_or_else(|| "[unknown]".to_owned(), |module| file_name(&module.path)),
            json: json!({"module": module.map(|module| &module.path)}),
            ..Row::default()
        });
        row.numbers.add(&Numbers::of(function));
    }
    for (module, interface) in interfaces(view) {
        if let Some(row) = rows.get_mut(&module) {
            row.numbers.interface = Some(interface);
        }
    }
    rows.into_values().collect()
}

/// Returns a row for each program.
///
/// # Errors
/// The file is of one program, or functions are chosen, of which it is not known which program called them.
fn programs(view: &RunView) -> Result<Vec<Row>> {
    let run = view.run;
    let parts = parts(view, "program")?;
    let mut rows: BTreeMap<(&str, &str, u32, u32), Row> = BTreeMap::new();
    for (program, numbers) in run.programs.iter().zip(parts) {
        let key = (&*program.name, &*program.label, program.module, program.pid);
        let row = rows.entry(key).or_insert_with(|| {
            let mut name = plain(&program.name);
            if !program.label.is_empty() {
                name += &format!(", {}", plain(&program.label));
            }
            Row {
                name: match (program.processes, program.pid) {
                    (0 | 1, 0) => name,
                    (0 | 1, pid) => format!("{name} (process {pid})"),
                    (processes, _) => format!("{name} ({processes} processes)"),
                },
                json: json!({
                    "program": program.name,
                    "label": label(&program.label),
                    "processes": program.processes,
                    "pid": Some(program.pid).filter(|&pid| pid > 0),
                }),
                ..Row::default()
            }
        });
        row.numbers.add(&numbers);
    }
    Ok(rows.into_values().collect())
}

/// Returns a row for each label.
///
/// # Errors
/// The file is of one program, no process has a label, or functions are chosen, of which it is not known for which label they were
/// called.
fn labels(view: &RunView) -> Result<Vec<Row>> {
    let parts = parts(view, "label")?;
    if view.run.programs.iter().all(|program| program.label.is_empty()) {
        bail!(
            "--by label: no process of this run has a label; GPROFINJECT_LABEL in its environment gives it one"
        );
    }
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    for (program, numbers) in view.run.programs.iter().zip(parts) {
        let row = rows.entry(&program.label).or_insert_with(|| Row {
            name: match &*program.label {
                "" => "[no label]".to_owned(),
                label => plain(label),
            },
            json: json!({"label": label(&program.label)}),
            ..Row::default()
        });
        row.numbers.add(&numbers);
    }
    Ok(rows.into_values().collect())
}

fn label(label: &str) -> Option<&str> {
    Some(label).filter(|label| !label.is_empty())
}

/// Returns the numbers of each program of the run, of which rows by `what` are sums.
///
/// # Errors
/// The file is of one program, or functions are chosen, of which it is not known which program called them.
fn parts(view: &RunView, what: &str) -> Result<Vec<Numbers>> {
    let run = view.run;
    if !view.chooses_all() {
        bail!("--by {what}: shows all functions of a {what}; --{what} NAME shows chosen functions of one");
    }
    if run.shares.is_empty() {
        bail!("--by {what}: a gmon.out is of one program only; gmon.pb.gz has all of a run");
    }
    // The samples of a program are also those in code that is not hooked.
    let mut outside = vec![0_u64; run.programs.len()];
    for thread in &run.threads {
        let Some(outside) = outside.get_mut(thread.program as usize) else { continue };
        *outside = outside.saturating_add(thread.outside_ns);
    }
    let numbers = run.shares.iter().zip(outside).map(|(share, outside_ns)| Numbers {
        calls: share.calls,
        samples: share.samples,
        self_ns: share.self_ns,
        wall_ns: share.self_ns.saturating_add(outside_ns),
        ..Numbers::default()
    });
    Ok(numbers.collect())
}

/// Returns a row for each process.
///
/// # Errors
/// The file does not tell processes apart, or functions are chosen, of which it is not known which process called them.
fn processes(view: &RunView) -> Result<Vec<Row>> {
    let run = view.run;
    if !view.chooses_all() {
        bail!("--by process: shows all functions of a process");
    }
    if run.processes.is_empty() {
        bail!(
            "--by process: this file does not tell processes apart; `gprofinject PROG` writes a gmon.pb.gz that does"
        );
    }
    // Without several runs, all processes are on one host and of one rank.
    let has_runs = run.runs.len() > 1;
    let mut outside: HashMap<(u32, u32), u64> = HashMap::new();
    for thread in &run.threads {
        let sum = outside.entry((thread.program, thread.pid)).or_default();
        *sum = sum.saturating_add(thread.outside_ns);
    }
    let none = Program::default();
    let row = |process: &Process| {
        let origin = Origin::of(&run.runs, process);
        let program = run.programs.get(process.program as usize).unwrap_or(&none);
        let (status, signal) = match process.ending {
            Ending::Unknown => (None, None),
            Ending::Exited(status) => (Some(status), None),
            Ending::Killed(signal) => (None, Some(signal)),
        };
        let seen = Some(process).filter(|process| is_seen(process));
        let json = json!({
            "program": program.name,
            "label": label(&program.label),
            "pid": process.pid,
            "parent": Some(process.parent).filter(|&parent| parent > 0),
            "host": origin.map(|run| &run.host),
            "rank": origin.and_then(|run| run.rank),
            "begin_ns": seen.map(|process| process.begin_us.saturating_mul(1000)),
            "end_ns": seen.map(|process| process.end_us.saturating_mul(1000)),
            "exit_status": status,
            "signal": signal,
        });
        let mut name = format!("{} {}", plain(&program.name), process.pid);
        if !program.label.is_empty() {
            name += &format!(", {}", plain(&program.label));
        }
        if let Some(origin) = origin.filter(|_| has_runs) {
            name += &match origin.rank {
                Some(rank) => format!(", rank {rank}"),
                None => format!(" on {}", plain(&origin.host)),
            };
        }
        if let Some(failure) = failure(process) {
            name += &format!(", {failure}");
        }
        let self_ns = run.self_ns_of(process);
        let outside_ns = outside.get(&(process.program, process.pid)).copied().unwrap_or(0);
        let numbers = Numbers {
            calls: process.calls,
            samples: process.samples,
            self_ns,
            wall_ns: self_ns.saturating_add(outside_ns),
            process: Some(*process),
            ..Numbers::default()
        };
        Row { name, numbers, json, ..Row::default() }
    };
    Ok(run.processes.iter().map(row).collect())
}

/// Returns a row for each thread.
///
/// # Errors
/// The file does not tell threads apart.
fn threads(view: &RunView) -> Result<Vec<Row>> {
    let run: &Run = view.run;
    if run.threads.is_empty() {
        bail!("--by thread: this run does not tell threads apart; `gprofinject --times` does");
    }
    let mut sums = vec![Numbers::default(); run.threads.len()];
    for times in run.rows.iter().filter(|times| view.chooses(times.function)) {
        sums[times.thread as usize].add_times(times);
    }
    // Unless functions are chosen, the CPU time is that of the whole thread, also in code that is not hooked.
    let all = view.chooses_all();
    let row = |(thread, mut numbers): (&gmon_export::Thread, Numbers)| {
        numbers.wall_ns = numbers.self_ns.saturating_add(if all { thread.outside_ns } else { 0 });
        numbers.samples = if all { thread.samples } else { numbers.samples };
        numbers.thread = Some(thread.clone());
        let json = json!({
            "pid": thread.pid,
            "tid": thread.tid,
            "name": thread.name,
            "life_ns": thread.life_ns,
            "outside_ns": thread.outside_ns,
            "overhead_ns": thread.overhead_ns,
        });
        Row { name: thread_name(thread), numbers, json, ..Row::default() }
    };
    Ok(run.threads.iter().zip(sums).map(row).collect())
}

/// Returns a thread's name and number.
pub(crate) fn thread_name(thread: &gmon_export::Thread) -> String {
    plain(&format!("{} {}", thread.name, thread.tid))
}

/// Sorts the rows. Those without a value come last, and equal ones are sorted as in gprof: by calls, then by name.
fn sort(rows: &mut [Row], column: Column, kind: &Kind) {
    match column {
        Column::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
        Column::Module => rows.sort_by(|a, b| (&a.module, &a.name).cmp(&(&b.module, &b.name))),
        _ => rows.sort_by_cached_key(|row| {
            (Reverse(kind.value(column, &row.numbers)), Reverse(row.numbers.calls), row.name.clone())
        }),
    }
}

fn json_row(row: &Row, kind: &Kind) -> Value {
    let mut json = row.json.clone();
    add_numbers(&mut json, &row.numbers, kind, |_| true);
    json
}

fn json_total(total: &Numbers, kind: &Kind) -> Value {
    let mut json = json!({});
    add_numbers(&mut json, total, kind, Kind::is_sum);
    json
}

/// Adds the numbers of a row that the run has measured, under the names of docs/json.md.
fn add_numbers(json: &mut Value, row: &Numbers, kind: &Kind, is_wanted: impl Fn(Column) -> bool) {
    use Column::*;
    json["samples"] = json!(row.samples);
    if row.counted > 0 {
        json["counted"] = json!(row.counted);
    }
    for (name, column) in [
        ("calls", Calls),
        ("from_outside", FromOutside),
        ("between_ns", Between),
        ("primitive", Primitive),
        ("open", Open),
        ("self_ns", Own),
        ("self_raw_ns", SelfRaw),
        ("inclusive_ns", Inclusive),
        ("inclusive_raw_ns", InclusiveRaw),
        ("mean_ns", Mean),
        ("min_ns", Min),
        ("max_ns", Max),
        ("p50_ns", P50),
        ("p99_ns", P99),
        ("cpu_ns", Cpu),
        ("waiting_ns", Waiting),
        ("instructions", Instructions),
    ] {
        if kind.has(column) && is_wanted(column) {
            json[name] = json!(kind.value(column, row));
        }
    }
    if let Some(interface) = row.interface.filter(|_| kind.has(Inclusive)) {
        json["inclusive_at_most"] = json!(interface.is_estimate);
        json["overhead_ns"] = json!(interface.overhead_ns);
    }
}
