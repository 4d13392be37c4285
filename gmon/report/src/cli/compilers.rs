//! `gmon export --to llvm|gcc|autofdo|bolt`: profiles for compilers, from counts of basic blocks.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result, bail};
use gmon_compilers::source::{Facts, Source as Counts};
use gmon_compilers::{Module, gcc, llvm};
use gprofinject_image::debug::{Authors, SplitFiles};
use gprofinject_image::positions::Positions;
use gprofinject_image::signatures::DebugInfo;

use crate::cli::export_args::{Compiler, ExportArgs};
use crate::cli::load::{self, Counted};
use crate::cli::missing::{Lacking, Missing};
use crate::cli::report_args::{ReportArgs, ShownArgs};
use crate::cli::run::{self, Source};
use crate::cli::text::plain;
use crate::cli::files;

/// The share of executed instructions in the profile below which it says too little.
const ENOUGH: f64 = 0.5;

/// Writes the profile, and says on standard error what it covers.
///
/// # Errors
/// Basic blocks were not counted, or a file cannot be read or written.
pub(crate) fn run(args: &ExportArgs, compiler: Compiler) -> Result<()> {
    if args.no_lines {
        bail!("--no-lines: profiles for compilers are by source lines and addresses; leave it out");
    }
    let report = ReportArgs {
        files: args.files.clone(),
        debug_file: args.debug_file.clone(),
        function: Vec::new(),
        file: Vec::new(),
        module: args.module.clone(),
        shown: ShownArgs::default(),
    };
    let source = run::open(&report.files)?;
    let modules = load::counted(&report, &source, false)?;
    let mut bytes = Vec::new();
    match compiler {
        Compiler::Llvm | Compiler::Gcc => {
            let counts = by_source(&report, &source, &modules)?;
            say(&counts.facts, compiler);
            match compiler {
                Compiler::Gcc => gcc::write(&counts, &mut bytes)?,
                _ => llvm::write(&counts, &mut bytes)?,
            }
        }
        Compiler::AutoFdo | Compiler::Bolt => bail!("not yet"),
    }
    let is_text = compiler != Compiler::Gcc;
    match &args.output {
        Some(path) => files::replace(path, &bytes, &Authors::among(files::owners())),
        None if !is_text && io::stdout().is_terminal() => {
            bail!("--to {}: not text, and standard output is a terminal; -o FILE says where to write it", compiler.name())
        }
        None => Ok(io::stdout().lock().write_all(&bytes)?),
    }
}

/// Returns the counts of modules by place in the source.
fn by_source(args: &ReportArgs, source: &Source, modules: &[Counted]) -> Result<Counts> {
    let mut counts = Counts::default();
    let mut lacking = Lacking::default();
    let is_only = modules.len() == 1;
    let mut shown = 0;
    for module in modules {
        match add(args, source, module, &mut counts).map_err(anyhow::Error::downcast::<Missing>) {
            Ok(()) => shown += 1,
            Err(Ok(missing)) => lacking.add(missing, is_only),
            Err(Err(error)) => return Err(error),
        }
    }
    if shown == 0 {
        return lacking.fail().map(|()| counts);
    }
    lacking.complain();
    Ok(counts)
}

/// Adds a module's counts.
fn add(args: &ReportArgs, source: &Source, module: &Counted, counts: &mut Counts) -> Result<()> {
    let loaded = load::load_counts(args, source, module)?;
    let missing = || Missing::Lines { path: loaded.path.clone(), what: "" };
    let (debug_path, debug) = loaded.debug.as_ref().ok_or_else(missing)?;
    let mut info = DebugInfo::read(debug).with_context(|| loaded.path.display().to_string())?;
    info.find_split(&SplitFiles::of(&loaded.path, debug_path.as_deref()), None);
    if let Some(missing) = info.missing_units() {
        let first = missing.name.display().to_string();
        eprintln!(
            "gmon: {}: {} of its split units not found, such as {}; their functions are not in the profile",
            plain(&loaded.path.display().to_string()),
            missing.count,
            plain(&first)
        );
    }
    let positions = Positions::read(&info);
    if positions.is_empty() {
        return Err(missing().into());
    }
    counts.add(&Module::new(&loaded.profile, &loaded.code), &positions);
    Ok(())
}

/// Says what the profile covers, and where it would mislead.
fn say(facts: &Facts, compiler: Compiler) {
    let share = facts.placed as f64 / facts.executed.max(1) as f64;
    eprintln!(
        "gmon: {} of {} that ran, with {:.1} % of the executed instructions; {}",
        gmon::counted(facts.functions, "function", "functions"),
        facts.counted,
        share * 100.0,
        gmon::counted(facts.places, "place", "places")
    );
}
