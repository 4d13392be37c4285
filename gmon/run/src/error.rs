//! Why bytes are no recording.

use std::io;

use prost::DecodeError;

use crate::check::Invalid;
use crate::wire;

/// The largest decompressed size of a file, in bytes.
pub(crate) const MAX_SIZE: u64 = 2 << 30;
/// The most memory that what was decoded may take, in bytes.
pub(crate) const MAX_MEMORY: u64 = 4 << 30;

/// The reason why bytes are no recording.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    #[error("begins with {0:02x?}, expected 1f 8b, as a file compressed with gzip begins")]
    NotGzip(Vec<u8>),
    #[error("damaged, at offset {offset} of the decompressed file: {source}")]
    Gzip { offset: u64, source: io::Error },
    #[error("larger when decompressed than such a file can be: {} GiB, or 128 times its length", MAX_SIZE >> 30)]
    TooLarge,
    #[error("what it contains would take more than {} GiB of memory", MAX_MEMORY >> 30)]
    TooMuchMemory,
    #[error("cut off or damaged, at offset {offset} of the decompressed file: {what}")]
    Field { offset: u64, what: &'static str },
    #[error("damaged, before offset {offset} of the decompressed file: {source}")]
    Message { offset: u64, source: DecodeError },
    #[error("no profile in pprof's format")]
    NotPprof,
    #[error("no recording of gprofinject: another program's pprof file?")]
    Foreign,
    #[error("version {0} of the recording, expected {known}: written by another version of gprofinject", known = wire::VERSION)]
    Version(u32),
    #[error("{table} {index}: {what}")]
    Entry { table: &'static str, index: usize, what: &'static str },
    #[error("{table}: {len} elements in column {column}, expected {expected}")]
    Column { table: &'static str, column: &'static str, len: usize, expected: usize },
    #[error(transparent)]
    Invalid(#[from] Invalid),
}
