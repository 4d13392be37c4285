//! Encodes and decodes the uncompressed contents of chunks.

use crate::chunk::{Chunk, ClockKind, Function, Process, Switch, SwitchKind};
use crate::codec::{Cursor, Error, put, put_signed, put_text};
use crate::event::State;
use crate::events::{self, Events};
use crate::value::{put_signature, signature};

const START: u32 = 1;
const PROCESS: u32 = 2;
const FUNCTIONS: u32 = 3;
const CLOCK: u32 = 4;
pub(crate) const EVENTS: u32 = 5;
const END: u32 = 6;
const THREAD: u32 = 7;
const SWITCHES: u32 = 8;
const RATE: u32 = 9;

/// Appends the part of a [`Chunk::Events`] that precedes the events.
pub(crate) fn put_head(out: &mut Vec<u8>, process: u32, block: u32, first: u64, before: &State) {
    put(out, process.into());
    put(out, block.into());
    put(out, first);
    events::put_state(out, before);
}

impl Chunk {
    /// Appends the chunk's contents, and returns its kind.
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> u32 {
        match self {
            Chunk::Start { version, command, unix_ns } => {
                put_text(out, version);
                put(out, command.len() as u64);
                command.iter().for_each(|part| put_text(out, part));
                put(out, *unix_ns);
                START
            }
            Chunk::Process(process) => {
                put(out, process.id.into());
                put(out, process.parent.map_or(0, |parent| u64::from(parent) + 1));
                put(out, process.pid.into());
                put_text(out, &process.program);
                put(out, u64::from(process.clock == ClockKind::Tsc));
                put(out, process.inside_256);
                put(out, process.outside_256);
                put(out, process.spread_256);
                PROCESS
            }
            Chunk::Functions { process, functions } => {
                put(out, (*process).into());
                put(out, functions.len() as u64);
                for function in functions {
                    put(out, function.number.into());
                    put_text(out, &function.name);
                    put_text(out, &function.module);
                    put(out, function.address);
                    put(out, function.size);
                    put_signature(out, function.signature.as_ref());
                }
                FUNCTIONS
            }
            Chunk::Clock { process, ticks, unix_ns } => {
                put(out, (*process).into());
                put(out, *ticks);
                put(out, *unix_ns);
                CLOCK
            }
            Chunk::Rate { ticks, nanoseconds } => {
                put(out, *ticks);
                put(out, *nanoseconds);
                RATE
            }
            Chunk::Events { process, block, first, before, events } => {
                put_head(out, *process, *block, *first, before);
                events::put_events(out, &Events::from(events.as_slice()));
                EVENTS
            }
            Chunk::End { process, ticks } => {
                put(out, (*process).into());
                put(out, *ticks);
                END
            }
            Chunk::Thread { process, tid, name } => {
                put(out, (*process).into());
                put(out, (*tid).into());
                put_text(out, name);
                THREAD
            }
            Chunk::Switches { process, tid, switches } => {
                put(out, (*process).into());
                put(out, (*tid).into());
                put(out, switches.len() as u64);
                let mut last = 0_u64;
                for switch in switches {
                    put(out, switch.kind.code());
                    put_signed(out, switch.time.wrapping_sub(last) as i64);
                    last = switch.time;
                    put(out, switch.cpu.into());
                }
                SWITCHES
            }
        }
    }

    /// Reads the contents of a chunk of this kind.
    pub(crate) fn get(kind: u32, from: &mut Cursor) -> Result<Chunk, Error> {
        Ok(match kind {
            START => {
                let version = from.text()?;
                let mut command = Vec::new();
                for _ in 0..from.number()? {
                    command.push(from.text()?);
                }
                Chunk::Start { version, command, unix_ns: from.number()? }
            }
            PROCESS => {
                let id = from.small()?;
                let at = from.at;
                let parent = match from.number()? {
                    0 => None,
                    above => Some(u32::try_from(above - 1).map_err(|_| Error::Value(at))?),
                };
                Chunk::Process(Process {
                    id,
                    parent,
                    pid: from.small()?,
                    program: from.text()?,
                    clock: if from.number()? == 1 { ClockKind::Tsc } else { ClockKind::Nanoseconds },
                    inside_256: from.number()?,
                    outside_256: from.number()?,
                    spread_256: from.number()?,
                })
            }
            FUNCTIONS => {
                let process = from.small()?;
                let mut functions = Vec::new();
                for _ in 0..from.number()? {
                    functions.push(Function {
                        number: from.small()?,
                        name: from.text()?,
                        module: from.text()?,
                        address: from.number()?,
                        size: from.number()?,
                        signature: signature(from)?,
                    });
                }
                Chunk::Functions { process, functions }
            }
            CLOCK => Chunk::Clock { process: from.small()?, ticks: from.number()?, unix_ns: from.number()? },
            RATE => Chunk::Rate { ticks: from.number()?, nanoseconds: from.number()? },
            EVENTS => Chunk::Events {
                process: from.small()?,
                block: from.small()?,
                first: from.number()?,
                before: events::state(from)?,
                events: events::events(from)?,
            },
            END => Chunk::End { process: from.small()?, ticks: from.number()? },
            THREAD => Chunk::Thread { process: from.small()?, tid: from.small()?, name: from.text()? },
            SWITCHES => {
                let (process, tid) = (from.small()?, from.small()?);
                let (mut switches, mut time) = (Vec::new(), 0_u64);
                for _ in 0..from.number()? {
                    let kind = SwitchKind::of(from)?;
                    time = time.wrapping_add(from.signed()? as u64);
                    switches.push(Switch { time, cpu: from.small()?, kind });
                }
                Chunk::Switches { process, tid, switches }
            }
            kind => return Err(Error::Kind(kind)),
        })
    }
}

impl SwitchKind {
    fn code(self) -> u64 {
        match self {
            SwitchKind::On => 0,
            SwitchKind::Off { preempted: false } => 1,
            SwitchKind::Off { preempted: true } => 2,
            SwitchKind::Migrated => 3,
        }
    }

    fn of(from: &mut Cursor) -> Result<SwitchKind, Error> {
        let at = from.at;
        match from.byte()? {
            0 => Ok(SwitchKind::On),
            1 => Ok(SwitchKind::Off { preempted: false }),
            2 => Ok(SwitchKind::Off { preempted: true }),
            3 => Ok(SwitchKind::Migrated),
            _ => Err(Error::Value(at)),
        }
    }
}
