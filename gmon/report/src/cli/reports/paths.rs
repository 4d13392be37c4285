//! `gmon paths`: prints the tree of call paths.

use std::borrow::Cow;
use std::io::Write;

use anyhow::{Result, bail};
use gprofinject_image::names::fit;
use serde_json::json;

use crate::cli::json::array;
use crate::cli::reports::flat::thread_name;
use crate::cli::reports::waits;
use crate::cli::run_view::{Names, RunView};
use crate::cli::table_args::PathsArgs;
use crate::cli::text::{MAX_INDENT, indent, percent};
use crate::cli::tree::{Merged, Tree};

/// The part of the time, in percent, below which text leaves out a path.
const MIN_PERCENT: f64 = 0.5;
/// The number of columns before the names in a text.
const NUMBERS: usize = 45;
/// The same on a terminal that has no room for them, where the calls and the self times are left out.
const FEWER_NUMBERS: usize = 20;
/// The number of columns that a name has at least.
const NAME: usize = 12;
/// The number of columns that a terminal needs in front of the names to show how deep they are, and that of a number in their place.
const DEPTH: usize = 20;
const DEPTH_NUMBER: usize = 6;

/// Prints the tree as text, as JSON, or as lines for flame graph tools.
///
/// # Errors
/// There are no paths, or `out` cannot be written to.
pub(crate) fn paths(view: &RunView, args: &PathsArgs, out: &mut impl Write) -> Result<()> {
    let run = view.run;
    let percent =
        args.min_percent.unwrap_or(if args.folded || args.common.shown.json { 0.0 } else { MIN_PERCENT });
    if !(0.0..=100.0).contains(&percent) {
        bail!("--min-percent {percent}: expected a number from 0 to 100");
    }
    if args.waits && !(run.nodes.is_empty() && run.time.is_measured()) {
        return waits::waits(view, args, percent, out);
    }
    if run.nodes.is_empty() {
        bail!(
            "no call paths and no sampled stacks in the run of {}; `gprofinject --paths PROG` records paths, and `gmon graph` shows who called whom",
            run.program
        );
    }
    if args.threads && run.threads.is_empty() {
        bail!(
            "--threads: sampled stacks are not known by thread; `gprofinject --paths` records paths by thread"
        );
    }
    let all = view.chooses_all();
    let begins = |function: Option<u32>| function.map_or(all, |function| view.chooses(function));
    let tree = Tree::new(&run.nodes, args.threads, begins);
    let min_ns = (tree.total_ns as f64 * percent / 100.0).ceil() as u64;
    let mut indexes = tree.shown(min_ns, args.depth.unwrap_or(u32::MAX));
    let most = args.common.rows.most();
    if !args.folded && !args.common.shown.json {
        let mut rows = rows(&tree, &indexes);
        rows.truncate(most);
        let names = view.names(rows.iter().filter_map(|row| tree.nodes[row.first as usize].function));
        return Shown { view, args, tree: &tree, indexes, names }.text(&rows, out);
    }
    indexes.truncate(most);
    let names = view.names(indexes.iter().filter_map(|&index| tree.nodes[index as usize].function));
    let shown = Shown { view, args, tree: &tree, indexes, names };
    if args.folded { shown.folded(out) } else { shown.json(out) }
}

/// A row of a text: a node, or all nodes of a function in functions that call each other in turn and nothing else on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    /// The index of the first node, which is the outermost one.
    first: u32,
    /// The number of nodes.
    levels: usize,
    /// The number of rows above it with its callers.
    callers: u32,
    /// The calls and the self times of all of them.
    calls: u64,
    self_ns: u64,
}

/// Returns the rows of these nodes, of which callers come before what they call. Of functions that call each other in turn, each has a
/// row, below that of the function that called it first.
fn rows(tree: &Tree, indexes: &[u32]) -> Vec<Row> {
    let node = |index: u32| &tree.nodes[index as usize];
    let mut called = vec![0_u32; tree.nodes.len()];
    for parent in indexes.iter().filter_map(|&index| node(index).parent) {
        called[parent as usize] += 1;
    }
    // Whether a node is all that the one before it calls.
    let goes_on = |left: &[u32], at: usize| {
        let (caller, callee) = (left[at - 1], left[at]);
        node(callee).parent == Some(caller) && called[caller as usize] == 1
    };
    let mut rows = Vec::new();
    // The number of rows with the callers of what each node calls.
    let mut below = vec![0_u32; tree.nodes.len()];
    let mut left = indexes;
    while let Some(&first) = left.first() {
        let (period, levels) = repeated(left, |index| node(index).function, |at| goes_on(left, at));
        let (nodes, rest) = left.split_at(levels);
        left = rest;
        let callers = node(first).parent.map_or(0, |parent| below[parent as usize]);
        nodes.iter().for_each(|&index| below[index as usize] = callers + period as u32);
        for (at, &first) in nodes.iter().take(period).enumerate() {
            let of_function = || nodes.iter().skip(at).step_by(period).map(|&index| node(index));
            let sum = |of: fn(&Merged) -> u64| of_function().map(of).fold(0, u64::saturating_add);
            rows.push(Row {
                first,
                levels: of_function().count(),
                callers: callers + at as u32,
                calls: sum(|node| node.calls),
                self_ns: sum(|node| node.self_ns),
            });
        }
    }
    rows
}

/// Returns the number of functions that call each other in turn at the beginning of these nodes, and the number of nodes with which they do:
/// 1 and 1 if the first function does not come again, or not often enough. `goes_on` tells whether a node is all that the one before it calls.
fn repeated(
    nodes: &[u32],
    function: impl Fn(u32) -> Option<u32>,
    goes_on: impl Fn(usize) -> bool,
) -> (usize, usize) {
    /// The most functions that are recognised.
    const MOST: usize = 16;
    /// So many turns are not worth to be one.
    const FEW: usize = 3;
    let is_again = |at: usize, period: usize| {
        let function = |at: usize| function(nodes[at]);
        function(at).is_some() && function(at) == function(at - period)
    };
    // Up to where the first functions lead to each other and nowhere else.
    let straight = 1 + (1..nodes.len().min(MOST)).take_while(|&at| goes_on(at)).count();
    (1..=straight)
        .find_map(|period| {
            let again = (period..nodes.len()).take_while(|&at| goes_on(at) && is_again(at, period)).count();
            (again > (FEW - 1) * period).then_some((period, period + again))
        })
        .unwrap_or((1, 1))
}

/// The part of a tree that is shown.
struct Shown<'a> {
    view: &'a RunView<'a>,
    args: &'a PathsArgs,
    tree: &'a Tree,
    /// The nodes, parents before their children.
    indexes: Vec<u32>,
    names: Names,
}

impl Shown<'_> {
    fn nodes(&self) -> impl Iterator<Item = &Merged> {
        self.indexes.iter().map(|&index| &self.tree.nodes[index as usize])
    }

    /// Returns the name and the number of a node's thread.
    fn thread_name(&self, node: &Merged) -> String {
        self.view.run.threads.get(node.thread as usize).map_or_else(String::new, thread_name)
    }

    fn name(&self, node: &Merged) -> &str {
        let other = || self.view.run.name_without_function();
        node.function.map_or_else(other, |function| self.names.of(function))
    }

    fn text(&self, rows: &[Row], out: &mut impl Write) -> Result<()> {
        self.view.head(out)?;
        writeln!(out)?;
        let style = self.view.style;
        let is_narrow = style.width().is_some_and(|width| width < NUMBERS + NAME + DEPTH);
        let all = if is_narrow { FEWER_NUMBERS } else { NUMBERS };
        let numbers = |[calls, own, inclusive, share]: [&str; 4]| match is_narrow {
            true => format!("{inclusive:>9}  {share:>7}"),
            false => format!("{calls:>12}  {own:>9}  {inclusive:>9}  {share:>7}"),
        };
        let deepest = style.width().map_or(MAX_INDENT, |width| {
            (width.saturating_sub(all + NAME + DEPTH_NUMBER) as u32 / 2).min(MAX_INDENT)
        });
        let heading = format!("{}  function", numbers(["calls", "self", "inclusive", "share"]));
        writeln!(out, "{}", style.heading(&heading))?;
        // The calls on sampled stacks were not counted by path.
        let has_calls = self.view.run.time.is_measured();
        let calls = |row: &Row| if has_calls { row.calls.to_string() } else { String::new() };
        let mut thread = None;
        for row in rows {
            let node = &self.tree.nodes[row.first as usize];
            if self.args.threads && thread.replace(node.thread) != Some(node.thread) {
                let name = self.thread_name(node);
                writeln!(out, "{}", style.heading(&format!("thread {name}")))?;
            }
            let depth = node.depth - 1;
            let indent = match row.callers > deepest {
                true => indent(depth, deepest),
                false => indent(row.callers, deepest),
            };
            let name = self.name(node);
            let room = style.width().map(|width| width.saturating_sub(all + indent.len()).max(NAME));
            let levels = if row.levels > 1 { format!(" ({} levels)", row.levels) } else { String::new() };
            let is_fitting = room.is_none_or(|room| room >= NAME + levels.len());
            let levels = if is_fitting { levels } else { String::new() };
            let room = room.map(|room| room - levels.len());
            writeln!(
                out,
                "{}  {indent}{}{levels}",
                numbers([
                    &calls(row),
                    &self.view.amount(row.self_ns),
                    &self.view.amount(node.inclusive_ns),
                    &percent(node.inclusive_ns, self.tree.total_ns),
                ]),
                room.map_or(Cow::Borrowed(name), |room| fit(name, room)),
            )?;
        }
        let hidden = self.tree.nodes.len() - rows.iter().map(|row| row.levels).sum::<usize>();
        if hidden > 0 {
            let hidden = gmon::counted(hidden, "path", "paths");
            let more = style.wrap(&format!("{hidden} more; --min-percent, --depth and -n select"));
            writeln!(out, "{}", style.faint(more))?;
        }
        let lost = self.view.run.nodes_lost;
        if lost > 0 {
            let rest = self.view.run.name_without_function();
            let lost = format!("{rest}: {lost} calls for whose paths there was no room");
            writeln!(out, "{}", style.wrap(&lost))?;
        }
        Ok(())
    }

    /// Prints a line for each path that has self time. Times below `--depth` belong to the last function that is shown.
    fn folded(&self, out: &mut impl Write) -> Result<()> {
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
            path += &frame(self.name(node));
            let time = if Some(node.depth) == self.args.depth { node.inclusive_ns } else { node.self_ns };
            if time > 0 {
                writeln!(out, "{path} {time}")?;
            }
        }
        Ok(())
    }

    /// Prints a list of nodes, in which parents come before their children.
    fn json(&self, out: &mut impl Write) -> Result<()> {
        let run = self.view.run;
        let mut numbers = vec![u32::MAX; self.tree.nodes.len()];
        for (number, &index) in self.indexes.iter().enumerate() {
            numbers[index as usize] = number as u32;
        }
        write!(out, "{{{},\n\"total_ns\":{}", self.view.json_head("gmon-paths"), self.tree.total_ns)?;
        write!(
            out,
            ",\"not_shown\":{},\"nodes_lost\":{}",
            self.tree.nodes.len() - self.indexes.len(),
            run.nodes_lost
        )?;
        let other = run.name_without_function();
        array(out, "paths", &self.indexes, |&index| {
            let node: &Merged = &self.tree.nodes[index as usize];
            let mut json = self.view.json_node(node.function, other);
            json["id"] = json!(numbers[index as usize]);
            json["parent"] = json!(node.parent.map(|parent| numbers[parent as usize]));
            json["depth"] = json!(node.depth);
            if run.time.is_measured() {
                json["calls"] = json!(node.calls);
            }
            json["self_ns"] = json!(node.self_ns);
            if run.ready_ns.is_some() {
                json["waiting_ns"] = json!(node.waiting_ns);
            }
            json["inclusive_ns"] = json!(node.inclusive_ns);
            json["samples"] = json!(node.samples);
            if self.args.threads {
                json["thread"] = self.view.json_thread(node.thread);
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

#[cfg(test)]
mod tests {
    use gmon_export::Node;

    use super::*;

    fn node(parent: Option<u32>, function: u32, self_ns: u64) -> Node {
        Node { parent, function: Some(function), calls: 1, self_ns, ..Node::default() }
    }

    /// `main` calls `walk`, which calls itself five times and then `work`; on the way, it also calls `rest` if `branches`.
    fn tree(branches: bool) -> Tree {
        let mut nodes = vec![node(None, 0, 1)];
        nodes.extend((0..6).map(|at| node(Some(at), 1, 10)));
        nodes.push(node(Some(6), 2, 500));
        nodes.extend(branches.then(|| node(Some(3), 3, 7)));
        Tree::new(&nodes, false, |_| true)
    }

    /// Returns the function, the number of nodes, that of callers, the calls and the self time of each row.
    fn shown(tree: &Tree) -> Vec<(Option<u32>, usize, u32, u64, u64)> {
        let rows = rows(tree, &tree.shown(0, u32::MAX));
        let function = |row: &Row| tree.nodes[row.first as usize].function;
        rows.iter().map(|row| (function(row), row.levels, row.callers, row.calls, row.self_ns)).collect()
    }

    #[test]
    fn a_function_that_calls_itself_again_and_again_is_one_row() {
        assert_eq!(
            shown(&tree(false)),
            [(Some(0), 1, 0, 1, 1), (Some(1), 6, 1, 6, 60), (Some(2), 1, 2, 1, 500)]
        );
    }

    /// `a` and `b` call each other seven times in all, and the last one calls `work`.
    #[test]
    fn functions_that_call_each_other_in_turn_are_a_row_each() {
        let mut nodes = vec![node(None, 0, 1)];
        nodes.extend((0..7).map(|at| node(Some(at), 1 + at % 2, 10 + u64::from(at % 2))));
        nodes.push(node(Some(7), 3, 500));
        let expected =
            [(Some(0), 1, 0, 1, 1), (Some(1), 4, 1, 4, 40), (Some(2), 3, 2, 3, 33), (Some(3), 1, 3, 1, 500)];
        assert_eq!(shown(&Tree::new(&nodes, false, |_| true)), expected);
        // Two turns and a half may as well be an accident.
        let few = Tree::new(&nodes[..6], false, |_| true);
        assert_eq!(shown(&few).len(), 6);
    }

    #[test]
    fn deep_paths_take_no_more_time_than_they_are_long() {
        // 17 functions in turn are more than are recognised, and no function calls itself.
        let nodes: Vec<_> = (0..500_000_u32).map(|at| node(at.checked_sub(1), at % 17, 1)).collect();
        assert_eq!(shown(&Tree::new(&nodes, false, |_| true)).len(), nodes.len());
        let nodes: Vec<_> = (0..500_000_u32).map(|at| node(at.checked_sub(1), at % 5, 1)).collect();
        assert_eq!(shown(&Tree::new(&nodes, false, |_| true)).len(), 5);
    }

    /// What is called by one of several levels only stands below that one.
    #[test]
    fn unless_something_else_is_called_on_the_way() {
        let expected = [
            (Some(0), 1, 0, 1, 1),
            (Some(1), 1, 1, 1, 10),
            (Some(1), 1, 2, 1, 10),
            (Some(1), 1, 3, 1, 10),
            (Some(1), 1, 4, 1, 10),
            (Some(1), 1, 5, 1, 10),
            (Some(1), 1, 6, 1, 10),
            (Some(2), 1, 7, 1, 500),
            (Some(3), 1, 4, 1, 7),
        ];
        assert_eq!(shown(&tree(true)), expected);
    }
}
