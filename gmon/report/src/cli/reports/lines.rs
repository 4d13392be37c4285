//! `gmon lines`: prints the source with counts in the margin.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use gmon_blocks::{Instance, LineCounts, Tally};
use gprofinject_image::debug::{Authors, FileIndex, Lines};
use serde_json::{Value, json};

use crate::cli::files;
use crate::cli::json::array;
use crate::cli::report_args::LinesArgs;
use crate::cli::sources::Sources;
use crate::cli::text::{chosen_function, margin, percent, plain};
use crate::cli::view::View;

/// The lines of one file that have code.
type FileLines = BTreeMap<u32, LineCounts>;

/// Prints the report.
///
/// # Errors
/// There is no line information, or `out` cannot be written to.
pub(crate) fn lines(view: &View, args: &LinesArgs, out: &mut impl Write) -> Result<()> {
    let lines = view.lines()?;
    let mut files: BTreeMap<FileIndex, FileLines> = BTreeMap::new();
    for (location, mut counts) in Tally::of(&view.report).lines {
        counts.instances.retain(|instance| chooses_instance(view, lines, instance));
        if !counts.instances.is_empty() && view.chooses_file(&lines.files()[location.file]) {
            files.entry(location.file).or_default().insert(location.line, counts);
        }
    }
    view.need_function(!files.is_empty())?;
    view.need_file(!files.is_empty())?;
    // A file in which nothing was counted is not shown.
    files.retain(|_, lines| lines.values().any(|line| line.count().is_some()));
    let mut files: Vec<_> = files.into_iter().collect();
    files.sort_by_key(|(file, _)| &lines.files()[*file]);
    if view.args.shown.json {
        return write_json(view, lines, &files, out);
    }
    let mut sources = Sources::new(&args.sources, &view.loaded.path, Authors::among(files::owners()))?;
    if !files.is_empty() {
        view.begin(out)?;
    }
    for (file, counts) in &files {
        let path = &lines.files()[*file];
        Listing { view, args, lines }.write(path, counts, sources.read(path).as_ref(), out)?;
    }
    out.flush()?;
    sources.complain();
    Ok(())
}

/// Whether the instance belongs to a function that the user has selected by its name, inlined or not.
pub(crate) fn chooses_instance(view: &View, lines: &Lines, instance: &Instance) -> bool {
    if view.chooses_function(instance.function) {
        return true;
    }
    let frames = if instance.is_inlined() { lines.frames(instance.address) } else { Vec::new() };
    let name = frames.first().and_then(|frame| frame.name.as_deref());
    name.is_some_and(|name| chosen_function(&view.args.function, name))
}

/// Prints one file.
struct Listing<'a, 'v> {
    view: &'a View<'v>,
    args: &'a LinesArgs,
    lines: &'a Lines,
}

impl Listing<'_, '_> {
    fn write(
        &self,
        path: &str,
        counts: &FileLines,
        source: Option<&BTreeMap<u32, String>>,
        out: &mut impl Write,
    ) -> Result<()> {
        let style = self.view.style;
        let missing = if source.is_none() { " (source not found)" } else { "" };
        writeln!(out, "{}", style.heading(&format!("{}{missing}", plain(path))))?;
        // The line table may name lines after the file's end, if the file has changed since.
        let empty = BTreeMap::new();
        let source = source.unwrap_or(&empty);
        let numbers: std::collections::BTreeSet<u32> = source.keys().chain(counts.keys()).copied().collect();
        for number in numbers {
            let text = source.get(&number).map_or("", String::as_str);
            self.row(number, counts.get(&number), text, out)?;
        }
        let counted = || counts.values().filter_map(LineCounts::count);
        let (run, all) = (counted().filter(|&count| count > 0).count(), counted().count());
        let not = counts.len() - all;
        let not = if not == 0 { String::new() } else { format!(", {not} not counted") };
        let summary = format!(
            "{} of {} executed{not}",
            percent(run as u64, all as u64),
            gmon::counted(all, "line", "lines")
        );
        writeln!(out, "{}\n", style.faint(summary))?;
        Ok(())
    }

    fn row(&self, number: u32, counts: Option<&LineCounts>, text: &str, out: &mut impl Write) -> Result<()> {
        let style = self.view.style;
        let (count, margin) = match counts {
            // A line without code is not the same as a line that was not counted.
            None => (Some(1), format!("{:>14} ", "")),
            Some(counts) => (counts.count(), self.margin(counts)),
        };
        let ie = match counts.filter(|counts| counts.count().is_some()) {
            _ if !self.args.instructions => String::new(),
            None => format!("{:>16} ", ""),
            Some(counts) => format!("{:>16} ", counts.ie()),
        };
        let text: String = text.chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect();
        let row = format!("{ie}{margin}{number:>6}  {text}");
        writeln!(out, "{}", style.count(count, row.trim_end().to_owned()))?;
        let apart = counts.filter(|counts| self.args.apart && counts.instances.len() > 1);
        for instance in apart.into_iter().flat_map(|counts| &counts.instances) {
            let ie = match instance.count().filter(|_| self.args.instructions) {
                Some(_) => format!("{:>16} ", instance.ie),
                None if self.args.instructions => format!("{:>16} ", ""),
                None => String::new(),
            };
            let count = self.instance_margin(instance);
            let name = self.describe(instance);
            writeln!(out, "{}", style.faint(format!("{ie}{count:>14} {:>6}  {name}", "|")))?;
        }
        Ok(())
    }

    /// Returns the count, with `*` if some of the line's basic blocks never ran.
    fn margin(&self, counts: &LineCounts) -> String {
        if self.args.all_counts {
            let all: Vec<_> = counts.instances.iter().map(|i| self.instance_margin(i)).collect();
            return format!("{:>14} ", all.join(" + "));
        }
        let star = if counts.is_partial() { '*' } else { ' ' };
        format!("{:>14}{star}", margin(counts.count()))
    }

    fn instance_margin(&self, instance: &Instance) -> String {
        match &instance.blocks {
            Some(blocks) if self.args.all_counts => {
                let mut counts: Vec<_> = blocks.iter().map(|&(_, count)| count).collect();
                counts.dedup();
                counts.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
            }
            _ => margin(instance.count()),
        }
    }

    /// Returns a text such as `f(int)`, or `f(int) inlined into g()`.
    fn describe(&self, instance: &Instance) -> String {
        let function = self.view.name(instance.function);
        let frames = self.lines.frames(instance.address);
        match frames.first().filter(|_| instance.is_inlined()) {
            Some(frame) => {
                let name = frame.name.as_deref().map_or_else(String::new, |name| self.view.shown(name));
                format!("{name} inlined into {function}")
            }
            None => function,
        }
    }
}

fn write_json(
    view: &View,
    lines: &Lines,
    files: &[(FileIndex, FileLines)],
    out: &mut impl Write,
) -> Result<()> {
    view.begin(out)?;
    array(out, "files", files, |(file, counts)| {
        let rows = counts.iter().map(|(line, counts)| {
            let instances = counts.instances.iter().map(|instance| {
                let mut json = view.json_function(instance.function);
                if instance.is_inlined() {
                    let frames = lines.frames(instance.address);
                    json["inlined"] = frames.first().map_or(Value::Null, |frame| json!(frame.name));
                }
                let blocks = instance.blocks.iter().flatten();
                let blocks = blocks.map(|(address, count)| json!({"address": address, "count": count}));
                json["blocks"] = blocks.collect();
                json["count"] = json!(instance.count());
                json["ie"] = json!(instance.ie);
                json
            });
            json!({
                "line": line,
                "count": counts.count(),
                "partial": counts.is_partial(),
                "ie": counts.ie(),
                "instances": instances.collect::<Vec<_>>(),
            })
        });
        json!({"file": lines.files()[*file], "lines": rows.collect::<Vec<_>>()})
    })?;
    write!(out, "}}")?;
    Ok(())
}
