//! Which process of a parallel job this is. Its files have names of their own, because all processes of a job may
//! run in one folder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::options::RanksArg;

/// The variables in which launchers tell a process its rank, in the order in which they are asked: Open MPI's, that of
/// PMIx, that of Hydra (MPICH, Intel MPI), and Slurm's. A job script of Slurm has the last one too, so whoever launched
/// processes within it is asked before.
const VARIABLES: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];

/// What is added to the names of this process's files. It is empty for a process that is not part of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Suffix(String);

impl Suffix {
    /// Returns the suffix that the environment and the option `--ranks` ask for. `host` is the name of this machine.
    pub(crate) fn new(
        ranks: RanksArg,
        variable: impl Fn(&str) -> Option<OsString>,
        host: impl FnOnce() -> String,
    ) -> Suffix {
        let mut suffix = String::new();
        if ranks == RanksArg::None {
            return Suffix(suffix);
        }
        if let Some(rank) = rank_by(variable) {
            suffix = format!(".rank{rank}");
        }
        if ranks == RanksArg::Host {
            suffix.push_str(&format!(".{}", host_name(&host())));
        }
        Suffix(suffix)
    }

    /// Returns the name of this process's own file where the user has named `path` for all processes. A device, a pipe
    /// or a descriptor stays what it is.
    pub(crate) fn of(&self, path: PathBuf) -> PathBuf {
        if self.0.is_empty() || is_shared(&path) {
            return path;
        }
        let mut name = path.into_os_string();
        name.push(&self.0);
        name.into()
    }

    /// Returns the text itself.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }
}

/// Returns the rank of this process, if a launcher has told it one.
pub(crate) fn own() -> Option<u32> {
    rank_by(|name| std::env::var_os(name))
}

/// Returns the rank that the environment says.
fn rank_by(variable: impl Fn(&str) -> Option<OsString>) -> Option<u32> {
    VARIABLES.iter().find_map(|name| rank(&variable(name)?))
}

/// Returns the number that a launcher's variable says. The value comes from the environment, so it may be anything.
fn rank(value: &OsString) -> Option<u32> {
    let value = value.to_str()?;
    // `parse` would take a sign as well.
    value.parse().ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns a host's name as a part of a file name.
fn host_name(host: &str) -> String {
    /// The length of the longest name that the kernel has for a host.
    const LONGEST: usize = 64;
    let letter = |c: char| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '_' };
    let name: String = host.chars().take(LONGEST).map(letter).collect();
    let name = name.trim_matches('.');
    if name.is_empty() { "localhost".to_owned() } else { name.to_owned() }
}

/// Whether a path names something that is not a regular file, or that is open already.
fn is_shared(path: &Path) -> bool {
    let open = ["-", "/dev/stdout", "/dev/stderr"].iter().any(|name| path == Path::new(name))
        || ["/dev/fd", "/proc"].iter().any(|folder| path.starts_with(folder));
    open || std::fs::metadata(path).is_ok_and(|found| !found.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suffix(ranks: RanksArg, variables: &[(&str, &str)], host: &str) -> String {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Suffix::new(ranks, variable, || host.to_owned()).0
    }

    #[test]
    fn the_launcher_closest_to_the_process_decides() {
        let slurm = ("SLURM_PROCID", "0");
        let all = [slurm, ("PMI_RANK", "1"), ("PMIX_RANK", "2"), ("OMPI_COMM_WORLD_RANK", "3")];
        for (last, expected) in [(1, ".rank0"), (2, ".rank1"), (3, ".rank2"), (4, ".rank3")] {
            assert_eq!(suffix(RanksArg::Auto, &all[..last], "h"), expected);
        }
        assert_eq!(suffix(RanksArg::None, &all, "h"), "");
        assert_eq!(suffix(RanksArg::Auto, &[], "h"), "");
        assert_eq!(suffix(RanksArg::Host, &all, "node07.example"), ".rank3.node07.example");
        assert_eq!(suffix(RanksArg::Host, &[], "node07"), ".node07");
    }

    #[test]
    fn only_digits_are_a_rank() {
        let of = |value: &str| suffix(RanksArg::Auto, &[("PMIX_RANK", value), ("PMI_RANK", "7")], "");
        for value in
            ["", " 1", "+1", "-1", "1/../../x", "0x10", "4294967296", "99999999999999999999999", "\u{0663}"]
        {
            assert_eq!(of(value), ".rank7", "{value}");
        }
        assert_eq!(of("007"), ".rank7");
        assert_eq!(of("4294967295"), ".rank4294967295");
    }

    #[test]
    fn a_host_is_one_component() {
        for (host, expected) in
            [("", "localhost"), ("..", "localhost"), ("../../etc", "_.._etc"), ("a b\n", "a_b_")]
        {
            assert_eq!(host_name(host), expected);
        }
        assert_eq!(host_name(&"x".repeat(500)).len(), 64);
    }

    #[test]
    fn what_all_processes_share_keeps_its_name() {
        let suffix = Suffix(".rank1".to_owned());
        for name in ["-", "/dev/null", "/dev/stdout", "/dev/fd/3", "/proc/self/fd/1", "/"] {
            assert_eq!(suffix.of(name.into()), Path::new(name));
        }
        assert_eq!(suffix.of("a/gmon.out".into()), Path::new("a/gmon.out.rank1"));
        assert_eq!(Suffix::default().of("gmon.out".into()), Path::new("gmon.out"));
    }
}
