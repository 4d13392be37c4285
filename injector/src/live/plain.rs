//! The table as lines of text, for logs and for what is no terminal.

use std::fmt::Write;

use crate::live::model::Model;
use crate::live::rows::{Kind, Off, Row, Sort};
use crate::live::snapshot::Snapshot;
use crate::os::say::visible;

/// The greatest number of rows.
const MOST: usize = 20;

/// Returns the table of a model as text.
pub(crate) fn text(model: &Model, date: &str) -> String {
    let mut text = String::new();
    let Some(now) = &model.now else { return text };
    let _ = writeln!(text, "{date} {}", summary(now, &model.rows));
    let _ = writeln!(text, "{}", header(model));
    for row in model.rows.iter().take(MOST) {
        let _ = writeln!(text, "{}", line(row, now));
    }
    let more = model.rows.len().saturating_sub(MOST);
    if more > 0 {
        let _ = writeln!(text, "and {}", gmon::counted(more as u64, "more function", "more functions"));
    }
    for row in model.values().iter().take(MOST) {
        let _ = writeln!(text, "{}", line(row, now));
    }
    text
}

/// Returns the line that says what the table is of.
pub(crate) fn summary(now: &Snapshot, rows: &[Row]) -> String {
    let calls = now.functions.iter().fold(0_u64, |sum, function| sum.saturating_add(function.calls));
    // Before the second snapshot there are no rates. An empty sum would be a negative zero.
    let rate = rows.iter().filter_map(|row| row.rate).fold(0.0, |sum, rate| sum + rate);
    let state = if now.is_paused { ", paused" } else { "" };
    let off = match now.off {
        0 => String::new(),
        off => format!(", {off} off"),
    };
    let thread = now.thread.map(|tid| format!(", thread {tid}")).unwrap_or_default();
    format!(
        "{} (process {}{thread}): {calls} calls, {} calls/s, {}{off}{state}",
        now.program,
        now.pid,
        rounded(rate),
        gmon::counted(now.functions.len() as u64, "function", "functions"),
    )
}

/// Returns the heads of the columns, as wide as [`line()`] has them.
pub(crate) fn header(model: &Model) -> String {
    let (name, time) = match model.kind {
        Kind::Functions => ("function", "self s"),
        Kind::Modules => ("module", "self s"),
        Kind::Threads => ("thread", "cpu s"),
        Kind::Values if model.within.is_some() => ("value", ""),
        Kind::Values => ("argument", ""),
    };
    let inclusive = if has_inclusive(model) { "   total s" } else { "" };
    format!("{:>14} {:>12} {time:>10}{inclusive}   {name}", "calls", "calls/s")
}

/// Whether there is a column of inclusive times.
fn has_inclusive(model: &Model) -> bool {
    model.kind == Kind::Functions && model.now.as_ref().is_some_and(|now| now.is_measured)
}

/// Returns a row as text.
pub(crate) fn line(row: &Row, now: &Snapshot) -> String {
    let rate = row.rate.map_or_else(|| "-".to_owned(), rounded);
    let time = match row.seconds > 0.0 {
        true => format!("{:.3}", row.seconds),
        false => "-".to_owned(),
    };
    let inclusive = match now.is_measured && row.inclusive > 0.0 {
        true => format!("{:>10.3}", row.inclusive),
        false if now.is_measured => format!("{:>10}", "-"),
        false => String::new(),
    };
    let off = match row.off {
        Off::None => "  ",
        Off::Some => "o ",
        Off::All => "x ",
    };
    let more = match row.more.as_str() {
        "" => String::new(),
        more => format!("  [{more}]"),
    };
    let calls = if row.calls > 0 { row.calls.to_string() } else { "-".to_owned() };
    let line = format!("{calls:>14} {rate:>12} {time:>10}{inclusive} {off}{}{more}", row.name);
    // The snapshot may be another gprofinject's.
    visible(&line).into_owned()
}

/// Returns the head of [`short_line()`]'s columns.
pub(crate) fn short_header(model: &Model) -> String {
    let (number, name) = match (model.sort, model.kind) {
        (Sort::Rate, _) => ("calls/s", "name"),
        (Sort::Calls | Sort::Name, _) => ("calls", "name"),
        (Sort::Time, Kind::Threads) => ("cpu s", "name"),
        (Sort::Time, _) => ("self s", "name"),
    };
    format!("{number:>7} {name}")
}

/// Returns a row with one number only, the one by which rows are sorted, for narrow terminals.
pub(crate) fn short_line(row: &Row, sort: Sort) -> String {
    let number = match sort {
        Sort::Rate => row.rate.map_or_else(|| "-".to_owned(), short),
        Sort::Calls | Sort::Name if row.calls == 0 => "-".to_owned(),
        Sort::Calls | Sort::Name => short(row.calls as f64),
        Sort::Time => format!("{:.2}", row.seconds),
    };
    let off = match row.off {
        Off::None => "",
        Off::Some => "o ",
        Off::All => "x ",
    };
    visible(&format!("{number:>7} {off}{}", row.name)).into_owned()
}

/// Returns a number in few characters.
fn short(number: f64) -> String {
    let mut scaled = number;
    let mut units = ["", "k", "M", "G", "T", "P"].iter();
    let mut unit = units.next();
    while scaled >= 9999.5 {
        let Some(next) = units.next() else { break };
        unit = Some(next);
        scaled /= 1000.0;
    }
    format!("{scaled:.0}{}", unit.unwrap_or(&""))
}

/// Returns a number without more digits than it is worth.
fn rounded(number: f64) -> String {
    if number != 0.0 && number < 9.95 { format!("{number:.1}") } else { format!("{number:.0}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::live::model::Subject;
    use crate::live::snapshot::Function;

    #[test]
    fn numbers_of_narrow_terminals() {
        for (number, expected) in [
            (0.0, "0"),
            (9999.0, "9999"),
            (10_000.0, "10k"),
            (9_999_600.0, "10M"),
            (1_234_567.0, "1235k"),
            (1.8e19, "18000P"),
        ] {
            assert_eq!(short(number), expected);
        }
    }

    #[test]
    fn a_table_as_text() {
        let mut model = Model::new(Subject::Others, Duration::from_secs(1));
        let snapshot = |seconds: u64, calls| Snapshot {
            program: "prog".into(),
            pid: 7,
            ns: seconds * 1_000_000_000,
            rate: 1000,
            off: 1,
            modules: vec!["prog".into()],
            functions: vec![
                Function { name: "work".into(), calls, samples: 250, is_hooked: true, ..Function::default() },
                Function { id: 1, name: "idle".into(), is_hooked: true, is_off: true, ..Function::default() },
            ],
            ..Snapshot::default()
        };
        model.take(snapshot(1, 1000));
        model.take(snapshot(3, 4001));
        let expected = "\
noon prog (process 7): 4001 calls, 1500 calls/s, 2 functions, 1 off
         calls      calls/s     self s   function
          4001         1500      0.250   work  [prog]
             -            -          - x idle  [prog]
";
        assert_eq!(text(&model, "noon"), expected);
    }
}
