//! A process that inherits gprofinject's memory files if gprofinject is killed.
//!
//! A memory file has no name in a file system, so it exists only as long as a process has it open or mapped. The heir shares
//! gprofinject's table of descriptors. When gprofinject has ended, the heir closes all of them but those to which a link of the
//! file's own name leads, and these when the link is gone. The links lead through the heir's folder in /proc, so they lead to the
//! same files before and after.
#![allow(unsafe_code, reason = "it makes a process that shares its descriptors with this one")]

use std::fs::{self, File};
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::os::sys;

/// How often the heir looks whether the links are still there.
const PAUSE: Duration = Duration::from_secs(1);

/// The heir, as gprofinject sees it. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Heir {
    pid: i32,
}

impl Heir {
    /// Makes the heir. It has a copy of this process's memory, so this is called before there is much of it, and while this
    /// process has one thread. Returns `None` if there can be no heir, or if links through its folder in /proc lead nowhere.
    pub(crate) fn start() -> Option<Heir> {
        let blocked = sys::block_signals();
        // SAFETY: getpid cannot fail. Without CLONE_VM this is a fork, and this process has one thread, so the child may do
        // anything; it never returns. Without a signal at its end, it is no child that `wait` finds.
        let (parent, pid) =
            unsafe { (libc::getpid(), libc::syscall(libc::SYS_clone, libc::CLONE_FILES, 0, 0, 0, 0)) };
        if pid == 0 {
            inherit(parent);
        }
        sys::unblock_signals(&blocked);
        let heir = (pid > 0).then_some(Heir { pid: pid as i32 })?;
        // The kernel allows this to whoever may follow the links.
        fs::metadata(format!("/proc/{pid}/exe")).is_ok().then_some(heir)
    }

    /// Returns where a link to an open file of this process leads.
    pub(crate) fn path_of(&self, file: &File) -> PathBuf {
        path_of(self.pid, file.as_raw_fd())
    }

    /// Leaves the files to the heir when this process ends.
    pub(crate) fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        // SAFETY: no memory is involved, and the process is a child of this one that no other code waits for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WCLONE);
        }
    }
}

fn path_of(pid: i32, fd: RawFd) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/fd/{fd}"))
}

/// The main function of the heir. All signals are blocked.
fn inherit(parent: i32) -> ! {
    // SAFETY: `set` is a local variable, valid when zeroed and for the calls. The others take numbers, and a name that the kernel
    // copies. The session's end is not to be that of the heir.
    unsafe {
        libc::prctl(libc::PR_SET_NAME, c"gpi-heir".as_ptr());
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGHUP);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGHUP);
        while libc::getppid() == parent {
            libc::sigwaitinfo(&set, std::ptr::null_mut());
        }
    }
    let pid = std::process::id() as i32;
    let mut held = Vec::new();
    for fd in descriptors() {
        let link = path_of(pid, fd);
        match fs::read_link(&link).ok().as_deref().and_then(name_of) {
            Some(name) if leads_to(&name, &link) => held.push((fd, name, link)),
            // SAFETY: gprofinject has ended, and no value of this process uses the descriptor.
            _ => unsafe {
                libc::close(fd);
            },
        }
    }
    while !held.is_empty() {
        std::thread::sleep(PAUSE);
        held.retain(|(fd, name, link)| {
            let stays = leads_to(name, link);
            if !stays {
                // SAFETY: as above.
                unsafe { libc::close(*fd) };
            }
            stays
        });
    }
    // SAFETY: this ends this process only.
    unsafe { libc::_exit(0) }
}

/// Returns this process's open descriptors.
fn descriptors() -> Vec<RawFd> {
    let entries = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the path that a memory file has as its name. `shown` is what the kernel shows for its descriptor.
fn name_of(shown: &Path) -> Option<PathBuf> {
    let name = shown.to_str()?.strip_prefix(sys::MEMORY_FILE)?.strip_suffix(" (deleted)")?;
    Some(PathBuf::from(name)).filter(|name| name.is_absolute())
}

fn leads_to(name: &Path, target: &Path) -> bool {
    fs::read_link(name).is_ok_and(|found| found == target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_memory_files() {
        let name = |shown: &str| name_of(Path::new(shown));
        assert_eq!(name("/memfd:/run/f/0.region (deleted)"), Some(PathBuf::from("/run/f/0.region")));
        for other in
            ["/memfd:gprofinject (deleted)", "/run/f/0.region", "/run/f/0.region (deleted)", "pipe:[1]"]
        {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
