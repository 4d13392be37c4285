//! Reads the bytes of a trace at given offsets, from memory or from a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Where a trace is read from.
#[derive(Debug)]
pub enum Input {
    /// All bytes are in memory.
    Bytes(Vec<u8>),
    /// A regular file.
    File {
        /// The file.
        file: File,
        /// The length of the part that is read.
        len: u64,
    },
}

impl Input {
    /// Returns an input that reads a regular file, up to its present length.
    ///
    /// # Errors
    /// Returns an error if the file's length cannot be determined.
    pub fn file(file: File) -> io::Result<Input> {
        let len = file.metadata()?.len();
        Ok(Input::File { file, len })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Input::Bytes(bytes) => bytes.len() as u64,
            Input::File { len, .. } => *len,
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces the contents of `into` with `len` bytes from `offset` on, or with fewer if the input ends or cannot be read.
    pub(crate) fn read(&self, offset: u64, len: usize, into: &mut Vec<u8>) {
        into.clear();
        let left = usize::try_from(self.len().saturating_sub(offset)).unwrap_or(usize::MAX);
        let len = len.min(left);
        match self {
            Input::Bytes(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                into.extend_from_slice(bytes.get(start..start.saturating_add(len)).unwrap_or_default());
            }
            Input::File { file, .. } => {
                into.resize(len, 0);
                let mut done = 0;
                while done < len {
                    match file.read_at(into.get_mut(done..).unwrap_or_default(), offset + done as u64) {
                        Ok(0) => break,
                        Ok(more) => done += more,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(_) => break,
                    }
                }
                into.truncate(done);
            }
        }
    }
}
