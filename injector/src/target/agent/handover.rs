//! Hands files that the injector has opened to a stopped process. If the process has another user, root
//! folder or mount namespace, it could not open them by their names.

use std::fs::File;
use std::io::{self, Error, IoSlice};
use std::mem::{MaybeUninit, offset_of, size_of};
use std::os::fd::{AsFd, OwnedFd, RawFd};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::target::threads::memory::Memory;
use crate::target::threads::stopped::Stopped;

/// The greatest number of files at once.
const COUNT: usize = 2;

/// The header of a message that the process receives, with everything to which its pointers lead: `struct
/// msghdr`, `struct iovec`, one byte of data, and `struct cmsghdr` with the descriptors (recvmsg(2), cmsg(3)).
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Message {
    name: u64,
    name_len: u64,
    vector: u64,
    vector_len: u64,
    control: u64,
    control_len: u64,
    flags: u64,
    data: u64,
    data_len: u64,
    byte: u64,
    descriptors: Descriptors,
}

/// The control message that contains the descriptors.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Descriptors {
    /// Size in bytes of what has arrived, this header included.
    len: u64,
    level: i32,
    kind: i32,
    files: [RawFd; COUNT],
}

impl Message {
    /// Returns an empty message for that address, with room for the descriptors.
    fn at(address: u64) -> Message {
        Message {
            vector: address + offset_of!(Message, data) as u64,
            vector_len: 1,
            control: address + offset_of!(Message, descriptors) as u64,
            control_len: size_of::<Descriptors>() as u64,
            data: address + offset_of!(Message, byte) as u64,
            data_len: 1,
            ..Message::default()
        }
    }
}

impl Descriptors {
    /// Returns the descriptors that have arrived, which may be fewer than there is room for.
    fn arrived(&self) -> &[RawFd] {
        let bytes = (self.len as usize).saturating_sub(offset_of!(Descriptors, files));
        self.files.get(..bytes / size_of::<RawFd>()).unwrap_or_default()
    }
}

/// Passes the files, two at most, to the process and returns their descriptors there. `instruction` is the address of a
/// `syscall` instruction in the process, and `scratch` that of memory which the injector has mapped there.
///
/// # Errors
/// The process has no room for more descriptors, or may not make the system calls.
pub(crate) fn give(
    stopped: &mut Stopped,
    memory: &Memory,
    instruction: u64,
    scratch: u64,
    files: &[&File],
) -> io::Result<Vec<i32>> {
    let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
    stopped.call(instruction, libc::SYS_socketpair, [libc::AF_UNIX as u64, kind, 0, scratch, 0, 0])?;
    let pair = memory.word(scratch)?;
    let (near, far) = (pair as u32, (pair >> 32) as u32);
    let received = borrow(stopped.pid, near as RawFd).and_then(|ours| {
        send(&ours, files)?;
        memory.write(scratch, Message::at(scratch).as_bytes())?;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
        stopped.call(instruction, libc::SYS_recvmsg, [far.into(), scratch, flags, 0, 0, 0])?;
        let mut message = Message::default();
        memory.read(scratch, message.as_mut_bytes())?;
        Ok(message.descriptors)
    });
    for end in [near, far] {
        stopped.call(instruction, libc::SYS_close, [end.into(), 0, 0, 0, 0, 0])?;
    }
    let received = received?;
    if received.arrived().len() == files.len() {
        return Ok(received.arrived().to_vec());
    }
    // Some descriptors have arrived before the process's limit was reached.
    for descriptor in received.arrived() {
        stopped.call(instruction, libc::SYS_close, [*descriptor as u64, 0, 0, 0, 0, 0])?;
    }
    Err(Error::from_raw_os_error(libc::EMFILE))
}

/// Duplicates a descriptor of another process.
fn borrow(pid: i32, descriptor: RawFd) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(pid, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, descriptor as ForeignRawFd, PidfdGetfdFlags::empty())?)
}

/// Sends one byte and the files.
fn send(socket: &OwnedFd, files: &[&File]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(COUNT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
    control.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_the_c_librarys() {
        assert_eq!(size_of::<libc::msghdr>(), offset_of!(Message, data));
        assert_eq!(offset_of!(libc::msghdr, msg_iov), offset_of!(Message, vector));
        assert_eq!(offset_of!(libc::msghdr, msg_control), offset_of!(Message, control));
        assert_eq!(offset_of!(libc::msghdr, msg_controllen), offset_of!(Message, control_len));
        assert_eq!(size_of::<libc::iovec>(), offset_of!(Message, byte) - offset_of!(Message, data));
        assert_eq!(size_of::<libc::cmsghdr>(), offset_of!(Descriptors, files));
    }

    #[test]
    fn descriptors_that_have_arrived() {
        let mut control = Descriptors { files: [5, 6], ..Descriptors::default() };
        assert!(control.arrived().is_empty());
        for (len, expected) in [(20, &[5][..]), (24, &[5, 6]), (99, &[])] {
            control.len = len;
            assert_eq!(control.arrived(), expected);
        }
    }
}
