//! The socket through which profiled processes send messages to the injector; see `gprofinject_abi::ask`.
#![allow(unsafe_code, reason = "it makes socket calls with addresses and buffers")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use gprofinject_abi::{ASK_FILE, ask};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::os::sys::check;
use crate::store::private_folder::PrivateFolder;

/// The longest packet in bytes: a path, escaped, and what precedes it.
const PACKET: usize = 8 * libc::PATH_MAX as usize;
/// For how long a connection without a packet is remembered. A process sends at once after it connects; one
/// that does not may have been stopped in between.
const SILENCE: Duration = Duration::from_millis(500);
/// The number of connections without a packet. Further ones take the place of the oldest.
const SILENT_MAX: usize = 64;

/// The injector's end of the socket.
pub(crate) struct Listener {
    socket: OwnedFd,
    /// The connections that have not sent anything yet, and their times.
    silent: RefCell<VecDeque<(OwnedFd, Instant)>>,
}

/// A packet that has arrived, and the connection for the answer.
pub(crate) struct Asker {
    connection: OwnedFd,
    /// The sender's process number in the injector's PID namespace.
    pub(crate) pid: i32,
    /// The sender's effective user when it connected.
    pub(crate) user: u32,
    pub(crate) packet: Vec<u8>,
    /// The descriptor that came with the packet.
    pub(crate) file: Option<OwnedFd>,
    /// All descriptors that came with it, if it is one of [`ask::AHEAD`].
    pub(crate) files: Vec<OwnedFd>,
}

fn address(path: &Path) -> io::Result<libc::sockaddr_un> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: this is plain data, valid when zeroed.
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

/// Sends a packet to the gprofinject of a run and returns its answer.
///
/// # Errors
/// No gprofinject listens, or it does not answer within a minute.
pub(crate) fn ask(folder: &PrivateFolder, packet: &[u8]) -> io::Result<Vec<u8>> {
    const PATIENCE: Duration = Duration::from_secs(60);
    let address = address(&folder.reach(ASK_FILE))?;
    let mut answer = vec![0; PACKET];
    // SAFETY: the address, the time and the buffers are valid for the calls and have the sizes that are
    // passed.
    unsafe {
        let flags = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, flags, 0))?);
        let fd = socket.as_raw_fd();
        // Without this limit, connecting would wait for ever if too many connections already wait.
        let time = libc::timeval { tv_sec: PATIENCE.as_secs() as libc::time_t, tv_usec: 0 };
        let len = size_of::<libc::timeval>() as libc::socklen_t;
        check(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, (&raw const time).cast(), len))?;
        let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        check(libc::connect(fd, (&raw const address).cast(), len))?;
        check(libc::send(fd, packet.as_ptr().cast(), packet.len(), libc::MSG_NOSIGNAL) as i32)?;
        if !crate::os::sys::wait_readable(&[fd], Some(PATIENCE)) {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        let count = libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0);
        answer.truncate(usize::try_from(count).map_err(|_| io::Error::last_os_error())?);
    }
    Ok(answer)
}

impl Listener {
    /// Makes the socket in a run folder.
    ///
    /// # Errors
    /// It cannot be made, or its name is too long.
    pub(crate) fn new(folder: &PrivateFolder) -> io::Result<Listener> {
        // Processes will know the socket by this name, which must not be too long for them.
        address(&folder.path().join(ASK_FILE))?;
        let address = address(&folder.reach(ASK_FILE))?;
        // SAFETY: the address is valid for the calls.
        unsafe {
            let flags = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, flags, 0))?);
            let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len))?;
            check(libc::listen(socket.as_raw_fd(), 4096))?;
            Ok(Listener { socket, silent: RefCell::new(VecDeque::new()) })
        }
    }

    /// Returns the descriptors that become readable when a process connects or sends something.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let silent = self.silent.borrow();
        [self.socket.as_raw_fd()].into_iter().chain(silent.iter().map(|(fd, _)| fd.as_raw_fd())).collect()
    }

    /// Returns up to `most` packets that have arrived. It does not wait for connections that have sent
    /// nothing.
    pub(crate) fn heard(&self, most: usize) -> Vec<Asker> {
        let mut silent = self.silent.borrow_mut();
        let mut heard = Vec::new();
        silent.retain_mut(|(connection, since)| match Asker::read(connection) {
            Ok(Some(asker)) => {
                heard.push(asker);
                false
            }
            Ok(None) => since.elapsed() < SILENCE,
            Err(_) => false,
        });
        while heard.len() < most {
            // SAFETY: no address is asked for.
            let connection = unsafe {
                let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
                libc::accept4(self.socket.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
            };
            let connection = match check(connection) {
                // SAFETY: this is a new descriptor that nobody else owns.
                Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            match Asker::read(&connection) {
                Ok(Some(asker)) => heard.push(asker),
                Ok(None) => {
                    if silent.len() >= SILENT_MAX {
                        silent.pop_front();
                    }
                    silent.push_back((connection, Instant::now()));
                }
                Err(_) => {}
            }
        }
        heard
    }
}

/// Receives the packet, and the descriptors with it. The kernel closes further descriptors at once, because there is no
/// room for them.
fn receive(connection: &OwnedFd, packet: &mut Vec<u8>) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ask::AHEAD_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(connection, &mut [io::IoSliceMut::new(packet)], &mut control, flags)?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            files.extend(descriptors);
        }
    }
    packet.truncate(received.bytes);
    Ok(files)
}

impl Asker {
    /// Reads the packet of a connection without waiting. Returns `None` if nothing has been sent yet.
    fn read(connection: &OwnedFd) -> io::Result<Option<Asker>> {
        let fd = connection.as_raw_fd();
        let mut packet = vec![0; PACKET];
        // SAFETY: the results are written to local variables of the right size.
        let peer = unsafe {
            let mut peer: libc::ucred = std::mem::zeroed();
            let mut len = size_of::<libc::ucred>() as libc::socklen_t;
            check(libc::getsockopt(
                fd,
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &mut len,
            ))?;
            peer
        };
        match receive(connection, &mut packet) {
            Ok(mut files) => {
                let connection = connection.try_clone()?;
                let mut file = None;
                if packet.first() != Some(&ask::AHEAD) {
                    file = files.drain(..).next();
                }
                Ok(Some(Asker { connection, pid: peer.pid, user: peer.uid, packet, file, files }))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends an answer and a descriptor with it. A process that has ended gets none.
    pub(crate) fn answer_with(&self, packet: &[u8], file: BorrowedFd) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [file];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let _ = sendmsg(&self.connection, &[io::IoSlice::new(packet)], &mut control, flags);
    }

    /// Sends an answer. A process that has ended gets none.
    pub(crate) fn answer(&self, packet: &[u8]) {
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        // SAFETY: the packet is only read.
        unsafe { libc::send(self.connection.as_raw_fd(), packet.as_ptr().cast(), packet.len(), flags) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(folder: &PrivateFolder) -> OwnedFd {
        let address = address(&folder.reach(ASK_FILE)).expect("short");
        // SAFETY: the address is valid for the call, and the descriptor is new.
        unsafe {
            let socket = OwnedFd::from_raw_fd(
                check(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0)).expect("one"),
            );
            let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            check(libc::connect(socket.as_raw_fd(), (&raw const address).cast(), len)).expect("connected");
            socket
        }
    }

    #[test]
    fn who_says_nothing_keeps_nobody_waiting() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        let listener = Listener::new(&folder).expect("listens");
        let silent: Vec<OwnedFd> = (0..200).map(|_| connect(&folder)).collect();
        let talker = connect(&folder);
        // SAFETY: this is one byte of a literal.
        unsafe { libc::send(talker.as_raw_fd(), b"x".as_ptr().cast(), 1, 0) };
        let start = Instant::now();
        let heard = listener.heard(usize::MAX);
        let said: Vec<&[u8]> = heard.iter().map(|asker| asker.packet.as_slice()).collect();
        assert_eq!(said, [b"x"]);
        assert!(start.elapsed() < SILENCE, "it waits for each of them");
        assert_eq!(listener.descriptors().len(), 1 + SILENT_MAX);
        // One of the connections that are remembered sends something later. SAFETY: this is one byte of a
        // literal.
        unsafe { libc::send(silent[199].as_raw_fd(), b"y".as_ptr().cast(), 1, 0) };
        assert_eq!(listener.heard(1).first().map(|asker| asker.packet.clone()), Some(b"y".to_vec()));
        std::thread::sleep(SILENCE);
        assert!(listener.heard(9).is_empty() && listener.descriptors().len() == 1);
    }
}
