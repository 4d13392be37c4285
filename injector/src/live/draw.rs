//! Draws the table on a terminal.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::live::model::{Model, Subject};
use crate::live::plain;
use crate::live::rows::{Kind, Sort};

/// What is drawn beside the model.
pub(crate) struct Beside<'b> {
    /// The last lines of the program's output.
    pub(crate) output: &'b [String],
    /// What the injector would have printed: the number of messages, and the last one.
    pub(crate) held: Option<(usize, String)>,
    /// The share of one processor that gprofinject uses, if it is known.
    pub(crate) cpu: Option<f64>,
}

/// The width below which a row has one number only, because its name would not be seen beside all of them.
const NARROW: u16 = 64;

const HELP: &str = " s c t n   sort by calls per second, calls, time, name; once more: the other way round
 f m h v   functions, modules, threads, values of arguments; Tab: the next of these
 Enter     the functions of the selected module or thread, the values of the selected argument; Esc: back
 /         filter: a part of a name, or a glob
 Space     let the display stand still; the process counts on
 x e       switch the selected function or module off, on
 l         switch the module of the selected function off; once more: on
 X E       switch functions by a pattern off, on: GLOB or MODULE!GLOB
 z         set the counts to zero (those of threads are since the beginning)
 P         pause counting; once more: go on
 d         write the profile up to now
 p         the next process
 o         the output of a program that was started here
 + -       shorter, longer interval
 q         leave
 arrows, PageUp, PageDown, Home, End, j, k: select

 x before a name: switched off; o: some of its functions are.
 Any key goes back.";

/// Draws everything. Returns the number of rows that fit.
pub(crate) fn draw(frame: &mut Frame, model: &Model, beside: &Beside) -> usize {
    let [top, columns, body, bottom] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(vec![Line::raw(first(model)), Line::raw(second(model, beside))]), top);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let output = model.shows_output.then_some(beside.output);
    if model.shows_help {
        frame.render_widget(Paragraph::new(HELP), body);
    } else if let Some(output) = output {
        frame.render_widget(Paragraph::new(Line::styled("output of the program", reversed)), columns);
        let skipped = output.len().saturating_sub(body.height.into());
        let lines: Vec<Line> = output.iter().skip(skipped).map(|line| Line::raw(line.as_str())).collect();
        frame.render_widget(Paragraph::new(lines), body);
    } else {
        let header = if columns.width < NARROW { plain::short_header(model) } else { plain::header(model) };
        let header = format!("{header:width$}", width = usize::from(columns.width));
        frame.render_widget(Paragraph::new(Line::styled(header, reversed)), columns);
        table(frame, model, body);
    }
    frame.render_widget(Paragraph::new(last(model, beside)), bottom);
    body.height.into()
}

fn table(frame: &mut Frame, model: &Model, body: Rect) {
    let Some(now) = &model.now else { return };
    let shown = model.rows.iter().enumerate().skip(model.first).take(body.height.into());
    let lines = shown.map(|(index, row)| {
        let text = match body.width < NARROW {
            true => plain::short_line(row, model.sort),
            false => plain::line(row, now),
        };
        let text = format!("{text:width$}", width = usize::from(body.width));
        match index == model.selected {
            true => Line::styled(text, Style::new().add_modifier(Modifier::REVERSED)),
            false => Line::raw(text),
        }
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<Line>>()), body);
}

fn first(model: &Model) -> String {
    let Some(now) = &model.now else { return "gprofinject: no counts yet".to_owned() };
    plain::summary(now, &model.rows)
}

fn second(model: &Model, beside: &Beside) -> String {
    let Some(now) = &model.now else { return String::new() };
    let kind = match model.kind {
        Kind::Functions => "functions",
        Kind::Modules => "modules",
        Kind::Threads => "threads",
        Kind::Values => "values",
    };
    let sort = match model.sort {
        Sort::Calls => "calls",
        Sort::Rate => "calls/s",
        Sort::Time => "time",
        Sort::Name => "name",
    };
    let mut text = format!("{kind} by {sort}");
    if model.reversed {
        text += ", reversed";
    }
    if let Some(within) = &model.within {
        text += &format!(", of {within}");
    }
    if !model.filter.typed.is_empty() {
        text += &format!(", filter '{}'", model.filter.typed);
    }
    if now.processes.len() > 1 {
        let index = now.processes.iter().position(|(pid, _)| *pid == now.pid).map_or(1, |index| index + 1);
        text += &format!(", process {index} of {} (p: next)", now.processes.len());
    }
    text += &format!(
        ", every {} s, reading takes {:.1} ms",
        model.interval.as_secs_f64(),
        now.took_ns as f64 / 1e6
    );
    if let Some(cpu) = beside.cpu {
        text += &format!(", gprofinject {:.1} % CPU", 100.0 * cpu);
    }
    if model.is_frozen {
        text += " -- STANDS STILL (Space)";
    }
    text
}

fn last(model: &Model, beside: &Beside) -> String {
    if let Some(prompt) = &model.prompt {
        return format!("{}{}_", prompt.label(), prompt.typed);
    }
    if let Some(message) = &model.message {
        return message.clone();
    }
    if let Some((count, message)) = &beside.held {
        return format!("{message} ({})", gmon::counted(*count as u64, "message", "messages"));
    }
    let output = match model.subject {
        Subject::Started { has_output: true } => "  o output",
        _ => "",
    };
    format!(
        "? help  s c t n sort  f m h v kind  / filter  Space still  x e off on  z zero  d dump{output}  q quit"
    )
}
