//! A trace in Perfetto's format, which ui.perfetto.dev and its trace processor read.
//!
//! A file is a list of packets (<https://perfetto.dev/docs/reference/trace-packet-proto>). Processes and threads are tracks, which
//! packets describe before the first event on them. Calls are slices on the track of their thread; those on the stack of a coroutine
//! are on a track of their own below it, because slices of one track nest. So are the times in which the scheduler had the thread run or wait. Names
//! are written once, and then meant by numbers.

use std::collections::HashMap;
use std::io::{self, Write};

use gmon_trace::value::{Encoded, Value, ValueKind};
use gmon_trace::{Begun, Callee, Choice, Damage, Doing, Ended, How, OpenKind, Scheduled, Step, Trace, What};
use prost::Message;

use crate::cli::traces::calls::{Calls, at_end};
use crate::cli::traces::names;
use crate::cli::traces::tracks::{Track, Tracks};
use crate::cli::traces::wire::{
    ClockSnapshot, ClockValue, DebugAnnotation, EventKind, Interned, InternedData, Packet, ProcessDescriptor,
    ThreadDescriptor, TrackDescriptor, TrackEvent,
};

/// The number of the only sequence of packets: those that share interned names.
const SEQUENCE: u32 = 1;
/// Flags of packets: forget all names, and need them.
const STATE_CLEARED: u32 = 1;
const NEEDS_STATE: u32 = 2;
/// Perfetto's clocks.
const REALTIME: u32 = 1;
const BOOTTIME: u32 = 6;
/// The fields of a file that is a list of packets, as in protobuf.
const PACKET_TAG: u8 = 0x0a;

/// Writes all steps that are wanted. Returns what of the trace was damaged.
///
/// # Errors
/// `out` cannot be written to.
pub(crate) fn perfetto(
    trace: &Trace,
    choice: &Choice,
    raw: bool,
    out: &mut impl Write,
) -> io::Result<Vec<Damage>> {
    let mut writer = Writer {
        calls: Calls::new(trace, raw),
        trace,
        out,
        buffer: Vec::new(),
        tracks: Tracks::default(),
        names: HashMap::new(),
        texts: HashMap::new(),
    };
    writer.begin()?;
    let mut steps = trace.steps(choice);
    for step in steps.by_ref() {
        writer.step(&step)?;
    }
    for scheduled in trace.scheduling(choice) {
        writer.scheduled(&scheduled)?;
    }
    Ok(steps.damage().to_vec())
}

struct Writer<'t, W> {
    calls: Calls<'t>,
    trace: &'t Trace,
    out: &'t mut W,
    buffer: Vec<u8>,
    tracks: Tracks,
    /// The numbers of functions' names that have been written.
    names: HashMap<(u32, Callee), u64>,
    /// The numbers of other names.
    texts: HashMap<String, u64>,
}

impl<W: Write> Writer<'_, W> {
    fn packet(&mut self, packet: &Packet) -> io::Result<()> {
        self.buffer.clear();
        self.buffer.push(PACKET_TAG);
        // A buffer in memory has room.
        let _ = packet.encode_length_delimited(&mut self.buffer);
        self.out.write_all(&self.buffer)
    }

    /// Returns a packet with what all of them have.
    fn with_state() -> Packet {
        Packet { sequence: Some(SEQUENCE), flags: Some(NEEDS_STATE), ..Packet::default() }
    }

    /// Writes what comes first: that there are no names yet, and what the time of day is.
    fn begin(&mut self) -> io::Result<()> {
        self.packet(&Packet {
            sequence: Some(SEQUENCE),
            flags: Some(STATE_CLEARED | NEEDS_STATE),
            timestamp: Some(0),
            clocks: Some(ClockSnapshot {
                clocks: vec![
                    ClockValue { clock: Some(BOOTTIME), timestamp: Some(0) },
                    ClockValue { clock: Some(REALTIME), timestamp: Some(self.trace.start_unix_ns) },
                ],
                primary: Some(BOOTTIME),
            }),
            ..Packet::default()
        })
    }

    /// Returns the number of a step's track. It is described if it is new.
    fn track(&mut self, step: &Step) -> io::Result<u64> {
        let process = self.process_track(step.process)?;
        let thread = self.thread_track(step.process, step.tid, process)?;
        let Some(ordinal) = self.tracks.stack(step) else { return Ok(thread) };
        let (track, is_new) = self.tracks.number(Track::Stack(step.buffer, step.tid, step.chain));
        if is_new {
            self.describe(TrackDescriptor {
                uuid: Some(track),
                parent: Some(thread),
                name: Some(format!("stack {ordinal}")),
                ..TrackDescriptor::default()
            })?;
        }
        Ok(track)
    }

    fn process_track(&mut self, process: u32) -> io::Result<u64> {
        let recorded = self.trace.processes.get(process as usize);
        // The programs of a process share its track.
        let pid = recorded.map_or(0, |recorded| recorded.process.pid);
        let (track, is_new) = self.tracks.number(Track::Process(pid));
        if let Some(recorded) = recorded.filter(|_| is_new) {
            self.describe(TrackDescriptor {
                uuid: Some(track),
                process: Some(ProcessDescriptor {
                    pid: Some(pid as i32),
                    command: self
                        .trace
                        .command
                        .iter()
                        .filter(|_| recorded.parent.is_none())
                        .cloned()
                        .collect(),
                    name: Some(names::program(&recorded.process)),
                }),
                ..TrackDescriptor::default()
            })?;
        }
        Ok(track)
    }

    fn thread_track(&mut self, process: u32, tid: u32, parent: u64) -> io::Result<u64> {
        let recorded = self.trace.processes.get(process as usize);
        let pid = recorded.map_or(0, |recorded| recorded.process.pid);
        let (track, is_new) = self.tracks.number(Track::Thread(pid, tid));
        if let Some(recorded) = recorded.filter(|_| is_new) {
            self.describe(TrackDescriptor {
                uuid: Some(track),
                parent: Some(parent),
                thread: Some(ThreadDescriptor {
                    pid: Some(pid as i32),
                    tid: Some(tid as i32),
                    name: Some(names::thread(recorded, tid)),
                }),
                ..TrackDescriptor::default()
            })?;
        }
        Ok(track)
    }

    fn describe(&mut self, track: TrackDescriptor) -> io::Result<()> {
        self.packet(&Packet { track: Some(track), ..Self::with_state() })
    }

    fn step(&mut self, step: &Step) -> io::Result<()> {
        let track = self.track(step)?;
        let at = self.trace.elapsed(step.process, step.time);
        match &step.what {
            What::Begin(begun) => self.begin_call(step, track, at, begun),
            What::End(ended) => self.end_call(track, at, ended),
            What::Leaf(begun, ended) => {
                self.begin_call(step, track, at, begun)?;
                self.end_call(track, self.trace.elapsed(step.process, ended.ended), ended)
            }
            What::Mark(begun) => {
                let mut interned = InternedData::default();
                let name = self.name(step.process, begun.function, &mut interned);
                let arguments = self.arguments(begun, &mut interned);
                self.event(track, at, EventKind::Instant, Some(name), arguments, interned)
            }
            What::Orphan { function, .. } => {
                let text = format!("end of {}", self.calls.name(*function));
                self.instant(track, at, text)
            }
            What::Lost(count) => {
                self.instant(track, at, format!("{} lost", gmon::counted(*count, "event", "events")))
            }
            What::Missing(count) => {
                self.instant(track, at, format!("{} missing", gmon::counted(*count, "event", "events")))
            }
            What::TooDeep => self.instant(track, at, "deeper calls are left out".to_owned()),
            What::Stack => Ok(()),
        }
    }

    fn begin_call(&mut self, step: &Step, track: u64, at: u64, begun: &Begun) -> io::Result<()> {
        let mut interned = InternedData::default();
        let name = self.name(step.process, begun.function, &mut interned);
        let mut annotations = self.arguments(begun, &mut interned);
        let kind = match begun.kind {
            OpenKind::Call => None,
            OpenKind::Jump => Some("tail call"),
            OpenKind::Inherited => Some("open since before the fork"),
        };
        if let Some(kind) = kind {
            annotations.push(self.annotation("begins", &mut interned, kind.to_owned()));
        }
        if let Some(earlier) = begun.earlier {
            let text = format!("at {} ns", self.trace.elapsed(step.process, earlier));
            annotations.push(self.annotation("began", &mut interned, text));
        }
        self.event(track, at, EventKind::Begin, Some(name), annotations, interned)
    }

    fn end_call(&mut self, track: u64, at: u64, ended: &Ended) -> io::Result<()> {
        let mut interned = InternedData::default();
        let mut annotations = Vec::new();
        if let Some(result) = ended.result_in(self.trace) {
            let number = self.annotation_name("result", &mut interned);
            annotations.push(of_value(number, &result));
        }
        if ended.how != How::Returned
            && let Some(how) = at_end(ended.how)
        {
            annotations.push(self.annotation("ends", &mut interned, how.to_owned()));
        }
        self.event(track, at, EventKind::End, None, annotations, interned)
    }

    fn instant(&mut self, track: u64, at: u64, text: String) -> io::Result<()> {
        let event = TrackEvent {
            kind: Some(EventKind::Instant as i32),
            track: Some(track),
            name: Some(text),
            ..TrackEvent::default()
        };
        self.packet(&Packet { timestamp: Some(at), event: Some(event), ..Self::with_state() })
    }

    fn event(
        &mut self,
        track: u64,
        at: u64,
        kind: EventKind,
        name: Option<u64>,
        annotations: Vec<DebugAnnotation>,
        interned: InternedData,
    ) -> io::Result<()> {
        let event = TrackEvent {
            kind: Some(kind as i32),
            track: Some(track),
            name_number: name,
            annotations,
            ..TrackEvent::default()
        };
        let interned = Some(interned).filter(|interned| *interned != InternedData::default());
        self.packet(&Packet { timestamp: Some(at), event: Some(event), interned, ..Self::with_state() })
    }

    /// Returns the number of a function's name, which is written with the next event if it is new.
    fn name(&mut self, process: u32, function: Callee, interned: &mut InternedData) -> u64 {
        // Functions that the trace does not define have the numbers of their processes.
        let key = if function.index.is_some() {
            (0, Callee { number: 0, ..function })
        } else {
            (process, function)
        };
        let next = self.names.len() as u64 + 1;
        *self.names.entry(key).or_insert_with(|| {
            let name = self.calls.names.of(function).to_owned();
            interned.names.push(Interned { number: Some(next), text: Some(name) });
            next
        })
    }

    fn arguments(&mut self, begun: &Begun, interned: &mut InternedData) -> Vec<DebugAnnotation> {
        let all = begun.arguments_in(self.trace).into_iter().flatten().zip(1..);
        let all = all.map(|((name, value), number)| {
            let name = name.map_or_else(|| format!("argument {number}"), str::to_owned);
            of_value(self.annotation_name(&name, interned), &value)
        });
        all.collect()
    }

    fn annotation(&mut self, name: &str, interned: &mut InternedData, text: String) -> DebugAnnotation {
        let name = Some(self.annotation_name(name, interned));
        DebugAnnotation { name, text: Some(text), ..DebugAnnotation::default() }
    }

    fn annotation_name(&mut self, name: &str, interned: &mut InternedData) -> u64 {
        if let Some(&number) = self.texts.get(name) {
            return number;
        }
        let number = self.texts.len() as u64 + 1;
        self.texts.insert(name.to_owned(), number);
        interned.annotations.push(Interned { number: Some(number), text: Some(name.to_owned()) });
        number
    }

    /// Writes what the scheduler had a thread do, on a track of its own.
    fn scheduled(&mut self, scheduled: &Scheduled) -> io::Result<()> {
        let Scheduled { from_ns, to_ns, process, tid, doing } = *scheduled;
        let parent = self.process_track(process)?;
        let thread = self.thread_track(process, tid, parent)?;
        let pid = self.trace.processes.get(process as usize).map_or(0, |recorded| recorded.process.pid);
        let (track, is_new) = self.tracks.number(Track::Scheduling(pid, tid));
        if is_new {
            self.describe(TrackDescriptor {
                uuid: Some(track),
                parent: Some(thread),
                name: Some("scheduling".to_owned()),
                ..TrackDescriptor::default()
            })?;
        }
        let text = names::doing(doing);
        if let Doing::Moved { .. } = doing {
            return self.instant(track, from_ns, text);
        }
        let event = TrackEvent {
            kind: Some(EventKind::Begin as i32),
            track: Some(track),
            name: Some(text),
            ..TrackEvent::default()
        };
        self.packet(&Packet { timestamp: Some(from_ns), event: Some(event), ..Self::with_state() })?;
        self.event(track, to_ns, EventKind::End, None, Vec::new(), InternedData::default())
    }
}

/// Returns a value with its type, or as text if Perfetto has no such type.
fn of_value(name: u64, value: &Value) -> DebugAnnotation {
    let mut annotation = DebugAnnotation { name: Some(name), ..DebugAnnotation::default() };
    let is_hexadecimal = matches!(value.kind, ValueKind::Hex | ValueKind::Octal);
    if let Some(truth) = value.truth() {
        annotation.truth = Some(truth);
    } else if let Some(address) = value.address() {
        annotation.address = Some(address);
    } else if let Some(integer) =
        value.integer().and_then(|v| i64::try_from(v).ok()).filter(|_| !is_hexadecimal)
    {
        annotation.integer = Some(integer);
    } else if let Some(float) = value.float() {
        annotation.float = Some(float);
    } else if let (Some(bytes), Some(Encoded::Text { is_cut: false, .. })) = (value.text(), value.encoded) {
        annotation.text = Some(String::from_utf8_lossy(bytes).into_owned());
    } else {
        annotation.text = Some(value.to_string());
    }
    annotation
}
