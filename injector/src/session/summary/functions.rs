//! The most expensive functions of a run, with their shares and calls, in one line or two.

use std::borrow::Cow;

use gmon::visible;
use gmon_run::{By, GENERATED};
use gprofinject_image::names::demangle::demangle;
use gprofinject_image::names::{fit, unambiguous};

use crate::os::columns::{cut, width};
use crate::session::digest::{Digest, FunctionCost};
use crate::session::words::{percent, scaled};

/// How the entries are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `name 23 % (16 M)`
    Roomy,
    /// `name 23% 16M`
    Dense,
    /// `name 23%`, for terminals that are narrow
    Tight,
}

impl Form {
    fn between(self) -> &'static str {
        match self {
            Form::Roomy => " \u{b7} ",
            Form::Dense | Form::Tight => ", ",
        }
    }

    /// Returns the number of columns below which a name tells nothing.
    fn shortest(self) -> usize {
        match self {
            Form::Roomy => 10,
            Form::Dense => 8,
            Form::Tight => 6,
        }
    }

    /// Returns the number of columns that the name of a module may take. `None` if it is not said of functions with names.
    fn module(self) -> Option<usize> {
        match self {
            Form::Roomy => Some(16),
            Form::Dense => Some(9),
            Form::Tight => None,
        }
    }
}

/// A function as it is shown.
#[derive(Clone, Debug)]
struct Entry {
    /// The name of its module, with an exclamation mark if the function has a name, or nothing.
    module: String,
    /// Its name, which may be cut.
    name: String,
    /// What follows the name and is never cut: the cost, and before it the address of a function without a name.
    rest: String,
}

/// Returns the functions of a digest in at most so many lines, each of which takes at most so many columns: as many functions as there is room
/// for, the most expensive first, and of their names as much as is left.
pub(super) fn lines(digest: &Digest, columns: usize, rows: usize) -> Vec<String> {
    /// A name of which so much is shown is known again. More is not worth another line.
    const KNOWN: usize = 16;
    /// With fewer functions, more of them say more than the calls.
    const FEW: usize = 3;
    let fitting = |forms: &[(Form, Vec<Entry>)], count: usize| {
        let ways =
            (1..=rows).flat_map(|rows| forms.iter().map(move |(form, entries)| (rows, *form, entries)));
        let ways =
            ways.filter_map(|(rows, form, entries)| in_rows(entries.get(..count)?, form, columns, rows));
        let mut ways: Vec<(usize, Vec<String>)> = ways.collect();
        // Of several ways with names of the same length, the first one.
        let best = ways.iter().position(|(name, _)| *name >= KNOWN);
        let best = best.or_else(|| (0..ways.len()).rev().max_by_key(|&index| ways[index].0))?;
        Some((count, ways.swap_remove(best).1))
    };
    let most = |forms: &[Form]| {
        let forms: Vec<_> = forms.iter().map(|&form| (form, entries(digest, form))).collect();
        (1..=digest.functions.len()).rev().find_map(|count| fitting(&forms, count)).unwrap_or_default()
    };
    let with_calls = most(&[Form::Roomy, Form::Dense]);
    if with_calls.0 >= FEW.min(digest.functions.len()) {
        return with_calls.1;
    }
    let without = most(&[Form::Tight]);
    if without.0 > with_calls.0 { without.1 } else { with_calls.1 }
}

fn entries(digest: &Digest, form: Form) -> Vec<Entry> {
    let shown = &digest.functions;
    // The unit is said once.
    let first_called = shown.iter().position(|function| function.cost.calls > 0);
    let is_generated = |function: &FunctionCost| function.module.as_deref() == Some(GENERATED);
    let demangled: Vec<Cow<str>> = shown.iter().map(|function| demangle(&function.name)).collect();
    let mut names = unambiguous(&without_clones(&demangled));
    for (name, function) in names.iter_mut().zip(shown).filter(|(_, function)| is_generated(function)) {
        *name = Cow::Borrowed(&function.name);
    }
    let of = |(index, (function, name)): (usize, (&FunctionCost, Cow<str>))| {
        let mark = if function.is_nameless { "" } else { "!" };
        let module = function.module.as_ref();
        let cost = cost(digest, function, Some(index) == first_called, form);
        let (name, rest) = match function.is_nameless {
            true => (String::new(), format!("{name}{cost}")),
            false => (visible(&name).into_owned(), cost),
        };
        let room = form.module().or_else(|| function.is_nameless.then_some(Form::Dense.module()?));
        let module = module.zip(room).map(|(name, room)| format!("{}{mark}", short_module(name, room)));
        let module = module.unwrap_or_default();
        Entry { module, name, rest }
    };
    shown.iter().zip(names).enumerate().map(of).collect()
}

/// Returns the names without what compilers append to those of a function's variants, if that leaves no two names that are the same.
fn without_clones<'n>(names: &'n [Cow<'_, str>]) -> Vec<&'n str> {
    const MARKS: [&str; 5] = [" [clone ", ".isra.", ".constprop.", ".part.", ".cold"];
    let cut = |name: &'n str| {
        let end = MARKS.iter().filter_map(|mark| name.find(mark)).filter(|&at| at > 0).min();
        end.map_or(name, |end| &name[..end])
    };
    let short: Vec<&str> = names.iter().map(|name| cut(name)).collect();
    let is_alone = |index: usize| short.iter().filter(|name| **name == short[index]).count() == 1;
    (0..names.len()).map(|index| if is_alone(index) { short[index] } else { names[index].as_ref() }).collect()
}

/// Returns the cost of a function, as it follows its name.
fn cost(digest: &Digest, function: &FunctionCost, has_unit: bool, form: Form) -> String {
    let (by, cost) = (digest.by, function.cost);
    let share = percent(by.of(cost), by.of(digest.all));
    let number = match form {
        Form::Roomy => scaled(cost.calls),
        Form::Dense | Form::Tight => scaled(cost.calls).replace(' ', ""),
    };
    let calls = match (has_unit, cost.calls) {
        (false, _) => number,
        (true, 1) => format!("{number} call"),
        (true, _) => format!("{number} calls"),
    };
    match (by, form) {
        (By::Calls, _) => format!(" {calls}"),
        (_, Form::Roomy) if cost.calls == 0 => format!(" {share:.0} %"),
        (_, Form::Roomy) => format!(" {share:.0} % ({calls})"),
        (_, Form::Tight) => format!(" {share:.0}%"),
        (_, Form::Dense) if cost.calls == 0 => format!(" {share:.0}%"),
        (_, Form::Dense) => format!(" {share:.0}% {calls}"),
    }
}

/// Returns these functions in so many lines, one or two, if their names need not be cut too short for it, and the number of columns that each
/// name may take there.
fn in_rows(entries: &[Entry], form: Form, columns: usize, rows: usize) -> Option<(usize, Vec<String>)> {
    let (module, entries) = common_module(entries);
    let first = columns.saturating_sub(width(&module));
    if rows == 1 {
        let (most, line) = fitted(&entries, form, first)?;
        return Some((most, vec![format!("{module}{line}")]));
    }
    // The first line ends as one that is continued.
    let mark = form.between().trim_end();
    let splits = (1..entries.len()).filter_map(|at| {
        let (before, after) = entries.split_at(at);
        let (above, first) = fitted(before, form, first.saturating_sub(width(mark)))?;
        let (below, second) = fitted(after, form, columns)?;
        Some((above.min(below), vec![format!("{module}{first}{mark}"), second]))
    });
    // Of several ways with equally long names, the one with the fuller first line.
    splits.max_by_key(|(most, _)| *most)
}

/// Returns what is said of the module that contains all of these functions, which is then not said of each. It is nothing if there is no such
/// module.
fn common_module(entries: &[Entry]) -> (String, Vec<Entry>) {
    let common = match entries {
        [first, second, rest @ ..] => {
            let is_same = |entry: &Entry| entry.module == first.module;
            let is_common = is_same(second) && rest.iter().all(is_same);
            if is_common { first.module.trim_end_matches('!') } else { "" }
        }
        _ => "",
    };
    if common.is_empty() {
        return (String::new(), entries.to_vec());
    }
    let without = entries.iter().map(|entry| Entry { module: String::new(), ..entry.clone() });
    (format!("in {common}: "), without.collect())
}

/// Returns a line of these functions in at most so many columns, if their names need not be cut too short for it, and the number of columns
/// that each name may take there.
fn fitted(entries: &[Entry], form: Form, columns: usize) -> Option<(usize, String)> {
    let fixed: usize = entries.iter().map(|entry| width(&entry.module) + width(&entry.rest)).sum();
    let between = width(form.between()) * entries.len().saturating_sub(1);
    let widths: Vec<usize> = entries.iter().map(|entry| width(&entry.name)).collect();
    let longest = widths.iter().copied().max()?;
    let taken = |most: usize| widths.iter().map(|own| own.min(&most)).sum::<usize>();
    let Some(left) = columns.checked_sub(fixed + between) else {
        // One function is better than none.
        let [Entry { module, name, rest }] = entries else { return None };
        return Some((0, cut(&format!("{module}{name}{rest}"), columns).into_owned()));
    };
    let least = if entries.len() == 1 { 0 } else { form.shortest() };
    let most = (least.min(longest)..=longest).rev().find(|&most| taken(most) <= left)?;
    let shown = entries.iter().map(|Entry { module, name, rest }| {
        // A character may take two columns.
        format!("{module}{}{rest}", cut(&fit(name, most), most))
    });
    // What is not cut has all the room.
    let most = if most == longest { usize::MAX } else { most };
    Some((most, shown.collect::<Vec<_>>().join(form.between())))
}

/// Returns the name of a module in short: that of a library without its version.
fn short_module(name: &str, longest: usize) -> String {
    let stem = name
        .split_once(".so")
        .filter(|(stem, rest)| !stem.is_empty() && (rest.is_empty() || rest.starts_with('.')));
    cut(&visible(stem.map_or(name, |(stem, _)| stem)), longest).into_owned()
}
