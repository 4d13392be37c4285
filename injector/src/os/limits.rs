//! The limits of processes (setrlimit, ulimit). They are meant for the program: the injector raises its own as far as it may, and
//! the program gets those that were there. Where one stops the injector all the same, messages name it.

use std::fmt;

use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

/// What may stop the injector.
const RAISED: [Resource; 9] = [
    Resource::As,
    Resource::Cpu,
    Resource::Data,
    Resource::Fsize,
    Resource::Memlock,
    Resource::Nofile,
    Resource::Nproc,
    Resource::Rttime,
    Resource::Stack,
];

/// The limits with which the injector was started.
#[derive(Clone, Copy)]
pub(crate) struct Limits([Rlimit; RAISED.len()]);

impl Limits {
    /// Raises the injector's soft limits to the hard ones.
    pub(crate) fn raise() -> Limits {
        Limits(RAISED.map(|resource| {
            let limit = getrlimit(resource);
            let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
            limit
        }))
    }

    /// Restores the limits. To be called in the child, between fork and exec.
    pub(crate) fn restore(&self) {
        for (resource, limit) in RAISED.into_iter().zip(self.0) {
            let _ = setrlimit(resource, limit);
        }
    }
}

/// A limit of this process, in the words of messages: `the limit of open files, ulimit -n, is 5`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    resource: Resource,
    most: u64,
}

impl Limit {
    /// Returns the limit of a resource, if there is one.
    pub(crate) fn of(resource: Resource) -> Option<Limit> {
        Some(Limit { resource, most: getrlimit(resource).current? })
    }

    /// The limit.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// Returns it if it is lower than that.
    pub(crate) fn below(resource: Resource, enough: u64) -> Option<Limit> {
        Limit::of(resource).filter(|limit| limit.most < enough)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, option, in_bytes) = match self.resource {
            Resource::As => ("address space", 'v', true),
            Resource::Data => ("data", 'd', true),
            Resource::Fsize => ("file sizes", 'f', true),
            Resource::Nproc => ("the user's processes and threads", 'u', false),
            Resource::Stack => ("stacks", 's', true),
            // The injector asks for no others.
            _ => ("open files", 'n', false),
        };
        write!(f, "the limit of {what}, ulimit -{option}, is {}", self.most)?;
        if in_bytes { f.write_str(" bytes") } else { Ok(()) }
    }
}

/// Returns the limit of the user's processes if that is so low that gprofinject's own ones count.
pub(crate) fn few_processes() -> Option<Limit> {
    const FEW: u64 = 32;
    Limit::below(Resource::Nproc, FEW).filter(|_| !geteuid().is_root())
}

/// Returns the lowest limit of memory, if there is one. Takes no memory of the heap.
pub(crate) fn lowest_of_memory() -> Option<Limit> {
    [Resource::Data, Resource::As].into_iter().filter_map(Limit::of).min_by_key(|limit| limit.most)
}

/// Returns the limit of this process that is the reason if one of its system calls has failed with this error number, in
/// parentheses, or an empty text.
pub(crate) fn behind(errno: i32) -> String {
    let limit = match errno {
        libc::EFBIG => Limit::of(Resource::Fsize),
        libc::EMFILE => Limit::of(Resource::Nofile),
        libc::ENOMEM => lowest_of_memory(),
        _ => None,
    };
    limit.map_or(String::new(), |limit| format!(" ({limit})"))
}

/// Returns which limits of another process may be the reason if one of its system calls has failed with this error number, in
/// parentheses, or an empty text.
pub(crate) fn behind_elsewhere(errno: i32) -> &'static str {
    match errno {
        libc::E2BIG => " (ulimit -s)",
        libc::EFBIG => " (ulimit -f)",
        libc::EMFILE => " (ulimit -n)",
        libc::ENOMEM => " (ulimit -v, ulimit -d)",
        _ => "",
    }
}

/// Returns why this process could not make another one or a thread, in parentheses.
pub(crate) fn behind_processes() -> String {
    match Limit::of(Resource::Nproc) {
        Some(limit) => format!(" ({limit}; pids.max may limit the control group as well)"),
        None => " (pids.max limits the processes and threads of the control group)".to_owned(),
    }
}

/// Returns `hint`, which names another file or folder, unless the error comes from a limit that would be met there as well.
pub(crate) fn unless_behind<'h>(error: &std::io::Error, hint: &'h str) -> &'h str {
    if is_behind(error) { "" } else { hint }
}

/// Whether an error comes from a limit of this process, so that another file or folder would not help.
pub(crate) fn is_behind(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EFBIG | libc::EMFILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_in_words() {
        let limit = |resource, most| Limit { resource, most }.to_string();
        assert_eq!(limit(Resource::Nofile, 5), "the limit of open files, ulimit -n, is 5");
        assert_eq!(limit(Resource::Fsize, 512), "the limit of file sizes, ulimit -f, is 512 bytes");
        let nofile = getrlimit(Resource::Nofile).current.expect("Linux always has one");
        let expected = format!(" (the limit of open files, ulimit -n, is {nofile})");
        assert_eq!((behind(libc::EMFILE), behind(libc::ENOENT)), (expected, String::new()));
    }
}
