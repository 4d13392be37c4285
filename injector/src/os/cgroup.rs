//! The memory that a process's control group may use (memory.max, memory.limit_in_bytes). A process that exceeds it is killed, and can say
//! nothing then.

use std::collections::HashMap;
use std::path::{Component, Path};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::os::proc;

/// For how long a limit is taken for unchanged, so that a program that executes others all the time does not have it read each time.
const FRESH: Duration = Duration::from_secs(1);

/// The limits of control groups, by the lines of /proc/PID/cgroup, with the time at which they were read.
type Known = HashMap<String, (Instant, Option<u64>)>;
static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);

/// The limits of processes, with the time at which each was looked for.
type OfProcesses = HashMap<i32, (Instant, Option<u64>)>;
static OF_PROCESSES: LazyLock<Mutex<OfProcesses>> = LazyLock::new(Mutex::default);

/// Returns the bytes that the control group of a process may use, or one around it, if that is limited.
pub(crate) fn memory(pid: i32) -> Option<u64> {
    let limit = of_process(pid);
    let mut known = OF_PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    known.retain(|_, (since, _)| since.elapsed() < FRESH);
    known.insert(pid, (Instant::now(), limit));
    limit
}

/// Returns the same, or what it was less than a second ago. A process may load many libraries at once; before it executes a program, it
/// may just have entered another group.
pub(crate) fn memory_lately(pid: i32) -> Option<u64> {
    let known = OF_PROCESSES.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).copied();
    match known.filter(|(since, _)| since.elapsed() < FRESH) {
        Some((_, limit)) => limit,
        None => memory(pid),
    }
}

fn of_process(pid: i32) -> Option<u64> {
    let groups = proc::text(format!("/proc/{pid}/cgroup")).ok()?;
    let line = groups.lines().find(|line| place(line).is_some())?;
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, limit)) = known.get(line).filter(|(since, _)| since.elapsed() < FRESH) {
        return *limit;
    }
    // A limit that is not fresh is not used again, and groups may come and go.
    known.retain(|_, (since, _)| since.elapsed() < FRESH);
    let limit = read(line);
    known.insert(line.to_owned(), (Instant::now(), limit));
    limit
}

/// Reads the limit of a group and of those around it.
fn read(line: &str) -> Option<u64> {
    let (root, path, file) = place(line)?;
    let path = Path::new(path.trim_start_matches('/'));
    if path.components().any(|part| part == Component::ParentDir) {
        // It is a group outside of this process's namespace.
        return None;
    }
    let limits = path.ancestors().filter_map(|group| limit(&proc::text(root.join(group).join(file)).ok()?));
    limits.min()
}

/// Returns where the limits of memory are by a line of /proc/PID/cgroup: the file system's folder, the group and the file's name.
fn place(line: &str) -> Option<(&'static Path, &str, &'static str)> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    if controllers.split(',').any(|controller| controller == "memory") {
        return Some((Path::new("/sys/fs/cgroup/memory"), path, "memory.limit_in_bytes"));
    }
    // Of several hierarchies, this one comes last.
    controllers.is_empty().then_some((Path::new("/sys/fs/cgroup"), path, "memory.max"))
}

/// Returns a limit by the contents of its file. Where there is none, version 1 has the largest multiple of the page size.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|&bytes| bytes < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_limits() {
        let first = (Path::new("/sys/fs/cgroup/memory"), "/a:b", "memory.limit_in_bytes");
        assert_eq!(place("4:hugetlb,memory:/a:b"), Some(first));
        assert_eq!(place("0::/a"), Some((Path::new("/sys/fs/cgroup"), "/a", "memory.max")));
        assert_eq!((place("1:cpu:/"), place("nonsense")), (None, None));
        assert_eq!(
            [limit("4194304\n"), limit("max\n"), limit("9223372036854771712\n")],
            [Some(4 << 20), None, None]
        );
    }
}
