//! What each process of a run has counted, for the run's recording.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::btree_map::Entry;
use std::path::Path;

use gmon_run::Process;

use crate::os::child::Ending;
use crate::os::clock::{self, Moment};
use crate::profile::collect::Account;
use crate::profile::costs;
use crate::profile::counted::{Counted, Finished, guests, has_guests};
use crate::profile::ends::End;
use crate::profile::recorder::Processes;
use crate::program::profilee::Profilee;
use crate::sampling::sampler::Sampling;
use crate::sampling::samples::Samples;
use crate::session::counting::{Ended, Read};
use crate::session::family::{Family, Sum, orders_for};
use crate::session::label::Label;
use crate::session::member::{Other, Unhooked, Who};
use crate::session::results::Said;
use crate::session::spares::Spare;
use crate::store::region::layout::AgentState;
use crate::target::launch::usher::Usher;

/// The number of the program that was started: the only one of which a gmon.out is made.
const FIRST_PROGRAM: u32 = 0;

/// Returns an ending as a recording has it.
fn recorded(ending: Option<Ending>) -> gmon_run::Ending {
    match ending {
        None => gmon_run::Ending::Unknown,
        Some(Ending::Exited(status)) => gmon_run::Ending::Exited(status),
        Some(Ending::Killed(signal)) => {
            u8::try_from(signal).map(gmon_run::Ending::Killed).unwrap_or_default()
        }
    }
}

impl Family<'_> {
    /// Writes the profiles of children that could create no file of their own and have counted in this
    /// member's.
    pub(super) fn finish_guests(&mut self, index: usize, sampling: Option<&Sampling>) {
        let (Some(member), Some(folder)) = (self.members.get(index), &self.folder) else { return };
        let (profilee, label) = (member.profilee, member.label.clone());
        // The agent counts its children only if the process is followed.
        if !self.orders.follow {
            return;
        }
        let region = folder.region(&member.name);
        let shape = profilee.planned.shape;
        let early = |pid| sampling.map(|sampling| sampling.early(pid, shape));
        let libraries = self.libraries.numbered();
        let mut names = self.counting.names();
        let found = guests(&region, profilee, libraries, early, &mut names, self.rate, &mut self.troubles);
        drop(names);
        for (pid, finished) in found {
            // Nobody has seen when it began or ended.
            self.add_other(Process { pid, ..Process::default() }, label.clone(), profilee, finished);
        }
    }

    /// Adds what a member has counted whose process has ended or is not waited for any more, and removes its files. If others may
    /// begin later, another thread reads the counts, and the files may be kept for one of them.
    pub(super) fn finish(&mut self, index: usize, sampling: Option<&mut Sampling>, may_others_begin: bool) {
        let samples = sampling.and_then(|sampling| sampling.take(index));
        self.end_trace(index, samples.as_ref());
        let Some(ended) = self.ended(index, samples, None) else { return };
        let ended = match may_others_begin {
            true => self.counting.give(ended).err(),
            false => Some(Box::new(ended)),
        };
        if let Some(ended) = ended {
            // In the order of the ends.
            self.take_counted(true);
            let read = self.counting.read(*ended);
            self.finished(read, may_others_begin);
        }
    }

    /// Does what is left to do with the members whose counts were read. With `waits`, it waits until all were read.
    pub(crate) fn take_counted(&mut self, waits: bool) {
        while let Some(read) = self.counting.take(waits) {
            self.finished(read, true);
        }
    }

    /// Adds what a member has counted to the others' counts, and removes its files or keeps them for another process.
    fn finished(&mut self, read: Read, may_others_begin: bool) {
        let (index, was_reset) = (read.member, read.was_reset);
        let (finished, state) = self.noted(read);
        let Some(member) = self.members.get(index) else { return };
        let (profilee, name) = (member.profilee, member.name.clone());
        // A child that will be a guest may not have announced itself yet, but it has had the file mapped
        // since its fork.
        if may_others_begin && !was_reset && self.spare(index, &finished.account, state) {
            self.drop_spares();
        } else if let Some(folder) = &self.folder
            && folder.region(&name).is_counted_in() != Some(true)
            && !has_guests(&folder.region(&name))
        {
            folder.remove_region(&name);
        }
        // The usher of a standalone program ends before the program begins.
        if let Some(why) = self.ushers.remove(&index).and_then(Usher::finish) {
            self.note_unhooked(profilee, &why);
        }
        if finished.is_worth_writing(state) {
            let label = self.members.get(index).map(|member| member.label.clone()).unwrap_or_default();
            self.add_other(self.process(index), label, profilee, finished);
        }
    }

    /// Keeps the files of a member whose process has ended, and whose counts were read, if another process can have them. They then
    /// belong to no member. Returns whether they are kept.
    fn spare(&mut self, index: usize, account: &Account, state: AgentState) -> bool {
        let (Some(member), Some(folder)) = (self.members.get_mut(index), &self.folder) else { return false };
        let Some((_, layout)) = &member.profilee.plan else { return false };
        // The first process's name tells it apart.
        if index == 0 {
            return false;
        }
        // If the agent has not armed itself, a program that the process has executed may still have the name in its environment.
        let is_over = state == AgentState::Armed && !member.profilee.planned.subject.kind.is_standalone();
        // Somebody may still read what was measured.
        let is_read = layout.measure.is_none();
        let is_sound = account.damage.is_none() && account.trouble.is_none();
        if !is_over || !is_read || !is_sound {
            return false;
        }
        let region = folder.region(&member.name);
        let bytes = member.committed_before.saturating_add(account.committed);
        let orders = orders_for(member.profilee, self.orders);
        if !self.spares.has_room(bytes) || has_guests(&region) || !folder.renew(&member.name, layout, orders)
        {
            return false;
        }
        let name = std::mem::take(&mut member.name);
        self.spared.insert(name.clone(), index);
        self.spares.add(Spare { program: member.profilee.number, name, bytes });
        true
    }

    /// Removes the oldest files if they are too many.
    fn drop_spares(&mut self) {
        while let Some(spare) = self.spares.surplus() {
            self.folder.iter().for_each(|folder| folder.remove_region(&spare.name));
        }
    }

    /// Notes why nothing was hooked in a process other than the first one.
    fn note_unhooked(&mut self, profilee: &Profilee, why: &str) {
        let program = profilee.binary.display();
        self.unfollowed.insert(format!("nothing was hooked in a process of {program}: {why}"));
        // The reason names what helps.
        self.note_alone(&profilee.binary, false);
    }

    /// Notes that a program was not followed, or not hooked. `starts`: gprofinject could profile it if it started it itself.
    pub(crate) fn note_alone(&mut self, program: &Path, starts: bool) {
        /// A process can execute any number of files.
        const MOST: usize = 256;
        let name = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy();
        if self.alone.len() < MOST {
            self.alone.insert(name.into_owned(), starts);
        }
    }

    /// Adds what a process other than the first one has counted to the recording, or to the others of the same program.
    fn add_other(
        &mut self,
        process: Process,
        label: Label,
        profilee: &'static Profilee,
        mut counted: Counted,
    ) {
        // The profile of several processes says nothing of one of them, and an empty one is not recorded.
        if let Some(why) = counted.account.trouble.take() {
            self.note_unhooked(profilee, &why);
        }
        let process = counted.process(process);
        // An empty profile would be of no use. A program may do all of its work in libraries that are not hooked.
        if (process.calls, process.samples) == (0, 0) {
            return;
        }
        if self.settings.per_process {
            let pid = process.pid;
            let label = label.as_str().to_owned();
            let processes = Processes { each: vec![process], label, ..Processes::one(pid) };
            return self.record(Who::Process(pid as i32), profilee, counted, &processes, &pid.to_string());
        }
        match self.programs.entry((profilee.number, label)) {
            Entry::Vacant(entry) => {
                entry.insert(Sum { profilee, counted, processes: vec![process] });
            }
            Entry::Occupied(mut entry) => {
                entry.get_mut().counted.add(counted);
                entry.get_mut().processes.push(process);
            }
        }
    }

    /// Adds the other processes of the first program to its counts. Returns all of its processes, of which the first one has ended in
    /// this way, if that is known.
    pub(crate) fn add_to_first(&mut self, first: &mut Counted, ending: Option<Ending>) -> Processes {
        let mut process = first.process(self.process(0));
        // What a process has executed before its end is another program, whose end that was.
        let is_last = self.members.iter().skip(1).all(|member| member.pid.cast_unsigned() != process.pid);
        if is_last {
            process.ending = recorded(ending);
        } else {
            let executed = self.programs.values_mut().flat_map(|sum| &mut sum.processes);
            let executed = executed.filter(|executed| executed.pid == process.pid);
            if let Some(last) = executed.max_by_key(|executed| executed.begin_us) {
                last.ending = recorded(ending);
            }
        }
        let mut each = vec![process];
        let label = self.members.first().map(|member| member.label.clone()).unwrap_or_default();
        // Those with other labels are other programs of the recording.
        if let Some(sum) = self.programs.remove(&(FIRST_PROGRAM, label.clone())) {
            first.add(sum.counted);
            each.extend(sum.processes);
        }
        let number = u32::try_from(each.len()).unwrap_or(u32::MAX);
        let pid = if number == 1 { each[0].pid } else { 0 };
        Processes { number, pid, label: label.as_str().to_owned(), each }
    }

    /// Returns what is known of a member besides its counts.
    fn process(&self, index: usize) -> Process {
        let Some(member) = self.members.get(index) else { return Process::default() };
        let since = |moment: Moment| moment.nanoseconds.saturating_sub(clock::beginning().nanoseconds) / 1000;
        Process {
            pid: member.pid.cast_unsigned(),
            parent: member.parent,
            begin_us: since(member.began),
            end_us: since(member.ended.unwrap_or_else(Moment::now)),
            ending: recorded(member.ending),
            ..Process::default()
        }
    }

    /// Records each program other than the first one.
    pub(crate) fn record_programs(&mut self) {
        let mut names: HashMap<String, u32> = HashMap::new();
        for ((_, label), sum) in std::mem::take(&mut self.programs) {
            let Sum { profilee, counted, processes } = sum;
            let name = profilee.name();
            let same = names.entry(name.clone()).or_default();
            *same += 1;
            let suffix = if *same > 1 { format!("{name}.{same}") } else { name };
            let number = u32::try_from(processes.len()).unwrap_or(u32::MAX);
            let who = Who::Program { processes: number };
            let label = label.as_str().to_owned();
            let processes = Processes { number, pid: 0, label, each: processes };
            self.record(who, profilee, counted, &processes, &suffix);
        }
        self.others.sort_by_key(|other| Reverse(other.placed.all()));
    }

    /// Adds a program or process to the recording. `suffix` is added to the names of its exports.
    fn record(
        &mut self,
        who: Who,
        profilee: &'static Profilee,
        counted: Counted,
        processes: &Processes,
        suffix: &str,
    ) {
        let finished = counted.settle();
        let mut said = Said::default();
        let item = self.results.other(suffix, profilee, &finished, processes, &mut said);
        self.troubles.extend(said.troubles);
        self.unfollowed.extend(said.notes);
        let Finished { profile, account, placed } = finished;
        self.others.push(Other {
            who,
            profilee,
            item,
            calls: profile.calls(),
            inside: profile.samples_inside(),
            threads: profile.threads,
            advice: costs::advice(&profile, &placed, processes.number),
            placed,
            account,
        });
    }

    /// Returns what has to be known to read the counts of a member that has ended or is left.
    pub(super) fn ended(
        &mut self,
        index: usize,
        samples: Option<Samples>,
        crash: Option<u64>,
    ) -> Option<Ended> {
        let end = End::Noticed(self.note_end(index)?);
        let member = self.members.get_mut(index)?;
        Some(Ended {
            member: index,
            region: self.folder.as_ref().map(|folder| folder.region(&member.name)),
            profilee: member.profilee,
            libraries: self.libraries.numbered().clone(),
            maps: std::mem::take(&mut member.maps),
            // It may hold a descriptor.
            origin: std::mem::take(&mut member.origin),
            rate: self.rate,
            end,
            own_call: member.own_call.take(),
            is_part: index > 0 && !self.settings.per_process,
            has_own: member.profilee.number == FIRST_PROGRAM,
            samples,
            crash,
            baseline: member.baseline.take(),
        })
    }

    /// Notes what there is to say of a member whose counts were read. Returns the counts, and the state of its agent.
    pub(super) fn noted(&mut self, read: Read) -> (Counted, AgentState) {
        let Read { member, mut counted, state, troubles, .. } = read;
        self.troubles.extend(troubles);
        self.troubles.extend(counted.account.damage.clone());
        let Some(member) = self.members.get(member) else { return (counted, state) };
        let profilee = member.profilee;
        // What the file had before was another process's, whose account says so.
        counted.account.committed = counted.account.committed.saturating_sub(member.committed_before);
        for (path, why) in std::mem::take(&mut counted.account.lost) {
            if path.as_os_str().is_empty() {
                self.troubles
                    .push(format!("libraries are not hooked in {}: {why}", profilee.binary.display()));
            } else {
                self.leave_wanted(profilee.number, &path, why.into());
            }
        }
        for (index, path) in self.left_out.clone().into_iter().enumerate() {
            if counted.account.left_out_seen >> index & 1 == 1 {
                self.leave_in(profilee.number, &path, Unhooked::LeftOut);
            }
        }
        (counted, state)
    }
}
