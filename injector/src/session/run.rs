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
use crate::program::profilee::{Profilee, Profilees};
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
use crate::trace::messages::Summary;
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
    settings.planner().keep(&program.binary, Role::Program, profilee.planned);
    let timer_rate = if choice.method == Method::Timer { choice.rate } else { 0 };
    let orders = Orders { timer_rate, follow, plan: profilee.number, ..Orders::default() };
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

/// A run, from the process's entrance to the report.
struct Session<'s, T> {
    profilee: &'static Profilee,
    choice: Choice,
    insists: bool,
    voice: Voice,
    signals: Signals,
    target: T,
    family: Family<'s>,
    /// The samples by perf events, if these are taken.
    sampling: Option<Sampling>,
    /// Where the process crashes, if it can be known.
    faults: Option<Faults>,
    /// Why nothing was placed that would hook the process.
    unplaced: Option<String>,
    /// What is said of the run in its statistics.
    notes: Vec<String>,
}

/// What lies ready for the process.
struct Placed {
    folder: Option<RunFolder>,
    unplaced: Option<String>,
}

/// What the run has left.
struct Collected {
    first: Finished,
    /// The gmon.out of the first program.
    bytes: Vec<u8>,
    traced: Option<Summary>,
    /// The number of processes that ran the first program beside the first one.
    others: u32,
    lost_samples: u64,
    throttled: bool,
    sampler_bytes: u64,
    duration: Duration,
}

/// Where the run is written, and what it took.
struct Written<'w> {
    output: &'w Output,
    stats: Option<&'w File>,
    injector_ns: u64,
}

/// Says what is known before the start, and returns it for the statistics.
fn said_before(planned: &Planned, choice: &Choice, voice: Voice) -> Vec<String> {
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

impl<T: Target> Session<'_, T> {
    /// Begins to take samples, unless the agent takes them or nobody does.
    ///
    /// # Errors
    /// No samples can be taken, and a profile without them is not wanted.
    fn begin_sampling(&mut self) -> Result<(), Failure> {
        let (pid, planned) = (self.target.pid(), self.profilee.planned);
        if self.choice.method == Method::Perf {
            let scope = self.target.scope();
            match sample(scope, self.choice.rate, self.family.follows(), planned.measure) {
                Ok(begun) => self.sampling = Some(begun),
                Err(error) => {
                    let why = perf::refusal(&error, scope);
                    if self.insists {
                        return Err(self.target.failed(anyhow!(why)).into());
                    }
                    self.voice.warn(format_args!("no samples are taken: {why}"));
                    (self.choice.method, self.choice.rate) = (Method::None, 0);
                    self.notes.push(why);
                }
            }
        }
        // Without perf events, the place of a crash is not known.
        self.faults = if planned.counts { Faults::open(pid).ok() } else { None };
        self.family.begin(pid, self.profilee);
        if let Some(sampling) = &mut self.sampling {
            let code = &planned.subject.code;
            match self.target.bias(planned) {
                Some(bias) => sampling.announce_running(pid, code, planned.shape, bias),
                None => sampling.announce(pid, code, planned.shape, false),
            }
        }
        Ok(())
    }

    /// Does everything that can be done before the profile begins.
    ///
    /// # Errors
    /// No profile is possible.
    fn make_ready(&mut self) -> Result<(), Failure> {
        let (pid, planned) = (self.target.pid(), self.profilee.planned);
        let follows = self.family.follows();
        if planned.wants_libraries() {
            self.family.listen_outside(self.target.bias(planned).map(|_| pid));
        }
        let wanted = match planned.libraries {
            Some(_) => {
                let loaded = self.target.loaded();
                self.family.running(pid, loaded).map_err(|error| self.target.failed(error))?
            }
            None => Vec::new(),
        };
        let (folder, libraries) = (self.family.folder.as_ref(), &self.family.libraries);
        let readying = Readying { folder, planned, libraries, wanted: &wanted, follows, voice: self.voice };
        match self.target.make_ready(&readying) {
            Ok(Ready { grip, agent, unhooked }) => {
                self.family.hold_first(grip);
                if let (Some(sampling), Some(code)) = (&mut self.sampling, agent) {
                    sampling.note_code(pid, code);
                }
                for (library, why) in unhooked {
                    self.family.leave(pid, &library, Unhooked::Refused(why.into()));
                }
            }
            Err(error) => {
                if !self.target.is_clean() {
                    self.family.folder.take().into_iter().for_each(RunFolder::keep);
                }
                return Err(self.target.failed(error).into());
            }
        }
        if let (Some(sampling), Scope::Running(_)) = (&mut self.sampling, self.target.scope()) {
            sampling.perf().enable();
        }
        Ok(())
    }

    /// Lets the program run to its end, or until the user has had enough. Returns how it has ended, if it has.
    ///
    /// # Errors
    /// The process has ended before the profile began.
    fn observe(&mut self, viewed: Option<Viewed>) -> Result<Option<Ending>, Failure> {
        self.target.begin(self.voice)?;
        if self.target.allows_threads() {
            self.family.settings.cache.keep_fresh();
        }
        let kept = viewed.as_ref().and_then(|viewed| viewed.output.as_ref()?.try_clone().ok());
        let mut view = viewed.and_then(|viewed| begin_view(viewed, self.voice));
        let ending =
            until_end(&mut self.target, &self.signals, &mut self.family, self.sampling.as_mut(), &mut view);
        if let Some(view) = &mut view {
            view.last(&mut Own { family: &mut self.family, sampling: self.sampling.as_mut() });
        }
        // The terminal is as it was before.
        drop(view);
        if let Some(kept) = kept {
            live::show_output(&kept, self.voice);
        }
        Ok(ending)
    }

    /// Leaves the process alone from now on. Returns how it has ended: well, if it still runs.
    ///
    /// # Errors
    /// The program was never executed.
    fn leave(&mut self, ending: Option<Ending>) -> Result<Ending, Failure> {
        self.family.note_end_of_first();
        if ending.is_none() {
            // A thread that waits for an answer about a library could not be left.
            self.family.listener = None;
        }
        self.target.leave(self.family.first_grip(), ending, self.voice)?;
        Ok(ending.unwrap_or(Ending::Exited(0)))
    }

    /// Reads what all processes have counted, as soon as the last one has ended. `began` is when the program began.
    ///
    /// # Errors
    /// What the first process has counted is lost.
    fn collect(&mut self, ending: Ending, began: Instant) -> Result<Collected, Failure> {
        let family = &mut self.family;
        // The trace and the measured times are of the same rate. Measuring it takes until the run is some time old.
        if family.settings.measure.is_some() {
            clock::settle_rate();
        }
        let crashed = ending == Ending::Killed(libc::SIGSEGV);
        let crash = self.faults.take().filter(|_| crashed).and_then(|faults| faults.fatal(self.target.pid()));
        let mut first = family.end_first(self.sampling.as_mut(), self.unplaced.as_ref(), crash);
        if family.follows() {
            events::until_alone(&self.signals, family, self.sampling.as_mut());
        }
        let duration = began.elapsed();
        let alive = family.end_all(self.sampling.as_mut());
        if alive > 0 {
            let alive = gmon::counted(alive, "process still runs", "processes still run");
            self.voice.warn(format_args!("{alive}; what was counted up to now is written"));
        }
        let others = first.as_mut().map_or(0, |first| family.add_to_first(first));
        family.record_programs();
        let traced = family.tracer.take().map(Tracer::finish);
        let mut sampling = self.sampling.take();
        let sampler_bytes = sampling.as_mut().map_or(0, |sampling| sampling.perf().ring_bytes());
        let (lost_samples, throttled) = sampling.as_ref().map_or((0, false), |s| (s.lost, s.throttled));
        drop(sampling);
        for trouble in &family.troubles {
            self.voice.warn(trouble);
        }
        if let Some(folder) = family.folder.take().filter(|_| !self.target.is_clean()) {
            // The next gprofinject that attaches to the process finds there what it has to take out.
            folder.keep();
        }
        let Some(first) = first else { return Err(anyhow!("the profile is lost").into()) };
        let (first, bytes) = first.finish()?;
        Ok(Collected { first, bytes, traced, others, lost_samples, throttled, sampler_bytes, duration })
    }

    /// Writes everything, and says what there is to say.
    ///
    /// # Errors
    /// The profile cannot be written, or the process could not be left.
    fn report(
        mut self,
        ending: Ending,
        collected: &Collected,
        asked: &Asked,
        written: &Written,
    ) -> Result<Ending, Failure> {
        let Finished { profile, account, placed } = &collected.first;
        // Where the agent was not put in, its report has nothing to say.
        let trouble = self.target.not_entered().map(str::to_owned).or_else(|| account.trouble.clone());
        if let Some(trouble) = trouble {
            if self.target.was_hooked() {
                self.voice.warn(&trouble);
            } else if self.unplaced.is_none() {
                self.voice.warn(format_args!("nothing was hooked: {trouble}"));
            }
            self.notes.push(trouble);
        }
        conclusion::say_what_was_not_followed(&self.family, self.voice);
        conclusion::say_what_matched_nothing(asked, self.profilee.planned);
        self.notes.extend(self.family.unfollowed.iter().cloned());
        let pid = self.target.pid() as u32;
        let run = Run {
            planned: self.profilee.planned,
            engine: asked.settings.engine.name(),
            binary: &asked.program.binary,
            ending,
            profile,
            account,
            placed,
            sampler: self.choice.method.name(),
            rate: self.choice.rate,
            lost_samples: collected.lost_samples,
            throttled: collected.throttled,
            sampler_bytes: collected.sampler_bytes,
            plan_bytes: self.profilee.plan_len(),
            injector_ns: written.injector_ns,
            notes: &self.notes,
            libs: asked.settings.libs.typed(),
            unhooked: &self.family.unhooked,
            processes: 1 + collected.others,
            others: &self.family.others,
            traced: collected.traced.as_ref(),
            duration: collected.duration,
        };
        let files = Files {
            output: written.output,
            stats: written.stats,
            profilee: self.profilee,
            first: &collected.first,
            bytes: &collected.bytes,
        };
        conclusion::conclude(&run, asked, &files, self.family.results, pid)?;
        self.target.result(ending)
    }
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
