//! The processes of a run: the first one, its children, and what they execute; from their beginning to their profiles.
//!
//! How they announce themselves is in `listen`, and what can be done with them while they run in `control`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::os::sys::{self, Handle};
use crate::profile::counted::{Finished, counted, guests, has_guests};
use crate::program::profilee::{Profilee, Profilees};
use crate::sampling::histogram::Histogram;
use crate::sampling::sampler::Sampling;
use crate::session::member::{Living, Member, Other};
use crate::session::settings::Settings;
use crate::store::listener::Listener;
use crate::store::logbook::Logbook;
use crate::store::output::Output;
use crate::store::region::layout::{AgentState, Orders};
use crate::store::run_folder::{FIRST, RunFolder};
use crate::target::grip::Grip;

pub(crate) struct Family<'s> {
    pub(crate) settings: &'s Settings,
    pub(crate) output: &'s Output,
    logbook: Option<Logbook>,
    /// When samples were kept the last time.
    kept: Instant,
    /// None: nobody can announce a process or ask for anything.
    pub(crate) listener: Option<Listener>,
    pub(crate) profilees: Profilees,
    orders: Orders,
    /// Samples per second.
    pub(crate) rate: u32,
    /// All that there ever were, in the order in which they began.
    pub(crate) members: Vec<Member>,
    /// By process number.
    pub(crate) living: BTreeMap<i32, Living>,
    /// How many names have been given out in the run folder.
    names: u32,
    /// The first name under which each plan was written.
    plan_names: HashMap<u32, String>,
    /// How many profiles of each process have been written.
    pub(crate) written: HashMap<i32, u32>,
    /// Members that have ended, without the first one.
    pub(crate) others: Vec<Other>,
    /// Programs that were executed and could not be followed, or not be hooked as was asked, and why.
    pub(crate) unfollowed: BTreeSet<String>,
    /// Profiles that could not be written where they should be.
    pub(crate) troubles: Vec<String>,
    /// None: there is no agent, so there is only the first process, and it is only sampled. This is dropped last: to remove
    /// the folder takes a descriptor, and all of them may be in use by the fields above.
    pub(crate) folder: Option<RunFolder>,
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
        let logbook = folder.as_ref().map(|folder| Logbook::create(folder.private(), settings.entries(rate)));
        let listener = folder.as_ref().map(|folder| Listener::new(folder.private()));
        let mut unfollowed = BTreeSet::new();
        if let Some(Err(error)) = &listener {
            unfollowed.insert(format!("children are not followed, nobody can ask: {}", sys::reason(error)));
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
            living: BTreeMap::new(),
            names: 1,
            plan_names: HashMap::from([(0, FIRST.to_owned())]),
            written: HashMap::new(),
            others: Vec::new(),
            unfollowed,
            troubles: Vec::new(),
        }
    }

    pub(crate) fn follows(&self) -> bool {
        self.orders.follow && self.listener.is_some()
    }

    /// Makes the first process the first member.
    pub(crate) fn begin(&mut self, pid: i32, profilee: &'static Profilee) {
        self.enter(profilee);
        self.join(pid, profilee, FIRST.to_owned());
    }

    /// Replaces the hold on the first member.
    pub(crate) fn hold_first(&mut self, grip: Grip) {
        if let Some(first) = self.members.first_mut() {
            first.grip = grip;
        }
    }

    pub(crate) fn first_grip(&mut self) -> Option<&mut Grip> {
        self.members.first_mut().map(|member| &mut member.grip)
    }

    /// Enters a program in the logbook that is not there yet. What cannot be written down can only not be recovered.
    pub(crate) fn enter(&mut self, profilee: &Profilee) {
        if let Some(logbook) = &mut self.logbook
            && logbook.entries.programs.len() == profilee.number as usize
        {
            let _ = logbook.add(&profilee.binary, profilee.shown.clone());
        }
    }

    /// Adds a member, with the files of that name in the run folder.
    pub(crate) fn join(&mut self, pid: i32, profilee: &'static Profilee, name: String) {
        let index = self.members.len();
        let handle = || (index > 0).then(|| Handle::of(pid));
        let process =
            self.living.entry(pid).or_insert_with(|| Living { handle: handle(), members: Vec::new() });
        process.members.push(index);
        let grip = Grip::unopened(pid);
        self.members.push(Member { pid, profilee, name, grip, baseline: None, is_paused: false });
    }

    /// Descriptors to poll: whoever asks for something, and processes that end.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let handles = self.living.values().filter_map(|process| process.handle.as_ref()?.descriptor());
        self.listener.iter().flat_map(Listener::descriptors).chain(handles)
    }

    /// Makes the files of a member that is about to begin. Returns their name.
    pub(crate) fn make_files(&mut self, profilee: &Profilee) -> io::Result<String> {
        let name = self.names.to_string();
        self.names += 1;
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        let folder = self.folder.as_ref().ok_or_else(missing)?;
        let (plan, layout) = profilee.plan.as_ref().ok_or_else(missing)?;
        let orders = Orders { plan: profilee.number, ..self.orders };
        if let Some(other) = self.plan_names.get(&profilee.number) {
            folder.add_like(&name, other, layout, orders)?;
        } else {
            folder.add(&name, plan, layout, orders)?;
            self.plan_names.insert(profilee.number, name.clone());
        }
        Ok(name)
    }

    /// Writes the profiles of a process's programs after its end.
    pub(crate) fn end(&mut self, pid: i32, mut sampling: Option<&mut Sampling>) {
        if let Some(sampling) = sampling.as_deref_mut() {
            sampling.settle();
            sampling.forget(pid);
        }
        for index in self.living.remove(&pid).into_iter().flat_map(|process| process.members) {
            self.finish(index, sampling.as_deref_mut());
        }
    }

    /// Writes the profiles of all members that are left. Either their process has ended, or nobody waits for it any more.
    /// Returns how many processes live on.
    pub(crate) fn end_rest(&mut self, mut sampling: Option<&mut Sampling>) -> usize {
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

    /// Writes the profiles of children that could make no file of their own, and counted in this member's.
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
        let Some((finished, state)) = self.counted(index, samples, None) else { return };
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
        // An empty profile would only be in the way.
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
                self.unfollowed.extend(note);
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

    /// What the first process has counted, when it has ended or been left. `unplaced` says why there is no run folder, if
    /// there should be one; `crash` is the address of the instruction that ended the process, if it is known.
    pub(crate) fn end_first(
        &mut self,
        sampling: Option<&mut Sampling>,
        unplaced: Option<&String>,
        crash: Option<u64>,
    ) -> Option<Finished> {
        let pid = self.members.first()?.pid;
        // What the process has executed since stays in the family until the end.
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
        let (mut finished, _) = self.counted(0, samples, crash)?;
        finished.collected.trouble = finished.collected.trouble.or_else(|| unplaced.cloned());
        Some(finished)
    }

    /// A member's profile, and how far its agent has come.
    fn counted(
        &mut self,
        index: usize,
        samples: Option<Histogram>,
        crash: Option<u64>,
    ) -> Option<(Finished, AgentState)> {
        let member = self.members.get(index)?;
        let region = self.folder.as_ref().map(|folder| folder.region(&member.name));
        let (profilee, baseline) = (member.profilee, member.baseline.as_ref());
        let counted =
            counted(region.as_ref(), profilee, samples, crash, self.rate, baseline, &mut self.troubles)?;
        self.troubles.extend(counted.0.collected.damage.map(str::to_owned));
        Some(counted)
    }

    /// Keeps the samples once a second, where `--recover` finds them if this process is killed.
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
