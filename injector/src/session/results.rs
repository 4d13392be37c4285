//! What a run leaves: the profiles for gprof, the recording of everything beside the first one, and the exports.
//!
//! The end of a run, the end of each process, `--dump` and `--recover` write their results here, by one rule: whatever can be written is
//! written, and each failure is said once.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use gmon_export::load::{self, Detail};

use crate::profile::counted::{CountedLibrary, Finished};
use crate::profile::placement::Placed;
use crate::profile::recorder::{Processes, Recorder};
use crate::program::profilee::Profilee;
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
}

/// The result of one program or process.
pub(crate) struct Item {
    /// The file of its profile.
    pub(crate) file: PathBuf,
    /// The file in which gprof finds the names of its functions.
    pub(crate) symbols: OsString,
    /// The view that says most.
    view: View,
    /// Whether the recording says more than the profile.
    says_more: bool,
    is_measured: bool,
    /// The libraries whose basic blocks were counted.
    pub(crate) libraries: Vec<CountedLibrary>,
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

/// Whose result it is.
#[derive(Clone, Copy)]
pub(crate) enum Of<'s> {
    /// The program that was started.
    First,
    /// Another program or process, with what is added to the names of its exports.
    Other(&'s str),
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
        Results { output, exports, recorder, first: None }
    }

    /// Returns where profiles are written.
    pub(crate) fn output(&self) -> &'r Output {
        self.output
    }

    /// Writes the profile of a program or process by `write`, and adds it to the recording.
    ///
    /// # Errors
    /// The profile cannot be written. It is in the recording all the same.
    pub(crate) fn add(
        &mut self,
        of: Of,
        profilee: &Profilee,
        finished: &Finished,
        processes: Processes,
        said: &mut Said,
        write: impl FnOnce(&[u8]) -> Result<Written>,
    ) -> Result<Item> {
        let Finished { profile, placed, .. } = finished;
        let program = match of {
            Of::First => {
                self.recorder.add_first(profile, placed.own, processes);
                None
            }
            Of::Other(_) => {
                self.recorder.add(profile, placed.own, processes);
                Some(if processes.pid > 0 { processes.pid.to_string() } else { profile.name.clone() })
            }
        };
        self.export(of, profilee, finished, processes, said);
        let Written { path, detour } = write(&finished.bytes)?;
        said.troubles.extend(detour.map(|detour| format!("{detour}; it is in {}", path.display())));
        let (symbols, note) = profilee.symbols_beside(self.output, &path);
        said.notes.extend(note);
        if let Of::First = of {
            self.first = Some(path.clone());
        }
        Ok(Item {
            file: path,
            symbols,
            view: View::of(profilee.planned.subject.stripped(), placed, profile.samples_in_program()),
            says_more: finished.says_more(),
            is_measured: profile.times.is_some(),
            libraries: finished.counted_libraries(),
            program,
        })
    }

    /// Writes the exports of a program or process.
    fn export(
        &self,
        of: Of,
        profilee: &Profilee,
        finished: &Finished,
        processes: Processes,
        said: &mut Said,
    ) {
        let Some(exports) = self.exports.filter(|exports| !exports.is_empty()) else { return };
        let path = profilee.binary.display().to_string();
        let mut recorder = Recorder::new(&profilee.name(), &path, profilee.planned);
        recorder.add_first(&finished.profile, finished.placed.own, processes);
        let run = load::recording(&recorder.finish(), Detail::Lines);
        said.troubles.extend(match of {
            Of::First => exports.write(&run),
            Of::Other(suffix) => exports.write_other(suffix, &run),
        });
    }

    /// Writes the recording beside the profile of the first program, whose process is `pid`. Returns the name of the file, or `None` if
    /// there is nothing to record, or if profiles go to a pipe or a descriptor, beside which there are no files.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn finish(self, pid: u32) -> Result<Option<PathBuf>> {
        let first = self.first.unwrap_or_else(|| self.output.first(pid));
        write(self.output, self.recorder, &first)
    }
}

/// Writes a recording beside a profile. Returns the name of the file, or `None` if there is nothing in it, or no place for it.
///
/// # Errors
/// It cannot be written.
fn write(output: &Output, recorder: Recorder, profile: &Path) -> Result<Option<PathBuf>> {
    if output.is_stream() || recorder.is_empty() {
        return Ok(None);
    }
    output.write_beside(profile, "pb.gz", &recorder.finish().write()).map(Some)
}

impl Item {
    /// Returns the command that shows the result and, in a comment of the shell, the one for the other view, if that says something else.
    /// `recording` is the file of the run's recording.
    pub(crate) fn commands(&self, recording: Option<&Path>) -> String {
        let own = format!("gprof {} {}", words::quoted(&self.symbols), words::quoted(self.file.as_os_str()));
        let Some(recording) = recording else { return own };
        let recording = words::quoted(recording.as_os_str());
        let program = self
            .program
            .as_ref()
            .map_or_else(String::new, |program| format!("--program {} ", words::quoted(program.as_ref())));
        if self.is_measured {
            return format!("gmon times {program}{recording} # gprof: {own}");
        }
        let whole = format!("gmon flat {program}{recording}");
        match (self.says_more, self.view) {
            (false, _) => own,
            (true, View::WholeOnly) => whole,
            (true, View::Whole) => format!("{whole} # the program alone: {own}"),
            (true, View::Own) => format!("{own} # whole process: {whole}"),
        }
    }
}
