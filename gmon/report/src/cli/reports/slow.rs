//! `gmon paths --slow`: prints the slowest calls of functions, and by which paths each differs from the typical call.

use std::borrow::Cow;
use std::io::Write;

use anyhow::{Result, bail};
use gmon_export::{SlowCall, SlowEnd};
use gmon_run::REST_NAME;
use gprofinject_image::names::fit;
use serde_json::{Value, json};

use crate::cli::json::array;
use crate::cli::reports::slow_paths::{Path, compare};
use crate::cli::run_view::{Names, RunView};
use crate::cli::table_args::PathsArgs;
use crate::cli::text::{MAX_INDENT, indent, plain};
use crate::cli::units::duration;

/// The part of a call's duration, in percent, below which text leaves out a path.
const MIN_PERCENT: f64 = 5.0;
/// The number of columns before the names of paths, and that on a terminal that has no room for all.
const NUMBERS: usize = 64;
const FEWER_NUMBERS: usize = 33;
/// The number of columns that a name has at least.
const NAME: usize = 24;

/// Prints the calls as text or as JSON.
///
/// # Errors
/// There are no slow calls, or `out` cannot be written to.
pub(crate) fn slow(view: &RunView, args: &PathsArgs, out: &mut impl Write) -> Result<()> {
    let run = view.run;
    let is_json = args.common.shown.json;
    let percent = args.min_percent.unwrap_or(if is_json { 0.0 } else { MIN_PERCENT });
    if !(0.0..=100.0).contains(&percent) {
        bail!("--min-percent {percent}: expected a number from 0 to 100");
    }
    if run.slow.is_empty() {
        bail!(
            "no slow calls in the run of {}; `gprofinject --slow FUNCTION PROG` keeps the slowest calls of a function",
            plain(&run.program)
        );
    }
    let chooses = |typical: u32| function_of(view, typical).is_some_and(|function| view.chooses(function));
    let mut calls: Vec<&SlowCall> = run.slow.calls.iter().filter(|call| chooses(call.typical)).collect();
    calls.sort_by_key(|call| std::cmp::Reverse(call.duration_ns));
    let all = calls.len();
    calls.truncate(args.common.rows.most());
    let not_shown = all - calls.len();
    let typical: Vec<u32> = (0..run.slow.typical.len() as u32).filter(|&index| chooses(index)).collect();
    let shown = Shown { view, args, percent, calls, typical, not_shown };
    if is_json { shown.json(out) } else { shown.text(out) }
}

/// Returns the function of which a typical call is.
fn function_of(view: &RunView, typical: u32) -> Option<u32> {
    let slow = &view.run.slow;
    slow.nodes.get(slow.typical.get(typical as usize)?.node as usize)?.function
}

/// What is shown.
struct Shown<'a> {
    view: &'a RunView<'a>,
    args: &'a PathsArgs,
    percent: f64,
    calls: Vec<&'a SlowCall>,
    /// The indexes of functions.
    typical: Vec<u32>,
    not_shown: usize,
}

impl Shown<'_> {
    /// Returns the paths of a call that are shown, and the number of the others.
    fn paths(&self, call: &SlowCall) -> (Vec<Path>, usize) {
        let least_ns = (call.duration_ns as f64 * self.percent / 100.0).ceil() as u64;
        let (mut paths, others) = compare(&self.view.run.slow, call, least_ns);
        let all = paths.len();
        let deepest = self.args.depth.unwrap_or(u32::MAX);
        // Parents come before their children and are less deep.
        paths.retain(|path| path.depth <= deepest);
        let deeper = all - paths.len();
        (paths, others + deeper)
    }

    fn name<'n>(&self, names: &'n Names, function: Option<u32>) -> &'n str {
        function.map_or(REST_NAME, |function| names.of(function))
    }

    fn text(&self, out: &mut impl Write) -> Result<()> {
        let (view, slow) = (self.view, &self.view.run.slow);
        view.head(out)?;
        let names = view.names(slow.nodes.iter().filter_map(|node| node.function));
        for &index in &self.typical {
            let Some(typical) = slow.typical.get(index as usize) else { continue };
            let median = slow.nodes.get(typical.node as usize).map_or(0, |node| node.median_ns);
            let name = self.name(&names, function_of(view, index));
            let calls = gmon::counted(typical.calls, "call", "calls");
            let mut line = format!("{name}: {calls}");
            if typical.calls > 0 {
                line += &format!(
                    ", half of them up to {}, 99 % up to {}, all up to {}",
                    duration(median).trim_end(),
                    duration(typical.p99_ns).trim_end(),
                    duration(typical.max_ns).trim_end()
                );
            }
            if typical.others > 0 {
                line += &format!("; {} more that are incomplete or had not ended", typical.others);
            }
            if typical.left_out > 0 {
                line += &format!("; for {} that were as slow there was no room", typical.left_out);
            }
            writeln!(out, "{}", view.style.wrap(&line))?;
        }
        for (number, call) in (1..).zip(&self.calls) {
            writeln!(out)?;
            self.call(number, call, &names, out)?;
        }
        if self.not_shown > 0 {
            let more = gmon::counted(self.not_shown, "more call", "more calls");
            writeln!(out, "\n{}", view.style.faint(view.style.wrap(&format!("{more}; -n shows more"))))?;
        }
        Ok(())
    }

    /// Prints one call.
    fn call(&self, number: usize, call: &SlowCall, names: &Names, out: &mut impl Write) -> Result<()> {
        let style = self.view.style;
        let name = self.name(names, function_of(self.view, call.typical));
        let arguments = match call.arguments.as_str() {
            "" => String::new(),
            arguments => format!("({})", plain(arguments)),
        };
        let took = duration(call.duration_ns);
        writeln!(
            out,
            "{}",
            style.heading(&style.wrap(&format!("{number}. {}  {name}{arguments}", took.trim_end())))
        )?;
        writeln!(out, "{}", style.wrap(&format!("   {}", self.facts(call))))?;
        let (paths, others) = self.paths(call);
        let is_narrow = style.width().is_some_and(|width| width < NUMBERS + NAME);
        let numbers = |[difference, slow, typical, own, waiting, calls]: [&str; 6]| match is_narrow {
            true => format!("{difference:>10} {slow:>10} {typical:>10}"),
            false => format!("{difference:>10} {slow:>10} {typical:>10} {own:>10} {waiting:>10} {calls:>8}"),
        };
        let head = numbers(["difference", "slow", "typical", "self", "waiting", "calls"]);
        writeln!(out, "{}", style.faint(format!("{head}  function")))?;
        let before = if is_narrow { FEWER_NUMBERS } else { NUMBERS } + 2;
        let deepest = style
            .width()
            .map_or(MAX_INDENT, |width| (width.saturating_sub(before + NAME) as u32 / 2).min(MAX_INDENT));
        for path in &paths {
            let indent = indent(path.depth - 1, deepest);
            let name = self.name(names, path.function);
            let room = style.width().map(|width| width.saturating_sub(before + indent.len()).max(NAME));
            let waiting =
                if call.waiting_ns.is_some() { duration(path.node.waiting_ns) } else { "-".to_owned() };
            let row = numbers([
                &signed(path.difference_ns()),
                &duration(path.slow_ns),
                &duration(path.typical_ns),
                &duration(path.node.self_ns),
                &waiting,
                &path.node.calls.to_string(),
            ]);
            writeln!(out, "{row}  {indent}{}", room.map_or(Cow::Borrowed(name), |room| fit(name, room)))?;
        }
        if others > 0 {
            let others = gmon::counted(others, "path", "paths");
            let more = format!("   {others} more with smaller differences; --min-percent and --depth select");
            writeln!(out, "{}", style.faint(style.wrap(&more)))?;
        }
        Ok(())
    }

    /// Returns what is known of a call beside its duration.
    fn facts(&self, call: &SlowCall) -> String {
        let short = |ns: u64| duration(ns).trim_end().to_owned();
        let mut facts = Vec::new();
        match (call.waiting_ns, call.ready_ns) {
            (Some(waiting), Some(ready)) => {
                facts.push(format!("running {}", short(running(call))));
                facts.push(format!("waiting {}", short(waiting)));
                facts.push(format!("ready {}", short(ready)));
            }
            _ => facts.push("waiting not known".to_owned()),
        }
        let thread = if call.thread.is_empty() { "thread".to_owned() } else { plain(&call.thread) };
        facts.push(match call.pid == call.tid {
            true => format!("{thread} {}", call.tid),
            false => format!("{thread} {} of process {}", call.tid, call.pid),
        });
        let start = self.view.run.start_unix_ns;
        if start > 0 {
            facts.push(format!("began after {}", short(call.start_unix_ns.saturating_sub(start))));
        }
        match call.end {
            SlowEnd::Returned => {}
            SlowEnd::Left => facts.push("left by an exception, a jump or the end of its thread".to_owned()),
            SlowEnd::Open => facts.push("had not ended".to_owned()),
        }
        if call.is_incomplete {
            facts.push(format!("INCOMPLETE: events of {} or more are lost", short(call.lost_ns)));
        }
        facts.join(", ")
    }

    fn json(&self, out: &mut impl Write) -> Result<()> {
        let (view, slow) = (self.view, &self.view.run.slow);
        write!(out, "{{{},\n\"not_shown\":{}", view.json_head("gmon-slow"), self.not_shown)?;
        array(out, "functions", &self.typical, |&index| {
            let typical = slow.typical.get(index as usize).copied().unwrap_or_default();
            let mut json = self.view.json_node(function_of(view, index), REST_NAME);
            let program = view.run.programs.get(typical.program as usize);
            json["program"] = json!(program.map(|program| &program.name));
            json["calls"] = json!(typical.calls);
            json["others"] = json!(typical.others);
            json["left_out"] = json!(typical.left_out);
            let known = |ns: u64| (typical.calls > 0).then_some(ns);
            json["min_ns"] = json!(known(typical.min_ns));
            let median = slow.nodes.get(typical.node as usize).map_or(0, |node| node.median_ns);
            json["median_ns"] = json!(known(median));
            json["p99_ns"] = json!(known(typical.p99_ns));
            json["max_ns"] = json!(known(typical.max_ns));
            let tree = slow.tree(typical.node);
            let first = tree.start;
            let paths = tree.filter_map(|index| {
                let node = slow.nodes.get(index)?;
                let mut json = self.view.json_node(node.function, REST_NAME);
                json["id"] = json!(index - first);
                json["parent"] = json!(node.parent.map(|parent| parent as usize - first));
                json["calls"] = json!(node.calls);
                json["present"] = json!(node.present);
                json["self_ns"] = json!(node.self_ns);
                json["median_ns"] = json!(node.median_ns);
                Some(json)
            });
            json["paths"] = json!(paths.collect::<Vec<_>>());
            json
        })?;
        array(out, "calls", &self.calls, |call| self.json_call(call))?;
        writeln!(out, "}}")?;
        Ok(())
    }

    fn json_call(&self, call: &SlowCall) -> Value {
        let (paths, others) = self.paths(call);
        let paths = paths.iter().enumerate().map(|(id, path)| {
            let mut json = self.view.json_node(path.function, REST_NAME);
            json["id"] = json!(id);
            json["parent"] = json!(path.parent);
            json["depth"] = json!(path.depth);
            json["calls"] = json!(path.node.calls);
            json["self_ns"] = json!(path.node.self_ns);
            json["waiting_ns"] = json!(call.waiting_ns.map(|_| path.node.waiting_ns));
            json["ready_ns"] = json!(call.ready_ns.map(|_| path.node.ready_ns));
            json["longest_ns"] = json!(path.node.longest_ns);
            json["inclusive_ns"] = json!(path.slow_ns);
            json["typical_ns"] = json!(path.typical_ns);
            json["difference_ns"] = json!(path.difference_ns());
            json
        });
        let mut json = self.view.json_node(function_of(self.view, call.typical), REST_NAME);
        json["pid"] = json!(call.pid);
        json["tid"] = json!(call.tid);
        json["thread"] = json!(Some(&call.thread).filter(|thread| !thread.is_empty()));
        json["arguments"] = json!(Some(&call.arguments).filter(|arguments| !arguments.is_empty()));
        json["start_unix_ns"] = json!(call.start_unix_ns);
        json["duration_ns"] = json!(call.duration_ns);
        json["running_ns"] = json!(call.waiting_ns.map(|_| running(call)));
        json["waiting_ns"] = json!(call.waiting_ns);
        json["ready_ns"] = json!(call.ready_ns);
        json["overhead_ns"] = json!(call.overhead_ns);
        json["lost_ns"] = json!(call.lost_ns);
        json["is_incomplete"] = json!(call.is_incomplete);
        json["end"] = json!(match call.end {
            SlowEnd::Returned => "returned",
            SlowEnd::Left => "left",
            SlowEnd::Open => "open",
        });
        json["paths_not_shown"] = json!(others);
        json["paths"] = json!(paths.collect::<Vec<_>>());
        json
    }
}

/// Returns the part of a call's duration in which the thread ran.
fn running(call: &SlowCall) -> u64 {
    let others = [call.waiting_ns.unwrap_or(0), call.ready_ns.unwrap_or(0), call.lost_ns];
    others.iter().fold(call.duration_ns, |left, &part| left.saturating_sub(part))
}

/// Returns a difference of durations with its sign.
fn signed(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "+" };
    format!("{sign}{}", duration(ns.unsigned_abs()))
}
