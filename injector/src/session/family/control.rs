//! What can be done with a profiled process while it runs: a profile up to now, counts back to zero, a pause.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use gmon::Arc;
use gmon::output::Target;
use serde::{Deserialize, Serialize};

use crate::os::sys;
use crate::profile::collect::Collected;
use crate::profile::counted::counted;
use crate::program::profilee::Profilee;
use crate::sampling::histogram::Histogram;
use crate::sampling::sampler::Sampling;
use crate::session::family::{Family, Finished};
use crate::store::listener::Asker;
use crate::store::output::Written;
use crate::store::private_folder::PrivateFolder;
use crate::store::region::RegionFile;
use crate::target::agent::engine::{Attached, Pause};
use crate::target::process::Process;
use crate::target::threads::helper;
use crate::target::threads::tracee::{self, Stopped};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verb {
    Dump,
    Reset,
    Pause,
    Resume,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) pid: i32,
    pub(crate) verb: Verb,
    /// Where a dump goes, absolute; None: where the profile will go.
    pub(crate) output: Option<PathBuf>,
}

/// The region file as it was when a dump was asked for.
const COPY_SUFFIX: &str = ".copy";

/// First byte of an answer: it was done, or not; text follows.
pub(crate) const DONE: u8 = b'+';
pub(crate) const FAILED: u8 = b'-';

/// Whether a user may tell us what to do. A request names a file that we write: the process itself, which knows the
/// socket too and may run as another user, must not have us write where it could not.
fn may_ask(user: u32) -> Result<()> {
    if user != 0 && user != sys::ids().euid {
        bail!("only root and the user who runs gprofinject can ask for this");
    }
    Ok(())
}

/// What was counted when the counts were last set to zero. The counters themselves belong to the process.
#[derive(Debug, Default)]
pub(crate) struct Baseline {
    arcs: Vec<Arc>,
    /// The block counters.
    counters: Vec<u64>,
    /// Samples that the agent took.
    samples: Option<Histogram>,
    lost_calls: u64,
    bare_calls: u64,
}

impl Baseline {
    /// Leaves what has come since.
    pub(crate) fn subtract(&self, collected: &mut Collected, histogram: &mut Histogram) {
        let mut before = self.arcs.iter().peekable();
        for arc in &mut collected.arcs {
            // Both are sorted.
            while before.next_if(|old| (old.from, old.to) < (arc.from, arc.to)).is_some() {}
            if let Some(old) = before.next_if(|old| (old.from, old.to) == (arc.from, arc.to)) {
                arc.count = arc.count.saturating_sub(old.count);
            }
        }
        collected.arcs.retain(|arc| arc.count > 0);
        for (count, before) in collected.counters.iter_mut().zip(&self.counters) {
            *count = count.saturating_sub(*before);
        }
        collected.lost_calls = collected.lost_calls.saturating_sub(self.lost_calls);
        collected.bare_calls = collected.bare_calls.saturating_sub(self.bare_calls);
        if let Some(samples) = &self.samples {
            histogram.subtract(samples);
        }
    }

    /// Beside the counters, for `--recover`.
    fn encode(&self) -> Vec<u8> {
        let arcs = self.arcs.iter().flat_map(|arc| [arc.from, arc.to, arc.count]);
        let head = [self.lost_calls, self.bare_calls, self.arcs.len() as u64, self.counters.len() as u64];
        let counters = self.counters.iter().copied();
        let words = head.into_iter().chain(arcs).chain(counters);
        let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        bytes.extend(self.samples.iter().flat_map(Histogram::encode));
        bytes
    }

    /// The inverse. None: it is damaged.
    pub(crate) fn decode(bytes: &[u8], planned: &crate::program::planned::Planned) -> Option<Baseline> {
        let word = |n: usize| Some(u64::from_le_bytes(*bytes.get(8 * n..)?.first_chunk()?));
        // There are no more than there are bytes.
        let number = |n| usize::try_from(word(n)?).ok().filter(|number| *number <= bytes.len() / 8);
        let (count, blocks) = (number(2)?, number(3)?);
        let arc =
            |n: usize| Some(Arc { from: word(4 + 3 * n)?, to: word(5 + 3 * n)?, count: word(6 + 3 * n)? });
        let arcs = (0..count).map(arc).collect::<Option<Vec<Arc>>>()?;
        let first = 4 + 3 * count;
        let counters = (0..blocks).map(|n| word(first + n)).collect::<Option<Vec<u64>>>()?;
        let mut samples = Histogram::new(planned.shape);
        samples.add_encoded(bytes.get(8 * (first + blocks)..)?);
        let (lost_calls, bare_calls) = (word(0)?, word(1)?);
        Some(Baseline { arcs, counters, samples: Some(samples), lost_calls, bare_calls })
    }
}

impl Family<'_> {
    /// Does what was asked for, and answers.
    pub(super) fn control(&mut self, asker: &Asker, request: &[u8], sampling: Option<&mut Sampling>) {
        let done = may_ask(asker.user)
            .and_then(|()| {
                serde_json::from_slice(request)
                    .context("another version of gprofinject looks after this process")
            })
            .and_then(|request| self.carry_out(&request, sampling));
        let (first, text) = match done {
            Ok(text) => (DONE, text),
            Err(error) => (FAILED, format!("{error:#}")),
        };
        asker.answer(&[&[first], text.as_bytes()].concat());
    }

    pub(crate) fn carry_out(&mut self, request: &Request, sampling: Option<&mut Sampling>) -> Result<String> {
        let pid = request.pid;
        let index = self.current(pid)?;
        match request.verb {
            Verb::Dump => self.dump(index, request.output.as_deref(), sampling),
            Verb::Reset => self.reset(index, sampling),
            Verb::Pause => self.pause(index, sampling),
            Verb::Resume => self.resume(index, sampling),
        }
    }

    /// Does what a signal asks for, with all processes that run. False: it asks for nothing.
    pub(crate) fn is_asked_by(&mut self, signal: i32, mut sampling: Option<&mut Sampling>) -> bool {
        let asked = self.settings.signals.iter().find(|(known, _)| *known == signal);
        let Some(&(_, verb)) = asked else { return false };
        let pids: Vec<i32> = self.living.keys().copied().collect();
        for pid in pids {
            let paused = self.current(pid).is_ok_and(|index| self.paused.contains(&index));
            let verb = if verb == Verb::Pause && paused { Verb::Resume } else { verb };
            match self.carry_out(&Request { pid, verb, output: None }, sampling.as_deref_mut()) {
                Ok(text) => self.settings.voice.note(text),
                Err(error) => self.settings.voice.warn(format_args!("{error:#}")),
            }
        }
        true
    }

    /// The member that a process is now.
    fn current(&self, pid: i32) -> Result<usize> {
        let process = self.living.get(&pid).and_then(|process| process.members.last().copied());
        process.with_context(|| format!("process {pid} is not profiled by this gprofinject"))
    }

    /// What a member has counted up to now.
    fn up_to_now(
        &mut self,
        index: usize,
        sampling: Option<&mut Sampling>,
    ) -> Result<(Finished, Option<Pause>)> {
        let member = self.members.get(index).context("it has ended")?;
        let (profilee, name, pid) = (member.profilee, member.name.clone(), member.pid);
        let samples = sampling.and_then(|sampling| {
            sampling.settle();
            sampling.histogram(index).cloned()
        });
        let mut copy = None;
        let mut pause = None;
        if let (Some(folder), Some((_, layout))) = (&self.folder, &profilee.plan) {
            let (own, region) = (folder.private(), folder.region(&name));
            let made = format!("{name}{COPY_SUFFIX}");
            // While nobody counts. Where threads cannot be stopped, calls under way may be seen in part.
            let copied = helper::carry_out(pid, Some(own), |_| {
                tracee::apart(pid, |tracer| {
                    let region = region.open(layout).map_err(|error| sys::reason(&error))?;
                    let stopped = Stopped::all(pid, tracer).ok();
                    region.copy_to(own, &made).map_err(|error| sys::reason(&error))?;
                    let still = |s: Stopped| Pause { took: s.elapsed(), threads: s.threads.len() };
                    Ok::<Option<Pause>, String>(stopped.map(still))
                })
            })?;
            pause = copied.map_err(|error| anyhow!("the counters cannot be copied: {error}"))?;
            copy = Some(RegionFile::new(own, made));
        }
        let mut troubles = Vec::new();
        let baseline = self.baselines.get(&index);
        let finished = counted(copy.as_ref(), profilee, samples, None, self.rate, baseline, &mut troubles);
        if let Some(copy) = copy {
            copy.remove();
        }
        match (finished, troubles.pop()) {
            (Some((finished, _)), None) => Ok((finished, pause)),
            (_, trouble) => bail!(trouble.unwrap_or_else(|| "there is nothing to read".to_owned())),
        }
    }

    fn dump(&mut self, index: usize, file: Option<&Path>, sampling: Option<&mut Sampling>) -> Result<String> {
        let (finished, pause) = self.up_to_now(index, sampling)?;
        let (pid, profilee) = self.member(index)?;
        let path = match file {
            Some(file) => {
                let target = Target::check(file);
                target.and_then(|target| target.write(&finished.bytes)).map_err(|error| {
                    anyhow!("cannot write to {}: {}", file.display(), sys::reason(&error))
                })?;
                file.to_owned()
            }
            None if index == 0 => self.output.write(pid as u32, &finished.bytes)?.path,
            None => {
                let before = self.written.get(&pid).copied().unwrap_or_default();
                let Written { path, .. } = self.output.write_other(pid as u32, before, &finished.bytes)?;
                path
            }
        };
        let samples = finished.placed.inside + finished.placed.outside;
        Ok(format!(
            "process {pid}, up to now: {}{}; gprof {} {}",
            crate::session::report::calls_and_samples(finished.collected.calls(), samples),
            stood_still(pause),
            crate::session::report::quoted(&profilee.symbols_beside(self.output, &path).0),
            crate::session::report::quoted(path.as_os_str())
        ))
    }

    fn reset(&mut self, index: usize, sampling: Option<&mut Sampling>) -> Result<String> {
        let (pid, profilee) = self.member(index)?;
        // Everything since the start, without an earlier baseline, and without what the kernel has sampled.
        self.baselines.remove(&index);
        if let Some(sampling) = sampling {
            sampling.settle();
            sampling.take(index);
        }
        let (finished, pause) = self.up_to_now(index, None)?;
        let mut agents = Histogram::new(profilee.planned.shape);
        let name = self.members.get(index).map(|member| member.name.clone()).unwrap_or_default();
        if let (Some(folder), Some((_, layout))) = (&self.folder, &profilee.plan)
            && let Ok(region) = folder.region(&name).open(layout)
        {
            region.histogram(|first, counts| agents.add_bins(first, counts))?;
        }
        let collected = finished.collected;
        let baseline = Baseline {
            lost_calls: collected.lost_calls,
            bare_calls: collected.bare_calls,
            arcs: collected.arcs,
            counters: collected.counters,
            samples: Some(agents),
        };
        if let Some(folder) = &self.folder {
            folder.keep_baseline(&name, &baseline.encode());
        }
        self.baselines.insert(index, baseline);
        Ok(format!("process {pid}: counts are zero{}", stood_still(pause)))
    }

    fn pause(&mut self, index: usize, sampling: Option<&mut Sampling>) -> Result<String> {
        let (pid, profilee) = self.member(index)?;
        if profilee.planned.counts {
            bail!("process {pid} counts its blocks, which cannot be paused: it runs copies of its functions");
        }
        if self.paused.contains(&index) {
            bail!("process {pid} is paused already; --resume goes on");
        }
        let mut still = None;
        if let Some(engine) = self.engine(index)? {
            still = Some(engine.pause()?);
        }
        self.keep_engine(index);
        if let Some(sampling) = sampling {
            sampling.settle();
            sampling.pause(index, true);
        }
        self.paused.insert(index);
        Ok(format!("process {pid}: paused{}", stood_still(still)))
    }

    fn resume(&mut self, index: usize, sampling: Option<&mut Sampling>) -> Result<String> {
        let (pid, profilee) = self.member(index)?;
        if !self.paused.contains(&index) {
            bail!("process {pid} is not paused");
        }
        let mut still = None;
        if let Some(engine) = self.engine(index)? {
            let moved = engine.moved(profilee.planned);
            still = Some(engine.resume(&moved)?);
        }
        self.keep_engine(index);
        if let Some(sampling) = sampling {
            sampling.settle();
            sampling.pause(index, false);
        }
        self.paused.remove(&index);
        Ok(format!("process {pid}: goes on counting{}", stood_still(still)))
    }

    /// For whoever has to leave the process in our place.
    fn keep_engine(&self, index: usize) {
        if let Some(engine) = self.engines.get(&index).filter(|engine| engine.is_guest()) {
            let _ = engine.save();
        }
    }

    fn member(&self, index: usize) -> Result<(i32, &'static Profilee)> {
        self.members.get(index).map(|member| (member.pid, member.profilee)).context("it has ended")
    }

    /// The way to a member's threads; None: nothing is hooked there.
    fn engine(&mut self, index: usize) -> Result<Option<&mut Attached>> {
        let (pid, profilee) = self.member(index)?;
        if !self.engines.contains_key(&index) {
            let (Some(folder), Some(plan)) = (&self.folder, &profilee.planned.plan) else { return Ok(None) };
            if plan.records.is_empty() {
                return Ok(None);
            }
            let engine = Attached::started(&Process::open(pid)?, plan, folder.private())?;
            self.engines.insert(index, engine);
        }
        Ok(self.engines.get_mut(&index))
    }
}

fn stood_still(pause: Option<Pause>) -> String {
    match pause {
        Some(pause) => {
            format!(" ({pause})")
        }
        None => String::new(),
    }
}

/// Has the gprofinject that looks after a process do something. `folders`: run folders of ours that the process knows.
pub(crate) fn ask(folders: &[PrivateFolder], request: &Request) -> Result<String> {
    let pid = request.pid;
    let folder = folders
        .iter()
        .find(|folder| crate::store::logbook::is_looked_after(folder))
        .with_context(|| match folders.first() {
            Some(folder) => format!(
                "the gprofinject that profiled process {pid} was killed; its profile: gprofinject --recover {}",
                folder.path().display()
            ),
            None => format!("process {pid} is not profiled; gprofinject --pid {pid} begins with it"),
        })?;
    let text = serde_json::to_vec(request)?;
    let packet = [&[gprofinject_abi::ask::CONTROL], text.as_slice()].concat();
    let answer = crate::store::listener::ask(folder, &packet).map_err(|error: io::Error| {
        anyhow!("the gprofinject that profiles process {pid} does not answer: {}", sys::reason(&error))
    })?;
    let text = String::from_utf8_lossy(answer.get(1..).unwrap_or_default()).into_owned();
    match answer.first() {
        Some(&DONE) => Ok(text),
        Some(_) => bail!(text),
        None => bail!("the gprofinject that profiles process {pid} did not answer"),
    }
}
