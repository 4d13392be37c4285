//! The private folder of one run, which contains the agent library, the plans, and the region file of each
//! process.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use gprofinject_abi::{FOLDER_MAX, PLAN_SUFFIX, REGION_SUFFIX};

use crate::options::EngineArg;
use crate::os::{limits, sys};
use crate::store::private_folder::PrivateFolder;
use crate::store::region::file::RegionFile;
use crate::store::region::layout::{Layout, Orders};

/// The first process's name in the run folder.
pub(crate) const FIRST: &str = "0";

/// The suffix of the file with a process's samples that the kernel has taken, as long as the process runs.
pub(crate) const SAMPLES_SUFFIX: &str = ".samples";

/// The suffix of the file with what a process had counted when its counts were set to zero.
pub(crate) const BASELINE_SUFFIX: &str = ".baseline";

/// The room for the counters of the first threads, in bytes.
const SPARE: u64 = 1 << 20;

/// A part of a plan file.
pub(crate) type Piece = Cow<'static, [u8]>;

/// The run folder. It is removed when this is dropped, unless it has to stay.
pub(crate) struct RunFolder {
    folder: PrivateFolder,
    engine: EngineArg,
    stays: bool,
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.stays {
            let _ = self.folder.remove();
        }
    }
}

/// Returns the region file of a process, by the process's name in the run folder.
pub(crate) fn region_in(folder: &PrivateFolder, name: &str) -> RegionFile {
    RegionFile::new(folder, format!("{name}{REGION_SUFFIX}"))
}

/// The name of a plan file.
pub(crate) fn plan_file(name: &str) -> String {
    format!("{name}{PLAN_SUFFIX}")
}

impl RunFolder {
    /// Creates the folder in the first place that meets the conditions. The folder contains the first
    /// process's files, and there is room for its counters.
    ///
    /// # Errors
    /// No place meets the conditions.
    pub(crate) fn create(
        first: &str,
        engine: EngineArg,
        plan: &[Piece],
        layout: &Layout,
        orders: Orders,
    ) -> Result<RunFolder> {
        let mut refusals = Vec::new();
        let mut limited = None;
        for place in places() {
            match create_in(&place, first, engine, plan, layout, orders) {
                Ok(folder) => return Ok(folder),
                Err(error) => {
                    refusals.push(format!("{}: {}", place.display(), sys::reason(&error)));
                    limited = limited.or(limits::is_behind(&error).then_some(error));
                }
            }
        }
        if let Some(error) = limited {
            // Another folder would not help.
            return Err(anyhow!("no place for the counters: {}", sys::reason(&error)));
        }
        Err(anyhow!(
            "no place for the counters; set TMPDIR to a folder with free space, not mounted noexec ({})",
            refusals.join("; ")
        ))
    }

    /// The folder's path.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the paths of the libraries that are preloaded.
    pub(crate) fn libraries(&self) -> Vec<PathBuf> {
        self.engine.libraries().map(|(name, _)| self.path().join(name)).collect()
    }

    /// Leaves the folder in place.
    pub(crate) fn keep(mut self) {
        self.stays = true;
    }

    /// The folder as a private folder.
    pub(crate) fn private(&self) -> &PrivateFolder {
        &self.folder
    }

    /// Returns the region file of that name.
    pub(crate) fn region(&self, name: &str) -> RegionFile {
        region_in(&self.folder, name)
    }

    /// Creates the plan file and the region file of a process.
    ///
    /// # Errors
    /// They cannot be created.
    pub(crate) fn add(&self, name: &str, plan: &[Piece], layout: &Layout, orders: Orders) -> io::Result<()> {
        let plan_len: usize = plan.iter().map(|piece| piece.len()).sum();
        if self.folder.free_space()? < plan_len as u64 + layout.reserved(orders.timer_rate) + SPARE {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let mut file = self.folder.create_file(&plan_file(name))?;
        for piece in plan {
            file.write_all(piece)?;
        }
        self.region(name).create(layout, orders).map(drop)
    }

    /// Creates the files of a process that has the same plan as another one.
    ///
    /// # Errors
    /// They cannot be created.
    pub(crate) fn add_like(
        &self,
        name: &str,
        other: &str,
        layout: &Layout,
        orders: Orders,
    ) -> io::Result<()> {
        self.folder.link(&plan_file(other), &plan_file(name))?;
        self.region(name).create(layout, orders).map(drop)
    }

    /// Writes a process's samples. If that fails, the old ones stay.
    pub(crate) fn keep_samples(&self, name: &str, bytes: &[u8]) {
        let _ = self.folder.replace(&format!("{name}{SAMPLES_SUFFIX}"), bytes);
    }

    /// Writes what a process had counted when its counts were set to zero.
    pub(crate) fn keep_baseline(&self, name: &str, bytes: &[u8]) {
        let _ = self.folder.replace(&format!("{name}{BASELINE_SUFFIX}"), bytes);
    }

    /// Removes a process's region file after its counters have been read. The plan may belong to other
    /// processes too.
    pub(crate) fn remove_region(&self, name: &str) {
        self.region(name).remove();
        let _ = self.folder.remove_file(&format!("{name}{SAMPLES_SUFFIX}"));
    }
}

fn places() -> Vec<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut places: Vec<PathBuf> = [
        named("XDG_RUNTIME_DIR"),
        Some("/dev/shm".into()),
        named("TMPDIR"),
        Some("/tmp".into()),
        Some("/var/tmp".into()),
    ]
    .into_iter()
    .flatten()
    .collect();
    places.dedup();
    places
}

fn create_in(
    place: &Path,
    first: &str,
    engine: EngineArg,
    plan: &[Piece],
    layout: &Layout,
    orders: Orders,
) -> io::Result<RunFolder> {
    let libraries_len: usize = engine.libraries().map(|(_, bytes)| bytes.len()).sum();
    if sys::free_space(place)? < libraries_len as u64 {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    let folder = PrivateFolder::create(place)?;
    let folder = RunFolder { folder, engine, stays: false };
    if !loadable(folder.path().as_os_str()) || folder.path().as_os_str().len() + 32 > FOLDER_MAX {
        return Err(io::Error::other("LD_PRELOAD cannot name files in it"));
    }
    for (name, bytes) in engine.libraries() {
        let mut library = folder.folder.create_read_only(name)?;
        library.write_all(bytes)?;
        if !sys::maps_executable(&library) {
            return Err(io::Error::other("code there cannot be executed (noexec)"));
        }
    }
    folder.add(first, plan, layout, orders)?;
    Ok(folder)
}

/// Whether LD_PRELOAD can contain a path: the dynamic linker treats blanks and colons as separators and
/// expands `$`.
fn loadable(path: &OsStr) -> bool {
    !path.as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || matches!(byte, b':' | b'$'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_linker_would_misread_are_avoided() {
        assert!(loadable(OsStr::new("/run/user/0")));
        for path in ["/a b", "/a:b", "/$ORIGIN", "/a\tb"] {
            assert!(!loadable(OsStr::new(path)));
        }
    }
}
