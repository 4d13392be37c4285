//! Hands files that the injector has opened to a stopped process. If the process has another user, root
//! folder or mount namespace, it could not open them by their names.
#![allow(
    unsafe_code,
    reason = "it takes descriptors from another process and sends messages from its memory"
)]

use std::fs::File;
use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::Stopped;

const COUNT: usize = 2;
/// The offsets in a message as it is in memory: struct msghdr, struct iovec, one byte, and struct cmsghdr
/// with the descriptors.
const VECTOR: u64 = 56;
const BYTE: u64 = VECTOR + 16;
const CONTROL: u64 = BYTE + 8;
const CONTROL_HEADER: u64 = 16;
const CONTROL_LEN: u64 = CONTROL_HEADER + 4 * COUNT as u64;
const LEN: usize = (CONTROL + CONTROL_LEN) as usize;

/// Passes the files to the process and returns their descriptors there. `instruction` is the address of a
/// `syscall` instruction in the process, and `scratch` that of memory which the injector has mapped there.
pub(crate) fn give(
    stopped: &mut Stopped,
    memory: &Memory,
    instruction: u64,
    scratch: u64,
    files: [&File; COUNT],
) -> io::Result<[i32; COUNT]> {
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
    stopped.call(instruction, libc::SYS_socketpair, [libc::AF_UNIX as u64, kind, 0, scratch, 0, 0])?;
    let pair = memory.word(scratch)?;
    let (near, far) = (pair as u32, (pair >> 32) as u32);
    let received = borrow(stopped.pid, near as RawFd).and_then(|ours| {
        send(&ours, files)?;
        memory.write(scratch, &message(scratch))?;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
        stopped.call(instruction, libc::SYS_recvmsg, [far.into(), scratch, flags, 0, 0, 0])?;
        memory.bytes(scratch + CONTROL, CONTROL_LEN as usize)
    });
    for end in [near, far] {
        stopped.call(instruction, libc::SYS_close, [end.into(), 0, 0, 0, 0, 0])?;
    }
    let control = received?;
    let given = descriptors(&control);
    if let &[first, second] = given.as_slice() {
        return Ok([first, second]);
    }
    // Some descriptors have arrived before the process's limit was reached.
    for descriptor in given {
        stopped.call(instruction, libc::SYS_close, [descriptor as u64, 0, 0, 0, 0, 0])?;
    }
    Err(Error::from_raw_os_error(libc::EMFILE))
}

/// Duplicates a descriptor of another process.
fn borrow(pid: i32, descriptor: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the calls take numbers only. Each descriptor that they return is new, so nobody else owns it.
    unsafe {
        let process = owned(libc::syscall(libc::SYS_pidfd_open, pid, 0))?;
        owned(libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), descriptor, 0))
    }
}

/// Takes ownership of a descriptor that a system call has returned.
///
/// # Safety
/// `answer` must be the result of a system call that opens a descriptor.
unsafe fn owned(answer: libc::c_long) -> io::Result<OwnedFd> {
    match answer {
        // SAFETY: the caller promises that nobody else owns the descriptor.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(answer as RawFd) }),
        _ => Err(Error::last_os_error()),
    }
}

fn send(socket: &OwnedFd, files: [&File; COUNT]) -> io::Result<()> {
    let mut bytes = [0_u64; LEN.div_ceil(8)];
    let base = bytes.as_mut_ptr() as u64;
    let mut text = message(base);
    let header = &mut text[CONTROL as usize..];
    header[..8].copy_from_slice(&CONTROL_LEN.to_le_bytes());
    header[8..12].copy_from_slice(&libc::SOL_SOCKET.to_le_bytes());
    header[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_le_bytes());
    for (place, file) in header[CONTROL_HEADER as usize..].chunks_exact_mut(4).zip(files) {
        place.copy_from_slice(&file.as_raw_fd().to_le_bytes());
    }
    for (word, text) in bytes.iter_mut().zip(text.chunks_exact(8)) {
        *word = text.try_into().map_or(0, u64::from_le_bytes);
    }
    // SAFETY: a struct msghdr, aligned, whose parts lie in `bytes`, which nothing else uses.
    match unsafe { libc::sendmsg(socket.as_raw_fd(), base as *const libc::msghdr, libc::MSG_NOSIGNAL) } {
        1 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Returns the bytes of a message for that address: one byte of data, and room for the descriptors.
fn message(at: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let words = [
        (16, at + VECTOR),
        (24, 1),
        (32, at + CONTROL),
        (40, CONTROL_LEN),
        (VECTOR, at + BYTE),
        (VECTOR + 8, 1),
    ];
    for (offset, word) in words {
        bytes[offset as usize..offset as usize + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Returns the descriptors in a control message, which may be fewer than it has room for.
fn descriptors(control: &[u8]) -> Vec<i32> {
    let len = control.get(..8).and_then(|len| len.try_into().ok()).map_or(0, u64::from_le_bytes);
    let present = control.get(CONTROL_HEADER as usize..len as usize).unwrap_or_default();
    present.chunks_exact(4).map(|word| word.try_into().map_or(-1, i32::from_le_bytes)).collect()
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn the_layout_is_the_c_librarys() {
        assert_eq!(size_of::<libc::msghdr>() as u64, VECTOR);
        assert_eq!(offset_of!(libc::msghdr, msg_iov), 16);
        assert_eq!(offset_of!(libc::msghdr, msg_control), 32);
        assert_eq!(offset_of!(libc::msghdr, msg_controllen), 40);
        assert_eq!(size_of::<libc::cmsghdr>() as u64, CONTROL_HEADER);
        assert_eq!(LEN % 8, 0);
    }

    #[test]
    fn descriptors_that_have_arrived() {
        let mut control = [0; CONTROL_LEN as usize];
        assert!(descriptors(&control).is_empty());
        control[16] = 5;
        control[20] = 6;
        for (len, expected) in [(20, &[5][..]), (24, &[5, 6]), (99, &[])] {
            control[0] = len;
            assert_eq!(descriptors(&control), expected);
        }
    }
}
