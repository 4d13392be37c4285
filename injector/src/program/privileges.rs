//! Finds out whether the kernel will give the program other ids or more capabilities than the injector has.
//!
//! If so, the kernel makes the dynamic linker ignore LD_PRELOAD (AT_SECURE) and ends the perf events of the
//! process. The mode of the file does not decide that, but what would change: the rules are those of
//! `bprm_fill_uid` (`fs/exec.c`) and `cap_bprm_creds_from_file` (`security/commoncap.c`).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::os::sys::{self, Ids};

/// The properties of a file that matter.
#[derive(Clone, Copy, Debug, Default)]
struct File {
    mode: u32,
    uid: u32,
    gid: u32,
    capabilities: bool,
    /// Whether it is on a file system that is mounted nosuid.
    nosuid: bool,
}

/// Returns what the program gains and what the user can do about it, or `None` if it gains nothing.
pub(crate) fn gained(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let file = File {
        mode: metadata.mode(),
        uid: metadata.uid(),
        gid: metadata.gid(),
        capabilities: sys::has_attribute(path, c"security.capability"),
        nosuid: sys::mounted_nosuid(path),
    };
    judge(file, sys::ids())
}

fn judge(file: File, ids: Ids) -> Option<String> {
    let ignored = file.nosuid || ids.no_new_privileges;
    let has = |bits| file.mode & bits == bits && !ignored;
    // Without the permission to execute, set-group-ID means a kind of lock.
    let euid = if has(libc::S_ISUID) { file.uid } else { ids.euid };
    let egid = if has(libc::S_ISGID | libc::S_IXGRP) { file.gid } else { ids.egid };
    if euid != ids.euid {
        Some(format!("it is a set-user-ID program of user {euid}; profile it as its owner for counts"))
    } else if egid != ids.egid {
        Some(format!("it is a set-group-ID program of group {egid}; profile it as its group for counts"))
    } else if euid != ids.uid || egid != ids.gid {
        Some("gprofinject's real and effective ids differ".to_owned())
    } else if file.capabilities && !ignored && ids.uid != 0 {
        Some("it has file capabilities; profile it as root, or a copy without them, for counts".to_owned())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: Ids = Ids { uid: 1000, euid: 1000, gid: 100, egid: 100, no_new_privileges: false };
    const ROOT: Ids = Ids { uid: 0, euid: 0, gid: 0, egid: 0, no_new_privileges: false };
    /// All properties at once, and owned by root.
    const FILE: File = File { mode: 0o6755, uid: 0, gid: 0, capabilities: true, nosuid: false };

    #[test]
    fn only_what_changes_something_matters() {
        assert!(judge(FILE, USER).is_some_and(|why| why.contains("set-user-ID")));
        assert!(judge(FILE, ROOT).is_none());
        assert!(judge(File { uid: 1000, gid: 100, capabilities: false, ..FILE }, USER).is_none());
        assert!(judge(File { uid: 1000, ..FILE }, ROOT).is_some());
        assert!(judge(File { mode: 0o2755, ..FILE }, USER).is_some_and(|why| why.contains("group 0")));
        assert!(judge(File { mode: 0o2745, capabilities: false, ..FILE }, USER).is_none());
        assert!(judge(File { mode: 0o755, ..FILE }, USER).is_some_and(|why| why.contains("capabilities")));
    }

    #[test]
    fn the_kernel_ignores_it_where_told_to() {
        assert!(judge(File { nosuid: true, ..FILE }, USER).is_none());
        assert!(judge(FILE, Ids { no_new_privileges: true, ..USER }).is_none());
    }

    #[test]
    fn a_set_user_id_gprofinject_runs_secure_programs_only() {
        let plain = File { mode: 0o755, capabilities: false, ..FILE };
        assert!(judge(plain, Ids { euid: 0, ..USER }).is_some());
        assert!(judge(plain, USER).is_none());
    }
}
