//! Traces that gprofinject has recorded, as `gmon trace` prints them.
// A test that cannot run gmon has failed.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::process::Command;

use crate::place::{self, Place};
use crate::run::Outcome;
use crate::tool;

/// A line of a trace without times: a call that begins, one that ends, or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub tid: u32,
    /// The number of calls around it.
    pub depth: usize,
    pub text: String,
}

/// Runs a program with `--trace trace` and these options, and asserts its status.
pub fn traced(place: &Place, options: &[&str], program: &[&str], status: i32) -> Outcome {
    let outcome = place.run(&[&["--trace", "trace"], options, program].concat());
    assert_eq!(outcome.code(), status, "{options:?}: {}", outcome.stderr_text());
    outcome
}

/// Returns the file `stats` of a run with `--stats=stats`.
pub fn stats(place: &Place) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(place.path("stats")).unwrap()).unwrap()
}

/// The rows of a table in JSON, by module and address.
pub fn rows(text: &str) -> BTreeMap<(String, u64), serde_json::Value> {
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    let rows = value.as_object().unwrap().values().find_map(|value| {
        let rows = value.as_array()?;
        rows.first()?.get("self_ns").is_some().then(|| rows.clone())
    });
    let key = |row: &serde_json::Value| {
        (row["module"].as_str().unwrap_or_default().to_owned(), row["address"].as_u64().unwrap_or_default())
    };
    rows.unwrap().into_iter().map(|row| (key(&row), row)).collect()
}

/// Returns what `gmon trace` prints of a file with these options. It must succeed, and say nothing else.
pub fn shown(place: &Place, file: &str, options: &[&str]) -> String {
    let mut command = Command::new(tool::gmon().unwrap());
    command.arg("trace").arg(place.path(file)).args(options);
    let outcome = place::finish(command);
    assert_eq!((outcome.code(), outcome.stderr_text()), (0, String::new()), "{options:?}");
    outcome.stdout_text()
}

/// Returns the lines of a trace that was shown with `--fields tid`. What the scheduler did is left out.
pub fn lines(text: &str) -> Vec<Line> {
    text.lines().filter_map(line).collect()
}

/// Returns `None` for a line that is not about a call.
fn line(line: &str) -> Option<Line> {
    let (tid, call) = line.trim_start().strip_prefix('[')?.split_once("] ")?;
    let text = call.trim_start();
    if ["/* runs on ", "/* is ", "/* waits "].iter().any(|start| text.starts_with(start)) {
        return None;
    }
    // Deeper calls are not moved to the right: `(41) f();`.
    let deep = text.strip_prefix('(').and_then(|text| text.split_once(") "));
    let (depth, text) = match deep.and_then(|(depth, text)| Some((depth.parse().ok()?, text))) {
        Some(deep) => deep,
        None => ((call.len() - text.len()) / 2, text),
    };
    Some(Line { tid: tid.trim().parse().ok()?, depth, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_other_lines() {
        let text = "      tid  calls\n [  30528]  main() {\n   [30531]    f(n=1) = (2) x;\n   [7]  (41) g() {\n\
                    \x20  [7]  /* waits 3 us */\n   [7]  } /* main */\n";
        let line = |tid, depth, text: &str| Line { tid, depth, text: text.to_owned() };
        let expected = [
            line(30528, 0, "main() {"),
            line(30531, 1, "f(n=1) = (2) x;"),
            line(7, 41, "g() {"),
            line(7, 0, "} /* main */"),
        ];
        assert_eq!(lines(text), expected);
    }
}
