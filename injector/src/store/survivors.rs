//! Finds the processes that still count in a run's region files: every process that has one mapped.
//!
//! The number in a region's header is not enough. A child that could create no file of its own counts in its
//! parent's and may outlive it; the number may be one of another PID namespace; and a process whose first
//! thread has ended looks empty from outside. (The kernel also knows which files are open for writing, see
//! `sys::is_open_for_writing`, but not on every file system; overlayfs is an exception.)

use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use gprofinject_abi::REGION_SUFFIX;

use crate::store::private_folder::PrivateFolder;
use crate::store::run_folder::region_in;

/// For how long a process that is about to end is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// The processes that still count.
#[derive(Debug, Default)]
pub(crate) struct Survivors {
    /// The regions that are mapped, by their names in the run folder.
    mapped: HashSet<String>,
    /// The processes that may not be examined.
    closed: HashSet<u32>,
}

impl Survivors {
    /// Examines all processes, repeatedly for a short time as long as some still count.
    pub(crate) fn patiently(folder: &PrivateFolder) -> Survivors {
        let start = Instant::now();
        loop {
            let survivors = Survivors::of(folder);
            if survivors.mapped.is_empty() || start.elapsed() > PATIENCE {
                return survivors;
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Examines all processes once.
    pub(crate) fn of(folder: &PrivateFolder) -> Survivors {
        let mut survivors = Survivors::default();
        // The names of the folders above it depend on the observer: the process may have another root folder.
        let Some(run) = folder.path().file_name() else { return survivors };
        let run = [b"/", run.as_encoded_bytes(), b"/"].concat();
        for pid in numbers(Path::new("/proc")) {
            match maps(pid) {
                Ok(maps) => {
                    // Any process can map a file of that name. It counts only if it is the file in the
                    // folder, as long as that exists.
                    let found = regions(&maps, &run).into_iter();
                    let found = found.filter(|(name, inode)| {
                        region_in(folder, name).inode().is_none_or(|known| known == *inode)
                    });
                    survivors.mapped.extend(found.map(|(name, _)| name));
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    survivors.closed.insert(pid);
                }
                // The process has ended meanwhile.
                Err(_) => {}
            }
        }
        survivors
    }

    /// Whether a process counts in any region.
    pub(crate) fn any(&self) -> bool {
        !self.mapped.is_empty()
    }

    /// Whether a process counts in the region of that name, whose header names these processes. `leased` is
    /// what the kernel says about the file.
    pub(crate) fn count_in(
        &self,
        name: &str,
        leased: Option<bool>,
        processes: impl IntoIterator<Item = u32>,
    ) -> bool {
        // Whether a process that may not be examined has the file mapped, or only has the same number (1 in a
        // namespace of its own, for example), cannot be determined.
        let named = || processes.into_iter().any(|pid| self.closed.contains(&pid));
        self.mapped.contains(name) || leased.unwrap_or_else(named)
    }
}

/// Reads the mappings of a process, also if its first thread has ended.
fn maps(pid: u32) -> io::Result<Vec<u8>> {
    let whole = std::fs::read(format!("/proc/{pid}/maps"))?;
    if !whole.is_empty() {
        return Ok(whole);
    }
    let threads = format!("/proc/{pid}/task");
    let of = |tid| std::fs::read(format!("{threads}/{tid}/maps")).ok();
    Ok(numbers(Path::new(&threads)).filter_map(of).find(|maps| !maps.is_empty()).unwrap_or_default())
}

/// Returns the entries of a folder that are numbers.
fn numbers(folder: &Path) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the names of a run's regions in the text of mappings, and their inode numbers. `run` is the
/// folder's own name between slashes.
fn regions(maps: &[u8], run: &[u8]) -> Vec<(String, u64)> {
    let lines = maps.split(|&byte| byte == b'\n');
    let names = lines.filter_map(|line| {
        let at = line.windows(run.len()).position(|part| part == run)?;
        let name = str::from_utf8(line.get(at + run.len()..)?).ok()?;
        let mut fields = str::from_utf8(line.get(..at)?).ok()?.split(' ');
        // The path of a file that was removed is followed by a word.
        let name = name.split(' ').next()?.strip_suffix(REGION_SUFFIX)?.to_owned();
        Some((name, fields.nth(4)?.parse().ok()?))
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_found_in_mappings() {
        let maps = b"7f00-7f10 rw-s 00000000 00:1b 5 /dev/shm/gprofinject-Ab1/0.region\n\
            7f10-7f20 rw-s 00000000 00:1b 5 /gprofinject-Ab1/f77.region (deleted)\n\
            7f20-7f30 rw-s 00000000 00:01 7 /memfd:/dev/shm/gprofinject-Ab1/1.region (deleted)\n\
            7f20-7f30 r--s 00000000 00:1b 6 /dev/shm/gprofinject-Ab1/0.plan\n\
            7f20-7f30 r--s 00000000 00:1b 6 /tmp/\xff\n\
            7f30-7f40 rw-s 00000000 00:1b 9 /dev/shm/gprofinject-Ab2/1.region\n\
            7fff-8000 rw-p 00000000 00:00 0\n";
        let found = [("0".to_owned(), 5), ("f77".to_owned(), 5), ("1".to_owned(), 7)];
        assert_eq!(regions(maps, b"/gprofinject-Ab1/"), found);
        assert!(regions(b"", b"/gprofinject-Ab1/").is_empty());
    }

    #[test]
    fn closed_processes_count_only_where_they_are_named() {
        let survivors = Survivors { mapped: HashSet::from(["0".to_owned()]), closed: HashSet::from([5]) };
        assert!(survivors.count_in("0", None, []));
        // On overlayfs the kernel does not know.
        assert!(survivors.count_in("0", Some(false), []));
        assert!(!survivors.count_in("f4", None, [4]));
        assert!(survivors.count_in("f4", None, [4, 5]));
        assert!(!survivors.count_in("f4", Some(false), [4, 5]));
        assert!(survivors.count_in("f4", Some(true), []));
    }

    #[test]
    fn we_ourselves_are_seen() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        let name = format!("f9{REGION_SUFFIX}");
        std::fs::write(folder.path().join(&name), [1; 100]).expect("written");
        let mapped = |folder: &PrivateFolder| {
            crate::os::mapped::Mapped::new(&folder.open_file(&name).expect("opened")).expect("mapped")
        };
        assert!(!Survivors::of(&folder).any());
        let ours = mapped(&folder);
        assert!(Survivors::of(&folder).count_in("f9", None, []));
        assert_eq!(ours.len(), 100);
        drop(ours);
        assert!(!Survivors::of(&folder).any());
        // Another file of the same name.
        let ours = mapped(&folder);
        folder.replace(&name, &[2; 100]).expect("replaced");
        assert!(!Survivors::of(&folder).any());
        drop(ours);
    }
}
