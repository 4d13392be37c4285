//! One turn of the view: keys, a new snapshot, drawing.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use gmon_screen::Screen;

use crate::live::collect::shown;
use crate::live::draw::{self, Beside};
use crate::live::model::{Action, Model, Subject};
use crate::live::plain;
use crate::live::snapshot::{Snapshot, Wants};
use crate::options::Verb;
use crate::os::{say, terminal};

/// Where snapshots come from, and what can be asked of a process.
pub(crate) trait Source {
    /// Returns what a process has counted; `None` stands for the first process of the run.
    ///
    /// # Errors
    /// The process has ended, or what it has counted cannot be read.
    fn snapshot(&mut self, pid: Option<i32>, wants: Wants) -> Result<Snapshot>;

    /// Asks for something. Returns what there is to say about it.
    ///
    /// # Errors
    /// It cannot be done.
    fn ask(&mut self, pid: i32, verb: Verb, pattern: Option<String>) -> Result<String>;
}

/// What is wanted of the process after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// The view goes on.
    GoOn,
    /// The user has left the view. The process is to be left, or to be waited for without a view.
    Leave,
    /// The program is to be ended.
    End,
    /// The view is over, and the program is waited for.
    Wait,
}

/// How a view is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) interval: Duration,
    /// Whether the table is printed as text.
    pub(crate) is_plain: bool,
}

enum Place {
    /// Messages are printed once the screen is gone.
    Screen(Screen, terminal::Held),
    /// Text is written to this descriptor.
    Text(File),
}

/// A view of a process.
pub(crate) struct View {
    model: Model,
    place: Place,
    /// When the next snapshot is due.
    due: Instant,
    /// The output of the program, if it goes to a file because the view has the terminal.
    output: Option<File>,
    /// Whether the process has ended.
    is_last: bool,
    /// The CPU time that gprofinject had used at a snapshot, and when that was, in nanoseconds.
    used: Option<(u64, u64)>,
    cpu: Option<f64>,
}

impl View {
    /// Returns a view. `text` is where it is written if it is plain text.
    ///
    /// # Errors
    /// There is no terminal, or it is not this process's to use.
    pub(crate) fn new(look: Look, subject: Subject, output: Option<File>, text: OwnedFd) -> io::Result<View> {
        let place = match look.is_plain {
            true => Place::Text(text.into()),
            false => {
                let (screen, held) = terminal::take()?;
                Place::Screen(screen, held)
            }
        };
        let model = Model::new(subject, look.interval);
        Ok(View { model, place, due: Instant::now(), output, is_last: false, used: None, cpu: None })
    }

    /// The descriptor that is readable when the user has typed something.
    pub(crate) fn descriptor(&self) -> Option<RawFd> {
        match &self.place {
            Place::Screen(screen, _) => Some(screen.descriptor()),
            Place::Text(_) => None,
        }
    }

    /// For how long to wait before the next turn.
    pub(crate) fn patience(&self) -> Duration {
        /// The terminal's size may have changed.
        const OFTEN: Duration = Duration::from_millis(250);
        let left = self.due.saturating_duration_since(Instant::now());
        if self.descriptor().is_some() { left.min(OFTEN) } else { left }
    }

    /// Handles keys, and shows a new snapshot if it is time for one.
    pub(crate) fn turn(&mut self, source: &mut dyn Source) -> Wish {
        if let Place::Screen(screen, _) = &mut self.place {
            let Ok(keys) = screen.typed() else { return Wish::Wait };
            for key in keys {
                let Some(action) = self.model.key(key) else { continue };
                match action {
                    Action::Quit => return Wish::Leave,
                    Action::End => return Wish::End,
                    Action::Wait => return Wish::Wait,
                    action => self.carry_out(action, source),
                }
            }
        }
        if Instant::now() >= self.due {
            self.refresh(source);
        }
        if self.show().is_err() { Wish::Wait } else { Wish::GoOn }
    }

    /// Shows the last counts, after the process has ended. Only text has a use for that.
    pub(crate) fn last(&mut self, source: &mut dyn Source) {
        if let Place::Text(_) = self.place {
            self.is_last = true;
            self.refresh(source);
            let _ = self.show();
        }
    }

    fn carry_out(&mut self, action: Action, source: &mut dyn Source) {
        self.due = Instant::now();
        let Some(pid) = self.model.now.as_ref().map(|now| now.pid) else { return };
        let (verb, pattern) = match action {
            Action::Reset => (Verb::Reset, None),
            Action::Pause(true) => (Verb::Pause, None),
            Action::Pause(false) => (Verb::Resume, None),
            Action::Dump => (Verb::Dump, None),
            Action::Switch { pattern, off: true } => (Verb::Disable, Some(pattern)),
            Action::Switch { pattern, off: false } => (Verb::Enable, Some(pattern)),
            Action::Quit | Action::End | Action::Wait | Action::Refresh => return,
        };
        let said = source.ask(pid, verb, pattern).unwrap_or_else(|error| format!("{error:#}"));
        self.model.message = Some(shown(&said));
    }

    fn refresh(&mut self, source: &mut dyn Source) {
        let begin = Instant::now();
        let mut took = Duration::ZERO;
        match source.snapshot(self.model.pid, self.model.wants()) {
            Ok(snapshot) => {
                if let Some((cpu, ns)) = self.used {
                    let passed = snapshot.ns.saturating_sub(ns);
                    self.cpu =
                        (passed > 0).then(|| snapshot.cpu_ns.saturating_sub(cpu) as f64 / passed as f64);
                }
                self.used = Some((snapshot.cpu_ns, snapshot.ns));
                took = Duration::from_nanos(snapshot.took_ns);
                self.model.take(snapshot);
            }
            Err(error) => {
                self.model.message = Some(shown(&format!("{error:#}")));
                // The first process may have ended.
                self.model.pid = None;
            }
        }
        // Reading must not take most of the time, however long the interval is meant to be.
        self.due = begin + self.model.interval.max(took * 5);
    }

    fn show(&mut self) -> io::Result<()> {
        match &mut self.place {
            Place::Text(file) => {
                // The first table would have no rates.
                if std::mem::take(&mut self.model.is_fresh) && (self.model.has_rates() || self.is_last) {
                    let _ = file.write_all(plain::text(&self.model, &date()).as_bytes());
                }
                Ok(())
            }
            Place::Screen(screen, _) => {
                let output = match (&self.output, self.model.shows_output) {
                    (Some(file), true) => last_lines(file),
                    _ => Vec::new(),
                };
                let beside = Beside { output: &output, held: say::last_held(), cpu: self.cpu };
                let mut page = 1;
                screen.draw(|frame| page = draw::draw(frame, &self.model, &beside))?;
                if page != self.model.page {
                    self.model.page = page;
                    self.model.scroll();
                }
                Ok(())
            }
        }
    }
}

/// Returns the last lines of a file, as they can be shown.
fn last_lines(file: &File) -> Vec<String> {
    const MOST: u64 = 32 << 10;
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    let from = len.saturating_sub(MOST);
    let mut bytes = vec![0; (len - from) as usize];
    let count = file.read_at(&mut bytes, from).unwrap_or(0);
    bytes.truncate(count);
    String::from_utf8_lossy(&bytes).lines().map(shown).collect()
}

/// Returns the date and the time, in UTC, as RFC 3339 has them.
fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // The days since the first of March of the year 0, in eras of 400 years (Hinnant, "chrono-compatible date algorithms").
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", time / 3600, time / 60 % 60, time % 60)
}
