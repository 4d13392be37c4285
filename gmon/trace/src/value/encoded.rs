//! The encoding of values as bytes. The first byte is the type of the encoding:
//!
//! | first byte | meaning, and the bytes that follow |
//! |---|---|
//! | 0 | unreadable: the address, 8 bytes |
//! | 1 | scalar: 8 bytes, little-endian |
//! | 2 | text: flags (bit 0: cut off), length, and that number of bytes |
//! | 3 | object: length, and that number of bytes |

/// A value in a trace, without its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded<'b> {
    /// The value could not be read from memory at this address.
    Unreadable(u64),
    /// The value of a register or of a word.
    Scalar(u64),
    /// A string.
    Text {
        /// The string's bytes, without a terminator.
        bytes: &'b [u8],
        /// Whether the string is longer than these bytes.
        is_cut: bool,
    },
    /// An object.
    Bytes(&'b [u8]),
}

const UNREADABLE: u8 = 0;
const SCALAR: u8 = 1;
const TEXT: u8 = 2;
const BYTES: u8 = 3;
/// Bit of the flags of a text: the text is cut off.
const CUT: u8 = 1;

impl Encoded<'_> {
    /// Appends the encoded value. A text or an object is truncated to 255 bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        let short = |bytes: &[u8]| bytes.len().min(usize::from(u8::MAX));
        match *self {
            Encoded::Unreadable(address) => {
                out.push(UNREADABLE);
                out.extend_from_slice(&address.to_le_bytes());
            }
            Encoded::Scalar(value) => {
                out.push(SCALAR);
                out.extend_from_slice(&value.to_le_bytes());
            }
            Encoded::Text { bytes, is_cut } => {
                let len = short(bytes);
                out.extend_from_slice(&[TEXT, u8::from(is_cut || len < bytes.len()) * CUT, len as u8]);
                out.extend_from_slice(bytes.get(..len).unwrap_or_default());
            }
            Encoded::Bytes(bytes) => {
                let len = short(bytes);
                out.extend_from_slice(&[BYTES, len as u8]);
                out.extend_from_slice(bytes.get(..len).unwrap_or_default());
            }
        }
    }
}

/// An iterator over consecutive encoded values. It ends at the first incomplete one.
#[derive(Clone, Debug)]
pub struct Values<'b> {
    rest: &'b [u8],
}

impl<'b> Values<'b> {
    /// Returns the values in the bytes of an [`Event::Data`](crate::Event::Data).
    pub fn new(bytes: &'b [u8]) -> Values<'b> {
        Values { rest: bytes }
    }

    fn take(&mut self) -> Option<Encoded<'b>> {
        let (&tag, rest) = self.rest.split_first()?;
        let word = || Some((u64::from_le_bytes(rest.get(..8)?.try_into().ok()?), rest.get(8..)?));
        let sized = |rest: &'b [u8]| {
            let (&len, rest) = rest.split_first()?;
            rest.split_at_checked(usize::from(len))
        };
        let (value, rest) = match tag {
            UNREADABLE => word().map(|(address, rest)| (Encoded::Unreadable(address), rest))?,
            SCALAR => word().map(|(value, rest)| (Encoded::Scalar(value), rest))?,
            TEXT => {
                let (&flags, rest) = rest.split_first()?;
                let (bytes, rest) = sized(rest)?;
                (Encoded::Text { bytes, is_cut: flags & CUT != 0 }, rest)
            }
            BYTES => sized(rest).map(|(bytes, rest)| (Encoded::Bytes(bytes), rest))?,
            _ => return None,
        };
        self.rest = rest;
        Some(value)
    }
}

impl<'b> Iterator for Values<'b> {
    type Item = Encoded<'b>;

    fn next(&mut self) -> Option<Encoded<'b>> {
        let value = self.take();
        if value.is_none() {
            self.rest = &[];
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_each_kind() {
        let values = [
            Encoded::Unreadable(0x1234),
            Encoded::Scalar(u64::MAX - 1),
            Encoded::Text { bytes: b"ab", is_cut: true },
            Encoded::Bytes(&[7, 8]),
        ];
        let mut out = Vec::new();
        values.iter().for_each(|value| value.put(&mut out));
        let expected = [
            &[0, 0x34, 0x12, 0, 0, 0, 0, 0, 0][..],
            &[1, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[2, 1, 2, b'a', b'b'],
            &[3, 2, 7, 8],
        ];
        assert_eq!(out, expected.concat());
        assert_eq!(Values::new(&out).collect::<Vec<_>>(), values);
    }

    #[test]
    fn long_texts_are_cut() {
        let mut out = Vec::new();
        Encoded::Text { bytes: &[b'a'; 300], is_cut: false }.put(&mut out);
        let found: Vec<_> = Values::new(&out).collect();
        assert_eq!(found, [Encoded::Text { bytes: &[b'a'; 255], is_cut: true }]);
    }

    #[test]
    fn incomplete_values_end() {
        let mut out = Vec::new();
        Encoded::Scalar(1).put(&mut out);
        Encoded::Text { bytes: b"abc", is_cut: false }.put(&mut out);
        for len in 0..out.len() {
            let found = Values::new(&out[..len]).count();
            assert_eq!(found, usize::from(len >= 9), "{len}");
        }
        assert_eq!(Values::new(&[9, 1, 1, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
    }
}
