//! What a run folder tells of its run: all that `--recover` needs to know.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gprofinject_abi::COMMAND_FILE;
use serde::{Deserialize, Serialize};

use crate::options::{CountArg, EngineArg, HooksArg};
use crate::os::sys;
use crate::store::output::Naming;
use crate::store::private_folder::PrivateFolder;

const FILE: &str = "run.json";
/// More is damaged.
const LONGEST: u64 = 64 << 20;

/// What `--recover` needs to know of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entries {
    /// [`gprofinject_abi::VERSION`].
    pub(crate) version: u32,
    pub(crate) output: Naming,
    pub(crate) hooks: Option<HooksArg>,
    pub(crate) engine: EngineArg,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) min_size: u64,
    pub(crate) count: Option<CountArg>,
    pub(crate) files: Vec<String>,
    /// Samples per second.
    pub(crate) rate: u32,
    /// By the number of the plan.
    pub(crate) programs: Vec<Program>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Program {
    pub(crate) binary: PathBuf,
    pub(crate) shown: OsString,
}

/// Held open, and locked, as long as somebody looks after the run.
pub(crate) struct Logbook {
    folder: PrivateFolder,
    /// Beside the entries, which are replaced as a whole.
    _lock: File,
    pub(crate) entries: Entries,
}

const LOCK: &str = "lock";

/// Whether a gprofinject looks after the run.
pub(crate) fn is_looked_after(folder: &PrivateFolder) -> bool {
    folder.open_to_write(LOCK).is_ok_and(|lock| sys::is_locked(&lock))
}

impl Logbook {
    /// Begins a run's logbook. Its file is written with the first program.
    pub(crate) fn create(folder: &PrivateFolder, entries: Entries) -> io::Result<Logbook> {
        let lock = folder.create_file(LOCK)?;
        // Helpers that are forked may outlive this process, so they must not share the lock.
        sys::lock_for_process(&lock);
        if let Ok(command) = std::env::current_exe() {
            // Without the link nothing is lost but a convenience.
            let _ = folder.symlink(&command, COMMAND_FILE);
        }
        Ok(Logbook { folder: folder.clone(), _lock: lock, entries })
    }

    /// Enters the next program.
    pub(crate) fn add(&mut self, binary: &Path, shown: OsString) -> io::Result<()> {
        let binary = std::path::absolute(binary).unwrap_or_else(|_| binary.to_owned());
        self.entries.programs.push(Program { binary, shown });
        let text = serde_json::to_vec(&self.entries).map_err(io::Error::other)?;
        self.folder.replace(FILE, &text)
    }

    /// Opens what another process has left.
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
