//! Files that are written as a whole: checked before there is something to write, never left half written, and safe to
//! write as root where others can write too.
//!
//! A file that takes the place of an old one is a new file: it is written without a name (`O_TMPFILE`), and gets the
//! name in one step. So nothing is written into a file that somebody else has open or has linked there. It is ours, and
//! its mode is the old one's without set-user-ID, set-group-ID, sticky and executable bits and without what the umask
//! takes away. All steps are relative to the descriptor of the folder, and symbolic links of other users are not followed
//! ([`mod@walk`]).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

mod walk;
use walk::{Folder, Place, kind, open, refused, walk};

/// What a mode may have at most.
const READ_AND_WRITE: u32 = 0o666;
/// While nobody else is to see what is written.
const PRIVATE: u32 = 0o600;

/// A file that will be written later, and can be as far as one can tell.
#[derive(Debug)]
pub struct Target(Kind);

#[derive(Debug)]
enum Kind {
    /// A regular file, or a name for one.
    File {
        /// Absolute, as it was named.
        path: PathBuf,
        /// The same without links.
        real: PathBuf,
    },
    /// A file that the process had open already, by a name such as `/dev/fd/3`.
    Open { file: File, real: Option<PathBuf> },
    /// No regular file.
    Device(File),
    /// A named pipe without a reader: opened when there is something to read.
    Pipe(PathBuf),
}

/// How a regular file is written.
enum Way {
    /// A new file takes the place of the old one, if any.
    Replace,
    /// The folder takes no new files.
    Overwrite,
}

impl Target {
    /// Finds out how a file can be written, and leaves no trace of having tried.
    pub fn check(path: &Path) -> io::Result<Target> {
        // `new/` would be a folder. The path's components do not show it.
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(Errno::ISDIR.into());
        }
        let path = std::path::absolute(path)?;
        let place = walk(&path)?;
        let target = match place.entry.as_ref().map(kind) {
            Some(FileType::RegularFile) if place.is_descriptor => {
                Kind::Open { file: open(&place, OFlags::WRONLY)?, real: place.path() }
            }
            None | Some(FileType::RegularFile) => {
                match way(&place)? {
                    Way::Replace => check_permission(&place)?,
                    Way::Overwrite => drop(open_to_overwrite(&place)?),
                }
                Kind::File { real: place.path().unwrap_or_else(|| path.clone()), path }
            }
            Some(other) => match open_special(&place) {
                Ok(file) => Kind::Device(file),
                Err(error) if has_no_reader(&error) && other == FileType::Fifo => Kind::Pipe(path),
                Err(error) => return Err(error),
            },
        };
        Ok(Target(target))
    }

    /// Standard output as it is now, wherever descriptor 1 leads to later.
    pub fn standard_output() -> io::Result<Target> {
        Ok(Target(Kind::Device(io::stdout().as_fd().try_clone_to_owned()?.into())))
    }

    /// The regular file that is written, by its real name.
    pub fn file(&self) -> Option<&Path> {
        match &self.0 {
            Kind::File { real, .. } => Some(real),
            Kind::Open { real, .. } => real.as_deref(),
            Kind::Device(_) | Kind::Pipe(_) => None,
        }
    }

    /// Whether there is room for one thing only: a device, a pipe, or a file that was open already.
    pub fn is_stream(&self) -> bool {
        !matches!(self.0, Kind::File { .. })
    }

    /// Writes it. A pipe gets some seconds for a reader to come.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_with(bytes, false)
    }

    /// The same, on disk before the old file goes. A pipe's reader may take as long as it likes to come.
    pub fn write_durably(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_with(bytes, true)
    }

    fn write_with(&self, bytes: &[u8], durably: bool) -> io::Result<()> {
        match &self.0 {
            Kind::File { path, .. } => {
                // The folder may be another one by now: whoever has made it anew wants the file in there.
                let place = walk(path)?;
                match place.entry.as_ref().map(kind) {
                    None | Some(FileType::RegularFile) if !place.is_descriptor => {
                        write_file(&place, bytes, durably)
                    }
                    _ => open_special(&place)?.write_all(bytes),
                }
            }
            Kind::Open { file, .. } => {
                file.set_len(0)?;
                (&*file).write_all(bytes)
            }
            Kind::Device(file) => (&*file).write_all(bytes),
            Kind::Pipe(path) => {
                let patience = if durably { None } else { Some(Duration::from_secs(5)) };
                open_pipe(path, patience)?.write_all(bytes)
            }
        }
    }
}

/// The last resort: writes a new file of this name, or one like it, into a folder for temporary files.
pub fn rescue(name: &OsStr, bytes: &[u8]) -> io::Result<PathBuf> {
    let mut result = Err(Errno::NOENT.into());
    for folder in [std::env::temp_dir(), "/tmp".into(), "/dev/shm".into(), "/var/tmp".into()] {
        result = rescue_to(&folder, name, bytes);
        if result.is_ok() {
            break;
        }
    }
    result
}

fn rescue_to(folder: &Path, name: &OsStr, bytes: &[u8]) -> io::Result<PathBuf> {
    let place = walk(&std::path::absolute(folder)?.join(name))?;
    let owner = place.folder.stat.st_uid;
    if !place.trust.is_trusted(owner) {
        return Err(refused("the folder", folder.as_os_str(), owner));
    }
    // Names can be taken, by anybody who wants the file to be lost.
    let mut other = place.name.clone();
    other.push(format!(".{:016x}", random()?));
    for name in [&place.name, &other] {
        let Ok(mut file) = create(&place.folder, name) else { continue };
        let result = file.write_all(bytes);
        if result.is_err() {
            let _ = fs::unlinkat(&place.folder.fd, name, AtFlags::empty());
        }
        return result.map(|()| folder.join(name));
    }
    Err(Errno::EXIST.into())
}

/// How a regular file is to be written.
fn way(place: &Place) -> io::Result<Way> {
    let (folder, euid) = (&place.folder.stat, place.trust.euid);
    // In a folder with the sticky bit only these may rename: root, the owner of the file and that of the folder.
    let sticky = folder.st_mode & 0o1000 != 0 && euid != 0;
    if let Some(entry) = &place.entry
        && sticky
        && ![entry.st_uid, folder.st_uid].contains(&euid)
    {
        return Ok(Way::Overwrite);
    }
    match new_file(&place.folder) {
        Ok(New { name: Some(name), .. }) => {
            fs::unlinkat(&place.folder.fd, name, AtFlags::empty())?;
        }
        Ok(_) => {}
        Err(_) if place.entry.is_some() => return Ok(Way::Overwrite),
        Err(error) => return Err(error),
    }
    Ok(Way::Replace)
}

/// An old file that is not writable is to be kept, although its folder would allow to replace it.
fn check_permission(place: &Place) -> io::Result<()> {
    match open(place, OFlags::WRONLY) {
        Err(error) if place.entry.is_some() && error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

fn write_file(place: &Place, bytes: &[u8], durably: bool) -> io::Result<()> {
    if matches!(way(place)?, Way::Replace) {
        match replace(place, bytes, durably) {
            // Something is mounted on the file, or a rule of the file system forbids it.
            Err(error) if place.entry.is_some() && forbids_renaming(&error) => {}
            result => return result,
        }
    }
    let mut file = open_to_overwrite(place)?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    if durably { file.sync_all() } else { Ok(()) }
}

fn forbids_renaming(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::BUSY | Errno::PERM | Errno::ACCESS | Errno::XDEV))
}

/// A file that is about to get its name.
struct New {
    file: File,
    /// A temporary one; None: it has none yet.
    name: Option<String>,
}

fn new_file(folder: &Folder) -> io::Result<New> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    // It is named by way of /proc.
    if Path::new("/proc/self/fd").exists() {
        match fs::openat(&folder.fd, ".", flags, Mode::from_raw_mode(PRIVATE)) {
            Ok(file) => return Ok(New { file: file.into(), name: None }),
            // The file system has no such files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let name = temporary_name()?;
    let file = create(folder, OsStr::new(&name))?;
    Ok(New { file, name: Some(name) })
}

/// Creates a file that was not there.
fn create(folder: &Folder, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(fs::openat(&folder.fd, name, flags, Mode::from_raw_mode(PRIVATE))?.into())
}

/// A name that nobody can have taken.
fn temporary_name() -> io::Result<String> {
    Ok(format!(".gmon-{:016x}", random()?))
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The rights that the umask leaves to a new file. Where it is unknown, others get none.
fn allowed() -> u32 {
    let umask = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
        u32::from_str_radix(line.trim(), 8).ok()
    };
    READ_AND_WRITE & !umask().unwrap_or(0o077)
}

fn replace(place: &Place, bytes: &[u8], durably: bool) -> io::Result<()> {
    let folder = &place.folder.fd;
    let New { mut file, mut name } = new_file(&place.folder)?;
    let old = place.entry.as_ref().map_or(READ_AND_WRITE, |old| old.st_mode);
    let mut put = || -> io::Result<()> {
        file.write_all(bytes)?;
        // Only now, so that nobody opens it before it is whole.
        fs::fchmod(&file, Mode::from_raw_mode(allowed() & old))?;
        if durably {
            file.sync_all()?;
        }
        let temporary = match name.take() {
            Some(temporary) => temporary,
            None => {
                if place.entry.is_none() && link(&file, folder, &place.name).is_ok() {
                    return Ok(());
                }
                // A link takes no other's place, but a renamed file does.
                let temporary = temporary_name()?;
                link(&file, folder, OsStr::new(&temporary))?;
                temporary
            }
        };
        let renamed = fs::renameat(folder, &temporary, folder, &place.name);
        name = renamed.is_err().then_some(temporary);
        Ok(renamed?)
    };
    let result = put();
    if let Some(temporary) = name {
        let _ = fs::unlinkat(folder, temporary, AtFlags::empty());
    }
    result
}

/// Gives a name to a file that has none.
fn link(file: &File, folder: impl AsFd, name: &OsStr) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let this = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(fs::linkat(fs::CWD, this, folder, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Opens a file to write into. Where others can write to the folder they may have put a file there that is not meant,
/// even one of ours by a hard link.
fn open_to_overwrite(place: &Place) -> io::Result<File> {
    let Some(entry) = &place.entry else { return Err(Errno::NOENT.into()) };
    let euid = place.trust.euid;
    if !place.folder.is_trusted {
        if entry.st_uid != euid {
            return Err(refused("the file", &place.name, entry.st_uid));
        }
        if entry.st_nlink > 1 {
            let text = "the file has other names, and another user can have given it this one";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
    }
    let file = open(place, OFlags::WRONLY)?;
    let mode = entry.st_mode & 0o7777;
    if mode & !allowed() != 0 && (entry.st_uid == euid || euid == 0) {
        fs::fchmod(&file, Mode::from_raw_mode(mode & allowed()))?;
    }
    Ok(file)
}

/// Opens a pipe or a device, if it is not another user's.
fn open_special(place: &Place) -> io::Result<File> {
    if !place.entry_is_trusted() {
        let owner = place.entry.as_ref().map_or(0, |entry| entry.st_uid);
        return Err(refused("the pipe or device", &place.name, owner));
    }
    open(place, OFlags::WRONLY)
}

fn has_no_reader(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NXIO)
}

/// Opens a pipe when somebody reads it.
fn open_pipe(path: &Path, mut patience: Option<Duration>) -> io::Result<File> {
    const INTERVAL: Duration = Duration::from_millis(100);
    loop {
        match walk(path).and_then(|place| open_special(&place)) {
            Err(error) if has_no_reader(&error) && patience != Some(Duration::ZERO) => {
                patience = patience.map(|left| left.saturating_sub(INTERVAL));
                std::thread::sleep(INTERVAL);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests;
