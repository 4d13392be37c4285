//! The run folders whose region files a process has mapped.
//!
//! A process can map any file under any name, so a name only says where to look. A folder counts if it is
//! private to the injector's user or to root, and if the file in it is the one that is mapped.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use gprofinject_abi::REGION_SUFFIX;

use crate::os::proc::{self, Mapping};
use crate::store::private_folder::{Distrust, PREFIX, PrivateFolder};

/// The number of folders that are examined at most.
const MOST: usize = 64;

/// A run folder that the mappings of a process name.
pub(crate) enum Named {
    /// A folder of the injector's user or of root, one of whose files the process has mapped.
    Ours(PrivateFolder),
    /// A folder of another user, with the user's number.
    Foreign(PathBuf, u32),
    /// A folder that does not exist any more, or not for the injector: the process may be in a container.
    Gone(PathBuf),
}

impl Named {
    /// The folder's path.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Named::Ours(folder) => folder.path(),
            Named::Foreign(path, _) | Named::Gone(path) => path,
        }
    }

    /// Returns the folder if it is one of the injector's user or of root.
    pub(crate) fn ours(self) -> Option<PrivateFolder> {
        match self {
            Named::Ours(folder) => Some(folder),
            _ => None,
        }
    }
}

/// Returns the run folders whose files the process has mapped.
///
/// # Errors
/// The process's mappings cannot be read.
pub(crate) fn folders(pid: i32) -> io::Result<Vec<Named>> {
    let mut folders: Vec<Named> = Vec::new();
    for mapping in proc::mappings(pid)? {
        let Some((folder, file)) = region_of(&mapping.path) else { continue };
        if folders.len() < MOST && !folders.iter().any(|known| known.path() == folder) {
            folders.push(look(pid, &mapping, folder, file));
        }
    }
    Ok(folders)
}

/// Returns the folder and the process's name in it, if the path in a mapping is that of a region file.
fn region_of(path: &str) -> Option<(&Path, &str)> {
    let path = Path::new(proc::named(path));
    let (folder, file) = (path.parent()?, path.file_name()?.to_str()?);
    let is_run = folder.file_name()?.to_str()?.starts_with(PREFIX);
    (is_run && file.ends_with(REGION_SUFFIX)).then_some((folder, file))
}

fn look(pid: i32, mapping: &Mapping, path: &Path, file: &str) -> Named {
    match PrivateFolder::open(path) {
        Ok(folder) if is_mapped_soon(pid, mapping, &folder, file) => Named::Ours(folder),
        Err(Distrust::Foreign(user)) => Named::Foreign(path.to_owned(), user),
        _ => Named::Gone(path.to_owned()),
    }
}

/// Whether the folder's file is the one that is mapped, or becomes it: a forked child counts in a memory file before gprofinject has made
/// the link to it.
fn is_mapped_soon(pid: i32, mapping: &Mapping, folder: &PrivateFolder, file: &str) -> bool {
    /// How often the file is looked at, and the time in between.
    const TIMES: u32 = 100;
    const PAUSE: Duration = Duration::from_millis(10);
    let is_awaited = || {
        let is_link = rustix::fs::readlinkat(folder, file, Vec::new()).is_ok();
        proc::memory_file_name(&mapping.path).is_some() && !is_link && folder.has(file)
    };
    for _ in 0..TIMES {
        // The link may be made between the two looks.
        let was_awaited = is_awaited();
        if is_mapped(pid, mapping, folder, file) {
            return true;
        }
        if !was_awaited {
            return false;
        }
        thread::sleep(PAUSE);
    }
    false
}

/// Whether the folder's file is the one that is mapped. In another mount namespace, another file may have the
/// same name.
fn is_mapped(pid: i32, mapping: &Mapping, folder: &PrivateFolder, file: &str) -> bool {
    let Ok(own) = folder.open_of_anybody(file).and_then(|file| file.metadata()) else { return false };
    let mapped = format!("/proc/{}/map_files/{:x}-{:x}", proc::visible_thread(pid), mapping.lo, mapping.hi);
    match std::fs::metadata(mapped) {
        Ok(mapped) => (mapped.dev(), mapped.ino()) == (own.dev(), own.ino()),
        // Only root may follow the link to the mapped file.
        Err(_) => mapping.inode == own.ino(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_regions() {
        let found = Some((Path::new("/dev/shm/gprofinject-Ab1"), "0.region"));
        assert_eq!(region_of("/dev/shm/gprofinject-Ab1/0.region"), found);
        assert_eq!(region_of("/dev/shm/gprofinject-Ab1/0.region (deleted)"), found);
        assert_eq!(region_of("/memfd:/dev/shm/gprofinject-Ab1/0.region (deleted)"), found);
        for other in
            ["", "/0.region", "/tmp/x/0.region", "/gprofinject-x/a/0.region", "/gprofinject-x/0.plan"]
        {
            assert_eq!(region_of(other), None, "{other}");
        }
    }
}
