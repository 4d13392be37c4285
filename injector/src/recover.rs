//! `--recover`: the profiles of a run whose gprofinject was killed.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gprofinject_abi::region::State;
use gprofinject_abi::{PLAN_SUFFIX, REGION_SUFFIX};

use crate::family::control::Baseline;
use crate::family::{self, Finished};
use crate::filters::Filters;
use crate::histogram::Histogram;
use crate::logbook::{Logbook, Program};
use crate::memory;
use crate::output::{Output, Written};
use crate::profile_plan;
use crate::profilee::{self, Profilee, Profilees};
use crate::region;
use crate::report::{calls_and_samples, quoted};
use crate::run_folder::{BASELINE_SUFFIX, SAMPLES_SUFFIX};
use crate::say::Voice;
use crate::spawn::FIRST;
use crate::survivors::Survivors;

struct Recovery<'r> {
    folder: &'r Path,
    logbook: Logbook,
    filters: Filters,
    output: Output,
    profilees: Profilees,
    /// By the number of the plan.
    planned: HashMap<u32, &'static Profilee>,
    /// Profiles of each process so far.
    written: HashMap<u32, u32>,
    survivors: Survivors,
    voice: Voice,
}

/// Writes the profiles; the folder is removed when nothing in it is needed any more.
pub(crate) fn recover(folder: &Path, voice: Voice) -> Result<()> {
    let logbook = Logbook::open(folder)?;
    let entries = &logbook.entries;
    let filters = Filters::new(&entries.include, &entries.exclude, entries.min_size)?
        .counting(entries.count, &entries.files)?;
    let output = entries.output.check()?;
    let mut recovery = Recovery {
        folder,
        filters,
        output,
        logbook,
        profilees: Profilees::default(),
        planned: HashMap::new(),
        written: HashMap::new(),
        survivors: Survivors::patiently(folder),
        voice,
    };
    let mut failures = 0;
    let mut living = 0;
    for name in names(folder)? {
        match recovery.process(&name) {
            Ok(Life::Ended) => {}
            Ok(Life::Lives) => living += 1,
            Err(error) => {
                failures += 1;
                voice.warn(format_args!("{name}: {error:#}"));
            }
        }
    }
    if failures > 0 {
        let failures = gmon::counted(failures, "profile", "profiles");
        bail!("{failures} could not be recovered; what there is stays in {}", folder.display());
    }
    // One may have forked while we looked.
    if living > 0 || Survivors::of(folder).any() {
        voice.note(format_args!(
            "some processes still run: their profiles are those up to now; once more at their end: \
             gprofinject --recover {}",
            folder.display()
        ));
        return Ok(());
    }
    std::fs::remove_dir_all(folder).with_context(|| format!("{} cannot be removed", folder.display()))
}

enum Life {
    Ended,
    Lives,
}

/// The processes' names: the first one's first, then in the order in which they began.
fn names(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_suffix(REGION_SUFFIX)) {
            let begun = std::fs::metadata(entry.path()).and_then(|metadata| metadata.created());
            found.push((name != FIRST, begun.ok(), name.to_owned()));
        }
    }
    found.sort();
    Ok(found.into_iter().map(|(_, _, name)| name).collect())
}

impl Recovery<'_> {
    fn file(&self, name: &str, suffix: &str) -> PathBuf {
        self.folder.join(format!("{name}{suffix}"))
    }

    fn process(&mut self, name: &str) -> Result<Life> {
        let path = self.file(name, REGION_SUFFIX);
        let header = region::header_of(&path).context("its counters cannot be read")?;
        let profilee = self.profilee(header.plan, name)?;
        let mut samples = Histogram::new(profilee.planned.shape);
        if let Ok(bytes) = std::fs::read(self.file(name, SAMPLES_SUFFIX)) {
            samples.add_encoded(&bytes);
        }
        let mut troubles = Vec::new();
        let rate = self.logbook.entries.rate;
        let baseline = std::fs::read(self.file(name, BASELINE_SUFFIX)).ok();
        let baseline = baseline.and_then(|bytes| Baseline::decode(&bytes, profilee.planned));
        let counted = family::counted(
            Some(&path),
            profilee,
            Some(samples),
            None,
            rate,
            baseline.as_ref(),
            &mut troubles,
        );
        if let Some(trouble) = troubles.pop() {
            bail!(trouble);
        }
        let Some((finished, state)) = counted else { return Ok(Life::Ended) };
        if state != State::New as u32 {
            self.write(name, header.pid, profilee, &finished)?;
        }
        let no_samples = |_| std::iter::empty();
        let mut guests = Vec::new();
        for (pid, guest) in family::guests(&path, profilee, no_samples, rate, &mut troubles) {
            self.write("", pid, profilee, &guest)?;
            guests.push(pid);
        }
        let named = guests.iter().copied().chain([header.pid]);
        let lives = self.survivors.count_in(name, region::is_counted_in(&path), named);
        Ok(if lives { Life::Lives } else { Life::Ended })
    }

    fn write(&mut self, name: &str, pid: u32, profilee: &Profilee, finished: &Finished) -> Result<()> {
        let (calls, placed) = (finished.collected.calls(), &finished.placed);
        let before = self.written.entry(pid).or_default();
        if name != FIRST && calls == 0 && placed.inside == 0 {
            return Ok(());
        }
        let Written { path, detour } = match name {
            FIRST => self.output.write(pid, &finished.bytes)?,
            _ => self.output.write_other(pid, *before, &finished.bytes)?,
        };
        *before += 1;
        if let Some(detour) = detour {
            self.voice.warn(format_args!("{detour}; it is in {}", path.display()));
        }
        let samples = placed.inside + placed.outside;
        self.voice.note(format_args!(
            "process {pid}: {}; gprof {} {}",
            calls_and_samples(calls, samples),
            quoted(&profilee.shown),
            quoted(path.as_os_str())
        ));
        Ok(())
    }

    /// The program of a process, planned again. The plan must be the one that the process has carried out.
    fn profilee(&mut self, number: u32, name: &str) -> Result<&'static Profilee> {
        let profilee = match self.planned.get(&number) {
            Some(profilee) => *profilee,
            None => {
                let program = self.logbook.entries.programs.get(number as usize).cloned();
                let Program { binary, shown } = program.context("its program is not known")?;
                let subject = profilee::subject(&binary);
                let entries = &self.logbook.entries;
                let (hooks, engine) = (entries.hooks, entries.engine);
                let planned = profile_plan::make(subject, hooks, engine, &self.filters, true);
                memory::plan_made();
                let profilee = self.profilees.first(&binary, shown, planned, true);
                self.planned.insert(number, profilee);
                profilee
            }
        };
        // A forked child has its parent's, which is its program's.
        let file = self.file(name, PLAN_SUFFIX);
        if file.exists() {
            let then = std::fs::read(&file).context("its plan cannot be read")?;
            let now: Vec<u8> = profilee
                .plan
                .iter()
                .flat_map(|(pieces, _)| pieces.iter())
                .flat_map(|p| p.iter().copied())
                .collect();
            if then != now {
                bail!("{} is not the file any more that was run", profilee.binary.display());
            }
        }
        Ok(profilee)
    }
}
