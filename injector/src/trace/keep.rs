//! Where chunks go: to a file at once, or into memory until they are to be written.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use gmon::output::Target;
use gmon_trace::FILE_HEADER;

/// The greatest number of files that are written while the program runs.
const FILES: u32 = 100;

/// The chunks of a trace.
pub(crate) enum Sink {
    /// All of them are in a file.
    File { file: File, written: u64, error: Option<io::Error> },
    /// The last ones are in memory.
    Kept(Kept),
}

/// The last chunks of a trace.
pub(crate) struct Kept {
    path: PathBuf,
    target: Target,
    /// Chunks that say what numbers mean, which are needed to read any others.
    lasting: Vec<u8>,
    recent: VecDeque<Vec<u8>>,
    recent_bytes: u64,
    bytes_max: u64,
    /// The number of chunks that were dropped.
    pub(crate) dropped: u64,
    /// The number of files that were written.
    files: u32,
}

impl Sink {
    /// Begins a file.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn file(target: &Target) -> io::Result<Sink> {
        let file = target.begin(&FILE_HEADER)?;
        Ok(Sink::File { file, written: FILE_HEADER.len() as u64, error: None })
    }

    /// Keeps the last chunks, of at most so many bytes together.
    pub(crate) fn kept(path: &Path, target: Target, bytes_max: u64) -> Sink {
        Sink::Kept(Kept {
            path: path.to_owned(),
            target,
            lasting: FILE_HEADER.to_vec(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            bytes_max,
            dropped: 0,
            files: 0,
        })
    }

    /// Adds an encoded chunk. `lasts`: whether others cannot be read without it.
    pub(crate) fn add(&mut self, chunk: Vec<u8>, lasts: bool) {
        match self {
            Sink::File { file, written, error: error @ None } => match file.write_all(&chunk) {
                Ok(()) => *written += chunk.len() as u64,
                Err(failed) => *error = Some(failed),
            },
            Sink::File { .. } => {}
            Sink::Kept(kept) if lasts => kept.lasting.extend_from_slice(&chunk),
            Sink::Kept(kept) => {
                kept.recent_bytes += chunk.len() as u64;
                kept.recent.push_back(chunk);
                while kept.recent_bytes + kept.lasting.len() as u64 > kept.bytes_max
                    && let Some(oldest) = kept.recent.pop_front()
                {
                    kept.recent_bytes -= oldest.len() as u64;
                    kept.dropped += 1;
                }
            }
        }
    }
}

impl Kept {
    /// Writes what is kept to a file: the first time to the one that the user has named, and then to others beside it. Returns the
    /// file's name.
    ///
    /// # Errors
    /// The file cannot be written, or there are too many.
    pub(crate) fn write(&mut self) -> io::Result<PathBuf> {
        if self.files >= FILES {
            return Err(io::Error::other(format!("{FILES} files have been written already")));
        }
        self.files += 1;
        let mut bytes = self.lasting.clone();
        self.recent.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
        if self.files == 1 {
            self.target.write(&bytes)?;
            return Ok(self.path.clone());
        }
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{}", self.files));
        let path = PathBuf::from(name);
        Target::check(&path)?.write(&bytes)?;
        Ok(path)
    }

    /// The number of bytes that a file has which is written now.
    pub(crate) fn bytes(&self) -> u64 {
        self.lasting.len() as u64 + self.recent_bytes
    }

    /// Whether nothing has been written yet.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.files == 0
    }
}
