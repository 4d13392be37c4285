//! The command gmon, which writes reports and exports.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const GMON: &str = "gmon";

/// Finds gmon: beside this program, or else in the folders of PATH. `option` is what needs it.
///
/// # Errors
/// It is in none of them.
pub(crate) fn find(option: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders =
        beside.into_iter().chain(std::env::split_paths(&path).filter(|folder| folder.is_absolute()));
    let found = folders.map(|folder| folder.join(GMON)).find(|file| file.is_file());
    found.with_context(|| {
        format!("{option} needs gmon, which is neither beside gprofinject nor in a folder of PATH")
    })
}
