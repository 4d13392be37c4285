//! The bytes of a trace, by their offsets: a file need not be in memory.

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
        /// How much of it is read.
        len: u64,
    },
}

impl Input {
    /// Returns the input that reads a regular file, as long as it is now.
    ///
    /// # Errors
    /// Its length cannot be found out.
    pub fn file(file: File) -> io::Result<Input> {
        let len = file.metadata()?.len();
        Ok(Input::File { file, len })
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Input::Bytes(bytes) => bytes.len() as u64,
            Input::File { len, .. } => *len,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Replaces `into` with up to `len` bytes from an offset on: fewer if there are no more, or if the rest cannot be read.
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
