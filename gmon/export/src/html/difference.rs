//! The page that compares two runs: a flame graph of the new run whose colours say what has changed, and a table of all functions.

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use crate::diff::{Change, Cost, Key, diff, matched};
use crate::flame::{Flame, Path};
use crate::html::page;
use crate::html::shorter::shorter;
use crate::likely::Paths;
use crate::model::{Run, Time};

/// The parts of the total below which a path is left out.
const PARTS: u64 = 20_000;

/// The parts of the script: each uses only those before it.
const SCRIPT: [&str; 9] = [
    include_str!("format.js"),
    include_str!("base.js"),
    include_str!("rows.js"),
    include_str!("icicle.js"),
    include_str!("ui.js"),
    include_str!("virtual.js"),
    include_str!("flame.js"),
    include_str!("theme.js"),
    include_str!("difference.js"),
];

/// What the page's script gets. Times are in nanoseconds; of each pair, the first is that of the old run.
#[derive(Serialize)]
struct Data<'r> {
    programs: [&'r str; 2],
    /// `measured`, `sampled` or `none`.
    kinds: [&'static str; 2],
    /// Whether the times of both runs are of one kind.
    comparable: bool,
    totals: [u64; 2],
    calls: [u64; 2],
    /// The CPU time for which a sample stands, if the times are samples.
    periods: [u64; 2],
    /// Whether the paths of any run are an estimate.
    estimated: bool,
    modules: Vec<&'r str>,
    functions: Functions,
    paths: PathColumns,
}

/// A row for each function of any of the runs.
#[derive(Serialize)]
struct Functions {
    name: Vec<String>,
    short: Vec<Option<String>>,
    /// Indexes of modules.
    module: Vec<usize>,
    old: Columns,
    new: Columns,
}

/// What a run says of each function; `null` if it does not have the function.
#[derive(Serialize)]
struct Columns {
    calls: Vec<Option<u64>>,
    #[serde(rename = "self")]
    own: Vec<Option<u64>>,
    inclusive: Vec<Option<u64>>,
}

/// A row for each path, parents before their children.
#[derive(Serialize)]
struct PathColumns {
    /// How many rows before this one the parent is; 0: none.
    parent: Vec<u32>,
    /// The index of the function plus 1; 0: several.
    function: Vec<u32>,
    old: Vec<u64>,
    new: Vec<u64>,
    #[serde(rename = "selfOld")]
    own_old: Vec<u64>,
    #[serde(rename = "selfNew")]
    own_new: Vec<u64>,
}

/// Writes the page.
///
/// # Errors
/// `out` cannot be written to.
pub fn write_difference(old: &Run, new: &Run, out: &mut dyn Write) -> io::Result<()> {
    let found = diff(old, new);
    let runs = [old, new];
    let (modules, module) = modules(&found.functions);
    let columns = |of: fn(&Change<Key>) -> Option<Cost>| {
        let column =
            |value: fn(Cost) -> u64| found.functions.iter().map(|change| of(change).map(value)).collect();
        // A function that has samples and no calls is not hooked.
        let calls =
            found.functions.iter().map(|change| of(change).map(|cost| cost.calls).filter(|&calls| calls > 0));
        Columns {
            calls: calls.collect(),
            own: column(|cost| cost.self_ns),
            inclusive: column(|cost| cost.inclusive_ns),
        }
    };
    let comparable = match (old.time, new.time) {
        (old, new) if old.is_sampled() => new.is_sampled(),
        (old, new) => old.is_comparable(new),
    };
    let (paths, estimated) = paths(runs, &found.functions);
    let data = Data {
        programs: [&old.program, &new.program],
        kinds: runs.map(|run| match run.time {
            Time::None => "none",
            Time::Sampled | Time::Estimated => "sampled",
            Time::Measured { .. } => "measured",
            Time::Executed => "executed",
        }),
        comparable,
        totals: runs.map(Run::total_ns),
        calls: runs.map(Run::calls),
        periods: runs.map(|run| if run.time.is_sampled() { run.sample_period_ns } else { 0 }),
        estimated,
        functions: Functions {
            name: found.functions.iter().map(|change| change.key.name.clone()).collect(),
            short: shorter(found.functions.iter().map(|change| change.key.name.as_str())),
            module,
            old: columns(|change| change.old),
            new: columns(|change| change.new),
        },
        modules,
        paths: path_columns(&paths),
    };
    page::write(&format!("{} compared", new.program), &data, &SCRIPT, out)
}

/// Returns the names of modules, and the index of that of each function.
fn modules(functions: &[Change<Key>]) -> (Vec<&str>, Vec<usize>) {
    let mut names: Vec<&str> = Vec::new();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut number = |change| {
        let Change { key: Key { module, .. }, .. }: &Change<Key> = change;
        let name = if module.is_empty() { "the program" } else { module.as_str() };
        *numbers.entry(name).or_insert_with(|| {
            names.push(name);
            names.len() - 1
        })
    };
    let modules = functions.iter().map(&mut number).collect();
    (names, modules)
}

/// Returns the paths of both runs as one tree, and whether any are an estimate. If paths were recorded in one run only, both are estimates, because others
/// could not be compared.
fn paths(runs: [&Run; 2], functions: &[Change<Key>]) -> (Vec<Path>, bool) {
    let numbers: HashMap<&Key, u32> = functions.iter().map(|change| &change.key).zip(0..).collect();
    let has_both = runs.iter().all(|run| !run.nodes.is_empty());
    let mut flame = Flame::default();
    let mut is_estimate = false;
    for ((side, run), keys) in runs.into_iter().enumerate().zip(matched(runs[0], runs[1])) {
        let paths = if has_both { Paths::of(run) } else { Paths::likely(run) };
        is_estimate |= paths.is_estimate;
        flame.add(&paths.nodes, side, |function| numbers.get(&keys[function as usize]).copied().unwrap_or(0));
    }
    (flame.finish(runs.map(|run| run.self_ns() / PARTS)), is_estimate)
}

fn path_columns(paths: &[Path]) -> PathColumns {
    let distance = |(at, path): (usize, &Path)| path.parent.map_or(0, |parent| at as u32 - parent);
    let column = |value: fn(&Path) -> u64| paths.iter().map(value).collect();
    PathColumns {
        parent: paths.iter().enumerate().map(distance).collect(),
        function: paths.iter().map(|path| path.function.map_or(0, |function| function + 1)).collect(),
        old: column(|path| path.total[0]),
        new: column(|path| path.total[1]),
        own_old: column(|path| path.own[0]),
        own_new: column(|path| path.own[1]),
    }
}

#[cfg(test)]
mod tests {
    use base64::prelude::{BASE64_STANDARD, Engine};

    use super::*;
    use crate::model::Function;
    use gmon_run::Node;

    fn run(names: &[&str], nodes: Vec<Node>) -> Run {
        let function = |(index, &name): (usize, &&str)| Function {
            name: name.into(),
            demangled: name.into(),
            self_ns: nodes
                .iter()
                .filter(|node| node.function == Some(index as u32))
                .map(|node| node.self_ns)
                .sum(),
            calls: 1,
            ..Function::default()
        };
        Run {
            time: Time::Measured { error_ns: 1.0 },
            functions: names.iter().enumerate().map(function).collect(),
            nodes,
            ..Run::default()
        }
    }

    #[test]
    fn the_paths_of_both_runs() {
        let node =
            |parent, function, self_ns| Node { parent, function: Some(function), self_ns, ..Node::default() };
        let hostile = "</script><b>\u{2028}";
        let old = run(&["main", "gone"], vec![node(None, 0, 10), node(Some(0), 1, 40)]);
        let new = run(&[hostile, "main"], vec![node(None, 1, 12), node(Some(0), 0, 30)]);
        let mut page = Vec::new();
        write_difference(&old, &new, &mut page).expect("memory can be written to");
        let page = String::from_utf8(page).expect("UTF-8");
        assert!(!page.contains("<b>"));
        let packed =
            page.split_once("id=\"data\">").expect("data").1.split_once("</script>").expect("an end").0;
        let packed = BASE64_STANDARD.decode(packed).expect("Base64");
        let data: serde_json::Value =
            serde_json::from_reader(flate2::read::GzDecoder::new(&packed[..])).expect("JSON");
        assert_eq!(data["functions"]["name"], serde_json::json!([hostile, "gone", "main"]));
        assert_eq!(data["functions"]["old"]["self"], serde_json::json!([null, 40, 10]));
        assert_eq!(data["functions"]["new"]["self"], serde_json::json!([30, null, 12]));
        assert_eq!(data["paths"]["function"], serde_json::json!([3, 1, 2]));
        assert_eq!(data["paths"]["old"], serde_json::json!([50, 0, 40]));
        assert_eq!(data["paths"]["new"], serde_json::json!([42, 30, 0]));
        assert_eq!((&data["comparable"], &data["estimated"]), (&true.into(), &false.into()));
    }
}
