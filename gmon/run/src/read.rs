//! The bytes of a file -> the messages in it -> a [`Recording`].
//!
//! A file may be hostile. It is decompressed and decoded one field at a time, so that samples, which are most of a
//! file and say nothing that is not also in the extension, take no memory.

use std::io::{BufRead, BufReader, Read};

use flate2::read::MultiGzDecoder;
use prost::Message;

use crate::error::{MAX_MEMORY, MAX_SIZE, ReadError};
use crate::model::Recording;
use crate::tables;
use crate::wire;

/// The bytes with which a gzip file begins.
pub(crate) const MAGIC: [u8; 2] = [0x1f, 0x8b];
/// The largest number of bytes in memory that a byte of a field, and each field beside that, takes. A number in a
/// column takes eight, and so does a parsed copy of it.
const MEMORY_OF_BYTE: u64 = 16;
const MEMORY_OF_FIELD: u64 = 128;

impl Recording {
    /// Reads a file that [`Recording::write()`] has written.
    ///
    /// # Errors
    /// The bytes are no such file, or the file is damaged or too large.
    pub fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(ReadError::NotGzip(bytes.iter().copied().take(MAGIC.len()).collect()));
        }
        let mut profile = decode(MultiGzDecoder::new(bytes), unpacked_at_most(bytes.len()), is_kept)?;
        let extension = profile.extension.take().ok_or(ReadError::Foreign)?;
        if extension.version != wire::VERSION {
            return Err(ReadError::Version(extension.version));
        }
        let recording = tables::recording(&profile, extension)?;
        recording.check()?;
        Ok(recording)
    }
}

/// Returns the number of bytes that a file of this length is unpacked to at most. Profiles become smaller by a factor of five
/// to twenty; what becomes smaller by far more is made to keep its reader busy.
fn unpacked_at_most(len: usize) -> u64 {
    const FACTOR: u64 = 128;
    const ANY: u64 = 64 << 20;
    (len as u64).saturating_mul(FACTOR).clamp(ANY, MAX_SIZE)
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

/// Whether a field of pprof's `Profile` is used for a [`Recording`].
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
