//! From snapshots to rows: rates, order and filter.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;

use globset::{GlobBuilder, GlobMatcher};

use crate::live::snapshot::Snapshot;

/// What the rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Functions,
    Modules,
    Threads,
    /// Arguments, or the values of one of them.
    Values,
}

/// By what rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Calls,
    Rate,
    Time,
    Name,
}

/// A row of the table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// What identifies the row among those of its kind.
    pub(crate) id: (u32, u64),
    pub(crate) name: String,
    /// The module of a function, or what else there is to say.
    pub(crate) more: String,
    /// The pattern with which its functions are switched; empty if they cannot be.
    pub(crate) pattern: String,
    pub(crate) calls: u64,
    /// Calls per second since the last snapshot; `None` if there was none.
    pub(crate) rate: Option<f64>,
    /// Time in seconds: measured, sampled, or a thread's CPU time.
    pub(crate) seconds: f64,
    /// Measured time with the calls that it makes, in seconds.
    pub(crate) inclusive: f64,
    pub(crate) off: Off,
}

/// Whether the functions of a row are switched off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Off {
    #[default]
    None,
    Some,
    All,
}

/// A part of the names of functions, or a glob.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) typed: String,
    glob: Option<GlobMatcher>,
}

impl Filter {
    /// Returns the filter that the user has typed. A text with `*`, `?` or `[` that is a glob is one; any other text is a part
    /// of a name, in which the case of letters does not matter if there is no capital one.
    pub(crate) fn new(typed: &str) -> Filter {
        let is_glob = typed.contains(['*', '?', '[']);
        let glob = is_glob.then(|| GlobBuilder::new(typed).build().ok()).flatten();
        Filter { typed: typed.to_owned(), glob: glob.map(|glob| glob.compile_matcher()) }
    }

    fn matches(&self, name: &str) -> bool {
        match &self.glob {
            Some(glob) => glob.is_match(name),
            None if self.typed.chars().any(char::is_uppercase) => name.contains(&self.typed),
            None => self.typed.is_empty() || name.to_lowercase().contains(&self.typed),
        }
    }
}

/// Returns the rows of a snapshot, sorted. `before` is an earlier one of the same process. `within` leaves out the functions of
/// other modules, or selects the argument whose values are the rows.
pub(crate) fn rows(
    now: &Snapshot,
    before: Option<&Snapshot>,
    kind: Kind,
    filter: &Filter,
    within: Option<&str>,
) -> Vec<Row> {
    let module = within;
    let seconds = before.map_or(0.0, |before| now.ns.saturating_sub(before.ns) as f64 / 1e9);
    let before = before.filter(|_| seconds > 0.0);
    let rate = |calls: u64, earlier: Option<u64>| {
        // A function that has not been seen before was not called before.
        before.map(|_| calls.saturating_sub(earlier.unwrap_or(0)) as f64 / seconds)
    };
    let mut rows = match kind {
        Kind::Functions => {
            let mut earlier: HashMap<(u32, u64), u64> = HashMap::new();
            for function in
                before.iter().filter(|before| before.thread == now.thread).flat_map(|b| &b.functions)
            {
                earlier.insert((function.module, function.id), function.calls);
            }
            let in_module = |index: u32| now.modules.get(index as usize).map_or("", String::as_str);
            let chosen = now.functions.iter().filter(|function| {
                module.is_none_or(|module| in_module(function.module) == module)
                    && filter.matches(&function.name)
            });
            chosen
                .map(|function| {
                    let id = (function.module, function.id);
                    let symbol = function.symbol.as_ref().unwrap_or(&function.name);
                    let file = in_module(function.module);
                    Row {
                        id,
                        name: function.name.clone(),
                        more: file.to_owned(),
                        pattern: match function.is_hooked {
                            true => format!("{}!{}", escaped(file), escaped(symbol)),
                            false => String::new(),
                        },
                        calls: function.calls,
                        // A function without calls may not be hooked.
                        rate: rate(function.calls, earlier.get(&id).copied()).filter(|_| {
                            function.calls > 0 && before.is_some_and(|before| before.thread == now.thread)
                        }),
                        seconds: time(now, function.samples, function.own_ns),
                        inclusive: function.inclusive_ns as f64 / 1e9,
                        off: if function.is_off { Off::All } else { Off::None },
                    }
                })
                .collect()
        }
        Kind::Modules => modules(now, before, &rate, filter),
        Kind::Values => values(now, before, &rate, filter, within),
        Kind::Threads => {
            let earlier: HashMap<u32, u64> = before
                .iter()
                .flat_map(|before| &before.threads)
                .map(|thread| (thread.tid, thread.calls))
                .collect();
            let has_threads = before.is_some_and(|before| !before.threads.is_empty());
            let chosen = now.threads.iter().filter(|thread| filter.matches(&thread.name));
            chosen
                .map(|thread| Row {
                    id: (0, thread.tid.into()),
                    name: match (thread.runs, thread.owners) {
                        (true, ..=1) => format!("{} {}", thread.tid, thread.name),
                        (true, owners) => {
                            format!("{} {} (and {} before it)", thread.tid, thread.name, owners - 1)
                        }
                        (false, owners) => format!("{} ({} ended)", thread.tid, owners.max(1)),
                    },
                    more: thread.most.clone(),
                    calls: thread.calls,
                    rate: rate(thread.calls, earlier.get(&thread.tid).copied()).filter(|_| has_threads),
                    seconds: thread.cpu_ms as f64 / 1e3,
                    ..Row::default()
                })
                .collect()
        }
    };
    rows.retain(|row| row.calls > 0 || row.seconds > 0.0 || row.off != Off::None || kind != Kind::Functions);
    rows
}

/// Returns one row for each argument, or for each of the most frequent values of one of them.
fn values(
    now: &Snapshot,
    before: Option<&Snapshot>,
    rate: &dyn Fn(u64, Option<u64>) -> Option<f64>,
    filter: &Filter,
    of: Option<&str>,
) -> Vec<Row> {
    /// The name of a row, what else there is to say, and the calls.
    type Found<'s> = (&'s str, &'s str, u64);
    let found = |snapshot: &'_ Snapshot| -> Vec<(String, String, u64)> {
        let all = snapshot.values.iter();
        let of_argument = all.clone().filter(|argument| of.is_some_and(|of| argument.name == of));
        let mut rows: Vec<Found> = match of {
            None => all.map(|of| (of.name.as_str(), of.summary.as_str(), of.calls)).collect(),
            Some(_) => of_argument
                .flat_map(|of| of.values.iter().map(|(value, calls)| (value.as_str(), "", *calls)))
                .collect(),
        };
        rows.retain(|(name, ..)| filter.matches(name));
        rows.into_iter().map(|(name, more, calls)| (name.to_owned(), more.to_owned(), calls)).collect()
    };
    let earlier = before.map(found).unwrap_or_default();
    let earlier: HashMap<&str, u64> =
        earlier.iter().map(|(name, _, calls)| (name.as_str(), *calls)).collect();
    let row = |(name, more, calls): (String, String, u64)| Row {
        // FNV-1a, so that the row is found again in the next snapshot.
        id: (
            0,
            name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            }),
        ),
        calls,
        rate: rate(calls, earlier.get(name.as_str()).copied()),
        name,
        more,
        ..Row::default()
    };
    found(now).into_iter().map(row).collect()
}

/// Returns one row for each module.
fn modules(
    now: &Snapshot,
    before: Option<&Snapshot>,
    rate: &dyn Fn(u64, Option<u64>) -> Option<f64>,
    filter: &Filter,
) -> Vec<Row> {
    let sums = |snapshot: &Snapshot| {
        let mut sums = vec![0_u64; snapshot.modules.len()];
        for function in &snapshot.functions {
            if let Some(sum) = sums.get_mut(function.module as usize) {
                *sum = sum.saturating_add(function.calls);
            }
        }
        sums
    };
    let (calls, earlier) = (sums(now), before.map(sums).unwrap_or_default());
    let chosen = now.modules.iter().enumerate().filter(|(_, name)| filter.matches(name));
    chosen
        .map(|(index, name)| {
            let functions = now.functions.iter().filter(|function| function.module as usize == index);
            let (mut samples, mut own_ns, mut off, mut on) = (0, 0, 0, 0);
            for function in functions {
                samples += function.samples;
                own_ns += function.own_ns;
                off += u32::from(function.is_off);
                on += u32::from(function.is_hooked && !function.is_off);
            }
            let is_hooked = on + off > 0;
            Row {
                id: (index as u32, 0),
                name: name.clone(),
                more: if is_hooked { String::new() } else { "not hooked".to_owned() },
                pattern: if is_hooked { format!("{}!*", escaped(name)) } else { String::new() },
                calls: calls[index],
                rate: rate(calls[index], earlier.get(index).copied()),
                seconds: time(now, samples, own_ns),
                off: match (off, on) {
                    (0, _) => Off::None,
                    (_, 0) => Off::All,
                    _ => Off::Some,
                },
                ..Row::default()
            }
        })
        .collect()
}

/// Returns a time in seconds: measured, or else by samples.
fn time(snapshot: &Snapshot, samples: u64, own_ns: u64) -> f64 {
    match snapshot.is_measured {
        true => own_ns as f64 / 1e9,
        false => samples as f64 / f64::from(snapshot.rate.max(1)),
    }
}

/// Returns the pattern that matches this name only.
fn escaped(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len());
    for c in name.chars() {
        if "*?[]{},\\".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

/// Sorts rows: the greatest first, names from the first to the last. Rows of the same time are in the order of their calls, and other equal rows in
/// that of their names.
pub(crate) fn sort(rows: &mut [Row], by: Sort, reversed: bool) {
    rows.sort_by(|a, b| {
        let order = match by {
            Sort::Calls => Reverse(a.calls).cmp(&Reverse(b.calls)),
            Sort::Rate => b.rate.unwrap_or(0.0).total_cmp(&a.rate.unwrap_or(0.0)),
            // Most functions have no samples at first.
            Sort::Time => b.seconds.total_cmp(&a.seconds).then(b.calls.cmp(&a.calls)),
            Sort::Name => Ordering::Equal,
        };
        let order = order.then_with(|| a.name.cmp(&b.name)).then(a.id.cmp(&b.id));
        if reversed { order.reverse() } else { order }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::snapshot::{Function, Thread};

    fn snapshot(ns: u64, functions: &[(&str, u64, u64)]) -> Snapshot {
        let function = |(n, &(name, calls, samples)): (usize, &(&str, u64, u64))| Function {
            module: (n % 2) as u32,
            id: name.len() as u64 * 1000 + name.as_bytes()[0] as u64,
            name: name.to_owned(),
            calls,
            samples,
            is_hooked: true,
            ..Function::default()
        };
        Snapshot {
            ns,
            rate: 100,
            modules: vec!["prog".into(), "libx.so".into()],
            functions: functions.iter().enumerate().map(function).collect(),
            ..Snapshot::default()
        }
    }

    fn sorted(now: &Snapshot, before: Option<&Snapshot>, by: Sort) -> Vec<(String, u64, Option<f64>)> {
        let mut rows = rows(now, before, Kind::Functions, &Filter::default(), None);
        sort(&mut rows, by, false);
        rows.into_iter().map(|row| (row.name, row.calls, row.rate)).collect()
    }

    #[test]
    fn rates_are_what_was_added_in_the_time_between() {
        let first = snapshot(1_000_000_000, &[("alpha", 10, 5), ("beta", 100, 1)]);
        let second = snapshot(3_000_000_000, &[("alpha", 30, 6), ("beta", 100, 9), ("gamma", 8, 0)]);
        let row = |name: &str, calls, rate| (name.to_owned(), calls, rate);
        assert_eq!(
            sorted(&second, Some(&first), Sort::Rate),
            [row("alpha", 30, Some(10.0)), row("gamma", 8, Some(4.0)), row("beta", 100, Some(0.0))]
        );
        assert_eq!(sorted(&second, None, Sort::Calls)[0], row("beta", 100, None));
        assert_eq!(sorted(&second, None, Sort::Time)[0].0, "beta");
        let names: Vec<String> = sorted(&second, None, Sort::Name).into_iter().map(|row| row.0).collect();
        assert_eq!(names, ["alpha", "beta", "gamma"]);
        // After a reset there is no negative rate.
        assert_eq!(sorted(&first, Some(&Snapshot { ns: 0, ..second }), Sort::Name)[0].2, Some(0.0));
    }

    #[test]
    fn filters_are_parts_of_names_or_globs() {
        let matches = |typed: &str, name: &str| Filter::new(typed).matches(name);
        assert!(matches("", "x") && matches("sort", "std::QuickSort()") && matches("Quick", "QuickSort"));
        assert!(!matches("quicK", "QuickSort"));
        assert!(matches("q*t", "quicksort") && !matches("q*t", "quicksorts") && matches("[ab]?", "ax"));
        // A glob that is none is a text.
        assert!(matches("a[", "a[0]"));
    }

    #[test]
    fn modules_are_sums_and_know_what_is_off() {
        let mut now = snapshot(2_000_000_000, &[("a", 1, 10), ("b", 2, 0), ("c", 4, 20), ("d", 8, 0)]);
        now.functions[0].is_off = true;
        now.functions[2].is_off = true;
        let before = snapshot(1_000_000_000, &[("a", 1, 0), ("b", 1, 0)]);
        let rows = rows(&now, Some(&before), Kind::Modules, &Filter::default(), None);
        assert_eq!((rows[0].calls, rows[0].seconds, rows[0].off), (5, 0.3, Off::All));
        assert_eq!((rows[1].calls, rows[1].rate, rows[1].off), (10, Some(9.0), Off::None));
        assert_eq!(rows[1].pattern, "libx.so!*");
        let only = super::rows(&now, None, Kind::Functions, &Filter::default(), Some("libx.so"));
        assert_eq!(only.len(), 2);
    }

    #[test]
    fn patterns_of_rows_match_one_name() {
        let mut now = snapshot(0, &[("operator[]", 1, 0)]);
        now.functions[0].symbol = Some("_Zixi{*}".into());
        let rows = rows(&now, None, Kind::Functions, &Filter::default(), None);
        assert_eq!(rows[0].pattern, "prog!_Zixi\\{\\*\\}");
    }

    #[test]
    fn threads_that_have_ended_are_together() {
        let thread = |tid, runs, owners, calls| Thread {
            tid,
            runs,
            owners,
            calls,
            name: "w".into(),
            ..Thread::default()
        };
        let now =
            Snapshot { threads: vec![thread(7, true, 1, 5), thread(9, false, 3, 50)], ..snapshot(0, &[]) };
        let names: Vec<String> = rows(&now, None, Kind::Threads, &Filter::default(), None)
            .into_iter()
            .map(|row| row.name)
            .collect();
        assert_eq!(names, ["7 w", "9 (3 ended)"]);
    }
}
