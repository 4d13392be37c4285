//! The logbook in a run folder: everything about the run that `--recover` needs to know.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gprofinject_abi::COMMAND_FILE;
use serde::{Deserialize, Serialize};

use crate::options::{CountArg, EngineArg, HooksArg, Measure};
use crate::os::sys;
use crate::store::output::Naming;
use crate::store::private_folder::PrivateFolder;
use crate::store::purpose::Purpose;

const FILE: &str = "run.json";
/// The longest logbook in bytes. A longer one is damaged.
const LONGEST: u64 = 64 << 20;

/// What `--recover` needs to know about a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entries {
    /// [`gprofinject_abi::VERSION`].
    pub(crate) version: u32,
    pub(crate) output: Naming,
    pub(crate) hooks: Option<HooksArg>,
    pub(crate) engine: EngineArg,
    pub(crate) measure: Option<Measure>,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) min_size: u64,
    pub(crate) count: Option<CountArg>,
    pub(crate) files: Vec<String>,
    /// `--libs` as typed.
    pub(crate) libs: String,
    /// Whether the processor keeps shadow stacks for the processes, or may do so.
    pub(crate) shadow_stacks: bool,
    /// The values of `--outermost`.
    pub(crate) outermost: Vec<String>,
    /// `--values` as typed.
    #[serde(default)]
    pub(crate) values: Option<String>,
    /// What the run is known by, and when it began, in nanoseconds since 1970 (UTC).
    #[serde(default)]
    pub(crate) origin: Option<(u64, u64)>,
    /// Whether the first process ran already.
    pub(crate) running: bool,
    /// The link address at which the arena of the first program begins, if it is not in the usual place.
    pub(crate) arena: Option<u64>,
    /// The samples per second of CPU time.
    pub(crate) rate: u32,
    /// The programs, by the numbers of their plans.
    pub(crate) programs: Vec<Program>,
    /// The files of the libraries and what they were planned for, by the numbers of their plans.
    pub(crate) libraries: Vec<(PathBuf, Purpose)>,
}

/// A program in the logbook.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) binary: PathBuf,
    pub(crate) shown: OsString,
    /// What tells what was planned from other plans.
    pub(crate) label: String,
}

/// The logbook of a run. It is open and locked as long as a gprofinject looks after the run.
pub(crate) struct Logbook {
    folder: PrivateFolder,
    /// The locked file. The entries are in another file, which is replaced as a whole.
    _lock: File,
    pub(crate) entries: Entries,
}

const LOCK: &str = "lock";

/// Whether a gprofinject looks after the run.
pub(crate) fn is_looked_after(folder: &PrivateFolder) -> bool {
    folder.open_to_write(LOCK).is_ok_and(|lock| sys::is_locked(&lock))
}

impl Logbook {
    /// Begins the logbook of a run. Its file is written with the first program.
    ///
    /// # Errors
    /// The lock's file cannot be made.
    pub(crate) fn create(folder: &PrivateFolder, entries: Entries) -> io::Result<Logbook> {
        let lock = folder.create_file(LOCK)?;
        // Helpers that are forked may outlive this process, so they must not share the lock.
        sys::lock_for_process(&lock);
        if let Ok(command) = std::env::current_exe() {
            // The link is only a convenience.
            let _ = folder.symlink(&command, COMMAND_FILE);
        }
        Ok(Logbook { folder: folder.clone(), _lock: lock, entries })
    }

    /// Enters the next program.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn add(&mut self, binary: &Path, shown: OsString, label: String) -> io::Result<()> {
        let binary = std::path::absolute(binary).unwrap_or_else(|_| binary.to_owned());
        self.entries.programs.push(Program { binary, shown, label });
        self.write()
    }

    /// Enters the next library.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn add_library(&mut self, binary: &Path, purpose: Purpose) -> io::Result<()> {
        self.entries.libraries.push((binary.to_owned(), purpose));
        self.write()
    }

    fn write(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.entries).map_err(io::Error::other)?;
        self.folder.replace(FILE, &text)
    }

    /// Opens the logbook that another process has left.
    ///
    /// # Errors
    /// There is none, it is damaged, another version of gprofinject has written it, or a gprofinject looks
    /// after the run.
    pub(crate) fn open(folder: &PrivateFolder) -> Result<Logbook> {
        let shown = folder.path().display();
        let text = folder.read(FILE, LONGEST).with_context(|| {
            format!("{shown} is not the folder of a run (it has no {FILE} that can be read)")
        })?;
        let entries: Entries =
            serde_json::from_slice(&text).with_context(|| format!("{shown}/{FILE} is damaged"))?;
        if entries.version != gprofinject_abi::VERSION {
            bail!("{shown} was made by another version of gprofinject; use that one");
        }
        let lock = folder.open_to_write(LOCK).context("the run's lock cannot be opened")?;
        if !sys::lock_for_process(&lock) {
            bail!("{shown} belongs to a gprofinject that still runs; it will write the profiles");
        }
        Ok(Logbook { folder: folder.clone(), _lock: lock, entries })
    }
}
