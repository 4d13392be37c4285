//! `gmon lines` of Python functions: the time of each line, by samples.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use gmon_run::{Function, PYTHON, Recording};
use gprofinject_image::debug::Authors;
use gprofinject_image::names::similar::similar;
use serde_json::{Value, json};

use crate::cli::files;
use crate::cli::json::array;
use crate::cli::missing::Missing;
use crate::cli::report_args::LinesArgs;
use crate::cli::sources::Sources;
use crate::cli::text::{Style, chosen_path, matches, percent, plain};
use crate::cli::units::duration;
use crate::cli::view::{Frame, json_head};

/// How many lines are shown before and after one that has samples.
const AROUND: u32 = 4;

/// The samples of a line.
#[derive(Default)]
struct Line {
    own: u64,
    inclusive: u64,
    /// Those of each function, by its index.
    functions: BTreeMap<u32, Samples>,
}

#[derive(Clone, Copy, Default)]
struct Samples {
    own: u64,
    inclusive: u64,
    nested: u64,
}

/// The lines of a file that have samples, and those on which their functions begin.
#[derive(Default)]
struct Lines {
    lines: BTreeMap<u32, Line>,
    begins: BTreeSet<u32>,
}

/// What is known of the lines of Python functions in a run, as far as the user has selected it.
pub(crate) struct Python<'r> {
    recording: &'r Recording,
    args: &'r LinesArgs,
    files: Vec<(&'r str, Lines)>,
}

impl<'r> Python<'r> {
    /// Returns what a recording knows of lines; `None` if it knows none, or if the user has asked for something else.
    ///
    /// # Errors
    /// The user has selected functions or files, of which there are none.
    pub(crate) fn of(recording: &'r Recording, args: &'r LinesArgs) -> Result<Option<Python<'r>>, Missing> {
        let of_counts =
            args.apart || args.all_counts || args.instructions || args.common.debug_file.is_some();
        if recording.lines.is_empty() || of_counts || !chosen_path(&args.common.module, PYTHON) {
            return Ok(None);
        }
        let function = |index: u32| recording.functions.get(index as usize);
        let mut files: HashMap<&str, Lines> = HashMap::new();
        for of in &recording.lines {
            let Some(function) = function(of.function) else { continue };
            let is_chosen =
                chosen(&args.common.function, function) && chosen_path(&args.common.file, &function.file);
            if !is_chosen {
                continue;
            }
            let file = files.entry(&function.file).or_default();
            file.begins.insert(function.line);
            let line = file.lines.entry(of.line).or_default();
            let sum = line.functions.entry(of.function).or_default();
            sum.own = sum.own.saturating_add(of.own);
            sum.inclusive = sum.inclusive.saturating_add(of.inclusive);
            sum.nested = sum.nested.saturating_add(of.nested);
        }
        for line in files.values_mut().flat_map(|file| file.lines.values_mut()) {
            line.own = sum(line.functions.values().map(|of| of.own));
            line.inclusive = match line.functions.len() {
                1 => sum(line.functions.values().map(|of| of.inclusive)),
                _ => sum(line.functions.values().map(|of| of.inclusive - of.nested)),
            };
        }
        if files.is_empty() {
            return Err(missing(recording, args));
        }
        let mut files: Vec<_> = files.into_iter().collect();
        files.sort_by_key(|(path, lines)| {
            let most = lines.lines.values().map(|line| line.inclusive).max();
            (Reverse((most, sum(lines.lines.values().map(|line| line.own)))), *path)
        });
        Ok(Some(Python { recording, args, files }))
    }

    /// Prints the lines, each with the time of the functions themselves and with that of what they call.
    ///
    /// # Errors
    /// An option is wrong, or `out` cannot be written to.
    pub(crate) fn write(&self, results: &[String], frame: &Frame, out: &mut impl Write) -> Result<()> {
        let style = Style::new(self.args.common.shown.color);
        frame.begin(PYTHON, &json_head(PYTHON, &Value::Null, results), style, out)?;
        if self.args.common.shown.json {
            array(out, "files", &self.files, |(path, lines)| self.json(path, lines))?;
            write!(out, "}}")?;
            return Ok(());
        }
        let period = duration(self.recording.sample_period_ns);
        let said = format!(
            "Python: CPU time, a sample for each {}; self: in the interpreter itself, inclusive: also in what the line calls",
            period.trim_end()
        );
        writeln!(out, "{}", style.wrap(&said))?;
        writeln!(out, "{}", style.heading("self %      self  incl % inclusive"))?;
        let began = (self.recording.start_unix_ns > 0)
            .then(|| UNIX_EPOCH + Duration::from_nanos(self.recording.start_unix_ns));
        let mut sources = self.sources(began)?;
        for (path, lines) in &self.files {
            let source = sources.read(path);
            self.file(path, lines, source.as_ref(), style, out)?;
        }
        out.flush()?;
        sources.complain();
        Ok(())
    }

    fn sources(&self, began: Option<SystemTime>) -> Result<Sources> {
        Sources::of_python(&self.args.sources, began, Authors::among(files::owners()))
    }

    fn file(
        &self,
        path: &str,
        lines: &Lines,
        source: Option<&BTreeMap<u32, String>>,
        style: Style,
        out: &mut impl Write,
    ) -> Result<()> {
        let missing = if source.is_none() && !path.starts_with('<') { " (source not found)" } else { "" };
        writeln!(out, "{}", style.heading(&format!("{}{missing}", plain(path))))?;
        let empty = BTreeMap::new();
        let source = source.unwrap_or(&empty);
        let around = |&line: &u32| source.range(line.saturating_sub(AROUND)..=line.saturating_add(AROUND));
        let mut numbers: BTreeSet<u32> =
            lines.lines.keys().flat_map(around).map(|(&number, _)| number).collect();
        // The file may be shorter than it was.
        numbers.extend(lines.lines.keys());
        numbers.extend(lines.begins.iter().filter(|line| source.contains_key(line)));
        let mut before = None;
        for number in numbers {
            if before.is_some_and(|before: u32| before.saturating_add(1) < number) && !source.is_empty() {
                writeln!(out, "{}", style.faint(format!("{:>43}", "...")))?;
            }
            before = Some(number);
            let text = source.get(&number).map_or("", String::as_str);
            let text: String =
                text.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
            let line = lines.lines.get(&number);
            let of = |samples: fn(&Line) -> u64| self.margin(line.map_or(0, samples));
            let row = format!("{}  {}   {number:>6}  {text}", of(|line| line.own), of(|line| line.inclusive));
            writeln!(out, "{}", row.trim_end())?;
        }
        let own = sum(lines.lines.values().map(|line| line.own));
        let time = duration(self.time_of(own));
        let summary =
            format!("{} self, {} of the samples of the run", time.trim(), percent(own, self.total()));
        writeln!(out, "{}\n", style.faint(summary))?;
        Ok(())
    }

    fn json(&self, path: &str, lines: &Lines) -> Value {
        let rows = lines.lines.iter().map(|(number, line)| {
            let functions = line.functions.iter().map(|(&index, samples)| {
                let name = self.recording.functions.get(index as usize).map(|function| &function.name);
                json!({
                    "name": name,
                    "demangled": name,
                    "self_ns": self.time_of(samples.own),
                    "inclusive_ns": self.time_of(samples.inclusive),
                })
            });
            json!({
                "line": number,
                "count": null,
                "partial": false,
                "ie": 0,
                "instances": [],
                "self_ns": self.time_of(line.own),
                "inclusive_ns": self.time_of(line.inclusive),
                "functions": functions.collect::<Vec<_>>(),
            })
        });
        json!({"file": path, "lines": rows.collect::<Vec<_>>()})
    }

    fn time_of(&self, samples: u64) -> u64 {
        samples.saturating_mul(self.recording.sample_period_ns)
    }

    /// Returns the number of all samples of the run.
    fn total(&self) -> u64 {
        let elsewhere = self.recording.programs.iter().map(|program| program.elsewhere);
        sum(self.recording.hits.iter().map(|hits| hits.samples).chain(elsewhere))
    }

    /// Returns a time and its share of that of the run, as wide as the headings. Nothing is blank.
    fn margin(&self, samples: u64) -> String {
        match samples {
            0 => format!("{:>6}  {:>8}", "", ""),
            _ => format!(
                "{:>6}  {:>8}",
                percent(samples, self.total()).trim_end_matches('%'),
                duration(self.time_of(samples))
            ),
        }
    }
}

/// Whether a function has one of the names that the user has selected: `f`, `C.f` or `C.f (file.py:12)`.
fn chosen(patterns: &[String], function: &Function) -> bool {
    let full = plain(&function.name);
    let qualified = full.rsplit_once(" (").map_or(&*full, |(name, _)| name);
    let last = qualified.rsplit('.').next().unwrap_or(qualified);
    let any = |pattern: &String| [&*full, qualified, last].iter().any(|name| matches(pattern, name));
    patterns.is_empty() || patterns.iter().any(any)
}

/// Returns why no line is shown.
fn missing(recording: &Recording, args: &LinesArgs) -> Missing {
    let path = PathBuf::from(PYTHON);
    let wanted = args.common.function.clone();
    let functions = recording.lines.iter().filter_map(|line| recording.functions.get(line.function as usize));
    if functions.clone().any(|function| chosen(&wanted, function)) {
        return Missing::File { path, wanted: args.common.file.join(" or ") };
    }
    let names: BTreeSet<&str> =
        functions.map(|function| function.name.split(" (").next().unwrap_or_default()).collect();
    Missing::Function { path, similar: similar(&wanted, names.into_iter().map(plain)), wanted }
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_by_name() {
        let function = Function { name: "C.f (decoder.py:12)".to_owned(), ..Function::default() };
        let of = |pattern: &str| chosen(&[pattern.to_owned()], &function);
        assert!(of("f") && of("C.f") && of("C.*") && of("C.f (decoder.py:12)") && chosen(&[], &function));
        assert!(!of("C") && !of("decoder.py") && !of("g"));
        let other = Function { name: "f".to_owned(), ..Function::default() };
        assert!(chosen(&["f".to_owned()], &other));
    }
}
