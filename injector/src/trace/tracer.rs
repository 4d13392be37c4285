//! The handle of the thread that records a trace or keeps the slowest calls.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use anyhow::{Context, Result};
use gmon::output::Target;
use gmon_trace::Chunk;

use crate::os::clock::Moment;
use crate::os::sys;
use crate::profile::ends::Ends;
use crate::profile::slowest::Slowest;
use crate::program::filters::Filters;
use crate::program::library::Library;
use crate::sampling::sampler::Switched;
use crate::trace::keep::Sink;
use crate::trace::messages::{Begun, Message, Summary, ThreadNames};
use crate::trace::names::Libraries;
use crate::trace::recorder::Recorder;
use crate::trace::slow::keeper::KeptCalls;
use crate::trace::slow::watcher::Watcher;

/// The file of a trace, whose path has been checked.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) target: Target,
    /// The maximum length of the file if only the last part of the trace is kept.
    pub(crate) bytes_max: Option<u64>,
    pub(crate) triggers: Vec<Filters>,
    pub(crate) command: Vec<String>,
}

/// A trace that is being recorded.
pub(crate) struct Tracer {
    messages: Sender<Message>,
    libraries: Libraries,
    state: State,
    /// Whether the last part of the trace is kept in memory and written on request.
    keeps: bool,
}

/// What the thread does.
enum Reader {
    Trace(Recorder),
    Slow(Watcher),
}

impl Reader {
    fn run(self, messages: &Receiver<Message>) -> Summary {
        match self {
            Reader::Trace(recorder) => recorder.run(messages),
            Reader::Slow(watcher) => watcher.run(messages),
        }
    }
}

enum State {
    /// The thread has not started. It starts with the first process, because gprofinject may have only one thread when it forks the
    /// program.
    Waiting(Box<(Reader, Receiver<Message>)>),
    Running(JoinHandle<Summary>),
    /// The thread could not be started, for this reason.
    Failed(String),
}

impl Tracer {
    /// Prepares the recording, and creates the file unless only the last part is kept.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(crate) fn new(place: Place) -> Result<Tracer> {
        let Place { path, target, bytes_max, triggers, command } = place;
        let start = Chunk::Start {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command,
            unix_ns: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()
                as u64,
        };
        let keeps = bytes_max.is_some();
        let sink = match bytes_max {
            None => Sink::file(&target).with_context(|| format!("cannot write {}", path.display()))?,
            Some(bytes_max) => Sink::kept(&path, target, bytes_max),
        };
        let (messages, received) = mpsc::channel();
        let libraries = Libraries::default();
        let recorder = Recorder::new(sink, path, triggers, libraries.clone(), start)
            .context("the trace cannot be compressed")?;
        let reader = Reader::Trace(recorder);
        Ok(Tracer { messages, libraries, state: State::Waiting(Box::new((reader, received))), keeps })
    }

    /// Prepares to keep the slowest calls of functions that match.
    pub(crate) fn of_slowest(wanted: Filters, limits: KeptCalls) -> Tracer {
        let (messages, received) = mpsc::channel();
        let libraries = Libraries::default();
        let reader = Reader::Slow(Watcher::new(wanted, limits, libraries.clone()));
        Tracer { messages, libraries, state: State::Waiting(Box::new((reader, received))), keeps: false }
    }

    /// Returns whether the last part of the trace is kept in memory and written on request.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    /// Reports that a process starts to execute a program.
    pub(crate) fn begin(&mut self, begun: Begun) {
        if let State::Waiting(_) = self.state {
            let State::Waiting(waiting) = std::mem::replace(&mut self.state, State::Failed(String::new()))
            else {
                return;
            };
            let (reader, received) = *waiting;
            let record = move || reader.run(&received);
            self.state = match thread::Builder::new().name("gprofinject-trace".into()).spawn(record) {
                Ok(thread) => State::Running(thread),
                Err(error) => {
                    State::Failed(format!("there is no thread for the trace: {}", sys::reason(&error)))
                }
            };
        }
        let _ = self.messages.send(Message::Begun(Box::new(begun)));
    }

    /// Reports a library that processes may load from now on.
    pub(crate) fn library(&self, library: &'static Library) {
        self.libraries.add(library);
    }

    /// Reports decisions of the scheduler.
    pub(crate) fn switches(&self, list: Vec<Switched>) {
        if !list.is_empty() {
            let _ = self.messages.send(Message::Switches(list, Moment::now()));
        }
    }

    /// Reports that a process has ended at this moment, and its threads at these moments. The process may also execute another program,
    /// or not be profiled any more.
    pub(crate) fn end(&self, process: u32, moment: Moment, ends: Ends, names: ThreadNames) {
        let _ = self.messages.send(Message::Ended { process, moment, ends, names });
    }

    /// Writes the kept part. Returns the file's name.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or if the whole trace is written to a file anyway.
    pub(crate) fn save(&self) -> Result<PathBuf, String> {
        let (answer, answered) = mpsc::sync_channel(1);
        let _ = self.messages.send(Message::Save(answer));
        answered.recv().unwrap_or_else(|_| Err("the trace has ended".to_owned()))
    }

    /// Returns the slowest calls up to now, if they are kept.
    pub(crate) fn slowest(&self) -> Option<Slowest> {
        let State::Running(_) = self.state else { return None };
        let (answer, answered) = mpsc::sync_channel(1);
        let _ = self.messages.send(Message::Slowest(answer));
        answered.recv().ok()
    }

    /// Forgets the slowest calls up to now, if they are kept.
    pub(crate) fn reset(&self) {
        let _ = self.messages.send(Message::Reset);
    }

    /// Ends the recording.
    pub(crate) fn finish(self) -> Summary {
        let Tracer { messages, state, libraries: _, keeps: _ } = self;
        let _ = messages.send(Message::Finish);
        drop(messages);
        match state {
            State::Waiting(waiting) => {
                let (reader, received) = *waiting;
                reader.run(&received)
            }
            State::Running(thread) => match thread.join() {
                Ok(summary) => summary,
                Err(panic) => std::panic::resume_unwind(panic),
            },
            State::Failed(why) => Summary { troubles: vec![why], ..Summary::default() },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::program::library::tests::library;
    use crate::trace::names::{Known, Numbers};
    use gprofinject_abi::plan::LIBRARIES;
    use gprofinject_abi::region::LoadRecord;

    /// Checks that the recorder finds a library's functions even if it reads their first events before it has received any message.
    #[test]
    fn a_library_is_known_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("trace");
        let target = Target::check(&path).expect("anyone can write there");
        let place = Place { path, target, bytes_max: None, triggers: Vec::new(), command: Vec::new() };
        let tracer = Tracer::new(place).expect("it is written");
        let library = library(folder.path());
        let functions = library.planned.plan.as_ref().expect("it is hooked").records.len() as u32;
        let record = LoadRecord {
            plan: library.number,
            first_function: LIBRARIES,
            functions,
            ..LoadRecord::default()
        };
        let mut numbers = Numbers::new(String::new(), library.planned);

        let known = Known { libraries: &tracer.libraries, triggers: &[], loads: &|| vec![record] };
        let mut learn = |number| numbers.learn(number, &known);
        assert!(learn(LIBRARIES).is_none(), "no message has reported the library");
        tracer.library(library);
        let names: Vec<_> = (LIBRARIES + 1..LIBRARIES + functions).filter_map(learn).collect();
        assert!(names.iter().any(|name| name.name == "work"), "{names:?}");
        assert!(names.iter().all(|name| Path::new(&name.module) == library.binary), "{names:?}");
    }
}
