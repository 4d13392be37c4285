//! The private folder of one run, with the agent library, the plan and the region file in it.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use gprofinject_abi::{AGENT_FILE, PLAN_FILE, REGION_FILE};
use tempfile::TempDir;

use crate::region::{self, Layout, Region};
use crate::sys;

/// The agent library, built by build.rs.
pub(crate) static AGENT: &[u8] = include_bytes!(env!("GPROFINJECT_AGENT"));

/// Room for the counters of the first threads.
const SPARE: u64 = 1 << 20;

/// Removed when dropped.
pub(crate) struct RunFolder {
    folder: TempDir,
    pub(crate) region: Region,
}

impl RunFolder {
    /// Makes the folder in the first place that will do.
    pub(crate) fn create(plan: &[Cow<[u8]>], layout: &Layout, timer_rate: u32) -> Result<RunFolder> {
        let mut refusals = Vec::new();
        for place in places() {
            match create_in(&place, plan, layout, timer_rate) {
                Ok(folder) => return Ok(folder),
                Err(error) => refusals.push(format!("{}: {}", place.display(), sys::reason(&error))),
            }
        }
        Err(anyhow!(
            "no place for the counters; set TMPDIR to a folder with free space, not mounted noexec ({})",
            refusals.join("; ")
        ))
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
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

fn create_in(place: &Path, plan: &[Cow<[u8]>], layout: &Layout, timer_rate: u32) -> io::Result<RunFolder> {
    let place = std::path::absolute(place)?;
    if !loadable(place.as_os_str()) {
        return Err(io::Error::other("LD_PRELOAD cannot name files in it"));
    }
    let plan_len: usize = plan.iter().map(|piece| piece.len()).sum();
    let needed = (AGENT.len() + plan_len) as u64 + layout.reserved(timer_rate) + SPARE;
    if sys::free_space(&place)? < needed {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    let folder = tempfile::Builder::new()
        .prefix("gprofinject-")
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir_in(&place)?;
    let mut agent = region::create_private(&folder.path().join(AGENT_FILE))?;
    agent.write_all(AGENT)?;
    if !sys::maps_executable(&agent) {
        return Err(io::Error::other("code there cannot be executed (noexec)"));
    }
    let mut file = region::create_private(&folder.path().join(PLAN_FILE))?;
    for piece in plan {
        file.write_all(piece)?;
    }
    let region = region::create(&folder.path().join(REGION_FILE), layout, timer_rate)?;
    Ok(RunFolder { folder, region })
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
