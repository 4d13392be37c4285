//! Decides who takes samples, and makes histograms of the kernel's records.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::time::Duration;

use gprofinject_image::headers::ExecutableSegment;

use crate::options::SamplerArg;

use crate::os::clock::Moment;
use crate::os::sys;
use crate::sampling::histogram::{ALWAYS, Histogram};
use crate::sampling::interpreters::Interpreters;
use crate::sampling::maps::Mapped;
use crate::sampling::perf::{self, Perf, Scope};
use crate::sampling::records::{Event, Record};
use crate::sampling::samples::Samples;
use crate::sampling::track::{Sampled, State, Track};
use crate::sampling::unfollowed::Unfollowed;
use crate::store::shape::Shape;

/// How samples are taken, as decided before the start.
pub(crate) struct Choice {
    pub(crate) method: Method,
    /// The samples per second of CPU time.
    pub(crate) rate: u32,
    /// Why this method was chosen, and not a better one or the one that was asked for.
    pub(crate) reasons: Vec<String>,
}

/// Who takes the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Perf,
    /// The agent inside the program.
    Timer,
    None,
}

impl Method {
    /// The name for messages and `--stats`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Perf => "perf",
            Method::Timer => "timer",
            Method::None => "none",
        }
    }
}

/// Does `work`, and prepares the kernel for samples at the same time, if they may be taken.
pub(crate) fn preparing<T>(asked: SamplerArg, rate: u32, work: impl FnOnce() -> T) -> T {
    if rate == 0 || asked == SamplerArg::Timer {
        return work();
    }
    std::thread::scope(|scope| {
        // Without a thread it takes a little longer later.
        let preparer = std::thread::Builder::new().spawn_scoped(scope, perf::prepare);
        let result = work();
        // The scope waits until the thread's work is done, but not for the thread's end. A thread that blocks no
        // signals and still exists when the program ends could take the SIGCHLD that announces it.
        if let Ok(preparer) = preparer {
            let _ = preparer.join();
        }
        result
    })
}

/// Decides how to take samples, by trying. `agent` says that this program can have an agent, and
/// `changes_ids` that the kernel ends the program's own events when it is executed.
pub(crate) fn choose(asked: SamplerArg, rate: u32, agent: bool, changes_ids: bool, follow: bool) -> Choice {
    let mut reasons = Vec::new();
    if rate == 0 {
        return Choice { method: Method::None, rate, reasons };
    }
    if asked != SamplerArg::Timer {
        let scope = if changes_ids { Scope::Machine } else { Scope::Process(0) };
        match Perf::trial(scope, rate, follow) {
            Ok(trial) => {
                if !trial.samples_kernel() {
                    reasons.push("time in the kernel is not sampled (kernel.perf_event_paranoid)".into());
                }
                let most = perf::most_samples_per_second().unwrap_or(rate).max(1);
                if most < rate {
                    reasons.push(format!("the kernel allows {most} samples a second"));
                }
                return Choice { method: Method::Perf, rate: rate.min(most), reasons };
            }
            Err(error) => reasons.push(perf::refusal(&error, scope)),
        }
    }
    if asked == SamplerArg::Perf || !agent {
        if asked == SamplerArg::Timer {
            reasons.push("timers need the agent, which this program cannot have".into());
        }
        return Choice { method: Method::None, rate: 0, reasons };
    }
    let most = sys::ticks_per_second();
    if most < rate {
        reasons.push(format!("this kernel's timers go to {most} samples a second"));
    }
    Choice { method: Method::Timer, rate: rate.min(most), reasons }
}

/// The samples of a family of processes, taken with perf events.
pub(crate) struct Sampling {
    perf: Perf,
    pending: Vec<Record>,
    /// What reads the Python functions that processes execute.
    interpreters: Interpreters,
    /// Until when the rings are left alone, in nanoseconds of CLOCK_MONOTONIC.
    rests_until: u64,
    /// The members that were announced and whose time has not been reached: the time, the process and the
    /// member.
    announced: Vec<Announced>,
    /// When the last round began. All older records have been processed.
    seen_until: u64,
    /// What is known of each process, by its number.
    tracks: HashMap<u32, Track>,
    /// The members of the family.
    members: Vec<Sampled>,
    /// Whether threads are told apart.
    by_thread: bool,
    /// What the scheduler has done, if that is reported.
    switches: Vec<Switched>,
    /// The samples of processes in programs that are not followed.
    unfollowed: Unfollowed,
    pub(crate) tally: Tally,
}

/// How many samples were taken of all processes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) taken: u64,
    /// For how many the rings had no room.
    pub(crate) lost: u64,
    /// Whether the kernel has reduced the rate.
    pub(crate) throttled: bool,
}

impl Tally {
    /// Whether so many samples were lost that shares of time may be others.
    pub(crate) fn matters(self) -> bool {
        self.lost > self.taken / 100
    }
}

/// A thread of a member has begun to run, or has ceased to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switched {
    pub(crate) member: usize,
    pub(crate) tid: u32,
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub(crate) time: u64,
    pub(crate) cpu: u32,
    /// `None` if it runs, and otherwise whether it could go on.
    pub(crate) off: Option<bool>,
}

/// The greatest number of them that are kept until somebody takes them.
const SWITCHES: usize = 1 << 20;

#[derive(Clone, Copy)]
struct Announced {
    time: u64,
    pid: u32,
    member: usize,
    /// Whether the member begins with the process's next exec, and not at once.
    at_exec: bool,
}

impl Sampling {
    /// Returns the state before the first member. `by_thread`: threads are told apart.
    pub(crate) fn new(perf: Perf, by_thread: bool) -> Sampling {
        Sampling {
            perf,
            pending: Vec::new(),
            interpreters: Interpreters::default(),
            rests_until: 0,
            announced: Vec::new(),
            seen_until: 0,
            tracks: HashMap::new(),
            members: Vec::new(),
            by_thread,
            switches: Vec::new(),
            unfollowed: Unfollowed::default(),
            tally: Tally::default(),
        }
    }

    /// The perf events.
    pub(crate) fn perf(&mut self) -> &mut Perf {
        &mut self.perf
    }

    /// Adds the next member of the family, which process `pid` is from now on, or from its next exec on.
    pub(crate) fn announce(
        &mut self,
        pid: i32,
        code: &'static [ExecutableSegment],
        shape: Shape,
        at_exec: bool,
    ) {
        let member = self.members.len();
        let samples = Samples::new(shape);
        self.members.push(Sampled { pid: pid.cast_unsigned(), code, samples, paused: false });
        let pid = pid as u32;
        if member == 0 {
            self.tracks.insert(pid, Track::new(Some(member)));
        } else {
            self.announced.push(Announced { time: sys::monotonic_ns(), pid, member, at_exec });
        }
    }

    /// Adds a member whose program already runs.
    pub(crate) fn announce_running(
        &mut self,
        pid: i32,
        code: &'static [ExecutableSegment],
        shape: Shape,
        bias: u64,
    ) {
        let member = self.members.len();
        let samples = Samples::new(shape);
        self.members.push(Sampled { pid: pid.cast_unsigned(), code, samples, paused: false });
        let mut track = Track { state: State::Running { bias }, ..Track::new(Some(member)) };
        // The kernel reports only later mappings.
        track.maps.add_those_of(pid);
        if let Some(sampled) = self.members.get_mut(member) {
            track.maps.iter().for_each(|mapped| sampled.samples.note_file(&mapped.file));
        }
        self.tracks.insert(pid as u32, track);
    }

    /// Notes the agent's code in a process that runs, and the thunks in its arenas, without which no exit label on a stack is one. The
    /// kernel's records do not show them.
    pub(crate) fn note_code(&mut self, pid: i32, agent: Mapped) {
        if let Some(track) = self.tracks.get_mut(&(pid as u32)) {
            track.maps.add(agent);
            track.maps.add_new_of(pid);
        }
    }

    /// Ignores a member's samples from now on, or counts them again. Samples that were taken before are
    /// processed first.
    pub(crate) fn pause(&mut self, member: usize, paused: bool) {
        if let Some(sampled) = self.members.get_mut(member) {
            sampled.paused = paused;
        }
    }

    /// Returns a member's samples that have been counted so far.
    pub(crate) fn histogram(&self, member: usize) -> Option<&Histogram> {
        self.members.get(member).map(|sampled| &sampled.samples.histogram)
    }

    /// Returns a copy of what is known of a member up to now.
    pub(crate) fn samples(&self, member: usize) -> Option<Samples> {
        self.members.get(member).map(|sampled| self.told(member, sampled.samples.clone()))
    }

    /// Returns the same without stacks.
    pub(crate) fn flat_samples(&self, member: usize) -> Option<Samples> {
        let samples = &self.members.get(member)?.samples;
        let (histogram, threads) = (samples.histogram.clone(), samples.threads.clone());
        Some(self.told(member, Samples { threads, ..Samples::from(histogram) }))
    }

    /// Returns the samples of a member that tell what it has mapped, and whether those in the kernel are among them.
    fn told(&self, member: usize, mut samples: Samples) -> Samples {
        let pid = self.members.get(member).map(|sampled| sampled.pid);
        let track = pid.and_then(|pid| self.tracks.get(&pid)).filter(|track| track.member == Some(member));
        if let Some(track) = track {
            samples.maps = track.maps.clone();
        }
        samples.threads.is_without_kernel = !self.perf.samples_kernel();
        samples
    }

    /// Returns for how long the rings may still be left alone, which is no time if they have to be read now; `None` if somebody polls
    /// them. Each sample wakes whoever does, which is needed only if Python functions are read.
    pub(crate) fn rest(&self) -> Option<Duration> {
        let left = self.rests_until.saturating_sub(sys::monotonic_ns());
        (self.rests_until > 0).then(|| Duration::from_nanos(left))
    }

    /// Returns the descriptors to poll now: none while the rings [rest](Sampling::rest).
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.perf.descriptors().filter(|_| self.rests_until == 0)
    }

    /// Whether each sample is looked at when it arrives.
    pub(crate) fn is_busy(&self) -> bool {
        self.interpreters.are_busy(self.seen_until)
    }

    /// The samples of processes in programs that are not followed.
    pub(crate) fn unfollowed(&self) -> &Unfollowed {
        &self.unfollowed
    }

    /// The Python programs among the processes.
    pub(crate) fn interpreters(&self) -> &Interpreters {
        &self.interpreters
    }

    /// Removes and returns what is known of a member up to now.
    pub(crate) fn take(&mut self, member: usize) -> Option<Samples> {
        let sampled = self.members.get_mut(member)?;
        let empty =
            Samples { dumps: sampled.samples.dumps.clone(), ..Samples::new(sampled.samples.histogram.shape) };
        let samples = std::mem::replace(&mut sampled.samples, empty);
        Some(self.told(member, samples))
    }

    /// Returns the samples of a process that has never announced itself.
    pub(crate) fn early(&self, pid: u32, shape: Shape) -> Histogram {
        let mut samples = Samples::new(shape);
        if let Some(track) = self.tracks.get(&pid) {
            track
                .early
                .iter()
                .for_each(|early| samples.add((None, ALWAYS), (early.place, early.pc), None, &track.maps, 1));
        }
        samples.histogram
    }

    /// Forgets a process that has ended.
    pub(crate) fn forget(&mut self, pid: i32) {
        self.interpreters.forget(pid as u32);
        if let Some(mut track) = self.tracks.remove(&(pid as u32)) {
            track.leave_maps(&mut self.members);
        }
    }

    /// Processes the kernel's records.
    ///
    /// Each CPU has its own ring, and an exec on one CPU must be processed before later samples on another.
    /// Therefore a record is counted one round later: by then all records that are older than the previous
    /// round have arrived.
    pub(crate) fn drain(&mut self) {
        /// How long the rings rest if nothing else is to be read. They have room for several times as long.
        const REST: u64 = 8_000_000;
        /// After so many samples it is known what processes are.
        const FIRST: u64 = 16;
        let now = sys::monotonic_ns();
        let has_more = self.take_records(now);
        let may_rest = self.perf.wakes_at_samples() && self.tally.taken > FIRST;
        let rests = may_rest && has_more && !self.interpreters.are_busy(now);
        self.rests_until = if rests { now + REST } else { 0 };
        let until = std::mem::replace(&mut self.seen_until, now);
        self.count(until);
    }

    /// Processes everything that is known, after a process has ended.
    pub(crate) fn settle(&mut self) {
        self.take_records(sys::monotonic_ns());
        self.count(u64::MAX);
    }

    /// Takes the records out of the rings, and reads what else there is to know of new samples. Returns whether there are any.
    fn take_records(&mut self, now: u64) -> bool {
        let first = self.pending.len();
        self.perf.drain(&mut self.pending);
        let new = self.pending.get_mut(first..).unwrap_or_default();
        let tracks = &self.tracks;
        self.interpreters.attend(new, now, |pid| tracks.get(&pid).map(|track| &track.maps));
        !new.is_empty()
    }

    fn count(&mut self, until: u64) {
        let now = Moment::now();
        self.pending.sort_by_key(|record| record.time);
        let ready = self.pending.partition_point(|record| record.time < until);
        let rest = self.pending.split_off(ready);
        for record in std::mem::replace(&mut self.pending, rest) {
            self.arrive(record.time);
            self.count_one(record, now);
        }
        self.arrive(until);
    }

    /// Begins the members that were announced before `time`.
    fn arrive(&mut self, time: u64) {
        let after = self.announced.partition_point(|announced| announced.time < time);
        for announced in self.announced.drain(..after) {
            let Announced { pid, member, at_exec, .. } = announced;
            let processes = self.tracks.len();
            let track = self.tracks.entry(pid).or_insert_with(|| Track::new(None));
            if at_exec {
                track.next = Some(member);
                continue;
            }
            track.member = Some(member);
            let early = std::mem::take(&mut track.early);
            if let Some(sampled) = self.members.get_mut(member) {
                early.iter().for_each(|early| early.add_to(&mut sampled.samples, &track.maps, processes));
            }
        }
    }

    fn note_switch(&mut self, (pid, tid): (u32, u32), time: u64, cpu: u32, off: Option<bool>) {
        if let Some(member) = self.tracks.get(&pid).and_then(|track| track.member)
            && self.switches.len() < SWITCHES
        {
            self.switches.push(Switched { member, tid, time, cpu, off });
        }
    }

    /// Returns what the scheduler has done since the last call.
    pub(crate) fn take_switches(&mut self) -> Vec<Switched> {
        std::mem::take(&mut self.switches)
    }

    fn count_one(&mut self, record: Record, now: Moment) {
        let tid = self.by_thread.then_some(record.tid);
        match record.event {
            Event::Lost(count) => self.tally.lost += count,
            Event::Throttled => self.tally.throttled = true,
            Event::Fork { parent } => {
                if let Some(parent) = self.tracks.get(&parent) {
                    let (state, unfollowed) = (parent.state, parent.unfollowed.clone());
                    let track = Track { state, unfollowed, maps: parent.maps.clone(), ..Track::new(None) };
                    self.tracks.insert(record.pid, track);
                }
            }
            Event::End | Event::Named(_) | Event::Began { .. } => {
                let member = self.tracks.get(&record.pid).and_then(|track| track.member);
                if let Some(sampled) = member.and_then(|member| self.members.get_mut(member))
                    && let Some(tid) = tid
                {
                    sampled.samples.threads.note(record.pid, tid, record.event, now.back_to(record.time));
                }
            }
            Event::On { cpu } => self.note_switch((record.pid, record.tid), record.time, cpu, None),
            Event::Off { cpu, preempted } => {
                self.note_switch((record.pid, record.tid), record.time, cpu, Some(preempted));
            }
            event => {
                if event == Event::Exec {
                    self.interpreters.forget(record.pid);
                }
                self.tally.taken += u64::from(matches!(event, Event::Sample(..)));
                let processes = self.tracks.len();
                let Some(track) = self.tracks.get_mut(&record.pid) else { return };
                if track.state == State::Over {
                    track.pass(&event, &mut self.unfollowed);
                }
                track.see(event, (tid, record.time), &mut self.members, processes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rate_means_no_sampler() {
        assert_eq!(choose(SamplerArg::Auto, 0, true, false, true).method, Method::None);
    }
}
