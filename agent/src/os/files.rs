//! Files, and sockets to the injector. Paths end with a NUL.
#![allow(unsafe_code, reason = "system calls read paths and write buffers")]

use crate::os::kernel::{EFBIG, EINTR, call};
use crate::os::task;
use gprofinject_abi::ask::AHEAD_MAX;
#[cfg(not(feature = "standalone"))]
use gprofinject_abi::plan::FileVersion;
use gprofinject_abi::region::FileIdentity;
use linux_raw_sys::{general, net};

/// Opens a file, also for writing if `write` is set. Returns a descriptor.
pub(crate) fn open(path: &[u8], write: bool) -> Result<i32, i32> {
    let access = if write { general::O_RDWR } else { general::O_RDONLY };
    let flags = u64::from(general::O_CLOEXEC | access);
    // SAFETY: the kernel only reads the path, up to its NUL.
    unsafe { call(general::__NR_open, [path.as_ptr() as u64, flags]) }.map(|fd| fd as i32)
}

/// Makes a new file that only its user may read and write, `len` bytes long. Returns a descriptor.
pub(crate) fn create(path: &[u8], len: u64) -> Result<i32, i32> {
    // With O_EXCL, a link is not followed.
    const NEW: u64 = (general::O_RDWR | general::O_CREAT | general::O_EXCL | general::O_CLOEXEC) as u64;
    let arguments = [path.as_ptr() as u64, NEW, 0o600];
    // SAFETY: the kernel only reads the path, up to its NUL.
    let fd = unsafe { call(general::__NR_open, arguments) }? as i32;
    lengthen(fd, len).inspect_err(|_| {
        close(fd);
        remove(path);
    })?;
    Ok(fd)
}

/// Makes a new memory file, which has no name in any file system and keeps the length `len` for ever, so that a mapping of it stays
/// accessible. `shown` is its name in the lists of mappings. Returns a descriptor.
pub(crate) fn create_in_memory(shown: &[u8], len: u64) -> Result<i32, i32> {
    const FLAGS: u64 = (general::MFD_CLOEXEC | general::MFD_ALLOW_SEALING) as u64;
    const FIXED: u64 = (general::F_SEAL_SHRINK | general::F_SEAL_GROW) as u64;
    // SAFETY: the kernel only reads the name, up to its NUL.
    let fd = unsafe { call(general::__NR_memfd_create, [shown.as_ptr() as u64, FLAGS]) }? as i32;
    // SAFETY: no memory is involved.
    let fix = || unsafe { call(general::__NR_fcntl, [fd as u64, general::F_ADD_SEALS.into(), FIXED]) };
    lengthen(fd, len).and_then(|()| fix()).inspect_err(|_| close(fd))?;
    Ok(fd)
}

/// Gives an empty file a length.
fn lengthen(fd: i32, len: u64) -> Result<(), i32> {
    // Beyond the limit, the kernel not only returns an error but also sends a SIGXFSZ.
    if task::file_size_limit() < len {
        return Err(EFBIG);
    }
    // SAFETY: no memory is involved.
    unsafe { call(general::__NR_ftruncate, [fd as u64, len]) }.map(drop)
}

pub(crate) fn remove(path: &[u8]) {
    // SAFETY: the kernel only reads the path, up to its NUL.
    let _ = unsafe { call(general::__NR_unlink, [path.as_ptr() as u64]) };
}

/// Returns a descriptor that refers to the file to which a path leads from the folder `at` (O_PATH). This
/// reads nothing and does not block. An address that cannot be read is an error.
pub(crate) fn open_path(at: i32, path: u64) -> Result<i32, i32> {
    const FLAGS: u64 = (general::O_PATH | general::O_CLOEXEC) as u64;
    // SAFETY: the kernel only reads the path, up to its NUL, and checks its address.
    unsafe { call(general::__NR_openat, [at as u64, path, FLAGS]) }.map(|fd| fd as i32)
}

/// Reads from a descriptor. Returns the number of bytes read.
pub(crate) fn read(fd: i32, buffer: &mut [u8]) -> Result<usize, i32> {
    let arguments = [fd as u64, buffer.as_mut_ptr() as u64, buffer.len() as u64];
    // SAFETY: the kernel writes no more than the buffer's length.
    unsafe { call(general::__NR_read, arguments) }.map(|n| n as usize)
}

/// Reads a file from an offset on. Returns the number of bytes read.
pub(crate) fn read_at(fd: i32, buffer: &mut [u8], offset: u64) -> Result<usize, i32> {
    let arguments = [fd as u64, buffer.as_mut_ptr() as u64, buffer.len() as u64, offset];
    // SAFETY: the kernel writes no more than the buffer's length.
    unsafe { call(general::__NR_pread64, arguments) }.map(|n| n as usize)
}

/// A descriptor.
pub(crate) struct Descriptor {
    pub(crate) number: i32,
    /// Whether it is closed when this is dropped.
    pub(crate) is_own: bool,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.is_own {
            close(self.number);
        }
    }
}

/// Closes a descriptor that the agent has opened, or was given.
pub(crate) fn close(fd: i32) {
    // SAFETY: the descriptor is not the program's, so no other code uses it.
    let _ = unsafe { call(general::__NR_close, [fd as u64]) };
}

/// Returns the length of an open file, in bytes.
pub(crate) fn file_size(fd: i32) -> Result<u64, i32> {
    // SAFETY: lseek writes no memory.
    unsafe { call(general::__NR_lseek, [fd as u64, 0, general::SEEK_END.into()]) }
}

/// What identifies the contents of a file: device, inode, size in bytes, and the time of the last change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity(pub(crate) FileIdentity);

/// Returns the identity of an open file.
pub(crate) fn identity(fd: i32) -> Result<Identity, i32> {
    let mut stat = core::mem::MaybeUninit::<general::stat>::zeroed();
    // SAFETY: the kernel writes the structure, for which zeros are a value.
    let stat = unsafe {
        call(general::__NR_fstat, [fd as u64, stat.as_mut_ptr() as u64])?;
        stat.assume_init()
    };
    Ok(Identity([stat.st_dev, stat.st_ino, stat.st_size as u64, stat.st_mtime, stat.st_mtime_nsec]))
}

/// Returns the version of the program's file.
#[cfg(not(feature = "standalone"))]
pub(crate) fn version_of_program() -> Result<FileVersion, i32> {
    version(general::__NR_stat, c"/proc/self/exe".as_ptr() as u64)
}

/// Returns the version of the file to which a descriptor refers.
#[cfg(not(feature = "standalone"))]
pub(crate) fn version_of(fd: i32) -> Result<FileVersion, i32> {
    version(general::__NR_fstat, fd as u64)
}

#[cfg(not(feature = "standalone"))]
fn version(number: u32, file: u64) -> Result<FileVersion, i32> {
    let mut stat = core::mem::MaybeUninit::<general::stat>::zeroed();
    // SAFETY: the kernel reads a path, if it gets one, and writes the structure, for which zeros are a value.
    let stat = unsafe {
        call(number, [file, stat.as_mut_ptr() as u64])?;
        stat.assume_init()
    };
    let times = [stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec];
    let [mtime, mtime_nsec, ctime, ctime_nsec] = times;
    Ok([stat.st_dev, stat.st_ino, stat.st_size as u64, mtime, mtime_nsec, ctime, ctime_nsec])
}

/// Returns whether the folder /proc/self/task contains one thread. If the kernel does not tell, the answer is
/// no.
pub(crate) fn has_one_thread() -> bool {
    /// A folder has two links, and one more for each folder in it.
    const LINKS: u64 = 3;
    let mut stat = core::mem::MaybeUninit::<general::stat>::zeroed();
    let path = c"/proc/self/task".as_ptr() as u64;
    // SAFETY: the kernel reads the path and writes the structure, for which zeros are a value.
    unsafe {
        let result = call(general::__NR_stat, [path, stat.as_mut_ptr() as u64]);
        result.is_ok() && stat.assume_init().st_nlink == LINKS
    }
}

/// Connects to a SOCK_SEQPACKET socket; `address` is a struct sockaddr_un. The call does not wait for a place in the
/// socket's queue. Returns a descriptor.
pub(crate) fn connect(address: &[u8]) -> Result<i32, i32> {
    const KIND: u64 = net::SOCK_SEQPACKET as u64 | (general::O_CLOEXEC | general::O_NONBLOCK) as u64;
    // SAFETY: the kernel only reads the address.
    unsafe {
        let fd = call(general::__NR_socket, [net::AF_UNIX.into(), KIND])? as i32;
        match call(general::__NR_connect, [fd as u64, address.as_ptr() as u64, address.len() as u64]) {
            Ok(_) => Ok(fd),
            Err(errno) => {
                close(fd);
                Err(errno)
            }
        }
    }
}

/// The process that has made a socket.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    /// Its number in this process's PID namespace, or 0 if it has none there.
    pub(crate) process: u32,
    /// Its user's number in this process's user namespace. A user who has none there has the number of the overflow user.
    pub(crate) user: u32,
}

/// Returns the process that has made the socket to which this one is connected.
pub(crate) fn peer(fd: i32) -> Result<Peer, i32> {
    // struct ucred: process, user, group.
    let mut credentials = [0_u32; 3];
    let mut len = size_of_val(&credentials) as u32;
    let at = [&raw mut credentials as u64, &raw mut len as u64];
    let arguments = [fd as u64, net::SOL_SOCKET.into(), net::SO_PEERCRED.into(), at[0], at[1]];
    // SAFETY: the kernel writes no more than the length says, and the length.
    unsafe { call(general::__NR_getsockopt, arguments) }?;
    // SAFETY: the kernel has written it; it is read as it has left it.
    let [process, user, _] = unsafe { core::ptr::read_volatile(&raw const credentials) };
    Ok(Peer { process, user })
}

/// Sends one packet. If no process reads the socket any more, this is an error and not a SIGPIPE.
pub(crate) fn send(fd: i32, packet: &[u8]) -> Result<(), i32> {
    let arguments = [fd as u64, packet.as_ptr() as u64, packet.len() as u64, net::MSG_NOSIGNAL.into()];
    // SAFETY: the kernel only reads the packet.
    unsafe { call(general::__NR_sendto, arguments) }.map(|_| ())
}

/// Sends one packet, and descriptors with it, of which there are at least one and at most [`AHEAD_MAX`].
pub(crate) fn send_with(fd: i32, packet: &[u8], passed: &[i32]) -> Result<(), i32> {
    const RIGHTS: u64 = net::SOL_SOCKET as u64 | (net::SCM_RIGHTS as u64) << 32;
    // struct cmsghdr, which is 16 bytes long, and the descriptors; the length is that of the bytes in use.
    let mut control = [0; 2 + AHEAD_MAX.div_ceil(2)];
    (control[0], control[1]) = (16 + size_of_val(passed) as u64, RIGHTS);
    for (word, pair) in control[2..].iter_mut().zip(passed.chunks(2)) {
        let descriptor = |at: usize| u64::from(pair.get(at).copied().unwrap_or_default() as u32);
        *word = descriptor(0) | descriptor(1) << 32;
    }
    let space = 16 + 8 * passed.len().div_ceil(2) as u64;
    // struct iovec.
    let data = [packet.as_ptr() as u64, packet.len() as u64];
    // struct msghdr: name and its length, vectors and their number, control data and its length, flags.
    let message = [0, 0, data.as_ptr() as u64, 1, control.as_ptr() as u64, space, 0];
    let arguments = [fd as u64, message.as_ptr() as u64, net::MSG_NOSIGNAL.into()];
    // SAFETY: the kernel only reads the message and what it points to, all of which lives through the call.
    unsafe { call(general::__NR_sendmsg, arguments) }.map(|_| ())
}

/// Receives one packet, and the descriptors that come with it, two at most. Returns the number of bytes.
pub(crate) fn receive_with(fd: i32, packet: &mut [u8]) -> Result<(usize, [Option<i32>; 2]), i32> {
    const RIGHTS: u64 = net::SOL_SOCKET as u64 | (net::SCM_RIGHTS as u64) << 32;
    const CLOSE_ON_EXEC: u64 = 0x4000_0000;
    // struct cmsghdr, which is 16 bytes long and begins with its length, and room for two descriptors.
    let mut control = [0_u64; 3];
    // struct iovec.
    let data = [packet.as_mut_ptr() as u64, packet.len() as u64];
    // struct msghdr: name and its length, vectors and their number, control data and its length, flags.
    let mut message = [0, 0, data.as_ptr() as u64, 1, control.as_mut_ptr() as u64, 24, 0_u64];
    let arguments = [fd as u64, message.as_mut_ptr() as u64, CLOSE_ON_EXEC];
    // SAFETY: the kernel writes the packet, the message and the control data, all of which live through the call.
    let len = unsafe { call(general::__NR_recvmsg, arguments) }?;
    // SAFETY: the kernel has written these words; they are read as it has left them.
    let (control, len_of_control) = unsafe {
        (core::ptr::read_volatile(&raw const control), core::ptr::read_volatile(&raw const message[5]))
    };
    let (first, second) = (control[2] as i32, (control[2] >> 32) as i32);
    let is_there = |end: u64| len_of_control >= end && control[0] >= end && control[1] == RIGHTS;
    Ok((len as usize, [is_there(20).then_some(first), is_there(24).then_some(second)]))
}

/// Waits until there is something to read, for at most `milliseconds`. Returns whether there is. A signal
/// does not end the wait.
pub(crate) fn wait_readable(fd: i32, milliseconds: u64) -> bool {
    let end = task::now() + milliseconds * 1_000_000;
    loop {
        let left = end.saturating_sub(task::now());
        let mut polled = general::pollfd { fd, events: general::POLLIN as i16, revents: 0 };
        // struct timespec.
        let time = [left / 1_000_000_000, left % 1_000_000_000];
        let arguments = [&raw mut polled as u64, 1, &raw const time as u64, 0, 8];
        // SAFETY: ppoll reads the time and writes the pollfd.
        match unsafe { call(general::__NR_ppoll, arguments) } {
            Err(EINTR) if left > 0 => {}
            other => return other == Ok(1),
        }
    }
}
