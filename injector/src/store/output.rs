//! The files for profiles and `--stats`: checked before the program runs, and written after it by
//! [`gmon::output`].

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use gmon::output::{self, Target};
use serde::{Deserialize, Serialize};

use crate::os::{limits, sys};
use crate::store::rank::Suffix;

/// How the name of the profile is determined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Naming {
    /// The name given by `-o`, or gmon.out.
    Fixed(PathBuf),
    /// The value of GMON_OUT_PREFIX, to which the program's process number is added.
    Prefix(OsString),
}

/// Determines the naming from the option `-o`, the value of GMON_OUT_PREFIX, and what is added for a process of a
/// parallel job.
pub(crate) fn naming(option: Option<PathBuf>, prefix: Option<OsString>, rank: &Suffix) -> Naming {
    match (option, prefix) {
        (Some(path), _) => Naming::Fixed(rank.of(path)),
        (None, Some(mut prefix)) if !prefix.is_empty() => {
            prefix.push(rank.text());
            Naming::Prefix(prefix)
        }
        _ => Naming::Fixed(rank.of("gmon.out".into())),
    }
}

impl Naming {
    /// Returns the same naming with an absolute path.
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
    ///
    /// # Errors
    /// It cannot.
    pub(crate) fn check(&self) -> Result<Output> {
        let other = match self {
            Naming::Fixed(_) => "; name another file with -o FILE",
            Naming::Prefix(_) => "; name another with GMON_OUT_PREFIX or -o FILE",
        };
        let path = self.path(std::process::id());
        let target = Target::check(&path).map_err(|error| {
            let other = limits::unless_behind(&error, other);
            anyhow::Error::new(error)
                .context(format!("cannot write the profile to {}{other}", path.display()))
        })?;
        let beside = beside(&path);
        let recording = match (self, target.is_stream()) {
            (Naming::Fixed(_), false) => {
                if path.as_os_str().as_bytes().ends_with(ENDING) {
                    bail!(
                        "the name {} is that of a recording, which is written beside the profile; name the profile without \
                         .pb.gz with -o FILE",
                        path.display()
                    );
                }
                is_replaceable(&beside).map_err(|error| {
                    let why = sys::reason(&error);
                    anyhow!("cannot write the recording to {}{other}: {why}", beside.display())
                })?;
                // In a folder that takes no new files, it goes to a temporary folder in the end.
                Target::check(&beside).ok()
            }
            _ => None,
        };
        Ok(Output { naming: self.clone(), target, recording })
    }
}

/// What the names of recordings end in.
const ENDING: &[u8] = b".pb.gz";

/// Returns the name of the recording beside a profile: `gmon.pb.gz` beside `gmon.out`, and `NAME.pb.gz` beside `NAME` or `NAME.out`.
fn beside(profile: &Path) -> PathBuf {
    let file = profile.file_name().unwrap_or_default().as_bytes();
    // gmon.out.rank3 becomes gmon.rank3.pb.gz.
    let (stem, rest) = match file.strip_prefix(b"gmon.out") {
        Some(rest) => (&b"gmon"[..], rest),
        None => (file.strip_suffix(b".out").unwrap_or(file), &b""[..]),
    };
    profile.with_file_name(OsStr::from_bytes(&[stem, rest, ENDING].concat()))
}

/// Checks that a file is none, or empty, or compressed with gzip, as an earlier recording is. The name was not chosen for it, so another
/// file with this name is the user's.
fn is_replaceable(path: &Path) -> io::Result<()> {
    const GZIP: [u8; 2] = [0x1f, 0x8b];
    let Ok(mut file) = fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) else {
        return Ok(());
    };
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mut start = Vec::new();
    let is_other = metadata.is_file()
        && (&mut file).take(GZIP.len() as u64).read_to_end(&mut start).is_ok()
        && !start.is_empty()
        && start != GZIP;
    match is_other {
        true => Err(io::Error::other("it is there, and no recording")),
        false => Ok(()),
    }
}

/// Removes the recording of an earlier run, and tells whether there was one.
fn is_removed(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|entry| entry.is_file() && entry.len() > 0)
        && fs::remove_file(path).is_ok()
}

/// A place for the profile that has passed the check.
#[derive(Debug)]
pub(crate) struct Output {
    naming: Naming,
    target: Target,
    /// The place for the recording beside it, if the name is already known.
    recording: Option<Target>,
}

/// Where a profile was written.
#[derive(Debug)]
pub(crate) struct Written {
    /// The path as the user would type it.
    pub(crate) path: PathBuf,
    /// Why it is not where it should be.
    pub(crate) detour: Option<anyhow::Error>,
}

impl Output {
    /// Returns the profile's file, if it is a regular file and its name is already known.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.target.file().filter(|_| matches!(self.naming, Naming::Fixed(_)))
    }

    /// Returns the name of the first process's profile.
    pub(crate) fn first(&self, pid: u32) -> PathBuf {
        self.naming.path(pid)
    }

    /// Writes the first process's profile. If that has become impossible, writes it to a temporary folder.
    ///
    /// # Errors
    /// It cannot be written there either.
    pub(crate) fn write(&self, pid: u32, bytes: &[u8]) -> Result<Written> {
        let path = self.naming.path(pid);
        let result = match &self.naming {
            Naming::Fixed(_) => self.target.write(bytes),
            // The name is known only now.
            Naming::Prefix(_) => output::write(&path, bytes),
        };
        written(path, result, &format!("gmon.out.{pid}"), bytes)
    }

    /// Writes the profile of a process that still runs, and is not the first one, beside the first one's.
    ///
    /// # Errors
    /// It cannot be written, not even to a temporary folder.
    pub(crate) fn write_other(&self, pid: u32, bytes: &[u8]) -> Result<Written> {
        let mut name = match (&self.naming, &self.target) {
            // A pipe or a device takes one profile only, and so does a descriptor.
            (Naming::Fixed(_), target) if target.is_stream() => OsString::from("gmon.out"),
            (Naming::Fixed(path), _) => path.clone().into_os_string(),
            (Naming::Prefix(prefix), _) => prefix.clone(),
        };
        name.push(format!(".{pid}"));
        let path = PathBuf::from(name);
        let result = output::write(&path, bytes);
        written(path, result, &format!("gmon.out.{pid}"), bytes)
    }

    /// Writes the recording beside a profile, or to a temporary folder if that has become impossible or if the profile
    /// `is_detoured` to there. `pid` is the process of the profile. What an earlier run has left beside the new profile is removed then: nobody shall read it as this run's.
    ///
    /// # Errors
    /// It cannot be written there either.
    pub(crate) fn write_recording(
        &self,
        profile: &Path,
        is_detoured: bool,
        pid: u32,
        bytes: &[u8],
    ) -> Result<Written> {
        let path = beside(profile);
        let other = format!("gmon.{pid}.pb.gz");
        if is_detoured && let Ok(path) = output::rescue(OsStr::new(&other), bytes) {
            // Why the profile is there has been said.
            return Ok(Written { path, detour: None });
        }
        let write = || match (&self.recording, &self.naming) {
            (Some(target), Naming::Fixed(first)) if first == profile => target.write(bytes),
            _ => output::write(&path, bytes),
        };
        let result = is_replaceable(&path).and_then(|()| {
            write().or_else(|error| match is_removed(&path) {
                // The room that it took may be enough.
                true => write(),
                false => Err(error),
            })
        });
        written(path, result, &other, bytes)
    }

    /// Returns the recording's file, if its name is already known.
    pub(crate) fn recording_file(&self) -> Option<&Path> {
        self.recording.as_ref().and_then(Target::file)
    }

    /// Whether the profile goes to a pipe, a device or a descriptor, beside which there are no files.
    pub(crate) fn is_stream(&self) -> bool {
        self.target.is_stream()
    }

    /// Writes a copy of a program beside a profile of it: `PROFILE.program`.
    ///
    /// # Errors
    /// It is too large, or cannot be written.
    pub(crate) fn keep_program(&self, profile: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
        /// The size in bytes above which no copy is made, because a user would not expect it.
        const MOST: usize = 256 << 20;
        if bytes.is_empty() || bytes.len() > MOST || self.target.is_stream() {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let mut name = profile.as_os_str().to_owned();
        name.push(".program");
        output::write(Path::new(&name), bytes)?;
        Ok(name.into())
    }
}

/// Returns where a profile was written: to `path` if `result` says so, and otherwise to a file of the name
/// `other` in a temporary folder.
fn written(path: PathBuf, result: io::Result<()>, other: &str, bytes: &[u8]) -> Result<Written> {
    let Err(error) = result else { return Ok(Written { path, detour: None }) };
    let what = if path.as_os_str().as_bytes().ends_with(ENDING) { "recording" } else { "profile" };
    let detour = anyhow!("cannot write the {what} to {}: {}", path.display(), sys::reason(&error));
    match output::rescue(OsStr::new(other), bytes) {
        Ok(path) => Ok(Written { path, detour: Some(detour) }),
        Err(_) => Err(detour.context(format!("the {what} is lost"))),
    }
}

/// Checks the file for `--stats`. `-` is the standard output that the injector has inherited.
///
/// # Errors
/// It cannot be written.
pub(crate) fn stats_target(path: &Path) -> Result<Target> {
    let target = if path == Path::new("-") { Target::standard_output() } else { Target::check(path) };
    target.map_err(|error| {
        let other = limits::unless_behind(&error, "; name another file with --stats FILE");
        anyhow::Error::new(error).context(format!("cannot write to {}{other}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_recordings_are_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.pb.gz");
        let is_replaceable = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("a file");
            is_replaceable(&path).is_ok()
        };
        assert!(super::is_replaceable(&path).is_ok());
        assert!(is_replaceable(b"") && is_replaceable(&[0x1f, 0x8b]) && is_replaceable(&[0x1f, 0x8b, 8, 0]));
        assert!(!is_replaceable(b"x") && !is_replaceable(&[0x1f]) && !is_replaceable(b"text"));
    }

    #[test]
    fn an_option_beats_the_prefix() {
        let prefix = || Some(OsString::from("p"));
        let none = Suffix::default();
        assert_eq!(naming(Some("o".into()), prefix(), &none), Naming::Fixed("o".into()));
        assert_eq!(naming(None, prefix(), &none).path(7), Path::new("p.7"));
        assert_eq!(naming(None, Some("".into()), &none), Naming::Fixed("gmon.out".into()));
    }
}
