//! The memory that a process's control group may use (memory.max, memory.limit_in_bytes). A process that exceeds it is killed, and can say
//! nothing then.

use std::fs;
use std::path::{Component, Path};

/// Returns the bytes that the control group of a process may use, or one around it, if that is limited.
pub(crate) fn memory(pid: i32) -> Option<u64> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let (root, path, file) = groups.lines().find_map(place)?;
    let path = Path::new(path.trim_start_matches('/'));
    if path.components().any(|part| part == Component::ParentDir) {
        // It is a group outside of this process's namespace.
        return None;
    }
    let limits =
        path.ancestors().filter_map(|group| limit(&fs::read_to_string(root.join(group).join(file)).ok()?));
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
