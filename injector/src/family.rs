//! The processes of a run: the first one, its children, and what they execute.
//!
//! A *member* is one program in one process: a process that executes another program becomes another member.
//! Members announce themselves (`listener`); their counters are read when their process has gone.

use crate::attach::engine::Attached;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gprofinject_abi::ask;

use crate::collect::Collected;
use crate::histogram::Histogram;
use crate::listener::{Asker, Listener};
use crate::logbook::Logbook;
use crate::output::Output;
use crate::placement::Placed;
use crate::profilee::{Profilee, Profilees};
use crate::region::{AgentState, Orders};
use crate::resolve;
use crate::run_folder::RunFolder;
use crate::sampler::Sampling;
use crate::settings::Settings;
use crate::spawn::FIRST;
use crate::sys::{self, Handle};

pub(crate) mod control;
mod counted;

use control::Baseline;
use counted::has_guests;
pub(crate) use counted::{counted, guests};

pub(crate) struct Family<'s> {
    pub(crate) settings: &'s Settings,
    pub(crate) output: &'s Output,
    logbook: Option<Logbook>,
    /// When samples were kept the last time.
    kept: Instant,
    listener: Option<Listener>,
    profilees: Profilees,
    orders: Orders,
    /// Samples per second.
    rate: u32,
    /// All there ever were, in the order in which they began.
    members: Vec<Member>,
    /// By the member's place: what was counted when its counts were set to zero, the way to its threads, and
    /// whether it is paused.
    baselines: HashMap<usize, Baseline>,
    engines: HashMap<usize, Attached>,
    paused: BTreeSet<usize>,
    /// By its number: a process that has not ended, as far as we know.
    living: BTreeMap<i32, Living>,
    /// Names handed out in the run folder.
    names: u32,
    /// The first name under which each plan was written.
    plan_names: HashMap<u32, String>,
    /// Profiles of each process so far.
    written: HashMap<i32, u32>,
    /// Members that have gone.
    pub(crate) others: Vec<Other>,
    /// What was executed and could not be followed, or not be hooked as was asked, and why.
    pub(crate) strangers: BTreeSet<String>,
    /// Profiles that could not be written where they should be.
    pub(crate) troubles: Vec<String>,
    /// None: no agent, so only the first process, which is only sampled. Dropped last: to remove it takes a
    /// descriptor, and there may be none but those above.
    pub(crate) folder: Option<RunFolder>,
}

/// Packets that are heard before something else has its turn, signals among others.
const AT_ONCE: usize = 256;

struct Member {
    pid: i32,
    profilee: &'static Profilee,
    /// In the run folder.
    name: String,
}

struct Living {
    /// None: the first process, whose end `waitpid` tells.
    handle: Option<Handle>,
    /// The members that the process is, or was before it executed another program; in their order. Their
    /// profiles are not written yet.
    members: Vec<usize>,
}

impl Living {
    fn has_ended(&self) -> bool {
        self.handle.as_ref().is_some_and(Handle::has_ended)
    }
}

/// A member beside the first, after its end.
pub(crate) struct Other {
    pub(crate) pid: i32,
    pub(crate) profilee: &'static Profilee,
    pub(crate) file: PathBuf,
    /// What gprof takes names from.
    pub(crate) symbols: OsString,
    pub(crate) calls: u64,
    pub(crate) placed: Placed,
    pub(crate) collected: Collected,
}

/// What is known of the first process at its end.
pub(crate) struct Finished {
    pub(crate) collected: Collected,
    pub(crate) placed: Placed,
    pub(crate) bytes: Vec<u8>,
}

impl Finished {
    /// Whether the process has executed its program, as far as that can be told. If it could not, its counters are as
    /// they were made; if anything else is in them or is missing, the process had begun.
    pub(crate) fn is_worth_writing(&self, state: AgentState) -> bool {
        state != AgentState::New || self.collected.damage.is_some() || self.collected.calls() > 0
    }
}

impl<'s> Family<'s> {
    pub(crate) fn new(
        settings: &'s Settings,
        output: &'s Output,
        folder: Option<RunFolder>,
        profilees: Profilees,
        orders: Orders,
        rate: u32,
    ) -> Family<'s> {
        let logbook = folder.as_ref().map(|folder| Logbook::create(folder.private(), settings, rate));
        let listener = folder.as_ref().map(|folder| Listener::new(folder.private()));
        let mut strangers = BTreeSet::new();
        if let Some(Err(error)) = &listener {
            strangers.insert(format!("children are not followed, nobody can ask: {}", sys::reason(error)));
        }
        Family {
            settings,
            output,
            folder,
            logbook: logbook.and_then(Result::ok),
            kept: Instant::now(),
            listener: listener.and_then(Result::ok),
            profilees,
            orders,
            rate,
            members: Vec::new(),
            baselines: HashMap::new(),
            engines: HashMap::new(),
            paused: BTreeSet::new(),
            living: BTreeMap::new(),
            names: 1,
            plan_names: HashMap::from([(0, FIRST.to_owned())]),
            written: HashMap::new(),
            others: Vec::new(),
            strangers,
            troubles: Vec::new(),
        }
    }

    pub(crate) fn follows(&self) -> bool {
        self.orders.follow && self.listener.is_some()
    }

    /// The first member.
    pub(crate) fn begin(&mut self, pid: i32, profilee: &'static Profilee, sampling: Option<&mut Sampling>) {
        self.enter(profilee);
        self.join(pid, profilee, FIRST.to_owned(), false, sampling);
    }

    /// A program that the run had not yet. What cannot be written down cannot be recovered, no more.
    fn enter(&mut self, profilee: &Profilee) {
        if let Some(logbook) = &mut self.logbook
            && logbook.entries.programs.len() == profilee.number as usize
        {
            let _ = logbook.add(&profilee.binary, profilee.shown.clone());
        }
    }

    fn join(
        &mut self,
        pid: i32,
        profilee: &'static Profilee,
        name: String,
        at_exec: bool,
        sampling: Option<&mut Sampling>,
    ) {
        let index = self.members.len();
        let handle = || (index > 0).then(|| Handle::of(pid));
        let process =
            self.living.entry(pid).or_insert_with(|| Living { handle: handle(), members: Vec::new() });
        process.members.push(index);
        self.members.push(Member { pid, profilee, name });
        if let Some(sampling) = sampling {
            sampling.announce(pid, &profilee.planned.subject.code, profilee.planned.shape, at_exec);
        }
    }

    /// What to poll: whoever asks, and processes that end.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let handles = self.living.values().filter_map(|process| process.handle.as_ref()?.descriptor());
        self.listener.iter().flat_map(Listener::descriptors).chain(handles)
    }

    /// Hears whoever has come, and sees who has gone. True: there may be more to hear.
    pub(crate) fn attend(&mut self, mut sampling: Option<&mut Sampling>) -> bool {
        // Ends first: a new process may have an old one's number.
        let ended = self.living.iter().filter(|(_, process)| process.has_ended());
        let mut ended: Vec<(Option<usize>, i32)> =
            ended.map(|(pid, process)| (process.members.first().copied(), *pid)).collect();
        // In the order in which they began.
        ended.sort_unstable();
        for (_, pid) in ended {
            self.end(pid, sampling.as_deref_mut());
        }
        let heard = self.listener.as_ref().map(|listener| listener.heard(AT_ONCE)).unwrap_or_default();
        let is_more = heard.len() >= AT_ONCE;
        for mut asker in heard {
            self.hear(&mut asker, sampling.as_deref_mut());
        }
        is_more
    }

    fn hear(&mut self, asker: &mut Asker, sampling: Option<&mut Sampling>) {
        match asker.packet.split_first() {
            Some((&ask::FORKED, name)) => self.forked(asker.pid, name, sampling),
            Some((&ask::EXECUTES, _)) => {
                let name = self.executes(asker, sampling).unwrap_or_default();
                asker.answer(name.as_bytes());
                self.settings.cache.keep_fresh();
            }
            Some((&ask::CONTROL, request)) => self.control(asker, request, sampling),
            _ => {}
        }
    }

    /// A child has begun, and counts in a region file of that name.
    fn forked(&mut self, pid: i32, name: &[u8], sampling: Option<&mut Sampling>) {
        let Some(folder) = &self.folder else { return };
        let Ok(name) = std::str::from_utf8(name) else { return };
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return;
        }
        if self.members.iter().any(|member| member.name == name) {
            return;
        }
        let profilee = folder.region(name).report().ok().and_then(|report| self.profilees.get(report.plan));
        if let Some(profilee) = profilee {
            self.join(pid, profilee, name.to_owned(), false, sampling);
        }
    }

    /// A process is about to execute a program: the name it goes on by, if it can be followed.
    fn executes(&mut self, asker: &mut Asker, sampling: Option<&mut Sampling>) -> Option<String> {
        let pid = asker.pid;
        let file = asker.file.take()?;
        // The process may hold capabilities yet that the program will not have. And what another user opens is not for
        // us to read.
        if asker.user != sys::ids().euid {
            let name = resolve::Executed::new(file).name;
            self.strangers.insert(format!("{} was not followed: it runs as another user", name.display()));
            return None;
        }
        let executed = resolve::executed(pid, file)?;
        let binary = &executed.name;
        let profilee = match self.profilees.executed(&executed.path(), binary, self.settings) {
            Ok(profilee) => profilee,
            Err(why) => {
                self.strangers.insert(format!("{} was not followed: {why}", binary.display()));
                return None;
            }
        };
        if let Some(less) = profilee.planned.plan.as_ref().and_then(|plan| plan.downgrade.as_ref()) {
            self.strangers.insert(format!("{}: {less}", binary.display()));
        }
        self.enter(profilee);
        let name = self.names.to_string();
        self.names += 1;
        if let Err(error) = self.make_files(profilee, &name) {
            let why = sys::reason(&error);
            self.strangers.insert(format!("{} was not followed: {why}", binary.display()));
            return None;
        }
        self.join(pid, profilee, name.clone(), true, sampling);
        Some(name)
    }

    fn make_files(&mut self, profilee: &Profilee, name: &str) -> std::io::Result<()> {
        let missing = || std::io::Error::from_raw_os_error(libc::ENOENT);
        let folder = self.folder.as_ref().ok_or_else(missing)?;
        let (plan, layout) = profilee.plan.as_ref().ok_or_else(missing)?;
        let orders = Orders { plan: profilee.number, ..self.orders };
        if let Some(other) = self.plan_names.get(&profilee.number) {
            return folder.add_like(name, other, layout, orders);
        }
        folder.add(name, plan, layout, orders)?;
        self.plan_names.insert(profilee.number, name.to_owned());
        Ok(())
    }

    /// A process has gone: writes the profiles of its programs.
    fn end(&mut self, pid: i32, mut sampling: Option<&mut Sampling>) {
        if let Some(sampling) = sampling.as_deref_mut() {
            sampling.settle();
            sampling.forget(pid);
        }
        for index in self.living.remove(&pid).into_iter().flat_map(|process| process.members) {
            self.finish(index, sampling.as_deref_mut());
        }
    }

    /// All that are left: their process has gone, or nobody waits for it any more. How many live on.
    pub(crate) fn end_all(&mut self, mut sampling: Option<&mut Sampling>) -> usize {
        // Who floods us does not keep us from the end.
        let until = Instant::now() + Duration::from_secs(5);
        while self.attend(sampling.as_deref_mut()) && Instant::now() < until {}
        // Some may have announced themselves just now, and have gone.
        let lives = |process: &&Living| process.handle.is_some() && !process.has_ended();
        let alive = self.living.values().filter(lives).count();
        if let Some(sampling) = sampling.as_deref_mut() {
            sampling.settle();
        }
        let left = std::mem::take(&mut self.living).into_values();
        let mut left: Vec<usize> = left.flat_map(|process| process.members).collect();
        left.sort_unstable();
        for index in left {
            self.finish(index, sampling.as_deref_mut());
        }
        for index in 0..self.members.len() {
            self.finish_guests(index, sampling.as_deref());
        }
        alive
    }

    /// Children that could make no file of their own, and counted in this member's.
    fn finish_guests(&mut self, index: usize, sampling: Option<&Sampling>) {
        let (Some(member), Some(folder)) = (self.members.get(index), &self.folder) else { return };
        let profilee = member.profilee;
        // Only a process that is followed makes the agent count its children.
        if !self.orders.follow {
            return;
        }
        let region = folder.region(&member.name);
        let early = |pid| sampling.into_iter().flat_map(move |sampling| sampling.early(pid));
        for (pid, finished) in guests(&region, profilee, early, self.rate, &mut self.troubles) {
            self.write_other(pid as i32, profilee, finished);
        }
    }

    fn finish(&mut self, index: usize, sampling: Option<&mut Sampling>) {
        let Some(member) = self.members.get(index) else { return };
        let (pid, profilee, name) = (member.pid, member.profilee, member.name.clone());
        let samples = sampling.and_then(|sampling| sampling.take(index));
        let Some((finished, state)) = self.counted(profilee, &name, index, samples, None) else { return };
        // A child that will be a guest may not have said so yet, but it has the file mapped since its fork.
        if let Some(folder) = &self.folder
            && folder.region(&name).is_counted_in() != Some(true)
            && !has_guests(&folder.region(&name))
        {
            folder.remove_region(&name);
        }
        if finished.is_worth_writing(state) {
            self.write_other(pid, profilee, finished);
        }
    }

    fn write_other(&mut self, pid: i32, profilee: &'static Profilee, finished: Finished) {
        let Finished { collected, placed, bytes } = finished;
        let calls = collected.calls();
        // There is nothing to tell.
        if calls == 0 && placed.inside == 0 {
            return;
        }
        let before = self.written.entry(pid).or_default();
        match self.output.write_other(pid as u32, *before, &bytes) {
            Ok(written) => {
                *before += 1;
                self.troubles
                    .extend(written.detour.map(|d| format!("{d}; it is in {}", written.path.display())));
                let (symbols, note) = profilee.symbols_beside(self.output, &written.path);
                self.strangers.extend(note);
                self.others.push(Other {
                    pid,
                    profilee,
                    file: written.path,
                    symbols,
                    calls,
                    placed,
                    collected,
                });
            }
            Err(error) => self.troubles.push(format!("{error:#}")),
        }
    }

    /// The first process has gone. `homeless`: why there is no run folder, if there should be one. `crash`: see
    /// [`crate::collect::collect`].
    pub(crate) fn end_first(
        &mut self,
        sampling: Option<&mut Sampling>,
        homeless: Option<&String>,
        crash: Option<u64>,
    ) -> Option<Finished> {
        let member = self.members.first()?;
        let (pid, profilee, name) = (member.pid, member.profilee, member.name.clone());
        // What it has executed is left, to the end.
        if let Some(process) = self.living.get_mut(&pid) {
            process.members.retain(|&index| index > 0);
            if process.members.is_empty() {
                self.living.remove(&pid);
            }
        }
        self.written.insert(pid, 1);
        let samples = sampling.and_then(|sampling| {
            sampling.settle();
            sampling.take(0)
        });
        let (mut finished, _) = self.counted(profilee, &name, 0, samples, crash)?;
        finished.collected.trouble = finished.collected.trouble.or_else(|| homeless.cloned());
        Some(finished)
    }

    fn counted(
        &mut self,
        profilee: &'static Profilee,
        name: &str,
        index: usize,
        samples: Option<Histogram>,
        crash: Option<u64>,
    ) -> Option<(Finished, AgentState)> {
        let region = self.folder.as_ref().map(|folder| folder.region(name));
        let baseline = self.baselines.get(&index);
        let counted =
            counted(region.as_ref(), profilee, samples, crash, self.rate, baseline, &mut self.troubles)?;
        self.troubles.extend(counted.0.collected.damage.map(str::to_owned));
        Some(counted)
    }

    /// The way to the first process's threads, which was attached to.
    pub(crate) fn attached(&mut self) -> &mut HashMap<usize, Attached> {
        &mut self.engines
    }

    /// Keeps the samples, now and then, where `--recover` finds them should we be killed.
    pub(crate) fn keep_samples(&mut self, sampling: &Sampling) {
        const OFTEN: Duration = Duration::from_secs(1);
        let Some(folder) = &self.folder else { return };
        if self.kept.elapsed() < OFTEN {
            return;
        }
        self.kept = Instant::now();
        for &index in self.living.values().flat_map(|process| &process.members) {
            if let (Some(member), Some(histogram)) = (self.members.get(index), sampling.histogram(index)) {
                folder.keep_samples(&member.name, &histogram.encode());
            }
        }
    }
}
