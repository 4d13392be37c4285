//! One run, from a planned program to the last message about it.

use std::time::Instant;

use anyhow::{Context, Result};
use gmon::output::Target as File;

use crate::os::child::Ending;
use crate::os::failure::Failure;
use crate::os::heir::Heir;
use crate::os::say::Voice;
use crate::os::signals::{self, Signals};
use crate::program::plan_cache::key::ReadFor;
use crate::program::planned::Planned;
use crate::program::profilee::{Profilee, Profilees};
use crate::program::resolve::Program;
use crate::sampling::sampler::{Choice, Method};
use crate::session::conclusion::Asked;
use crate::session::family::Family;
use crate::session::phases::{Session, Viewed, Written};
use crate::session::results::Results;
use crate::session::settings::Settings;
use crate::store::exports::Exports;
use crate::store::output::Output;
use crate::store::region::layout::Orders;
use crate::store::run_folder::{FIRST, RunFolder};
use crate::target::contract::Target;
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
        choice,
        agent_wanted,
        follow,
        insists,
        output,
        exports,
        tracer,
        stats,
        viewed,
        heir,
        start,
    } = prepared;
    let voice = settings.voice;
    let notes = said_before(&planned, &choice, voice);
    // From here on, the limit on file sizes causes an error in the injector and not a signal.
    let signals = Signals::take().context("cannot take over signals")?;
    let agent_wanted = planned.hooked() > 0 || planned.wants_libraries() || agent_wanted;
    let mut profilees = Profilees::default();
    let profilee = profilees.first(&program.binary, program.shown.clone(), planned, agent_wanted);
    settings.planner().keep(&program.binary, ReadFor::Program, profilee.planned);
    let timer_rate = if choice.method == Method::Timer { choice.rate } else { 0 };
    let shadow_stacks = settings.shadow_stacks;
    let orders = Orders { timer_rate, follow, plan: profilee.number, shadow_stacks, ..Orders::default() };
    let is_partial_allowed = choice.method == Method::Perf && !insists;
    let Placed { folder, unplaced } = place(&settings, profilee, orders, heir, is_partial_allowed)?;
    let results = Results::new(&output, Some(&exports), profilee);
    let family = Family::new(&settings, results, folder, profilees, orders, choice.rate, tracer);
    let entrance =
        Entrance { program: &program, folder: family.folder.as_ref(), inherited: signals.inherited() };
    let target = enter(&entrance)?;

    let (sampling, faults) = (None, None);
    let mut session = Session {
        profilee,
        choice,
        insists,
        voice,
        signals,
        target,
        family,
        sampling,
        faults,
        unplaced,
        notes,
    };
    session.begin_sampling()?;
    session.make_ready()?;
    let injector_ns = start.elapsed().as_nanos() as u64;
    let began = Instant::now();
    let ending = session.observe(viewed)?;
    let ending = session.leave(ending)?;
    let collected = session.collect(ending, began)?;
    let asked = Asked { settings: &settings, program: &program };
    let written = Written { output: &output, stats: stats.as_ref(), injector_ns };
    session.report(ending, &collected, &asked, &written)
}

/// What lies ready for the process.
struct Placed {
    folder: Option<RunFolder>,
    unplaced: Option<String>,
}

/// Says what is known before the start, and returns it for the statistics.
fn said_before(planned: &Planned, choice: &Choice, voice: Voice) -> Vec<String> {
    let mut notes: Vec<String> = planned.unhookable().map(str::to_owned).into_iter().collect();
    notes.extend(planned.plan.iter().filter_map(|plan| plan.downgrade.clone()));
    for reason in &choice.reasons {
        if choice.method == Method::None {
            voice.warn(format_args!("no samples are taken: {reason}"));
        } else {
            voice.detail(format_args!("sampling by {}: {reason}", choice.method.name()));
        }
        notes.push(reason.clone());
    }
    notes
}

/// Lays agent, plan and region file in a private folder, if there is anything to hook.
///
/// # Errors
/// They cannot be placed, and `is_partial_allowed` is not set: without them, the process would only be sampled.
fn place(
    settings: &Settings,
    profilee: &Profilee,
    orders: Orders,
    heir: Option<Heir>,
    is_partial_allowed: bool,
) -> Result<Placed> {
    let Some((plan, layout)) = &profilee.plan else { return Ok(Placed { folder: None, unplaced: None }) };
    match RunFolder::create(FIRST, settings.engine, plan, layout, orders, heir) {
        Ok(folder) => Ok(Placed { folder: Some(folder), unplaced: None }),
        // An incomplete profile is better than none.
        Err(error) if is_partial_allowed => {
            settings.voice.warn(format_args!("{error:#}; nothing is hooked, the program is only sampled"));
            Ok(Placed { folder: None, unplaced: Some(format!("{error:#}")) })
        }
        Err(error) => Err(error),
    }
}
