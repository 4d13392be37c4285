//! The socket on which profiled processes speak to us; see `gprofinject_abi::ask`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys::check;

/// Longest packet: a path and what stands before it.
const PACKET: usize = libc::PATH_MAX as usize + 16;

pub(crate) struct Listener {
    socket: OwnedFd,
}

/// Somebody's packet, and the way to answer.
pub(crate) struct Asker {
    connection: OwnedFd,
    /// As our own process namespace has it.
    pub(crate) pid: i32,
    /// Effective, when it connected.
    pub(crate) user: u32,
    pub(crate) packet: Vec<u8>,
}

impl Listener {
    pub(crate) fn new(path: &Path) -> io::Result<Listener> {
        let bytes = path.as_os_str().as_bytes();
        // SAFETY: a sockaddr_un is plain data, valid when zeroed; the calls read it.
        unsafe {
            let flags = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, flags, 0))?);
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::AF_UNIX as libc::sa_family_t;
            if bytes.len() >= address.sun_path.len() {
                return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
            }
            for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
                *to = from as libc::c_char;
            }
            let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len))?;
            check(libc::listen(socket.as_raw_fd(), 4096))?;
            Ok(Listener { socket })
        }
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The next one who has come; None: nobody.
    pub(crate) fn next(&self) -> Option<Asker> {
        loop {
            // SAFETY: no address is asked for.
            let connection = unsafe {
                let flags = libc::SOCK_CLOEXEC;
                libc::accept4(self.descriptor(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
            };
            match check(connection) {
                // SAFETY: a new descriptor that nobody else owns.
                Ok(fd) => match Asker::read(unsafe { OwnedFd::from_raw_fd(fd) }) {
                    Ok(asker) => return Some(asker),
                    Err(_) => continue,
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }
}

impl Asker {
    fn read(connection: OwnedFd) -> io::Result<Asker> {
        let fd = connection.as_raw_fd();
        let mut packet = vec![0; PACKET];
        // SAFETY: the results go into locals of the right size. A process sends at once after it connects;
        // one that is stopped in between must not stop us.
        unsafe {
            let mut peer: libc::ucred = std::mem::zeroed();
            let mut len = size_of::<libc::ucred>() as libc::socklen_t;
            check(libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &mut len,
            ))?;
            crate::sys::wait_readable(&[fd], Some(std::time::Duration::from_millis(500)));
            let count = libc::recv(fd, packet.as_mut_ptr().cast(), packet.len(), libc::MSG_DONTWAIT);
            packet.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
            Ok(Asker { connection, pid: peer.pid, user: peer.uid, packet })
        }
    }

    pub(crate) fn answer(&self, packet: &[u8]) {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the packet is read. Who has gone gets no answer.
        unsafe { libc::send(self.connection.as_raw_fd(), packet.as_ptr().cast(), packet.len(), flags) };
    }
}
