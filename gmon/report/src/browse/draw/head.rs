//! The lines above and below a view.

use gmon_export::{Run, Time};
use ratatui::style::Style;

use crate::browse::chosen::Chosen;
use crate::browse::data::Sort;
use crate::browse::draw::pen::Pen;
use crate::browse::draw::theme::Theme;
use crate::browse::model::{Model, VIEWS, View};
use crate::browse::numbers::{ESTIMATE, count};
use crate::cli::text::plain;
use crate::cli::units::duration;

/// The width from which on the status has all numbers.
const WIDE: usize = 70;
/// The width from which on it has the duration too.
const WIDER: usize = 96;
const FEW_CALLS: usize = 7;

/// Writes the names of the views with their keys.
pub(crate) fn views(pen: &mut Pen, shown: View, theme: Theme) {
    let width: usize = VIEWS.iter().map(|(_, name)| name.len() + 4).sum();
    let is_narrow = pen.room() < width;
    for (key, (view, name)) in (1..).zip(VIEWS) {
        let text = match (is_narrow, view == shown) {
            (true, false) => format!(" {key} "),
            _ => format!(" {key} {name} "),
        };
        pen.word(&text, if view == shown { theme.reversed() } else { Style::new() });
    }
}

/// Returns what was run, and what its times are.
pub(crate) fn status(model: &Model, width: usize) -> String {
    let run = &model.data.run;
    let chosen = model.choices.iter().find(|choice| choice.chosen == model.chosen);
    let what = match chosen.filter(|choice| choice.chosen != Chosen::All) {
        Some(choice) => format!("{}, {}", choice.name, choice.which),
        None => plain(&run.program),
    };
    let is_narrow = width < WIDE;
    let calls = match run.calls() {
        0 => "no calls counted".to_owned(),
        calls if is_narrow => format!("{} calls", count(calls, FEW_CALLS)),
        calls => gmon::counted(calls, "call", "calls"),
    };
    let length = match run.duration_ns {
        ns @ 1.. if width >= WIDER => format!(" in {}", duration(ns).trim_end()),
        _ => String::new(),
    };
    let times = match run.time {
        Time::None => "no times".to_owned(),
        Time::Sampled | Time::Estimated if is_narrow => format!("CPU time; {}", inclusive(run)),
        Time::Sampled | Time::Estimated => format!(
            "CPU time, {} of {}; {}",
            gmon::counted(run.samples, "sample", "samples"),
            duration(run.sample_period_ns).trim_end(),
            inclusive(run),
        ),
        Time::Executed => "instructions, counted in place of time".to_owned(),
        Time::Measured { .. } if is_narrow => "measured wall time".to_owned(),
        Time::Measured { error_ns } => {
            let short =
                if run.functions.iter().any(|of| of.counted > 0) { "; short calls counted only" } else { "" };
            format!("wall time, measured, error up to {error_ns:.1} ns a call{short}")
        }
    };
    format!(" {what}: {calls}{length}; {times}")
}

/// Returns what inclusive times of sampled runs are.
fn inclusive(run: &Run) -> String {
    if run.time == Time::Sampled { "sampled stacks".to_owned() } else { format!("{ESTIMATE} estimated") }
}

/// Writes the last line: what is typed, a message, or the keys of the view; and where its list is.
pub(crate) fn last(pen: &mut Pen, model: &Model, theme: Theme) {
    let at = position(model);
    let room = pen.room();
    let left = room.saturating_sub(at.len() + 2);
    match (&model.message, model.is_typing) {
        (_, true) => pen.text(&format!("/{}_", plain(&model.functions.filter)), left, theme.bold()),
        (Some(message), _) => pen.text(&plain(message), left, theme.bold()),
        (None, _) if model.awaited.is_some() => pen.text("reading ...", left, Style::new()),
        (None, _) => pen.text(&hints(model, left), left, theme.faint()),
    }
    pen.skip(pen.room().saturating_sub(at.len()));
    pen.word(&at, Style::new());
}

/// Returns where the list of a view is.
fn position(model: &Model) -> String {
    let list = match model.view {
        _ if model.shows_help => model.help,
        View::Functions => model.functions.list,
        View::Graph => model.graph.list,
        View::Flame => return String::new(),
        View::Source => model.source.list,
        View::Assembly => model.assembly.list,
        View::Programs => model.programs,
    };
    let number = if list.len == 0 { 0 } else { list.selected + 1 };
    let sort = match (model.view, model.functions.sort) {
        (View::Functions, sort) if !model.shows_help => match sort {
            Sort::Own => "by self ",
            Sort::Inclusive => "by inclusive ",
            Sort::Calls => "by calls ",
            Sort::Instructions => "by instructions ",
            Sort::Name => "by name ",
        },
        _ => "",
    };
    format!("{sort}{number}/{}", list.len)
}

/// Returns the keys of a view, as many as there is room for.
fn hints(model: &Model, room: usize) -> String {
    let filter = &model.functions.filter;
    let searched = format!("Esc all, not just '{}'", plain(filter));
    let hints: &[&str] = match model.view {
        _ if model.shows_help => &["any other key goes back"],
        View::Functions if !filter.is_empty() => &[&searched, "Enter graph", "s sort"],
        View::Functions => &["Enter graph", "s sort", "/ search", "n full names"],
        View::Graph => &["Enter walk", "Backspace back", "4 source", "5 assembly"],
        View::Flame => &["Enter zoom", "Backspace out", "arrows move", "2 graph"],
        View::Source => &["5 assembly", "Left Right scroll", "Backspace back"],
        View::Assembly => &["4 source", "Left Right scroll", "Backspace back"],
        View::Programs => &["Enter shows it alone"],
    };
    let mut text = String::from(if model.shows_help { "" } else { "? help  q quit" });
    for hint in hints {
        if text.len() + 2 + hint.len() <= room {
            text += if text.is_empty() { "" } else { "  " };
            text += hint;
        }
    }
    text
}
