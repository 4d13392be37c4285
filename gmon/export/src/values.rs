//! The values of arguments and results as they are shown: by argument, caller and path, and the texts of values.
//!
//! A [`Run`] enters; tables leave, of which reports, pages and the live view make text.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use gmon_run::{INTERVALS, REST_NAME};
pub use gmon_run::{KeptValue, ValueCounts, ValueKind, ValueSummary, Values};

use crate::load::OUTSIDE;
use crate::model::Run;

/// The greatest number of functions of a path that is shown: those nearest to the call.
pub const PATH_MAX: usize = 1000;
/// In place of a path that is not known.
pub const NO_PATH: &str = gmon_run::NO_PATH_NAME;

/// Who has made calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// A function, by its index.
    Function(u32),
    /// Code that is not hooked.
    Outside,
    /// All callers together for which there was no room.
    Rest,
}

impl Caller {
    /// Returns the index of the function, or the name of what is none.
    pub fn place(self) -> (Option<u32>, &'static str) {
        match self {
            Caller::Function(function) => (Some(function), ""),
            Caller::Outside => (None, OUTSIDE),
            Caller::Rest => (None, REST_NAME),
        }
    }
}

/// A path of calls, by which equal paths of several threads are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// One that is in the run: see [`Tables::path`].
    Known(u32),
    /// It is not known: the exit of the function cannot be hooked.
    Unknown,
    /// All paths together for which there was no room.
    Rest,
}

/// The values of an argument in the calls by all callers, by each of them, and by each path; those with the most calls first.
#[derive(Clone, Debug)]
pub struct Argument<'r> {
    pub function: u32,
    /// The argument's name, or `retval`.
    pub name: &'r str,
    pub all: ValueCounts,
    pub callers: Vec<(Caller, ValueCounts)>,
    /// Empty if paths were not recorded.
    pub paths: Vec<(Path, ValueCounts)>,
}

/// The values of the arguments of a run.
#[derive(Clone, Debug, Default)]
pub struct Tables<'r> {
    /// Those of the functions with the most calls first; the arguments of a function are in their order.
    pub arguments: Vec<Argument<'r>>,
    /// The paths of all threads: the place of the caller's path, and the function.
    paths: Vec<Step>,
}

/// The last step of a path: the place of the caller's path, and the function.
type Step = (Option<u32>, Option<u32>);

/// The function and the name of an argument, and its counts: of all calls, by caller and by path.
type Counted<'r> = (u32, &'r str, ValueCounts, Parts<Caller>, Parts<Path>);

/// The counts of each of several callers or paths.
struct Parts<K>(HashMap<K, usize>, Vec<(K, ValueCounts)>);

impl<K: Copy + Eq + std::hash::Hash> Parts<K> {
    fn add(&mut self, key: K, counts: &ValueCounts) {
        match self.0.entry(key) {
            Entry::Occupied(at) => self.1[*at.get()].1.add(counts.clone()),
            Entry::Vacant(place) => {
                place.insert(self.1.len());
                self.1.push((key, counts.clone()));
            }
        }
    }

    /// Returns the parts, those with the most calls first.
    fn sorted(mut self) -> Vec<(K, ValueCounts)> {
        self.1.sort_by_cached_key(|(_, counts)| std::cmp::Reverse(counts.calls()));
        self.1
    }
}

impl<'r> Tables<'r> {
    /// Returns the values of the functions that are wanted.
    pub fn new(run: &'r Run, mut is_wanted: impl FnMut(u32) -> bool) -> Tables<'r> {
        let has_paths = run.values.iter().any(|of| of.node.is_some());
        let (paths, merged) = if has_paths { merged(run) } else { (Vec::new(), Vec::new()) };
        let mut places: HashMap<(u32, &str, ValueKind), usize> = HashMap::new();
        let mut all: Vec<Counted> = Vec::new();
        for of in run.values.iter().filter(|of| is_wanted(of.function)) {
            let counts = &of.counts;
            let at = *places.entry((of.function, &of.name, counts.kind)).or_insert_with(|| {
                let empty = ValueCounts { kind: counts.kind, ..ValueCounts::default() };
                let (callers, paths) = (Parts(HashMap::new(), Vec::new()), Parts(HashMap::new(), Vec::new()));
                all.push((of.function, &of.name, empty, callers, paths));
                all.len() - 1
            });
            let (_, _, sum, callers, by_path) = &mut all[at];
            sum.add(counts.clone());
            let node = of.node.and_then(|node| merged.get(node as usize).copied());
            let path = match node {
                None => Path::Unknown,
                Some(node) if paths[node as usize].1.is_none() => Path::Rest,
                Some(node) => paths[node as usize].0.map_or(Path::Known(NO_CALLER), Path::Known),
            };
            let caller = match of.caller {
                Some(caller) => Caller::Function(caller),
                None if path == Path::Rest => Caller::Rest,
                None => Caller::Outside,
            };
            // A caller may occur in several programs.
            callers.add(caller, counts);
            if has_paths {
                by_path.add(path, counts);
            }
        }
        // The arguments of a function stay together, in their order.
        let mut of_function: HashMap<u32, u64> = HashMap::new();
        for (function, _, sum, ..) in &all {
            let most = of_function.entry(*function).or_default();
            *most = (*most).max(sum.calls());
        }
        all.sort_by_cached_key(|(function, ..)| {
            std::cmp::Reverse((of_function.get(function).copied(), *function))
        });
        let arguments = all.into_iter().map(|(function, name, all, callers, paths)| Argument {
            function,
            name,
            all,
            callers: callers.sorted(),
            paths: paths.sorted(),
        });
        Tables { arguments: arguments.collect(), paths }
    }

    /// Returns the functions of a path from the outermost one to the caller, at most [`PATH_MAX`]; `None` are calls for which there was no
    /// room. Returns as well whether outer ones are left out.
    pub fn path(&self, path: u32) -> (Vec<Option<u32>>, bool) {
        let mut functions = Vec::new();
        let mut at = Some(path).filter(|&path| path != NO_CALLER);
        while let Some(&(caller, function)) = at.and_then(|at| self.paths.get(at as usize)) {
            if functions.len() == PATH_MAX {
                break;
            }
            functions.push(function);
            // A caller's place is before that of its callee.
            at = caller;
        }
        functions.reverse();
        (functions, at.is_some())
    }

    /// Returns the functions of all callers and paths, for their names.
    pub fn functions(&self) -> impl Iterator<Item = u32> {
        let of_paths = self.paths.iter().filter_map(|(_, function)| *function);
        let callers = self.arguments.iter().flat_map(|of| &of.callers);
        let callers = callers.filter_map(|(caller, _)| caller.place().0);
        self.arguments.iter().map(|of| of.function).chain(callers).chain(of_paths)
    }
}

/// The place of a path without a function: nobody who is known has called.
const NO_CALLER: u32 = u32::MAX;

/// Returns the paths of all threads, each once, with the place of the caller's path, and the place of each node's path among them.
fn merged(run: &Run) -> (Vec<Step>, Vec<u32>) {
    let mut known: HashMap<Step, u32> = HashMap::new();
    let (mut paths, mut places): (Vec<_>, Vec<u32>) = (Vec::new(), Vec::new());
    for node in &run.nodes {
        // A node comes after its parent.
        let caller = node.parent.and_then(|parent| places.get(parent as usize).copied());
        let key = (caller, node.function);
        let place = *known.entry(key).or_insert_with(|| {
            paths.push(key);
            paths.len() as u32 - 1
        });
        places.push(place);
    }
    (paths, places)
}

/// Returns a value as text.
pub fn shown(kind: ValueKind, kept: &KeptValue) -> String {
    let value = kept.value;
    match (kind, &kept.text) {
        (ValueKind::Text, Some(text)) => format!("\"{}\"", gmon::visible(text)),
        (ValueKind::Text, None) => format!("(a text that was not kept, {value:016x})"),
        (_, Some(name)) => format!("{} ({})", number(kind, value), gmon::visible(name)),
        (_, None) => number(kind, value),
    }
}

/// Returns a number as text.
pub fn number(kind: ValueKind, value: u64) -> String {
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
pub fn real(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e15 { format!("{value:.0}") } else { format!("{value:.4}") }
}

/// Returns a part of a whole in percent as text. What is neither nothing nor all is not shown as that.
pub fn percent(part: u64, all: u64) -> String {
    let percent = if all == 0 { 0.0 } else { 100.0 * part as f64 / all as f64 };
    let percent = if part == 0 || part == all { percent } else { percent.clamp(0.01, 99.99) };
    format!("{percent:.2}%")
}

/// Returns what all values have in common, in words.
pub fn sentence(kind: ValueKind, all: &ValueSummary) -> String {
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

/// Returns the values of one caller or path in a few words: their mean, and the most frequent one.
pub fn in_short(counts: &ValueCounts) -> String {
    let summary = counts.summary();
    let mean = match counts.kind {
        ValueKind::Text | ValueKind::Hex => String::new(),
        _ => format!("mean {}", real(summary.mean)),
    };
    let frequent = counts
        .kept
        .first()
        .map(|kept| format!("mostly {} ({})", shown(counts.kind, kept), percent(kept.count, summary.calls)));
    [Some(mean), frequent]
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join(", ")
}

/// A row of the most frequent values of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub calls: u64,
    pub value: String,
}

/// Returns rows for so many of the most frequent values, and one for the rest, if there is any.
pub fn rows(counts: &ValueCounts, most: usize) -> Vec<Row> {
    let row = |kept: &KeptValue| {
        let error = if kept.error > 0 { format!(" (up to {} more)", kept.error) } else { String::new() };
        Row { calls: kept.count, value: format!("{}{error}", shown(counts.kind, kept)) }
    };
    let mut rows: Vec<Row> = counts.kept.iter().take(most).map(row).collect();
    let more = counts.kept.iter().skip(most);
    let rest = more.fold(counts.others.count, |sum, kept| sum.saturating_add(kept.count));
    if rest > 0 {
        let kept = counts.kept.len().saturating_sub(most);
        let others = || gmon::counted(kept, "other value", "other values");
        let which = match (kept, counts.others.count) {
            (_, 0) => others(),
            (0, _) => "values of which no count was kept".to_owned(),
            _ => format!("{}, and others of which no count was kept", others()),
        };
        let bound = match counts.missing {
            0 => String::new(),
            most => format!(": each at most {most} times"),
        };
        rows.push(Row { calls: rest, value: format!("{which}{bound}") });
    }
    rows
}

/// Returns the intervals of a histogram from the first one with values to the last one, numbers below 0 first, with their numbers of calls.
pub fn intervals(all: &ValueSummary) -> Vec<(usize, u64)> {
    let negative = INTERVALS - 1;
    let first = all.histogram.iter().position(|&count| count > 0).unwrap_or(0);
    let last = all.histogram.iter().take(negative).rposition(|&count| count > 0);
    let below = all.histogram.get(negative).map(|&count| (negative, count));
    let others = all.histogram.iter().copied().enumerate().take(last.map_or(0, |last| last + 1)).skip(first);
    below.into_iter().chain(others).collect()
}

/// Returns the least value of an interval, and the one that is behind it.
pub fn bounds(interval: usize) -> (Option<u128>, Option<u128>) {
    match interval {
        0 => (Some(0), Some(1)),
        interval if interval < INTERVALS - 1 => (Some(1 << (interval - 1)), Some(1 << interval)),
        _ => (None, Some(0)),
    }
}

/// Returns an interval as text.
pub fn range(interval: usize) -> String {
    match bounds(interval) {
        (None, _) => "below 0".to_owned(),
        (Some(0), _) => "0".to_owned(),
        (Some(1), _) => "1".to_owned(),
        (Some(low), high) => format!("{low} to {}", high.unwrap_or(0).saturating_sub(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmon_run::Node;

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

    /// A run with two threads that have both called 2 by 0 and 1, and once by 0 alone.
    fn run() -> Run {
        let node = |parent, function, thread| Node { parent, function, thread, ..Node::default() };
        let values = |node, caller, value, count| Values {
            function: 2,
            caller,
            node,
            name: "n".to_owned(),
            counts: ValueCounts {
                kept: vec![KeptValue { value, count, ..KeptValue::default() }],
                ..ValueCounts::default()
            },
            ..Values::default()
        };
        Run {
            nodes: vec![
                node(None, Some(0), 0),
                node(Some(0), Some(1), 0),
                node(Some(1), Some(2), 0),
                node(None, Some(0), 1),
                node(Some(3), Some(1), 1),
                node(Some(4), Some(2), 1),
                node(Some(3), Some(2), 1),
                node(None, None, 1),
                node(None, Some(2), 1),
            ],
            values: vec![
                values(Some(2), Some(1), 5, 3),
                values(Some(5), Some(1), 5, 4),
                values(Some(6), Some(0), 6, 2),
                values(Some(7), None, 8, 1),
                values(Some(8), None, 9, 1),
                values(None, Some(0), 6, 1),
                // Of a hostile file.
                values(Some(99), Some(0), 6, 1),
            ],
            ..Run::default()
        }
    }

    #[test]
    fn equal_paths_of_threads_are_one() {
        let run = run();
        let tables = Tables::new(&run, |_| true);
        let [argument] = tables.arguments.as_slice() else { panic!("{tables:?}") };
        assert_eq!(argument.all.calls(), 13);
        let by: Vec<_> = argument.callers.iter().map(|(caller, counts)| (*caller, counts.calls())).collect();
        let function = Caller::Function;
        assert_eq!(by, [(function(1), 7), (function(0), 4), (Caller::Rest, 1), (Caller::Outside, 1)]);
        let path = |path: Path| match path {
            Path::Known(path) => {
                format!("{:?}", tables.path(path).0.into_iter().flatten().collect::<Vec<_>>())
            }
            other => format!("{other:?}"),
        };
        let by: Vec<_> = argument.paths.iter().map(|(at, counts)| (path(*at), counts.calls())).collect();
        let expected = [("[0, 1]", 7), ("[0]", 2), ("Unknown", 2), ("Rest", 1), ("[]", 1)];
        assert_eq!(by, expected.map(|(path, calls)| (path.to_owned(), calls)));
    }

    #[test]
    fn long_paths_are_cut() {
        let nodes = (0..PATH_MAX as u32 + 5).map(|at| Node {
            parent: at.checked_sub(1),
            function: Some(at),
            ..Node::default()
        });
        let mut run = Run { nodes: nodes.collect(), ..run() };
        run.values[0].node = Some(PATH_MAX as u32 + 4);
        let tables = Tables::new(&run, |_| true);
        let (functions, is_cut) = tables.path(PATH_MAX as u32 + 3);
        assert_eq!((functions.len(), functions[0], is_cut), (PATH_MAX, Some(4), true));
    }

    #[test]
    fn rows_have_the_rest() {
        let kept = |value, count, error| KeptValue { value, count, error, text: None };
        let mut counts = ValueCounts { kept: vec![kept(5, 4, 0), kept(6, 3, 2)], ..ValueCounts::default() };
        let row = |calls, value: &str| Row { calls, value: value.to_owned() };
        assert_eq!(rows(&counts, 1), [row(4, "5"), row(3, "1 other value")]);
        (counts.others.count, counts.missing) = (2, 1);
        assert_eq!(
            rows(&counts, 2)[1..],
            [row(3, "6 (up to 2 more)"), row(2, "values of which no count was kept: each at most 1 times")]
        );
    }
}
