//! Checked wrappers of system calls that std does not have. They use rustix where it has the call, and libc
//! otherwise.
#![allow(unsafe_code, reason = "it wraps system calls")]

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Error};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{self, Pid, PidfdFlags};
use rustix::time::{ClockId, clock_getres, clock_gettime};

use crate::os::limits;

/// Converts the result of a system call that returns -1 on failure.
///
/// # Errors
/// `result` is -1. The error is that of errno.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(Error::last_os_error()) } else { Ok(result) }
}

/// Returns a C string.
///
/// # Errors
/// The text contains a zero byte.
pub(crate) fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| Error::from_raw_os_error(libc::EINVAL))
}

/// Returns the text of strerror, without Rust's "(os error N)".
pub(crate) fn reason(error: &io::Error) -> String {
    plain(&error.to_string())
}

/// Removes "(os error N)" from the end of a longer text. An error that comes from a limit of this process names the limit.
pub(crate) fn plain(text: &str) -> String {
    let Some((plain, errno)) = text.rsplit_once(" (os error ") else { return text.to_owned() };
    format!("{plain}{}", errno.trim_end_matches(')').parse().map_or(String::new(), limits::behind))
}

/// Returns the text of strerror for an error number of another process. An error that comes from a limit of that process names the
/// limit.
pub(crate) fn errno_text(errno: i32) -> String {
    let text = Error::from_raw_os_error(errno).to_string();
    let plain = text.rsplit_once(" (os error ").map_or(text.as_str(), |(plain, _)| plain);
    format!("{plain}{}", limits::behind_elsewhere(errno))
}

/// Opens a regular file for reading, whatever its name may lead to by then. (Opening a named pipe in the
/// usual way would wait for a writer.)
///
/// # Errors
/// The file is not regular, or cannot be opened.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(Error::other("it is no regular file")),
    }
}

/// Opens for reading what was only looked up so far, if it is a regular file. Opening a pipe would wait, and
/// opening a device may have any effect.
///
/// # Errors
/// It is no regular file, or cannot be opened.
pub(crate) fn regular(found: &(impl AsFd + AsRawFd)) -> io::Result<File> {
    let stat = fs::fstat(found)?;
    if fs::FileType::from_raw_mode(stat.st_mode) != fs::FileType::RegularFile {
        return Err(Error::other("it is no regular file"));
    }
    let name = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = fs::OFlags::RDONLY | fs::OFlags::NONBLOCK | fs::OFlags::CLOEXEC;
    Ok(fs::open(name, flags, fs::Mode::empty())?.into())
}

/// Reads a file that has at most `most` bytes.
///
/// # Errors
/// It is longer, or cannot be read.
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

/// Whether a file belongs to root or to the user who runs gprofinject.
pub(crate) fn is_trusted_owner(file: &File) -> bool {
    fs::fstat(file).is_ok_and(|stat| stat.st_uid == 0 || stat.st_uid == ids().euid)
}

/// Whether a file belongs to a user who has no number in the user namespace of this process, as all system files do in a container
/// into which they were mounted from outside. Nobody in the container is this user.
pub(crate) fn is_of_outsider(file: &File) -> bool {
    let text = |path| std::fs::read_to_string(path).unwrap_or_default();
    let has_all = text("/proc/self/uid_map").split_whitespace().last() == Some("4294967295");
    let overflow = text("/proc/sys/kernel/overflowuid").trim().parse().ok();
    !has_all && fs::fstat(file).is_ok_and(|stat| Some(stat.st_uid) == overflow)
}

/// Copies a file to a new one, which is as sparse.
///
/// # Errors
/// The new one exists, or there is no space for it.
pub(crate) fn copy_data(file: &File, to: &Path) -> io::Result<()> {
    let copy = File::options().write(true).create_new(true).mode(0o600).open(to)?;
    let len = file.metadata()?.len();
    copy.set_len(len)?;
    let mut bytes = vec![0; 64 << 10];
    let mut at = 0;
    loop {
        // There is no more data.
        let Ok(start) = fs::seek(file, fs::SeekFrom::Data(at)) else { return Ok(()) };
        let stop = fs::seek(file, fs::SeekFrom::Hole(start))?;
        at = start;
        while at < stop {
            let part = bytes.len().min((stop - at) as usize);
            let part = &mut bytes[..part];
            file.read_exact_at(part, at)?;
            copy.write_all_at(part, at)?;
            at += part.len() as u64;
        }
    }
}

/// Whether this process finds itself in /proc under the number that it has, which may be the /proc of another PID namespace.
pub(crate) fn sees_itself() -> bool {
    let own = std::process::id().to_string();
    std::fs::read_link("/proc/self").is_ok_and(|found| found.as_os_str() == own.as_str())
}

/// The path through which other processes of this user reach an open file of this process.
pub(crate) fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}

/// Opens an open file again, for reading and perhaps for writing.
///
/// # Errors
/// It cannot be opened so.
pub(crate) fn open_again(file: &File, write: bool) -> io::Result<File> {
    File::options().read(true).write(write).open(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// What the names of files in the cache end in that have the arena of a library, as a process maps it.
pub(crate) const ARENA: &str = ".arena";

/// Whether the file may be mapped as code, which is not so on a file system that is mounted noexec.
pub(crate) fn maps_executable(file: &File) -> bool {
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: this is a new mapping, which is not used and unmapped at once.
    unsafe {
        let address = libc::mmap(ptr::null_mut(), 4096, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        address != libc::MAP_FAILED && libc::munmap(address, 4096) == 0
    }
}

/// Checks that this process may execute the file, by its effective ids, as execve does.
///
/// # Errors
/// It may not.
pub(crate) fn executable(path: &Path) -> io::Result<()> {
    let path = c_string(path.as_os_str())?;
    // SAFETY: `path` is a C string that lives through the call.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) }).map(drop)
}

/// Returns the number of bytes that this user can still write to the folder's file system.
///
/// # Errors
/// It cannot be determined.
pub(crate) fn free_space(folder: &Path) -> io::Result<u64> {
    file_system(folder).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whether the kernel ignores set-user-ID bits and file capabilities on this file's file system.
pub(crate) fn mounted_nosuid(path: &Path) -> bool {
    file_system(path).is_ok_and(|stat| stat.f_flag.contains(fs::StatVfsMountFlags::NOSUID))
}

fn file_system(path: &Path) -> io::Result<fs::StatVfs> {
    Ok(fs::statvfs(path)?)
}

/// Reserves the first `len` bytes of a file.
///
/// # Errors
/// There is not enough space.
pub(crate) fn allocate(file: &File, len: u64) -> io::Result<()> {
    Ok(fs::fallocate(file, fs::FallocateFlags::empty(), 0, len)?)
}

/// Whether the file has an extended attribute of this name.
pub(crate) fn has_attribute(path: &Path, name: &std::ffi::CStr) -> bool {
    // The kernel writes nothing into an empty buffer and returns the attribute's length.
    let nothing: &mut [u8] = &mut [];
    fs::getxattr(path, name, nothing).is_ok()
}

/// The ids of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ids {
    pub(crate) uid: u32,
    pub(crate) euid: u32,
    pub(crate) gid: u32,
    pub(crate) egid: u32,
    /// Whether set-user-ID bits and file capabilities are ignored.
    pub(crate) no_new_privileges: bool,
}

/// Returns the ids of this process, which never change.
pub(crate) fn ids() -> Ids {
    static IDS: OnceLock<Ids> = OnceLock::new();
    *IDS.get_or_init(|| Ids {
        uid: process::getuid().as_raw(),
        euid: process::geteuid().as_raw(),
        gid: process::getgid().as_raw(),
        egid: process::getegid().as_raw(),
        no_new_privileges: rustix::thread::no_new_privs().unwrap_or(false),
    })
}

/// Returns the reading and the writing end of a pipe, which are closed on exec.
///
/// # Errors
/// No descriptors are available.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// Returns the open descriptors beyond the standard ones. It is called before anything else, so they are all
/// inherited.
pub(crate) fn inherited_descriptors() -> Vec<libc::c_int> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let mut all: Vec<libc::c_int> = numbers.filter(|&fd| fd > 2).collect();
    // One of them was the folder's own. SAFETY: no memory is involved.
    all.retain(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1);
    all
}

/// Closes what the program inherits through the injector, except standard error, so that the other ends of
/// its pipes are notified when the program closes them and not when the injector does.
pub(crate) fn release(inherited: &[libc::c_int]) {
    for &fd in inherited {
        // SAFETY: it was open before the first line of this program, so no value owns it.
        unsafe { libc::close(fd) };
    }
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        for fd in [0, 1] {
            // SAFETY: descriptors 0 and 1 belong to the process as a whole, and std's handles of them expect
            // no particular file behind them. dup2 onto an open descriptor cannot create a new one.
            unsafe { libc::dup2(null.as_raw_fd(), fd) };
        }
    }
}

/// Blocks all signals. Returns those that were blocked before.
pub(crate) fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets are local variables, valid when zeroed and valid for the calls.
    unsafe {
        let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
        old
    }
}

/// Undoes [`block_signals`].
pub(crate) fn unblock_signals(old: &libc::sigset_t) {
    // SAFETY: the kernel has filled the set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, std::ptr::null_mut()) };
}

/// Closes a range of descriptors, as far as there are any. musl has no function for it.
///
/// # Safety
/// No owner of one of the descriptors is used or dropped later.
pub(crate) unsafe fn close_range(first: libc::c_uint, last: libc::c_uint) {
    // SAFETY: the caller keeps the contract, and the arguments are numbers.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
}

/// Returns the kernel's ticks per second. CPU-time timers are rounded up to a tick.
pub(crate) fn ticks_per_second() -> u32 {
    match u32::try_from(clock_getres(ClockId::MonotonicCoarse).tv_nsec) {
        Ok(nanoseconds) if nanoseconds > 0 => 1_000_000_000 / nanoseconds,
        _ => 100,
    }
}

/// Returns the time in seconds since 1970, or 0 before that.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns CLOCK_MONOTONIC in nanoseconds, as perf records have it.
pub(crate) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Makes reads and writes of a descriptor return instead of waiting.
///
/// # Errors
/// The descriptor does not allow it.
pub(crate) fn set_nonblocking(fd: &OwnedFd) -> io::Result<()> {
    Ok(fs::fcntl_setfl(fd, fs::OFlags::NONBLOCK)?)
}

/// Waits until one of the descriptors is readable or at its end; with a time of zero it only looks. Returns false if the time is over or poll
/// has failed.
pub(crate) fn wait_readable(fds: &[libc::c_int], patience: Option<Duration>) -> bool {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let least = |left: Duration| u128::from(!left.is_zero());
    let timeout = patience.map_or(-1, |left| left.as_millis().clamp(least(left), 60_000) as libc::c_int);
    loop {
        // SAFETY: `polled` is an array of that many entries.
        match check(unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, timeout) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.is_ok_and(|count| count > 0),
        }
    }
}

/// Returns those of the descriptors that are readable or at their end now. Without memory for the kernel's lists, it returns none.
pub(crate) fn readable(fds: impl Iterator<Item = libc::c_int>) -> Vec<libc::c_int> {
    let mut polled: Vec<libc::pollfd> =
        fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    loop {
        // SAFETY: `polled` is an array of that many entries.
        match check(unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, 0) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return polled.iter().filter(|entry| entry.revents != 0).map(|entry| entry.fd).collect(),
        }
    }
}

/// Whether two processes are known to share their memory.
pub(crate) fn share_memory(pid: i32, other: i32) -> bool {
    /// linux/kcmp.h
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: the call takes numbers only and touches no memory of this process.
    pid != other && unsafe { libc::syscall(libc::SYS_kcmp, pid, other, KCMP_VM, 0, 0) } == 0
}

/// The means by which the end of a process is noticed.
pub(crate) enum Handle {
    /// A descriptor that becomes readable when the process has ended.
    Waiting(OwnedFd),
    Ended,
    /// No descriptor is available.
    Unknown,
}

impl Handle {
    /// Opens a handle of a process.
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

    /// The descriptor to poll, if there is one.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        match self {
            Handle::Waiting(fd) => Some(fd.as_raw_fd()),
            _ => None,
        }
    }

    /// Whether the process has ended, for which poll is asked.
    pub(crate) fn has_ended_now(&self) -> bool {
        self.has_ended(&readable(self.descriptor().into_iter()))
    }

    /// The same descriptor, borrowed.
    pub(crate) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Handle::Waiting(fd) => Some(fd.as_fd()),
            _ => None,
        }
    }

    /// Whether the process has ended. `readable` are the descriptors that poll has reported.
    pub(crate) fn has_ended(&self, readable: &[libc::c_int]) -> bool {
        match self {
            Handle::Waiting(fd) => readable.contains(&fd.as_raw_fd()),
            Handle::Ended => true,
            Handle::Unknown => false,
        }
    }
}

/// Takes a lock on a file, which is released when this process ends. Returns false if another process has it.
pub(crate) fn lock(file: &File) -> bool {
    fs::flock(file, fs::FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Takes a lock as [`lock`] does, which a forked child does not share. It is released when this process
/// closes any descriptor of the file, which must be open for writing.
pub(crate) fn lock_for_process(file: &File) -> bool {
    // SAFETY: this is plain data; all zeros means the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: `lock` is valid for the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) == 0 }
}

/// Whether another process has locked the file with [`lock_for_process`].
pub(crate) fn is_locked(file: &File) -> bool {
    // SAFETY: this is plain data; all zeros means the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: `lock` is valid for the call, which writes the owner into it.
    let known = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) == 0 };
    known && lock.l_type != libc::F_UNLCK as libc::c_short
}

/// Whether a process has the file open for writing, or mapped from such a descriptor; then the kernel grants
/// no lease on it. Returns `None` if the kernel grants no leases on this file system or to this user. `file`
/// is open for reading only.
pub(crate) fn is_open_for_writing(file: &File) -> Option<bool> {
    /// asm-generic/fcntl.h
    const F_SETSIG: libc::c_int = 10;
    let fd = file.as_raw_fd();
    // SAFETY: no memory is involved. If another process opens the file while this one holds the lease, the
    // kernel sends a signal, SIGIO unless another one is set, which would end this process. The lease ends
    // with the next call.
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

/// Whether a process has a memory file mapped for writing. If none has, the kernel lets none write to it from then on. Returns `None` if
/// the kernel does not tell. `file` is open for writing. (The kernel grants a lease on a memory file although a process has it open.)
pub(crate) fn is_mapped_for_writing(file: &File) -> Option<bool> {
    match fs::fcntl_add_seals(file, fs::SealFlags::WRITE) {
        Ok(()) => Some(false),
        Err(Errno::BUSY) => Some(true),
        Err(_) => None,
    }
}

/// Returns the bytes of memory that the machine has.
pub(crate) fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram.saturating_mul(info.mem_unit.into())
}

/// Makes orphaned descendants children of this process, so that it can wait for their end.
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
        assert_eq!(plain("cannot start: Permission denied (os error 13)"), "cannot start: Permission denied");
        assert_eq!(plain("no errno (os errors)"), "no errno (os errors)");
    }
}
