//! The private folder of one run, with the agent library in it, the plans, and each process's region file.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use gprofinject_abi::{ASK_FILE, FOLDER_MAX, PLAN_SUFFIX, REGION_SUFFIX};
use tempfile::TempDir;

use crate::args::EngineArg;
use crate::region::{self, Layout, Orders};
use crate::sys;

/// The agent library, built by build.rs.
pub(crate) static AGENT: &[u8] = include_bytes!(env!("GPROFINJECT_AGENT"));

/// Samples taken by the kernel, of a process that has not ended.
pub(crate) const SAMPLES_SUFFIX: &str = ".samples";

/// Counts of a process that was set to zero, before that.
pub(crate) const BASELINE_SUFFIX: &str = ".baseline";

/// Room for the counters of the first threads.
const SPARE: u64 = 1 << 20;

/// A part of a plan file.
pub(crate) type Piece = Cow<'static, [u8]>;

/// Removed when dropped.
pub(crate) struct RunFolder {
    folder: TempDir,
    engine: EngineArg,
}

impl RunFolder {
    /// Makes the folder in the first place that will do.
    /// It holds the first process's files, and there is room for its counters.
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
                    let limits = [Some(libc::EFBIG), Some(libc::EMFILE)];
                    limited = limited.or(limits.contains(&error.raw_os_error()).then_some(error));
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

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What is preloaded.
    pub(crate) fn libraries(&self) -> Vec<PathBuf> {
        self.engine.libraries().map(|(name, _)| self.path().join(name)).collect()
    }

    /// It stays.
    pub(crate) fn keep(self) {
        let _ = self.folder.keep();
    }

    /// Where processes ask.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path().join(ASK_FILE)
    }

    pub(crate) fn region(&self, name: &str) -> PathBuf {
        self.path().join(format!("{name}{REGION_SUFFIX}"))
    }

    pub(crate) fn plan(&self, name: &str) -> PathBuf {
        self.path().join(format!("{name}{PLAN_SUFFIX}"))
    }

    /// Makes a process's files.
    pub(crate) fn add(&self, name: &str, plan: &[Piece], layout: &Layout, orders: Orders) -> io::Result<()> {
        let plan_len: usize = plan.iter().map(|piece| piece.len()).sum();
        if sys::free_space(self.path())? < plan_len as u64 + layout.reserved(orders.timer_rate) + SPARE {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let mut file = region::create_private(&self.plan(name))?;
        for piece in plan {
            file.write_all(piece)?;
        }
        region::create(&self.region(name), layout, orders).map(drop)
    }

    /// Makes the files of a process whose plan another one has as well.
    pub(crate) fn add_like(
        &self,
        name: &str,
        other: &str,
        layout: &Layout,
        orders: Orders,
    ) -> io::Result<()> {
        std::fs::hard_link(self.plan(other), self.plan(name))?;
        region::create(&self.region(name), layout, orders).map(drop)
    }

    /// Writes a process's samples, the old ones if that fails.
    pub(crate) fn keep_samples(&self, name: &str, bytes: &[u8]) {
        let file = self.path().join(format!("{name}{SAMPLES_SUFFIX}"));
        let fresh = file.with_extension("new");
        if std::fs::write(&fresh, bytes).and_then(|()| std::fs::rename(&fresh, &file)).is_err() {
            let _ = std::fs::remove_file(&fresh);
        }
    }

    /// What a process had counted when its counts were set to zero.
    pub(crate) fn keep_baseline(&self, name: &str, bytes: &[u8]) {
        let _ = std::fs::write(self.path().join(format!("{name}{BASELINE_SUFFIX}")), bytes);
    }

    /// A process's counters have been read. Its plan may be another's too.
    pub(crate) fn remove_region(&self, name: &str) {
        let _ = std::fs::remove_file(self.region(name));
        let _ = std::fs::remove_file(self.path().join(format!("{name}{SAMPLES_SUFFIX}")));
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
    let place = std::path::absolute(place)?;
    if !loadable(place.as_os_str()) || place.as_os_str().len() + 64 > FOLDER_MAX {
        return Err(io::Error::other("LD_PRELOAD cannot name files in it"));
    }
    let libraries_len: usize = engine.libraries().map(|(_, bytes)| bytes.len()).sum();
    if sys::free_space(&place)? < libraries_len as u64 {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    let folder = tempfile::Builder::new()
        .prefix("gprofinject-")
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir_in(&place)?;
    // To remove the folder, should a step fail, takes a descriptor: none is kept.
    for (name, bytes) in engine.libraries() {
        let mut library = region::create_private(&folder.path().join(name))?;
        library.write_all(bytes)?;
        if !sys::maps_executable(&library) {
            return Err(io::Error::other("code there cannot be executed (noexec)"));
        }
    }
    let folder = RunFolder { folder, engine };
    folder.add(first, plan, layout, orders)?;
    Ok(folder)
}

/// The dynamic linker takes blanks and colons in LD_PRELOAD for separators, and expands `$`.
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
