//! The processes of a run, from their beginning to their end: the first process, its children, and the
//! programs that they execute.
//!
//! `listen` handles their announcements, and `control` what is done with them while they run; `profiles` writes what they have
//! counted.

mod profiles;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gmon_run::Process;
use gprofinject_abi::region::LeftOut;

use crate::generated::Origin;
use crate::live::collect;
use crate::options::Clock;
use crate::os::clock::Moment;
use crate::os::sys::{self, Handle};
use crate::os::{exit_status, proc};
use crate::profile::counted::Counted;
use crate::profile::ends::{End, Ends};
use crate::program::choice::Switched;
use crate::program::library::{Libraries, Library};
use crate::program::profilee::{Profilee, Profilees, identity};
use crate::sampling::maps::Maps;
use crate::sampling::sampler::Sampling;
use crate::sampling::samples::{Samples, Threads};
use crate::session::counting::Counting;
use crate::session::label::{Label, Labels};
use crate::session::member::{Living, Member, Other, Unhooked};
use crate::session::results::Results;
use crate::session::settings::Settings;
use crate::session::spares::Spares;
use crate::store::listener::Listener;
use crate::store::logbook::Logbook;
use crate::store::output::Output;
use crate::store::region::layout::Orders;
use crate::store::run_folder::{FIRST, RunFolder};
use crate::target::grip::Grip;
use crate::target::launch::usher::Usher;
use crate::target::loaded;
use crate::trace::messages::Begun;
use crate::trace::tracer::Tracer;

/// The processes of a run, and the programs that they have executed.
pub(crate) struct Family<'s> {
    pub(crate) settings: &'s Settings,
    pub(crate) output: &'s Output,
    /// What the run leaves.
    pub(crate) results: Results<'s>,
    logbook: Option<Logbook>,
    /// When samples were last written to the run folder.
    kept: Instant,
    /// The socket; `None` if it could not be made. Then no process can announce itself and no user can ask
    /// for anything.
    pub(crate) listener: Option<Listener>,
    pub(crate) profilees: Profilees,
    /// The libraries that processes have loaded and that are hooked.
    pub(crate) libraries: Libraries,
    /// The libraries that are not hooked, each with the number of a program whose processes have loaded it.
    pub(crate) unhooked: BTreeMap<(u32, PathBuf), Unhooked>,
    /// The names of those in [`Orders::left_out`].
    left_out: Vec<PathBuf>,
    /// The length in bytes of all files together that a process may still have read which cannot enter the run folder.
    pub(crate) outside_left: u64,
    orders: Orders,
    /// The samples per second of CPU time.
    pub(crate) rate: u32,
    /// The trace, if there is one.
    pub(crate) tracer: Option<Tracer>,
    /// What a live view keeps from one snapshot to the next.
    pub(super) seen: collect::Names,
    /// All members of the run, in the order in which they began.
    pub(crate) members: Vec<Member>,
    /// The processes that have ended and whose counts are being read.
    pub(super) counting: Counting,
    /// The members' names.
    pub(crate) taken: HashSet<String>,
    /// The processes that have not ended, by number.
    pub(crate) living: BTreeMap<i32, Living>,
    /// The number of names that were used in the run folder.
    names: u32,
    /// The files of processes that have ended, for processes that will run the same programs.
    pub(super) spares: Spares,
    /// The newest member that has had the files of each name among them.
    pub(super) spared: HashMap<String, usize>,
    /// The first name under which each plan was written.
    plan_names: HashMap<u32, String>,
    /// What processes other than the first one have counted, by the number of their program and by label, if one profile is written
    /// for each program.
    programs: BTreeMap<(u32, Label), Sum>,
    /// The labels of the processes.
    labels: Labels,
    /// The members that have ended, without the first one.
    pub(crate) others: Vec<Other>,
    /// The executed programs that could not be followed, or not be hooked as the user asked, with the
    /// reasons.
    pub(crate) unfollowed: BTreeSet<String>,
    /// The names of the executed programs that were not followed, or not hooked, and whether gprofinject could have started them.
    pub(crate) alone: BTreeMap<String, bool>,
    /// The ushers of members that are standalone programs, by the index of the member.
    pub(crate) ushers: HashMap<usize, Usher>,
    /// The reports about profiles that could not be written where they should be.
    pub(crate) troubles: Vec<String>,
    /// Whether somebody has asked for the end of the run, by SIGTERM.
    pub(crate) is_over: bool,
    /// The run folder; `None` if there is no agent. Then there is only the first process, and it is only
    /// sampled. This field is dropped last, because removing the folder takes a descriptor, and the fields
    /// above may use all of them.
    pub(crate) folder: Option<RunFolder>,
}

/// What the processes of one program have counted.
struct Sum {
    profilee: &'static Profilee,
    counted: Counted,
    processes: Vec<Process>,
}

impl<'s> Family<'s> {
    /// Returns a family without members.
    pub(crate) fn new(
        settings: &'s Settings,
        results: Results<'s>,
        folder: Option<RunFolder>,
        profilees: Profilees,
        orders: Orders,
        rate: u32,
        tracer: Option<Tracer>,
    ) -> Family<'s> {
        let logbook = folder.as_ref().map(|folder| Logbook::create(folder.private(), settings.entries(rate)));
        let listener = folder.as_ref().map(|folder| Listener::new(folder.private()));
        let mut unfollowed = BTreeSet::new();
        if let Some(Err(error)) = &listener {
            unfollowed.insert(format!(
                "children are not followed, because the socket cannot be made: {}",
                sys::reason(error)
            ));
        }
        Family {
            settings,
            output: results.output(),
            results,
            folder,
            logbook: logbook.and_then(Result::ok),
            kept: Instant::now(),
            listener: listener.and_then(Result::ok),
            profilees,
            libraries: Libraries::default(),
            unhooked: BTreeMap::new(),
            left_out: Vec::new(),
            outside_left: loaded::BYTES_MOST,
            orders,
            rate,
            tracer,
            seen: collect::Names::default(),
            members: Vec::new(),
            counting: Counting::new(Arc::clone(&settings.cache)),
            taken: HashSet::new(),
            living: BTreeMap::new(),
            names: 1,
            spares: Spares::default(),
            spared: HashMap::new(),
            plan_names: HashMap::from([(0, FIRST.to_owned())]),
            programs: BTreeMap::new(),
            labels: Labels::default(),
            others: Vec::new(),
            unfollowed,
            alone: BTreeMap::new(),
            ushers: HashMap::new(),
            troubles: Vec::new(),
            is_over: false,
        }
    }

    /// Whether children and executed programs are followed.
    pub(crate) fn follows(&self) -> bool {
        self.orders.follow && self.listener.is_some()
    }

    /// Makes the first process the first member.
    pub(crate) fn begin(&mut self, pid: i32, profilee: &'static Profilee) {
        self.enter(profilee);
        self.join(pid, profilee, FIRST.to_owned(), None, None);
    }

    /// Replaces the hold on the first member.
    pub(crate) fn hold_first(&mut self, grip: Grip) {
        if let Some(first) = self.members.first_mut() {
            first.own_call = grip.own_call().and_then(|address| Maps::of(first.pid).place(address));
            first.grip = grip;
        }
    }

    /// The hold on the first member.
    pub(crate) fn first_grip(&mut self) -> Option<&mut Grip> {
        self.members.first_mut().map(|member| &mut member.grip)
    }

    /// Enters a program in the logbook, unless it is there already. If that fails, the program can only not
    /// be recovered.
    pub(crate) fn enter(&mut self, profilee: &Profilee) {
        if let Some(logbook) = &mut self.logbook
            && logbook.entries.programs.len() == profilee.number as usize
        {
            let label = profilee.planned.subject.label();
            let _ = logbook.add(&profilee.binary, profilee.shown.clone(), label);
        }
    }

    /// Enters a library in the logbook, unless it is there already.
    pub(crate) fn enter_library(&mut self, library: &'static Library) {
        if let Some(tracer) = &self.tracer {
            tracer.library(library);
        }
        if let Some(logbook) = &mut self.logbook
            && logbook.entries.libraries.len() == library.number as usize
        {
            let _ = logbook.add_library(&library.binary, library.purpose);
        }
    }

    /// Adds a member, whose files in the run folder have that name. `parent` is the member that has forked it, and `label` that of the
    /// program which it is about to execute.
    pub(crate) fn join(
        &mut self,
        pid: i32,
        profilee: &'static Profilee,
        name: String,
        parent: Option<usize>,
        label: Option<Label>,
    ) {
        let index = self.members.len();
        let handle = || (index > 0).then(|| Handle::of(pid));
        let process =
            self.living.entry(pid).or_insert_with(|| Living { handle: handle(), members: Vec::new() });
        // The earlier programs of the process end here, by executing this one.
        for &earlier in &process.members {
            if let Some(member) = self.members.get_mut(earlier) {
                member.ended.get_or_insert_with(Moment::now);
            }
        }
        let before = process.members.last().copied();
        process.members.push(index);
        // A process stays its parent's child when it executes another program.
        let known = before.or(parent).and_then(|index| self.members.get(index));
        let parent_pid = match (before, known) {
            (Some(_), Some(member)) => member.parent,
            (None, Some(member)) => member.pid.cast_unsigned(),
            (_, None) => proc::parent(pid).map_or(0, i32::cast_unsigned),
        };
        let inherited = known.map(|member| member.label.clone());
        let label = match (label, inherited) {
            (None, Some(inherited)) => inherited,
            (label, _) => self.labels.told_apart(label.unwrap_or_else(|| Label::of_process(pid))),
        };
        self.trace(index, parent.or(before), pid, profilee, &name);
        let grip = Grip::unopened(pid);
        let maps = Maps::default();
        self.taken.insert(name.clone());
        self.members.push(Member {
            pid,
            profilee,
            name,
            parent: parent_pid,
            label,
            began: Moment::now(),
            committed_before: 0,
            grip,
            baseline: None,
            is_paused: false,
            switched: Switched::default(),
            maps,
            origin: Origin::of(pid),
            own_call: None,
            ended: None,
            ending: None,
        });
    }

    /// Begins the trace of a member.
    fn trace(
        &mut self,
        index: usize,
        parent: Option<usize>,
        pid: i32,
        profilee: &'static Profilee,
        name: &str,
    ) {
        let Some(tracer) = &mut self.tracer else { return };
        if let (Some(folder), Some((_, layout))) = (&self.folder, &profilee.plan) {
            let rings = folder.region(name).rings(layout);
            match rings.and_then(|rings| Ok((rings.libraries()?, rings))) {
                Ok((loads, rings)) => tracer.begin(Begun {
                    process: index as u32,
                    parent: parent.map(|index| index as u32),
                    pid: pid as u32,
                    binary: absolute(&profilee.binary).display().to_string(),
                    planned: profilee.planned,
                    is_tsc: layout.measure.is_some_and(|measure| measure.clock == Clock::Tsc),
                    rings,
                    loads,
                }),
                Err(error) => {
                    self.troubles.push(format!("process {pid} is not traced: {}", sys::reason(&error)));
                }
            }
        }
    }

    /// Hands on to the trace what the scheduler has done.
    pub(crate) fn trace_switches(&self, sampling: &mut Sampling) {
        if let Some(tracer) = &self.tracer {
            tracer.switches(sampling.take_switches());
        }
    }

    /// Ends the trace of a member. `samples` has what the kernel says of its threads' ends.
    fn end_trace(&mut self, index: usize, samples: Option<&Samples>) {
        let Some(noticed) = self.note_end(index) else { return };
        let Some(tracer) = &self.tracer else { return };
        let nothing = Threads::default();
        let threads = samples.map_or(&nothing, |samples| &samples.threads);
        let ends = Ends::new(End::Noticed(noticed), threads);
        tracer.end(index as u32, noticed, ends, threads.names.clone());
    }

    /// Notes that a member has ended, or is about to be left, unless that is noted already. Returns when that was noticed.
    fn note_end(&mut self, index: usize) -> Option<Moment> {
        self.members.get_mut(index).map(|member| *member.ended.get_or_insert_with(Moment::now))
    }

    /// Notes how a process has ended, which is the end of the last program that it was.
    fn note_ending(&mut self, pid: i32, process: &Living) {
        let pidfd = process.handle.as_ref().and_then(Handle::pidfd);
        if let Some(member) = process.members.last().and_then(|&index| self.members.get_mut(index)) {
            member.ending = pidfd.and_then(|pidfd| exit_status::of(pid, pidfd));
        }
    }

    /// Notes that the first process has ended, or is about to be left.
    pub(crate) fn note_end_of_first(&mut self) {
        self.note_end(0);
    }

    /// Notes what a process has mapped now, if the agent samples it. The kernel's own records would say that.
    pub(crate) fn note_maps(&mut self, pid: i32) {
        let last = self.living.get(&pid).and_then(|process| process.members.last().copied());
        last.into_iter().for_each(|index| self.note_maps_of(index));
    }

    /// Does the same for a member.
    pub(crate) fn note_maps_of(&mut self, index: usize) {
        if let Some(member) = self.members.get_mut(index).filter(|_| self.orders.timer_rate > 0) {
            member.maps.add_those_of(member.pid);
        }
    }

    /// Returns the newest member whose files in the run folder have that name, or had it until its process ended.
    pub(crate) fn named(&self, name: &str) -> Option<usize> {
        let newest = self.members.iter().rposition(|member| member.name == name);
        newest.or_else(|| self.spared.get(name).copied())
    }

    /// Returns the descriptors to poll: those of connections, those that report the end of processes, and the one that reports that
    /// counts were read.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        let handles = self.living.values().filter_map(|process| process.handle.as_ref()?.descriptor());
        let connections = self.listener.iter().flat_map(Listener::descriptors);
        connections.chain(handles).chain(self.counting.descriptor())
    }

    /// Returns the name of the files of a member that is about to begin, and the bytes that its counters occupy already. The files are
    /// those of a process that has ended, or new ones.
    ///
    /// # Errors
    /// The files cannot be created.
    pub(crate) fn make_files(&mut self, profilee: &Profilee) -> io::Result<(String, u64)> {
        while let (Some(spare), Some(folder)) = (self.spares.take(profilee.number), &self.folder) {
            if folder.is_in_place(&spare.name) {
                return Ok((spare.name, spare.bytes));
            }
            folder.remove_region(&spare.name);
        }
        self.create_files(profilee).map(|name| (name, 0))
    }

    /// Notes that a library, whose file can be read at `path`, is hooked in no process of glibc's, so that processes which begin from now on
    /// do not ask about it. `hash` is that of the path by which a process has loaded it.
    pub(crate) fn leave_out(&mut self, path: &Path, name: &Path, hash: u64) {
        // What a process has mapped is noted when it asks.
        let is_asked = self.orders.timer_rate > 0;
        let Some((dev, inode, len, seconds, nanoseconds)) = identity(path).filter(|_| !is_asked) else {
            return;
        };
        let file = [dev, inode, len, seconds.cast_unsigned(), nanoseconds.cast_unsigned()];
        let library = LeftOut { file, name: hash };
        if !self.orders.left_out.contains(&library)
            && let Some(place) = self.orders.left_out.get_mut(self.left_out.len())
        {
            *place = library;
            self.left_out.push(name.to_owned());
        }
    }

    /// Creates the files of a member. Returns their name.
    ///
    /// # Errors
    /// The files cannot be created.
    fn create_files(&mut self, profilee: &Profilee) -> io::Result<String> {
        let name = self.names.to_string();
        self.names += 1;
        let missing = || io::Error::from_raw_os_error(libc::ENOENT);
        let folder = self.folder.as_ref().ok_or_else(missing)?;
        let (plan, layout) = profilee.plan.as_ref().ok_or_else(missing)?;
        let orders = orders_for(profilee, self.orders);
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
            self.trace_switches(sampling);
            sampling.forget(pid);
        }
        let process = self.living.remove(&pid);
        process.iter().for_each(|process| self.note_ending(pid, process));
        for index in process.into_iter().flat_map(|process| process.members) {
            self.finish(index, sampling.as_deref_mut(), true);
        }
    }

    /// Writes the profiles of all members that are left, whose processes have ended or are not waited for any
    /// more. Returns how many processes still run.
    pub(crate) fn end_rest(&mut self, mut sampling: Option<&mut Sampling>) -> usize {
        let readable = sys::readable(self.descriptors());
        let lives = |process: &&Living| process.handle.is_some() && !process.has_ended(&readable);
        let alive = self.living.values().filter(lives).count();
        if let Some(sampling) = sampling.as_deref_mut() {
            sampling.settle();
            self.trace_switches(sampling);
        }
        let left = std::mem::take(&mut self.living);
        for (&pid, process) in left.iter().filter(|(_, process)| process.has_ended(&readable)) {
            self.note_ending(pid, process);
        }
        self.take_counted(true);
        let mut left: Vec<usize> = left.into_values().flat_map(|process| process.members).collect();
        left.sort_unstable();
        for index in left {
            self.finish(index, sampling.as_deref_mut(), false);
        }
        for index in 0..self.members.len() {
            self.finish_guests(index, sampling.as_deref());
        }
        alive
    }

    /// Returns what the first process has counted, after it has ended or was left. `unplaced` says why there
    /// is no run folder although there should be one. `crash` is the address of the instruction that ended
    /// the process, if it is known.
    pub(crate) fn end_first(
        &mut self,
        sampling: Option<&mut Sampling>,
        unplaced: Option<&String>,
        crash: Option<u64>,
    ) -> Option<Counted> {
        let pid = self.members.first()?.pid;
        // The programs that the process has executed since stay in the family until the end.
        if let Some(process) = self.living.get_mut(&pid) {
            process.members.retain(|&index| index > 0);
            if process.members.is_empty() {
                self.living.remove(&pid);
            }
        }
        let samples = sampling.and_then(|sampling| {
            sampling.settle();
            self.trace_switches(sampling);
            sampling.take(0)
        });
        self.note_maps_of(0);
        self.end_trace(0, samples.as_ref());
        let ended = self.ended(0, samples, crash)?;
        let (mut finished, ..) = self.noted(self.counting.read(ended));
        finished.account.trouble = finished.account.trouble.or_else(|| unplaced.cloned());
        Some(finished)
    }

    /// Writes the samples to the run folder once a second. `--recover` reads them there if this process is
    /// killed.
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

/// Returns the orders to the agent in a process that runs a program.
fn orders_for(profilee: &Profilee, orders: Orders) -> Orders {
    let orders = Orders { plan: profilee.number, ..orders };
    // musl's dynamic linker asks about all of its libraries.
    match profilee.planned.subject.kind.is_standalone() {
        true => Orders { left_out: Default::default(), ..orders },
        false => orders,
    }
}

/// Returns the absolute path of a file, as far as the current folder is known.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
