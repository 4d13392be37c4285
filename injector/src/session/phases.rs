//! The phases of a run after the process has been entered: sample, make ready, observe, leave, collect, report.

use std::fs;
use std::os::fd::{AsFd, RawFd};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use gmon::output::Target as File;

use crate::live::model::Subject;
use crate::live::view::{Look, View};
use crate::options::Measure;
use crate::os::child::{self, Ending};
use crate::os::clock;
use crate::os::failure::Failure;
use crate::os::say::Voice;
use crate::os::signals::Signals;
use crate::os::sys;
use crate::profile::counted::Finished;
use crate::profile::recorder::Processes;
use crate::program::profilee::Profilee;
use crate::sampling::faults::Faults;
use crate::sampling::perf::{self, Perf, Scope};
use crate::sampling::sampler::{Choice, Method, Sampling, Tally};
use crate::sampling::unfollowed::Cost;
use crate::session::conclusion::{self, Asked, Files};
use crate::session::events;
use crate::session::family::Family;
use crate::session::live::{self, Own};
use crate::session::member::Unhooked;
use crate::session::outcome::Run;
use crate::session::python;
use crate::session::unfollowed::{Time, Unfollowed};
use crate::store::output::Output;
use crate::store::run_folder::RunFolder;
use crate::target::contract::{Patience, Ready, Readying, Target};
use crate::trace::messages::Summary;
use crate::trace::tracer::Tracer;

/// What is known of a live view before the start.
pub(crate) struct Viewed {
    pub(crate) look: Look,
    pub(crate) subject: Subject,
    /// The program's output, if it goes to a file because the view has the terminal.
    pub(crate) output: Option<fs::File>,
    /// Whether text goes to standard output, which is not the program's.
    pub(crate) is_output: bool,
}

/// A run whose process has been entered, up to the report.
pub(super) struct Session<'s, T> {
    pub(super) profilee: &'static Profilee,
    pub(super) choice: Choice,
    pub(super) insists: bool,
    pub(super) voice: Voice,
    pub(super) signals: Signals,
    pub(super) target: T,
    pub(super) family: Family<'s>,
    /// The samples by perf events, if these are taken.
    pub(super) sampling: Option<Sampling>,
    /// Where the process crashes, if it can be known.
    pub(super) faults: Option<Faults>,
    /// Why nothing was placed that would hook the process.
    pub(super) unplaced: Option<String>,
    /// What is said of the run in its statistics.
    pub(super) notes: Vec<String>,
}

/// What the processes of a run have counted, and what it took to observe them.
pub(super) struct Collected {
    first: Finished,
    /// The gmon.out of the first program.
    bytes: Vec<u8>,
    traced: Option<Summary>,
    watched: Option<Summary>,
    /// The processes that ran the first program.
    processes: Processes,
    tally: Tally,
    /// The samples of programs that were not followed.
    unfollowed: Vec<(String, Cost)>,
    /// Whether samples in the kernel were taken.
    samples_kernel: bool,
    sampler_bytes: u64,
    python: Vec<String>,
    duration: Duration,
}

/// Where the results of a run are written, and how long the injector needed before the program began.
pub(super) struct Written<'w> {
    pub(super) output: &'w Output,
    pub(super) stats: Option<&'w File>,
    pub(super) injector_ns: u64,
}

impl<T: Target> Session<'_, T> {
    /// Begins to take samples, unless the agent takes them or nobody does.
    ///
    /// # Errors
    /// No samples can be taken, and a profile without them is not wanted.
    pub(super) fn begin_sampling(&mut self) -> Result<(), Failure> {
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
    pub(super) fn make_ready(&mut self) -> Result<(), Failure> {
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
        let (folder, libraries) = (self.family.folder.as_ref(), self.family.libraries.numbered());
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
    pub(super) fn observe(&mut self, viewed: Option<Viewed>) -> Result<Option<Ending>, Failure> {
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
    pub(super) fn leave(&mut self, ending: Option<Ending>) -> Result<Ending, Failure> {
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
    pub(super) fn collect(&mut self, ending: Ending, began: Instant) -> Result<Collected, Failure> {
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
        // Nobody but the parent of a process learns how it has ended.
        let known = (!matches!(self.target.scope(), Scope::Running(_))).then_some(ending);
        let processes = first.as_mut().map(|first| family.add_to_first(first, known)).unwrap_or_default();
        family.record_programs();
        let traced = family.tracer.take().map(Tracer::finish);
        let (watched, traced) = match traced {
            Some(summary) if summary.slowest.is_some() => (Some(summary), None),
            other => (None, other),
        };
        let mut sampling = self.sampling.take();
        let sampler_bytes = sampling.as_mut().map_or(0, |sampling| sampling.perf().ring_bytes());
        let samples_kernel = sampling.as_mut().is_some_and(|sampling| sampling.perf().samples_kernel());
        let tally = sampling.as_ref().map(|sampling| sampling.tally).unwrap_or_default();
        let unfollowed = sampling.as_ref().filter(|_| family.follows());
        let unfollowed = unfollowed.map(|sampling| sampling.unfollowed().by_samples()).unwrap_or_default();
        let python = python::sentences(sampling.as_ref(), family.settings.python, self.voice);
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
        let collected = Collected {
            first,
            bytes,
            traced,
            watched,
            processes,
            tally,
            unfollowed,
            samples_kernel,
            sampler_bytes,
            python,
            duration,
        };
        Ok(collected)
    }

    /// Returns the programs that were not followed and took CPU time.
    fn unfollowed(&self, collected: &Collected) -> Unfollowed {
        let (family, rate) = (&self.family, self.choice.rate);
        // Only who has started the processes knows their CPU time, and only if samples were taken all the time.
        let is_known = family.follows()
            && self.choice.method != Method::None
            && matches!(self.target.scope(), Scope::Process(_) | Scope::Machine)
            && family.members.iter().all(|member| !member.is_paused && member.baseline.is_none());
        let (user, kernel) = child::cpu_time();
        let sampled = match self.choice.method {
            Method::Perf => collected.tally.taken.saturating_add(collected.tally.lost),
            _ => {
                let others = family.others.iter().map(|other| other.placed.all());
                others.fold(collected.first.placed.all(), u64::saturating_add)
            }
        };
        let has_kernel = self.choice.method != Method::Perf || collected.samples_kernel;
        let spent = if has_kernel { user + kernel } else { user };
        let time = Time { spent: is_known.then(|| Time::samples(spent, rate)), sampled, rate };
        let others = family.others.iter().map(|other| (other.profilee, &other.account));
        let mut all = others.chain([(self.profilee, &collected.first.account)]);
        let starter = all.find(|(_, account)| account.lost_programs > 0).map(|(profilee, _)| profilee.name());
        Unfollowed::new(collected.unfollowed.clone(), &family.alone, starter.as_deref(), &time)
    }

    /// Writes everything, and says what there is to say.
    ///
    /// # Errors
    /// The profile cannot be written, or the process could not be left.
    pub(super) fn report(
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
        for sentence in &collected.python {
            self.voice.note(sentence);
            self.notes.push(sentence.clone());
        }
        conclusion::say_what_matched_nothing(asked, self.profilee.planned);
        self.notes.extend(self.family.unfollowed.iter().cloned());
        let pid = self.target.pid() as u32;
        let unfollowed = self.unfollowed(collected);
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
            tally: collected.tally,
            sampler_bytes: collected.sampler_bytes,
            plan_bytes: self.profilee.plan_len(),
            injector_ns: written.injector_ns,
            notes: &self.notes,
            libs: asked.settings.libs.typed(),
            unhooked: &self.family.unhooked,
            processes: &collected.processes,
            others: &self.family.others,
            unfollowed: &unfollowed,
            traced: collected.traced.as_ref(),
            watched: collected.watched.as_ref(),
            cache: &asked.settings.cache,
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
    // What is measured has callers of its own.
    let perf = Perf::open(scope, rate, follow, is_traced, measure.is_none())?;
    if scope == Scope::Machine {
        perf.enable();
    }
    Ok(Sampling::new(perf, measure.is_some()))
}
