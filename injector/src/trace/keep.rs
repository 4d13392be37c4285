//! The destination of chunks: a file, or memory from which they are written on request (a flight recorder).

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use gmon::output::Target;
use gmon_trace::FILE_HEADER;

/// The maximum number of files that are written while the program runs.
pub(crate) const FILES: u32 = 100;

/// The destination of a trace's chunks.
pub(crate) enum Sink {
    /// Chunks are written to a file at once.
    File { file: File, written: u64, error: Option<io::Error> },
    /// The last chunks are kept in memory.
    Kept(Kept),
}

/// The role of a chunk, which determines whether it can be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The chunk is about the whole trace.
    Start,
    /// Other chunks of this process cannot be read without the chunk.
    Defines(u32),
    /// The chunk has the rate of the time stamp counter. Only the last one is needed.
    Rate,
    /// The chunk has a reading of this process's clock. Only the first and the last one are needed.
    Clock(u32),
    /// The chunk is the last one about this process.
    Ends(u32),
    /// The chunk has events of this process, and can be dropped.
    Happens(u32),
}

/// The last chunks of a trace.
pub(crate) struct Kept {
    path: PathBuf,
    target: Target,
    start: Vec<u8>,
    rate: Vec<u8>,
    /// The chunks that are needed to read the recent ones, by process.
    lasting: BTreeMap<u32, Lasting>,
    /// The chunks with events, each with its process.
    recent: VecDeque<(u32, Vec<u8>)>,
    /// The bytes of all chunks.
    bytes: u64,
    bytes_max: u64,
    /// The number of chunks that were dropped.
    pub(crate) dropped: u64,
    /// The number of files that were written.
    files: u32,
}

/// The chunks that are needed to read the other chunks of a process.
#[derive(Default)]
struct Lasting {
    definitions: Vec<u8>,
    /// The first and the last reading of the process's clock.
    clocks: [Vec<u8>; 2],
    /// The number of recent chunks of the process.
    chunks: usize,
    has_ended: bool,
}

impl Lasting {
    fn parts(&self) -> [&[u8]; 3] {
        let [first, last] = &self.clocks;
        [&self.definitions, first, last]
    }

    fn bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.len() as u64).sum()
    }
}

impl Sink {
    /// Creates the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(crate) fn file(target: &Target) -> io::Result<Sink> {
        let file = target.begin(&FILE_HEADER)?;
        Ok(Sink::File { file, written: FILE_HEADER.len() as u64, error: None })
    }

    /// Returns a sink that keeps the last chunks, of at most `bytes_max` bytes in all.
    pub(crate) fn kept(path: &Path, target: Target, bytes_max: u64) -> Sink {
        Sink::Kept(Kept {
            path: path.to_owned(),
            target,
            start: FILE_HEADER.to_vec(),
            rate: Vec::new(),
            lasting: BTreeMap::new(),
            recent: VecDeque::new(),
            bytes: FILE_HEADER.len() as u64,
            bytes_max,
            dropped: 0,
            files: 0,
        })
    }

    /// Adds an encoded chunk.
    pub(crate) fn add(&mut self, chunk: Vec<u8>, role: Role) {
        match self {
            Sink::File { file, written, error: error @ None } => match file.write_all(&chunk) {
                Ok(()) => *written += chunk.len() as u64,
                Err(failed) => *error = Some(failed),
            },
            Sink::File { .. } => {}
            Sink::Kept(kept) => kept.add(chunk, role),
        }
    }
}

impl Kept {
    fn add(&mut self, chunk: Vec<u8>, role: Role) {
        self.bytes += chunk.len() as u64;
        match role {
            Role::Start => self.start.extend_from_slice(&chunk),
            Role::Rate => self.bytes -= std::mem::replace(&mut self.rate, chunk).len() as u64,
            Role::Defines(process) => self.of(process).definitions.extend_from_slice(&chunk),
            Role::Clock(process) => {
                let [first, last] = &mut self.of(process).clocks;
                let place = if first.is_empty() { first } else { last };
                let old = std::mem::replace(place, chunk).len() as u64;
                self.bytes -= old;
            }
            Role::Ends(process) => {
                let lasting = self.of(process);
                lasting.definitions.extend_from_slice(&chunk);
                lasting.has_ended = true;
                self.forget_if_over(process);
            }
            Role::Happens(process) => {
                self.of(process).chunks += 1;
                self.recent.push_back((process, chunk));
            }
        }
        while self.bytes > self.bytes_max
            && let Some((process, oldest)) = self.recent.pop_front()
        {
            self.bytes -= oldest.len() as u64;
            self.dropped += 1;
            self.of(process).chunks -= 1;
            self.forget_if_over(process);
        }
    }

    fn of(&mut self, process: u32) -> &mut Lasting {
        self.lasting.entry(process).or_default()
    }

    /// Drops the definitions of a process that has ended and has no more recent chunks: a run may have any number of processes.
    fn forget_if_over(&mut self, process: u32) {
        if self.lasting.get(&process).is_some_and(|lasting| lasting.has_ended && lasting.chunks == 0)
            && let Some(lasting) = self.lasting.remove(&process)
        {
            self.bytes -= lasting.bytes();
        }
    }

    /// Writes the kept chunks to a file: first to the one that the user has named, and later to others beside it. Returns the file's
    /// name.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written, or too many files were written.
    pub(crate) fn write(&mut self) -> io::Result<PathBuf> {
        if self.files >= FILES {
            return Err(io::Error::other(format!("{FILES} files have been written already")));
        }
        self.files += 1;
        let path = match self.files {
            1 => self.path.clone(),
            number => {
                let mut name = self.path.clone().into_os_string();
                name.push(format!(".{number}"));
                PathBuf::from(name)
            }
        };
        let other = (self.files > 1).then(|| Target::check(&path)).transpose()?;
        // The chunks are not copied, because they may take half of the memory.
        let mut head = [self.start.as_slice(), &self.rate].concat();
        self.lasting.values().flat_map(Lasting::parts).for_each(|part| head.extend_from_slice(part));
        let mut file = other.as_ref().unwrap_or(&self.target).begin(&head)?;
        self.recent.iter().try_for_each(|(_, chunk)| file.write_all(chunk))?;
        Ok(path)
    }

    /// Returns the number of bytes that a file would have if it were written now.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether a further file can be written.
    pub(crate) fn has_files_left(&self) -> bool {
        self.files < FILES
    }

    /// Returns whether no file has been written yet.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.files == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(bytes_max: u64) -> Kept {
        let path = Path::new("/dev/null");
        match Sink::kept(path, Target::check(path).expect("anyone can write there"), bytes_max) {
            Sink::Kept(kept) => kept,
            Sink::File { .. } => unreachable!(),
        }
    }

    #[test]
    fn what_ended_processes_have_defined_goes_with_their_last_chunk() {
        let mut kept = kept(10_000);
        kept.add(vec![0; 10], Role::Start);
        for process in 0..1000 {
            kept.add(vec![1; 300], Role::Defines(process));
            kept.add(vec![2; 40], Role::Clock(process));
            kept.add(vec![3; 100], Role::Happens(process));
            kept.add(vec![4; 40], Role::Ends(process));
            assert!(kept.bytes() <= 10_000, "{process}: {}", kept.bytes());
        }
        assert!(kept.lasting.len() >= 20, "{} processes", kept.lasting.len());
        assert_eq!(kept.lasting.len(), kept.recent.len());
        let parts = kept.lasting.values().map(Lasting::bytes).sum::<u64>();
        let chunks = kept.recent.iter().map(|(_, chunk)| chunk.len() as u64).sum::<u64>();
        assert_eq!(kept.bytes(), kept.start.len() as u64 + parts + chunks);
    }

    #[test]
    fn of_the_times_of_a_clock_the_first_and_the_last_are_kept() {
        let mut kept = kept(1 << 20);
        for time in 0..=255 {
            kept.add(vec![time; 40], Role::Clock(7));
        }
        assert_eq!(kept.lasting[&7].clocks, [vec![0; 40], vec![255; 40]]);
        assert_eq!(kept.bytes(), FILE_HEADER.len() as u64 + 80);
    }
}
