//! From a path to a folder's descriptor and a name in it, without following the links of other users.
//!
//! Another user who can write to one of the folders on the way may put a symbolic link there at any time. The
//! kernel's `fs.protected_symlinks` covers only folders with the sticky bit. Here the path is walked one
//! component at a time, each relative to the descriptor of the previous one, and a symbolic link is followed
//! only if it belongs to a user who has to be trusted anyway; see [`Trust`].

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// The number of symbolic links after which the kernel gives up.
const MOST_LINKS: u32 = 40;

/// The users who can do no harm that they could not do without this process: the calling user, root, and the
/// owner of the root folder, who decides what every path means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trust {
    pub(super) euid: u32,
    root_folder: u32,
}

impl Trust {
    fn new(root: &Stat) -> Trust {
        Trust { euid: rustix::process::geteuid().as_raw(), root_folder: root.st_uid }
    }

    /// Whether a user is trusted.
    pub(super) fn is_trusted(self, user: u32) -> bool {
        user == 0 || user == self.euid || user == self.root_folder
    }

    /// Whether only trusted users can have put anything into a folder.
    fn trusts_entries_of(self, folder: &Stat) -> bool {
        self.is_trusted(folder.st_uid) && folder.st_mode & 0o022 == 0
    }
}

/// The result of walking a path.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) trust: Trust,
    pub(super) folder: Folder,
    /// The name in the folder, which is not `.` or `..` and contains no `/`.
    pub(super) name: OsString,
    /// What has this name now, which is never a symbolic link; `None` if there is nothing.
    pub(super) entry: Option<Stat>,
    /// Whether the name is one of the kernel's links to what a process has open (`/proc/self/fd/1`). Then
    /// `entry` is that file.
    pub(super) is_descriptor: bool,
}

/// A folder that was opened on the way.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) fd: OwnedFd,
    pub(super) stat: Stat,
    /// Whether only the calling user, root or the system can have made what is in it.
    pub(super) is_trusted: bool,
}

impl Folder {
    fn new(fd: OwnedFd, trust: Trust) -> io::Result<Folder> {
        let stat = fs::fstat(&fd)?;
        Ok(Folder { is_trusted: trust.trusts_entries_of(&stat), fd, stat })
    }

    fn open(&self, name: &OsStr, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        fs::openat(&self.fd, name, flags | OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
    }

    fn is_of_the_kernel(&self) -> bool {
        fs::fstatfs(&self.fd).is_ok_and(|system| system.f_type == fs::PROC_SUPER_MAGIC)
    }

    /// Returns its path, as far as the kernel knows it.
    pub(super) fn path(&self) -> Option<PathBuf> {
        use std::os::fd::AsRawFd;
        std::fs::read_link(format!("/proc/self/fd/{}", self.fd.as_fd().as_raw_fd())).ok()
    }
}

impl Place {
    /// Returns the path without symbolic links, as far as the kernel knows it.
    pub(super) fn path(&self) -> Option<PathBuf> {
        if self.is_descriptor {
            return rustix::fs::readlinkat(&self.folder.fd, &self.name, Vec::new())
                .ok()
                .map(|text| PathBuf::from(OsString::from_vec(text.into_bytes())));
        }
        self.folder.path().map(|folder| folder.join(&self.name))
    }

    /// Whether `entry` belongs to a user whose pipes and devices may be written to.
    pub(super) fn entry_is_trusted(&self) -> bool {
        let owner = self.entry.as_ref().map(|entry| entry.st_uid);
        self.is_descriptor
            || self.folder.is_trusted
            || owner.is_some_and(|owner| self.trust.is_trusted(owner))
    }
}

/// Returns the type of a file.
pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

fn is_a_folder() -> io::Error {
    Errno::ISDIR.into()
}

/// Returns the error that names the owner of what is not used.
pub(super) fn refused(what: &str, name: &OsStr, owner: u32) -> io::Error {
    let text = format!("{what} {} belongs to another user (number {owner})", name.display());
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Returns the components of a path, the last one first.
fn reversed(path: &Path) -> Vec<OsString> {
    let named = |component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    };
    path.components().rev().filter_map(named).collect()
}

/// Walks an absolute path, all of whose folders must exist.
///
/// # Errors
/// A folder does not exist, or a symbolic link belongs to another user.
pub(super) fn walk(path: &Path) -> io::Result<Place> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = || fs::openat(CWD, "/", flags, Mode::empty());
    let root_fd = root()?;
    let trust = Trust::new(&fs::fstat(&root_fd)?);
    let mut folder = Folder::new(root_fd, trust)?;
    let mut left = reversed(path);
    let mut links = 0;
    while let Some(name) = left.pop() {
        let is_last = left.is_empty();
        if name == ".." {
            folder = Folder::new(folder.open(&name, OFlags::DIRECTORY)?, trust)?;
            continue;
        }
        let entry = match folder.open(&name, OFlags::NOFOLLOW) {
            Ok(entry) => entry,
            Err(Errno::NOENT) if is_last => {
                return Ok(Place { trust, folder, name, entry: None, is_descriptor: false });
            }
            Err(error) => return Err(error.into()),
        };
        let stat = fs::fstat(&entry)?;
        match kind(&stat) {
            FileType::Directory if is_last => return Err(is_a_folder()),
            FileType::Directory => folder = Folder::new(entry, trust)?,
            FileType::Symlink => {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP.into());
                }
                if !folder.is_trusted && !trust.is_trusted(stat.st_uid) {
                    return Err(refused("the symbolic link", &name, stat.st_uid));
                }
                if folder.is_of_the_kernel() {
                    // The link's text need not be a path, so the kernel has to follow it.
                    let target = folder.open(&name, OFlags::empty())?;
                    let stat = fs::fstat(&target)?;
                    match kind(&stat) {
                        FileType::Directory if is_last => return Err(is_a_folder()),
                        FileType::Directory => folder = Folder::new(target, trust)?,
                        _ if !is_last => return Err(Errno::NOTDIR.into()),
                        _ => {
                            let entry = Some(stat);
                            return Ok(Place { trust, folder, name, entry, is_descriptor: true });
                        }
                    }
                    continue;
                }
                let text = fs::readlinkat(&entry, "", Vec::new())?.into_bytes();
                if is_last && text.ends_with(b"/") {
                    return Err(is_a_folder());
                }
                let target = Path::new(OsStr::from_bytes(&text));
                if target.is_absolute() {
                    folder = Folder::new(root()?, trust)?;
                }
                left.extend(reversed(target));
            }
            _ if !is_last => return Err(Errno::NOTDIR.into()),
            _ => return Ok(Place { trust, folder, name, entry: Some(stat), is_descriptor: false }),
        }
    }
    // The path is `/`, or ends with `..`.
    Err(is_a_folder())
}

/// Opens what a walk has found, and nothing that has replaced it since.
///
/// # Errors
/// It cannot be opened, or has been replaced.
pub(super) fn open(place: &Place, flags: OFlags) -> io::Result<std::fs::File> {
    let Some(found) = &place.entry else { return Err(Errno::NOENT.into()) };
    let nofollow = if place.is_descriptor { OFlags::empty() } else { OFlags::NOFOLLOW };
    // It may be a pipe by now, or have a lease; neither must make this process wait.
    let flags = flags | nofollow | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = fs::openat(&place.folder.fd, &place.name, flags, Mode::empty())?;
    let now = fs::fstat(&file)?;
    if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino) {
        return Err(io::Error::other("the file was replaced while it was opened"));
    }
    let blocking = fs::fcntl_getfl(&file)? & !OFlags::NONBLOCK;
    fs::fcntl_setfl(&file, blocking)?;
    Ok(file.into())
}
