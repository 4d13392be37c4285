//! `gmon paths --waits`: where threads waited, by path, the longest first.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::io::Write;

use anyhow::{Result, bail};
use gprofinject_image::names::fit;
use serde_json::json;

use crate::cli::json::array;
use crate::cli::reports::flat::thread_name;
use crate::cli::run_view::{Names, RunView};
use crate::cli::table_args::PathsArgs;
use crate::cli::text::percent;
use crate::cli::tree::{Merged, Tree};
use crate::cli::units::duration;

/// The number of columns before the names in a text.
const NUMBERS: usize = 33;
/// What is between a function and its caller.
const CALLED_BY: &str = " < ";
/// The number of callers that a path names at most in a text.
const CALLERS: usize = 24;

/// Prints a line for each path on which threads have waited, at least for this part of all waiting time in percent.
///
/// # Errors
/// It is not known when threads waited, or `out` cannot be written to.
pub(super) fn waits(view: &RunView, args: &PathsArgs, least: f64, out: &mut impl Write) -> Result<()> {
    if !view.run.time.is_measured() {
        bail!("--waits: sampled stacks do not show who waits; `gprofinject --paths` measures it");
    }
    if view.run.ready_ns.is_none() {
        bail!(
            "--waits: it was not seen when the threads waited, which takes a program that was started and glibc 2.35 or later"
        );
    }
    // Of the paths that lead through a function, all are wanted, so they begin where they begin.
    let tree = Tree::new(&view.run.nodes, args.threads, |_| true);
    let waits = Waits::of(view, &tree, least, args.common.rows.most());
    let named = waits.chosen.iter().flat_map(|&index| path(&tree, index)).filter_map(|node| node.function);
    let names = view.names(named);
    if args.common.shown.json {
        waits.json(view, args, &names, out)
    } else {
        waits.text(view, args, &names, out)
    }
}

/// The paths on which threads have waited.
struct Waits<'t> {
    tree: &'t Tree,
    /// The nodes, the longest wait first.
    chosen: Vec<u32>,
    total_ns: u64,
    not_shown: usize,
}

/// Returns the nodes of a path, the function that has waited first.
fn path(tree: &Tree, index: u32) -> impl Iterator<Item = &Merged> {
    let node = |index: u32| tree.nodes.get(index as usize);
    std::iter::successors(node(index), move |at| at.parent.and_then(node))
}

impl<'t> Waits<'t> {
    fn of(view: &RunView, tree: &'t Tree, least: f64, most: usize) -> Waits<'t> {
        let all = view.chooses_all();
        let is_chosen = |node: &Merged| node.function.map_or(all, |function| all || view.chooses(function));
        let has_waited =
            |&index: &u32| tree.nodes[index as usize].waiting_ns > 0 && path(tree, index).any(is_chosen);
        let mut chosen: Vec<u32> = (0..tree.nodes.len() as u32).filter(has_waited).collect();
        let waiting = |&index: &u32| tree.nodes[index as usize].waiting_ns;
        let total_ns = chosen.iter().map(waiting).fold(0, u64::saturating_add);
        chosen.sort_by_key(|index| Reverse(waiting(index)));
        let count = chosen.len();
        let min_ns = total_ns as f64 * least / 100.0;
        chosen.retain(|index| waiting(index) as f64 >= min_ns);
        chosen.truncate(most);
        Waits { tree, total_ns, not_shown: count - chosen.len(), chosen }
    }

    fn rows(&self) -> impl Iterator<Item = (&Merged, impl Iterator<Item = &Merged>)> {
        self.chosen.iter().map(|&index| (&self.tree.nodes[index as usize], path(self.tree, index)))
    }

    fn text(&self, view: &RunView, args: &PathsArgs, names: &Names, out: &mut impl Write) -> Result<()> {
        view.head(out)?;
        writeln!(out)?;
        let style = view.style;
        let numbers = |[waited, share, calls]: [&str; 3]| format!("{waited:>9}  {share:>7}  {calls:>12}");
        let heading = numbers(["waited", "share", "calls"]);
        writeln!(out, "{}", style.heading(&format!("{heading}  function < callers")))?;
        for (node, path) in self.rows() {
            let name = |node: &Merged| {
                let other = || view.run.name_without_function();
                node.function.map_or_else(other, |function| names.of(function)).to_owned()
            };
            let mut shown: Vec<String> = path.take(CALLERS).map(name).collect();
            if args.threads {
                shown.extend(view.run.threads.get(node.thread as usize).map(thread_name));
            }
            let path = shown.join(CALLED_BY);
            let room = style.width().map(|width| width.saturating_sub(NUMBERS).max(NUMBERS));
            let row = numbers([
                &duration(node.waiting_ns),
                &percent(node.waiting_ns, self.total_ns),
                &node.calls.to_string(),
            ]);
            writeln!(out, "{row}  {}", room.map_or(Cow::Borrowed(&*path), |room| fit(&path, room)))?;
        }
        if self.chosen.is_empty() {
            writeln!(out, "no thread has waited in a measured call")?;
        }
        if self.not_shown > 0 {
            let hidden = gmon::counted(self.not_shown, "path", "paths");
            let more = style.wrap(&format!("{hidden} more; --min-percent and -n select"));
            writeln!(out, "{}", style.faint(more))?;
        }
        Ok(())
    }

    fn json(&self, view: &RunView, args: &PathsArgs, names: &Names, out: &mut impl Write) -> Result<()> {
        write!(out, "{{{},\n\"total_ns\":{}", view.json_head("gmon-waits"), self.total_ns)?;
        write!(out, ",\"not_shown\":{}", self.not_shown)?;
        let run = view.run;
        let other = run.name_without_function();
        array(out, "waits", &self.chosen, |&index| {
            let node = &self.tree.nodes[index as usize];
            let mut json = view.json_node(node.function, other);
            let callers = path(self.tree, index).skip(1);
            let callers = callers.map(|node| node.function.map_or(&*other, |function| names.of(function)));
            json["callers"] = json!(callers.collect::<Vec<_>>());
            json["calls"] = json!(node.calls);
            json["self_ns"] = json!(node.self_ns);
            json["waiting_ns"] = json!(node.waiting_ns);
            if args.threads {
                json["thread"] = view.json_thread(node.thread);
            }
            json
        })?;
        writeln!(out, "}}")?;
        Ok(())
    }
}
