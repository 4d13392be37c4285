//! Reads the files from which the reports of measured times are made.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gmon::Program;
use gmon_run::{ClockSource, Function, REST_NAME, Recording, Thread};
use serde_json::{Value, json};

use crate::cli::measured_args::MeasuredArgs;
use crate::cli::run::DEFAULT_FILE;
use crate::cli::similar::similar;
use crate::cli::text::{Style, chosen_in_module, demangled, plain};
use crate::cli::units::duration;
use crate::cli::{files, recordings};

/// The name that is shown for a caller that is not hooked.
pub(crate) const NOT_HOOKED: &str = "[not hooked]";

/// The measured times of one run or of several, and how they are shown.
pub(crate) struct Measurement<'a> {
    pub(crate) args: &'a MeasuredArgs,
    pub(crate) measured: Recording,
    pub(crate) style: Style,
    files: Vec<PathBuf>,
}

impl<'a> Measurement<'a> {
    /// Reads everything.
    ///
    /// # Errors
    /// A file cannot be read, is of another build of the program, or has no measured times.
    pub(crate) fn load(args: &'a MeasuredArgs) -> Result<Measurement<'a>> {
        let mut program: Option<(&Path, Program)> = None;
        let mut measured: Option<Recording> = None;
        let mut files = Vec::new();
        let mut add = |path: &Path, bytes: &[u8], program: Option<&(&Path, Program)>| {
            let mut read = recordings::parse(path, bytes)?;
            if let Some((name, program)) = program {
                recordings::select(&mut read, path, program.build_id, name)?;
            }
            recordings::select_named(&mut read, &args.programs)?;
            if !read.is_measured() {
                bail!(
                    "{}: its times were not measured; `gprofinject --times PROG` measures them, and `gmon flat` shows what there is",
                    path.display()
                );
            }
            files.push(path.to_owned());
            match &mut measured {
                None => measured = Some(read),
                Some(sum) => sum.merge(read).with_context(|| path.display().to_string())?,
            }
            anyhow::Ok(())
        };
        let mut is_named = !args.files.is_empty();
        if let Some(path) = &args.program {
            // The program may be left out, so the first argument is one or the other.
            let bytes = files::read_recording_or_elf(path)?;
            if files::is_elf(&bytes) {
                program = Some((path, files::parse_program(path, &bytes)?));
            } else {
                add(path, &bytes, None)?;
                is_named = true;
            }
        }
        for path in &args.files {
            let bytes = files::read_recording(path)?;
            add(path, &bytes, program.as_ref())?;
        }
        if !is_named {
            let path = Path::new(DEFAULT_FILE);
            let bytes = files::read_recording(path).map_err(|error| {
                anyhow::anyhow!("{error:#}; `gprofinject --times PROG` writes this file with measured times")
            })?;
            add(path, &bytes, program.as_ref())?;
        }
        let measured = measured.unwrap_or_default();
        Ok(Measurement { args, measured, style: Style::new(args.shown.color), files })
    }

    /// Returns what was found out in another way from one file.
    pub(crate) fn of(args: &'a MeasuredArgs, measured: Recording, file: &Path) -> Measurement<'a> {
        Measurement { args, measured, style: Style::new(args.shown.color), files: vec![file.to_owned()] }
    }

    /// Returns the names of the files, for messages.
    pub(crate) fn file_names(&self) -> String {
        let names: Vec<_> = self.files.iter().map(|file| file.display().to_string()).collect();
        names.join(", ")
    }

    /// Returns a symbol's name as it is shown.
    pub(crate) fn shown(&self, name: &str) -> String {
        if self.args.shown.no_demangle { plain(name) } else { demangled(name) }
    }

    /// Returns the name of a function as it is shown: its address if it has no name.
    pub(crate) fn name(&self, function: u32) -> String {
        match self.measured.functions.get(function as usize) {
            None => REST_NAME.to_owned(),
            Some(function) if function.name.is_empty() => plain(&self.measured.place_name(function)),
            Some(function) => self.shown(&function.name),
        }
    }

    /// Returns the file name of a function's module.
    pub(crate) fn module(&self, function: u32) -> String {
        let function = self.measured.functions.get(function as usize);
        let module = function.and_then(|function| self.measured.modules.get(function.module as usize));
        module.map_or_else(String::new, |module| file_name(&module.name))
    }

    /// Returns the path of a function's module.
    fn path(&self, function: &Function) -> &str {
        self.measured.modules.get(function.module as usize).map_or("", |module| &module.name)
    }

    /// Returns for each function whether one of the patterns matches its name. If there is no pattern, each does.
    ///
    /// # Errors
    /// The patterns match no name. The message names similar ones.
    pub(crate) fn chosen(&self, patterns: &[String]) -> Result<Vec<bool>> {
        let functions = &self.measured.functions;
        let chosen: Vec<bool> = functions
            .iter()
            .map(|function| chosen_in_module(patterns, self.path(function), &function.name))
            .collect();
        if !patterns.is_empty() && !chosen.contains(&true) {
            let files = self.file_names();
            let wanted = patterns.join(" or ");
            let near = similar(patterns, functions.iter().map(|function| self.shown(&function.name)));
            if near.is_empty() {
                bail!("{files}: no function is called {wanted}");
            }
            bail!("{files}: no function is called {wanted}; similar names: {}", near.join(", "));
        }
        Ok(chosen)
    }

    /// Prints what was measured and with which error.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub(crate) fn head(&self, out: &mut impl Write) -> io::Result<()> {
        let measured = &self.measured;
        let clock = &measured.clock;
        let source = match clock.source {
            ClockSource::Tsc => "time-stamp counter",
            ClockSource::ClockGettime => "clock_gettime",
        };
        let threads = gmon::counted(measured.threads.len(), "thread", "threads");
        let time = duration(measured.duration_ns);
        writeln!(out, "{}: {}, {threads}", plain(measured.program()), time.trim_end())?;
        writeln!(
            out,
            "clock: {source}, {}; taken out of each call: {:.1} ns inside, {:.1} ns outside; error up to {:.1} ns a call, more right after a long chain of operations",
            frequency(clock.ticks_per_second),
            clock.inside_ns,
            clock.outside_ns,
            clock.error_ns,
        )?;
        if measured.sample_period_ns > 0 {
            let period = duration(measured.sample_period_ns);
            writeln!(out, "cpu: a sample for each {} of CPU time", period.trim_end())?;
        }
        Ok(())
    }

    /// Returns the members with which each JSON report begins.
    pub(crate) fn json_head(&self) -> String {
        let measured = &self.measured;
        let clock = &measured.clock;
        let files: Vec<_> = self.files.iter().map(|file| file.to_string_lossy()).collect();
        let build_id = measured.first_module().map(|module| hexadecimal(&module.build_id));
        let build_id = build_id.filter(|id| !id.is_empty());
        let source = match clock.source {
            ClockSource::Tsc => "tsc",
            ClockSource::ClockGettime => "clock_gettime",
        };
        let clock = json!({
            "source": source,
            "ticks_per_second": clock.ticks_per_second,
            "inside_ns": clock.inside_ns,
            "outside_ns": clock.outside_ns,
            "error_ns": clock.error_ns,
        });
        format!(
            "\"program\":{},\"build_id\":{},\"profiles\":{},\n\"start_unix_ns\":{},\"duration_ns\":{},\
             \"sample_period_ns\":{},\n\"clock\":{clock}",
            json!(measured.program()),
            json!(build_id),
            json!(files),
            measured.start_unix_ns,
            measured.duration_ns,
            measured.sample_period_ns,
        )
    }

    /// Returns a function in JSON.
    pub(crate) fn json_function(&self, function: u32) -> Value {
        let Some(known) = self.measured.functions.get(function as usize) else {
            return json!({"name": REST_NAME, "demangled": REST_NAME, "module": null});
        };
        let module = self.measured.modules.get(known.module as usize).map(|module| &module.name);
        json!({"name": known.name, "demangled": demangled(&known.name), "module": module})
    }
}

/// Returns the last component of a path.
pub(crate) fn file_name(path: &str) -> String {
    plain(path.rsplit('/').next().unwrap_or(path))
}

/// Returns a thread's name and number.
pub(crate) fn thread_name(thread: &Thread) -> String {
    plain(&format!("{} {}", thread.name, thread.tid))
}

fn frequency(hertz: f64) -> String {
    match hertz {
        1e9.. => format!("{:.3} GHz", hertz / 1e9),
        1e6.. => format!("{:.3} MHz", hertz / 1e6),
        _ => format!("{hertz:.0} Hz"),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies() {
        let texts = [2.5944e9, 1e6, 1000.0].map(frequency);
        assert_eq!(texts, ["2.594 GHz", "1.000 MHz", "1000 Hz"]);
    }
}
