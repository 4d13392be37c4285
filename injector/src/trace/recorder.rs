//! The recorder: the thread that reads the rings of all processes while they run, and writes the trace.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use gmon_trace::{Chunk, Encoder, Function, Process, Switch};
use gprofinject_abi::trace::Kind;

use crate::os::clock::Moment;
use crate::os::sys;
use crate::profile::ends::Ends;
use crate::program::filters::Filters;
use crate::sampling::sampler::Switched;
use crate::store::region::ring::{self, Piece, Source};
use crate::store::region::times::ProcessEnd;
use crate::trace::clocks::{self, Clocks, by_clock};
use crate::trace::keep::{FILES, Role, Sink};
use crate::trace::messages::{Message, Summary, ThreadNames};
use crate::trace::names::{Known, Libraries, Name};
use crate::trace::pace::Pace;
use crate::trace::recorded::Recorded;
use crate::trace::stream::{Followed, Part, Stream};

/// The maximum age of a thread's events before they become a chunk.
const OLDEST: Duration = Duration::from_millis(250);
/// The fill level of a ring from which on the recorder compresses faster and less.
const HURRIED: f64 = 1.0 / 2.0;
/// The maximum number of streams of a process, which are its threads and those of guests. Beyond this limit, events of guests are
/// attributed to the process itself.
const STREAMS: usize = 1 << 15;
pub(crate) struct Recorder {
    sink: Sink,
    encoder: Encoder,
    path: PathBuf,
    triggers: Vec<Filters>,
    all: Vec<Recorded>,
    libraries: Libraries,
    followed: Followed,
    /// The number of the next process that has not announced itself.
    next_guest: u32,
    flushed: Instant,
    clocks: Clocks,
    summary: Summary,
}

impl Recorder {
    pub(crate) fn new(
        sink: Sink,
        path: PathBuf,
        triggers: Vec<Filters>,
        libraries: Libraries,
        start: Chunk,
    ) -> io::Result<Recorder> {
        let encoder = Encoder::new()?;
        let now = Instant::now();
        let mut recorder = Recorder {
            sink,
            encoder,
            path,
            triggers,
            all: Vec::new(),
            libraries,
            followed: Followed::default(),
            next_guest: 1 << 30,
            flushed: now,
            clocks: Clocks::new(now),
            summary: Summary::default(),
        };
        recorder.define(&start, Role::Start);
        Ok(recorder)
    }

    /// Records until there are no more messages.
    pub(crate) fn run(mut self, messages: &Receiver<Message>) -> Summary {
        let mut pace = Pace::new();
        loop {
            let fullest = self.visit();
            // On failure, the compression level stays as it is.
            let _ = self.encoder.hurry(fullest >= HURRIED);
            self.flush();
            self.compare_all();
            match messages.recv_timeout(pace.after(fullest)) {
                Ok(Message::Begun(begun)) => self.all.push(Recorded::new(*begun)),
                Ok(Message::Switches(list, moment)) => self.switches(&list, moment),
                Ok(Message::Ended { process, moment, ends, names }) => {
                    self.end(process, moment, &ends, &names);
                }
                Ok(Message::Save(answer)) => {
                    self.visit();
                    let _ = answer.send(self.save());
                }
                // A trace keeps all calls.
                Ok(Message::Slowest(_) | Message::Reset) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Message::Finish) | Err(RecvTimeoutError::Disconnected) => return self.finish(),
            }
        }
    }

    /// Reads all rings. Returns the fill level of the fullest one.
    fn visit(&mut self) -> f64 {
        let mut fullest = 0.0_f64;
        for index in 0..self.all.len() {
            fullest = fullest.max(self.drain(index, false));
        }
        fullest
    }

    fn drain(&mut self, index: usize, is_over: bool) -> f64 {
        // Triggers are ignored when no further file can be written, because each one ends a chunk.
        let is_armed = self.can_save();
        let Some(recorded) = self.all.get_mut(index) else { return 0.0 };
        let Recorded { rings, numbers, streams, loads, .. } = recorded;
        let followed = &self.followed;
        let known = Known { libraries: &self.libraries, triggers: &self.triggers, loads: &|| loads.read() };
        let mut learnt = Vec::new();
        let drained = rings.drain(is_over, |source, piece| {
            // A process can write any number of guests to its file.
            let is_new = streams.len() >= STREAMS && !streams.contains_key(&source);
            let source = if is_new { Source { guest: 0, ..source } } else { source };
            let stream = streams.entry(source).or_insert_with(|| Stream::new(followed));
            let slots = match piece {
                Piece::Events(slots) => slots,
                Piece::Lost(count) => return stream.lose(count),
            };
            for (kind, function, time) in ring::events(slots) {
                stream.add(kind, function, time);
                if matches!(kind, Kind::Enter | Kind::Jump | Kind::Inherited | Kind::Mark | Kind::Open) {
                    let new = numbers.learn(function, &known);
                    learnt.extend(new.map(|name| (function, name)));
                    if is_armed && kind != Kind::Open && numbers.is_trigger(function) {
                        stream.split(true);
                    }
                }
            }
        });
        self.define_process(index);
        for (number, name) in learnt {
            self.define_function(index, number, name);
        }
        self.chunks(index);
        match drained {
            Ok(fullest) => fullest,
            Err(error) => {
                let pid = self.all.get(index).map_or(0, |recorded| recorded.begun.pid);
                self.trouble(format!("the trace of process {pid} cannot be read: {}", sys::reason(&error)));
                0.0
            }
        }
    }

    /// Adds the definition of a process to the trace.
    fn define_process(&mut self, index: usize) {
        let Some(recorded) = self.all.get_mut(index).filter(|r| !r.is_defined && !r.streams.is_empty())
        else {
            return;
        };
        recorded.is_defined = true;
        let report = recorded.rings.report().unwrap_or_default();
        recorded.begun.inside_256 = report.inside_256;
        recorded.begun.outside_256 = report.outside_256;
        recorded.begun.spread_256 = report.spread_256;
        let begun = recorded.begun.clone();
        let role = Role::Defines(begun.id);
        self.define(&Chunk::Process(begun), role);
        self.compare(index, Moment::now());
        self.clocks.soon();
    }

    /// Adds the definition of a function to the trace.
    fn define_function(&mut self, index: usize, number: u32, name: Name) {
        let Some(recorded) = self.all.get(index) else { return };
        let Name { name, module, address, size, signature } = name;
        let function = Function { number, name, module, address, size, signature };
        for process in recorded.numbers_in_trace() {
            let functions = vec![function.clone()];
            self.define(&Chunk::Functions { process, functions }, Role::Defines(process));
        }
    }

    /// Writes the completed parts of a process's streams as chunks.
    fn chunks(&mut self, index: usize) {
        let Some(recorded) = self.all.get_mut(index) else { return };
        let mut parts = Vec::new();
        for (&source, stream) in &mut recorded.streams {
            parts.extend(stream.take().into_iter().map(|part| (source, part)));
        }
        // A part that ends with a trigger comes last, so that the file that is then written has all parts.
        parts.sort_by_key(|(source, part)| (part.is_trigger, source.block, part.first));
        for (source, part) in parts {
            let Some(process) = self.process_of(index, source.guest) else { continue };
            let Part { first, before, events, is_trigger } = part;
            self.summary.events += events.len();
            let place = (process, source.block as u32);
            let encoded = self.encoder.encode_events(place, first, &before, &events);
            self.add(encoded, Role::Happens(process));
            if let Some(stream) = self.all.get_mut(index).and_then(|r| r.streams.get_mut(&source)) {
                stream.give_back(events);
            }
            if is_trigger && self.can_save() {
                if let Err(why) = self.save() {
                    self.trouble(why);
                }
                if !self.can_save() {
                    self.trouble(format!(
                        "{FILES} files have been written; further calls of the functions of --trace-trigger write none"
                    ));
                }
            }
        }
    }

    /// Returns whether a further file can be written while the program runs.
    fn can_save(&self) -> bool {
        matches!(&self.sink, Sink::Kept(kept) if kept.has_files_left())
    }

    fn process_of(&mut self, index: usize, guest: u32) -> Option<u32> {
        let recorded = self.all.get(index)?;
        match guest {
            0 => Some(recorded.process),
            guest => Some(match recorded.guests.get(&guest) {
                Some(&process) => process,
                None => self.begin_guest(index, guest),
            }),
        }
    }

    /// Defines a guest: a child that could make no file of its own and has events in its parent's. Returns its number in the trace.
    fn begin_guest(&mut self, index: usize, pid: u32) -> u32 {
        let id = self.next_guest;
        self.next_guest += 1;
        if let Some(recorded) = self.all.get_mut(index) {
            recorded.guests.insert(pid, id);
            let begun = Process { id, parent: Some(recorded.process), pid, ..recorded.begun.clone() };
            self.define(&Chunk::Process(begun), Role::Defines(id));
        }
        id
    }

    /// Writes the events that are old enough as chunks.
    fn flush(&mut self) {
        if self.flushed.elapsed() < OLDEST {
            return;
        }
        self.flushed = Instant::now();
        for index in 0..self.all.len() {
            self.flush_one(index);
        }
    }

    /// Compares the clocks of all processes with the time of day if that is due.
    fn compare_all(&mut self) {
        if !self.clocks.is_time() {
            return;
        }
        let now = Moment::now();
        for index in 0..self.all.len() {
            self.compare(index, now);
        }
    }

    fn flush_one(&mut self, index: usize) {
        if let Some(recorded) = self.all.get_mut(index) {
            recorded.streams.values_mut().for_each(|stream| stream.split(false));
        }
        self.chunks(index);
    }

    /// Writes the time of a process's clock at a moment.
    fn compare(&mut self, index: usize, moment: Moment) {
        let Some(recorded) = self.all.get(index).filter(|recorded| recorded.is_defined) else { return };
        let is_tsc = recorded.is_tsc;
        for id in recorded.numbers_in_trace() {
            self.define(&clocks::pair(id, is_tsc, moment), Role::Clock(id));
        }
        if is_tsc && let Some(rate) = self.clocks.new_rate() {
            self.define(&rate, Role::Rate);
        }
    }

    /// Writes the scheduler's decisions about threads of traced processes.
    fn switches(&mut self, list: &[Switched], moment: Moment) {
        let mut by_thread: HashMap<(u32, u32), Vec<Switch>> = HashMap::new();
        for switched in list {
            let process = switched.member as u32;
            let Some(recorded) = self.all.iter_mut().find(|r| r.process == process) else { continue };
            let time = by_clock(recorded.is_tsc, moment.back_to(switched.time));
            let here = by_thread.entry((process, switched.tid)).or_default();
            here.extend(recorded.cpus.switches(switched, time));
        }
        for ((process, tid), switches) in by_thread {
            let encoded = self.encoder.encode(&Chunk::Switches { process, tid, switches });
            self.add(encoded, Role::Happens(process));
        }
    }

    /// Writes the names of a process's threads.
    fn name_threads(&mut self, index: usize, names: &ThreadNames) {
        // A process without events is not in the trace.
        let Some(recorded) = self.all.get(index).filter(|recorded| recorded.is_defined) else { return };
        let process = recorded.process;
        for (&tid, name) in names {
            let name = Chunk::Thread { process, tid, name: name.to_string() };
            self.define(&name, Role::Defines(process));
        }
    }

    fn end(&mut self, process: u32, moment: Moment, ends: &Ends, names: &ThreadNames) {
        let Some(index) = self.all.iter().position(|recorded| recorded.process == process) else { return };
        // The number of rounds is limited, because a guest may continue to write to the parent's rings after the parent has ended.
        const ROUNDS: usize = 1 << 10;
        for _ in 0..ROUNDS {
            if self.drain(index, true) == 0.0 {
                break;
            }
        }
        let Some(recorded) = self.all.get_mut(index) else { return };
        let Recorded { is_tsc, rings, streams, .. } = recorded;
        let executed = rings.report().map_or(0, |report| report.clock_at_end);
        let end = ends.process.map(|end| by_clock(*is_tsc, end));
        let process_end = ProcessEnd { process: end, executed };
        for (block, count) in rings.unreported().unwrap_or_default() {
            match streams.iter_mut().find(|(source, _)| source.block == block) {
                Some((_, stream)) => stream.lose(count),
                None => self.summary.lost = self.summary.lost.saturating_add(count),
            }
        }
        for stream in streams.values_mut() {
            let own = ends.threads.get(&stream.tid).into_iter().flatten();
            let own = own.map(|&end| by_clock(*is_tsc, end));
            stream.close(process_end.of_thread(stream.reached(), own));
        }
        let end = process_end.of_process().unwrap_or_else(|| by_clock(*is_tsc, moment));
        for stream in recorded.streams.values() {
            self.summary.calls += stream.calls;
            self.summary.lost = self.summary.lost.saturating_add(stream.lost);
        }
        self.flush_one(index);
        self.compare(index, moment);
        self.name_threads(index, names);
        let recorded = self.all.swap_remove(index);
        for id in recorded.numbers_in_trace() {
            self.define(&Chunk::End { process: id, ticks: end }, Role::Ends(id));
        }
    }

    /// Writes the kept chunks to a file.
    fn save(&mut self) -> Result<PathBuf, String> {
        let now = Moment::now();
        for index in 0..self.all.len() {
            self.compare(index, now);
            // Complete the present parts, so that later chunks list the calls that are open now.
            if let Some(recorded) = self.all.get_mut(index) {
                recorded.streams.values_mut().for_each(|stream| stream.split(false));
            }
        }
        let Sink::Kept(kept) = &mut self.sink else {
            return Err(
                "the trace is written all the time; --trace-size keeps the last part of it".to_owned()
            );
        };
        let path = kept
            .write()
            .map_err(|error| format!("cannot write {}: {}", self.path.display(), sys::reason(&error)))?;
        self.summary.files.push(path.clone());
        Ok(path)
    }

    fn finish(mut self) -> Summary {
        let now = Moment::now();
        let left: Vec<u32> = self.all.iter().map(|recorded| recorded.process).collect();
        for process in left {
            self.end(process, now, &Ends { process: Some(now), ..Ends::default() }, &ThreadNames::new());
        }
        if matches!(&self.sink, Sink::Kept(kept) if kept.is_unwritten())
            && let Err(why) = self.save()
        {
            self.trouble(why);
        }
        match self.sink {
            Sink::File { written, error, .. } => {
                self.summary.bytes = written;
                self.summary.files.push(self.path.clone());
                if let Some(error) = error {
                    let why = format!("cannot write {}: {}", self.path.display(), sys::reason(&error));
                    self.summary.troubles.push(format!("{why}; the trace ends there"));
                }
            }
            Sink::Kept(kept) => {
                self.summary.dropped = kept.dropped;
                self.summary.bytes = kept.bytes();
            }
        }
        self.summary
    }

    /// Adds a chunk without events.
    fn define(&mut self, chunk: &Chunk, role: Role) {
        let encoded = self.encoder.encode(chunk);
        self.add(encoded, role);
    }

    fn add(&mut self, encoded: io::Result<Vec<u8>>, role: Role) {
        match encoded {
            Ok(chunk) => self.sink.add(chunk, role),
            Err(error) => self.trouble(format!("a part of the trace is lost: {}", sys::reason(&error))),
        }
    }

    fn trouble(&mut self, text: String) {
        /// The maximum number of messages that are kept. A failure may recur a thousand times per second.
        const MOST: usize = 16;
        if self.summary.troubles.len() < MOST && !self.summary.troubles.contains(&text) {
            self.summary.troubles.push(text);
        }
    }
}
