//! Finds the chunks of a file, and the damaged parts between them.

use std::fmt::{self, Display, Formatter};

use crate::codec::Error;
use crate::file::{CHUNK_HEADER, FILE_HEADER, MAGIC, Raw};
use crate::input::Input;

/// A part of a file that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The offset in the file.
    pub offset: u64,
    /// The length in bytes, up to the next chunk that can be read or to the end of the file.
    pub len: u64,
    /// The error at the beginning of the part.
    pub why: Error,
}

impl Display for Damage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at offset {}: {}", self.len, self.offset, self.why)
    }
}

/// Returns the damage of a chunk.
pub(crate) fn damage_of(offset: u64, raw: &Raw, why: Error) -> Damage {
    Damage { offset, len: CHUNK_HEADER as u64 + u64::from(raw.stored), why }
}

/// A result of [`Scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A chunk at this offset with a valid checksum. [`Scan::contents`] returns its contents.
    Chunk(u64, Raw),
    Damage(Damage),
}

/// The number of bytes that are read at once in a search for a chunk.
const WINDOW: usize = 1 << 16;
/// The maximum number of bytes that searches for chunks may read, as a multiple of the length of the file. Without a limit, a file
/// that seems to have a large chunk at every offset would take quadratic time.
const EFFORT: u64 = 8;

/// A scan of a file.
pub(crate) struct Scan<'i> {
    input: &'i Input,
    at: u64,
    contents: Vec<u8>,
    window: Vec<u8>,
    /// The number of bytes that searches may still read.
    effort: u64,
    next: Option<Found>,
}

impl<'i> Scan<'i> {
    /// Returns a scan that begins after the file's header.
    pub(crate) fn new(input: &'i Input) -> Scan<'i> {
        Scan {
            input,
            at: FILE_HEADER.len() as u64,
            contents: Vec::new(),
            window: Vec::new(),
            effort: input.len().saturating_mul(EFFORT).saturating_add(1 << 28),
            next: None,
        }
    }

    /// Returns the next chunk or damaged part, or `None` at the end of the file.
    pub(crate) fn next(&mut self) -> Option<Found> {
        if let Some(found) = self.next.take() {
            return Some(found);
        }
        if self.at >= self.input.len() {
            return None;
        }
        let start = self.at;
        match self.chunk(start) {
            Ok(raw) => {
                self.at = start + CHUNK_HEADER as u64 + u64::from(raw.stored);
                Some(Found::Chunk(start, raw))
            }
            Err(why) => {
                let next = self.search(start + 1);
                let end = next.map_or(self.input.len(), |(offset, _)| offset);
                self.at = next.map_or(end, |(at, raw)| at + CHUNK_HEADER as u64 + u64::from(raw.stored));
                self.next = next.map(|(offset, raw)| Found::Chunk(offset, raw));
                Some(Found::Damage(Damage { offset: start, len: end - start, why }))
            }
        }
    }

    /// Returns the compressed contents of the chunk that was found last.
    pub(crate) fn contents(&self) -> &[u8] {
        &self.contents
    }

    /// Reads the chunk at an offset.
    fn chunk(&mut self, offset: u64) -> Result<Raw, Error> {
        self.input.read(offset, CHUNK_HEADER, &mut self.contents);
        let is_cut = self.contents.len() < CHUNK_HEADER;
        let raw = Raw::of(&self.contents).ok_or(if is_cut { Error::CutOff } else { Error::NoChunk })?;
        read_contents(self.input, offset, &raw, &mut self.contents)?;
        Ok(raw)
    }

    /// Returns the first chunk from an offset on.
    fn search(&mut self, from: u64) -> Option<(u64, Raw)> {
        let mut at = from;
        loop {
            let mut window = std::mem::take(&mut self.window);
            self.input.read(at, WINDOW, &mut window);
            let places = window.windows(MAGIC.len()).enumerate().filter(|(_, bytes)| *bytes == MAGIC);
            let places: Vec<usize> = places.map(|(place, _)| place).collect();
            let read = window.len();
            self.window = window;
            for place in places {
                let offset = at + place as u64;
                match self.chunk(offset) {
                    Ok(raw) => return Some((offset, raw)),
                    Err(_) => self.effort = self.effort.checked_sub(self.contents.len() as u64)?,
                }
            }
            if read < WINDOW {
                return None;
            }
            // A magic number may lie across the end of the window.
            at += (read - (MAGIC.len() - 1)) as u64;
        }
    }
}

/// Reads the contents of the chunk with this header at an offset.
///
/// # Errors
/// Returns an error if the contents are truncated, or the checksum does not match.
pub(crate) fn read_contents(
    input: &Input,
    offset: u64,
    raw: &Raw,
    contents: &mut Vec<u8>,
) -> Result<(), Error> {
    let start = offset.saturating_add(CHUNK_HEADER as u64);
    if start.saturating_add(raw.stored.into()) > input.len() {
        contents.clear();
        return Err(Error::CutOff);
    }
    input.read(start, raw.stored as usize, contents);
    raw.check(contents)
}
