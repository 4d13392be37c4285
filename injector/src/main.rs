//! The `gprofinject` command: profiles a program that was built without -pg.
//!
//! ```text
//! args -> settings      what was typed, what it means
//! resolve -> subject    the file that is profiled, and what kind it is (elf, privileges, symbols, memory)
//! profile_plan          what is hooked, and how (filters, names; plan_cache)
//! output, run_folder    where the profile and the counters go (region, private_folder)
//! sampler               who samples: perf (records) or the agent's timers, into a histogram
//! spawn -> supervise    the program runs (early, signals, witness)
//! family                its children, and what they execute (listener, profilee)
//! collect -> profile    counters and samples to a gmon.out
//! report                what there is to say
//! attach                a process that runs already
//! recover               the same for a run whose gprofinject was killed (logbook, survivors)
//! ```

mod args;
mod attach;
mod collect;
mod early;
mod elf;
mod failure;
mod falls;
mod family;
mod faults;
mod filters;
mod frida;
mod histogram;
mod list;
mod listener;
mod logbook;
mod memory;
mod names;
mod output;
mod perf;
mod placement;
mod plan_cache;
mod private_folder;
mod privileges;
mod profile;
mod profile_plan;
mod profilee;
mod records;
mod recover;
mod region;
mod report;
mod resolve;
mod run;
mod run_folder;
mod sampler;
mod say;
mod settings;
mod signals;
mod spawn;
mod subject;
mod supervise;
mod survivors;
mod symbols;
mod sys;
mod witness;

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;

use crate::args::Args;
use crate::failure::Failure;
use crate::run::Inherited;
use crate::settings::Settings;
use crate::supervise::Ending;

fn main() -> ExitCode {
    let args = match Args::typed(std::env::args_os()) {
        Ok(args) => args,
        Err(answer) => return end_at_once(&answer),
    };
    match run(args) {
        Ok(ending) => end_like(ending),
        Err(failure) => {
            say::line(format_args!("{}", sys::plain(&format!("{:#}", failure.error))));
            ExitCode::from(failure.status)
        }
    }
}

fn run(args: Args) -> Result<Ending, Failure> {
    let start = std::time::Instant::now();
    let inherited = Inherited { descriptors: sys::inherited_descriptors(), limits: sys::Limits::raise() };
    let recover = args.recover.clone();
    let (pid, duration) = (args.pid, args.duration);
    let verb = args.verb();
    let dump_to = args.output.clone();
    let settings = Settings::from(args)?;
    let voice = settings.voice;
    if let Some(folder) = recover {
        recover::recover(&folder, &settings)?;
        return Ok(Ending::Exited(0));
    }
    if let (Some(pid), Some(verb)) = (pid, verb) {
        voice.note(attach::session::control(pid, verb, dump_to)?);
        return Ok(Ending::Exited(0));
    }
    if let Some(pid) = pid {
        return attach::session::profile(pid, &settings, duration);
    }
    let program = resolve::find(&settings.command)?;
    if let Some(note) = &program.note {
        voice.note(note);
    }
    let subject = profilee::subject(&program.binary, settings.caches_plans());
    if settings.filters.needs_lines() && subject.lines().is_none() {
        return Err(anyhow::anyhow!(
            "{} has no line information; build it with -g, or use --count blocks",
            program.binary.display()
        )
        .into());
    }
    if settings.list {
        let planned = profile_plan::make(
            subject,
            settings.hooks,
            settings.engine,
            &settings.filters,
            true,
            &settings.cache,
        );
        run::say_what_is_possible(&planned, &program, &settings, !subject.blind);
        list::print(&planned, voice.0 == say::Level::Verbose)?;
        return Ok(Ending::Exited(0));
    }
    let output = settings.output.check()?;
    let stats = settings.stats.as_deref().map(output::stats_target).transpose()?;
    let files = [output.file(), stats.as_ref().and_then(gmon::output::Target::file)];
    keep_apart(files, &program)?;
    let rate = if subject.blind { 0 } else { settings.rate };
    let takes_agent = subject.takes_agent();
    let follow = settings.follow && takes_agent;
    let choice = sampler::choose(settings.sampler, rate, takes_agent, subject.changes_ids, follow);
    let agent_wanted =
        choice.method == sampler::Method::Timer || follow || takes_agent && subject.profiling().is_some();
    let planned = profile_plan::make(
        subject,
        settings.hooks,
        settings.engine,
        &settings.filters,
        agent_wanted,
        &settings.cache,
    );
    memory::plan_made();
    let sampled = choice.method != sampler::Method::None;
    run::say_what_is_possible(&planned, &program, &settings, sampled);
    run::profiled(run::Prepared { settings, program, planned, choice, output, stats, start, inherited })
}

/// A profile that takes the place of the program, or of the other file, is a slip.
fn keep_apart(files: [Option<&Path>; 2], program: &resolve::Program) -> anyhow::Result<()> {
    if let [Some(profile), Some(stats)] = files
        && profile == stats
    {
        bail!("--output and --stats name the same file; give one of them another name");
    }
    for kept in [&program.path, &program.binary] {
        let kept = kept.canonicalize().unwrap_or_else(|_| kept.clone());
        if let Some(file) = files.into_iter().flatten().find(|file| **file == kept) {
            bail!("{} is the program itself; name another file to be written", file.display());
        }
    }
    Ok(())
}

/// Help, the version, or what is wrong with the arguments.
fn end_at_once(answer: &clap::Error) -> ExitCode {
    if answer.use_stderr() {
        // All that we say begins in the same way.
        let text = answer.render().to_string();
        say::lines(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
        return ExitCode::from(failure::OURS);
    }
    match answer.print() {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            say::line(format_args!("cannot write to standard output: {}", sys::reason(&error)));
            ExitCode::from(failure::OURS)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Whoever waits for us sees what it would have seen of the program.
fn end_like(ending: Ending) -> ExitCode {
    match ending {
        Ending::Exited(status) => ExitCode::from(status),
        Ending::Killed(signal) => {
            signals::die(signal);
            ExitCode::from(128u8.wrapping_add(signal as u8))
        }
    }
}
