//! The run folders whose region files a process has mapped.
//!
//! A process can map any file under any name, so a name is only where to look: a folder counts if it is private to us or
//! root, and if the file in it is the one that is mapped.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gprofinject_abi::REGION_SUFFIX;

use crate::os::proc::{self, Mapping};
use crate::store::private_folder::{Distrust, PrivateFolder};

/// More folders than that are not looked at.
const MOST: usize = 64;

pub(crate) enum Named {
    /// A folder of ours; the process has one of its files.
    Ours(PrivateFolder),
    /// Somebody else's.
    Foreign(PathBuf, u32),
    /// Not there any more, or not from here: the process may be in a container.
    Gone(PathBuf),
}

impl Named {
    pub(crate) fn path(&self) -> &Path {
        match self {
            Named::Ours(folder) => folder.path(),
            Named::Foreign(path, _) | Named::Gone(path) => path,
        }
    }

    pub(crate) fn ours(self) -> Option<PrivateFolder> {
        match self {
            Named::Ours(folder) => Some(folder),
            _ => None,
        }
    }
}

/// Run folders whose files the process has mapped.
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

/// The folder and the name of a region file, by its path in mappings.
fn region_of(path: &str) -> Option<(&Path, &str)> {
    let path = Path::new(path.strip_suffix(" (deleted)").unwrap_or(path));
    let (folder, file) = (path.parent()?, path.file_name()?.to_str()?);
    let is_run = folder.file_name()?.to_str()?.starts_with("gprofinject-");
    (is_run && file.ends_with(REGION_SUFFIX)).then_some((folder, file))
}

fn look(pid: i32, mapping: &Mapping, path: &Path, file: &str) -> Named {
    match PrivateFolder::open(path) {
        Ok(folder) if is_mapped(pid, mapping, &folder, file) => Named::Ours(folder),
        Err(Distrust::Foreign(user)) => Named::Foreign(path.to_owned(), user),
        _ => Named::Gone(path.to_owned()),
    }
}

/// Whether that file of the folder is what is mapped: another file may have the same name in another mount namespace.
fn is_mapped(pid: i32, mapping: &Mapping, folder: &PrivateFolder, file: &str) -> bool {
    let Ok(own) = folder.open_of_anybody(file).and_then(|file| file.metadata()) else { return false };
    let mapped = format!("/proc/{}/map_files/{:x}-{:x}", proc::visible_thread(pid), mapping.lo, mapping.hi);
    match std::fs::metadata(mapped) {
        Ok(mapped) => (mapped.dev(), mapped.ino()) == (own.dev(), own.ino()),
        // Only root may follow that link.
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
        for other in
            ["", "/0.region", "/tmp/x/0.region", "/gprofinject-x/a/0.region", "/gprofinject-x/0.plan"]
        {
            assert_eq!(region_of(other), None, "{other}");
        }
    }
}
