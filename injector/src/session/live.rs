//! The live view of a run: what its processes count now, and what is asked for there.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, anyhow};

use crate::generated::Origin;
use crate::live::collect::{self, shown};
use crate::live::snapshot::{Snapshot, Thread, Wants};
use crate::live::view::{Source, View, Wish};
use crate::options::Verb;
use crate::os::clock::{self, Moment};
use crate::os::say::Voice;
use crate::os::{memory_files, proc, signals, terminal};
use crate::profile::counted::{Reading, counted};
use crate::profile::ends::End;
use crate::profile::model::{Arc, Profile};
use crate::profile::threads;
use crate::sampling::sampler::Sampling;
use crate::session::family::Family;
use crate::session::message::{Answer, Request};
use crate::store::listener::Asker;

impl Family<'_> {
    /// Returns what a process has counted up to now; `None` stands for the first process. No thread is stopped for that, so a
    /// call in progress may be there in part.
    ///
    /// # Errors
    /// The process is not profiled, or its counters cannot be read.
    pub(crate) fn look(
        &mut self,
        pid: Option<i32>,
        wants: Wants,
        sampling: Option<&mut Sampling>,
    ) -> Result<Snapshot> {
        let begin = clock::used();
        let first = self.members.first().map(|member| member.pid).context("no process is profiled")?;
        let index = match pid {
            Some(pid) => self.current(pid)?,
            None => self.current(first).unwrap_or(0),
        };
        self.note_maps_of(index);
        let samples = sampling.and_then(|sampling| {
            sampling.settle();
            sampling.flat_samples(index)
        });
        let programs = self.living.iter().filter_map(|(pid, process)| {
            let member = self.members.get(*process.members.last()?)?;
            Some((*pid, shown(&member.profilee.name())))
        });
        let processes: Vec<(i32, String)> = programs.collect();
        let member = self.members.get(index).context("it has ended")?;
        let profilee = member.profilee;
        let region = self.folder.as_ref().map(|folder| folder.region(&member.name));
        let end = member.ended.map_or_else(|| End::Running(Moment::now()), End::Noticed);
        let (libraries, maps) = (self.libraries.numbered(), &member.maps);
        let own_call = member.own_call.as_ref();
        let (is_part, has_own) = (false, false);
        // A table of hooked functions has no others.
        let origin = &Origin::default();
        let (rate, origin) = (self.rate, Some(origin));
        let reading = Reading { profilee, libraries, maps, origin, rate, end, own_call, is_part, has_own };
        let mut troubles = Vec::new();
        let (names, files) = (&mut self.seen, &mut self.counting.names());
        let baseline = member.baseline.as_ref();
        let (mut counted, _, space) =
            counted(region.as_ref(), &reading, samples, None, baseline, &mut troubles, files);
        if let Some(trouble) = troubles.into_iter().next() {
            return Err(anyhow!(trouble));
        }
        let mut rows = Vec::new();
        if let (true, Some(region), Some(space), Some((_, layout))) =
            (wants.threads || wants.thread.is_some(), &region, &space, &profilee.plan)
        {
            let threads = threads::of_process(&region.open(layout)?, space)?;
            for (owner, arcs) in threads {
                if wants.thread == Some(owner.tid) {
                    only(&mut counted.profile, owner.tid, &arcs);
                }
                if wants.threads {
                    rows.push((owner, arcs));
                }
            }
        }
        let mut snapshot = collect::snapshot(&counted.profile, &member.switched, names);
        snapshot.threads = rows
            .into_iter()
            .map(|(owner, arcs)| thread(member.pid, owner.tid, owner.count, &arcs, &counted.profile, names))
            .collect();
        snapshot.pid = member.pid;
        snapshot.processes = processes;
        snapshot.thread = wants.thread;
        snapshot.is_paused = member.is_paused;
        snapshot.ns = clock::nanoseconds();
        snapshot.cpu_ns = clock::used();
        snapshot.took_ns = snapshot.cpu_ns.saturating_sub(begin);
        Ok(snapshot)
    }

    /// Sends a snapshot to the gprofinject that has asked for it.
    pub(super) fn show(&mut self, asker: &Asker, request: &Request, sampling: Option<&mut Sampling>) {
        let wants = request.wants.unwrap_or_default();
        let made = self.look(Some(request.pid), wants, sampling).and_then(|snapshot| {
            let text = serde_json::to_vec(&snapshot)?;
            Ok(memory_files::memory_file(&[text], |_| {})?)
        });
        match made {
            Ok(file) => asker.answer_with(&Answer::Done(String::new()).packet(), &[file.as_fd()]),
            Err(error) => asker.answer(&Answer::Failed(format!("{error:#}")).packet()),
        }
    }
}

/// Leaves in a profile only what one thread has counted and measured. Samples are not known by thread.
fn only(profile: &mut Profile, tid: u32, arcs: &[Arc]) {
    profile.arcs = arcs.to_vec();
    profile.unhooked.clear();
    profile.values.clear();
    for module in &mut profile.modules {
        module.samples = crate::sampling::histogram::Histogram::new(module.program.shape);
    }
    if let Some(times) = &mut profile.times {
        times.threads.retain(|thread| thread.tid == tid);
    }
}

/// Returns the row of a thread.
fn thread(
    pid: i32,
    tid: u32,
    owners: u32,
    arcs: &[Arc],
    profile: &Profile,
    names: &mut collect::Names,
) -> Thread {
    let calls = arcs.iter().fold(0_u64, |sum, arc| sum.saturating_add(arc.count));
    let most = arcs.iter().max_by_key(|arc| arc.count).and_then(|arc| {
        let module = profile.modules.get(arc.to.module as usize)?;
        Some(names.of(module.program, profile.name_of(module), arc.to.address).0)
    });
    let running = proc::thread(pid, tid as i32);
    let (name, cpu_ms) = running.clone().unwrap_or_default();
    let most = most.unwrap_or_default();
    Thread { tid, name: shown(&name), runs: running.is_some(), owners, calls, cpu_ms, most }
}

/// The processes of this run, for their view.
pub(crate) struct Own<'o, 's> {
    pub(crate) family: &'o mut Family<'s>,
    pub(crate) sampling: Option<&'o mut Sampling>,
}

impl Source for Own<'_, '_> {
    fn snapshot(&mut self, pid: Option<i32>, wants: Wants) -> Result<Snapshot> {
        self.family.look(pid, wants, self.sampling.as_deref_mut())
    }

    fn ask(&mut self, pid: i32, verb: Verb, pattern: Option<String>) -> Result<String> {
        let request = Request { pid, verb, output: None, pattern, wants: None };
        self.family.carry_out(&request, self.sampling.as_deref_mut())
    }
}

/// Shows what the program has written while the view had the terminal.
pub(crate) fn show_output(file: &File, voice: Voice) {
    /// What is longer is cut off in front.
    const MOST: u64 = 1 << 20;
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    let from = len.saturating_sub(MOST);
    let mut bytes = vec![0; (len - from) as usize];
    let count = file.read_at(&mut bytes, from).unwrap_or(0);
    bytes.truncate(count);
    if from > 0 {
        voice.note(format_args!(
            "{from} bytes of the program's output are left out; redirect it to keep all of it"
        ));
    }
    let stdout = std::io::stdout();
    match terminal::is_one(&stdout) {
        true => drop(stdout.lock().write_all(&bytes).and_then(|()| stdout.lock().flush())),
        false => drop(std::io::stderr().write_all(&bytes)),
    }
}

/// Lets a view take a turn. Returns false if the process is to be left now. The view is gone if the user has left it.
pub(crate) fn turn(view: &mut Option<View>, own: &mut Own, pid: i32) -> bool {
    let Some(shown) = view else { return true };
    match shown.turn(own) {
        Wish::GoOn => true,
        Wish::Leave => {
            *view = None;
            false
        }
        Wish::End => {
            *view = None;
            signals::terminate(pid);
            true
        }
        Wish::Wait => {
            *view = None;
            true
        }
    }
}
