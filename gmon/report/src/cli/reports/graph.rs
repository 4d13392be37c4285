//! `gmon graph`: prints each function between those that call it and those that it calls.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::Write;

use anyhow::{Result, bail};
use gmon_export::{Arc, Cycle, Function, Time};
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::reports::columns::{Kind, Numbers};
use crate::cli::run_view::{ESTIMATE, NOT_KNOWN, Names, RunView};
use crate::cli::table::Table;
use crate::cli::table_args::{By, Column, GraphArgs};

/// The number of lines on a terminal that are no entries: the head, the headings, what is not shown, and the prompt.
const OTHER_LINES: usize = 9;

/// What an entry is about.
#[derive(Clone, Copy)]
enum Subject<'r> {
    Function(u32, &'r Function),
    /// The functions of a cycle together.
    Cycle(u32, &'r Cycle),
}

/// The call graph, ready to be printed.
struct Graph<'v, 'r> {
    view: &'v RunView<'r>,
    /// The arcs without call sites, and those of each callee and of each caller by their indexes.
    pairs: &'v [Arc],
    callers: HashMap<u32, Vec<usize>>,
    callees: HashMap<u32, Vec<usize>>,
    /// The number that each function is printed with.
    numbers: HashMap<u32, usize>,
    names: Names,
    /// Whether the table has times.
    times: bool,
    /// Whether it has the durations of single calls.
    durations: bool,
    /// Whether it has the calls that had not returned at the end, because there are some.
    open: bool,
}

/// What an entry says of single calls, if they were measured.
#[derive(Clone, Copy, Default)]
struct Calls {
    /// The shortest and the longest call, in nanoseconds, if one has returned.
    ends: Option<(u64, u64)>,
    /// How many had not returned at the end.
    open: u64,
}

/// Prints the entries.
///
/// # Errors
/// The run has no such column, or `out` cannot be written to.
pub(crate) fn graph(view: &RunView, args: &GraphArgs, out: &mut impl Write) -> Result<()> {
    let run = view.run;
    let pairs = run.pairs();
    let (mut callers, mut callees) = (HashMap::<u32, Vec<usize>>::new(), HashMap::<u32, Vec<usize>>::new());
    for (index, arc) in pairs.iter().enumerate() {
        callers.entry(arc.callee).or_default().push(index);
        if let Some(caller) = arc.caller {
            callees.entry(caller).or_default().push(index);
        }
    }
    let heaviest = |index: &usize| Reverse((pairs[*index].inclusive_ns, pairs[*index].calls));
    callers.values_mut().for_each(|arcs| arcs.sort_by_key(|index| std::cmp::Reverse(heaviest(index))));
    callees.values_mut().for_each(|arcs| arcs.sort_by_key(heaviest));
    let mut sorted = sorted(view, args.sort)?;
    sorted.retain(|index| {
        run.functions[*index as usize].self_ns > 0
            || callers.contains_key(index)
            || callees.contains_key(index)
    });
    let mut subjects: Vec<Subject> = Vec::new();
    let mut shown_cycles = vec![false; run.cycles.len()];
    for index in sorted {
        let function = &run.functions[index as usize];
        // A cycle comes before the first of its functions.
        if let Some((number, cycle)) = function.cycle.and_then(|n| Some((n, run.cycles.get(n as usize)?)))
            && !std::mem::replace(&mut shown_cycles[number as usize], true)
        {
            subjects.push(Subject::Cycle(number, cycle));
        }
        subjects.push(Subject::Function(index, function));
    }
    let number = |(at, subject): (usize, &Subject)| match subject {
        Subject::Function(index, _) => Some((*index, at + 1)),
        Subject::Cycle(..) => None,
    };
    let numbers = subjects.iter().enumerate().filter_map(number).collect();
    let lines = |subject: &Subject| match subject {
        Subject::Function(index, _) => {
            let of = |map: &HashMap<u32, Vec<usize>>| map.get(index).map_or(0, Vec::len);
            of(&callers) + of(&callees) + 2
        }
        Subject::Cycle(_, cycle) => cycle.functions.len() + 2,
    };
    // What a user has selected is shown in full.
    let selects = !args.common.function.is_empty() || !args.common.module.is_empty();
    let most = match !selects && !args.common.shown.json {
        true => args.common.rows.most_groups_on_screen(OTHER_LINES, subjects.iter().map(lines)),
        false => args.common.rows.most(),
    };
    let hidden = subjects.len().saturating_sub(most);
    subjects.truncate(most);
    let pairs = &pairs;
    let ends = subjects.iter().flat_map(|subject| match *subject {
        Subject::Cycle(_, cycle) => cycle.functions.clone(),
        Subject::Function(index, _) => {
            let arcs = [&callers, &callees].into_iter().filter_map(|map| map.get(&index)).flatten();
            arcs.flat_map(|&arc| pairs[arc].caller.into_iter().chain([pairs[arc].callee]))
                .chain([index])
                .collect()
        }
    });
    let names = view.names(ends);
    let (times, durations) = (run.time.is_some(), run.time.is_measured());
    let open = durations && pairs.iter().any(|arc| arc.open > 0);
    let graph = Graph { view, pairs, callers, callees, numbers, names, times, durations, open };
    if args.common.shown.json {
        return graph.json(&subjects, hidden, out);
    }
    view.head(out)?;
    writeln!(out, "{}\n", view.style.wrap("callers of a function are above it, what it calls is below"))?;
    let mut headings = vec!["index"];
    if graph.times {
        let inclusive = if run.time == Time::Estimated { "~inclusive %" } else { "inclusive %" };
        headings.extend([inclusive, "self", "children"]);
    }
    headings.push("calls");
    if graph.durations {
        headings.extend(["min", "max"]);
    }
    headings.extend(graph.open.then_some("open"));
    headings.push("function");
    let mut table = Table::new(headings, 1).optional(&[
        "open",
        "min",
        "max",
        "children",
        "self",
        "inclusive %",
        "~inclusive %",
    ]);
    for (at, &subject) in subjects.iter().enumerate() {
        if at > 0 {
            table.push(Vec::new());
        }
        match subject {
            Subject::Function(index, function) => graph.entry(index, function, at + 1, &mut table),
            Subject::Cycle(number, cycle) => graph.cycle(number, cycle, at + 1, &mut table),
        }
    }
    table.print(false, view.style, out)?;
    if hidden > 0 {
        let hidden = gmon::counted(hidden, "entry", "entries");
        writeln!(out, "{}", view.style.faint(format!("{hidden} more; -n 0 shows all")))?;
    }
    Ok(())
}

/// Returns the functions to show, in the order that the user wants.
///
/// # Errors
/// The run has no such column.
fn sorted(view: &RunView, order: Option<Column>) -> Result<Vec<u32>> {
    let run = view.run;
    let order = order.unwrap_or(if run.time.is_some() { Column::Inclusive } else { Column::Calls });
    let mut rows: Vec<(u32, Numbers)> =
        view.chosen().map(|index| (index, Numbers::of(&run.functions[index as usize]))).collect();
    let kind = Kind::new(run, By::Function, false, &[]);
    if !kind.has(order) {
        bail!("--sort {}: there is no such column here{}", order.name(), kind.hint(order));
    }
    let function = |index: u32| &run.functions[index as usize];
    rows.sort_by(|(a, x), (b, y)| {
        let (f, g) = (function(*a), function(*b));
        let first = match order {
            Column::Name => f.demangled.cmp(&g.demangled),
            Column::Module => view.module(f).cmp(&view.module(g)),
            _ => kind.value(order, y).cmp(&kind.value(order, x)),
        };
        first.then_with(|| (y.calls, &f.demangled).cmp(&(x.calls, &g.demangled)))
    });
    Ok(rows.into_iter().map(|(index, _)| index).collect())
}

impl Graph<'_, '_> {
    fn entry(&self, index: u32, function: &Function, number: usize, table: &mut Table) {
        let arcs = |map: &HashMap<u32, Vec<usize>>| map.get(&index).cloned().unwrap_or_default();
        for arc in arcs(&self.callers) {
            let arc = &self.pairs[arc];
            table.push(self.arc(arc, arc.caller, function));
        }
        let recursive = function.calls.saturating_sub(function.primitive);
        let calls = match (function.calls, recursive) {
            (0, _) => String::new(),
            (_, 0) => function.calls.to_string(),
            (_, recursive) => format!("{}+{recursive}", function.primitive),
        };
        let children = function.inclusive_ns.saturating_sub(function.self_ns);
        let name = self.name(Some(index));
        let (inclusive, times) = match function.is_short {
            true => Default::default(),
            false => (
                self.share(function.inclusive_ns),
                [self.view.amount(function.self_ns), self.view.estimate(children)],
            ),
        };
        table.push(self.row(
            format!("[{number}]"),
            inclusive,
            times,
            calls,
            Calls { ends: function.durations.map(|times| (times.min_ns, times.max_ns)), open: function.open },
            name,
        ));
        for arc in arcs(&self.callees) {
            let arc = &self.pairs[arc];
            let callee = &self.view.run.functions[arc.callee as usize];
            table.push(self.arc(arc, Some(arc.callee), callee));
        }
    }

    fn cycle(&self, number: u32, cycle: &Cycle, at: usize, table: &mut Table) {
        let children = cycle.inclusive_ns.saturating_sub(cycle.self_ns);
        let calls = format!("{}+{}", cycle.calls, cycle.internal);
        let name = format!("<cycle {} as a whole> [{at}]", number + 1);
        let times = [self.view.amount(cycle.self_ns), self.view.estimate(children)];
        table.push(self.row(
            format!("[{at}]"),
            self.share(cycle.inclusive_ns),
            times,
            calls,
            Calls::default(),
            name,
        ));
        for &index in &cycle.functions {
            let function = &self.view.run.functions[index as usize];
            let children = function.inclusive_ns.saturating_sub(function.self_ns);
            table.push(self.row(
                String::new(),
                String::new(),
                [self.view.amount(function.self_ns), self.view.estimate(children)],
                function.primitive.to_string(),
                Calls::default(),
                format!("    {}", self.name(Some(index))),
            ));
        }
    }

    /// Returns the row of an arc. `other` is the function at its other end, and `callee` the called one.
    fn arc(&self, arc: &Arc, other: Option<u32>, callee: &Function) -> Vec<String> {
        let run = self.view.run;
        let is_self = arc.caller == Some(arc.callee);
        let caller = arc.caller.map(|caller| &run.functions[caller as usize]);
        let within = callee.cycle.is_some() && caller.is_some_and(|caller| caller.cycle == callee.cycle);
        // The calls among which those of this arc are: those that gprof's rule divides.
        let all = match callee.cycle.and_then(|cycle| run.cycles.get(cycle as usize)) {
            Some(cycle) if !within => cycle.calls,
            _ if run.time == Time::Estimated => callee.primitive,
            _ => callee.calls,
        };
        let is_divided = !(is_self || within) || run.time != Time::Estimated;
        let calls = match is_divided {
            // An arc of sampled stacks was not counted.
            _ if arc.calls == 0 => String::new(),
            true => format!("{}/{all}", arc.calls),
            false => arc.calls.to_string(),
        };
        let children = arc.inclusive_ns.saturating_sub(arc.self_ns);
        let name = match other {
            // Nobody has counted a caller that is not hooked.
            None if arc.calls == 0 => format!("    {}", run.name_without_function()),
            other => format!("    {}", self.name(other)),
        };
        // gprof's rule gives no time to calls within a cycle, and those of a function by itself.
        let times = match is_divided {
            true if !arc.is_short => [arc.self_ns, children].map(|ns| self.view.estimate(ns)),
            _ => [String::new(), String::new()],
        };
        let single = Calls { ends: arc.has_closed().then_some((arc.min_ns, arc.max_ns)), open: arc.open };
        self.row(String::new(), String::new(), times, calls, single, name)
    }

    /// Returns a row. `times` are those in the function itself and in what it called.
    fn row(
        &self,
        index: String,
        inclusive: String,
        times: [String; 2],
        calls: String,
        single: Calls,
        name: String,
    ) -> Vec<String> {
        let mut row = vec![index];
        if self.times {
            row.push(inclusive);
            row.extend(times);
        }
        row.push(calls);
        if self.durations {
            let text = |ns: Option<u64>| ns.map_or_else(String::new, |ns| self.view.amount(ns));
            row.extend([text(single.ends.map(|ends| ends.0)), text(single.ends.map(|ends| ends.1))]);
        }
        row.extend(self.open.then(|| if single.open == 0 { String::new() } else { single.open.to_string() }));
        row.push(name);
        row
    }

    /// Returns the share that an inclusive time is, marked if it is an estimate.
    fn share(&self, ns: u64) -> String {
        let share = self.view.share(ns);
        match self.view.run.time == Time::Estimated && !share.is_empty() {
            true => format!("{ESTIMATE}{share}"),
            false => share,
        }
    }

    /// Returns a function's name with its module, its cycle and its number.
    fn name(&self, index: Option<u32>) -> String {
        let Some(index) = index else { return NOT_KNOWN.to_owned() };
        let function = &self.view.run.functions[index as usize];
        let mut name = self.names.of(index).to_owned();
        // The program's own functions need no module, and those without a name have it in front of their address.
        let module = self.view.module(function);
        let is_said = name.strip_prefix(&*module).is_some_and(|rest| rest.starts_with("+0x"));
        if self.view.has_modules() && function.module.is_some_and(|module| module > 0) && !is_said {
            name += &format!(" ({module})");
        }
        if let Some(cycle) = function.cycle {
            name += &format!(" <cycle {}>", cycle + 1);
        }
        if let Some(number) = self.numbers.get(&index) {
            name += &format!(" [{number}]");
        }
        name
    }

    fn json(&self, subjects: &[Subject], hidden: usize, out: &mut impl Write) -> Result<()> {
        let run = self.view.run;
        write!(out, "{{{},\n\"not_shown\":{hidden}", self.view.json_head("gmon-graph"))?;
        let functions: Vec<_> = subjects
            .iter()
            .filter_map(|subject| match subject {
                Subject::Function(index, function) => Some((*index, *function)),
                Subject::Cycle(..) => None,
            })
            .collect();
        let other = |index: Option<u32>| match index {
            Some(index) => self.view.json_function(&run.functions[index as usize]),
            None => json!({"name": null, "demangled": null, "module": null}),
        };
        let arcs = |map: &HashMap<u32, Vec<usize>>, index: u32, end: fn(&Arc) -> Option<u32>| -> Vec<Value> {
            let arcs = map.get(&index).map_or(&[][..], Vec::as_slice);
            let arc = |&arc: &usize| {
                let arc = &self.pairs[arc];
                let mut json = other(end(arc));
                json["calls"] = json!(arc.calls);
                json["self_ns"] = json!(arc.self_ns);
                json["inclusive_ns"] = json!(arc.inclusive_ns);
                if run.time.is_measured() {
                    let closed = arc.has_closed();
                    json["open"] = json!(arc.open);
                    if arc.counted > 0 {
                        json["counted"] = json!(arc.counted);
                    }
                    json["min_ns"] = json!(closed.then_some(arc.min_ns));
                    json["max_ns"] = json!(closed.then_some(arc.max_ns));
                }
                json
            };
            arcs.iter().map(arc).collect()
        };
        array(out, "functions", &functions, |&(index, function)| {
            let mut json = self.view.json_function(function);
            json["calls"] = json!(function.calls);
            json["primitive"] = json!(function.primitive);
            if function.counted > 0 {
                json["counted"] = json!(function.counted);
            }
            json["self_ns"] = json!(function.self_ns);
            json["inclusive_ns"] = json!(function.inclusive_ns);
            json["cycle"] = json!(function.cycle.map(|cycle| cycle + 1));
            json["callers"] = json!(arcs(&self.callers, index, |arc| arc.caller));
            json["callees"] = json!(arcs(&self.callees, index, |arc| Some(arc.callee)));
            json
        })?;
        array(out, "cycles", &run.cycles, |cycle| {
            let members: Vec<_> = cycle.functions.iter().map(|&index| other(Some(index))).collect();
            json!({
                "functions": members,
                "calls": cycle.calls,
                "calls_among_themselves": cycle.internal,
                "self_ns": cycle.self_ns,
                "inclusive_ns": cycle.inclusive_ns,
            })
        })?;
        writeln!(out, "}}")?;
        Ok(())
    }
}
