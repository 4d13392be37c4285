//! The command, from its arguments to its exit status.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;

use crate::cli::args::Args;
use crate::cli::{list, recover};
use crate::os::failure::{self, Failure};
use crate::os::{say, signals, sys};
use crate::program::{memory, planned, profilee, resolve};
use crate::sampling::sampler;
use crate::session::run::{self, Inherited};
use crate::session::settings::Settings;
use crate::session::supervise::Ending;
use crate::store::output;
use crate::target::attach;

/// The whole command: its exit status is the program's.
pub(crate) fn main() -> ExitCode {
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
        let planned =
            planned::make(subject, settings.hooks, settings.engine, &settings.filters, true, &settings.cache);
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
    let planned = planned::make(
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
