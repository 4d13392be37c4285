//! The encoding of chunks, of which a file consists.
//!
//! ```text
//! 0   magic number [`MAGIC`]
//! 4   kind
//! 8   length of the contents in the file
//! 12  length of the contents when decompressed
//! 16  CRC-32 (IEEE 802.3) of the bytes 4 to 16 and of the contents
//! 20  0
//! 24  contents, compressed by zstd (RFC 8878)
//! ```
//!
//! All numbers are little-endian.

use crate::chunk::Chunk;
use crate::codec::{Cursor, Error};
use crate::contents::{EVENTS, put_head};
use crate::event::State;
use crate::events::{self, Events};

/// The version of the format.
pub const VERSION: u32 = 1;
/// The first bytes of a file: a magic number, and the version of the format.
pub const FILE_HEADER: [u8; 16] = *b"gpitrace\x01\0\0\0\0\0\0\0";
/// The first bytes of a chunk.
pub const MAGIC: [u8; 4] = *b"gpiC";
/// The number of bytes of a chunk before its contents.
pub const CHUNK_HEADER: usize = 24;
/// The maximum length of the contents, compressed or not.
const MOST: u32 = 1 << 27;
/// The maximum length of the decompressed contents of a chunk without events. In memory, they may take about forty times as much.
const DEFINITIONS_MOST: u32 = 1 << 24;
/// The usual level of zstd: the fastest one that is meant for general use.
const LEVEL: i32 = 1;
/// A faster level of zstd. It takes half the time of [`LEVEL`] and produces a third more bytes.
const QUICK_LEVEL: i32 = -5;

/// The header of a chunk in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw {
    /// The kind of the chunk.
    pub kind: u32,
    /// The number of bytes of the contents in the file.
    pub stored: u32,
    /// The number of bytes of the decompressed contents.
    pub raw: u32,
    checksum: u32,
}

impl Raw {
    /// Returns the header at the start of some bytes, or `None` if there is none.
    pub fn of(bytes: &[u8]) -> Option<Raw> {
        let header = bytes.get(..CHUNK_HEADER)?;
        let word = |at: usize| header.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let raw = Raw { kind: word(4)?, stored: word(8)?, raw: word(12)?, checksum: word(16)? };
        let is_one = header.starts_with(&MAGIC) && raw.stored <= MOST && raw.raw <= MOST && word(20)? == 0;
        is_one.then_some(raw)
    }

    /// Returns whether the chunk has events. Other chunks can be read without such a chunk.
    pub fn has_events(&self) -> bool {
        self.kind == EVENTS
    }

    /// Checks that these contents match the checksum.
    pub(crate) fn check(&self, contents: &[u8]) -> Result<(), Error> {
        if contents.len() != self.stored as usize {
            return Err(Error::CutOff);
        }
        if self.checksum == self.checksum_of(contents) { Ok(()) } else { Err(Error::Checksum) }
    }

    /// Decompresses contents that have been checked.
    pub(crate) fn decompress(&self, contents: &[u8]) -> Result<Vec<u8>, Error> {
        let plain = zstd::bulk::decompress(contents, self.raw as usize).map_err(|_| Error::Compression)?;
        if plain.len() == self.raw as usize { Ok(plain) } else { Err(Error::Compression) }
    }

    /// Decodes the chunk with these contents, which have been checked.
    pub(crate) fn chunk(&self, contents: &[u8]) -> Result<Chunk, Error> {
        if !self.has_events() && self.raw > DEFINITIONS_MOST {
            return Err(Error::TooLarge);
        }
        let plain = self.decompress(contents)?;
        let mut from = Cursor::new(&plain);
        let chunk = Chunk::get(self.kind, &mut from)?;
        if from.is_at_end() { Ok(chunk) } else { Err(Error::Value(from.at)) }
    }

    fn checksum_of(&self, contents: &[u8]) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        for word in [self.kind, self.stored, self.raw] {
            hasher.update(&word.to_le_bytes());
        }
        hasher.update(contents);
        hasher.finalize()
    }
}

/// An encoder of chunks, which reuses its memory.
pub struct Encoder {
    zstd: zstd::bulk::Compressor<'static>,
    plain: Vec<u8>,
    is_quick: bool,
}

impl Encoder {
    /// Returns an encoder.
    ///
    /// # Errors
    /// Returns an error if memory is short.
    pub fn new() -> std::io::Result<Encoder> {
        Ok(Encoder { zstd: zstd::bulk::Compressor::new(LEVEL)?, plain: Vec::new(), is_quick: false })
    }

    /// Chooses whether later chunks are compressed faster, which makes them larger.
    ///
    /// # Errors
    /// Returns an error if the compression level cannot be set.
    pub fn hurry(&mut self, is_quick: bool) -> std::io::Result<()> {
        if is_quick != self.is_quick {
            self.zstd.set_compression_level(if is_quick { QUICK_LEVEL } else { LEVEL })?;
            self.is_quick = is_quick;
        }
        Ok(())
    }

    /// Returns the bytes of a chunk in a file.
    ///
    /// # Errors
    /// Returns an error if memory is short.
    pub fn encode(&mut self, chunk: &Chunk) -> std::io::Result<Vec<u8>> {
        self.plain.clear();
        let kind = chunk.put(&mut self.plain);
        self.packed(kind)
    }

    /// Returns the bytes of a [`Chunk::Events`] in a file.
    ///
    /// # Errors
    /// Returns an error if memory is short.
    pub fn encode_events(
        &mut self,
        (process, block): (u32, u32),
        first: u64,
        before: &State,
        events: &Events,
    ) -> std::io::Result<Vec<u8>> {
        self.plain.clear();
        put_head(&mut self.plain, process, block, first, before);
        events::put_events(&mut self.plain, events);
        self.packed(EVENTS)
    }

    /// Compresses the contents, and returns them with a header.
    fn packed(&mut self, kind: u32) -> std::io::Result<Vec<u8>> {
        let mut out = vec![0; CHUNK_HEADER + zstd::zstd_safe::compress_bound(self.plain.len())];
        let len = self.zstd.compress_to_buffer(&self.plain, &mut out[CHUNK_HEADER..])?;
        out.truncate(CHUNK_HEADER + len);
        let (stored, raw) = (len as u32, self.plain.len() as u32);
        let mut header = Raw { kind, stored, raw, checksum: 0 };
        header.checksum = header.checksum_of(&out[CHUNK_HEADER..]);
        out[..4].copy_from_slice(&MAGIC);
        for (place, word) in out[4..].chunks_exact_mut(4).zip([kind, stored, raw, header.checksum, 0]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        Ok(out)
    }
}

impl Chunk {
    /// Returns the bytes of the chunk in a file. To encode many chunks, use an [`Encoder`].
    ///
    /// # Errors
    /// Returns an error if memory is short.
    pub fn encode(&self) -> std::io::Result<Vec<u8>> {
        Encoder::new()?.encode(self)
    }

    /// Decodes the chunk with this header and these contents.
    ///
    /// # Errors
    /// Returns an error if the chunk is damaged, of an unknown kind, or too large.
    pub fn decode(header: &Raw, contents: &[u8]) -> Result<Chunk, Error> {
        header.check(contents)?;
        header.chunk(contents)
    }
}
