//! The hold on the thread that records a trace.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use anyhow::{Context, Result};
use gmon::output::Target;
use gmon_trace::Chunk;

use crate::os::clock::Moment;
use crate::os::sys;
use crate::program::filters::Filters;
use crate::program::library::Library;
use crate::sampling::sampler::Switched;
use crate::trace::keep::Sink;
use crate::trace::recorder::{Begun, Message, Recorder, Summary};

/// The file of a trace, which has passed the check.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    pub(crate) target: Target,
    /// The greatest length of the file if only the last part is kept.
    pub(crate) bytes_max: Option<u64>,
    pub(crate) triggers: Vec<Filters>,
    pub(crate) command: Vec<String>,
}

/// A trace that is being recorded.
pub(crate) struct Tracer {
    messages: Sender<Message>,
    state: State,
    /// Whether the last part is kept and written later.
    keeps: bool,
}

enum State {
    /// The thread begins with the first process, because the program is forked before, when this process may have only one
    /// thread.
    Waiting(Box<(Recorder, Receiver<Message>)>),
    Running(JoinHandle<Summary>),
    /// There is no thread.
    Failed(String),
}

impl Tracer {
    /// Begins the file.
    ///
    /// # Errors
    /// It cannot be written.
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
        let recorder =
            Recorder::new(sink, path, triggers, start).context("the trace cannot be compressed")?;
        Ok(Tracer { messages, state: State::Waiting(Box::new((recorder, received))), keeps })
    }

    /// Whether the last part is kept and written later.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    /// A program begins to run in a process.
    pub(crate) fn begin(&mut self, begun: Begun) {
        if let State::Waiting(_) = self.state {
            let State::Waiting(waiting) = std::mem::replace(&mut self.state, State::Failed(String::new()))
            else {
                return;
            };
            let (recorder, received) = *waiting;
            let record = move || recorder.run(&received);
            self.state = match thread::Builder::new().name("gprofinject-trace".into()).spawn(record) {
                Ok(thread) => State::Running(thread),
                Err(error) => {
                    State::Failed(format!("there is no thread for the trace: {}", sys::reason(&error)))
                }
            };
        }
        let _ = self.messages.send(Message::Begun(Box::new(begun)));
    }

    /// A library may be loaded from now on.
    pub(crate) fn library(&self, library: &'static Library) {
        let _ = self.messages.send(Message::Library(library));
    }

    /// The scheduler has done this.
    pub(crate) fn switches(&self, list: Vec<Switched>) {
        if !list.is_empty() {
            let _ = self.messages.send(Message::Switches(list, Moment::now()));
        }
    }

    /// A process has ended, or executes another program, or is not profiled any more.
    pub(crate) fn end(&self, process: u32, moment: Moment) {
        let _ = self.messages.send(Message::Ended { process, moment });
    }

    /// Writes what is kept. Returns the file's name.
    ///
    /// # Errors
    /// It cannot be written, or everything is written at once.
    pub(crate) fn save(&self) -> Result<PathBuf, String> {
        let (answer, answered) = mpsc::sync_channel(1);
        let _ = self.messages.send(Message::Save(answer));
        answered.recv().unwrap_or_else(|_| Err("the trace has ended".to_owned()))
    }

    /// Ends the trace.
    pub(crate) fn finish(self) -> Summary {
        let Tracer { messages, state, keeps: _ } = self;
        let _ = messages.send(Message::Finish);
        drop(messages);
        match state {
            State::Waiting(waiting) => {
                let (recorder, received) = *waiting;
                recorder.run(&received)
            }
            State::Running(thread) => match thread.join() {
                Ok(summary) => summary,
                Err(panic) => std::panic::resume_unwind(panic),
            },
            State::Failed(why) => Summary { troubles: vec![why], ..Summary::default() },
        }
    }
}
