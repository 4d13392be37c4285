//! The folder with the entries, and the limits on their number and size.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{self, Mode, Stat};

use crate::os::sys::{self, ARENA};
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
    /// When this run began, in seconds since 1970. What it uses stays: a program whose plans have no room would otherwise find none of
    /// them next time, because those that are read first are those that were not used for the longest time.
    pub(super) since: i64,
}

/// The bytes that are kept unless the user says otherwise.
const BYTES: u64 = 1 << 30;
/// The space that stays free for other uses.
const FREE: u64 = 256 << 20;
/// The limits are enforced when this part of what may be kept was written.
const PARTS: u64 = 16;

/// The folder with the entries.
#[derive(Debug)]
pub(super) struct Shelf {
    folder: PrivateFolder,
    bounds: Bounds,
    /// The names of the entries that were written, in this order.
    written: RefCell<Vec<String>>,
    /// The bytes that were written since the limits were last enforced.
    unchecked: Cell<u64>,
    /// Whether an entry was removed because the plans that this run uses fill the folder.
    full: Cell<bool>,
}

/// Opens the folder, and creates it if it is missing. `bytes` is how much is kept, unless that is the usual amount; `since` is when this
/// run began.
///
/// # Errors
/// The folder is not private.
pub(super) fn open(path: &Path, bytes: Option<u64>, since: i64) -> Result<Shelf, Distrust> {
    let bounds = Bounds { bytes: bytes.unwrap_or(BYTES), free: FREE, since };
    Ok(Shelf::new(PrivateFolder::open_own(path, MADE)?, bounds))
}

impl Shelf {
    fn new(folder: PrivateFolder, bounds: Bounds) -> Shelf {
        Shelf {
            folder,
            bounds,
            written: RefCell::default(),
            unchecked: Cell::default(),
            full: Cell::new(false),
        }
    }

    /// Whether plans of this run have no room.
    pub(super) fn is_full(&self) -> bool {
        self.full.get()
    }

    /// Keeps a plan, replaces an older entry of this key, and removes entries beyond the limits. Other
    /// processes may do the same at the same time: each writes a file of its own, which gets the entry's name
    /// when it is complete.
    ///
    /// # Errors
    /// The entry cannot be written, or has no room.
    pub(super) fn keep(&self, key: &Key, source: &Source) -> io::Result<()> {
        self.keep_written(key, |file| entry::write(file, key, source, self.bounds.bytes))
    }

    fn keep_written(&self, key: &Key, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
        let room = || {
            io::Error::other(format!("the plans of this run take more than {} MB", self.bounds.bytes >> 20))
        };
        if self.is_full() {
            return Err(room());
        }
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
        } else {
            self.written.borrow_mut().push(name);
            self.unchecked.set(self.unchecked.get() + fs::fstat(&file).map_or(0, |stat| space(&stat)));
        }
        // Looking at all entries takes time, and little more than the limit may be kept for a moment.
        if self.unchecked.get() >= self.bounds.bytes / PARTS || written.is_err() {
            self.tidy()?;
        }
        written.and_then(|()| if self.is_full() { Err(room()) } else { Ok(()) })
    }

    /// Removes entries until the rest is within the limits, and the incomplete files of killed writers. Files with other names stay. First
    /// go entries that this run does not use, from the one that was not used for the longest time; then what this run has written last.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(super) fn tidy(&self) -> io::Result<()> {
        self.unchecked.set(0);
        let now = sys::unix_seconds() as i64;
        let written = self.written.borrow();
        let mut entries = Vec::new();
        for name in self.folder.names()? {
            // Another gprofinject may have removed it.
            let Ok(stat) = self.folder.stat(&name) else { continue };
            let is_abandoned = now.abs_diff(stat.st_mtime) > ABANDONED as u64;
            if name.ends_with(UNFINISHED) && is_abandoned {
                let _ = self.folder.remove_file(&name);
            } else if [PLAN, FILE, ARENA].iter().any(|suffix| name.ends_with(suffix)) {
                let used = (stat.st_atime, stat.st_atime_nsec);
                let is_used = used.0 >= self.bounds.since;
                let order = written.iter().rposition(|other| *other == name).filter(|_| is_used);
                // What has the least rank goes first.
                let rank = (is_used, order.map_or(usize::MAX, |order| written.len() - order), used);
                entries.push((rank, space(&stat), name));
            }
        }
        entries.sort_unstable();
        let mut bytes: u64 = entries.iter().map(|(_, space, _)| space).sum();
        for ((is_used, ..), space, name) in entries {
            if bytes <= self.bounds.bytes {
                break;
            }
            let _ = self.folder.remove_file(&name);
            bytes -= space;
            self.full.set(self.full.get() || is_used);
        }
        Ok(())
    }
}

/// Returns the bytes that a file takes on the disk. Holes take none.
fn space(stat: &Stat) -> u64 {
    /// The unit of `st_blocks`.
    const BLOCK: u64 = 512;
    (stat.st_blocks as u64).saturating_mul(BLOCK)
}

#[cfg(test)]
mod tests;
