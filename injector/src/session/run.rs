//! One run, from a planned program to the last message about it.

use std::fs;
use std::os::fd::{AsFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use gmon::output::Target as File;
use gprofinject_plan::Role;

use crate::live::model::Subject;
use crate::live::view::{Look, View};
use crate::options::Measure;
use crate::os::child::Ending;
use crate::os::clock;
use crate::os::failure::Failure;
use crate::os::heir::Heir;
use crate::os::say::Voice;
use crate::os::signals::{self, Signals};
use crate::os::sys;
use crate::profile::counted::Finished;
use crate::program::planned::Planned;
use crate::program::profilee::Profilees;
use crate::program::resolve::Program;
use crate::sampling::faults::Faults;
use crate::sampling::perf::{self, Perf, Scope};
use crate::sampling::sampler::{Choice, Method, Sampling};
use crate::session::conclusion::{self, Asked, Files};
use crate::session::events;
use crate::session::family::Family;
use crate::session::live::{self, Own};
use crate::session::member::Unhooked;
use crate::session::outcome::Run;
use crate::session::results::Results;
use crate::session::settings::Settings;
use crate::store::exports::Exports;
use crate::store::output::Output;
use crate::store::region::layout::Orders;
use crate::store::run_folder::{FIRST, RunFolder};
use crate::target::contract::{Patience, Ready, Readying, Target};
use crate::trace::tracer::Tracer;

/// Everything that was determined and checked before the start.
pub(crate) struct Prepared {
    pub(crate) settings: Settings,
    pub(crate) program: Program,
    pub(crate) planned: Planned<'static, 'static>,
    pub(crate) choice: Choice,
    /// Whether the agent is wanted even if it has nothing to hook.
    pub(crate) agent_wanted: bool,
    /// Whether children and executed programs are profiled as well.
    pub(crate) follow: bool,
    /// Whether a profile that would be incomplete is not made at all. A program that gprofinject starts is
    /// profiled as far as possible, since it may not be possible to start it twice. A process that already
    /// runs is left alone instead, and the user can try again.
    pub(crate) insists: bool,
    pub(crate) output: Output,
    pub(crate) exports: Exports,
    /// The trace, if there is one.
    pub(crate) tracer: Option<Tracer>,
    pub(crate) stats: Option<File>,
    /// The live view, if there is one.
    pub(crate) viewed: Option<Viewed>,
    /// The process that inherits the run's memory files, if there can be one.
    pub(crate) heir: Option<Heir>,
    /// The time at which the injector was started.
    pub(crate) start: Instant,
}

/// What is known of a live view before the start.
pub(crate) struct Viewed {
    pub(crate) look: Look,
    pub(crate) subject: Subject,
    /// The program's output, if it goes to a file because the view has the terminal.
    pub(crate) output: Option<fs::File>,
    /// Whether text goes to standard output, which is not the program's.
    pub(crate) is_output: bool,
}

/// What a target may need to begin.
pub(crate) struct Entrance<'e> {
    pub(crate) program: &'e Program,
    /// The folder with the agent; `None` if there is no agent.
    pub(crate) folder: Option<&'e RunFolder>,
    /// The signal mask and dispositions with which the injector was started.
    pub(crate) inherited: signals::Inherited,
}

/// Profiles a process, which `enter` starts or has found, and writes the profile.
///
/// # Errors
/// There is no profile, or the process could not be started or left.
pub(crate) fn profile<T: Target>(
    prepared: Prepared,
    enter: impl FnOnce(&Entrance) -> Result<T>,
) -> Result<Ending, Failure> {
    let Prepared {
        settings,
        program,
        planned,
        mut choice,
        output,
        exports,
        tracer,
        stats,
        viewed,
        start,
        ..
    } = prepared;
    let voice = settings.voice;
    let mut notes: Vec<String> =
        planned.subject.unhookable.iter().chain(&planned.obstacle).cloned().collect();
    notes.extend(planned.plan.iter().filter_map(|plan| plan.downgrade.clone()));

    for reason in &choice.reasons {
        if choice.method == Method::None {
            voice.warn(format_args!("no samples are taken: {reason}"));
        } else {
            voice.detail(format_args!("sampling by {}: {reason}", choice.method.name()));
        }
        notes.push(reason.clone());
    }

    // From here on, the limit on file sizes causes an error in the injector and not a signal.
    let signals = Signals::take().context("cannot take over signals")?;
    let agent_wanted = planned.hooked() > 0 || planned.wants_libraries() || prepared.agent_wanted;
    let mut profilees = Profilees::default();
    let profilee = profilees.first(&program.binary, program.shown.clone(), planned, agent_wanted);
    let planned = profilee.planned;
    settings.planner().keep(&program.binary, Role::Program, planned);
    let timer_rate = if choice.method == Method::Timer { choice.rate } else { 0 };
    let orders = Orders { timer_rate, follow: prepared.follow, plan: profilee.number, ..Orders::default() };
    let mut unplaced = None;
    let folder = match &profilee.plan {
        Some((plan, layout)) => {
            match RunFolder::create(FIRST, settings.engine, plan, layout, orders, prepared.heir) {
                Ok(folder) => Some(folder),
                // An incomplete profile is better than none.
                Err(error) if choice.method == Method::Perf && !prepared.insists => {
                    voice.warn(format_args!("{error:#}; nothing is hooked, the program is only sampled"));
                    unplaced = Some(format!("{error:#}"));
                    None
                }
                Err(error) => return Err(error.into()),
            }
        }
        None => None,
    };

    let results = Results::new(&output, Some(&exports), profilee);
    let mut family = Family::new(&settings, results, folder, profilees, orders, choice.rate, tracer);
    let entrance =
        Entrance { program: &program, folder: family.folder.as_ref(), inherited: signals.inherited() };
    let mut target = enter(&entrance)?;
    let pid = target.pid();
    let mut sampling = None;
    if choice.method == Method::Perf {
        let scope = target.scope();
        match sample(scope, choice.rate, family.follows(), planned.measure) {
            Ok(begun) => sampling = Some(begun),
            Err(error) => {
                let why = perf::refusal(&error, scope);
                if prepared.insists {
                    return Err(target.failed(anyhow!(why)).into());
                }
                voice.warn(format_args!("no samples are taken: {why}"));
                (choice.method, choice.rate) = (Method::None, 0);
                notes.push(why);
            }
        }
    }
    // Without perf events, the place of a crash is not known.
    let faults = if planned.counts { Faults::open(pid).ok() } else { None };
    family.begin(pid, profilee);
    if let Some(sampling) = &mut sampling {
        let code = &planned.subject.code;
        match target.bias(planned) {
            Some(bias) => sampling.announce_running(pid, code, planned.shape, bias),
            None => sampling.announce(pid, code, planned.shape, false),
        }
    }
    let follows = family.follows();
    if planned.wants_libraries() {
        family.listen_outside(target.bias(planned).map(|_| pid));
    }
    let wanted = match planned.libraries {
        Some(_) => {
            let loaded = target.loaded();
            family.running(pid, loaded).map_err(|error| target.failed(error))?
        }
        None => Vec::new(),
    };
    let (folder, libraries) = (family.folder.as_ref(), &family.libraries);
    let readying = Readying { folder, planned, libraries, wanted: &wanted, follows, voice };
    match target.make_ready(&readying) {
        Ok(Ready { grip, agent, unhooked }) => {
            family.hold_first(grip);
            if let (Some(sampling), Some(code)) = (&mut sampling, agent) {
                sampling.note_code(pid, code);
            }
            for (library, why) in unhooked {
                family.leave(pid, &library, Unhooked::Refused(why.into()));
            }
        }
        Err(error) => {
            if !target.is_clean() {
                family.folder.take().into_iter().for_each(RunFolder::keep);
            }
            return Err(target.failed(error).into());
        }
    }
    if let (Some(sampling), Scope::Running(_)) = (&mut sampling, target.scope()) {
        sampling.perf().enable();
    }
    let injector_ns = start.elapsed().as_nanos() as u64;
    let began = Instant::now();
    target.begin(voice)?;
    if target.allows_threads() {
        settings.cache.keep_fresh();
    }
    let kept = viewed.as_ref().and_then(|viewed| viewed.output.as_ref()?.try_clone().ok());
    let mut view = viewed.and_then(|viewed| begin_view(viewed, voice));
    let ending = until_end(&mut target, &signals, &mut family, sampling.as_mut(), &mut view);
    if let Some(view) = &mut view {
        view.last(&mut Own { family: &mut family, sampling: sampling.as_mut() });
    }
    // The terminal is as it was before.
    drop(view);
    if let Some(kept) = kept {
        live::show_output(&kept, voice);
    }
    family.note_end_of_first();
    if ending.is_none() {
        // A thread that waits for an answer about a library could not be left.
        family.listener = None;
    }
    target.leave(family.first_grip(), ending, voice)?;
    let ending = ending.unwrap_or(Ending::Exited(0));

    // The trace and the measured times are of the same rate. Measuring it takes until the run is some time old.
    if settings.measure.is_some() {
        clock::settle_rate();
    }
    let crashed = ending == Ending::Killed(libc::SIGSEGV);
    let crash = faults.filter(|_| crashed).and_then(|faults| faults.fatal(pid));
    let mut first = family.end_first(sampling.as_mut(), unplaced.as_ref(), crash);
    if family.follows() {
        events::until_alone(&signals, &mut family, sampling.as_mut());
    }
    let duration = began.elapsed();
    let alive = family.end_all(sampling.as_mut());
    if alive > 0 {
        let alive = gmon::counted(alive, "process still runs", "processes still run");
        voice.warn(format_args!("{alive}; what was counted up to now is written"));
    }
    let others = first.as_mut().map_or(0, |first| family.add_to_first(first));
    family.record_programs();
    let traced = family.tracer.take().map(Tracer::finish);
    let sampler_bytes = sampling.as_mut().map_or(0, |sampling| sampling.perf().ring_bytes());
    let (lost_samples, throttled) = sampling.as_ref().map_or((0, false), |s| (s.lost, s.throttled));
    drop(sampling);
    for trouble in &family.troubles {
        voice.warn(trouble);
    }
    if let Some(folder) = family.folder.take().filter(|_| !target.is_clean()) {
        // The next gprofinject that attaches to the process finds there what it has to take out.
        folder.keep();
    }
    let Some(first) = first else { return Err(anyhow!("the profile is lost").into()) };
    let (first, bytes) = first.finish()?;
    let Finished { profile, account, placed } = &first;
    // Where the agent was not put in, its report has nothing to say.
    let trouble = target.not_entered().map(str::to_owned).or_else(|| account.trouble.clone());
    if let Some(trouble) = trouble {
        if target.was_hooked() {
            voice.warn(&trouble);
        } else if unplaced.is_none() {
            voice.warn(format_args!("nothing was hooked: {trouble}"));
        }
        notes.push(trouble);
    }
    conclusion::say_what_was_not_followed(&family, voice);
    if planned.wants_libraries() {
        for pattern in settings.filters.unused() {
            voice.warn(format_args!(
                "{pattern} matches no function of {} or its libraries",
                program.binary.display()
            ));
        }
    }
    for pattern in settings.args.iter().flat_map(|args| args.unused()) {
        voice.warn(format_args!(
            "{pattern} matches no function of {} or its libraries",
            program.binary.display()
        ));
    }
    if let Some(pattern) = settings.libs.unused().next().filter(|_| planned.wants_libraries()) {
        voice.warn(format_args!(
            "--libs '{pattern}' matches no library that was loaded; ldd shows the names of libraries"
        ));
    }
    notes.extend(family.unfollowed.iter().cloned());
    let run = Run {
        planned,
        engine: settings.engine.name(),
        binary: &program.binary,
        ending,
        profile,
        account,
        placed,
        sampler: choice.method.name(),
        rate: choice.rate,
        lost_samples,
        throttled,
        sampler_bytes,
        plan_bytes: profilee.plan_len(),
        injector_ns,
        notes: &notes,
        libs: settings.libs.typed(),
        unhooked: &family.unhooked,
        processes: 1 + others,
        others: &family.others,
        traced: traced.as_ref(),
        duration,
    };
    let files = Files { output: &output, stats: stats.as_ref(), profilee, first: &first, bytes: &bytes };
    conclusion::conclude(
        &run,
        &Asked { settings: &settings, program: &program },
        &files,
        family.results,
        pid as u32,
    )?;
    target.result(ending)
}

/// After this time, the target's end is looked for even if more signals have arrived.
const LONGEST_TURN: Duration = Duration::from_millis(40);

/// Waits for the end of the target, and meanwhile handles events for the family, the sampler and signals.
/// Returns `None` if the target is to be left while it runs.
fn until_end(
    target: &mut impl Target,
    signals: &Signals,
    family: &mut Family,
    mut sampling: Option<&mut Sampling>,
    view: &mut Option<View>,
) -> Option<Ending> {
    let pid = target.pid();
    loop {
        if let Some(ending) = target.ending() {
            return Some(ending);
        }
        let at_most = match target.patience() {
            Patience::Endless => None,
            Patience::AtMost(time) => Some(time),
            Patience::Over => return None,
        };
        let at_most = at_most.into_iter().chain(view.as_ref().map(View::patience)).min();
        let typed = view.as_ref().and_then(View::descriptor);
        let also: Vec<RawFd> = target.descriptor().into_iter().chain(typed).collect();
        events::wait(signals, family, sampling.as_deref_mut(), &also, at_most);
        let turn = Instant::now();
        while let Some(arrived) = signals.next() {
            let is_asked = family.is_asked_by(arrived.signal, sampling.as_deref_mut());
            if !is_asked && !target.hear(arrived) {
                return None;
            }
            family.is_over |= !is_asked && arrived.signal == libc::SIGTERM;
            // To hear of a signal can take longer than until the next one arrives.
            if turn.elapsed() > LONGEST_TURN {
                break;
            }
        }
        let mut own = Own { family: &mut *family, sampling: sampling.as_deref_mut() };
        if !live::turn(view, &mut own, pid) {
            return None;
        }
    }
}

/// Begins the live view. Without one, the profile goes on.
fn begin_view(viewed: Viewed, voice: Voice) -> Option<View> {
    let Viewed { look, subject, output, is_output } = viewed;
    let text = match is_output {
        true => std::io::stdout().as_fd().try_clone_to_owned(),
        false => std::io::stderr().as_fd().try_clone_to_owned(),
    };
    let view = text.and_then(|text| View::new(look, subject, output, text));
    view.map_err(|error| voice.warn(format_args!("there is no live view: {}", sys::reason(&error)))).ok()
}

fn sample(scope: Scope, rate: u32, follow: bool, measure: Option<Measure>) -> std::io::Result<Sampling> {
    let is_traced = measure.is_some_and(|measure| measure.trace.is_some());
    let perf = Perf::open(scope, rate, follow, is_traced)?;
    if scope == Scope::Machine {
        perf.enable();
    }
    Ok(Sampling::new(perf, measure.is_some()))
}
