//! Where a process writes what it says of its code, and whether it was the process that wrote it.

use std::fs::File;
use std::io::{self, BufReader, Error};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::generated::jitdump;
use crate::generated::map;
use crate::generated::table::Table;
use crate::os::proc;
use crate::os::say::Voice;
use crate::os::sys;

/// The length in bytes above which a file is not read.
pub(super) const MAP_LONGEST: u64 = 256 << 20;
const DUMP_LONGEST: u64 = 4 << 30;
/// How much older than the process a file may seem, because the clocks of file systems are coarse.
const COARSE: Duration = Duration::from_millis(50);

/// What has to be known of a process to find its files and to trust them, also when it has ended.
#[derive(Debug, Default)]
pub(crate) struct Origin(Option<Known>);

#[derive(Debug)]
pub(super) struct Known {
    /// The number that the process has for itself.
    pub(super) pid: u32,
    /// Its root folder, unless that is the injector's own.
    pub(super) root: Option<OwnedFd>,
    pub(super) user: u32,
    /// When it began; an older file belongs to another process that had the number.
    pub(super) began: SystemTime,
}

impl Origin {
    /// Returns what is known of a process. If it has ended, or the injector may not examine it, its files are not read.
    pub(crate) fn of(pid: i32) -> Origin {
        Origin(known(pid))
    }

    /// Whether a file has the name of a jitdump of the process.
    pub(crate) fn is_dump(&self, file: &str) -> bool {
        self.0.as_ref().is_some_and(|known| jitdump::is_dump(file, Some(known.pid)))
    }

    /// Reads what the process says of its code: its map, and these jitdumps. `-v` shows what was read, and why a file was not.
    pub(crate) fn read(&self, dumps: &[Arc<str>], voice: Voice) -> Table {
        let mut table = Table::default();
        let Some(known) = &self.0 else { return table };
        let map = format!("/tmp/perf-{}.map", known.pid);
        let files = std::iter::once(&*map).chain(dumps.iter().map(|dump| &**dump));
        for file in files {
            let before = table.len();
            match known.add(file, file == map, &mut table) {
                Ok(is_whole) => {
                    let count = gmon::counted((table.len() - before) as u64, "function", "functions");
                    let rest = if is_whole { "" } else { "; the rest is left out: there are too many" };
                    voice.detail(format_args!("{}: {count} made at run time{rest}", gmon::visible(file)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let why = sys::reason(&error);
                    voice.detail(format_args!("{} is not read: {why}", gmon::visible(file)));
                }
            }
        }
        table.sort();
        table
    }
}

/// Returns what is known of a process.
fn known(pid: i32) -> Option<Known> {
    let status = proc::Status::of(pid).ok()?;
    let user = status.field("Uid")?.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let pid_inside = status.number_inside().unwrap_or(pid).cast_unsigned();
    let root = match is_own_root(pid) {
        true => None,
        false => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Some(fs::open(format!("/proc/{pid}/root"), flags, Mode::empty()).ok()?)
        }
    };
    let began = SystemTime::now().checked_sub(proc::age(pid)?.saturating_add(COARSE))?;
    Some(Known { pid: pid_inside, root, user, began })
}

/// Whether a process finds the same files by the same names as the injector.
fn is_own_root(pid: i32) -> bool {
    let file = |path: String| std::fs::metadata(path).ok().map(|stat| (stat.dev(), stat.ino()));
    let same = |name: &str| {
        let other = file(format!("/proc/{pid}/{name}"));
        other.is_some() && other == file(format!("/proc/self/{name}"))
    };
    same("ns/mnt") && same("root")
}

impl Known {
    /// Adds what a file says. Returns whether there was room for all of it.
    pub(super) fn add(&self, path: &str, is_map: bool, table: &mut Table) -> io::Result<bool> {
        let longest = if is_map { MAP_LONGEST } else { DUMP_LONGEST };
        let file = self.open(path, is_map)?;
        let len = file.metadata()?.len();
        let mut reader = BufReader::new(io::Read::take(file, longest));
        let is_whole = match is_map {
            true => map::read(&mut reader, table)?,
            false => jitdump::read(&mut reader, table)?,
        };
        Ok(is_whole && len <= longest)
    }

    /// Opens a file that only the process's user or root can have written. The folder of the map may be a symbolic link, as it is on some
    /// systems. The kernel says where a jitdump is, so that there is no link on the way to it.
    fn open(&self, path: &str, is_map: bool) -> io::Result<File> {
        let found = match &self.root {
            Some(root) => inside(root.as_fd(), path, is_map)?,
            None => {
                let root = fs::open("/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
                match inside(root.as_fd(), path, is_map) {
                    // Before Linux 5.6, and in containers that forbid the call.
                    Err(Errno::NOSYS | Errno::PERM) => fs::open(path, FOUND, Mode::empty())?,
                    found => found?,
                }
            }
        };
        let file = sys::regular(&found)?;
        let stat = fs::fstat(&found)?;
        if stat.st_uid != self.user && stat.st_uid != 0 {
            return Err(Error::other(format!("it belongs to user {}", stat.st_uid)));
        }
        // Another user may have made a link to a file that is no map.
        if stat.st_nlink != 1 {
            return Err(Error::other("it has several names"));
        }
        // The kernel has said that the process has mapped a jitdump.
        let changed = file.metadata()?.modified().unwrap_or(UNIX_EPOCH);
        if is_map && changed < self.began {
            return Err(Error::other("it is older than the process"));
        }
        Ok(file)
    }
}

/// A file is looked at before it is opened: opening a pipe would wait, and opening a device may have any effect.
const FOUND: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Looks a file up in a root folder.
fn inside(root: BorrowedFd<'_>, path: &str, may_folders_be_links: bool) -> Result<OwnedFd, Errno> {
    let links = if may_folders_be_links { ResolveFlags::NO_MAGICLINKS } else { ResolveFlags::NO_SYMLINKS };
    let found = fs::openat2(root, path, FOUND, Mode::empty(), ResolveFlags::IN_ROOT | links)?;
    Ok(found)
}
