//! The build of the program to which a profile belongs.

use std::fmt;

use crate::format::HEADER_LEN;

/// The first 12 bytes of the program's build-id (its GNU note of type 3, `ld --build-id`).
///
/// In a file they are in the 12 bytes of the header that gprof and glibc leave unused (binutils
/// `gprof/gmon_out.h`, `gmon_hdr.spare`). A shorter build-id is padded with zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId([u8; BuildId::LEN]);

/// The error for profiles or programs of two builds, whose addresses have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("build-id {other}.. after {first}.., expected one build of one program")]
pub struct BuildMismatch {
    pub first: BuildId,
    pub other: BuildId,
}

impl BuildId {
    /// The number of bytes that are kept.
    pub const LEN: usize = HEADER_LEN - 8;
    /// All zeros, as in files of other writers and for programs without a build-id.
    pub const UNKNOWN: BuildId = BuildId([0; BuildId::LEN]);

    /// Returns the build-id for the bytes of a whole one, or for the header's spare bytes. Longer ones are
    /// cut off.
    pub fn new(bytes: &[u8]) -> BuildId {
        let mut id = [0; BuildId::LEN];
        id.iter_mut().zip(bytes).for_each(|(to, &from)| *to = from);
        BuildId(id)
    }

    /// Whether the build-id is known.
    pub fn is_known(self) -> bool {
        self != BuildId::UNKNOWN
    }

    /// Returns the bytes as in the header.
    pub fn bytes(self) -> [u8; BuildId::LEN] {
        self.0
    }

    /// Returns the build-id that is known.
    ///
    /// # Errors
    /// Both are known and differ.
    pub fn agree(self, other: BuildId) -> Result<BuildId, BuildMismatch> {
        match (self.is_known(), other.is_known()) {
            (true, true) if self != other => Err(BuildMismatch { first: self, other }),
            (true, _) => Ok(self),
            (false, _) => Ok(other),
        }
    }
}

/// Formats the build-id in hexadecimal, as `file` and `readelf -n` do.
impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_off_or_filled_up() {
        let long: Vec<u8> = (1..=20).collect();
        assert_eq!(BuildId::new(&long).to_string(), "0102030405060708090a0b0c");
        assert_eq!(BuildId::new(&[0xab]).to_string(), "ab0000000000000000000000");
        assert!(!BuildId::new(&[]).is_known());
    }

    #[test]
    fn unknown_agrees_with_all() {
        let (a, b) = (BuildId::new(&[1]), BuildId::new(&[2]));
        assert_eq!(a.agree(BuildId::UNKNOWN), Ok(a));
        assert_eq!(BuildId::UNKNOWN.agree(a), Ok(a));
        assert_eq!(a.agree(a), Ok(a));
        assert_eq!(a.agree(b), Err(BuildMismatch { first: a, other: b }));
    }
}
