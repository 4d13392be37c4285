//! `--list`: prints what would be hooked, and how; with `--count`, also what would be counted. The program comes first, and
//! then the libraries that the dynamic linker would load with it.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gmon::counted;
use gprofinject_image::Function;
use gprofinject_image::names::demangle;
use gprofinject_plan::Verdict;

use crate::os::loader::{self, Needed};
use crate::os::say;
use crate::program::library;
use crate::program::planned::Planned;
use crate::session::settings::Settings;
use crate::store::purpose::Purpose;

/// A module of the list.
enum Module<'p> {
    /// Its functions are hooked, or refused one by one.
    Planned(&'p Path, &'p Planned<'p, 'p>),
    /// None of its functions is hooked, for this reason.
    Refused(PathBuf, String),
    /// The user does not want it hooked.
    LeftOut(PathBuf),
    /// No file of this name is found.
    Missing(String),
}

/// Prints a line for each function: address, size, name, and the tactic or the reason for refusal. With
/// `verbose`, also prints the demangled name. If libraries are hooked, there is a section for each module.
///
/// # Errors
/// Standard output cannot be written to.
pub(crate) fn print(program: &Path, planned: &Planned, settings: &Settings, verbose: bool) -> Result<()> {
    let out = BufWriter::new(io::stdout().lock());
    let mut list = List { out, verbose, libs: settings.libs.typed(), rest: Vec::new() };
    let mut print = || {
        if !planned.wants_libraries() {
            list.functions(planned)?;
            return list.out.flush();
        }
        list.module(&Module::Planned(program, planned))?;
        libraries(program, planned, settings, |module| list.module(&module))?;
        list.rest()
    };
    match print() {
        // The reader has closed the pipe on purpose.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the list to standard output"),
    }
}

/// Plans the libraries of a program's start, one after the other, and visits them.
fn libraries(
    program: &Path,
    planned: &Planned,
    settings: &Settings,
    mut visit: impl FnMut(Module) -> io::Result<()>,
) -> io::Result<()> {
    let planner = settings.planner();
    let interpreter = planned.subject.kind.interpreter().unwrap_or_default();
    let needed = loader::needed(program, interpreter).unwrap_or_else(|why| {
        settings.voice.warn(format_args!("the libraries of {} are not listed: {why}", program.display()));
        Vec::new()
    });
    for library in needed {
        let path = match library {
            Needed::File(path) => path,
            Needed::Missing(name) => {
                visit(Module::Missing(name))?;
                continue;
            }
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_wanted = settings.libs.wants(&name, || library::soname(&path));
        let purpose = Purpose::of(is_wanted, planned.subject.kind.is_musl());
        if !purpose.is_wanted() {
            visit(Module::LeftOut(path))?;
            continue;
        }
        let subject = planner.library_subject(&path);
        match subject.kind.unhookable() {
            Some(why) => visit(Module::Refused(path, why.to_owned()))?,
            None => visit(Module::Planned(&path, &planner.library(subject, &path, purpose)))?,
        }
    }
    for pattern in settings.libs.unused() {
        let program = program.display();
        settings.voice.warn(format_args!(
            "--libs '{pattern}' matches no library that {program} needs; ldd shows their names"
        ));
    }
    for pattern in settings.filters.unused() {
        let program = program.display();
        settings.voice.warn(format_args!("{pattern} matches no function of {program} or its libraries"));
    }
    Ok(())
}

/// Writes the list.
struct List<'l, W> {
    out: W,
    verbose: bool,
    /// The value of `--libs`.
    libs: &'l str,
    /// The lines about modules without functions, which come last.
    rest: Vec<String>,
}

impl<W: Write> List<'_, W> {
    fn module(&mut self, module: &Module) -> io::Result<()> {
        let shown = |path: &Path| say::visible(&path.to_string_lossy()).into_owned();
        match module {
            Module::Planned(path, planned) => {
                let found = counted(planned.found(), "function", "functions");
                write!(self.out, "{}: hooked {} of {found}", shown(path), planned.hooked())?;
                match planned.plan.as_ref().and_then(|plan| plan.downgrade.as_ref()) {
                    Some(why) => writeln!(self.out, " ({why})")?,
                    None => writeln!(self.out)?,
                }
                self.functions(planned)?;
                writeln!(self.out)?;
            }
            Module::Refused(path, why) => self.rest.push(format!("{}: refused: {why}", shown(path))),
            Module::LeftOut(path) => {
                self.rest.push(format!("{}: left out by --libs {}", shown(path), self.libs));
            }
            Module::Missing(name) => self.rest.push(format!("{}: not found", say::visible(name))),
        }
        Ok(())
    }

    fn rest(&mut self) -> io::Result<()> {
        for line in &self.rest {
            writeln!(self.out, "{line}")?;
        }
        self.out.flush()
    }

    fn functions(&mut self, planned: &Planned) -> io::Result<()> {
        let out = &mut self.out;
        let functions: Vec<_> = planned.functions().collect();
        let plan = planned.plan.as_ref().filter(|_| planned.counts);
        let widest =
            |width: &dyn Fn(&Function) -> usize| functions.iter().map(|(f, _)| width(f)).max().unwrap_or(0);
        let digits = widest(&|f| format!("{:x}", f.address).len());
        let size = widest(&|f| f.size.to_string().len());
        // A few names are very long.
        let name = widest(&|f| f.name.chars().count()).min(40);
        for (function, verdict) in functions {
            let what = match verdict {
                Verdict::Hooked(tactic) => tactic.name().to_owned(),
                Verdict::Refused(reason) => format!("refused: {} ({reason})", reason.name()),
            };
            write!(
                out,
                "0x{:0digits$x}  {:>size$}  {:<name$}  {what}",
                function.address,
                function.size,
                say::visible(function.name)
            )?;
            if let Some(plan) = plan {
                match plan.counting(function.address) {
                    Ok((blocks, counters)) => {
                        let blocks = counted(blocks, "block", "blocks");
                        let counters = counted(counters, "counter", "counters");
                        write!(out, "  {blocks}, {counters}")?
                    }
                    Err(why) => write!(out, "  not counted: {} ({why})", why.name())?,
                }
            }
            match demangle::demangle(function.name) {
                plain if self.verbose && plain != function.name => {
                    writeln!(out, "  {}", say::visible(&plain))?
                }
                _ => writeln!(out)?,
            }
        }
        Ok(())
    }
}
