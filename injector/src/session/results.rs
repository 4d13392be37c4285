//! What a run leaves: the first program's profile for gprof, the recording of everything beside it, and the exports.
//!
//! The end of a run, the end of each process, `--dump` and `--recover` bring their results here, by one rule: whatever can be written is
//! written, and each failure is said once.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use crate::os::clock;
use crate::profile::counted::Finished;
use crate::profile::placement::Placed;
use crate::profile::recorder::{Processes, Recorder};
use crate::profile::slowest::Slowest;
use crate::program::profilee::Profilee;
use crate::session::digest::Digest;
use crate::session::unfollowed::Unfollowed;
use crate::session::words;
use crate::store::exports::Exports;
use crate::store::output::{Output, Written};

/// The results of a run.
pub(crate) struct Results<'r> {
    output: &'r Output,
    /// The files for other tools; `None` if none are written.
    exports: Option<&'r Exports>,
    recorder: Recorder,
    /// Where the first program's profile was written.
    first: Option<PathBuf>,
    /// Whether that is not where it should be.
    is_detoured: bool,
    /// Whether there are other programs or processes.
    has_others: bool,
    /// How often each suffix was given to the exports of another program or process.
    suffixes: HashMap<String, u32>,
    /// How long the run took, once somebody has asked.
    duration: OnceCell<Duration>,
}

/// The result of one program or process.
pub(crate) struct Item {
    /// Where gprof finds the names of its functions, and the file of its profile; `None` if it is in the recording only.
    own: Option<(OsString, PathBuf)>,
    /// The view that says most.
    view: View,
    /// Whether the recording says more than the profile.
    says_more: bool,
    is_measured: bool,
    /// What the recording knows the program by, if it is not the first one.
    program: Option<String>,
}

/// The view of a process that says most: its command comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// The program's own view.
    Own,
    /// That of the whole process, because most of the time was spent in libraries.
    Whole,
    /// That of the whole process; gprof shows nothing of the program's own view, or too little.
    WholeOnly,
}

impl View {
    /// Returns the view for a program, `own` of whose samples are in the program itself.
    fn of(is_stripped: bool, placed: &Placed, own: u64) -> View {
        /// With fewer samples, the share is accidental.
        const FEW: u64 = 20;
        let all = placed.all().saturating_sub(placed.own);
        if is_stripped || placed.misses_much() {
            View::WholeOnly
        } else if all >= FEW && own < all / 2 {
            View::Whole
        } else {
            View::Own
        }
    }
}

/// What was said while something was written.
#[derive(Default)]
pub(crate) struct Said {
    /// What went wrong.
    pub(crate) troubles: Vec<String>,
    pub(crate) notes: Vec<String>,
}

impl<'r> Results<'r> {
    /// Returns the results of a run that begins with this program.
    pub(crate) fn new(output: &'r Output, exports: Option<&'r Exports>, first: &Profilee) -> Results<'r> {
        let path = first.binary.display().to_string();
        let recorder = Recorder::new(&first.name(), &path, first.planned);
        Results {
            output,
            exports,
            recorder,
            first: None,
            is_detoured: false,
            has_others: false,
            suffixes: HashMap::new(),
            duration: OnceCell::new(),
        }
    }

    /// Returns the same for a run of another gprofinject, of which is known what it has entered into its logbook, but not how long it took.
    pub(crate) fn of_another(self, origin: Option<(u64, u64)>) -> Results<'r> {
        Results {
            recorder: self.recorder.of_another(origin),
            duration: OnceCell::from(Duration::ZERO),
            ..self
        }
    }

    /// Returns where profiles are written.
    pub(crate) fn output(&self) -> &'r Output {
        self.output
    }

    /// Writes the profile of the program that was started, of which `bytes` are the gmon.out, by `write`, and adds it to the recording.
    ///
    /// # Errors
    /// The profile cannot be written. It is in the recording all the same.
    pub(crate) fn first(
        &mut self,
        profilee: &Profilee,
        finished: &Finished,
        processes: &Processes,
        said: &mut Said,
        write: impl FnOnce() -> Result<Written>,
    ) -> Result<Item> {
        self.recorder.add_first(&finished.profile, finished.placed.own, processes);
        self.export(None, profilee, finished, processes, said);
        let Written { path, detour } = write()?;
        self.is_detoured = detour.is_some();
        said.troubles.extend(detour.map(|detour| format!("{detour}; it is in {}", path.display())));
        let (symbols, note) = profilee.symbols_beside(self.output, &path);
        said.notes.extend(note);
        self.first = Some(path.clone());
        // What went into a pipe or a device is not there any more.
        let own = self.output.file().map(|_| (symbols, path));
        Ok(Item::new(profilee, finished, own, None))
    }

    /// Adds another program or process to the recording. `suffix` is added to the names of its exports.
    pub(crate) fn other(
        &mut self,
        suffix: &str,
        profilee: &Profilee,
        finished: &Finished,
        processes: &Processes,
        said: &mut Said,
    ) -> Item {
        self.recorder.add(&finished.profile, finished.placed.own, processes);
        self.has_others = true;
        // A process may have executed several programs.
        let times = self.suffixes.entry(suffix.to_owned()).or_default();
        *times += 1;
        let suffix = if *times > 1 { format!("{suffix}.{times}") } else { suffix.to_owned() };
        self.export(Some(&suffix), profilee, finished, processes, said);
        let name = &finished.profile.name;
        let program = if processes.pid > 0 { processes.pid.to_string() } else { name.clone() };
        Item::new(profilee, finished, None, Some(program))
    }

    /// Adds the programs that were not followed.
    pub(crate) fn unfollowed(&mut self, unfollowed: &Unfollowed) {
        for (path, cost) in &unfollowed.programs {
            self.recorder.add_unfollowed(path, cost.processes, cost.samples);
        }
    }

    /// Adds the slowest calls of the programs that have been added.
    pub(crate) fn slowest(&mut self, slowest: &Slowest) {
        self.recorder.add_slowest(slowest);
    }

    /// Returns what was added up to now in a few numbers. `is_result` tells whether measured times are wanted.
    pub(crate) fn digest(&self, is_result: bool) -> Digest {
        Digest::of(self.recorder.recording(), self.recorder.unhooked(), is_result)
    }

    /// Says how long the program has run. Otherwise it is the time from the beginning of gprofinject to when this is needed first.
    pub(crate) fn took(&self, duration: Duration) {
        self.duration.get_or_init(|| duration);
    }

    fn duration(&self) -> Duration {
        *self.duration.get_or_init(|| clock::beginning().date.elapsed().unwrap_or(Duration::ZERO))
    }

    /// Writes the exports of a program or process, of the first one without a suffix.
    fn export(
        &self,
        suffix: Option<&str>,
        profilee: &Profilee,
        finished: &Finished,
        processes: &Processes,
        said: &mut Said,
    ) {
        let Some(exports) = self.exports.filter(|exports| !exports.is_empty()) else { return };
        let path = profilee.binary.display().to_string();
        let mut recorder = Recorder::new(&profilee.name(), &path, profilee.planned);
        recorder.add_first(&finished.profile, finished.placed.own, processes);
        let recording = recorder.finish(self.duration());
        said.troubles.extend(match suffix {
            None => exports.write(&recording),
            Some(suffix) => exports.write_other(suffix, &recording),
        });
    }

    /// Writes the recording beside the profile of the first program, whose process is `pid`. Returns the name of the file, or `None` if
    /// there is nothing to record, or if the only profile goes to a pipe, a device or a descriptor, beside which there are no files.
    ///
    /// # Errors
    /// It cannot be written, not even to a temporary folder.
    pub(crate) fn finish(self, pid: u32, said: &mut Said) -> Result<Option<PathBuf>> {
        let duration = self.duration();
        let beside = match self.output.is_stream() {
            false => self.first.unwrap_or_else(|| self.output.first(pid)),
            // What other programs have done would be lost, which is what a user of /dev/null wants.
            true if self.has_others && self.output.first(pid) != Path::new("/dev/null") => {
                PathBuf::from("gmon.out")
            }
            true => return Ok(None),
        };
        if self.recorder.is_empty() {
            return Ok(None);
        }
        let bytes = self.recorder.finish(duration).write();
        let Written { path, detour } = self.output.write_recording(&beside, self.is_detoured, pid, &bytes)?;
        said.troubles.extend(detour.map(|detour| format!("{detour}; it is in {}", path.display())));
        Ok(Some(path))
    }
}

impl Item {
    fn new(
        profilee: &Profilee,
        finished: &Finished,
        own: Option<(OsString, PathBuf)>,
        program: Option<String>,
    ) -> Item {
        let Finished { profile, placed, .. } = finished;
        let is_stripped = profilee.planned.subject.stripped();
        Item {
            own,
            view: View::of(is_stripped, placed, profile.samples_in_program()),
            says_more: finished.says_more(),
            is_measured: profile.times.is_some(),
            program,
        }
    }

    /// Returns the command that shows the result and, in a comment of the shell, the one for the other view, if that says something else.
    /// There is none if the result is in no file. `recording` is the file of the run's recording.
    pub(crate) fn commands(&self, recording: Option<&Path>) -> Option<String> {
        let own = self
            .own
            .as_ref()
            .map(|(symbols, file)| format!("gprof {} {}", words::quoted(symbols), words::quoted_file(file)));
        let Some(recording) = recording else { return own };
        let program = self.program.as_ref().map_or_else(String::new, |program| {
            // A name may begin like an option.
            let equals = if program.starts_with('-') { "=" } else { " " };
            format!("--program{equals}{} ", words::quoted(program.as_ref()))
        });
        let whole = format!("gmon flat {program}{}", words::quoted_file(recording));
        let Some(own) = own else { return Some(whole) };
        Some(match (self.is_measured, self.says_more, self.view) {
            (true, ..) => format!("{whole} # gprof: {own}"),
            (_, false, _) => own,
            (_, true, View::WholeOnly) => whole,
            (_, true, View::Whole) => format!("{whole} # the program alone: {own}"),
            (_, true, View::Own) => format!("{own} # whole process: {whole}"),
        })
    }
}
