//! The encoding of numbers (LEB128) and strings (with a preceding length) as bytes.

/// Why a chunk cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Error {
    /// The bytes end too early.
    #[error("it is cut off")]
    CutOff,
    /// The checksum does not match.
    #[error("its checksum is wrong")]
    Checksum,
    /// The contents cannot be decompressed to the length in the header.
    #[error("it cannot be decompressed")]
    Compression,
    /// The decompressed bytes have an invalid value at this offset.
    #[error("there is no valid value at byte {0} of its contents")]
    Value(usize),
    /// The bytes are not those of a chunk.
    #[error("there is no chunk")]
    NoChunk,
    /// The chunk would take too much memory, alone or together with others that are needed at the same time.
    #[error("it takes too much memory")]
    TooLarge,
    /// The chunk's events have numbers that earlier events have.
    #[error("it has events that there were already")]
    Repeated,
    /// The chunk is of a kind that this version does not know.
    #[error("it is of the unknown kind {0}")]
    Kind(u32),
}

/// Appends a number.
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Encodes a signed number as an unsigned one, with the sign in the lowest bit (zigzag encoding).
#[inline]
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Appends a signed number.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put(out, zigzag(value));
}

/// A byte and small numbers that are encoded in a register and appended together.
#[derive(Clone, Copy)]
pub(crate) struct Short {
    word: u64,
    bits: u32,
}

impl Short {
    /// The bounds below which a first and a second number fit.
    pub(crate) const FIRST: u64 = 1 << 28;
    pub(crate) const SECOND: u64 = 1 << 21;

    /// Returns an encoding that begins with this byte.
    #[inline]
    pub(crate) fn new(byte: u8) -> Short {
        Short { word: byte.into(), bits: 8 }
    }

    /// Appends a number.
    #[inline]
    pub(crate) fn put(mut self, mut value: u64) -> Short {
        while value >= 0x80 {
            self.word |= (value & 0x7f | 0x80) << (self.bits & 63);
            self.bits += 8;
            value >>= 7;
        }
        self.word |= value << (self.bits & 63);
        self.bits += 8;
        self
    }

    /// Appends the bytes to `out`.
    #[inline]
    pub(crate) fn end(self, out: &mut Vec<u8>) {
        // A copy of the whole register takes one instruction; a copy of a part would call a function.
        let end = out.len() + self.bits as usize / 8;
        out.extend_from_slice(&self.word.to_le_bytes());
        out.truncate(end);
    }
}

/// Appends a string.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

/// A reader of consecutive values.
pub(crate) struct Cursor<'b> {
    bytes: &'b [u8],
    pub(crate) at: usize,
}

impl<'b> Cursor<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Cursor<'b> {
        Cursor { bytes, at: 0 }
    }

    /// Returns a reader that begins at an offset.
    pub(crate) fn at(bytes: &'b [u8], at: usize) -> Cursor<'b> {
        Cursor { bytes, at }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// Returns the number of bytes that are left, which bounds the number of values that can follow.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.at)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Error> {
        let byte = *self.bytes.get(self.at).ok_or(Error::Value(self.at))?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Error> {
        let start = self.at;
        let (mut value, mut shift) = (0_u64, 0_u32);
        loop {
            let byte = self.byte()?;
            if shift > 63 || shift == 63 && byte > 1 {
                return Err(Error::Value(start));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            shift += 7;
        }
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Error> {
        let start = self.at;
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::Value(start)),
        }
    }

    pub(crate) fn small(&mut self) -> Result<u32, Error> {
        let start = self.at;
        u32::try_from(self.number()?).map_err(|_| Error::Value(start))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Error> {
        let value = self.number()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(crate) fn take(&mut self) -> Result<&'b [u8], Error> {
        let start = self.at;
        let len = usize::try_from(self.number()?).map_err(|_| Error::Value(start))?;
        let end = self.at.checked_add(len).ok_or(Error::Value(start))?;
        let found = self.bytes.get(self.at..end).ok_or(Error::Value(start))?;
        self.at = end;
        Ok(found)
    }

    pub(crate) fn text(&mut self) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(self.take()?).into_owned())
    }
}
