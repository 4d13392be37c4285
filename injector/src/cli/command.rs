//! The command, from its arguments to its exit status.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::CommandFactory;
use gmon::output::Target;
use gprofinject_usage::Kind;

use crate::cli::args::Args;
use crate::cli::{ask, list, meaning, mistake, recover, top};
use crate::live::model::Subject;
use crate::options::SamplerArg;
use crate::os::child::Ending;
use crate::os::clock;
use crate::os::failure::{self, Failure, Tipped};
use crate::os::heir::Heir;
use crate::os::limits::{self, Limits};
use crate::os::say::{self, Level};
use crate::os::scheduling::Scheduling;
use crate::os::{shadow_stack, signals, sys};
use crate::program::resolve;
use crate::sampling::sampler::{self, Method};
use crate::session::expectations;
use crate::session::headroom;
use crate::session::phases::Viewed;
use crate::session::python;
use crate::session::run::{self, Prepared};
use crate::session::settings::{Settings, SlowCalls, TraceFile};
use crate::session::unmatched;
use crate::store::exports::Exports;
use crate::store::output::{self, Output};
use crate::target::agent::room;
use crate::target::attach::earlier::take_over;
use crate::target::attach::running::{self, Running};
use crate::target::launch::launched::{self, Inherited, Launched};
use crate::target::launch::standing::Standing;
use crate::target::launch::streams::Streams;
use crate::target::process::{Process, named_here};
use crate::trace::slow::keeper::KeptCalls;
use crate::trace::tracer::{Place, Tracer};

/// Runs the whole command. Its exit status is the program's. `limits` are those with which it was started.
pub(crate) fn main(limits: Limits) -> ExitCode {
    let args = match Args::typed(std::env::args_os()) {
        Ok(args) => args,
        Err(answer) => return end_at_once(&answer),
    };
    if let Some(kind) = args.generate {
        return generate(kind);
    }
    match execute(args, limits) {
        Ok(ending) => end_like(ending),
        Err(failure) => {
            say::line(format_args!("{}", sys::plain(&format!("{:#}", failure.error))));
            if let Some(Tipped { tip, .. }) = failure.error.downcast_ref() {
                say::line(format_args!("tip: {}", sys::plain(tip)));
            }
            ExitCode::from(failure.status)
        }
    }
}

/// Does what the arguments ask for.
fn execute(args: Args, limits: Limits) -> Result<Ending, Failure> {
    let start = Instant::now();
    clock::beginning();
    let descriptors = sys::inherited_descriptors();
    let inherited = Inherited { descriptors, limits, scheduling: Scheduling::leave() };
    let recover = args.recover.clone();
    let (pid, remark) = args.pid.map(named_here).unzip();
    let duration = args.duration;
    let verb = args.verb();
    let dump_to = args.output.clone();
    let pattern = args.enable.clone().or_else(|| args.disable.clone());
    let settings = meaning::settings(args.clone())?;
    if let Some(remark) = remark.flatten() {
        settings.voice.note(remark);
    }
    match (recover, pid, verb) {
        (Some(folder), ..) => recover::recover(&folder, &settings)?,
        (None, Some(pid), Some(verb)) => settings.voice.note(ask::control(pid, verb, dump_to, pattern)?),
        (None, Some(pid), None) => {
            top::check(settings.look)?;
            match settings.look.and_then(|look| Some((look, ask::holder(pid)?))) {
                Some((look, folder)) => top::watch(pid, look, folder)?,
                None => return attach_again(pid, duration, settings, start, &args),
            }
        }
        (None, None, _) => return launch(settings, start, &inherited),
    }
    Ok(Ending::Exited(0))
}

/// Attaches to a process, and does so again if it has mapped something in the place of the hooks while they were planned.
fn attach_again(
    pid: i32,
    duration: Option<Duration>,
    settings: Settings,
    start: Instant,
    args: &Args,
) -> Result<Ending, Failure> {
    const TRIES: u32 = 5;
    let mut settings = settings;
    for _ in 1..TRIES {
        match attach(pid, duration, settings, start) {
            Err(failure) if failure.error.is::<running::PlaceTaken>() => {
                settings = meaning::settings(args.clone())?;
            }
            result => return result,
        }
    }
    attach(pid, duration, settings, start)
}

/// Starts the program and profiles it, or with `--list` prints how it would be profiled.
fn launch(mut settings: Settings, start: Instant, inherited: &Inherited) -> Result<Ending, Failure> {
    let voice = settings.voice;
    top::check(settings.look)?;
    let mut program = resolve::find(&settings.command)?;
    program.variable = settings.python.then_some(python::NAMES_WANTED);
    if let Some(note) = &program.note {
        // Of a run, the summary names the programs.
        if settings.list { voice.note(note) } else { voice.detail(note) }
    }
    if !settings.list {
        if let Some(why) = headroom::too_little() {
            voice.warn(format_args!("{why}, too little for gprofinject; the program runs without a profile"));
            return Err(launched::replace(&program, inherited));
        }
        headroom::say_what_is_low(voice);
    }
    let heir = if settings.list { None } else { Heir::start() };
    let rate = if settings.list { 0 } else { settings.rate };
    let read = || settings.planner().subject(&program.binary);
    let subject = sampler::preparing(settings.sampler, rate, read);
    // The user may be after the lines of libraries that a program without any loads.
    if settings.filters.needs_lines() && subject.lines().is_none() && !settings.libs.are_named() {
        let other = if settings.filters.asks_for_files() { "omit --file" } else { "use --count blocks" };
        return Err(anyhow!(
            "{} has no line information; build it with -g, {other}, or name libraries with --libs",
            program.binary.display()
        )
        .into());
    }
    if settings.list {
        let planned = settings.planner().plan(subject, &program.binary, true);
        expectations::say(&planned, &program, &settings, subject.kind.is_readable());
        list::print(&program.binary, &planned, &settings, voice.0 >= Level::Verbose)?;
        return Ok(Ending::Exited(0));
    }
    let output = settings.output.check()?;
    let stats = settings.stats.as_deref().map(output::stats_target).transpose()?;
    let exports = Exports::check(&settings.exports)?;
    let trace = trace_place(&mut settings)?;
    keep_apart(&output, stats.as_ref(), &exports, trace.as_ref())?;
    let rate = if subject.kind.is_readable() { settings.rate } else { 0 };
    let takes_agent = subject.kind.unhookable().is_none();
    let follow = settings.follow && takes_agent;
    let choice = sampler::choose(settings.sampler, rate, takes_agent, subject.kind.changes_ids(), follow);
    // Even if nothing is hooked, the agent keeps libc's own profiler from writing a second profile.
    let agent_wanted =
        choice.method == Method::Timer || follow || takes_agent && subject.profiling().is_some();
    let planned = settings.planner().plan(subject, &program.binary, agent_wanted);
    unmatched::check(&program.binary, &planned, &settings)?;
    unmatched::check_slow(&program.binary, &planned, &settings)?;
    // Its file is made now, when nothing is refused any more.
    let tracer = trace.map(Tracer::new).transpose()?.or(slow_tracer(&settings)?);
    expectations::say(&planned, &program, &settings, choice.method != Method::None);
    let standing = Standing::find(settings.look.is_some_and(|look| !look.is_plain));
    let streams = match settings.look {
        Some(look) if !look.is_plain => Streams::apart().context("the program's output cannot be kept")?,
        _ => Streams::default(),
    };
    let viewed = settings.look.map(|look| Viewed {
        look,
        subject: Subject::Started { has_output: streams.output.is_some() },
        output: streams.output.as_ref().and_then(|file| file.try_clone().ok()),
        is_output: false,
    });
    let prepared = Prepared {
        viewed,
        settings,
        program,
        planned,
        choice,
        agent_wanted,
        follow,
        insists: false,
        output,
        stats,
        exports,
        tracer,
        heir,
        start,
    };
    run::profile(prepared, |at| {
        Launched::hold((at.program, at.folder, at.inherited), subject, inherited, &streams, standing)
    })
}

/// Profiles a process for some time, until it ends, or until a signal ends the profile.
fn attach(
    pid: i32,
    duration: Option<Duration>,
    settings: Settings,
    start: Instant,
) -> Result<Ending, Failure> {
    let process = Process::open(pid)?;
    // Errors after this are the target's, or those of a profile that was made.
    let prepared = prepare_attach(&process, settings, start)
        .map_err(|failure| Failure { error: process.failed(failure.error), ..failure })?;
    run::profile(prepared, |_| Ok(Running::new(process, duration)))
}

/// Determines and checks what a running process will be profiled with.
fn prepare_attach(process: &Process, mut settings: Settings, start: Instant) -> Result<Prepared, Failure> {
    let (pid, voice) = (process.pid, settings.voice);
    take_over(process, voice)?;
    let program = running::program(process)?;
    let heir = Heir::start();
    let subject = match process.is_foreign {
        true => settings.planner().foreign_subject(&process.binary()),
        false => settings.planner().subject(&process.binary()),
    };
    if let Some(why) = subject.kind.unhookable() {
        return Err(anyhow!("cannot attach to process {pid}: {why}").into());
    }
    if settings.sampler == SamplerArg::Timer {
        return Err(anyhow!(
            "timers are set up when a program starts; a running one is sampled with --sampler perf, or not (--rate 0)"
        )
        .into());
    }
    let output = settings.output.check()?;
    let stats = settings.stats.as_deref().map(output::stats_target).transpose()?;
    let exports = Exports::check(&settings.exports)?;
    let tracer = trace_place(&mut settings)?.map(Tracer::new).transpose()?.or(slow_tracer(&settings)?);
    let choice = sampler::choose(SamplerArg::Perf, settings.rate, true, false, false);
    let image = subject.image().filter(|_| subject.kind.is_standalone());
    let settings = Settings {
        arena: image.and_then(|image| room::arena(process, image)),
        shadow_stacks: shadow_stack::is_on_or_comes(process.pid),
        ..settings
    };
    let planned = settings.planner().plan(subject, &program.binary, false);
    unmatched::check_slow(&program.binary, &planned, &settings)?;
    expectations::say(&planned, &program, &settings, choice.method != Method::None);
    let viewed =
        settings.look.map(|look| Viewed { look, subject: Subject::Attached, output: None, is_output: true });
    Ok(Prepared {
        viewed,
        settings,
        program,
        planned,
        choice,
        agent_wanted: false,
        follow: false,
        insists: true,
        output,
        stats,
        exports,
        tracer,
        heir,
        start,
    })
}

/// Returns what keeps the slowest calls that the settings ask for.
fn slow_tracer(settings: &Settings) -> anyhow::Result<Option<Tracer>> {
    let Some(SlowCalls { typed, most, least, .. }) = &settings.slow else { return Ok(None) };
    let limits = KeptCalls { most: *most, least: *least };
    Ok(Some(Tracer::of_slowest(SlowCalls::filters(typed)?, limits)))
}

/// Returns where the trace goes that the settings ask for, and what is kept of it.
fn trace_place(settings: &mut Settings) -> anyhow::Result<Option<Place>> {
    let Some(TraceFile { path, kept }) = settings.trace.take() else { return Ok(None) };
    let target = if path == Path::new("-") { Target::standard_output() } else { Target::check(&path) };
    let target = target.map_err(|error| {
        let other = limits::unless_behind(&error, "; name another file with --trace FILE");
        anyhow::Error::new(error).context(format!("cannot write to {}{other}", path.display()))
    })?;
    let (bytes_max, triggers) = kept.map_or((None, Vec::new()), |kept| (Some(kept.bytes), kept.triggers));
    let command = settings.command.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    Ok(Some(Place { path, target, bytes_max, triggers, command }))
}

/// Refuses a file that would replace another output file, which is probably a mistake.
fn keep_apart(
    output: &Output,
    stats: Option<&Target>,
    exports: &Exports,
    trace: Option<&Place>,
) -> anyhow::Result<()> {
    let recording = ("the recording", output.recording_file());
    let trace = ("--trace", trace.and_then(|trace| trace.target.file()));
    let named = [("--output", output.file()), recording, ("--stats", stats.and_then(Target::file)), trace];
    let named = named.into_iter().filter_map(|(option, file)| Some((option, file?)));
    let files: Vec<(&str, &Path)> = named.chain(exports.files().map(|file| ("--export", file))).collect();
    for (index, (option, file)) in files.iter().enumerate() {
        if let Some((other, _)) = files[..index].iter().find(|(_, before)| before == file) {
            bail!("{other} and {option} name the same file; give one of them another name");
        }
    }
    Ok(())
}

/// Prints what comes from the definition of the command line.
fn generate(kind: Kind) -> ExitCode {
    printed(kind.write(Args::command(), false, &mut std::io::stdout().lock()))
}

/// Prints the help, the version, or what is wrong with the arguments.
fn end_at_once(answer: &clap::Error) -> ExitCode {
    if answer.use_stderr() {
        mistake::lines(answer).iter().for_each(|line| say::line(format_args!("{line}")));
        return ExitCode::from(failure::OURS);
    }
    printed(answer.print())
}

/// Returns the exit status after something was to be printed on standard output.
fn printed(result: std::io::Result<()>) -> ExitCode {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            say::line(format_args!("cannot write to standard output: {}", sys::reason(&error)));
            ExitCode::from(failure::OURS)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Ends this process as the program has ended, so that the parent sees what it would have seen of the
/// program.
fn end_like(ending: Ending) -> ExitCode {
    match ending {
        Ending::Exited(status) => signals::exit(status),
        Ending::Killed(signal) => {
            signals::die(signal);
            ExitCode::from(128u8.wrapping_add(signal as u8))
        }
    }
}
