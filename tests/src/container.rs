//! Programs as a container runtime starts them: with namespaces of their own, and with the filter that Docker, Podman and Kubernetes
//! install by default.
#![allow(unsafe_code, reason = "the child makes system calls before it executes the program")]
// A test that cannot make its container has failed.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Error, Result, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The default profile of containers-common 0.50 (`/usr/share/containers/seccomp.json`) for a process without capabilities, which
/// libseccomp 2.5 has made a filter of: `struct sock_filter`, one after the other.
const PROFILE: &[u8] = include_bytes!("../data/containers.bpf");

/// How much of a container the program gets, and whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The filter only.
    Filter,
    /// The filter, and PID, mount, network, IPC and UTS namespaces.
    Namespaces,
    /// All of this, and nothing that gprofinject writes to but a `/dev/shm` of 64 KB that is mounted noexec.
    ReadOnly,
    /// Namespaces, and a user namespace, in which an unprivileged user of the machine is root.
    Rootless,
}

/// What happens at a system call that the profile refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The call ends with an error, as the profile says.
    Error,
    /// The process ends, so that no such call goes unnoticed.
    End,
}

/// The user of [`Kind::Rootless`] outside of the container.
const USER: libc::uid_t = 65534;

fn filter(refusal: Refusal) -> Vec<libc::sock_filter> {
    let mut filter: Vec<libc::sock_filter> = PROFILE
        .chunks_exact(8)
        .map(|bytes| libc::sock_filter {
            code: u16::from_le_bytes([bytes[0], bytes[1]]),
            jt: bytes[2],
            jf: bytes[3],
            k: u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
        .collect();
    let is_error = |it: &libc::sock_filter| {
        it.code == (libc::BPF_RET | libc::BPF_K) as u16
            && it.k & libc::SECCOMP_RET_ACTION == libc::SECCOMP_RET_ERRNO
    };
    if refusal == Refusal::End {
        filter.iter_mut().filter(|it| is_error(it)).for_each(|it| it.k = libc::SECCOMP_RET_KILL_PROCESS);
    }
    filter
}

/// Makes a command run in a container. With namespaces, the command's process is the one that waits for the program's.
pub fn contain(command: &mut Command, kind: Kind, refusal: Refusal) {
    let filter = filter(refusal);
    // SAFETY: the closure makes system calls, and between the fork and the execution of the program this process has one thread.
    unsafe {
        command.pre_exec(move || {
            if kind != Kind::Filter {
                enter_namespaces(kind)?;
            }
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
            done(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            done(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program))
        })
    };
}

fn done(result: libc::c_int) -> Result<()> {
    if result == -1 { Err(Error::last_os_error()) } else { Ok(()) }
}

/// Moves the calling process into new namespaces. The program is executed by a child, the first process of its PID namespace, for
/// which this process waits.
fn enter_namespaces(kind: Kind) -> Result<()> {
    let mut flags =
        libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    // SAFETY: these are system calls, and all strings end with a NUL. The child ends with its parent, which does nothing but wait.
    unsafe {
        if kind == Kind::Rootless {
            done(libc::setgroups(0, std::ptr::null()))?;
            done(libc::setresgid(USER, USER, USER))?;
            done(libc::setresuid(USER, USER, USER))?;
            // A process that has changed its user may not write to its own files in /proc before this.
            done(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0))?;
            flags |= libc::CLONE_NEWUSER;
        }
        done(libc::unshare(flags))?;
        if kind == Kind::Rootless {
            for (file, text) in [
                ("setgroups", "deny".to_owned()),
                ("uid_map", format!("0 {USER} 1")),
                ("gid_map", format!("0 {USER} 1")),
            ] {
                fs::OpenOptions::new()
                    .write(true)
                    .open(format!("/proc/self/{file}"))?
                    .write_all(text.as_bytes())?;
            }
        }
        match libc::fork() {
            -1 => return Err(Error::last_os_error()),
            0 => {}
            child => {
                // A pipe to whoever has started this process says whether the program could be executed.
                libc::close_range(3, libc::c_uint::MAX, 0);
                let mut status = 0;
                while libc::waitpid(child, &raw mut status, 0) == -1 {}
                libc::_exit(if libc::WIFEXITED(status) {
                    libc::WEXITSTATUS(status)
                } else {
                    128 + libc::WTERMSIG(status)
                });
            }
        }
        done(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
        let (none, root, proc) = (std::ptr::null(), c"/".as_ptr(), c"proc".as_ptr());
        let private = libc::MS_REC | libc::MS_PRIVATE;
        done(libc::mount(none, root, none, private, none.cast()))?;
        done(libc::mount(proc, c"/proc".as_ptr(), proc, 0, none.cast()))?;
        if kind == Kind::ReadOnly {
            for folder in [c"/tmp", c"/var/tmp"].map(std::ffi::CStr::as_ptr) {
                let again = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
                done(libc::mount(folder, folder, none, libc::MS_BIND | libc::MS_REC, none.cast()))?;
                done(libc::mount(none, folder, none, again, none.cast()))?;
            }
            let (tmpfs, shm) = (c"tmpfs".as_ptr(), c"/dev/shm".as_ptr());
            let flags = libc::MS_NOEXEC | libc::MS_NOSUID | libc::MS_NODEV;
            done(libc::mount(tmpfs, shm, tmpfs, flags, c"size=64k,mode=1777".as_ptr().cast()))?;
        }
        Ok(())
    }
}

/// Returns why a container of this kind cannot be made here, if it cannot.
pub fn impossible(kind: Kind) -> Option<String> {
    let mut command = Command::new("true");
    contain(&mut command, kind, Refusal::End);
    match command.output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!("a container's first program ends with {}", output.status)),
        Err(error) => Some(format!("no container can be made: {error}")),
    }
}
