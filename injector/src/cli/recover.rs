//! `--recover`: writes the profiles of a run whose gprofinject was killed.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use gmon_run::Process;
use gprofinject_abi::REGION_SUFFIX;

use crate::generated::Origin;
use crate::os::say::Voice;
use crate::profile::baseline::Baseline;
use crate::profile::counted::{self, Counted, Reading};
use crate::profile::elsewhere::Names;
use crate::profile::ends::End;
use crate::profile::recorder::Processes;
use crate::program::arguments::ArgsChoice;
use crate::program::filters::Filters;
use crate::program::library::Libraries;
use crate::program::libs::Libs;
use crate::program::plan_cache::PlanCache;
use crate::program::planner::Planner;
use crate::program::profilee::{Profilee, Profilees};
use crate::sampling::histogram::Histogram;
use crate::sampling::maps::Maps;
use crate::session::results::{Item, Results, Said};
use crate::session::settings::Settings;
use crate::session::words::{calls_and_samples, quoted};
use crate::store::logbook::{Entries, Logbook, Program};
use crate::store::output::Output;
use crate::store::private_folder::{Distrust, PrivateFolder};
use crate::store::run_folder::{BASELINE_SUFFIX, FIRST, SAMPLES_SUFFIX, region_in};
use crate::store::survivors::Survivors;

struct Recovery<'s> {
    folder: PrivateFolder,
    logbook: Logbook,
    filters: Filters,
    libs: Libs,
    /// The values that were kept.
    args: Option<ArgsChoice>,
    output: &'s Output,
    /// What is recovered; `None` before the first profile.
    results: Option<Results<'s>>,
    /// What was written, with words for it.
    items: Vec<(String, Item)>,
    /// The process whose profile was written first.
    first_pid: Option<u32>,
    profilees: Profilees,
    libraries: Libraries,
    /// The programs, by the numbers of their plans.
    planned: HashMap<u32, &'static Profilee>,
    survivors: Survivors,
    voice: Voice,
    /// The plans that earlier runs have kept. No new ones are added.
    cache: &'s Arc<PlanCache>,
}

/// Returns a planner that plans as the run did.
fn planner<'a>(
    entries: &Entries,
    filters: &'a Filters,
    libs: &'a Libs,
    args: Option<&'a ArgsChoice>,
    cache: &'a PlanCache,
) -> Planner<'a> {
    let Entries { hooks, engine, measure, running, shadow_stacks, arena, .. } = *entries;
    Planner { hooks, engine, measure, args, filters, libs, running, shadow_stacks, arena, cache }
}

/// Writes the profiles. Removes the folder when nothing in it is needed any more.
///
/// # Errors
/// The folder is not a run folder of this user, or a profile cannot be written.
pub(crate) fn recover(folder: &Path, settings: &Settings) -> Result<()> {
    let voice = settings.voice;
    let folder = trusted(folder)?;
    let logbook = Logbook::open(&folder)?;
    let entries = &logbook.entries;
    let filters = Filters::new(&entries.include, &entries.exclude, entries.min_size)?
        .counting(entries.count, &entries.files)?;
    let libs = Libs::new(Some(&entries.libs), &entries.outermost)?;
    let args = entries.values.as_deref().map(ArgsChoice::parse_values).transpose()?;
    let planner = planner(entries, &filters, &libs, args.as_ref(), &settings.cache);
    let libraries = Libraries::again(&entries.libraries, &planner);
    let output = entries.output.check()?;
    let mut recovery = Recovery {
        folder: folder.clone(),
        filters,
        libs,
        args,
        libraries,
        output: &output,
        results: None,
        items: Vec::new(),
        first_pid: None,
        logbook,
        profilees: Profilees::default(),
        planned: HashMap::new(),
        survivors: Survivors::patiently(&folder),
        voice,
        cache: &settings.cache,
    };
    let mut failures = 0;
    let mut living = 0;
    for name in names(&folder)? {
        match recovery.process(&name) {
            Ok(Life::Ended) => {}
            Ok(Life::Lives) => living += 1,
            Err(error) => {
                failures += 1;
                voice.warn(format_args!("{name}: {error:#}"));
            }
        }
    }
    if let Err(error) = recovery.finish() {
        failures += 1;
        voice.warn(format_args!("{error:#}"));
    }
    if failures > 0 {
        let failures = gmon::counted(failures, "profile", "profiles");
        bail!("{failures} could not be recovered; the remaining files stay in {}", folder.path().display());
    }
    // A process may have forked meanwhile.
    if living > 0 || Survivors::of(&folder).any() {
        voice.note(format_args!(
            "some processes still run: their profiles are those up to now; once more at their end: \
             gprofinject --recover {}",
            folder.path().display()
        ));
        return Ok(());
    }
    folder.remove().with_context(|| format!("{} cannot be removed", folder.path().display()))
}

/// Opens the run folder. Its contents say where the profiles are written, so it is used only if it belongs to
/// this user. Another user's symbolic link in the folder's name could choose which run is recovered, so the
/// name may contain none.
fn trusted(folder: &Path) -> Result<PrivateFolder> {
    let shown = folder.display();
    let named =
        without_dots(&std::path::absolute(folder).with_context(|| format!("{shown} cannot be opened"))?);
    PrivateFolder::open(&named).map_err(|why| match (why, folder.canonicalize()) {
        (Distrust::Foreign(user), _) => anyhow!(
            "{shown} belongs to user {user}, and what is in it decides which files are written; run gprofinject \
             --recover as that user: sudo -u '#{user}' gprofinject --recover {shown}"
        ),
        (_, Ok(real)) if real != named => {
            let real = quoted(real.as_os_str());
            anyhow!("{shown} leads through a symbolic link to {real}; if that is the run: gprofinject --recover {real}")
        }
        (Distrust::Absent, _) => anyhow!("{shown} does not exist"),
        (why, _) => anyhow!("{shown} is not the folder of a run: {why}"),
    })
}

/// Returns the absolute path without its `.` and `..`. If it contains no symbolic links, both names mean the
/// same file.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

/// The length in bytes above which gprofinject has not written the file.
const LONGEST: u64 = 1 << 30;

enum Life {
    Ended,
    Lives,
}

/// Returns the processes' names: the first process's name, then the others in the order in which they began.
fn names(folder: &PrivateFolder) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for file in folder.names()? {
        if let Some(name) = file.strip_suffix(REGION_SUFFIX) {
            found.push((name != FIRST, region_in(folder, name).begun(), name.to_owned()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, _, name)| name).collect())
}

impl Recovery<'_> {
    fn process(&mut self, name: &str) -> Result<Life> {
        let region = region_in(&self.folder, name);
        let report = region.report().context("its counters cannot be read")?;
        let profilee = self.profilee(self.program(name, report.plan))?;
        let mut samples = Histogram::new(profilee.planned.shape);
        if let Ok(bytes) = self.folder.read(&format!("{name}{SAMPLES_SUFFIX}"), LONGEST) {
            samples.add_encoded(&bytes);
        }
        let mut troubles = Vec::new();
        let rate = self.logbook.entries.rate;
        let baseline = self.folder.read(&format!("{name}{BASELINE_SUFFIX}"), LONGEST).ok();
        let decode = |bytes: Vec<u8>| Baseline::decode(&bytes, profilee.planned, self.libraries.numbered());
        let baseline = baseline.and_then(decode);
        let maps = &Maps::default();
        let reading = Reading {
            profilee,
            libraries: self.libraries.numbered(),
            maps,
            origin: Some(&Origin::default()),
            rate,
            end: End::Unknown,
            own_call: None,
            is_part: false,
            has_own: name == FIRST,
        };
        let mut names = Names::new(Arc::clone(self.cache));
        let (finished, state, _) = counted::counted(
            Some(&region),
            &reading,
            Some(samples.into()),
            None,
            baseline.as_ref(),
            &mut troubles,
            &mut names,
        );
        if let Some(trouble) = troubles.pop() {
            bail!(trouble);
        }
        if let Some(damage) = &finished.account.damage {
            self.voice.warn(damage);
        }
        if finished.is_worth_writing(state) {
            self.add(name, report.pid, profilee, finished)?;
        } else if name == FIRST {
            self.voice.note("the program had not begun: there is nothing to recover");
        }
        let mut guests = Vec::new();
        let found = counted::guests(
            &region,
            profilee,
            self.libraries.numbered(),
            |_| None,
            &mut names,
            rate,
            &mut troubles,
        );
        for (pid, guest) in found {
            self.add("", pid, profilee, guest)?;
            guests.push(pid);
        }
        let named = guests.iter().copied().chain([report.pid]);
        let lives = self.survivors.count_in(name, region.is_counted_in(), named);
        Ok(if lives { Life::Lives } else { Life::Ended })
    }

    fn add(&mut self, name: &str, pid: u32, profilee: &'static Profilee, counted: Counted) -> Result<()> {
        let is_first = name == FIRST;
        let process = counted.process(Process::default());
        if !is_first && (process.calls, process.samples) == (0, 0) {
            return Ok(());
        }
        let (first, output) = (self.profilee(0)?, self.output);
        let processes = Processes::one(pid);
        let mut said = Said::default();
        let origin = self.logbook.entries.origin;
        let results =
            self.results.get_or_insert_with(|| Results::new(output, None, first).of_another(origin));
        let (finished, item) = if is_first {
            let (finished, bytes) = counted.finish()?;
            let item =
                results.first(profilee, &finished, &processes, &mut said, || output.write(pid, &bytes));
            (finished, item)
        } else {
            let finished = counted.settle();
            let item = results.other("", profilee, &finished, &processes, &mut said);
            (finished, Ok(item))
        };
        said.troubles.iter().for_each(|trouble| self.voice.warn(trouble));
        let samples = finished.placed.inside + finished.placed.outside;
        self.first_pid.get_or_insert(pid);
        let what = calls_and_samples(finished.profile.calls(), samples);
        self.items.push((format!("process {pid}: {what}"), item?));
        Ok(())
    }

    /// Writes the recording of all processes, and says what was written.
    fn finish(&mut self) -> Result<()> {
        let pid = self.first_pid.unwrap_or(0);
        let mut said = Said::default();
        let recording = self.results.take().map_or(Ok(None), |results| results.finish(pid, &mut said));
        said.troubles.iter().for_each(|trouble| self.voice.warn(trouble));
        let file = recording.as_ref().ok().and_then(|file| file.as_deref());
        for (what, item) in &self.items {
            let command = item.commands(file).map_or_else(String::new, |command| format!("; {command}"));
            self.voice.note(format_args!("{what}{command}"));
        }
        recording.map(drop)
    }

    /// Returns the number of a process's program. The number in the region, to which the process can write,
    /// counts only if it is possible.
    fn program(&self, name: &str, says: u32) -> u32 {
        let is_known = (says as usize) < self.logbook.entries.programs.len();
        if name == FIRST || !is_known { 0 } else { says }
    }

    /// Plans the program of a process again. The file must be the one whose plan the process has carried out.
    fn profilee(&mut self, number: u32) -> Result<&'static Profilee> {
        let profilee = match self.planned.get(&number) {
            Some(profilee) => *profilee,
            None => {
                let program = self.logbook.entries.programs.get(number as usize).cloned();
                let Program { binary, shown, label } = program.context("its program is not known")?;
                let planner =
                    planner(&self.logbook.entries, &self.filters, &self.libs, self.args.as_ref(), self.cache);
                let subject = planner.subject_to_compare(&binary);
                if !subject.is_labelled(&label) {
                    bail!("{} is no longer the file that was run", binary.display());
                }
                let planned = planner.plan(subject, &binary, true);
                let profilee = self.profilees.first(&binary, shown, planned, true);
                self.planned.insert(number, profilee);
                profilee
            }
        };
        Ok(profilee)
    }
}
