//! The folder with the entries, and the limits on their number and size.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{self, Mode};

use crate::os::sys::ARENA;
use crate::program::plan_cache::entry::{self, Source};
use crate::program::plan_cache::key::{FILE, Key, PLAN};
use crate::store::private_folder::{Distrust, PrivateFolder};

/// The folders that are created if they are missing: `gprofinject`, and the folder of all caches.
const MADE: usize = 2;

/// The suffix of a file that is not complete.
const UNFINISHED: &str = ".new";
/// The age in seconds from which an incomplete file belongs to a writer that was killed.
const ABANDONED: i64 = 3600;

/// The limits on what is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) bytes: u64,
    /// The space in bytes that stays free for other uses.
    pub(super) free: u64,
}

/// The bytes that are kept unless the user says otherwise.
const BYTES: u64 = 1 << 30;
/// The space that stays free for other uses.
const FREE: u64 = 256 << 20;

/// The folder with the entries.
#[derive(Debug)]
pub(super) struct Shelf {
    folder: PrivateFolder,
    bounds: Bounds,
}

/// Opens the folder, and creates it if it is missing. `bytes` is how much is kept, unless that is the usual amount.
///
/// # Errors
/// The folder is not private.
pub(super) fn open(path: &Path, bytes: Option<u64>) -> Result<Shelf, Distrust> {
    let bounds = Bounds { bytes: bytes.unwrap_or(BYTES), free: FREE };
    Ok(Shelf { folder: PrivateFolder::open_own(path, MADE)?, bounds })
}

impl Shelf {
    /// Keeps a plan, replaces an older entry of this key, and removes entries beyond the limits. Other
    /// processes may do the same at the same time: each writes a file of its own, which gets the entry's name
    /// when it is complete.
    ///
    /// # Errors
    /// The entry cannot be written.
    pub(super) fn keep(&self, key: &Key, source: &Source) -> io::Result<()> {
        self.keep_written(key, |file| entry::write(file, key, source, self.bounds.bytes))
    }

    fn keep_written(&self, key: &Key, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        if self.folder.free_space()? < self.bounds.free {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let name = entry::name(key);
        let fresh = format!("{name}-{}{UNFINISHED}", std::process::id());
        let mut file = self.folder.create_file(&fresh)?;
        // The umask may have removed permissions that an entry must have.
        let written = fs::fchmod(&file, Mode::RUSR | Mode::WUSR)
            .map_err(io::Error::from)
            .and_then(|()| write(&mut file))
            .and_then(|()| self.folder.rename(&fresh, &name));
        if written.is_err() {
            let _ = self.folder.remove_file(&fresh);
        }
        self.tidy()?;
        written
    }

    /// Removes the entries that were not used for the longest time until the rest is within the limits, and
    /// the incomplete files of killed writers. Files with other names stay.
    fn tidy(&self) -> io::Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let mut entries = Vec::new();
        for name in self.folder.names()? {
            // Another gprofinject may have removed it.
            let Ok(stat) = self.folder.stat(&name) else { continue };
            let is_abandoned = now.abs_diff(stat.st_mtime) > ABANDONED as u64;
            if name.ends_with(UNFINISHED) && is_abandoned {
                let _ = self.folder.remove_file(&name);
            } else if [PLAN, FILE, ARENA].iter().any(|suffix| name.ends_with(suffix)) {
                entries.push(((stat.st_atime, stat.st_atime_nsec), stat.st_size as u64, name));
            }
        }
        entries.sort_unstable();
        // From the entry that was used last.
        let mut bytes = 0_u64;
        for (_, size, name) in entries.iter().rev() {
            bytes = bytes.saturating_add(*size);
            if bytes > self.bounds.bytes {
                let _ = self.folder.remove_file(name);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
