//! The profiles of a run's processes: what each has counted, and where that is written.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::collections::btree_map::Entry;

use crate::profile::counted::{Counted, Finished, Reading, counted, guests, has_guests};
use crate::profile::ends::End;
use crate::program::profilee::Profilee;
use crate::sampling::sampler::Sampling;
use crate::sampling::samples::Samples;
use crate::session::family::{Family, Sum};
use crate::session::member::{Other, Who};
use crate::store::output::Written;
use crate::store::region::layout::AgentState;
use crate::target::launch::usher::Usher;

impl Family<'_> {
    /// Writes the profiles of children that could create no file of their own and have counted in this
    /// member's.
    pub(super) fn finish_guests(&mut self, index: usize, sampling: Option<&Sampling>) {
        let (Some(member), Some(folder)) = (self.members.get(index), &self.folder) else { return };
        let profilee = member.profilee;
        // The agent counts its children only if the process is followed.
        if !self.orders.follow {
            return;
        }
        let region = folder.region(&member.name);
        let early = |pid| sampling.into_iter().flat_map(move |sampling| sampling.early(pid));
        let found = guests(&region, profilee, &self.libraries, early, self.rate, &mut self.troubles);
        for (pid, finished) in found {
            self.write_other(pid as i32, profilee, finished);
        }
    }

    /// Writes the profile of a member whose process has ended or is not waited for any more, and removes its files.
    pub(super) fn finish(&mut self, index: usize, sampling: Option<&mut Sampling>) {
        let Some(member) = self.members.get(index) else { return };
        let (pid, profilee, name) = (member.pid, member.profilee, member.name.clone());
        let samples = sampling.and_then(|sampling| sampling.take(index));
        self.end_trace(index, samples.as_ref());
        let Some((finished, state)) = self.counted(index, samples, None) else { return };
        // A child that will be a guest may not have announced itself yet, but it has had the file mapped
        // since its fork.
        if let Some(folder) = &self.folder
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
            self.write_other(pid, profilee, finished);
        }
    }

    /// Notes why nothing was hooked in a process other than the first one.
    fn note_unhooked(&mut self, profilee: &Profilee, why: &str) {
        let program = profilee.binary.display();
        self.unfollowed.insert(format!("nothing was hooked in a process of {program}: {why}"));
    }

    /// Writes the profile of a process other than the first one, or adds it to the others of the same program.
    fn write_other(&mut self, pid: i32, profilee: &'static Profilee, mut counted: Counted) {
        // The profile of several processes says nothing of one of them, and an empty one is not written.
        if let Some(why) = counted.account.trouble.take() {
            self.note_unhooked(profilee, &why);
        }
        // An empty profile would be of no use.
        if counted.profile.calls() == 0 && counted.profile.samples_inside() == 0 {
            return;
        }
        if !self.settings.per_process {
            match self.programs.entry(profilee.number) {
                Entry::Vacant(entry) => {
                    entry.insert(Sum { profilee, counted, processes: 1 });
                }
                Entry::Occupied(mut entry) => {
                    entry.get_mut().counted.add(counted);
                    entry.get_mut().processes += 1;
                }
            }
            return;
        }
        let before = self.written.entry(pid).or_default();
        let number = *before;
        *before += 1;
        let output = self.output;
        let suffix = if number > 0 { format!("{pid}.{number}") } else { pid.to_string() };
        self.write(Who::Process(pid), profilee, counted, &suffix, |bytes| {
            output.write_other(pid as u32, number, bytes)
        });
    }

    /// Adds the other processes of the first program to its counts. Returns how many there are.
    pub(crate) fn add_to_first(&mut self, first: &mut Counted) -> u32 {
        const FIRST_PROGRAM: u32 = 0;
        let Some(sum) = self.programs.remove(&FIRST_PROGRAM) else { return 0 };
        first.add(sum.counted);
        sum.processes
    }

    /// Writes one profile for each program other than the first one.
    pub(crate) fn write_programs(&mut self, first: u32) {
        let mut names: HashMap<String, u32> = HashMap::new();
        for Sum { profilee, counted, processes } in std::mem::take(&mut self.programs).into_values() {
            let name = profilee.name();
            let same = names.entry(name.clone()).or_default();
            *same += 1;
            let suffix = if *same > 1 { format!("{name}.{same}") } else { name };
            let output = self.output;
            let who = Who::Program { processes };
            self.write(who, profilee, counted, &suffix, |bytes| output.write_program(first, &suffix, bytes));
        }
        self.others.sort_by_key(|other| Reverse(other.placed.all()));
    }

    /// Writes a profile by `write`, and what belongs to it. `suffix` is added to the names of exports.
    fn write(
        &mut self,
        who: Who,
        profilee: &'static Profilee,
        counted: Counted,
        suffix: &str,
        write: impl FnOnce(&[u8]) -> anyhow::Result<Written>,
    ) {
        let finished = match counted.finish() {
            Ok(finished) => finished,
            Err(error) => {
                self.troubles.push(format!("{error:#}"));
                return;
            }
        };
        match write(&finished.bytes) {
            Ok(written) => {
                self.troubles
                    .extend(written.detour.map(|d| format!("{d}; it is in {}", written.path.display())));
                let whole = finished.write_whole(self.output, &written.path).unwrap_or_else(|error| {
                    self.troubles.push(format!("{error:#}"));
                    None
                });
                let measured = finished.write_measured(self.output, &written.path).unwrap_or_else(|error| {
                    self.troubles.push(format!("{error:#}"));
                    None
                });
                let (libraries, troubles) = finished.write_libraries(self.output, &written.path);
                self.troubles.extend(troubles);
                if !self.exports.is_empty() {
                    match finished.exported() {
                        Ok(run) => self.troubles.extend(self.exports.write_other(suffix, &run)),
                        Err(error) => self.troubles.push(format!("nothing is exported: {error:#}")),
                    }
                }
                let Finished { profile, account, placed, .. } = finished;
                let (symbols, note) = profilee.symbols_beside(self.output, &written.path);
                self.unfollowed.extend(note);
                self.others.push(Other {
                    who,
                    profilee,
                    file: written.path,
                    symbols,
                    whole,
                    measured,
                    libraries,
                    calls: profile.calls(),
                    inside: profile.samples_inside(),
                    own: profile.samples_in_program(),
                    threads: profile.threads,
                    placed,
                    account,
                });
            }
            Err(error) => self.troubles.push(format!("{error:#}")),
        }
    }

    /// Returns a member's profile, and the state of its agent.
    pub(super) fn counted(
        &mut self,
        index: usize,
        samples: Option<Samples>,
        crash: Option<u64>,
    ) -> Option<(Counted, AgentState)> {
        let end = End::Noticed(self.note_end(index)?);
        let member = self.members.get(index)?;
        let region = self.folder.as_ref().map(|folder| folder.region(&member.name));
        let (profilee, baseline) = (member.profilee, member.baseline.as_ref());
        let maps = &member.maps;
        let own_call = member.own_call.as_ref();
        let reading = Reading { profilee, libraries: &self.libraries, maps, rate: self.rate, end, own_call };
        let (names, troubles) = (&mut self.names_elsewhere, &mut self.troubles);
        let (mut counted, state, _) =
            counted(region.as_ref(), &reading, samples, crash, baseline, troubles, names);
        self.troubles.extend(counted.account.damage.clone());
        for (path, why) in std::mem::take(&mut counted.account.lost) {
            if path.as_os_str().is_empty() {
                self.troubles
                    .push(format!("libraries are not hooked in {}: {why}", profilee.binary.display()));
            } else {
                self.leave_wanted(profilee.number, &path, why.into());
            }
        }
        Some((counted, state))
    }
}
