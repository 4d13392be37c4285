//! Checked wrappers of system calls that std does not have: through rustix where it has them, else through libc.
#![allow(unsafe_code, reason = "it wraps system calls")]

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Error};
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

use rustix::fs;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{self, Pid, PidfdFlags};
use rustix::time::{ClockId, clock_getres, clock_gettime};

/// The result of a system call that returns -1 on failure.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(Error::last_os_error()) } else { Ok(result) }
}

pub(crate) fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

/// The strerror text without Rust's "(os error N)".
pub(crate) fn reason(error: &io::Error) -> String {
    plain(&error.to_string())
}

/// The same for a longer text that ends with one. An error that comes of a limit names it.
pub(crate) fn plain(text: &str) -> String {
    let Some((plain, errno)) = text.rsplit_once(" (os error ") else { return text.to_owned() };
    let limit = match errno.trim_end_matches(')').parse() {
        Ok(libc::EFBIG) => " (ulimit -f)",
        Ok(libc::EMFILE) => " (ulimit -n)",
        _ => "",
    };
    format!("{plain}{limit}")
}

pub(crate) fn errno_text(errno: i32) -> String {
    reason(&Error::from_raw_os_error(errno))
}

/// Opens a regular file for reading, whatever else its name may lead to by then: to open a named pipe would wait for
/// somebody who writes to it.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Error::other("it is no regular file")),
    }
}

/// Reads a file that has at most `most` bytes.
pub(crate) fn read_whole(file: &File, most: u64) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let len = file.metadata()?.len();
    if len > most {
        return Err(Error::from_raw_os_error(libc::EFBIG));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize).map_err(Error::other)?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A file's contents, mapped for reading.
pub(crate) struct Mapped {
    address: *mut libc::c_void,
    len: usize,
}

impl Mapped {
    pub(crate) fn new(file: &File) -> io::Result<Mapped> {
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if len == 0 {
            return Ok(Mapped { address: ptr::null_mut(), len });
        }
        // SAFETY: a fresh mapping at a place that the kernel chooses touches nothing that exists.
        let address = unsafe {
            libc::mmap(ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0)
        };
        if address == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(Mapped { address, len }) }
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `new` mapped `len` bytes here, readable until drop. Weak point: someone may write to or
        // truncate the program's file while we read it. Every byte is valid as u8 and the readers check
        // what they read, but a truncation can end us with SIGBUS; the kernel refuses writes to a running
        // program, which leaves the milliseconds before the start.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.len) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.len != 0 {
            // SAFETY: mapped by `new`; borrows of the bytes end before the value does.
            unsafe { libc::munmap(self.address, self.len) };
        }
    }
}

/// May the file be mapped as code? Not on a file system mounted noexec.
pub(crate) fn maps_executable(file: &File) -> bool {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a fresh mapping, unused, unmapped at once.
    unsafe {
        let address = libc::mmap(ptr::null_mut(), 4096, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        address != libc::MAP_FAILED && libc::munmap(address, 4096) == 0
    }
}

/// May we execute the file? As execve decides it, by effective ids.
pub(crate) fn executable(path: &Path) -> io::Result<()> {
    let path = c_string(path.as_os_str())?;
    // SAFETY: `path` is a C string that lives through the call.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) }).map(drop)
}

/// Bytes free for us in the file system of a folder.
pub(crate) fn free_space(folder: &Path) -> io::Result<u64> {
    file_system(folder).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Does the kernel ignore set-user-ID bits and file capabilities in this file's file system?
pub(crate) fn mounted_nosuid(path: &Path) -> bool {
    file_system(path).is_ok_and(|stat| stat.f_flag.contains(fs::StatVfsMountFlags::NOSUID))
}

fn file_system(path: &Path) -> io::Result<fs::StatVfs> {
    Ok(fs::statvfs(path)?)
}

/// Reserves the first `len` bytes of a file.
pub(crate) fn allocate(file: &File, len: u64) -> io::Result<()> {
    Ok(fs::fallocate(file, fs::FallocateFlags::empty(), 0, len)?)
}

/// Is there an extended attribute of this name?
pub(crate) fn has_attribute(path: &Path, name: &std::ffi::CStr) -> bool {
    // Into an empty buffer the kernel writes nothing; it returns the attribute's length.
    let nothing: &mut [u8] = &mut [];
    fs::getxattr(path, name, nothing).is_ok()
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) euid: u32,
    pub(crate) gid: u32,
    pub(crate) egid: u32,
    /// Set-user-ID bits and file capabilities are ignored.
    pub(crate) no_new_privileges: bool,
}

pub(crate) fn ids() -> Ids {
    Ids {
        uid: process::getuid().as_raw(),
        euid: process::geteuid().as_raw(),
        gid: process::getgid().as_raw(),
        egid: process::getegid().as_raw(),
        no_new_privileges: rustix::thread::no_new_privs().unwrap_or(false),
    }
}

/// A pipe whose ends do not survive an exec: (read, write).
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// The open descriptors beyond the standard ones; called first of all, so they are all inherited.
pub(crate) fn inherited_descriptors() -> Vec<libc::c_int> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut all: Vec<libc::c_int> = numbers.filter(|&fd| fd > 2).collect();
    // One of them was the folder's own.
    // SAFETY: no memory is involved.
    all.retain(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1);
    all
}

/// Lets go of what the program has inherited through us, standard error apart, so that the other ends of
/// its pipes see the end when the program closes them and not when we do.
pub(crate) fn release(inherited: &[libc::c_int]) {
    for &fd in inherited {
        // SAFETY: open before our first line of code, so no value of ours owns it.
        unsafe { libc::close(fd) };
    }
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        for fd in [0, 1] {
            // SAFETY: descriptors 0 and 1 belong to the process as a whole; std's handles of them expect
            // no particular file behind them. dup2 onto an open descriptor cannot create a new one.
            unsafe { libc::dup2(null.as_raw_fd(), fd) };
        }
    }
}

/// The soft limits that were raised for us and are to be the program's again.
#[derive(Clone, Copy)]
pub(crate) struct Limits([Option<(libc::__rlimit_resource_t, libc::rlimit)>; 2]);

impl Limits {
    /// Raises our own limits of open files and of file sizes to the highest allowed.
    pub(crate) fn raise() -> Limits {
        Limits([libc::RLIMIT_NOFILE, libc::RLIMIT_FSIZE].map(|resource| {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: `limit` and `most` are valid for the calls.
            unsafe {
                check(libc::getrlimit(resource, &mut limit)).ok()?;
                let most = libc::rlimit { rlim_cur: limit.rlim_max, ..limit };
                libc::setrlimit(resource, &most);
            }
            Some((resource, limit))
        }))
    }

    /// In the child, between fork and exec.
    pub(crate) fn restore(&self) {
        for (resource, limit) in self.0.iter().flatten() {
            // SAFETY: `limit` is valid for the call.
            unsafe { libc::setrlimit(*resource, limit) };
        }
    }
}

/// The kernel's tick: what CPU-time timers are rounded up to.
pub(crate) fn ticks_per_second() -> u32 {
    match u32::try_from(clock_getres(ClockId::MonotonicCoarse).tv_nsec) {
        Ok(nanoseconds) if nanoseconds > 0 => 1_000_000_000 / nanoseconds,
        _ => 100,
    }
}

/// CLOCK_MONOTONIC in nanoseconds, as the perf records have it.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub(crate) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    Ok(fs::fcntl_setfl(fd, fs::OFlags::NONBLOCK)?)
}

/// Waits until one of the descriptors is readable (or at its end). False: time is up, or poll failed.
pub(crate) fn wait_readable(fds: &[libc::c_int], patience: Option<Duration>) -> bool {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = patience.map_or(-1, |left| left.as_millis().clamp(1, 60_000) as libc::c_int);
    loop {
        // SAFETY: `polled` is an array of that many entries.
        match check(unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.is_ok_and(|count| count > 0),
        }
    }
}

/// Whether two processes are known to have one memory.
pub(crate) fn share_memory(pid: i32, other: i32) -> bool {
    /// linux/kcmp.h
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: the call takes numbers only, and touches no memory of ours.
    pid != other && unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) } == 0
}

/// What there is to know a process's end by.
pub(crate) enum Handle {
    /// Readable when it has ended.
    Waiting(OwnedFd),
    Ended,
    /// No descriptor to be had.
    Unknown,
}

impl Handle {
    pub(crate) fn of(pid: i32) -> Handle {
        let Some(pid) = Some(pid).filter(|&pid| pid > 0).and_then(Pid::from_raw) else {
            return Handle::Unknown;
        };
        match process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => Handle::Waiting(fd),
            Err(Errno::SRCH) => Handle::Ended,
            Err(_) => Handle::Unknown,
        }
    }

    pub(crate) fn descriptor(&self) -> Option<i32> {
        match self {
            Handle::Waiting(fd) => Some(fd.as_raw_fd()),
            _ => None,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        match self {
            Handle::Waiting(fd) => wait_readable(&[fd.as_raw_fd()], Some(Duration::ZERO)),
            Handle::Ended => true,
            Handle::Unknown => false,
        }
    }
}

/// Takes a lock on a file that ends with this process; false: another one has it.
pub(crate) fn lock(file: &File) -> bool {
    fs::flock(file, fs::FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// The same, but a forked child does not share it. It ends when this process closes any descriptor of the file, which
/// is open for writing.
pub(crate) fn lock_for_process(file: &File) -> bool {
    // SAFETY: plain data; all zeros means the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: `lock` is valid for the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) == 0 }
}

/// Whether another process has locked the file so.
pub(crate) fn is_locked(file: &File) -> bool {
    // SAFETY: plain data; all zeros means the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: `lock` is valid for the call, which writes who has it.
    let known = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) == 0 };
    known && lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Whether some process has the file open for writing, or mapped from such a descriptor: then the kernel grants
/// no lease on it. None: nothing can be known (no leases on this file system, or not for us). `file` is open for
/// reading only.
pub(crate) fn is_open_for_writing(file: &File) -> Option<bool> {
    /// asm-generic/fcntl.h
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_raw_fd();
    // SAFETY: no memory is involved. Whoever opens the file while we hold the lease makes the kernel send us a
    // signal, SIGIO unless another one is set, which would be our end; the lease ends with the next call.
    unsafe {
        libc::fcntl(fd, F_SETSIG, libc::SIGURG);
        let answer = check(libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK));
        libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK);
        match answer {
            Ok(_) => Some(false),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Some(true),
            Err(_) => None,
        }
    }
}

/// Orphaned descendants become our children, so that their end can be waited for.
pub(crate) fn adopt_orphans() {
    // Without it, only the end of orphans goes unnoticed.
    let _ = process::set_child_subreaper(Some(process::getpid()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_in_words() {
        assert_eq!(errno_text(libc::ENOENT), "No such file or directory");
        assert_eq!(errno_text(libc::EFBIG), "File too large (ulimit -f)");
        assert_eq!(
            plain("cannot start: Too many open files (os error 24)"),
            "cannot start: Too many open files (ulimit -n)"
        );
        assert_eq!(plain("no errno (os errors)"), "no errno (os errors)");
    }
}
