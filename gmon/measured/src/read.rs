//! The bytes of a file -> a [`Measured`].
//!
//! A file may be hostile. It is decompressed and decoded one field at a time, so that samples, which are most of a
//! file and say nothing that is not also in the extension, take no memory.

use std::io::{self, BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;
use prost::{DecodeError, Message};

use crate::check::Invalid;
use crate::model::{
    ArcTimes, Clock, ClockSource, Function, FunctionTimes, HISTOGRAM_LEN, Measured, Module, Node, REST,
    Thread,
};
use crate::wire;

/// The bytes with which a gzip file begins.
pub(crate) const MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The largest decompressed size of a file, in bytes.
pub(crate) const MAX_SIZE: u64 = 2 << 30;
/// The most memory that what was decoded may take, in bytes.
const MAX_MEMORY: u64 = 4 << 30;
/// The largest size of all texts of the model, in bytes. In the file, many of them may be one.
const MAX_TEXT: u64 = 1 << 30;
/// The largest number of bytes in memory that a byte of a field, and each field beside that, takes. A number in a
/// column takes eight, and so does a parsed copy of it.
const MEMORY_OF_BYTE: u64 = 16;
const MEMORY_OF_FIELD: u64 = 128;

/// The reason why bytes are no file of measured times.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    #[error("begins with {0:02x?}, expected 1f 8b, as a file compressed with gzip begins")]
    NotGzip(Vec<u8>),
    #[error("damaged, at offset {offset} of the decompressed file: {source}")]
    Gzip { offset: u64, source: io::Error },
    #[error("larger than {} GiB when decompressed", MAX_SIZE >> 30)]
    TooLarge,
    #[error("what it contains would take more than {} GiB of memory", MAX_MEMORY >> 30)]
    TooMuchMemory,
    #[error("cut off or damaged, at offset {offset} of the decompressed file: {what}")]
    Field { offset: u64, what: &'static str },
    #[error("damaged, before offset {offset} of the decompressed file: {source}")]
    Message { offset: u64, source: DecodeError },
    #[error("no profile in pprof's format")]
    NotPprof,
    #[error("no measured times in it, as `gprofinject --times` writes them: another program's pprof file?")]
    Foreign,
    #[error("version {0} of the measured times, expected {known}: a newer gprofinject's?", known = wire::VERSION)]
    Version(u32),
    #[error("{table} {index}: {what}")]
    Entry { table: &'static str, index: usize, what: &'static str },
    #[error("{table}: {len} elements in column {column}, expected {expected}")]
    Column { table: &'static str, column: &'static str, len: usize, expected: usize },
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

impl Measured {
    /// Reads a file that [`Measured::write()`] has written.
    ///
    /// # Errors
    /// The bytes are no such file, or the file is damaged or too large.
    pub fn read(bytes: &[u8]) -> Result<Measured, ReadError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(ReadError::NotGzip(bytes.iter().copied().take(MAGIC.len()).collect()));
        }
        let mut profile = decode(MultiGzDecoder::new(bytes), MAX_SIZE, is_kept)?;
        let extension = profile.extension.take().ok_or(ReadError::Foreign)?;
        if extension.version != wire::VERSION {
            return Err(ReadError::Version(extension.version));
        }
        let measured = measured(&profile, extension)?;
        measured.check()?;
        Ok(measured)
    }
}

/// Decodes those fields of a profile that are wanted, by their numbers.
pub(crate) fn decode(
    gzip: impl Read,
    max_size: u64,
    mut is_kept: impl FnMut(u64) -> bool,
) -> Result<wire::Profile, ReadError> {
    let mut input = Input { reader: BufReader::with_capacity(1 << 16, gzip), offset: 0, max_size };
    let mut profile = wire::Profile::default();
    let mut memory = 0_u64;
    let mut field = Vec::new();
    while let Some(key) = input.varint_or_end()? {
        let (number, wire_type) = (key >> 3, key & 7);
        let is_kept = is_kept(number);
        field.clear();
        push_varint(&mut field, key);
        match wire_type {
            0 => push_varint(&mut field, input.varint()?),
            1 => input.skip(8)?,
            5 => input.skip(4)?,
            2 => {
                let len = input.varint()?;
                if !is_kept {
                    input.skip(len)?;
                    continue;
                }
                let needed = len.saturating_mul(MEMORY_OF_BYTE).saturating_add(MEMORY_OF_FIELD);
                memory = memory.saturating_add(needed);
                if memory > MAX_MEMORY {
                    return Err(ReadError::TooMuchMemory);
                }
                push_varint(&mut field, len);
                input.take(len, &mut field)?;
            }
            _ => return Err(ReadError::Field { offset: input.offset, what: "an unknown wire type" }),
        }
        // The fields of a message may be decoded one after the other.
        if matches!(wire_type, 0 | 2) && is_kept {
            let merged = profile.merge(field.as_slice());
            merged.map_err(|source| ReadError::Message { offset: input.offset, source })?;
        }
    }
    Ok(profile)
}

/// Whether a field of pprof's `Profile` is used for a [`Measured`].
fn is_kept(number: u64) -> bool {
    number == u64::from(wire::EXTENSION) || matches!(number, 3..=6 | 9 | 10 | 12)
}

fn push_varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// The decompressed file, read once from its beginning to its end.
struct Input<R> {
    reader: BufReader<R>,
    /// The number of bytes that were read.
    offset: u64,
    max_size: u64,
}

impl<R: Read> Input<R> {
    /// Returns the bytes that come next, or none at the end.
    fn fill(&mut self) -> Result<&[u8], ReadError> {
        let offset = self.offset;
        self.reader.fill_buf().map_err(|source| ReadError::Gzip { offset, source })
    }

    fn consume(&mut self, bytes: usize) -> Result<(), ReadError> {
        self.reader.consume(bytes);
        self.offset += bytes as u64;
        if self.offset > self.max_size { Err(ReadError::TooLarge) } else { Ok(()) }
    }

    fn byte(&mut self) -> Result<Option<u8>, ReadError> {
        let byte = self.fill()?.first().copied();
        if byte.is_some() {
            self.consume(1)?;
        }
        Ok(byte)
    }

    fn end(&self) -> ReadError {
        ReadError::Field { offset: self.offset, what: "it ends within a field" }
    }

    fn varint(&mut self) -> Result<u64, ReadError> {
        self.varint_or_end()?.ok_or_else(|| self.end())
    }

    /// Returns a number, or `None` at the end of the file.
    fn varint_or_end(&mut self) -> Result<Option<u64>, ReadError> {
        let Some(mut byte) = self.byte()? else { return Ok(None) };
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(Some(number));
            }
            byte = self.byte()?.ok_or_else(|| self.end())?;
        }
        Err(ReadError::Field { offset: self.offset, what: "a number of more than 64 bits" })
    }

    fn skip(&mut self, bytes: u64) -> Result<(), ReadError> {
        self.pass(bytes, |_| {})
    }

    fn take(&mut self, bytes: u64, to: &mut Vec<u8>) -> Result<(), ReadError> {
        self.pass(bytes, |piece| to.extend_from_slice(piece))
    }

    fn pass(&mut self, mut bytes: u64, mut use_piece: impl FnMut(&[u8])) -> Result<(), ReadError> {
        while bytes > 0 {
            let piece = self.fill()?;
            let len = piece.len().min(usize::try_from(bytes).unwrap_or(usize::MAX));
            if len == 0 {
                return Err(self.end());
            }
            use_piece(&piece[..len]);
            self.consume(len)?;
            bytes -= len as u64;
        }
        Ok(())
    }
}

/// Returns what the messages say. Indexes of the model are not checked.
fn measured(profile: &wire::Profile, extension: wire::Extension) -> Result<Measured, ReadError> {
    let clock = extension.clock.unwrap_or_default();
    let mut texts = Texts { table: &profile.string_table, left: MAX_TEXT };
    let functions = functions(profile, &extension.function_samples, &mut texts)?;
    Ok(Measured {
        program: texts.get(extension.program).map_err(|error| error.of("program", 0))?,
        start_unix_ns: unsigned(profile.time_nanos),
        duration_ns: unsigned(profile.duration_nanos),
        clock: Clock {
            source: match clock.source {
                0 => ClockSource::Tsc,
                1 => ClockSource::ClockGettime,
                _ => return Err(ReadError::Entry { table: "clock", index: 0, what: "an unknown source" }),
            },
            ticks_per_second: clock.ticks_per_second,
            inside_ns: clock.inside_ns,
            outside_ns: clock.outside_ns,
            error_ns: clock.error_ns,
        },
        sample_period_ns: unsigned(profile.period),
        modules: modules(profile, &mut texts)?,
        functions,
        threads: threads(&extension.threads.unwrap_or_default(), &mut texts)?,
        rows: rows(&extension.rows.unwrap_or_default())?,
        arcs: arcs(&extension.arcs.unwrap_or_default())?,
        nodes: nodes(&extension.nodes.unwrap_or_default())?,
        nodes_lost: extension.nodes_lost,
    })
}

/// The string table, from which texts are copied.
struct Texts<'a> {
    table: &'a [String],
    /// The number of bytes that may be copied.
    left: u64,
}

/// The reason why there is no text.
enum NoText {
    Missing,
    TooMuch,
}

impl NoText {
    fn of(&self, table: &'static str, index: usize) -> ReadError {
        match self {
            NoText::Missing => ReadError::Entry { table, index, what: "a text that is not there" },
            NoText::TooMuch => ReadError::TooMuchMemory,
        }
    }
}

impl Texts<'_> {
    fn get(&mut self, index: i64) -> Result<String, NoText> {
        let index = usize::try_from(index).ok();
        let text = index.and_then(|index| self.table.get(index)).ok_or(NoText::Missing)?;
        self.left = self.left.checked_sub(text.len() as u64).ok_or(NoText::TooMuch)?;
        Ok(text.clone())
    }
}

fn modules(profile: &wire::Profile, texts: &mut Texts) -> Result<Vec<Module>, ReadError> {
    let module = |(index, mapping): (usize, &wire::Mapping)| {
        let wrong = |what| ReadError::Entry { table: "mapping", index, what };
        if mapping.id != index as u64 + 1 {
            return Err(wrong("ids are not in order"));
        }
        let mut text = |text| texts.get(text).map_err(|error| error.of("mapping", index));
        Ok(Module {
            name: text(mapping.filename)?,
            build_id: bytes(&text(mapping.build_id)?)
                .ok_or_else(|| wrong("a build-id that is not hexadecimal"))?,
            start: mapping.memory_start,
            limit: mapping.memory_limit,
            offset: mapping.file_offset,
        })
    };
    profile.mapping.iter().enumerate().map(module).collect()
}

fn functions(
    profile: &wire::Profile,
    samples: &[u64],
    texts: &mut Texts,
) -> Result<Vec<Function>, ReadError> {
    let function = |(index, &samples): (usize, &u64)| {
        let wrong = |what| ReadError::Entry { table: "function", index, what };
        let missing = || wrong("it is not there");
        let function = profile.function.get(index).ok_or_else(missing)?;
        let location = profile.location.get(index).ok_or_else(missing)?;
        let id = index as u64 + 1;
        if (function.id, location.id) != (id, id) {
            return Err(wrong("ids are not in order"));
        }
        let module = location.mapping_id.checked_sub(1).and_then(|module| u32::try_from(module).ok());
        let mut text = |text| texts.get(text).map_err(|error| error.of("function", index));
        Ok(Function {
            name: text(function.system_name)?,
            module: module.ok_or_else(|| wrong("no module"))?,
            address: location.address,
            file: text(function.filename)?,
            line: u32::try_from(function.start_line).map_err(|_| wrong("a line that is no 32-bit number"))?,
            samples,
        })
    };
    samples.iter().enumerate().map(function).collect()
}

fn threads(threads: &wire::Threads, texts: &mut Texts) -> Result<Vec<Thread>, ReadError> {
    let len = threads.tid.len();
    Columns { table: "threads", len }.check(&[
        ("pid", threads.pid.len()),
        ("name", threads.name.len()),
        ("life", threads.life_ns.len()),
        ("outside", threads.outside_ns.len()),
        ("overhead", threads.overhead_ns.len()),
    ])?;
    let thread = |index: usize| {
        Ok(Thread {
            pid: threads.pid[index],
            tid: threads.tid[index],
            name: texts.get(threads.name[index]).map_err(|error| error.of("thread", index))?,
            life_ns: threads.life_ns[index],
            outside_ns: threads.outside_ns[index],
            overhead_ns: threads.overhead_ns[index],
        })
    };
    (0..len).map(thread).collect()
}

/// The check that all columns of a table have the same length.
struct Columns {
    table: &'static str,
    len: usize,
}

impl Columns {
    fn check(&self, columns: &[(&'static str, usize)]) -> Result<(), ReadError> {
        match columns.iter().find(|(_, len)| *len != self.len) {
            None => Ok(()),
            Some(&(column, len)) => {
                Err(ReadError::Column { table: self.table, column, len, expected: self.len })
            }
        }
    }
}

fn rows(rows: &wire::Rows) -> Result<Vec<FunctionTimes>, ReadError> {
    let len = rows.function.len();
    Columns { table: "rows", len }.check(&[
        ("thread", rows.thread.len()),
        ("calls", rows.calls.len()),
        ("primitive", rows.primitive.len()),
        ("open", rows.open.len()),
        ("self", rows.self_ns.len()),
        ("self raw", rows.self_raw_ns.len()),
        ("inclusive", rows.inclusive_ns.len()),
        ("inclusive raw", rows.inclusive_raw_ns.len()),
        ("min", rows.min_ns.len()),
        ("max", rows.max_ns.len()),
        ("histogram length", rows.histogram_len.len()),
    ])?;
    let mut histograms = rows.histogram.as_slice();
    let row = |index: usize| {
        let wrong = |what| ReadError::Entry { table: "row", index, what };
        let len = rows.histogram_len[index] as usize;
        if len > HISTOGRAM_LEN {
            return Err(Invalid::Histogram { index, len }.into());
        }
        let (histogram, others) =
            histograms.split_at_checked(len).ok_or_else(|| wrong("its histogram is not there"))?;
        histograms = others;
        Ok(FunctionTimes {
            function: rows.function[index],
            thread: rows.thread[index],
            calls: rows.calls[index],
            primitive: rows.primitive[index],
            open: rows.open[index],
            self_ns: rows.self_ns[index],
            self_raw_ns: rows.self_raw_ns[index],
            inclusive_ns: rows.inclusive_ns[index],
            inclusive_raw_ns: rows.inclusive_raw_ns[index],
            min_ns: rows.min_ns[index],
            max_ns: rows.max_ns[index],
            histogram: histogram.to_vec(),
        })
    };
    (0..len).map(row).collect()
}

fn arcs(arcs: &wire::Arcs) -> Result<Vec<ArcTimes>, ReadError> {
    let len = arcs.callee.len();
    Columns { table: "arcs", len }.check(&[
        ("caller", arcs.caller.len()),
        ("thread", arcs.thread.len()),
        ("calls", arcs.calls.len()),
        ("open", arcs.open.len()),
        ("self", arcs.self_ns.len()),
        ("inclusive", arcs.inclusive_ns.len()),
        ("min", arcs.min_ns.len()),
        ("max", arcs.max_ns.len()),
    ])?;
    let arc = |index: usize| {
        let caller = match arcs.caller[index] {
            0 => None,
            above => Some(u32::try_from(above - 1).map_err(|_| ReadError::Entry {
                table: "arc",
                index,
                what: "a caller that is not there",
            })?),
        };
        Ok(ArcTimes {
            caller,
            callee: arcs.callee[index],
            thread: arcs.thread[index],
            calls: arcs.calls[index],
            open: arcs.open[index],
            self_ns: arcs.self_ns[index],
            inclusive_ns: arcs.inclusive_ns[index],
            min_ns: arcs.min_ns[index],
            max_ns: arcs.max_ns[index],
        })
    };
    (0..len).map(arc).collect()
}

fn nodes(nodes: &wire::Nodes) -> Result<Vec<Node>, ReadError> {
    let len = nodes.function.len();
    Columns { table: "nodes", len }.check(&[
        ("parent", nodes.parent.len()),
        ("thread", nodes.thread.len()),
        ("calls", nodes.calls.len()),
        ("self", nodes.self_ns.len()),
        ("samples", nodes.samples.len()),
    ])?;
    let node = |index: usize| {
        let wrong = |what| ReadError::Entry { table: "node", index, what };
        let parent = match nodes.parent[index] {
            0 => None,
            distance => {
                let parent = (index as u64).checked_sub(distance).and_then(|at| u32::try_from(at).ok());
                Some(parent.ok_or_else(|| wrong("a parent that is not there"))?)
            }
        };
        let function = match nodes.function[index] {
            0 => REST,
            above => u32::try_from(above - 1)
                .ok()
                .filter(|&function| function != REST)
                .ok_or_else(|| wrong("a function that is not there"))?,
        };
        Ok(Node {
            parent,
            function,
            thread: nodes.thread[index],
            calls: nodes.calls[index],
            self_ns: nodes.self_ns[index],
            samples: nodes.samples[index],
        })
    };
    (0..len).map(node).collect()
}

/// Returns the bytes of a hexadecimal text.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
}

/// Returns a number of the model. There are no negative ones.
fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that a million functions share would be a million texts in memory.
    #[test]
    fn copies_of_a_text() {
        let table = ["", "0123456789"].map(str::to_owned);
        let mut texts = Texts { table: &table, left: 25 };
        assert_eq!((texts.get(1).ok(), texts.get(0).ok()), (Some(table[1].clone()), Some(String::new())));
        assert!(
            matches!(texts.get(2), Err(NoText::Missing)) && matches!(texts.get(-1), Err(NoText::Missing))
        );
        assert!(texts.get(1).is_ok() && matches!(texts.get(1), Err(NoText::TooMuch)));
    }

    #[test]
    fn build_ids() {
        assert_eq!(bytes("ab01Ff"), Some(vec![0xab, 1, 0xff]));
        assert_eq!(
            (bytes(""), bytes("abc"), bytes("zz"), bytes("\u{e4}\u{e4}")),
            (Some(vec![]), None, None, None)
        );
    }
}
