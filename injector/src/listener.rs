//! The socket on which profiled processes speak to us; see `gprofinject_abi::ask`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::sys::check;

/// Longest packet: a path, escaped, and what stands before it.
const PACKET: usize = 8 * libc::PATH_MAX as usize;

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

fn address(path: &Path) -> io::Result<libc::sockaddr_un> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: plain data, valid when zeroed.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    Ok(address)
}

/// Sends a packet to another gprofinject, and waits for its answer.
pub(crate) fn ask(path: &Path, packet: &[u8]) -> io::Result<Vec<u8>> {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
    let address = address(path)?;
    let mut answer = vec![0; PACKET];
    // SAFETY: the address and the buffers are valid for the calls, of the sizes told.
    unsafe {
        let flags = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, flags, 0))?);
        let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        check(libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len))?;
        let sent = libc::send(socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), libc::MSG_NOSIGNAL);
        check(sent as i32)?;
        if !crate::sys::wait_readable(&[socket.as_raw_fd()], Some(PATIENCE)) {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        let count = libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0);
        answer.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
    }
    Ok(answer)
}

impl Listener {
    pub(crate) fn new(path: &Path) -> io::Result<Listener> {
        let address = address(path)?;
        // SAFETY: the address is valid for the calls.
        unsafe {
            let flags = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, flags, 0))?);
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
