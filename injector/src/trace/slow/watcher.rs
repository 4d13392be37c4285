//! The thread that reads the rings of all processes while they run, and keeps their slowest calls.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::os::clock::{self, Moment};
use crate::os::sys;
use crate::profile::ends::Ends;
use crate::profile::slowest::Slowest;
use crate::program::filters::Filters;
use crate::trace::messages::{Message, Summary, ThreadNames};
use crate::trace::names::Libraries;
use crate::trace::pace::Pace;
use crate::trace::slow::keeper::{Keeper, KeptCalls};
use crate::trace::slow::process::{Process, Shared};
use crate::trace::slow::results::Names;
use crate::trace::slow::tree::Budget;

/// How often old data are removed.
const TIDY: Duration = Duration::from_secs(1);

/// The state of the thread.
pub(crate) struct Watcher {
    all: Vec<Process>,
    shared: Shared,
    is_tsc: bool,
    tidied: Instant,
    summary: Summary,
}

impl Watcher {
    /// Returns a watcher of the calls of functions that match.
    pub(crate) fn new(wanted: Filters, limits: KeptCalls, libraries: Libraries) -> Watcher {
        let (budget, names, keeper) = (Budget::default(), Names::default(), Keeper::new(limits));
        Watcher {
            all: Vec::new(),
            shared: Shared { libraries, wanted, budget, names, keeper, rate: 1.0 },
            is_tsc: true,
            tidied: Instant::now(),
            summary: Summary::default(),
        }
    }

    /// Follows the calls until there are no more messages.
    pub(crate) fn run(mut self, messages: &Receiver<Message>) -> Summary {
        let mut pace = Pace::new();
        loop {
            let fullest = self.visit();
            if self.tidied.elapsed() >= TIDY {
                self.tidied = Instant::now();
                self.shared.keeper.tidy();
            }
            match messages.recv_timeout(pace.after(fullest)) {
                Ok(Message::Begun(begun)) => {
                    self.is_tsc = begun.is_tsc;
                    self.all.push(Process::new(*begun, &mut self.shared.names));
                }
                Ok(Message::Switches(list, moment)) => {
                    self.shared.keeper.knows_waits();
                    for switched in list {
                        let number = switched.member as u32;
                        if let Some(process) = self.all.iter_mut().find(|process| process.number == number) {
                            process.switch(&switched, moment, &mut self.shared.keeper);
                        }
                    }
                }
                Ok(Message::Ended { process, ends, names, .. }) => self.end(process, &ends, &names),
                Ok(Message::Save(answer)) => {
                    drop(answer.send(Err("--slow keeps no trace".to_owned())));
                }
                Ok(Message::Slowest(answer)) => {
                    self.visit();
                    drop(answer.send(self.results()));
                }
                Ok(Message::Reset) => self.reset(),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Finish) | Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }
        }
    }

    /// Reads all rings. Returns the fill level of the fullest one.
    fn visit(&mut self) -> f64 {
        let mut fullest = 0.0_f64;
        self.shared.rate = clock::rate_so_far().map_or(1.0, clock::Rate::per_nanosecond);
        for index in 0..self.all.len() {
            fullest = fullest.max(self.drain(index, false));
        }
        fullest
    }

    fn drain(&mut self, index: usize, is_over: bool) -> f64 {
        let Some(process) = self.all.get_mut(index) else { return 0.0 };
        match process.drain(is_over, &mut self.shared) {
            Ok((fullest, events)) => {
                self.summary.events += events;
                fullest
            }
            Err(error) => {
                let text =
                    format!("the calls of process {} cannot be read: {}", process.pid, sys::reason(&error));
                self.trouble(text);
                0.0
            }
        }
    }

    fn end(&mut self, number: u32, ends: &Ends, names: &ThreadNames) {
        let Some(index) = self.all.iter().position(|process| process.number == number) else { return };
        // The number of rounds is limited, because a guest may continue to write to the parent's rings after the parent has ended.
        const ROUNDS: usize = 1 << 10;
        for _ in 0..ROUNDS {
            if self.drain(index, true) == 0.0 {
                break;
            }
        }
        let mut process = self.all.swap_remove(index);
        let lost = process.end(ends, &mut self.shared);
        self.summary.lost = self.summary.lost.saturating_add(lost);
        self.shared.keeper.name_threads(number, names);
    }

    /// Forgets all calls up to now.
    fn reset(&mut self) {
        self.visit();
        self.shared.keeper.reset();
        self.all.iter_mut().for_each(Process::forget_typical);
    }

    /// Returns what is known up to now.
    fn results(&self) -> Slowest {
        let ticks_per_ns = if self.is_tsc { clock::ticks_per_nanosecond() } else { 1.0 };
        self.shared.names.results(self.shared.keeper.results(ticks_per_ns))
    }

    fn finish(mut self) -> Summary {
        let now = Moment::now();
        let left: Vec<u32> = self.all.iter().map(|process| process.number).collect();
        for process in left {
            self.end(process, &Ends { process: Some(now), ..Ends::default() }, &ThreadNames::new());
        }
        Summary { slowest: Some(self.results()), ..self.summary }
    }

    fn trouble(&mut self, text: String) {
        /// The maximum number of messages that are kept. A failure may recur a thousand times per second.
        const MOST: usize = 16;
        if self.summary.troubles.len() < MOST && !self.summary.troubles.contains(&text) {
            self.summary.troubles.push(text);
        }
    }
}
