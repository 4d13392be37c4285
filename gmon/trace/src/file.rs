//! Chunks: what a file consists of.
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
/// Bytes before the contents.
pub const CHUNK_HEADER: usize = 24;
/// The greatest length of the contents, compressed or not.
const MOST: u32 = 1 << 27;
/// The greatest length of the contents of a chunk without events, decompressed. What it becomes in memory may be some forty times
/// as large.
const DEFINITIONS_MOST: u32 = 1 << 24;
/// The levels of zstd: the fastest one that is meant for general use, and one that takes half the time for a third more bytes.
const LEVEL: i32 = 1;
const QUICK_LEVEL: i32 = -5;

/// The header of a chunk, as it is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw {
    /// The kind.
    pub kind: u32,
    /// The number of bytes that follow.
    pub stored: u32,
    /// The number of bytes when decompressed.
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

    /// Whether the chunk has events, without which others can be read.
    pub fn has_events(&self) -> bool {
        self.kind == EVENTS
    }

    /// Whether these are the contents.
    pub(crate) fn check(&self, contents: &[u8]) -> Result<(), Error> {
        if contents.len() != self.stored as usize {
            return Err(Error::CutOff);
        }
        if self.checksum == self.checksum_of(contents) { Ok(()) } else { Err(Error::Checksum) }
    }

    /// Returns the contents, which have been checked, as they were before they were compressed.
    pub(crate) fn decompress(&self, contents: &[u8]) -> Result<Vec<u8>, Error> {
        let plain = zstd::bulk::decompress(contents, self.raw as usize).map_err(|_| Error::Compression)?;
        if plain.len() == self.raw as usize { Ok(plain) } else { Err(Error::Compression) }
    }

    /// Returns the chunk with these contents, which have been checked.
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

/// Makes chunks, one after the other.
pub struct Encoder {
    zstd: zstd::bulk::Compressor<'static>,
    plain: Vec<u8>,
    is_quick: bool,
}

impl Encoder {
    /// Returns an encoder.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new() -> std::io::Result<Encoder> {
        Ok(Encoder { zstd: zstd::bulk::Compressor::new(LEVEL)?, plain: Vec::new(), is_quick: false })
    }

    /// Chooses whether chunks are made quickly from now on; they are larger then.
    ///
    /// # Errors
    /// The level cannot be set.
    pub fn hurry(&mut self, is_quick: bool) -> std::io::Result<()> {
        if is_quick != self.is_quick {
            self.zstd.set_compression_level(if is_quick { QUICK_LEVEL } else { LEVEL })?;
            self.is_quick = is_quick;
        }
        Ok(())
    }

    /// Returns a chunk as it is in a file.
    ///
    /// # Errors
    /// Memory is short.
    pub fn encode(&mut self, chunk: &Chunk) -> std::io::Result<Vec<u8>> {
        self.plain.clear();
        let kind = chunk.put(&mut self.plain);
        self.packed(kind)
    }

    /// Returns a [`Chunk::Events`] as it is in a file.
    ///
    /// # Errors
    /// Memory is short.
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

    /// Returns the contents, compressed, with the header.
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
    /// Returns the chunk as it is in a file. Who makes many uses an [`Encoder`].
    ///
    /// # Errors
    /// Memory is short.
    pub fn encode(&self) -> std::io::Result<Vec<u8>> {
        Encoder::new()?.encode(self)
    }

    /// Reads the chunk with this header and these contents.
    ///
    /// # Errors
    /// It is damaged, of an unknown kind, or too large.
    pub fn decode(header: &Raw, contents: &[u8]) -> Result<Chunk, Error> {
        header.check(contents)?;
        header.chunk(contents)
    }
}
