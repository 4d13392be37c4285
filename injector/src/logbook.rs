//! What a run folder tells of its run: all that `--recover` needs to know.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gprofinject_abi::COMMAND_FILE;
use serde::{Deserialize, Serialize};

use crate::args::{CountArg, EngineArg, HooksArg};
use crate::output::Naming;
use crate::region;
use crate::settings::Settings;
use crate::sys;

const FILE: &str = "run.json";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Entries {
    version: u32,
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
    path: PathBuf,
    /// Beside the entries, which are replaced as a whole.
    _lock: File,
    pub(crate) entries: Entries,
}

const LOCK: &str = "lock";

/// Whether a gprofinject looks after the run.
pub(crate) fn is_looked_after(folder: &Path) -> bool {
    open_lock(folder).is_ok_and(|lock| sys::is_locked(&lock))
}

fn open_lock(folder: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(folder.join(LOCK))
}

impl Logbook {
    pub(crate) fn create(folder: &Path, settings: &Settings, rate: u32) -> io::Result<Logbook> {
        let lock = region::create_private(&folder.join(LOCK))?;
        // Not a helper's that we fork: it may outlive us.
        sys::lock_for_process(&lock);
        if let Ok(command) = std::env::current_exe() {
            // Without it nothing is lost but a convenience.
            let _ = std::os::unix::fs::symlink(command, folder.join(COMMAND_FILE));
        }
        let (include, exclude, min_size) = settings.filters.typed();
        let entries = Entries {
            version: gprofinject_abi::VERSION,
            output: settings.output.absolute(),
            hooks: settings.hooks,
            engine: settings.engine,
            include,
            exclude,
            min_size,
            count: settings.filters.count(),
            files: settings.filters.files(),
            rate,
            programs: Vec::new(),
        };
        Ok(Logbook { path: folder.join(FILE), _lock: lock, entries })
    }

    /// Enters the next program.
    pub(crate) fn add(&mut self, binary: &Path, shown: OsString) -> io::Result<()> {
        let binary = std::path::absolute(binary).unwrap_or_else(|_| binary.to_owned());
        self.entries.programs.push(Program { binary, shown });
        let text = serde_json::to_vec(&self.entries).map_err(io::Error::other)?;
        let fresh = self.path.with_extension("new");
        std::fs::write(&fresh, text)?;
        std::fs::rename(&fresh, &self.path)
    }

    /// Opens what another process has left.
    pub(crate) fn open(folder: &Path) -> Result<Logbook> {
        let path = folder.join(FILE);
        let text = std::fs::read(&path).with_context(|| {
            format!("{} is not the folder of a run (it has no {FILE} that can be read)", folder.display())
        })?;
        let entries: Entries =
            serde_json::from_slice(&text).with_context(|| format!("{} is damaged", path.display()))?;
        if entries.version != gprofinject_abi::VERSION {
            bail!("{} was made by another version of gprofinject; use that one", folder.display());
        }
        let lock = open_lock(folder).context("the run's lock cannot be opened")?;
        if !sys::lock_for_process(&lock) {
            bail!(
                "{} belongs to a gprofinject that still runs; it will write the profiles",
                folder.display()
            );
        }
        Ok(Logbook { path, _lock: lock, entries })
    }
}
