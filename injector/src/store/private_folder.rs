//! A folder into which only the injector's user or root can have put anything, reached through a descriptor.
//!
//! Names are hostile: the mappings of a process may name any folder, and a user who owns an ancestor of a
//! folder can put another folder or a symbolic link in its place at any time. So this type opens a folder
//! once, without following symbolic links, checks what it has opened, and reaches every file in it by the
//! descriptor. All code that reads or writes files of a run uses this type.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use crate::os::{memory_files, proc, sys};

/// The mode bits that give a permission to users other than the owner.
/// What the names of private folders begin with.
pub(crate) const PREFIX: &str = "gprofinject-";

const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Clones of this value share one descriptor, which is closed with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct PrivateFolder(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    /// The name for users. The agent uses this name, too.
    path: PathBuf,
    descriptor: OwnedFd,
}

/// Why a folder is not trusted.
#[derive(Debug)]
pub(crate) enum Distrust {
    /// There is no folder of this name.
    Absent,
    /// It belongs to the user with this number.
    Foreign(u32),
    /// It has this mode, which lets other users enter it.
    Open(u32),
    Failed(io::Error),
}

impl fmt::Display for Distrust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distrust::Absent => f.write_str("it does not exist"),
            Distrust::Foreign(user) => write!(
                f,
                "it belongs to user {user}, who could make us write anywhere; run gprofinject as that user: sudo -u \
                 '#{user}' gprofinject ..."
            ),
            Distrust::Open(mode) => write!(f, "other users may enter it: its mode is {mode:o}, not 700"),
            Distrust::Failed(error) => f.write_str(&sys::reason(error)),
        }
    }
}

impl std::error::Error for Distrust {}

impl From<io::Error> for Distrust {
    fn from(error: io::Error) -> Distrust {
        match error.kind() {
            io::ErrorKind::NotFound => Distrust::Absent,
            _ => Distrust::Failed(error),
        }
    }
}

impl PrivateFolder {
    /// Creates a folder with a new name in `place`. No unprivileged user other than the injector's may be
    /// able to rename or replace the folder or any folder above it.
    ///
    /// # Errors
    /// The folder cannot be created, or another user could replace it.
    pub(crate) fn create(place: &Path) -> io::Result<PrivateFolder> {
        // The resulting name has no symbolic links, whose owner could change them later.
        let place = place.canonicalize()?;
        let parent = walk(&place, 0, |stat, path| match guards_its_entries(stat) {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "user {} or its group could replace what is in {}",
                stat.st_uid,
                path.display()
            ))),
        })?;
        let named = tempfile::Builder::new().prefix(PREFIX).make_in(&place, |path| {
            let name = path.file_name().unwrap_or_default();
            fs::mkdirat(&parent, name, Mode::RWXU)?;
            // A umask such as 0277 has removed permissions that the injector itself needs.
            let made = fs::chmodat(&parent, name, Mode::RWXU, AtFlags::empty())
                .and_then(|()| fs::openat(&parent, name, DIRECTORY | OFlags::RDONLY, Mode::empty()))
                .map_err(io::Error::from)
                .and_then(|folder| match check(&fs::fstat(&folder)?) {
                    Ok(()) => Ok(folder),
                    // Some file systems give all files the same mode.
                    Err(why) => Err(io::Error::other(why)),
                });
            if made.is_err() {
                let _ = fs::unlinkat(&parent, name, AtFlags::REMOVEDIR);
            }
            made
        })?;
        let (descriptor, path) = named.into_parts();
        // `PrivateFolder::remove` does what the temporary path would have done.
        let path = path.keep().map_err(|error| error.error)?;
        Ok(PrivateFolder(Arc::new(Opened { path, descriptor })))
    }

    /// Opens a folder by a name that may be hostile. No part of `path` may be a symbolic link.
    ///
    /// # Errors
    /// The folder is absent or not private.
    pub(crate) fn open(path: &Path) -> Result<PrivateFolder, Distrust> {
        let found = walk(path, 0, |_, _| Ok(()))?;
        // The owner can be reported even if the injector may not read the folder.
        check(&fs::fstat(&found).map_err(io::Error::from)?)?;
        let descriptor = fs::openat(&found, ".", DIRECTORY | OFlags::RDONLY, Mode::empty())
            .map_err(|error| Distrust::Failed(error.into()))?;
        Ok(PrivateFolder(Arc::new(Opened { path: path.to_owned(), descriptor })))
    }

    /// Opens a folder that belongs to the injector's user (not even to root, unless that is the same user),
    /// below folders in which no other unprivileged user can replace anything. No part of `path` may be a
    /// symbolic link. The last `make` components of the path are created if they are missing.
    ///
    /// # Errors
    /// The folder is absent, not private, or cannot be created.
    pub(crate) fn open_own(path: &Path, make: usize) -> Result<PrivateFolder, Distrust> {
        let judge = |stat: &Stat, shown: &Path| match shown == path || guards_its_entries(stat) {
            true => Ok(()),
            false if is_trusted(stat.st_uid) => {
                Err(io::Error::other(format!("other users can replace what is in {}", shown.display())))
            }
            false => Err(io::Error::other(format!("{} belongs to user {}", shown.display(), stat.st_uid))),
        };
        let found = walk(path, make, judge)?;
        let stat = fs::fstat(&found).map_err(io::Error::from)?;
        check(&stat)?;
        if stat.st_uid != sys::ids().euid {
            return Err(Distrust::Foreign(stat.st_uid));
        }
        let descriptor = fs::openat(&found, ".", DIRECTORY | OFlags::RDONLY, Mode::empty())
            .map_err(|error| Distrust::Failed(error.into()))?;
        Ok(PrivateFolder(Arc::new(Opened { path: path.to_owned(), descriptor })))
    }

    /// The folder's name.
    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether the folder still has a name.
    pub(crate) fn exists(&self) -> bool {
        fs::fstat(self).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Returns a name by which system calls that take no descriptor reach a file through the folder's
    /// descriptor. Without /proc, it is the usual name.
    pub(crate) fn reach(&self, name: &str) -> PathBuf {
        let own = PathBuf::from(format!("/proc/self/fd/{}", self.0.descriptor.as_raw_fd()));
        if own.exists() { own.join(name) } else { self.0.path.join(name) }
    }

    /// Creates a file, which must not exist.
    ///
    /// # Errors
    /// It exists, or cannot be created.
    pub(crate) fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FILE;
        Ok(fs::openat(self, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Creates a file, which must not exist, and which nobody but root can open for writing from then on.
    ///
    /// # Errors
    /// It exists, or cannot be created.
    pub(crate) fn create_read_only(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FILE;
        Ok(fs::openat(self, name, flags, Mode::RUSR)?.into())
    }

    /// Opens a file of the injector's user or root for reading.
    ///
    /// # Errors
    /// It is absent, not a regular file, or belongs to another user.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<File> {
        self.open_regular(name, OFlags::RDONLY)
    }

    /// Opens a file of the injector's user or root for reading and writing.
    ///
    /// # Errors
    /// It is absent, not a regular file, or belongs to another user.
    pub(crate) fn open_to_write(&self, name: &str) -> io::Result<File> {
        self.open_regular(name, OFlags::RDWR)
    }

    /// Opens a file of any user for reading, whose contents are not trusted.
    ///
    /// # Errors
    /// It is absent or not a regular file.
    pub(crate) fn open_of_anybody(&self, name: &str) -> io::Result<File> {
        Ok(self.open_any(name, OFlags::RDONLY)?.0)
    }

    fn open_regular(&self, name: &str, access: OFlags) -> io::Result<File> {
        let (file, owner) = self.open_any(name, access)?;
        match is_trusted(owner) {
            true => Ok(file),
            false => Err(io::Error::other(format!("it belongs to user {owner}"))),
        }
    }

    /// Opens a regular file and returns it and its owner. It does not wait; opening a named pipe in the usual
    /// way would wait for a writer.
    fn open_any(&self, name: &str, access: OFlags) -> io::Result<(File, u32)> {
        let open = || fs::openat(self, name, access | FILE | OFlags::NONBLOCK, Mode::empty());
        let file = match open() {
            // Meanwhile, the heir may have put the file in place of the link.
            Err(Errno::LOOP) => {
                self.open_memory_file(name, access).or_else(|error| open().map_err(|_| error))?
            }
            opened => opened?,
        };
        let stat = fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((file.into(), stat.st_uid)),
            _ => Err(io::Error::other("it is no regular file")),
        }
    }

    /// Opens the memory file of this folder to which a link leads. No other link is followed: if the process through whose folder in
    /// /proc it leads has ended, the number may be another one's. Then its heir has the file under the same descriptor.
    fn open_memory_file(&self, name: &str, access: OFlags) -> io::Result<OwnedFd> {
        let target = self.read_link(name)?;
        let fd = descriptor_in(&target).ok_or(Errno::LOOP)?;
        self.open_made(&target, access).or_else(|error| {
            let heir = self.read_link(HEIR).map_err(|_| error)?;
            self.open_made(&format!("{heir}/fd/{fd}"), access)
        })
    }

    /// Opens a file if it is a memory file of a fixed length that was made for this folder.
    fn open_made(&self, path: &str, access: OFlags) -> io::Result<OwnedFd> {
        let found = fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let found = format!("/proc/self/fd/{}", found.as_raw_fd());
        let shown = fs::readlink(&found, Vec::new())?;
        let shown = shown.to_string_lossy();
        let folder = proc::memory_file_name(&shown).and_then(|name| name.parent()?.file_name());
        if folder.is_none() || folder != self.path().file_name() {
            return Err(Errno::LOOP.into());
        }
        let file = File::from(fs::open(found, access | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?);
        if memory_files::has_fixed_length(&file) { Ok(file.into()) } else { Err(Errno::LOOP.into()) }
    }

    /// Returns where a symbolic link leads.
    ///
    /// # Errors
    /// There is no symbolic link of this name, or its target is no text.
    pub(crate) fn read_link(&self, name: &str) -> io::Result<String> {
        Ok(fs::readlinkat(self, name, Vec::new())?.into_string().map_err(|_| Errno::LOOP)?)
    }

    /// Reads a file of the injector's user or root that has at most `most` bytes.
    ///
    /// # Errors
    /// It cannot be opened as by [`PrivateFolder::open_file`], or is longer.
    pub(crate) fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let file = self.open_file(name)?;
        let mut bytes = Vec::new();
        // The length may change before the file is read.
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > most {
            true => Err(io::Error::from_raw_os_error(libc::EFBIG)),
            false => Ok(bytes),
        }
    }

    /// Writes a file, which replaces an older one in one step.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let fresh = format!("{name}.new");
        let _ = self.remove_file(&fresh);
        let written = self
            .create_file(&fresh)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| self.rename(&fresh, name));
        if written.is_err() {
            let _ = self.remove_file(&fresh);
        }
        written
    }

    /// Gives a file a second name.
    ///
    /// # Errors
    /// The name exists, or the link cannot be made.
    pub(crate) fn link(&self, name: &str, second: &str) -> io::Result<()> {
        Ok(fs::linkat(self, name, self, second, AtFlags::empty())?)
    }

    /// Makes a symbolic link, which replaces a file in one step.
    ///
    /// # Errors
    /// The link cannot be made.
    pub(crate) fn replace_by_symlink(&self, target: &Path, name: &str) -> io::Result<()> {
        let fresh = format!("{name}.new");
        let _ = self.remove_file(&fresh);
        self.symlink(target, &fresh)?;
        self.rename(&fresh, name)
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// The name exists, or the link cannot be made.
    pub(crate) fn symlink(&self, target: &Path, name: &str) -> io::Result<()> {
        Ok(fs::symlinkat(target, self, name)?)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn remove_file(&self, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(self, name, AtFlags::empty())?)
    }

    /// Returns the status of a name; for a symbolic link, that of the link itself.
    ///
    /// # Errors
    /// There is nothing of this name.
    pub(crate) fn stat(&self, name: &str) -> io::Result<Stat> {
        Ok(fs::statat(self, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Renames a file, which replaces another one.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub(crate) fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(self, name, self, to)?)
    }

    /// Whether the folder contains this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.stat(name).is_ok()
    }

    /// Returns the names of everything in the folder. It needs no further descriptor, because at the limit of
    /// open files there is none.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        fs::seek(self, fs::SeekFrom::Start(0))?;
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(self, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            // The injector's names are ASCII.
            names.extend(entry.file_name().to_str().ok().map(str::to_owned));
        }
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    /// The space that is left on the folder's file system, in bytes.
    ///
    /// # Errors
    /// It cannot be determined.
    pub(crate) fn free_space(&self) -> io::Result<u64> {
        let stat = fs::fstatvfs(self)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Removes the folder with everything in it.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for name in self.names()? {
            self.remove_file(&name)?;
        }
        // The name may lead to another folder by now, which this call removes only if it is empty.
        match std::fs::remove_dir(&self.0.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

impl AsFd for PrivateFolder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor.as_fd()
    }
}

impl AsRawFd for PrivateFolder {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor.as_raw_fd()
    }
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

/// The name of a link to the folder in /proc of the heir ([`crate::os::heir`]).
pub(crate) const HEIR: &str = "heir";

/// Returns the number of a descriptor whose path in /proc this is.
fn descriptor_in(path: &str) -> Option<u32> {
    path.strip_prefix("/proc/")?.split_once("/fd/")?.1.parse().ok()
}

/// Opens a folder one component of its name at a time, so that no symbolic link is followed. (openat2 with
/// RESOLVE_NO_SYMLINKS does the same, but kernels before 5.6 do not have it, and some containers forbid it.)
/// `judge` sees exactly the folders that lead to the result, and the result itself. The last `make`
/// components are created if they are missing.
fn walk(path: &Path, make: usize, judge: impl Fn(&Stat, &Path) -> io::Result<()>) -> io::Result<OwnedFd> {
    let mut seen = PathBuf::from("/");
    let mut folder = fs::open("/", DIRECTORY | OFlags::PATH, Mode::empty())?;
    judge(&fs::fstat(&folder)?, &seen)?;
    let mut parts = path.components();
    if parts.next() != Some(Component::RootDir) {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut left = parts.clone().count();
    for part in parts {
        let Component::Normal(name) = part else { return Err(io::Error::from_raw_os_error(libc::EINVAL)) };
        let open = || fs::openat(&folder, name.as_bytes(), DIRECTORY | OFlags::PATH, Mode::empty());
        folder = match open() {
            Err(Errno::NOENT) if left <= make => match fs::mkdirat(&folder, name.as_bytes(), Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => open()?,
                Err(error) => return Err(error.into()),
            },
            opened => opened?,
        };
        left -= 1;
        seen.push(name);
        judge(&fs::fstat(&folder)?, &seen)?;
    }
    Ok(folder)
}

/// Checks that only the injector's user or root can have put files into the folder.
fn check(stat: &Stat) -> Result<(), Distrust> {
    if !is_trusted(stat.st_uid) {
        return Err(Distrust::Foreign(stat.st_uid));
    }
    match stat.st_mode & OTHERS {
        0 => Ok(()),
        // Access control lists cannot permit more than the group's bits.
        _ => Err(Distrust::Open(stat.st_mode & 0o7777)),
    }
}

/// Whether only trusted users can rename or remove what others have put into the folder.
fn guards_its_entries(stat: &Stat) -> bool {
    (is_trusted(stat.st_uid) || Some(stat.st_uid) == top_user())
        && (stat.st_mode & OTHERS_WRITE == 0 || stat.st_mode & STICKY != 0)
}

fn is_trusted(user: u32) -> bool {
    user == 0 || user == sys::ids().euid
}

/// Returns the owner of `/`, who can replace everything. In a user namespace without the machine's root that
/// is the overflow user.
fn top_user() -> Option<u32> {
    fs::stat("/").ok().map(|stat| stat.st_uid)
}

#[cfg(test)]
mod tests;
