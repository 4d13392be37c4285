//! `gmon export --to llvm|gcc|autofdo|bolt|go`: profiles for compilers, from counts of basic blocks, and Go's from calls.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use gmon_compilers::branches::{self, Branches};
use gmon_compilers::source::{Facts, Source as Counts};
use gmon_compilers::{Module, autofdo, bolt, gcc, go, llvm};
use gprofinject_image::Image;
use gprofinject_image::debug::{Authors, SplitFiles};
use gprofinject_image::positions::Positions;
use gprofinject_image::signatures::DebugInfo;

use crate::cli::export_args::{Compiler, ExportArgs};
use crate::cli::files;
use crate::cli::load::{self, Counted};
use crate::cli::missing::{Lacking, Missing};
use crate::cli::report_args::{ReportArgs, ShownArgs};
use crate::cli::run::{self, Source};
use crate::cli::text::plain;

/// The share of executed instructions with a place, and of CPU time in counted functions, below which a profile says too little.
const ENOUGH: f64 = 0.5;

/// The number of samples below which a profile for Go's compiler has too little of what is hot.
const GO_SAMPLES_MIN: u64 = 500;

/// The least number of samples of CPU time whose shares say something.
const SAMPLES_MIN: u64 = 20;

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
    let modules = load::counted(&report, &source, compiler == Compiler::Go)?;
    let has_little = compiler != Compiler::Go && say_samples(&source, compiler);
    let mut bytes = Vec::new();
    match compiler {
        Compiler::Llvm | Compiler::Gcc => {
            let counts = by_source(&report, &source, &modules)?;
            say(&counts.facts, compiler, has_little);
            match compiler {
                Compiler::Gcc => gcc::write(&counts, &mut bytes)?,
                _ => llvm::write(&counts, &mut bytes)?,
            }
        }
        Compiler::AutoFdo | Compiler::Bolt => {
            let branches = by_address(&report, &source, &modules, compiler)?;
            match compiler {
                Compiler::Bolt => bolt::write(&branches, &mut bytes)?,
                _ => autofdo::write(&branches, &mut bytes)?,
            }
        }
        Compiler::Go => {
            let mut packed = GzEncoder::new(&mut bytes, Compression::default());
            packed.write_all(&go_calls(&report, &source, &modules)?.encode())?;
            packed.finish()?;
        }
    }
    let is_text = !matches!(compiler, Compiler::Gcc | Compiler::Go);
    let is_packed =
        args.output.as_ref().is_some_and(|path| path.extension().is_some_and(|ending| ending == "gz"));
    if is_packed && is_text {
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        packed.write_all(&bytes)?;
        bytes = packed.finish()?;
    }
    match &args.output {
        Some(path) => files::replace(path, &bytes, &Authors::among(files::owners())),
        None if !is_text && io::stdout().is_terminal() => {
            bail!(
                "--to {}: not text, and standard output is a terminal; -o FILE says where to write it",
                compiler.name()
            )
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

/// Returns the one module that is wanted: the only one selected, or the program that was started.
fn only<'m>(args: &ReportArgs, modules: &'m [Counted]) -> Result<&'m Counted> {
    match modules {
        [first, _, ..] if !args.module.is_empty() => {
            bail!(
                "--module: {} modules are called so, such as {}; this format has one",
                modules.len(),
                plain(&first.path().display().to_string())
            )
        }
        [first, ..] => Ok(first),
        [] => bail!("no module with counts of basic blocks"),
    }
}

/// Returns the calls of the one module that is wanted, a Go program.
fn go_calls(args: &ReportArgs, source: &Source, modules: &[Counted]) -> Result<go::Calls> {
    let loaded = load::load_counts(args, source, only(args, modules)?)?;
    let path = plain(&loaded.path.display().to_string());
    let image = Image::read_library(&loaded.bytes, None).with_context(|| path.clone())?;
    if !image.facts.go {
        bail!("--to go: {path} is no Go program; -m selects another module of the run");
    }
    let debug = loaded.debug.as_ref().map_or(&*loaded.bytes, |(_, bytes)| bytes);
    let positions = Positions::read(&DebugInfo::read(debug).with_context(|| path.clone())?);
    if positions.is_empty() {
        bail!("{path}: no line information; build it without -ldflags=-w");
    }
    let weights = match source {
        Source::Recording { recording, .. } => go::Weights::of(recording, &loaded.indexes),
        Source::Profile { .. } => None,
    };
    let Some(weights) = weights else {
        bail!(
            "--to go: no sampled stacks in this run; `gprofinject {path}` takes them, without --times and --rate 0"
        );
    };
    let calls = go::Calls::of(&Module::new(&loaded.profile, &loaded.code), &positions, &weights);
    let go::Facts { sites, samples, calls: all, placed } = calls.facts;
    if sites == 0 {
        bail!(
            "--to go: no calls of {path} were both counted and sampled; profile it with hooks, and for longer"
        );
    }
    eprintln!(
        "gmon: go: {path}: {} samples, {} with CPU time, {:.1} % of all calls at known lines",
        samples,
        gmon::counted(sites, "call site", "call sites"),
        100.0 * placed as f64 / all.max(1) as f64
    );
    if samples < GO_SAMPLES_MIN {
        eprintln!(
            "gmon: go: so few samples say little; profile for longer, and merge several runs with `gmon merge`"
        );
    }
    Ok(calls)
}

/// Returns the branches of the one module that is wanted.
fn by_address(
    args: &ReportArgs,
    source: &Source,
    modules: &[Counted],
    compiler: Compiler,
) -> Result<Branches> {
    let loaded = load::load_counts(args, source, only(args, modules)?)?;
    let image = Image::read_library(&loaded.bytes, None);
    let image = image.with_context(|| loaded.path.display().to_string())?;
    let branches = Branches::of(&Module::new(&loaded.profile, &loaded.code), &image);
    say_branches(&branches.facts, compiler, &plain(&loaded.path.display().to_string()));
    Ok(branches)
}

/// Adds a module's counts.
fn add(args: &ReportArgs, source: &Source, module: &Counted, counts: &mut Counts) -> Result<()> {
    let loaded = load::load_counts(args, source, module)?;
    let missing = || Missing::Lines { path: loaded.path.clone(), what: "" };
    let separate = loaded.debug.as_ref();
    let debug = separate.map_or(&*loaded.bytes, |(_, bytes)| bytes);
    let mut info = DebugInfo::read(debug).with_context(|| loaded.path.display().to_string())?;
    info.find_split(&SplitFiles::of(&loaded.path, separate.map(|(path, _)| path.as_path())), None);
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

/// Says how much of the sampled CPU time was in functions whose blocks were counted. Returns whether it was little.
fn say_samples(source: &Source, compiler: Compiler) -> bool {
    let Source::Recording { recording, .. } = source else { return false };
    let of = |(index, function): (usize, &gmon_run::Function)| ((function.module, function.address), index);
    let by_address: BTreeMap<(u32, u64), usize> = recording.functions.iter().enumerate().map(of).collect();
    let mut counted = BTreeSet::new();
    for block in &recording.blocks {
        let before = by_address.range(..=(block.module, block.address)).next_back();
        counted.extend(before.filter(|((module, _), _)| *module == block.module).map(|(_, &index)| index));
    }
    let (mut all, mut within) = (0_u64, 0_u64);
    for hits in &recording.hits {
        all = all.saturating_add(hits.samples);
        if counted.contains(&(hits.function as usize)) {
            within = within.saturating_add(hits.samples);
        }
    }
    let elsewhere = recording.programs.iter().map(|program| program.elsewhere);
    all = elsewhere.fold(all, u64::saturating_add);
    if all < SAMPLES_MIN {
        return false;
    }
    let share = within as f64 / all as f64;
    eprintln!(
        "gmon: {}: counted functions have {:.1} % of the sampled CPU time of the run",
        compiler.name(),
        share * 100.0
    );
    share < ENOUGH
}

/// Says what the profile covers, and where it would mislead.
fn say(facts: &Facts, compiler: Compiler, has_little: bool) {
    let name = compiler.name();
    let share = facts.placed as f64 / facts.executed.max(1) as f64;
    eprintln!(
        "gmon: {name}: {} of {} that ran, with {:.1} % of the instructions executed in them; {}, {} of which have code that ran differently \
         often and that nothing tells apart",
        facts.functions,
        gmon::counted(facts.counted, "function", "functions"),
        share * 100.0,
        gmon::counted(facts.places, "place", "places"),
        facts.mixed,
    );
    say_uncounted(facts.uncounted, name);
    if share < ENOUGH || has_little {
        eprintln!(
            "gmon: {name}: so small a part can make code slower; compile all that matters with -g, and count it (--libs, -I and -X select)"
        );
    }
    if compiler == Compiler::Llvm && 10 * facts.without_discriminators > 9 * facts.of_llvm {
        eprintln!(
            "gmon: {name}: no discriminators in {} of {}, so that basic blocks of one line are not told apart; compile with \
             -fdebug-info-for-profiling (rustc: -Zdebug-info-for-profiling) and count again",
            facts.without_discriminators,
            gmon::counted(facts.of_llvm, "function", "functions")
        );
    }
    let foreign = match compiler {
        Compiler::Gcc => (facts.of_llvm, "clang or rustc", "gcc"),
        _ => (facts.of_gcc, "gcc", "clang"),
    };
    if let (1.., of, other) = foreign {
        let number = gmon::counted(foreign.0, "function", "functions");
        eprintln!(
            "gmon: {name}: {of} has compiled {number}, and what it says of lines and inlining is not what {other} looks for"
        );
    }
}

/// Says what branches cover, and which of them are not certain.
fn say_branches(facts: &branches::Facts, compiler: Compiler, path: &str) {
    let name = compiler.name();
    eprintln!(
        "gmon: {name}: {path}: {}, {} between basic blocks; their counts leave {} open, with {:.1} % of all passages, which are split evenly",
        gmon::counted(facts.functions, "function", "functions"),
        gmon::counted(facts.edges, "edge", "edges"),
        facts.open,
        100.0 * facts.open_passed as f64 / facts.passed.max(1) as f64,
    );
    say_uncounted(facts.uncounted, name);
    if compiler == Compiler::Bolt && facts.split > 0 {
        let number = gmon::counted(facts.split, "function is", "functions are");
        eprintln!(
            "gmon: {name}: {number} split (.cold), which llvm-bolt does not rewrite well; compile with -fno-reorder-blocks-and-partition"
        );
    }
}

fn say_uncounted(uncounted: usize, name: &str) {
    if uncounted > 0 {
        let number = gmon::counted(uncounted, "function was", "functions were");
        eprintln!(
            "gmon: {name}: {number} called and not counted; `gprofinject --count blocks --list PROG` says why"
        );
    }
}
