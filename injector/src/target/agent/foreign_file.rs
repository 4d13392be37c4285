//! Files that another process has mapped. That process controls their names, contents and lengths: a name may
//! by now be that of a named pipe or a device, a link may lead out of the process's root folder, and a file
//! may be truncated while it is read.

use std::fs::File;
use std::io;

use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::os::proc::{self, Mapping};
use crate::os::sys;

/// The length in bytes above which files are not read. node has 100 MB.
const LONGEST: u64 = 2 << 30;

/// Opens the file to which one of the kernel's links leads (/proc/PID/map_files/...).
///
/// # Errors
/// The link leads to no regular file, or the file cannot be opened.
pub(crate) fn by_link(link: &str) -> io::Result<File> {
    sys::regular(&fs::open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a file by the name that it has for a process, whose root folder may be another. No link leads out of
/// that folder.
///
/// # Errors
/// The name leads to no regular file, or the file cannot be opened.
pub(crate) fn in_root(pid: i32, path: &str) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = fs::open(format!("/proc/{pid}/root"), flags | OFlags::DIRECTORY, Mode::empty())?;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match fs::openat2(&root, path, flags, Mode::empty(), resolve) {
        // Before Linux 5.6, and in containers that forbid the call, links are resolved in the injector's own
        // root folder.
        Err(Errno::NOSYS | Errno::PERM) => by_link(&format!("/proc/{pid}/root{path}")),
        found => sys::regular(&found?),
    }
}

/// Reads a file as a whole. It is not mapped, because the injector would get a SIGBUS if the file's owner
/// truncated it.
///
/// # Errors
/// The file is too long, or reading fails.
pub(crate) fn contents(file: &File) -> io::Result<Vec<u8>> {
    sys::read_whole(file, LONGEST)
}

/// Returns the contents of a mapping's file, even if the file has been replaced since or the process has
/// another root folder.
pub(crate) fn mapped(pid: i32, mapping: &Mapping) -> Option<Vec<u8>> {
    contents(&of_mapping(pid, mapping).ok()?).ok()
}

/// Opens a mapping's file, even if the file has been replaced since or the process has another root folder. If the
/// kernel does not permit that, the file is the one that has its name now.
///
/// # Errors
/// It cannot be opened, or is no regular file.
pub(crate) fn of_mapping(pid: i32, mapping: &Mapping) -> io::Result<File> {
    let pid = proc::visible_thread(pid);
    let kept = by_link(&format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.lo, mapping.hi));
    kept.or_else(|error| match mapping.path.ends_with(" (deleted)") {
        true => Err(error),
        false => in_root(pid, &mapping.path),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::FileType;

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let place = tempfile::tempdir().expect("a folder");
        let path = |name: &str| place.path().join(name).to_string_lossy().into_owned();
        let own = std::process::id() as i32;
        fs::mknodat(fs::CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        std::fs::write(path("file"), "text").expect("a file");
        symlink(path("file"), path("link")).expect("a link");
        for name in ["pipe", "absent", "."] {
            assert!(in_root(own, &path(name)).is_err() && by_link(&path(name)).is_err(), "{name}");
        }
        assert!(by_link("/dev/null").is_err());
        for name in ["file", "link"] {
            let file = in_root(own, &path(name)).expect("opened");
            assert_eq!(contents(&file).expect("read"), b"text");
        }
        assert!(in_root(own, &format!("/proc/self/root{}", path("file"))).is_err(), "a way out");
        let file = File::options().write(true).open(path("file")).expect("opened");
        file.set_len(LONGEST + 1).expect("sparse");
        assert!(contents(&by_link(&path("file")).expect("opened")).is_err());
    }
}
