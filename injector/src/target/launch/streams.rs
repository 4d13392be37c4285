//! The standard streams of a program while a view fills the terminal that they would lead to.
#![allow(unsafe_code, reason = "descriptors are replaced in a new process")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::os::terminal;

/// What replaces the standard streams of the program.
#[derive(Default)]
pub(crate) struct Streams {
    /// Replaces standard input: nothing can be read there. The view reads what the user types.
    input: Option<File>,
    /// Replaces standard output and standard error, a file without a name.
    pub(crate) output: Option<File>,
    /// Which streams are replaced.
    replaced: [bool; 3],
}

impl Streams {
    /// Returns what replaces those standard streams of this process that are terminals. All others stay as they are.
    ///
    /// # Errors
    /// There is no room for the program's output.
    pub(crate) fn apart() -> io::Result<Streams> {
        let replaced =
            [terminal::is_one(io::stdin()), terminal::is_one(io::stdout()), terminal::is_one(io::stderr())];
        let input = if replaced[0] { Some(File::open("/dev/null")?) } else { None };
        let output = if replaced[1] || replaced[2] { Some(tempfile::tempfile()?) } else { None };
        if let Some(output) = &output {
            // Both streams write at the end, and so do children that open it again.
            rustix::fs::fcntl_setfl(output, rustix::fs::OFlags::APPEND)?;
        }
        Ok(Streams { input, output, replaced })
    }

    /// Replaces the streams of this process, which is about to execute the program.
    pub(super) fn give(&self) {
        let files = [&self.input, &self.output, &self.output];
        for (stream, file) in (0..).zip(files).filter(|&(stream, _)| self.replaced[stream as usize]) {
            if let Some(file) = file {
                // SAFETY: this process is about to execute another program, and uses its standard streams no more. The new
                // descriptor stays open there, and the one in `file` does not.
                unsafe { libc::dup2(file.as_raw_fd(), stream) };
            }
        }
    }
}
