//! A profile of a process that runs already: attach, wait, leave, write.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::cli::args::{HooksArg, SamplerArg};
use crate::os::failure::Failure;
use crate::os::signals::{self, Signals};
use crate::os::sys::Handle;
use crate::profile::collect;
use crate::program::profilee::{self, Profilees};
use crate::program::resolve::Program;
use crate::program::{memory, planned};
use crate::sampling::perf::{self, Perf, Scope};
use crate::sampling::sampler::{self, Method, Sampling};
use crate::session::family::Family;
use crate::session::family::control::{self, Request, Verb};
use crate::session::report::Run;
use crate::session::run::{self, Files};
use crate::session::settings::Settings;
use crate::session::supervise::{self, Ending};
use crate::store::output;
use crate::store::private_folder::PrivateFolder;
use crate::store::region::{AgentState, Orders, RegionFile};
use crate::store::run_folder::RunFolder;
use crate::target::agent::engine::Attached;
use crate::target::launch::spawn::FIRST;
use crate::target::named::{self, Named};
use crate::target::process::Process;
use crate::target::threads::helper;

/// Profiles a process for some time, until it ends, or until we are told to leave it.
pub(crate) fn profile(pid: i32, settings: &Settings, duration: Option<Duration>) -> Result<Ending, Failure> {
    let start = Instant::now();
    let voice = settings.voice;
    let process = Process::open(pid)?;
    take_over(&process, settings)?;
    let program = program(&process)?;
    let subject = match process.is_foreign {
        true => profilee::foreign_subject(&process.binary(), settings.caches_plans()),
        false => profilee::subject(&process.binary(), settings.caches_plans()),
    };
    if let Some(why) = &subject.unhookable {
        return Err(anyhow!("process {pid} cannot be attached to: {why}").into());
    }
    if settings.sampler == SamplerArg::Timer {
        return Err(anyhow!(
            "timers are set up when a program starts; a running one is sampled with --sampler perf, or not (--rate 0)"
        )
        .into());
    }
    let output = settings.output.check()?;
    let stats = settings.stats.as_deref().map(output::stats_target).transpose()?;
    let choice = sampler::choose(SamplerArg::Perf, settings.rate, true, false, false);
    let mut notes = Vec::new();
    for reason in &choice.reasons {
        if choice.method == Method::None {
            voice.warn(format_args!("no samples are taken: {reason}"));
        }
        notes.push(reason.clone());
    }
    let planned =
        planned::make(subject, settings.hooks, settings.engine, &settings.filters, false, &settings.cache);
    memory::plan_made();
    run::say_what_is_possible(&planned, &program, settings, choice.method != Method::None);
    notes.extend(planned.plan.iter().filter_map(|plan| plan.downgrade.clone()));
    let hooks = settings.hooks != Some(HooksArg::None) && planned.hooked() > 0;

    let signals = Signals::take().context("cannot take over signals")?;
    let mut profilees = Profilees::default();
    let profilee = profilees.first(&program.binary, program.shown.clone(), planned, hooks);
    let planned = profilee.planned;
    // It is kept when all is over: this process must have no second thread where it forks.
    settings.cache.add(planned);
    let orders = Orders { timer_rate: 0, follow: false, plan: profilee.number };
    let folder = match &profilee.plan {
        Some((plan, layout)) => Some(RunFolder::create(FIRST, settings.engine, plan, layout, orders)?),
        None => None,
    };
    let mut family = Family::new(settings, &output, folder, profilees, orders, choice.rate);
    let mut sampling = match choice.method {
        Method::Perf => {
            let scope = Scope::Running(pid);
            Some(Sampling::new(
                Perf::open(scope, choice.rate, false).map_err(|e| anyhow!(perf::refusal(&e, scope)))?,
            ))
        }
        _ => None,
    };
    family.begin(pid, profilee, None);
    let bias = process.program_headers().wrapping_sub(planned.plan.as_ref().map_or(0, |plan| plan.phdr()));
    if let Some(sampling) = &mut sampling {
        sampling.announce_running(pid, &subject.code, planned.shape, bias);
    }
    if let (Some(folder), Some(plan)) = (&family.folder, &planned.plan) {
        let mut made = loop {
            if let Some(made) = Attached::prepare(&process, planned, plan, folder.private(), FIRST)? {
                break made;
            }
            take_over(&process, settings)?;
        };
        let armed = prepared(&folder.region(FIRST)).and_then(|()| {
            let moved = made.moved(planned);
            made.arm(&moved)
        });
        match armed {
            Ok(pause) => voice.detail(format_args!("attached to process {pid}: {pause}")),
            Err(error) => {
                let out = made.detach();
                if process.lives() && !matches!(out, Ok((_, true))) {
                    family.folder.take().into_iter().for_each(RunFolder::keep);
                }
                return Err(error.into());
            }
        }
        family.attached().insert(0, made);
    }
    if let Some(sampling) = &mut sampling {
        sampling.perf().enable();
    }
    let injector_ns = start.elapsed().as_nanos() as u64;
    voice.note(match duration {
        Some(duration) => {
            format!("attached to process {pid} for {} s (Ctrl-C: until now)", duration.as_secs_f64())
        }
        None => format!("attached to process {pid}; Ctrl-C to leave it and write the profile"),
    });

    let ended = wait(&process, &signals, &mut family, sampling.as_mut(), duration);
    let left = match family.attached().remove(&0) {
        Some(mut attached) if !ended => leave(&mut attached, &process, settings),
        _ => Ok(true),
    };
    let clean = matches!(left, Ok(true));
    let finished = family.end_first(sampling.as_mut(), None, None);
    let sampler_bytes = sampling.as_mut().map_or(0, |sampling| sampling.perf().ring_bytes());
    let (lost_samples, throttled) = sampling.as_ref().map_or((0, false), |s| (s.lost, s.throttled));
    drop(sampling);
    for trouble in &family.troubles {
        voice.warn(trouble);
    }
    if let Some(folder) = family.folder.take().filter(|_| !clean) {
        // The next one to attach finds there what is to be taken out.
        folder.keep();
    }
    let Some(finished) = finished else { return Err(anyhow!("the profile is lost").into()) };
    if let Some(trouble) = &finished.collected.trouble {
        voice.warn(trouble);
        notes.push(trouble.clone());
    }
    let run = Run {
        planned,
        engine: settings.engine.name(),
        binary: &program.binary,
        ending: Ending::Exited(0),
        collected: &finished.collected,
        placed: finished.placed,
        sampler: choice.method.name(),
        rate: choice.rate,
        lost_samples,
        throttled,
        sampler_bytes,
        plan_bytes: profilee.plan_len(),
        injector_ns,
        notes: &notes,
        others: &family.others,
    };
    let files = Files { output: &output, stats: stats.as_ref(), profilee };
    run::finish(&run, &program, settings, &files, pid as u32, &finished.bytes)?;
    left?;
    Ok(Ending::Exited(0))
}

/// Has the gprofinject that profiles a process do something with it; what it answers.
pub(crate) fn control(pid: i32, verb: Verb, output: Option<PathBuf>) -> Result<String> {
    // It may be traced, by the gprofinject that profiles it.
    let named = match named::folders(pid) {
        Ok(named) if !named.is_empty() => named,
        _ => Process::open(pid).map(|_| Vec::new())?,
    };
    if let [Named::Foreign(path, user)] = named.as_slice() {
        bail!(foreign(pid, path, *user));
    }
    let folders: Vec<PrivateFolder> = named.into_iter().filter_map(Named::ours).collect();
    let output = output.map(std::path::absolute).transpose()?;
    if output.is_some() && verb != Verb::Dump {
        bail!("--output says where --dump goes, and nothing else here");
    }
    control::ask(&folders, &Request { pid, verb, output })
}

/// The file that the process runs, and what to call it.
fn program(process: &Process) -> Result<Program> {
    let pid = process.pid;
    let link = fs::read_link(process.binary()).with_context(|| {
        format!("process {pid} cannot be looked into; run gprofinject as its user, or as root")
    })?;
    let shown = link.to_string_lossy();
    // It may have been replaced since; what runs can still be read.
    let binary = match shown.strip_suffix(" (deleted)") {
        Some(_) => process.binary(),
        None => link.clone(),
    };
    Ok(Program::running(binary))
}

/// Whether the agent is ready.
fn prepared(region: &RegionFile) -> Result<()> {
    let report = region.report().context("the counters cannot be read")?;
    if report.state != AgentState::SettingUp {
        let trouble = collect::trouble(&report);
        bail!("nothing was hooked: {}", trouble.unwrap_or_else(|| "the agent did not begin".to_owned()));
    }
    Ok(())
}

/// True: the process has ended.
fn wait(
    process: &Process,
    signals: &Signals,
    family: &mut Family,
    mut sampling: Option<&mut Sampling>,
    duration: Option<Duration>,
) -> bool {
    const OFTEN: Duration = Duration::from_millis(500);
    let handle = Handle::of(process.pid);
    // So long that no clock will show it: for ever.
    let until = duration.and_then(|duration| Instant::now().checked_add(duration));
    loop {
        if handle.has_ended() || !process.lives() {
            return true;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return false;
        }
        supervise::wait(
            signals,
            family,
            sampling.as_deref_mut(),
            handle.descriptor(),
            Some(left.map_or(OFTEN, |left| left.min(OFTEN))),
        );
        while let Some(arrived) = signals.next() {
            let asked = family.is_asked_by(arrived.signal, sampling.as_deref_mut());
            if !asked && signals::END_WANTED.contains(&arrived.signal) {
                return false;
            }
        }
    }
}

/// False: the agent's memory is still there.
fn leave(attached: &mut Attached, process: &Process, settings: &Settings) -> Result<bool> {
    let pid = process.pid;
    match attached.detach() {
        Ok((pause, clean)) => {
            settings.voice.detail(format_args!("left process {pid}: {pause}"));
            if !clean {
                settings.voice.warn(format_args!(
                    "a thread of process {pid} does not come out of the agent, whose memory stays; gprofinject --pid \
                     {pid} --duration 0 takes it out, later"
                ));
            }
            Ok(clean)
        }
        // It has ended meanwhile.
        Err(_) if !process.lives() => Ok(true),
        Err(error) => Err(error.context(format!(
            "process {pid} could not be left: its hooks stay; gprofinject --pid {pid} --duration 0 tries once more"
        ))),
    }
}

/// Takes out what a gprofinject has left that was killed, or what a child has from the process that was attached to.
fn take_over(process: &Process, settings: &Settings) -> Result<()> {
    let pid = process.pid;
    for named in named::folders(pid)? {
        let path = named.path().to_owned();
        let folder = match named {
            Named::Ours(folder) => folder,
            Named::Foreign(_, user) => bail!(foreign(pid, &path, user)),
            Named::Gone(_) => bail!(
                "process {pid} has been profiled, or was forked by a process that was; that is over ({} is gone), and \
                 what is left of it cannot be taken out: start the process anew to profile it",
                path.display()
            ),
        };
        let is_looked_after = crate::store::logbook::is_looked_after(&folder);
        if !is_looked_after && folder.exists() {
            // Its helper may still be leaving, or have just left.
            helper::wait(pid)?;
            if !named::folders(pid)?.iter().any(|named| named.path() == path) {
                continue;
            }
        }
        let attached = Attached::load(&folder)?;
        let is_child = attached.as_ref().is_some_and(|attached| !attached.is_of(process));
        let (_, clean) = match attached {
            Some(attached) if is_child => attached.detach_child(process),
            _ if is_looked_after => bail!(
                "process {pid} is profiled already (its counters are in {}); --dump, --reset, --pause and --resume \
                 control that",
                path.display()
            ),
            Some(mut attached) => attached.detach(),
            None => bail!(
                "process {pid} was started by a gprofinject that was killed, and is profiled still; its profile: \
                 gprofinject --recover {}",
                path.display()
            ),
        }
        .context("what an earlier gprofinject left could not be taken out")?;
        if !clean {
            bail!("what an earlier gprofinject left in process {pid} is still in use; try again");
        }
        settings.voice.note(match is_child {
            true => "took out what the process had from the one that forked it, which is or was profiled"
                .to_owned(),
            false => format!(
                "took out what a gprofinject left that was killed; its profile: gprofinject --recover {}",
                path.display()
            ),
        });
    }
    Ok(())
}

/// A folder of another user decides nothing here: who could write to it would decide what is written to the process, and
/// where its profile goes.
fn foreign(pid: i32, folder: &Path, user: u32) -> String {
    format!(
        "process {pid} is, or says that it is, profiled by a gprofinject of user {user} ({}); run this as that user: sudo \
         -u '#{user}' gprofinject --pid {pid} ...",
        folder.display()
    )
}
