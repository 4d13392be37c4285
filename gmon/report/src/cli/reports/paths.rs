//! `gmon paths`: prints the tree of call paths.

use std::collections::HashMap;
use std::io::Write;

use anyhow::{Result, bail};
use gmon_run::REST;
use serde_json::json;

use crate::cli::json::array;
use crate::cli::measured::{Measurement, thread_name};
use crate::cli::measured_args::PathsArgs;
use crate::cli::text::{indent, percent};
use crate::cli::tree::{Merged, Tree};
use crate::cli::units::duration;

/// The part of the time, in percent, below which text leaves out a path.
const MIN_PERCENT: f64 = 0.5;
/// Prints the tree as text, as JSON, or as lines for flame graph tools.
///
/// # Errors
/// There are no paths or there is no such function, or `out` cannot be written to.
pub(crate) fn paths(measurement: &Measurement, args: &PathsArgs, out: &mut impl Write) -> Result<()> {
    let measured = &measurement.measured;
    let percent =
        args.min_percent.unwrap_or(if args.folded || args.common.shown.json { 0.0 } else { MIN_PERCENT });
    if !(0.0..=100.0).contains(&percent) {
        bail!("--min-percent {percent}: expected a number from 0 to 100");
    }
    if measured.nodes.is_empty() {
        bail!("{}: no call paths in it; `gprofinject --paths PROG` records them", measurement.file_names());
    }
    let chosen = measurement.chosen(&args.function)?;
    let begins = |function: u32| match function {
        REST => args.function.is_empty(),
        function => chosen[function as usize],
    };
    let tree = Tree::new(&measured.nodes, args.threads, begins);
    let min_ns = (tree.total_ns as f64 * percent / 100.0).ceil() as u64;
    let mut indexes = tree.shown(min_ns, args.depth.unwrap_or(u32::MAX));
    indexes.truncate(args.rows.limit.unwrap_or(usize::MAX));
    let shown = Shown { measurement, args, tree: &tree, indexes };
    if args.folded {
        shown.folded(out)
    } else if args.common.shown.json {
        shown.json(out)
    } else {
        shown.text(out)
    }
}

/// The part of a tree that is shown.
struct Shown<'a> {
    measurement: &'a Measurement<'a>,
    args: &'a PathsArgs,
    tree: &'a Tree,
    /// The nodes, parents before their children.
    indexes: Vec<u32>,
}

/// The names of functions, each looked up once.
struct Names<'a> {
    measurement: &'a Measurement<'a>,
    known: HashMap<u32, String>,
}

impl<'a> Names<'a> {
    fn new(measurement: &'a Measurement<'a>) -> Names<'a> {
        Names { measurement, known: HashMap::new() }
    }

    fn of(&mut self, function: u32) -> &str {
        self.known.entry(function).or_insert_with(|| self.measurement.name(function))
    }
}

impl Shown<'_> {
    fn nodes(&self) -> impl Iterator<Item = &Merged> {
        self.indexes.iter().map(|&index| &self.tree.nodes[index as usize])
    }

    /// Returns the name and the number of a node's thread.
    fn thread_name(&self, node: &Merged) -> String {
        thread_name(&self.measurement.measured.threads[node.thread as usize])
    }

    fn text(&self, out: &mut impl Write) -> Result<()> {
        self.measurement.head(out)?;
        writeln!(out)?;
        let mut names = Names::new(self.measurement);
        let heading = format!("{:>12}  {:>9}  {:>9}  {:>7}  name", "calls", "self", "inclusive", "share");
        writeln!(out, "{}", self.measurement.style.heading(&heading))?;
        let mut thread = None;
        for node in self.nodes() {
            if self.args.threads && thread.replace(node.thread) != Some(node.thread) {
                let name = self.thread_name(node);
                writeln!(out, "{}", self.measurement.style.heading(&format!("thread {name}")))?;
            }
            writeln!(
                out,
                "{:>12}  {:>9}  {:>9}  {:>7}  {}{}",
                node.calls,
                duration(node.self_ns),
                duration(node.inclusive_ns),
                percent(node.inclusive_ns, self.tree.total_ns),
                indent(node.depth - 1),
                names.of(node.function),
            )?;
        }
        let hidden = self.tree.nodes.len() - self.indexes.len();
        if hidden > 0 {
            let hidden = gmon::counted(hidden, "path", "paths");
            writeln!(out, "not shown: {hidden} (--min-percent, --depth and --limit select)")?;
        }
        if self.measurement.measured.nodes_lost > 0 {
            let name = names.of(REST).to_owned();
            let lost = self.measurement.measured.nodes_lost;
            writeln!(out, "{name}: {lost} calls for whose paths there was no room")?;
        }
        Ok(())
    }

    /// Prints a line for each path that has self time. Times below `--depth` belong to the last function that is shown.
    fn folded(&self, out: &mut impl Write) -> Result<()> {
        let mut names = Names::new(self.measurement);
        let mut path = String::new();
        // Where the name of each function in the path begins.
        let mut begins: Vec<usize> = Vec::new();
        for node in self.nodes() {
            let above = node.depth as usize - 1;
            path.truncate(begins.get(above).copied().unwrap_or(path.len()));
            begins.truncate(above);
            if node.depth == 1 {
                path.clear();
                if self.args.threads {
                    path += &frame(&self.thread_name(node));
                }
            }
            begins.push(path.len());
            path += if path.is_empty() { "" } else { ";" };
            path += &frame(names.of(node.function));
            let time = if Some(node.depth) == self.args.depth { node.inclusive_ns } else { node.self_ns };
            if time > 0 {
                writeln!(out, "{path} {time}")?;
            }
        }
        Ok(())
    }

    /// Prints a list of nodes, in which parents come before their children.
    fn json(&self, out: &mut impl Write) -> Result<()> {
        let measured = &self.measurement.measured;
        let mut numbers = vec![u32::MAX; self.tree.nodes.len()];
        for (number, &index) in self.indexes.iter().enumerate() {
            numbers[index as usize] = number as u32;
        }
        write!(out, "{{{},\n\"total_ns\":{}", self.measurement.json_head(), self.tree.total_ns)?;
        write!(
            out,
            ",\"not_shown\":{},\"nodes_lost\":{}",
            self.tree.nodes.len() - self.indexes.len(),
            measured.nodes_lost
        )?;
        array(out, "paths", &self.indexes, |&index| {
            let node: &Merged = &self.tree.nodes[index as usize];
            let mut json = self.measurement.json_function(node.function);
            json["id"] = json!(numbers[index as usize]);
            json["parent"] = json!(node.parent.map(|parent| numbers[parent as usize]));
            json["depth"] = json!(node.depth);
            json["calls"] = json!(node.calls);
            json["self_ns"] = json!(node.self_ns);
            json["inclusive_ns"] = json!(node.inclusive_ns);
            json["samples"] = json!(node.samples);
            if self.args.threads {
                let thread = &measured.threads[node.thread as usize];
                json["thread"] = json!({"pid": thread.pid, "tid": thread.tid, "name": thread.name});
            }
            json
        })?;
        writeln!(out, "}}")?;
        Ok(())
    }
}

/// Returns a name without what separates names.
fn frame(name: &str) -> String {
    name.replace(';', ":")
}
