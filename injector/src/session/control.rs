//! What a user can do with a process while it is profiled: write a profile up to now, set the counts to zero,
//! pause and resume.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use gmon::output::Target;

use crate::options::Verb;
use crate::os::clock::Moment;
use crate::os::sys;
use crate::profile::baseline::Baseline;
use crate::profile::collect::Account;
use crate::profile::counted::{Finished, Reading, counted};
use crate::profile::elsewhere::Names;
use crate::profile::ends::End;
use crate::profile::recorder::Processes;
use crate::program::choice::{Choice, Part};
use crate::program::profilee::Profilee;
use crate::sampling::histogram::Histogram;
use crate::sampling::sampler::Sampling;
use crate::session::family::Family;
use crate::session::message::Request;
use crate::session::results::{Results, Said};
use crate::session::words::calls_and_samples;
use crate::store::output::Written;
use crate::store::region::file::RegionFile;
use crate::target::agent::choice::Switch;
use crate::target::grip::Known;
use crate::target::threads::stopped::Pause;
use crate::trace::tracer::Tracer;

/// The suffix of the copy of a region file that is made for a dump.
const COPY_SUFFIX: &str = ".copy";

impl Family<'_> {
    /// Carries out a request. Returns the text of the answer.
    ///
    /// # Errors
    /// The process is not profiled, or what was asked for fails.
    pub(crate) fn carry_out(&mut self, request: &Request, sampling: Option<&mut Sampling>) -> Result<String> {
        let index = self.current(request.pid)?;
        match request.verb {
            Verb::Dump => self.dump(index, request.output.as_deref(), sampling),
            Verb::Reset => self.reset(index, sampling),
            Verb::Pause => self.pause(index, sampling),
            Verb::Resume => self.resume(index, sampling),
            Verb::Look => bail!("a snapshot is sent as a file"),
            Verb::Enable | Verb::Disable => self.switch(
                index,
                request.pattern.as_deref().unwrap_or_default(),
                request.verb == Verb::Disable,
            ),
        }
    }

    /// Returns the member that a process is now.
    pub(super) fn current(&self, pid: i32) -> Result<usize> {
        let process = self.living.get(&pid).and_then(|process| process.members.last().copied());
        process.with_context(|| format!("process {pid} is not profiled by this gprofinject"))
    }

    /// Whether the program that a process runs now is paused.
    pub(crate) fn is_paused(&self, pid: i32) -> bool {
        self.current(pid)
            .ok()
            .and_then(|index| self.members.get(index))
            .is_some_and(|member| member.is_paused)
    }

    /// Returns what a member has counted until now, and for how long it stood still for that. `is_named`: callers in code that was made at
    /// run time are known by name, and otherwise by address.
    fn up_to_now(
        &mut self,
        index: usize,
        is_named: bool,
        sampling: Option<&mut Sampling>,
    ) -> Result<(Finished, Vec<u8>, Option<Pause>)> {
        self.note_maps_of(index);
        let member = self.members.get(index).context("it has ended")?;
        let profilee = member.profilee;
        let samples = sampling.and_then(|sampling| {
            sampling.settle();
            self.trace_switches(sampling);
            sampling.samples(index)
        });
        let mut copy = None;
        let mut pause = None;
        if let (Some(folder), Some((_, layout))) = (&self.folder, &profilee.plan) {
            let own = folder.private();
            let made = format!("{}{COPY_SUFFIX}", member.name);
            pause = member.grip.copy(own, &folder.region(&member.name), layout, &made)?;
            copy = Some(RegionFile::new(own, made));
        }
        let mut troubles = Vec::new();
        let baseline = member.baseline.as_ref();
        let maps = &member.maps;
        let reading = Reading {
            profilee,
            libraries: self.libraries.numbered(),
            maps,
            origin: is_named.then_some(&member.origin),
            rate: self.rate,
            end: End::Running(Moment::now()),
            own_call: member.own_call.as_ref(),
            is_part: false,
            has_own: true,
        };
        let names = &mut Names::new(Arc::clone(&self.settings.cache));
        let (finished, ..) = counted(copy.as_ref(), &reading, samples, None, baseline, &mut troubles, names);
        if let Some(copy) = copy {
            copy.remove();
        }
        match troubles.pop() {
            None => {
                let (finished, bytes) = finished.finish()?;
                Ok((finished, bytes, pause))
            }
            Some(trouble) => bail!(trouble),
        }
    }

    fn dump(&mut self, index: usize, file: Option<&Path>, sampling: Option<&mut Sampling>) -> Result<String> {
        let (finished, bytes, pause) = self.up_to_now(index, true, sampling)?;
        let (pid, profilee) = self.member(index)?;
        let mut is_stream = self.output.is_stream();
        let mut results = Results::new(self.output, None, profilee);
        let mut said = Said::default();
        let label =
            self.members.get(index).map_or_else(String::new, |member| member.label.as_str().to_owned());
        let processes = Processes { label, ..Processes::one(pid as u32) };
        let item = results.first(profilee, &finished, &processes, &mut said, || match file {
            Some(file) => {
                let target = Target::check(file).and_then(|target| {
                    target.write(&bytes)?;
                    Ok(target)
                });
                let target = target.map_err(|error| {
                    anyhow!("cannot write to {}: {}", file.display(), sys::reason(&error))
                })?;
                is_stream = target.is_stream();
                Ok(Written { path: file.to_owned(), detour: None })
            }
            None if index == 0 => self.output.write(pid as u32, &bytes),
            None => self.output.write_other(pid as u32, &bytes),
        })?;
        if let Some(slowest) = self.tracer.as_ref().and_then(Tracer::slowest) {
            results.slowest(&slowest);
        }
        let recording = if is_stream { None } else { results.finish(pid as u32, &mut said)? };
        let said = said.troubles.iter().map(|trouble| format!("; {trouble}")).collect::<String>();
        self.save_trace()?;
        let samples = finished.placed.inside + finished.placed.outside;
        Ok(format!(
            "process {pid}, up to now: {}{}{}{said}",
            calls_and_samples(finished.profile.calls(), samples),
            stood_still(pause),
            item.commands(recording.as_deref()).map_or_else(String::new, |command| format!("; {command}")),
        ))
    }

    /// Writes the part of the trace that is kept, if it is.
    fn save_trace(&self) -> Result<()> {
        match &self.tracer {
            Some(tracer) if tracer.keeps() => tracer.save().map(drop).map_err(|why| anyhow!(why)),
            _ => Ok(()),
        }
    }

    fn reset(&mut self, index: usize, sampling: Option<&mut Sampling>) -> Result<String> {
        let (pid, profilee) = self.member(index)?;
        self.tracer.iter().for_each(Tracer::reset);
        // Everything since the start, without an earlier baseline and without the kernel's samples.
        if let Some(member) = self.members.get_mut(index) {
            member.baseline = None;
        }
        if let Some(sampling) = sampling {
            sampling.settle();
            sampling.take(index);
        }
        let (finished, _, pause) = self.up_to_now(index, false, None)?;
        let mut agents = Histogram::new(profilee.planned.shape);
        let member = self.members.get_mut(index).context("it has ended")?;
        if let (Some(folder), Some((_, layout))) = (&self.folder, &profilee.plan)
            && let Ok(region) = folder.region(&member.name).open(layout)
        {
            region.histogram(|first, counts| agents.add_bins(first, counts))?;
        }
        let Finished { mut profile, account, .. } = finished;
        if let Some(module) = profile.modules.first_mut() {
            module.samples = agents;
        }
        let Account { lost_calls, bare_calls, .. } = account;
        let baseline = Baseline { profile, lost_calls, bare_calls };
        if let Some(folder) = &self.folder {
            folder.keep_baseline(&member.name, &baseline.encode());
        }
        member.baseline = Some(baseline);
        Ok(format!("process {pid}: counts are zero{}", stood_still(pause)))
    }

    fn pause(&mut self, index: usize, sampling: Option<&mut Sampling>) -> Result<String> {
        let (pid, profilee) = self.member(index)?;
        if profilee.planned.copies {
            bail!(
                "process {pid} counts its blocks or instructions, which cannot be paused: it runs copies of its functions"
            );
        }
        let member = self.members.get_mut(index).context("it has ended")?;
        if member.is_paused {
            bail!("process {pid} is already paused; --resume continues counting");
        }
        let files = self.folder.as_ref().map(|folder| (folder.private(), member.name.as_str()));
        let known = Known { files, planned: profilee.planned, libraries: self.libraries.numbered() };
        let still = member.grip.pause(&known)?;
        if let Some(sampling) = sampling {
            sampling.settle();
            sampling.pause(index, true);
        }
        member.is_paused = true;
        Ok(format!("process {pid}: paused{}", stood_still(still)))
    }

    fn resume(&mut self, index: usize, sampling: Option<&mut Sampling>) -> Result<String> {
        let (pid, profilee) = self.member(index)?;
        let member = self.members.get_mut(index).context("it has ended")?;
        if !member.is_paused {
            bail!("process {pid} is not paused");
        }
        let files = self.folder.as_ref().map(|folder| (folder.private(), member.name.as_str()));
        let known = Known { files, planned: profilee.planned, libraries: self.libraries.numbered() };
        let still = member.grip.resume(&known)?;
        if let Some(sampling) = sampling {
            sampling.settle();
            sampling.pause(index, false);
        }
        member.is_paused = false;
        Ok(format!("process {pid}: goes on counting{}", stood_still(still)))
    }

    fn switch(&mut self, index: usize, pattern: &str, off: bool) -> Result<String> {
        let (pid, profilee) = self.member(index)?;
        if profilee.planned.copies {
            bail!(
                "process {pid} counts its blocks or instructions: it runs copies of its functions, which cannot be switched"
            );
        }
        let choice = Choice::new(pattern, off)?;
        let program = choice.of_program(profilee);
        let member = self.members.get_mut(index).context("it has ended")?;
        let region = self.folder.as_ref().map(|folder| folder.region(&member.name));
        let loaded = region.and_then(|region| region.libraries().ok()).unwrap_or_default();
        let mut libraries: Vec<(u32, BTreeSet<u32>)> = Vec::new();
        for library in self.libraries.numbered().iter() {
            let numbers = choice.of_library(library);
            if loaded.iter().any(|record| record.plan == library.number) && !numbers.is_empty() {
                libraries.push((library.number, numbers));
            }
        }
        let files = self.folder.as_ref().map(|folder| (folder.private(), member.name.as_str()));
        let known = Known { files, planned: profilee.planned, libraries: self.libraries.numbered() };
        let matching = program.len() + libraries.iter().map(|(_, numbers)| numbers.len()).sum::<usize>();
        if matching == 0 {
            let refused = choice.refused(profilee).map(|why| format!("; {why}")).unwrap_or_default();
            bail!(
                "no hooked function of process {pid} matches '{pattern}'{refused}; gprofinject --list PROGRAM prints the                  names, and MODULE!FUNCTION names a library"
            );
        }
        let switch = Switch { off, program: &program, libraries: &libraries };
        let still = member.grip.switch(&known, switch)?;
        let mut parts = vec![(Part::Program, &program)];
        parts.extend(libraries.iter().map(|(number, numbers)| (Part::Library(*number), numbers)));
        parts.retain(|(_, numbers)| !numbers.is_empty());
        let changed: usize =
            parts.iter().map(|(part, numbers)| member.switched.note(*part, numbers, off)).sum();
        member.switched.remember(choice);
        let plan = profilee.planned.plan.as_ref();
        let mut shared = program.iter().filter(|&&n| plan.is_some_and(|plan| plan.is_shared(n))).count();
        for (number, numbers) in &libraries {
            let plan =
                self.libraries.numbered().get(*number).and_then(|library| library.planned.plan.as_ref());
            shared += numbers.iter().filter(|&&n| plan.is_some_and(|plan| plan.is_shared(n))).count();
        }
        let functions = gmon::counted(matching as u64, "function", "functions");
        let modules = gmon::counted(parts.len() as u64, "module", "modules");
        let already = match matching - changed {
            0 => String::new(),
            before => format!(", {before} of them already before"),
        };
        let stay = match (off, shared) {
            (true, 1..) => format!(", {shared} with a jump that other hooks need"),
            _ => String::new(),
        };
        let state = if off { "off" } else { "on" };
        Ok(format!("process {pid}: {functions} of {modules} {state}{already}{stay}{}", stood_still(still)))
    }

    fn member(&self, index: usize) -> Result<(i32, &'static Profilee)> {
        self.members.get(index).map(|member| (member.pid, member.profilee)).context("it has ended")
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
