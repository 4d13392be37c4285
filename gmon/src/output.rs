//! Writes files as a whole: checks that they can be written before there is anything to write, leaves no
//! incomplete file, and is safe for root in places where others can write too.
//!
//! A file that replaces an old one is a new file: it is written without a name (`O_TMPFILE`) and gets the
//! name in one step. So nothing is written into a file that another process has open or has linked there. The
//! new file belongs to the calling user. Its mode is the old one's without the set-user-ID, set-group-ID,
//! sticky and executable bits and without what the umask removes. All steps are relative to the descriptor of
//! the folder, and symbolic links of other users are not followed ([`mod@walk`]).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

mod walk;
use walk::{Folder, Place, kind, open, refused, walk};

/// The bits that a mode may have.
const READ_AND_WRITE: u32 = 0o666;
/// The mode while other users must not read what is written.
const PRIVATE: u32 = 0o600;

/// A file that will be written later and, as far as can be determined, can be.
#[derive(Debug)]
pub struct Target {
    kind: Kind,
    /// The bits that the mode of a new file may have.
    mode: u32,
}

#[derive(Debug)]
enum Kind {
    /// A regular file, or a name for one.
    File {
        /// The absolute path as it was named.
        path: PathBuf,
        /// The absolute path without symbolic links.
        real: PathBuf,
    },
    /// A file that the process already had open, with a name such as `/dev/fd/3`.
    Open { file: File, real: Option<PathBuf> },
    /// A file that is not regular.
    Device(File),
    /// A named pipe without a reader. It is opened when there is something to write.
    Pipe(PathBuf),
}

/// How a regular file is written.
enum Way {
    /// This new file replaces the old one, if there is one.
    Replace(New),
    /// The old file is overwritten, because the folder takes no new files.
    Overwrite,
}

impl Target {
    /// Finds out how a file can be written, and leaves no trace of the attempt.
    ///
    /// # Errors
    /// The file cannot be written, another user could decide what is written to, or it is a program.
    pub fn check(path: &Path) -> io::Result<Target> {
        // `new/` would be a folder, which the path's components do not show.
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
                spare_program(&place)?;
                match way(&place)? {
                    Way::Replace(new) => {
                        new.discard(&place.folder)?;
                        check_permission(&place)?;
                    }
                    Way::Overwrite => drop(open_to_overwrite(&place, READ_AND_WRITE)?),
                }
                Kind::File { real: place.path().unwrap_or_else(|| path.clone()), path }
            }
            Some(other) => match open_special(&place) {
                Ok(file) => Kind::Device(file),
                Err(error) if has_no_reader(&error) && other == FileType::Fifo => Kind::Pipe(path),
                Err(error) => return Err(error),
            },
        };
        Ok(Target { kind: target, mode: READ_AND_WRITE })
    }

    /// Returns standard output as it is now, whatever descriptor 1 means later.
    ///
    /// # Errors
    /// It is closed, or not open for writing.
    pub fn standard_output() -> io::Result<Target> {
        let file = io::stdout().as_fd().try_clone_to_owned()?.into();
        Ok(Target { kind: Kind::Device(file), mode: READ_AND_WRITE })
    }

    /// Returns the same target for a file that no other user may read, if it is a new one.
    pub fn private(self) -> Target {
        Target { mode: PRIVATE, ..self }
    }

    /// Returns the real name of the regular file that is written.
    pub fn file(&self) -> Option<&Path> {
        match &self.kind {
            Kind::File { real, .. } => Some(real),
            Kind::Open { real, .. } => real.as_deref(),
            Kind::Device(_) | Kind::Pipe(_) => None,
        }
    }

    /// Whether only one file can be written here: to a device, a pipe, or a file that was already open.
    pub fn is_stream(&self) -> bool {
        !matches!(self.kind, Kind::File { .. })
    }

    /// Writes the file. If it is a pipe, waits some seconds for a reader.
    ///
    /// # Errors
    /// The file cannot be written, or the pipe gets no reader.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_with(bytes, false)
    }

    /// Writes the file so that it is on disk before the old file is removed. If it is a pipe, waits for a
    /// reader without limit.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_durably(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_with(bytes, true)
    }

    /// Writes the first bytes of a file, which has its name from then on, and returns it so that more can be appended. If it is a
    /// pipe, waits some seconds for a reader.
    ///
    /// # Errors
    /// The file cannot be written, or the pipe gets no reader.
    pub fn begin(&self, bytes: &[u8]) -> io::Result<File> {
        self.begin_with(bytes, false)
    }

    fn write_with(&self, bytes: &[u8], durably: bool) -> io::Result<()> {
        self.begin_with(bytes, durably).map(drop)
    }

    fn begin_with(&self, bytes: &[u8], durably: bool) -> io::Result<File> {
        let all = |mut file: File| file.write_all(bytes).map(|()| file);
        match &self.kind {
            Kind::File { path, .. } => {
                // The folder may have been replaced since. The user then wants the file in the new folder.
                let place = walk(path)?;
                match place.entry.as_ref().map(kind) {
                    None | Some(FileType::RegularFile) if !place.is_descriptor => {
                        write_file(&place, way(&place)?, bytes, durably, self.mode)
                    }
                    _ => all(open_special(&place)?),
                }
            }
            Kind::Open { file, .. } => {
                file.set_len(0)?;
                all(file.try_clone()?)
            }
            Kind::Device(file) => all(file.try_clone()?),
            Kind::Pipe(path) => {
                let patience = if durably { None } else { Some(Duration::from_secs(5)) };
                all(open_pipe(path, patience)?)
            }
        }
    }
}

/// Refuses to replace a program, a library or a script, which is probably a mistake.
fn spare_program(place: &Place) -> io::Result<()> {
    const STARTS: [&[u8]; 2] = [b"\x7fELF", b"#!"];
    let mut start = Vec::new();
    // What cannot be read is not known.
    if let Some(file) = place.entry.is_some().then(|| open(place, OFlags::RDONLY).ok()).flatten()
        && file.take(4).read_to_end(&mut start).is_ok()
        && STARTS.iter().any(|magic| start.starts_with(magic))
    {
        let text = "it is a program, a library or a script, which would be lost";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    Ok(())
}

/// Checks a file and writes it, which takes less than [`Target::check`] and [`Target::write`] do.
///
/// # Errors
/// The file cannot be written, another user could decide what is written to, or it is a program.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if !path.as_os_str().as_bytes().ends_with(b"/") {
        let place = walk(&std::path::absolute(path)?)?;
        let is_regular = matches!(place.entry.as_ref().map(kind), None | Some(FileType::RegularFile));
        if is_regular && !place.is_descriptor {
            spare_program(&place)?;
            let mut way = way(&place)?;
            if let Way::Replace(new) = way {
                if let Err(error) = check_permission(&place) {
                    new.discard(&place.folder)?;
                    return Err(error);
                }
                way = Way::Replace(new);
            }
            return write_file(&place, way, bytes, false, READ_AND_WRITE).map(drop);
        }
    }
    Target::check(path)?.write(bytes)
}

/// Writes a new file with this name, or a similar one, into a folder for temporary files, as a last resort.
/// Returns its path.
///
/// # Errors
/// No such folder can be written to.
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
    // Any user who wants the file to be lost can have taken names.
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

/// Determines how a regular file is written.
fn way(place: &Place) -> io::Result<Way> {
    let (folder, euid) = (&place.folder.stat, place.trust.euid);
    // In a folder with the sticky bit only root, the file's owner and the folder's owner may rename.
    let sticky = folder.st_mode & 0o1000 != 0 && euid != 0;
    if let Some(entry) = &place.entry
        && sticky
        && ![entry.st_uid, folder.st_uid].contains(&euid)
    {
        return Ok(Way::Overwrite);
    }
    match new_file(&place.folder) {
        Ok(new) => Ok(Way::Replace(new)),
        Err(_) if place.entry.is_some() => Ok(Way::Overwrite),
        Err(error) => Err(error),
    }
}

/// Checks that an old file is writable. If it is not, it is kept, although its folder would allow replacing
/// it.
fn check_permission(place: &Place) -> io::Result<()> {
    match open(place, OFlags::WRONLY) {
        Err(error) if place.entry.is_some() && error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

fn write_file(place: &Place, way: Way, bytes: &[u8], durably: bool, mode: u32) -> io::Result<File> {
    if let Way::Replace(new) = way {
        match replace(place, new, bytes, durably, mode) {
            // Something is mounted on the file, or a rule of the file system forbids it.
            Err(error) if place.entry.is_some() && forbids_renaming(&error) => {}
            result => return result,
        }
    }
    let mut file = open_to_overwrite(place, mode)?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    if durably {
        file.sync_all()?;
    }
    Ok(file)
}

fn forbids_renaming(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::BUSY | Errno::PERM | Errno::ACCESS | Errno::XDEV))
}

/// A file that is about to get its name.
struct New {
    file: File,
    /// A temporary name; `None` if it has no name yet.
    name: Option<String>,
}

impl New {
    /// Removes the file.
    fn discard(self, folder: &Folder) -> io::Result<()> {
        match self.name {
            Some(name) => Ok(fs::unlinkat(&folder.fd, name, AtFlags::empty())?),
            None => Ok(()),
        }
    }
}

fn new_file(folder: &Folder) -> io::Result<New> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    // It gets its name by way of /proc.
    if Path::new("/proc/self/fd").exists() {
        match fs::openat(&folder.fd, ".", flags, Mode::from_raw_mode(PRIVATE)) {
            Ok(file) => return Ok(New { file: file.into(), name: None }),
            // The file system does not support such files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let name = temporary_name()?;
    let file = create(folder, OsStr::new(&name))?;
    Ok(New { file, name: Some(name) })
}

/// Creates a file, which must not exist.
fn create(folder: &Folder, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(fs::openat(&folder.fd, name, flags, Mode::from_raw_mode(PRIVATE))?.into())
}

/// Returns a random name that cannot be taken already.
fn temporary_name() -> io::Result<String> {
    Ok(format!(".gmon-{:016x}", random()?))
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Returns the permissions that the umask, which this process does not change, leaves to a new file. If the umask is unknown, other
/// users get none.
fn allowed() -> u32 {
    static ALLOWED: OnceLock<u32> = OnceLock::new();
    let umask = || {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
        u32::from_str_radix(line.trim(), 8).ok()
    };
    *ALLOWED.get_or_init(|| READ_AND_WRITE & !umask().unwrap_or(0o077))
}

fn replace(place: &Place, new: New, bytes: &[u8], durably: bool, mode: u32) -> io::Result<File> {
    let folder = &place.folder.fd;
    let New { mut file, mut name } = new;
    let old = place.entry.as_ref().map_or(READ_AND_WRITE, |old| old.st_mode);
    let mut put = || -> io::Result<()> {
        file.write_all(bytes)?;
        // The mode is set only now, so that no other user opens the file before it is complete.
        fs::fchmod(&file, Mode::from_raw_mode(allowed() & old & mode))?;
        if durably {
            file.sync_all()?;
        }
        let temporary = match name.take() {
            Some(temporary) => temporary,
            None => {
                if place.entry.is_none() && link(&file, folder, &place.name).is_ok() {
                    return Ok(());
                }
                // A link cannot replace a file, but a renamed file can.
                let temporary = temporary_name()?;
                link(&file, folder, OsStr::new(&temporary))?;
                temporary
            }
        };
        let renamed = rename(folder, &temporary, place);
        name = renamed.is_err().then_some(temporary);
        renamed
    };
    let result = put();
    if let Some(temporary) = name {
        let _ = fs::unlinkat(folder, temporary, AtFlags::empty());
    }
    result.map(|()| file)
}

/// Gives the name of the place to a file with a temporary name.
fn rename(folder: &OwnedFd, temporary: &str, place: &Place) -> io::Result<()> {
    // If a file is renamed over another one, ext4 begins to write its data to the disk (`auto_da_alloc`), which takes longer than all
    // else here. It does not if two files exchange their names.
    let exchange = || fs::renameat_with(folder, temporary, folder, &place.name, fs::RenameFlags::EXCHANGE);
    if place.entry.is_some() && exchange().is_ok() {
        // What had the name was perhaps no file any more.
        return match fs::unlinkat(folder, temporary, AtFlags::empty()) {
            Err(error) => exchange().and(Err(error)).map_err(io::Error::from),
            Ok(()) => Ok(()),
        };
    }
    Ok(fs::renameat(folder, temporary, folder, &place.name)?)
}

/// Gives a name to a file that has none.
fn link(file: &File, folder: impl AsFd, name: &OsStr) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let this = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(fs::linkat(fs::CWD, this, folder, name, AtFlags::SYMLINK_FOLLOW)?)
}

/// Opens a file to overwrite it. Where others can write to the folder, they may have put a file there on
/// purpose, even one of the calling user's, by a hard link.
fn open_to_overwrite(place: &Place, most: u32) -> io::Result<File> {
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
    let allowed = allowed() & most;
    if mode & !allowed != 0 && (entry.st_uid == euid || euid == 0) {
        fs::fchmod(&file, Mode::from_raw_mode(mode & allowed))?;
    }
    Ok(file)
}

/// Opens a pipe or a device, if it does not belong to another user.
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

/// Opens a pipe when a process reads it.
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
