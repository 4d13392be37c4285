//! A folder that only we, or root, can have put anything in, reached through a descriptor.
//!
//! Names are hostile: the mappings of a process that we attach to may name any folder, and a user who owns one of a
//! folder's ancestors can put another folder, or a symbolic link, in its place at any time. So this type opens a folder
//! once, without following symbolic links, looks at what it has opened, and reaches every file in it by the
//! descriptor. Whatever reads or writes a file of a run goes through it.

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

use crate::os::sys;

/// Bits of a mode that let anybody but the owner do something.
const OTHERS: u32 = 0o077;
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Values of this type share one descriptor, which closes with the last of them.
#[derive(Clone, Debug)]
pub(crate) struct PrivateFolder(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    /// How a user would name it. The agent uses this name, too.
    path: PathBuf,
    descriptor: OwnedFd,
}

/// Why a folder is not believed.
#[derive(Debug)]
pub(crate) enum Distrust {
    /// There is none of this name.
    Absent,
    /// It belongs to this user.
    Foreign(u32),
    /// Others may enter it, by this mode.
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
    /// Makes a folder with a name of its own in `place`. No unprivileged user but us may be able to rename or replace
    /// the folder, nor any folder above it.
    pub(crate) fn create(place: &Path) -> io::Result<PrivateFolder> {
        // Afterwards its name has no symbolic links, which their owner could change later.
        let place = place.canonicalize()?;
        let parent = walk(&place, 0, |stat, path| match guards_its_entries(stat) {
            true => Ok(()),
            false => Err(io::Error::other(format!(
                "user {} or its group could replace what is in {}",
                stat.st_uid,
                path.display()
            ))),
        })?;
        let named = tempfile::Builder::new().prefix("gprofinject-").make_in(&place, |path| {
            let name = path.file_name().unwrap_or_default();
            fs::mkdirat(&parent, name, Mode::RWXU)?;
            // A umask such as 0277 has taken away what we need ourselves.
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

    /// Opens a folder that somebody names. No part of `path` may be a symbolic link.
    pub(crate) fn open(path: &Path) -> Result<PrivateFolder, Distrust> {
        let found = walk(path, 0, |_, _| Ok(()))?;
        // Whose it is can be said even if we may not look into it.
        check(&fs::fstat(&found).map_err(io::Error::from)?)?;
        let descriptor = fs::openat(&found, ".", DIRECTORY | OFlags::RDONLY, Mode::empty())
            .map_err(|error| Distrust::Failed(error.into()))?;
        Ok(PrivateFolder(Arc::new(Opened { path: path.to_owned(), descriptor })))
    }

    /// Opens a folder that belongs to us (not even to root, unless we are root), below folders in which no unprivileged
    /// user but us can replace anything. No part of `path` may be a symbolic link. The last `make` folders of the path are
    /// made if they are missing.
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

    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    /// Whether it still has a name.
    pub(crate) fn exists(&self) -> bool {
        fs::fstat(self).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// A name by which system calls that take no descriptor reach a file through ours. Without /proc, the usual name.
    pub(crate) fn reach(&self, name: &str) -> PathBuf {
        let own = PathBuf::from(format!("/proc/self/fd/{}", self.0.descriptor.as_raw_fd()));
        if own.exists() { own.join(name) } else { self.0.path.join(name) }
    }

    /// Makes a file that was not there.
    pub(crate) fn create_file(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | FILE;
        Ok(fs::openat(self, name, flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Opens a file of ours for reading.
    pub(crate) fn open_file(&self, name: &str) -> io::Result<File> {
        self.open_regular(name, OFlags::RDONLY)
    }

    /// Opens a file of ours for reading and writing.
    pub(crate) fn open_to_write(&self, name: &str) -> io::Result<File> {
        self.open_regular(name, OFlags::RDWR)
    }

    /// Opens a file for reading whoever it belongs to: one whose contents are not believed.
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

    /// A regular file, and its owner. Opening does not wait: a named pipe would have us wait for a writer.
    fn open_any(&self, name: &str, access: OFlags) -> io::Result<(File, u32)> {
        let file = fs::openat(self, name, access | FILE | OFlags::NONBLOCK, Mode::empty())?;
        let stat = fs::fstat(&file)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok((file.into(), stat.st_uid)),
            _ => Err(io::Error::other("it is no regular file")),
        }
    }

    /// Reads a file of ours that has at most `most` bytes.
    pub(crate) fn read(&self, name: &str, most: u64) -> io::Result<Vec<u8>> {
        let file = self.open_file(name)?;
        let mut bytes = Vec::new();
        // The length may change until it is read.
        file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
        match bytes.len() as u64 > most {
            true => Err(io::Error::from_raw_os_error(libc::EFBIG)),
            false => Ok(bytes),
        }
    }

    /// Writes a file, which takes the place of an older one in one step.
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

    /// Gives a file of ours a second name.
    pub(crate) fn link(&self, name: &str, second: &str) -> io::Result<()> {
        Ok(fs::linkat(self, name, self, second, AtFlags::empty())?)
    }

    pub(crate) fn symlink(&self, target: &Path, name: &str) -> io::Result<()> {
        Ok(fs::symlinkat(target, self, name)?)
    }

    pub(crate) fn remove_file(&self, name: &str) -> io::Result<()> {
        Ok(fs::unlinkat(self, name, AtFlags::empty())?)
    }

    /// What a name stands for, if it is a symbolic link the link itself.
    pub(crate) fn stat(&self, name: &str) -> io::Result<Stat> {
        Ok(fs::statat(self, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    pub(crate) fn rename(&self, name: &str, to: &str) -> io::Result<()> {
        Ok(fs::renameat(self, name, self, to)?)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.stat(name).is_ok()
    }

    /// The names of all that is in it. Takes no further descriptor: at the limit of open files there is none.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        fs::seek(self, fs::SeekFrom::Start(0))?;
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let mut entries = RawDir::new(self, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry?;
            // Ours are ASCII.
            names.extend(entry.file_name().to_str().ok().map(str::to_owned));
        }
        names.retain(|name| name != "." && name != "..");
        Ok(names)
    }

    pub(crate) fn free_space(&self) -> io::Result<u64> {
        let stat = fs::fstatvfs(self)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Removes it with all that is in it.
    pub(crate) fn remove(&self) -> io::Result<()> {
        for name in self.names()? {
            self.remove_file(&name)?;
        }
        // Its name may lead to another folder by now, which this does not remove unless it is empty.
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

/// Opens a folder one part of its name at a time, so that no symbolic link is followed (openat2 with
/// RESOLVE_NO_SYMLINKS does the same, but kernels before 5.6 do not have it, and some containers forbid it), and `judge`
/// sees exactly the folders that lead to it, itself included. The last `make` parts are made if they are missing.
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

/// Whether files in the folder can only be ours or root's.
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

/// Whether nobody but us and those whom we trust can rename or remove what others have put into the folder.
fn guards_its_entries(stat: &Stat) -> bool {
    (is_trusted(stat.st_uid) || Some(stat.st_uid) == top_user())
        && (stat.st_mode & OTHERS_WRITE == 0 || stat.st_mode & STICKY != 0)
}

fn is_trusted(user: u32) -> bool {
    user == 0 || user == sys::ids().euid
}

/// Who owns `/` can replace everything. In a user namespace without the machine's root that is the overflow user.
fn top_user() -> Option<u32> {
    fs::stat("/").ok().map(|stat| stat.st_uid)
}

#[cfg(test)]
mod tests;
