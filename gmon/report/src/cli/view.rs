//! What all reports begin with: the counts, the selection, and how names are shown.

use anyhow::{Result, bail};
use gmon_blocks::Report;
use gprofinject_image::debug::{Lines, Location};
use serde_json::{Value, json};

use crate::cli::json::build_id;
use crate::cli::load::Loaded;
use crate::cli::report_args::ReportArgs;
use crate::cli::text::{Style, chosen_function, chosen_path, demangled, plain};

/// The counts and the user's selection.
pub(crate) struct View<'a> {
    pub(crate) args: &'a ReportArgs,
    pub(crate) report: Report<'a>,
    pub(crate) style: Style,
    loaded: &'a Loaded,
}

impl<'a> View<'a> {
    /// Returns the view of what was read.
    ///
    /// # Errors
    /// No function matches the patterns.
    pub(crate) fn new(args: &'a ReportArgs, loaded: &'a Loaded) -> Result<View<'a>> {
        let report = Report::new(&loaded.profile, &loaded.code, loaded.lines.as_ref());
        let view = View { args, report, style: Style::new(args.shown.color), loaded };
        if !args.file.is_empty() {
            loaded.need_lines(args)?;
        }
        Ok(view)
    }

    /// Checks that there is a function to show.
    ///
    /// # Errors
    /// The user has asked for functions, and `there` is false.
    pub(crate) fn need_function(&self, there: bool) -> Result<()> {
        if !there && !self.args.function.is_empty() {
            let names = self.args.function.join(" or ");
            bail!("{}: no function is called {names}", self.args.program.display());
        }
        Ok(())
    }

    /// Returns the line information.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn lines(&self) -> Result<&'a Lines> {
        self.loaded.need_lines(self.args)
    }

    /// Returns the name of the function, or of the one of which it is a part.
    pub(crate) fn name(&self, function: usize) -> String {
        self.shown(&self.report.functions[self.report.whole(function)].symbol.name)
    }

    /// Returns a symbol's name as it is shown.
    pub(crate) fn shown(&self, name: &str) -> String {
        if self.args.shown.no_demangle { plain(name) } else { demangled(name) }
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

    /// Returns the members with which each JSON report begins.
    pub(crate) fn json_head(&self) -> String {
        let files: Vec<_> = self.args.files.iter().map(|file| file.to_string_lossy()).collect();
        let id = build_id(self.loaded.profile.build_id);
        let program = json!(self.args.program.to_string_lossy());
        format!("\"program\":{program},\"build_id\":{id},\"profiles\":{}", json!(files))
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
