//! Which system calls a process with seccomp filters is made to make, and which ones it is not.
//!
//! gprofinject lets a thread of the process make some calls, and the agent makes others there, at any time until gprofinject leaves.
//! What the filters refuse, whatever the arguments that are not known here, the agent does not do ([`refused`]): its calls go through
//! one function, which looks at that set. It needs a few calls ([`check`]); without the others it does less.

use anyhow::{Result, bail};
use gprofinject_abi::attach::REFUSED_WORDS;

use crate::os::filter::Call;
use crate::target::threads::filters::Filters;

const READ: u64 = libc::PROT_READ as u64;
const WRITE: u64 = libc::PROT_WRITE as u64;
const EXECUTE: u64 = libc::PROT_EXEC as u64;

/// asm/prctl.h, which libc does not have.
const ARCH_SET_GS: u64 = 0x1001;

/// A system call, with the arguments that it is made with.
struct Use {
    name: &'static str,
    number: i64,
    /// Each line is one way to make the call: the first arguments, as far as they are known.
    ways: &'static [&'static [Option<u64>]],
    /// Whether the agent cannot do without it.
    is_needed: bool,
}

/// Any arguments.
const ANY: &[&[Option<u64>]] = &[&[]];

const fn needed(name: &'static str, number: i64, ways: &'static [&'static [Option<u64>]]) -> Use {
    Use { name, number, ways, is_needed: true }
}

const fn useful(name: &'static str, number: i64, ways: &'static [&'static [Option<u64>]]) -> Use {
    Use { name, number, ways, is_needed: false }
}

const PRIVATE: u64 = libc::MAP_PRIVATE as u64;
const SHARED: u64 = libc::MAP_SHARED as u64;
const ZEROS: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
const SPARSE: u64 = libc::MAP_NORESERVE as u64;
const FIXED: u64 = libc::MAP_FIXED as u64;

const fn mapping(access: u64, flags: u64) -> [Option<u64>; 4] {
    [None, None, Some(access), Some(flags)]
}

/// The ways to make mappings: of zeros, of the files of plan and counters. None has MAP_FIXED_NOREPLACE, which Chromium's sandbox refuses.
const MAPPINGS: &[&[Option<u64>]] = &[
    &mapping(READ | WRITE, ZEROS),
    &mapping(0, ZEROS | SPARSE),
    &mapping(READ | WRITE, ZEROS | SPARSE),
    &mapping(0, ZEROS | SPARSE | FIXED),
    &mapping(READ | WRITE, ZEROS | SPARSE | FIXED),
    &mapping(READ, PRIVATE),
    &mapping(READ | WRITE, PRIVATE | SPARSE),
    &mapping(READ | WRITE, PRIVATE | SPARSE | FIXED),
    &mapping(READ | WRITE, SHARED),
];

/// The calls that are needed, and those others of which arguments are known. A call has to be listed here with all arguments with
/// which `injector/src/target` and `agent/src` make it, if it is listed with any.
const USES: &[Use] = &[
    needed("mmap", libc::SYS_mmap, MAPPINGS),
    needed(
        "mprotect",
        libc::SYS_mprotect,
        &[
            &[None, None, Some(READ)],
            &[None, None, Some(READ | WRITE)],
            &[None, None, Some(READ | EXECUTE)],
            // Text is restored in forked children in which other code may run, and a program's text may have been loaded so.
            &[None, None, Some(READ | WRITE | EXECUTE)],
        ],
    ),
    needed("munmap", libc::SYS_munmap, ANY),
    needed("mremap", libc::SYS_mremap, ANY),
    useful(
        "madvise",
        libc::SYS_madvise,
        &[
            &[None, None, Some(libc::MADV_NOHUGEPAGE as u64)],
            &[None, None, Some(libc::MADV_DONTDUMP as u64)],
            &[None, None, Some(libc::MADV_POPULATE_WRITE as u64)],
        ],
    ),
    needed("close", libc::SYS_close, ANY),
    needed("lseek", libc::SYS_lseek, ANY),
    needed("pread64", libc::SYS_pread64, ANY),
    needed(
        "socketpair",
        libc::SYS_socketpair,
        &[&[Some(libc::AF_UNIX as u64), Some((libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64), Some(0)]],
    ),
    needed("recvmsg", libc::SYS_recvmsg, ANY),
    needed("getpid", libc::SYS_getpid, ANY),
    needed("gettid", libc::SYS_gettid, ANY),
    needed(
        "clock_gettime",
        libc::SYS_clock_gettime,
        &[
            &[Some(libc::CLOCK_MONOTONIC as u64)],
            &[Some(libc::CLOCK_MONOTONIC_RAW as u64)],
            &[Some(libc::CLOCK_THREAD_CPUTIME_ID as u64)],
        ],
    ),
    useful(
        "socket",
        libc::SYS_socket,
        &[&[
            Some(libc::AF_UNIX as u64),
            Some((libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u64),
            Some(0),
        ]],
    ),
    useful("fcntl", libc::SYS_fcntl, &[&[None, Some(libc::F_ADD_SEALS as u64)]]),
    useful("arch_prctl", libc::SYS_arch_prctl, &[&[Some(ARCH_SET_GS)]]),
];

impl Use {
    fn calls(&self) -> impl Iterator<Item = Call> {
        self.ways.iter().map(|way| {
            let mut call = Call::any(self.number as u32);
            for (place, argument) in call.arguments.iter_mut().zip(way.iter()) {
                *place = *argument;
            }
            call
        })
    }

    fn is_allowed(&self, filters: &Filters) -> bool {
        self.calls().all(|call| filters.allow(&call))
    }
}

/// Checks that a process's filters allow what gprofinject cannot do without.
///
/// # Errors
/// They do not. The error names the first call that may be refused, and is one sentence without what to do.
pub(crate) fn check(pid: i32, filters: &Filters) -> Result<()> {
    let Some(refused) = USES.iter().find(|call| call.is_needed && !call.is_allowed(filters)) else {
        return Ok(());
    };
    let mprotect = |access: u64| Call {
        arguments: [None, None, Some(access), None, None, None],
        ..Call::any(libc::SYS_mprotect as u32)
    };
    let is_executable = refused.number == libc::SYS_mprotect && filters.allow(&mprotect(READ | WRITE));
    let what = if is_executable { " to make memory executable" } else { "" };
    bail!("a seccomp filter of process {pid} does not allow the system call {}{what}", refused.name)
}

/// Whether the threads of a standalone program on a processor without the instruction for it may get their records.
pub(crate) fn may_set_gs(filters: &Filters) -> bool {
    USES.iter().filter(|call| call.number == libc::SYS_arch_prctl).all(|call| call.is_allowed(filters))
}

/// Returns the system calls that the filters may refuse, for [`gprofinject_abi::attach::Order::refused`].
pub(crate) fn refused(filters: &Filters) -> [u64; REFUSED_WORDS] {
    let mut refused = [0; REFUSED_WORDS];
    if matches!(filters, Filters::None | Filters::Own) {
        return refused;
    }
    for (number, bit) in (0..64 * REFUSED_WORDS as i64).zip((0..64).cycle()) {
        let known = USES.iter().find(|call| call.number == number);
        let any = Use { name: "", number, ways: ANY, is_needed: false };
        if !known.unwrap_or(&any).is_allowed(filters) {
            refused[number as usize / 64] |= 1_u64 << bit;
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::filter::{Filter, Instruction};

    const ALLOW: u32 = 0x7fff_0000;

    fn does(code: u16, k: u32) -> Instruction {
        Instruction { code, jt: 0, jf: 0, k }
    }

    /// A filter that refuses one call, and of it only those that have these bits in an argument, if there are any.
    fn without(number: i64, bits: Option<(u32, u32)>) -> Filters {
        let mut filter = vec![
            does(0x20, 0),
            Instruction { code: 0x15, jt: 1, jf: 0, k: number as u32 },
            does(0x06, ALLOW),
        ];
        if let Some((argument, bits)) = bits {
            filter.extend([
                does(0x20, 16 + 8 * argument),
                Instruction { code: 0x45, jt: 1, jf: 0, k: bits },
                does(0x06, ALLOW),
            ]);
        }
        filter.push(does(0x06, 0x0005_0001));
        Filters::Read(vec![Filter(vec![does(0x06, ALLOW)]), Filter(filter)])
    }

    #[test]
    fn what_is_needed_is_named() {
        let said =
            |filters: &Filters| check(7, filters).err().map_or(String::new(), |error| format!("{error:#}"));
        assert_eq!(said(&Filters::None), "");
        assert_eq!(said(&Filters::Read(vec![Filter(vec![does(0x06, ALLOW)])])), "");
        assert_eq!(said(&without(libc::SYS_ptrace, None)), "");
        for needed in USES.iter().filter(|call| call.is_needed) {
            let said = said(&without(needed.number, None));
            assert!(said.contains(&format!("the system call {}", needed.name)), "{said}");
        }
        let said = said(&without(libc::SYS_mprotect, Some((2, EXECUTE as u32))));
        assert!(said.contains("mprotect to make memory executable"), "{said}");
    }

    #[test]
    fn what_may_be_refused_is_not_done() {
        assert_eq!(refused(&Filters::None), [0; REFUSED_WORDS]);
        assert_eq!(refused(&Filters::Own), [0; REFUSED_WORDS]);
        let only = |number: i64| {
            let mut set = [0; REFUSED_WORDS];
            set[number as usize / 64] = 1 << (number % 64);
            set
        };
        let no_replace = Some((3, libc::MAP_FIXED_NOREPLACE as u32));
        assert_eq!(refused(&without(libc::SYS_mmap, no_replace)), [0; REFUSED_WORDS]);
        assert_eq!(
            refused(&without(libc::SYS_mmap, Some((3, libc::MAP_FIXED as u32)))),
            only(libc::SYS_mmap)
        );
        for number in [0, libc::SYS_kcmp, libc::SYS_munmap, 511] {
            assert_eq!(refused(&without(number, None)), only(number), "{number}");
        }
        // An argument with which the agent never makes the call, and one that may have any value.
        let audit = Some((0, libc::AF_NETLINK as u32));
        assert_eq!(refused(&without(libc::SYS_socket, audit)), [0; REFUSED_WORDS]);
        assert_eq!(refused(&without(libc::SYS_kcmp, audit)), only(libc::SYS_kcmp));
        assert!(may_set_gs(&without(libc::SYS_arch_prctl, Some((0, 0x2000)))));
        assert!(!may_set_gs(&without(libc::SYS_arch_prctl, Some((0, 1)))));
    }
}
