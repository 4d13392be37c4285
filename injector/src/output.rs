//! Where files go: checked before the program runs, written after it, never left half written.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use crate::sys;

/// How the profile is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Naming {
    /// As -o says, or gmon.out.
    Fixed(PathBuf),
    /// GMON_OUT_PREFIX: the program's process number is added.
    Prefix(OsString),
}

pub(crate) fn naming(option: Option<PathBuf>, prefix: Option<OsString>) -> Naming {
    match (option, prefix) {
        (Some(path), _) => Naming::Fixed(path),
        (None, Some(prefix)) if !prefix.is_empty() => Naming::Prefix(prefix),
        _ => Naming::Fixed("gmon.out".into()),
    }
}

impl Naming {
    /// The same from any folder.
    pub(crate) fn absolute(&self) -> Naming {
        let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        match self {
            Naming::Fixed(path) => Naming::Fixed(absolute(path)),
            Naming::Prefix(prefix) => Naming::Prefix(absolute(Path::new(prefix)).into()),
        }
    }

    fn path(&self, pid: u32) -> PathBuf {
        match self {
            Naming::Fixed(path) => path.clone(),
            Naming::Prefix(prefix) => {
                let mut name = prefix.clone();
                name.push(format!(".{pid}"));
                name.into()
            }
        }
    }

    /// Checks that the profile can be written, whatever the process number will be.
    pub(crate) fn check(&self) -> Result<Output> {
        let other = match self {
            Naming::Fixed(_) => "name another file with -o FILE",
            Naming::Prefix(_) => "name another with GMON_OUT_PREFIX or -o FILE",
        };
        let path = self.path(std::process::id());
        let target = target(&path)
            .with_context(|| format!("cannot write the profile to {}; {other}", path.display()))?;
        Ok(Output { naming: self.clone(), target })
    }
}

/// A place for the profile that was found good.
#[derive(Debug)]
pub(crate) struct Output {
    naming: Naming,
    target: Target,
}

/// Where a profile ended up.
#[derive(Debug)]
pub(crate) struct Written {
    /// As the user would type it.
    pub(crate) path: PathBuf,
    /// Why it is not where it should be.
    pub(crate) detour: Option<anyhow::Error>,
}

impl Output {
    /// The profile's file, if it is one and its name is known already.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.target.file().filter(|_| matches!(self.naming, Naming::Fixed(_)))
    }

    /// Writes the first process's profile; where that has become impossible, to a temporary folder.
    pub(crate) fn write(&self, pid: u32, bytes: &[u8]) -> Result<Written> {
        let path = self.naming.path(pid);
        let result = match &self.naming {
            Naming::Fixed(_) => self.target.write(bytes),
            // Its name is known only now.
            Naming::Prefix(_) => target(&path).and_then(|target| target.write(bytes)),
        };
        written(path, result, &format!("gmon.out.{pid}"), bytes)
    }

    /// Writes another process's profile, beside the first one's. `executed`: profiles of that process so far.
    pub(crate) fn write_other(&self, pid: u32, executed: u32, bytes: &[u8]) -> Result<Written> {
        let mut suffix = format!(".{pid}");
        if executed > 0 {
            suffix.push_str(&format!(".{executed}"));
        }
        let mut name = match (&self.naming, &self.target) {
            // A pipe or a device takes one profile.
            (Naming::Fixed(_), Target::Device(_) | Target::Pipe(_)) => OsString::from("gmon.out"),
            (Naming::Fixed(path), _) => path.clone().into_os_string(),
            (Naming::Prefix(prefix), _) => prefix.clone(),
        };
        name.push(&suffix);
        let path = PathBuf::from(name);
        let result = target(&path).and_then(|target| target.write(bytes));
        written(path, result, &format!("gmon.out{suffix}"), bytes)
    }
}

/// `result` of writing to `path`; if that failed, where else the profile is.
fn written(path: PathBuf, result: io::Result<()>, other: &str, bytes: &[u8]) -> Result<Written> {
    let Err(error) = result else { return Ok(Written { path, detour: None }) };
    let detour = anyhow!("cannot write the profile to {}: {}", path.display(), sys::reason(&error));
    for folder in [std::env::temp_dir(), "/tmp".into(), "/dev/shm".into(), "/var/tmp".into()] {
        let path = folder.join(other);
        if rescue(&path, bytes).is_ok() {
            return Ok(Written { path, detour: Some(detour) });
        }
    }
    Err(detour.context("the profile is lost"))
}

/// A file that will be written later, and can be as far as one can tell.
#[derive(Debug)]
pub(crate) enum Target {
    /// A new file takes the place of the old one, if any, in one step. Absolute.
    Replace(PathBuf),
    /// The folder takes no new files: overwrite.
    Overwrite(PathBuf),
    /// No regular file.
    Device(File),
    /// A named pipe without a reader: opened when there is something to read.
    Pipe(PathBuf),
}

/// Finds out how a file can be written, and leaves no trace of having tried.
/// Where --stats goes.
pub(crate) fn stats_target(path: &Path) -> Result<Target> {
    target(path)
        .with_context(|| format!("cannot write to {}; name another file with --stats FILE", path.display()))
}

pub(crate) fn target(path: &Path) -> io::Result<Target> {
    // `new/` would be a folder. The path's parts no longer show it.
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    let absolute = std::path::absolute(path)?;
    match fs::metadata(&absolute) {
        Ok(metadata) if metadata.is_dir() => Err(io::Error::from_raw_os_error(libc::EISDIR)),
        Ok(metadata) if metadata.is_file() => {
            OpenOptions::new().append(true).open(&absolute)?;
            let real = fs::canonicalize(&absolute)?;
            Ok(if try_create(&real).is_ok() { Target::Replace(real) } else { Target::Overwrite(real) })
        }
        Ok(metadata) => match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&absolute) {
            Ok(file) => {
                sys::set_blocking(&file)?;
                Ok(Target::Device(file))
            }
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && metadata.file_type().is_fifo() => {
                Ok(Target::Pipe(absolute))
            }
            Err(error) => Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let real = final_name(&absolute)?;
            try_create(&real)?;
            Ok(Target::Replace(real))
        }
        Err(error) => Err(error),
    }
}

impl Target {
    /// The regular file that is written, by its real name.
    pub(crate) fn file(&self) -> Option<&Path> {
        match self {
            Target::Replace(path) | Target::Overwrite(path) => Some(path),
            Target::Device(_) | Target::Pipe(_) => None,
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Target::Replace(path) => replace(path, bytes),
            Target::Overwrite(path) => {
                OpenOptions::new().write(true).truncate(true).open(path)?.write_all(bytes)
            }
            Target::Device(file) => (&*file).write_all(bytes),
            Target::Pipe(path) => open_pipe(path)?.write_all(bytes),
        }
    }
}

/// Where a name that does not exist leads: through links to a place in a folder that does.
fn final_name(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..40 {
        let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from_raw_os_error(libc::EISDIR));
        };
        let folder = fs::canonicalize(folder)?;
        let real = folder.join(name);
        match fs::read_link(&real) {
            Ok(link) => path = folder.join(link),
            Err(_) => return Ok(real),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// A name beside the target, for a file that is about to take its place.
fn beside(path: &Path) -> PathBuf {
    let mut name = OsString::from(".gprofinject-");
    name.push(std::process::id().to_string());
    name.push("-");
    // Leaves room in a file name, which has at most 255 bytes.
    let own = path.file_name().unwrap_or(OsStr::new("gmon.out")).to_string_lossy();
    name.push(own.chars().take(48).collect::<String>());
    path.with_file_name(name)
}

fn create(path: &Path, mode: u32) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).custom_flags(libc::O_NOFOLLOW).mode(mode).open(path)
}

fn try_create(path: &Path) -> io::Result<()> {
    // The longest of all names: the target's own.
    let trial = beside(path);
    create(&trial, 0o600)?;
    fs::remove_file(&trial)?;
    if path.file_name().is_some_and(|name| name.len() > 255) {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    Ok(())
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let trial = beside(path);
    let mut file = create(&trial, 0o666)?;
    let keep_mode = || -> io::Result<()> {
        match fs::metadata(path) {
            Ok(old) => file.set_permissions(old.permissions()),
            Err(_) => Ok(()),
        }
    };
    let result = keep_mode().and_then(|()| file.write_all(bytes)).and_then(|()| fs::rename(&trial, path));
    if result.is_err() {
        let _ = fs::remove_file(&trial);
    }
    result
}

/// The last resort, in a folder that others may write to as well.
fn rescue(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let result = create(path, 0o600)?.write_all(bytes);
    if result.is_err() {
        let _ = fs::remove_file(path);
    }
    result
}

/// Opens a pipe that somebody reads, now or within a few seconds: to open it for ever is to hang.
fn open_pipe(path: &Path) -> io::Result<File> {
    let mut left = 50;
    loop {
        match OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
            // There is a reader, so this one returns, and its writes wait for the reader.
            Ok(_probe) => return OpenOptions::new().write(true).open(path),
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) && left > 0 => {
                left -= 1;
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn an_option_beats_the_prefix() {
        let prefix = || Some(OsString::from("p"));
        assert_eq!(naming(Some("o".into()), prefix()), Naming::Fixed("o".into()));
        assert_eq!(naming(None, prefix()).path(7), Path::new("p.7"));
        assert_eq!(naming(None, Some("".into())), Naming::Fixed("gmon.out".into()));
    }

    #[test]
    fn checking_leaves_no_trace_and_writing_keeps_links_and_modes() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let new = target(&at("new")).expect("writable");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 0);
        new.write(b"one").expect("written");

        fs::set_permissions(at("new"), fs::Permissions::from_mode(0o640)).expect("mode");
        symlink("new", at("link")).expect("link");
        target(&at("link")).expect("writable").write(b"two").expect("written");
        assert_eq!(fs::read(at("new")).expect("there"), b"two");
        assert!(fs::symlink_metadata(at("link")).expect("there").is_symlink());
        assert_eq!(fs::metadata(at("new")).expect("there").permissions().mode() & 0o777, 0o640);

        symlink("later", at("dangling")).expect("link");
        target(&at("dangling")).expect("writable").write(b"three").expect("written");
        assert_eq!(fs::read(at("later")).expect("there"), b"three");
        assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 4);
    }

    #[test]
    fn impossible_places_are_errors() {
        let folder = tempfile::tempdir().expect("a folder");
        let errno = |path: &Path| target(path).expect_err("an error").raw_os_error();
        assert_eq!(errno(folder.path()), Some(libc::EISDIR));
        assert_eq!(errno(&folder.path().join("no/gmon.out")), Some(libc::ENOENT));
        assert_eq!(errno(&folder.path().join("new/")), Some(libc::EISDIR));
        assert_eq!(errno(&folder.path().join("x".repeat(256))), Some(libc::ENAMETOOLONG));
        assert!(target(Path::new("/dev/null")).expect("a device").write(b"x").is_ok());
        assert!(target(Path::new("/dev/full")).expect("a device").write(b"x").is_err());
    }
}
