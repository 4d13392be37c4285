//! One run, from the start of the program to the last word about it.

use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use gmon::output::Target;

use crate::cli::args::HooksArg;
use crate::os::failure::Failure;
use crate::os::say::{Level, Voice};
use crate::os::signals::Signals;
use crate::os::sys::{self, Limits};
use crate::program::planned::Planned;
use crate::program::profilee::{Profilee, Profilees};
use crate::program::resolve::Program;
use crate::sampling::faults::Faults;
use crate::sampling::perf::{self, Perf, Scope};
use crate::sampling::sampler::{Choice, Method, Sampling};
use crate::session::family::{Family, Finished};
use crate::session::report::{self, Run};
use crate::session::settings::Settings;
use crate::session::supervise::{self, Ending};
use crate::store::output::Output;
use crate::store::region::Orders;
use crate::store::run_folder::RunFolder;
use crate::target::launch::spawn;
use crate::target::launch::witness::Witness;

/// All that was found good before the start.
pub(crate) struct Prepared {
    pub(crate) settings: Settings,
    pub(crate) program: Program,
    pub(crate) planned: Planned<'static, 'static>,
    pub(crate) choice: Choice,
    pub(crate) output: Output,
    pub(crate) stats: Option<Target>,
    /// When we were started.
    pub(crate) start: Instant,
    pub(crate) inherited: Inherited,
}

/// What we found at our start and the program must find at its own.
pub(crate) struct Inherited {
    /// Open beyond the standard ones. We hold them for the program only.
    pub(crate) descriptors: Vec<i32>,
    pub(crate) limits: Limits,
}

/// Runs the program and writes its profile.
pub(crate) fn profiled(prepared: Prepared) -> Result<Ending, Failure> {
    let Prepared { settings, program, planned, mut choice, output, stats, start, inherited } = prepared;
    let voice = settings.voice;
    let mut notes: Vec<String> = planned.subject.unhookable.iter().cloned().collect();
    notes.extend(planned.plan.iter().filter_map(|plan| plan.downgrade.clone()));

    for reason in &choice.reasons {
        if choice.method == Method::None {
            voice.warn(format_args!("no samples are taken: {reason}"));
        } else {
            voice.detail(format_args!("sampling by {}: {reason}", choice.method.name()));
        }
        notes.push(reason.clone());
    }

    // From here on a limit on file sizes is an error to us and no signal.
    let signals = Signals::take().context("cannot take over signals")?;
    let follow = settings.follow && planned.subject.takes_agent();
    // Where nothing is hooked, it still keeps libc's own profiler from writing a second profile.
    let profiler = planned.subject.takes_agent() && planned.subject.profiling().is_some();
    let agent_wanted = planned.hooked() > 0 || choice.method == Method::Timer || follow || profiler;
    let mut profilees = Profilees::default();
    let profilee = profilees.first(&program.binary, program.shown.clone(), planned, agent_wanted);
    let planned = profilee.planned;
    settings.cache.add(planned);
    let timer_rate = if choice.method == Method::Timer { choice.rate } else { 0 };
    let orders = Orders { timer_rate, follow, plan: profilee.number };
    let mut homeless = None;
    let folder = match &profilee.plan {
        Some((plan, layout)) => {
            match RunFolder::create(spawn::FIRST, settings.engine, plan, layout, orders) {
                Ok(folder) => Some(folder),
                // Half a profile is better than none.
                Err(error) if choice.method == Method::Perf => {
                    voice.warn(format_args!("{error:#}; nothing is hooked, the program is only sampled"));
                    homeless = Some(format!("{error:#}"));
                    None
                }
                Err(error) => return Err(error.into()),
            }
        }
        None => None,
    };

    let mut family = Family::new(&settings, &output, folder, profilees, orders, choice.rate);
    let held = spawn::hold(&program, family.folder.as_ref(), signals.inherited(), inherited.limits).map_err(
        |error| {
            let limit = if error.raw_os_error() == Some(libc::EAGAIN) { " (ulimit -u)" } else { "" };
            anyhow!("cannot start a process: {}{limit}", sys::reason(&error))
        },
    )?;
    sys::release(&inherited.descriptors);
    let mut sampling = None;
    if choice.method == Method::Perf {
        let scope = match planned.subject.changes_ids {
            true => Scope::Machine,
            false => Scope::Process(held.pid()),
        };
        match attach(scope, choice.rate, family.follows()) {
            Ok(attached) => sampling = Some(attached),
            Err(error) => {
                let why = perf::refusal(&error, scope);
                voice.warn(format_args!("no samples are taken: {why}"));
                (choice.method, choice.rate) = (Method::None, 0);
                notes.push(why);
            }
        }
    }
    // Where perf is not to be had, the place of a crash is not known.
    let faults = if planned.counts { Faults::open(held.pid()).ok() } else { None };
    family.begin(held.pid(), profilee, sampling.as_mut());
    let witness = Witness::start();
    if family.follows() {
        sys::adopt_orphans();
    }
    let injector_ns = start.elapsed().as_nanos() as u64;
    let child = held.release().context("the new process has gone")?;
    settings.cache.keep_fresh();
    let pid = child.pid();
    let ending = supervise::until_end(pid, &signals, witness, &mut family, sampling.as_mut());
    if let Some(errno) = child.exec_error() {
        let hint = if errno == libc::ENOEXEC { " (this kernel does not run such programs)" } else { "" };
        let error = anyhow!("{}: {}{hint}", program.path.display(), sys::errno_text(errno));
        return Err(Failure::exec(errno, error));
    }

    let crashed = ending == Ending::Killed(libc::SIGSEGV);
    let crash = faults.filter(|_| crashed).and_then(|faults| faults.fatal(pid));
    let finished = family.end_first(sampling.as_mut(), homeless.as_ref(), crash);
    if family.follows() {
        supervise::until_alone(&signals, &mut family, sampling.as_mut());
    }
    let alive = family.end_all(sampling.as_mut());
    if alive > 0 {
        let alive = gmon::counted(alive, "process still runs", "processes still run");
        voice.warn(format_args!("{alive}; what was counted up to now is written"));
    }
    let sampler_bytes = sampling.as_mut().map_or(0, |sampling| sampling.perf().ring_bytes());
    let (lost_samples, throttled) = sampling.as_ref().map_or((0, false), |s| (s.lost, s.throttled));
    drop(sampling);
    for trouble in &family.troubles {
        voice.warn(trouble);
    }
    let Some(Finished { collected, placed, bytes }) = finished else {
        return Err(anyhow!("the profile is lost").into());
    };
    if let Some(trouble) = &collected.trouble {
        if homeless.is_none() {
            voice.warn(format_args!("nothing was hooked: {trouble}"));
        }
        notes.push(trouble.clone());
    }
    say_who_was_not_followed(&family, voice);
    notes.extend(family.strangers.iter().cloned());
    let run = Run {
        planned,
        engine: settings.engine.name(),
        binary: &program.binary,
        ending,
        collected: &collected,
        placed,
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
    family.folder = None;
    let files = Files { output: &output, stats: stats.as_ref(), profilee };
    finish(&run, &program, &settings, &files, pid as u32, &bytes)?;
    Ok(ending)
}

/// What was executed and is not in any profile, or not as was asked. `make` may have executed many such programs.
fn say_who_was_not_followed(family: &Family, voice: Voice) {
    const MOST: usize = 5;
    for (index, stranger) in family.strangers.iter().enumerate() {
        if index < MOST {
            voice.note(stranger);
        } else {
            voice.detail(stranger);
        }
    }
    let more = family.strangers.len().saturating_sub(MOST);
    if more > 0 && voice.0 < Level::Verbose {
        voice.note(format_args!("and {} of this kind (-v)", gmon::counted(more, "more note", "more notes")));
    }
}

fn attach(scope: Scope, rate: u32, follow: bool) -> std::io::Result<Sampling> {
    let perf = Perf::open(scope, rate, follow)?;
    if scope == Scope::Machine {
        perf.enable();
    }
    Ok(Sampling::new(perf))
}

/// Where the results go.
pub(crate) struct Files<'f> {
    pub(crate) output: &'f Output,
    pub(crate) stats: Option<&'f Target>,
    pub(crate) profilee: &'f Profilee,
}

/// Writes what there is to write, and says what there is to say.
pub(crate) fn finish(
    run: &Run,
    program: &Program,
    settings: &Settings,
    files: &Files,
    pid: u32,
    bytes: &[u8],
) -> Result<()> {
    let Files { output, stats, profilee } = *files;
    let voice = settings.voice;
    for loss in run.losses() {
        voice.warn(loss);
    }
    run.details(voice);
    run.list_others(voice);
    if let Some(Err(error)) = stats.map(|target| run.stats().write(target)) {
        voice.warn(sys::plain(&format!("{error:#}")));
    }
    let subject = run.planned.subject;
    if subject.blind || subject.unhookable.is_some() && run.sampler == Method::None.name() {
        voice.warn(format_args!("no profile of {}", program.binary.display()));
        return Ok(());
    }
    let written = output.write(pid, bytes)?;
    if let Some(detour) = &written.detour {
        voice.warn(format_args!("{detour}; it is in {}", written.path.display()));
    }
    run.placed.report(voice, &program.shown.to_string_lossy(), None);
    let (symbols, note) = profilee.symbols_beside(output, &written.path);
    if let Some(note) = note {
        voice.note(note);
    }
    let next = format!("gprof {} {}", report::quoted(&symbols), report::quoted(written.path.as_os_str()));
    voice.note(format_args!("{}; next: {next}", run.summary()));
    Ok(())
}

/// Before the start: what will be less than the user may expect.
pub(crate) fn say_what_is_possible(planned: &Planned, program: &Program, settings: &Settings, sampled: bool) {
    let voice = settings.voice;
    let shown = program.binary.display();
    if let Some(why) = &planned.subject.unhookable {
        let rest = if sampled { "it is only sampled" } else { "it runs without a profile" };
        voice.warn(format_args!("{shown} cannot be hooked: {why}; {rest}"));
    } else if settings.hooks != Some(HooksArg::None) {
        for pattern in settings.filters.unused() {
            voice.warn(format_args!("{pattern} matches no function of {shown}"));
        }
    }
    if let Some(downgrade) = planned.plan.as_ref().and_then(|plan| plan.downgrade.as_ref()) {
        voice.note(format_args!("{shown}: {downgrade}"));
    }
    if let Some(caution) = planned.plan.as_ref().and_then(|plan| plan.caution.as_ref()) {
        voice.note(format_args!("{shown}: {caution}"));
    }
    match planned.subject.profiling() {
        Some(_) if !planned.subject.takes_agent() => voice.warn(format_args!(
            "{shown} was built with -pg: libc writes its own gmon.out at the end; name another with -o FILE"
        )),
        Some(profiling) if profiling.controls => voice.note(format_args!(
            "{shown} calls moncontrol or monstartup, which has no effect: all of the run is profiled"
        )),
        _ => {}
    }
    if planned.subject.stripped() {
        voice.note(format_args!(
            "{shown} is stripped, and gprof needs symbols to show anything: install its debug symbols, or profile a \
             build with them"
        ));
    }
    if let Some(file) = planned.subject.debug_file {
        voice
            .detail(format_args!("{shown} is stripped; names of its functions from {}", file.path.display()));
    }
}
