//! The records in a perf ring buffer (linux/perf_event.h, PERF_RECORD_*).

use std::ops::Range;
use std::sync::Arc;

use crate::python::Frames;

/// A record of the kernel, as far as it matters here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The time in nanoseconds of CLOCK_MONOTONIC.
    pub(crate) time: u64,
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) event: Event,
}

/// What a record reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A sample in user space at this address, or in the kernel, called from this address. `None` means that
    /// the address is not known. With it comes the part of the stack that was copied, if any was.
    Sample(Option<u64>, Option<Box<Dump>>),
    /// The process has begun to execute a program.
    Exec,
    /// The process was forked by this one.
    Fork { parent: u32 },
    /// The thread was made by this one of the same process.
    Began { by: u32 },
    /// The thread has this name from now on.
    Named(Arc<str>),
    /// The thread has ended.
    End,
    /// Code was mapped, from this offset of a file of this name. The name is the path in the process's mount namespace,
    /// or a word in brackets or after `//` if there is no file.
    Map { address: u64, len: u64, offset: u64, file: Arc<str> },
    /// The thread runs on this processor from now on.
    On { cpu: u32 },
    /// The thread does not run any more. `preempted`: it could go on.
    Off { cpu: u32, preempted: bool },
    /// So many records were lost because the ring was full.
    Lost(u64),
    /// The kernel has reduced the rate because it was too high.
    Throttled,
}

/// What the kernel has copied of a thread's user state for a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dump {
    /// The time of the sample.
    pub(crate) time: u64,
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) bp: u64,
    /// The number of bytes from `sp` on that were copied.
    pub(crate) len: u64,
    /// The words among them that may be addresses, each with its distance from `sp` in words.
    pub(crate) words: Vec<(u16, u64)>,
    /// What was read from the thread itself as soon as there was the sample.
    pub(crate) python: Python,
}

/// What is known of the Python functions that a thread executed when a sample was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Python {
    /// It executed none, as far as is known.
    #[default]
    None,
    /// It may have executed some, which were not read in time.
    Unknown,
    Frames(Frames),
}

/// The addresses that code and stacks can have: the kernel gives no page below vm.mmap_min_addr.
const ADDRESSES: Range<u64> = 0x1_0000..0x7fff_ffff_f000;

/// How the fields of a sample are arranged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    /// Whether samples have PERF_SAMPLE_REGS_USER with the instruction pointer, instead of PERF_SAMPLE_IP.
    pub(crate) user_registers: bool,
    /// Whether samples have PERF_SAMPLE_REGS_USER with the registers of a [`Dump`], and PERF_SAMPLE_STACK_USER.
    pub(crate) stacks: bool,
}

const MMAP: u32 = 1;
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const THROTTLE: u32 = 5;
const FORK: u32 = 7;
const SAMPLE: u32 = 9;
const SWITCH: u32 = 14;
/// PERF_RECORD_MISC_SWITCH_OUT and PERF_RECORD_MISC_SWITCH_OUT_PREEMPT.
const SWITCH_OUT: u16 = 1 << 13;
const SWITCH_OUT_PREEMPT: u16 = 1 << 14;
/// PERF_RECORD_MISC_COMM_EXEC.
const COMM_EXEC: u16 = 1 << 13;

/// Appends the records in `bytes`, which contains a whole number of them, from the ring of a processor.
pub(crate) fn parse(mut bytes: &[u8], content: Content, cpu: u32, records: &mut Vec<Record>) {
    while let Some(record) = next(&mut bytes) {
        records.extend(parse_one(record, content, cpu));
    }
}

/// Returns how many bytes the whole records take at the beginning of these.
pub(crate) fn whole(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while next(&mut rest).is_some() {}
    bytes.len() - rest.len()
}

/// Returns how many bytes the first record takes, if it is whole.
pub(crate) fn first(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    next(&mut rest)?;
    Some(bytes.len() - rest.len())
}

/// A record: the body after `struct perf_event_header { u32 type; u16 misc; u16 size; }`.
struct Raw<'b> {
    kind: u32,
    misc: u16,
    body: &'b [u8],
}

fn next<'b>(bytes: &mut &'b [u8]) -> Option<Raw<'b>> {
    let head = u64_at(bytes, 0)?;
    let size = usize::from((head >> 48) as u16);
    let body = bytes.get(8..size)?;
    *bytes = bytes.get(size..)?;
    Some(Raw { kind: head as u32, misc: (head >> 32) as u16, body })
}

fn parse_one(raw: Raw, content: Content, cpu: u32) -> Option<Record> {
    if raw.kind == SAMPLE {
        return parse_sample(raw.body, content);
    }
    // Every record but a sample ends in sample_id_all: { u32 pid, tid; u64 time }.
    let id = raw.body.len().checked_sub(16)?;
    let ((process, thread), time) = (ids_at(raw.body, id)?, u64_at(raw.body, id + 8)?);
    let event = match raw.kind {
        // { u32 pid, tid; u64 addr, len, pgoff; char filename[] }
        MMAP => Event::Map {
            address: u64_at(raw.body, 8)?,
            len: u64_at(raw.body, 16)?,
            offset: u64_at(raw.body, 24)?,
            file: name(raw.body.get(32..id).unwrap_or_default()),
        },
        // { u32 pid, tid; char comm[] }
        COMM if raw.misc & COMM_EXEC != 0 => Event::Exec,
        COMM => {
            let (pid, tid) = ids_at(raw.body, 0)?;
            let event = Event::Named(name(raw.body.get(8..id).unwrap_or_default()));
            return Some(Record { time, pid, tid, event });
        }
        // { u32 pid, ppid; u32 tid, ptid; u64 time }. Both processes are the same if it is a thread.
        FORK => {
            let ((child, parent), (tid, by)) = (ids_at(raw.body, 0)?, ids_at(raw.body, 8)?);
            let event = if child == parent { Event::Began { by } } else { Event::Fork { parent } };
            return Some(Record { time, pid: child, tid, event });
        }
        // The same.
        EXIT => {
            let ((pid, _), (tid, _)) = (ids_at(raw.body, 0)?, ids_at(raw.body, 8)?);
            return Some(Record { time, pid, tid, event: Event::End });
        }
        // { u64 id, lost }
        LOST => Event::Lost(u64_at(raw.body, 8)?),
        THROTTLE => Event::Throttled,
        SWITCH if raw.misc & SWITCH_OUT == 0 => Event::On { cpu },
        SWITCH => Event::Off { cpu, preempted: raw.misc & SWITCH_OUT_PREEMPT != 0 },
        _ => return None,
    };
    Some(Record { time, pid: process, tid: thread, event })
}

/// Parses `{ u64 ip; u32 pid, tid; u64 time }` or `{ u32 pid, tid; u64 time; u64 abi; u64 ip }`. With stacks, there are
/// `{ u64 abi; u64 bp, sp, ip; u64 size; char data[size]; u64 dyn_size }` behind the time instead.
fn parse_sample(body: &[u8], content: Content) -> Option<Record> {
    let id = if content.user_registers { 0 } else { 8 };
    let ((pid, tid), time) = (ids_at(body, id)?, u64_at(body, id + 8)?);
    let registers = id + 16;
    let has_registers =
        (content.stacks || content.user_registers) && u64_at(body, registers).is_some_and(|abi| abi != 0);
    let dump = if content.stacks && has_registers { Dump::parse(&body[registers + 8..], time) } else { None };
    let place = match (content.user_registers, &dump) {
        (false, _) => u64_at(body, 0),
        (true, Some(dump)) => Some(dump.pc),
        (true, None) if has_registers => u64_at(body, registers + if content.stacks { 24 } else { 8 }),
        (true, None) => None,
    };
    let dump = dump.filter(|dump| dump.len > 0).map(Box::new);
    Some(Record { time, pid, tid, event: Event::Sample(place, dump) })
}

impl Dump {
    /// Parses what follows the word `abi`.
    fn parse(body: &[u8], time: u64) -> Option<Dump> {
        /// `bp`, `sp` and `ip` are in the order of their numbers in `enum perf_event_x86_regs`.
        const SIZE: usize = 24;
        let size = usize::try_from(u64_at(body, SIZE)?).ok()?;
        let data = body.get(SIZE + 8..)?;
        let valid = u64_at(data, size).filter(|_| size > 0).and_then(|valid| usize::try_from(valid).ok());
        let stack = data.get(..valid.unwrap_or(0).min(size))?;
        let mut words = Vec::with_capacity(stack.len() / 32);
        for (place, bytes) in (0..=u16::MAX).zip(stack.chunks_exact(8)) {
            let word = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            if ADDRESSES.contains(&word) {
                words.push((place, word));
            }
        }
        let len = stack.len() as u64;
        Some(Dump {
            time,
            bp: u64_at(body, 0)?,
            sp: u64_at(body, 8)?,
            pc: u64_at(body, 16)?,
            len,
            words,
            python: Python::None,
        })
    }
}

/// Returns the text up to the first NUL.
fn name(bytes: &[u8]) -> Arc<str> {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into()
}

/// Returns two numbers of 32 bits.
fn ids_at(bytes: &[u8], at: usize) -> Option<(u32, u32)> {
    u64_at(bytes, at).map(|ids| (ids as u32, (ids >> 32) as u32))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let size = 8 + 8 * words.len() as u64;
        let head = u64::from(kind) | u64::from(misc) << 32 | size << 48;
        [&[head], words].concat().iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn parsed(bytes: &[u8], user_registers: bool) -> Vec<Record> {
        let mut records = Vec::new();
        parse(bytes, Content { user_registers, stacks: false }, 3, &mut records);
        records
    }

    const ID: u64 = 7 | 8 << 32;

    #[test]
    fn samples_of_both_layouts() {
        let sample = |place| Record { time: 5, pid: 7, tid: 8, event: Event::Sample(place, None) };
        assert_eq!(parsed(&raw(SAMPLE, 2, &[0x1234, ID, 5]), false), [sample(Some(0x1234))]);
        assert_eq!(parsed(&raw(SAMPLE, 1, &[ID, 5, 2, 0x1234]), true), [sample(Some(0x1234))]);
        assert_eq!(parsed(&raw(SAMPLE, 1, &[ID, 5, 0]), true), [sample(None)]);
    }

    #[test]
    fn samples_with_stacks() {
        let dump = Dump {
            time: 5,
            pc: 0x1234,
            sp: 0x7000,
            bp: 0x7100,
            len: 16,
            words: vec![(1, 0x55_1234)],
            python: Python::None,
        };
        let with = |place, dump: Option<&Dump>| {
            let event = Event::Sample(place, dump.cloned().map(Box::new));
            Record { time: 5, pid: 7, tid: 8, event }
        };
        let parsed = |bytes: &[u8], user_registers| {
            let mut records = Vec::new();
            parse(bytes, Content { user_registers, stacks: true }, 3, &mut records);
            records
        };
        let rest = [2, 0x7100, 0x7000, 0x1234, 24, 1, 0x55_1234, 0x55_5678, 16];
        let user = raw(SAMPLE, 2, &[&[ID, 5][..], &rest].concat());
        assert_eq!(parsed(&user, true), [with(Some(0x1234), Some(&dump))]);
        let kernel = raw(SAMPLE, 2, &[&[0x99, ID, 5][..], &rest].concat());
        assert_eq!(parsed(&kernel, false), [with(Some(0x99), Some(&dump))]);
        // Nothing was copied, and a thread of the kernel has no registers.
        assert_eq!(parsed(&raw(SAMPLE, 2, &[ID, 5, 2, 1, 2, 0x1234, 0]), true), [with(Some(0x1234), None)]);
        assert_eq!(parsed(&raw(SAMPLE, 1, &[ID, 5, 0, 0]), true), [with(None, None)]);
        // Sizes that do not fit.
        for size in [24, u64::MAX] {
            let damaged = raw(SAMPLE, 2, &[ID, 5, 2, 1, 2, 0x1234, size, 1, 8]);
            assert_eq!(parsed(&damaged, true), [with(Some(0x1234), None)]);
        }
    }

    #[test]
    fn other_records() {
        let bytes = [
            raw(MMAP, 0, &[ID, 0x5000, 0x1000, 0x2000, u64::from_le_bytes(*b"/lib/x\0\0"), ID, 1]),
            raw(COMM, COMM_EXEC, &[ID, 0, ID, 2]),
            raw(COMM, 0, &[ID, u64::from_le_bytes(*b"io\0\0\0\0\0\0"), ID, 3]),
            raw(LOST, 0, &[1, 9, ID, 4]),
            raw(11, 0, &[ID, ID, 4]),
            raw(EXIT, 0, &[7 | 3 << 32, 8 | 3 << 32, 6, ID, 6]),
            raw(FORK, 0, &[9 | 7 << 32, 9 | 7 << 32, 5, 7 | 7 << 32, 5]),
            raw(FORK, 0, &[7 | 7 << 32, 9 | 8 << 32, 5, 7 | 7 << 32, 5]),
        ]
        .concat();
        let events: Vec<_> = parsed(&bytes, true).into_iter().map(|r| (r.pid, r.event)).collect();
        let map = Event::Map { address: 0x5000, len: 0x1000, offset: 0x2000, file: "/lib/x".into() };
        let (named, fork, thread) =
            (Event::Named("io".into()), Event::Fork { parent: 7 }, Event::Began { by: 8 });
        assert_eq!(
            events,
            [
                (7, map),
                (7, Event::Exec),
                (7, named),
                (7, Event::Lost(9)),
                (7, Event::End),
                (9, fork),
                (7, thread)
            ]
        );
    }

    #[test]
    fn records_may_lie_on_both_sides_of_an_end() {
        let [one, two] = [raw(SAMPLE, 2, &[0x1234, ID, 5]), raw(LOST, 0, &[1, 9, ID, 4])];
        let both = [&one[..], &two].concat();
        for end in 0..=both.len() {
            let whole = if end == both.len() {
                end
            } else if end >= one.len() {
                one.len()
            } else {
                0
            };
            assert_eq!(super::whole(&both[..end]), whole, "{end}");
        }
        assert_eq!((first(&both), first(&one[..8])), (Some(one.len()), None));
        assert_eq!(super::whole(&[0; 64]), 0);
    }

    #[test]
    fn garbage_ends_the_reading() {
        assert!(parsed(&[0; 64], true).is_empty());
        assert!(parsed(&raw(SAMPLE, 0, &[1, 2])[..20], true).is_empty());
        assert!(parsed(&raw(SAMPLE, 0, &[]), true).is_empty());
    }
}
