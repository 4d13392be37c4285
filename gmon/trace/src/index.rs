//! Reads all chunks of a file, and builds a [`Trace`] from those without events.

use std::collections::HashMap;

use crate::chunk::{self, Chunk, ClockKind, Process};
use crate::clock::{Clock, Pair, Span};
use crate::codec::Error;
use crate::file::{FILE_HEADER, Raw, VERSION};
use crate::input::Input;
use crate::part::Part;
use crate::scan::{Damage, Found, Scan, damage_of};
use crate::trace::{Function, Place, Recorded, Stream, Trace};
use crate::value::{Signature, ValueKind};

/// Why a file cannot be read as a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The file has no header of a trace, and no chunk.
    #[error("is no trace")]
    NoTrace,
    /// The file has another version of the format.
    #[error("a trace of version {0}; this program reads version {VERSION}")]
    Version(u32),
}

/// The maximum memory of all definitions in bytes. Definitions beyond this limit are omitted.
const ROOM: usize = 1 << 30;

impl Trace {
    /// Reads everything except the events.
    ///
    /// # Errors
    /// Returns an error if the input is not a trace, or has another version of the format. Damaged parts are not an error: they are
    /// listed in [`Trace::damage`].
    pub fn read(input: Input) -> Result<Trace, OpenError> {
        let mut header = Vec::new();
        input.read(0, FILE_HEADER.len(), &mut header);
        let magic = FILE_HEADER.len() / 2;
        let begins_well = header.get(..magic) == FILE_HEADER.get(..magic);
        if let Some(version) = header.get(magic..magic + 4).filter(|_| begins_well) {
            let version = version.try_into().map_or(0, u32::from_le_bytes);
            if version != VERSION {
                return Err(OpenError::Version(version));
            }
        }
        let mut index = Index::default();
        if header != FILE_HEADER {
            index.damage.push(Damage { offset: 0, len: header.len() as u64, why: Error::NoChunk });
        }
        let mut scan = Scan::new(&input);
        let mut are_chunks = false;
        while let Some(found) = scan.next() {
            match found {
                Found::Damage(damage) => index.damage.push(damage),
                Found::Chunk(offset, raw) => {
                    are_chunks = true;
                    if let Err(why) = index.add(offset, &raw, scan.contents()) {
                        index.damage.push(damage_of(offset, &raw, why));
                    }
                }
            }
        }
        if !begins_well && !are_chunks {
            return Err(OpenError::NoTrace);
        }
        Ok(index.finish(input))
    }
}

/// A trace of which some chunks have been read.
#[derive(Default)]
struct Index {
    version: String,
    command: Vec<String>,
    processes: Vec<Recorded>,
    functions: Vec<Function>,
    modules: Vec<String>,
    streams: Vec<Stream>,
    damage: Vec<Damage>,
    ids: HashMap<u32, u32>,
    /// The functions by module and address.
    known: HashMap<(u32, u64), u32>,
    known_modules: HashMap<String, u32>,
    known_streams: HashMap<(u32, u32), u32>,
    /// The rate of the time stamp counter in ticks per nanosecond.
    rate: Option<f64>,
    /// The memory that definitions take, in bytes.
    used: usize,
}

impl Index {
    /// Adds a chunk.
    fn add(&mut self, offset: u64, raw: &Raw, contents: &[u8]) -> Result<(), Error> {
        if raw.has_events() {
            return self.add_events(offset, raw, contents);
        }
        match raw.chunk(contents)? {
            Chunk::Start { version, command, .. } => {
                (self.version, self.command) = (version, command);
            }
            Chunk::Process(process) => {
                self.take(256 + process.program.len())?;
                let index = self.process(process.id)?;
                if let Some(recorded) = self.processes.get_mut(index as usize) {
                    recorded.process = process;
                }
            }
            Chunk::Functions { process, functions } => {
                let process = self.process(process)?;
                functions.into_iter().try_for_each(|function| self.add_function(process, function))?;
            }
            Chunk::Clock { process, ticks, unix_ns } => {
                let index = self.process(process)?;
                if let Some(recorded) = self.processes.get_mut(index as usize) {
                    recorded.span.add(Pair { ticks, unix_ns });
                }
            }
            Chunk::Thread { process, tid, name } => {
                self.take(128 + name.len())?;
                let index = self.process(process)?;
                if let Some(recorded) = self.processes.get_mut(index as usize) {
                    recorded.threads.insert(tid, name);
                }
            }
            Chunk::Switches { process, tid, .. } => {
                self.take(64)?;
                let index = self.process(process)?;
                if let Some(recorded) = self.processes.get_mut(index as usize) {
                    recorded.switches.entry(tid).or_default().push((offset, *raw));
                }
            }
            Chunk::End { process, ticks } => {
                let index = self.process(process)?;
                if let Some(recorded) = self.processes.get_mut(index as usize) {
                    recorded.end = Some(ticks);
                }
            }
            Chunk::Rate { ticks, nanoseconds } => self.rate = rate(ticks, nanoseconds).or(self.rate),
            Chunk::Events { .. } => {}
        }
        Ok(())
    }

    /// Counts the memory of a definition. Returns an error if the limit is exceeded.
    fn take(&mut self, bytes: usize) -> Result<(), Error> {
        let used = self.used.saturating_add(bytes);
        if used > ROOM {
            return Err(Error::TooLarge);
        }
        self.used = used;
        Ok(())
    }

    /// Returns the index of the process with this `id`, and adds the process if the trace has not defined it.
    fn process(&mut self, id: u32) -> Result<u32, Error> {
        if let Some(&index) = self.ids.get(&id) {
            return Ok(index);
        }
        self.take(512)?;
        let index = self.processes.len() as u32;
        self.ids.insert(id, index);
        self.processes.push(Recorded {
            process: Process {
                id,
                parent: None,
                pid: 0,
                program: String::new(),
                clock: ClockKind::Tsc,
                inside_256: 0,
                outside_256: 0,
                spread_256: 0,
            },
            parent: None,
            clock: Clock::new(ClockKind::Tsc, Span::default(), None),
            end: None,
            last: 0,
            threads: HashMap::new(),
            numbers: HashMap::new(),
            span: Span::default(),
            switches: HashMap::new(),
        });
        Ok(index)
    }

    fn add_function(&mut self, process: u32, function: chunk::Function) -> Result<(), Error> {
        let chunk::Function { number, name, module, address, size, signature } = function;
        self.take(64)?;
        let module = match self.known_modules.get(&module) {
            Some(&index) => index,
            None => {
                self.take(128 + 2 * module.len())?;
                let index = self.modules.len() as u32;
                self.known_modules.insert(module.clone(), index);
                self.modules.push(module);
                index
            }
        };
        let function = Function { name, module, address, size, signature };
        let known = self.known.get(&(module, address)).copied();
        let same = known.filter(|&index| self.functions.get(index as usize) == Some(&function));
        let index = match same {
            Some(index) => index,
            None => {
                self.take(256 + function.name.len() + function.signature.as_ref().map_or(0, cost))?;
                let index = self.functions.len() as u32;
                self.functions.push(function);
                self.known.insert((module, address), index);
                index
            }
        };
        if let Some(recorded) = self.processes.get_mut(process as usize) {
            recorded.numbers.insert(number, index);
        }
        Ok(())
    }

    fn add_events(&mut self, offset: u64, raw: &Raw, contents: &[u8]) -> Result<(), Error> {
        self.take(size_of::<Place>())?;
        let mut part = Part::new(raw.decompress(contents)?)?;
        let count = part.count();
        let (first, block, process) = (part.first, part.block, self.process(part.process)?);
        // 0 if none of them has a time.
        let mut time = 0;
        while let Some(event) = part.next()? {
            if let Some(found) = event.time() {
                time = found;
                break;
            }
        }
        let streams = &mut self.streams;
        let stream = *self.known_streams.entry((process, block)).or_insert_with(|| {
            streams.push(Stream { process, chunks: Vec::new() });
            streams.len() as u32 - 1
        });
        if let Some(stream) = self.streams.get_mut(stream as usize) {
            stream.chunks.push(Place { offset, raw: *raw, first, count, time });
        }
        Ok(())
    }

    fn finish(mut self, input: Input) -> Trace {
        for stream in &mut self.streams {
            stream.chunks.sort_by_key(|place| (place.first, place.offset));
            let (mut next, mut time) = (0_u64, 0_u64);
            stream.chunks.retain_mut(|place| {
                if place.first < next {
                    self.damage.push(damage_of(place.offset, &place.raw, Error::Repeated));
                    return false;
                }
                next = place.first.saturating_add(place.count);
                time = time.max(place.time);
                place.time = time;
                true
            });
        }
        for recorded in &mut self.processes {
            recorded.last = recorded.end.max(recorded.span.ends().map(|(_, last)| last.ticks)).unwrap_or(0);
        }
        for stream in &self.streams {
            let last = stream.chunks.last().map_or(0, |place| place.time);
            if let Some(recorded) = self.processes.get_mut(stream.process as usize) {
                recorded.last = recorded.last.max(last);
            }
        }
        self.streams.retain(|stream| !stream.chunks.is_empty());
        self.damage.sort_by_key(|damage| damage.offset);
        self.set_clocks();
        for recorded in &mut self.processes {
            recorded.parent = recorded.process.parent.and_then(|parent| self.ids.get(&parent).copied());
        }
        let start_unix_ns = self.start();
        Trace {
            input,
            version: self.version,
            command: self.command,
            processes: self.processes,
            functions: self.functions,
            modules: self.modules,
            streams: self.streams,
            damage: self.damage,
            start_unix_ns,
            ids: self.ids,
        }
    }

    /// Sets the clocks of all processes. The time stamp counter is the same in all of them.
    fn set_clocks(&mut self) {
        for kind in [ClockKind::Tsc, ClockKind::Nanoseconds] {
            let mut span = Span::default();
            let is_one = |recorded: &&mut Recorded| recorded.process.clock == kind;
            self.processes.iter_mut().filter(is_one).for_each(|recorded| span.join(recorded.span));
            let clock = Clock::new(kind, span, self.rate);
            self.processes.iter_mut().filter(is_one).for_each(|recorded| recorded.clock = clock);
        }
    }

    /// Returns the time of day at the start of the trace.
    fn start(&self) -> u64 {
        let of = |process: u32, ticks: u64| {
            self.processes.get(process as usize).map(|recorded| recorded.clock.since(0, ticks))
        };
        let events = self.streams.iter().filter_map(|stream| {
            let first = stream.chunks.iter().find(|place| place.time > 0)?;
            of(stream.process, first.time)
        });
        let moments = self.processes.iter().filter_map(|recorded| Some(recorded.span.ends()?.0.unix_ns));
        events.chain(moments).min().unwrap_or(0)
    }
}

/// Returns the rate in ticks per nanosecond, or `None` if no processor has such a rate.
fn rate(ticks: u64, nanoseconds: u64) -> Option<f64> {
    let rate = ticks as f64 / nanoseconds as f64;
    (1e-3..1e3).contains(&rate).then_some(rate)
}

/// Returns the approximate size of a signature in memory, in bytes.
fn cost(signature: &Signature) -> usize {
    let mut sum = 0_usize;
    let mut left: Vec<(&str, &ValueKind)> = Vec::new();
    let name = |name: &Option<String>| name.as_ref().map_or(0, String::len);
    for parameter in &signature.parameters {
        sum += name(&parameter.name);
        left.push(("", &parameter.kind));
    }
    left.extend(signature.result.as_ref().map(|kind| ("", kind)));
    while let Some((name, kind)) = left.pop() {
        sum += 128 + name.len();
        match kind {
            ValueKind::Enum { name, variants, .. } => {
                sum += name.len() + variants.iter().map(|(_, name)| 32 + name.len()).sum::<usize>();
            }
            ValueKind::Struct { name, fields, .. } => {
                sum += name.len();
                left.extend(fields.iter().map(|field| (field.name.as_str(), &field.kind)));
            }
            ValueKind::Bits { of, .. } => left.push(("", of)),
            _ => {}
        }
    }
    sum
}
