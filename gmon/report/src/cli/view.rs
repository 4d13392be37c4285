//! What all reports of counts begin with: the counts of a module, the selection, and how names are shown.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::io::{self, Write};

use anyhow::Result;
use gmon_blocks::Report;
use gprofinject_image::debug::{Lines, Location};
use gprofinject_image::names::demangle::demangle;
use gprofinject_image::names::similar::similar;
use gprofinject_image::names::{short, unambiguous};
use serde_json::{Value, json};

use crate::cli::json::build_id;
use crate::cli::load::Loaded;
use crate::cli::missing::Missing;
use crate::cli::report_args::ReportArgs;
use crate::cli::text::{Style, chosen_function, chosen_path, demangled, plain};

/// What the reports of several modules have in common: headings, or one JSON object.
pub(crate) struct Frame {
    /// The name of the JSON object's schema.
    schema: &'static str,
    json: bool,
    /// Whether there is more than one module.
    several: bool,
    /// The number of modules of which something was printed.
    begun: Cell<usize>,
}

impl Frame {
    pub(crate) fn new(schema: &'static str, json: bool, several: bool) -> Frame {
        Frame { schema, json, several, begun: Cell::new(0) }
    }

    /// Prints what comes before a module of this path, of which the members in JSON begin so.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub(crate) fn begin(&self, path: &str, head: &str, style: Style, out: &mut impl Write) -> io::Result<()> {
        let before = self.begun.replace(self.begun.get() + 1);
        match (self.json, before) {
            (true, 0) => {
                let schema = self.schema;
                write!(out, "{{\"schema\":\"{schema}\",\"version\":1,\n\"modules\":[\n{{{head}")
            }
            (true, _) => write!(out, ",\n{{{head}"),
            (false, _) if self.several => {
                let gap = if before > 0 { "\n" } else { "" };
                writeln!(out, "{gap}{}", style.heading(&format!("== {} ==", plain(path))))
            }
            (false, _) => Ok(()),
        }
    }

    /// Prints what comes after all modules.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub(crate) fn end(&self, out: &mut impl Write) -> io::Result<()> {
        match self.json && self.begun.get() > 0 {
            true => writeln!(out, "]}}"),
            false => Ok(()),
        }
    }
}

/// The counts of a module and the user's selection.
pub(crate) struct View<'a> {
    pub(crate) args: &'a ReportArgs,
    pub(crate) report: Report<'a>,
    pub(crate) style: Style,
    pub(crate) loaded: &'a Loaded,
    frame: &'a Frame,
    /// How the names of symbols are shown.
    names: OnceCell<HashMap<&'a str, String>>,
}

impl<'a> View<'a> {
    /// Returns the view of what was read.
    ///
    /// # Errors
    /// The user has selected source files, and there is no line information.
    pub(crate) fn new(args: &'a ReportArgs, loaded: &'a Loaded, frame: &'a Frame) -> Result<View<'a>> {
        if !args.file.is_empty() {
            loaded.need_lines()?;
        }
        let report = Report::new(&loaded.profile, &loaded.code, loaded.lines.as_ref());
        let style = Style::new(args.shown.color);
        Ok(View { args, report, style, loaded, frame, names: OnceCell::new() })
    }

    /// Prints what comes before the report of this module. Each report calls it once, when it is sure that it is going to print
    /// something.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub(crate) fn begin(&self, out: &mut impl Write) -> io::Result<()> {
        let path = self.loaded.path.to_string_lossy();
        self.frame.begin(&path, &self.json_head(), self.style, out)
    }

    /// Checks that there is a function to show.
    ///
    /// # Errors
    /// The user has asked for functions, and `there` is false.
    pub(crate) fn need_function(&self, there: bool) -> Result<()> {
        if there || self.args.function.is_empty() {
            return Ok(());
        }
        let all = self.report.functions.iter().filter(|function| function.part_of.is_none());
        let near = similar(&self.args.function, all.map(|function| self.shown(&function.symbol.name)));
        let wanted = self.args.function.clone();
        Err(Missing::Function { path: self.loaded.path.clone(), wanted, similar: near }.into())
    }

    /// Checks that there is a source file to show.
    ///
    /// # Errors
    /// The user has asked for source files, and `there` is false.
    pub(crate) fn need_file(&self, there: bool) -> Result<()> {
        if there || self.args.file.is_empty() {
            return Ok(());
        }
        let wanted = self.args.file.join(" or ");
        Err(Missing::File { path: self.loaded.path.clone(), wanted }.into())
    }

    /// Returns the line information.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn lines(&self) -> Result<&'a Lines> {
        self.loaded.need_lines()
    }

    /// Returns the name of the function, or of the one of which it is a part.
    pub(crate) fn name(&self, function: usize) -> String {
        self.shown(&self.report.functions[self.report.whole(function)].symbol.name)
    }

    /// Returns a symbol's name as it is shown.
    pub(crate) fn shown(&self, name: &str) -> String {
        match (self.args.shown.no_demangle, self.args.shown.full_names) {
            (true, _) => plain(name),
            (false, true) => demangled(name),
            (false, false) => match self.names().get(name) {
                Some(shown) => shown.clone(),
                None => plain(&short(&demangle(name))),
            },
        }
    }

    /// Returns the short names of all symbols, by which no two functions are taken for the same.
    fn names(&self) -> &HashMap<&'a str, String> {
        self.names.get_or_init(|| {
            let symbols: Vec<&'a str> =
                self.loaded.code.functions().iter().map(|function| function.name.as_str()).collect();
            let names: Vec<Cow<str>> = symbols.iter().map(|name| demangle(name)).collect();
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            let shown = unambiguous(&names);
            symbols.into_iter().zip(shown).map(|(symbol, shown)| (symbol, plain(&shown))).collect()
        })
    }

    /// Whether the user has selected the function by its name.
    pub(crate) fn chooses_function(&self, function: usize) -> bool {
        let whole = &self.report.functions[self.report.whole(function)].symbol;
        chosen_function(&self.args.function, &whole.name)
    }

    /// Whether the user has selected the function by its name and by its file.
    pub(crate) fn chooses(&self, function: usize) -> bool {
        let start = self.report.functions[self.report.whole(function)].symbol.start;
        let in_file = || self.location(start).is_some_and(|location| self.chooses_file(self.path(location)));
        self.chooses_function(function) && (self.args.file.is_empty() || in_file())
    }

    /// Whether the user has selected the file.
    pub(crate) fn chooses_file(&self, path: &str) -> bool {
        chosen_path(&self.args.file, path)
    }

    /// Returns the line of an address.
    pub(crate) fn location(&self, address: u64) -> Option<Location> {
        self.report.lines?.location(address)
    }

    /// Returns the path of a line's file.
    pub(crate) fn path(&self, location: Location) -> &'a str {
        self.loaded.lines.as_ref().map_or("", |lines| &lines.files()[location.file])
    }

    /// Returns a text such as `file.c:12`, with the last component of the path only, or an empty one if no
    /// line is known.
    pub(crate) fn place(&self, address: u64) -> String {
        let place = self.location(address).map(|location| {
            let path = self.path(location);
            format!("{}:{}", plain(path.rsplit('/').next().unwrap_or(path)), location.line)
        });
        place.unwrap_or_default()
    }

    /// Returns the members with which each module begins in JSON.
    fn json_head(&self) -> String {
        let id = build_id(self.loaded.code.build_id);
        json_head(&self.loaded.path.to_string_lossy(), &id, &self.loaded.results)
    }

    /// Returns a function in JSON.
    pub(crate) fn json_function(&self, function: usize) -> Value {
        let symbol = &self.report.functions[self.report.whole(function)].symbol;
        json!({"name": symbol.name, "demangled": demangled(&symbol.name)})
    }

    /// Returns a line in JSON, or two nulls if none is known.
    pub(crate) fn json_place(&self, address: u64) -> (Value, Value) {
        match self.location(address) {
            Some(location) => (json!(self.path(location)), json!(location.line)),
            None => (Value::Null, Value::Null),
        }
    }
}

/// Returns the members with which a module of this path and build-id begins in JSON, by the names of the results.
pub(crate) fn json_head(path: &str, build_id: &Value, results: &[String]) -> String {
    format!("\"program\":{},\"build_id\":{build_id},\"profiles\":{}", json!(path), json!(results))
}
