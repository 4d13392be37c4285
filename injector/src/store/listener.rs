//! The socket through which profiled processes send messages to the injector; see `gprofinject_abi::ask`.
#![allow(unsafe_code, reason = "it makes socket calls with addresses and buffers")]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
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
/// The number of connections from outside that are accepted before other events are handled.
const OUTSIDE_MOST: usize = 64;

/// The injector's end of the socket.
pub(crate) struct Listener {
    socket: OwnedFd,
    /// The sockets for processes that cannot enter the run folder.
    outside: Vec<OwnedFd>,
    /// The connections that have not sent anything yet.
    silent: RefCell<VecDeque<Silent>>,
}

/// A connection that has not sent anything yet.
struct Silent {
    connection: OwnedFd,
    is_outside: bool,
    since: Instant,
}

/// A connection by a process that cannot enter the run folder, or says so, which has not been read from.
pub(crate) struct Stranger {
    connection: OwnedFd,
    /// The process's number.
    pub(crate) pid: i32,
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
    /// Whether the packet came through the socket of [`Listener::listen_outside`].
    pub(crate) is_outside: bool,
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

/// Sends a packet to the gprofinject of a run and returns its answer, and the file that came with it.
///
/// # Errors
/// No gprofinject listens, or it does not answer within a minute.
pub(crate) fn ask(folder: &PrivateFolder, packet: &[u8]) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
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
        let time = libc::timeval { tv_sec: PATIENCE.as_secs() as _, tv_usec: 0 };
        let len = size_of::<libc::timeval>() as libc::socklen_t;
        check(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, (&raw const time).cast(), len))?;
        let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        check(libc::connect(fd, (&raw const address).cast(), len))?;
        check(libc::send(fd, packet.as_ptr().cast(), packet.len(), libc::MSG_NOSIGNAL) as i32)?;
        if !crate::os::sys::wait_readable(&[fd], Some(PATIENCE)) {
            return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        let files = receive(&socket, &mut answer)?;
        Ok((answer, files.into_iter().next()))
    }
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
            Ok(Listener { socket, outside: Vec::new(), silent: RefCell::new(VecDeque::new()) })
        }
    }

    /// Listens to processes that cannot enter the run folder as well, by the path of the socket as a name in the abstract
    /// namespace: that of this process, or that of the network namespace `of`. Every process can connect there.
    ///
    /// # Errors
    /// The socket cannot be made, or the name is in use.
    pub(crate) fn listen_outside(&mut self, folder: &PrivateFolder, of: Option<&File>) -> io::Result<()> {
        let mut address = address(&folder.path().join(ASK_FILE))?;
        let len = address.sun_path.iter().position(|&byte| byte == 0).unwrap_or_default();
        address.sun_path.copy_within(..len, 1);
        address.sun_path[0] = 0;
        let make = move || {
            if let Some(of) = of {
                // SAFETY: this thread only makes the socket, which stays in that namespace.
                check(unsafe { libc::setns(of.as_raw_fd(), libc::CLONE_NEWNET) })?;
            }
            // SAFETY: the address is valid for the calls, and the name fits, because the path with its NUL does.
            unsafe {
                let flags = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
                let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, flags, 0))?);
                let len = (size_of::<libc::sa_family_t>() + 1 + len) as libc::socklen_t;
                check(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len))?;
                check(libc::listen(socket.as_raw_fd(), 128))?;
                Ok::<OwnedFd, io::Error>(socket)
            }
        };
        let made = std::thread::scope(|scope| match of {
            None => make(),
            Some(_) => {
                let maker = std::thread::Builder::new().spawn_scoped(scope, make)?;
                maker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            }
        });
        self.outside.push(made?);
        Ok(())
    }

    /// Returns the descriptors that become readable when a process connects or sends something.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let silent = self.silent.borrow();
        let outside = self.outside.iter().map(AsRawFd::as_raw_fd);
        let silent = silent.iter().map(|silent| silent.connection.as_raw_fd());
        [self.socket.as_raw_fd()].into_iter().chain(outside).chain(silent).collect()
    }

    /// Whether a connection from inside has come, or one that is remembered says something or can be forgotten, by the descriptors
    /// that are `readable`.
    pub(crate) fn has_news(&self, readable: &[RawFd]) -> bool {
        readable.contains(&self.socket.as_raw_fd()) || !self.silent.borrow().is_empty()
    }

    /// Returns up to `most` packets that have arrived. It does not wait for connections that have sent
    /// nothing.
    pub(crate) fn heard(&self, most: usize) -> Vec<Asker> {
        let mut heard = Vec::new();
        let remembered = std::mem::take(&mut *self.silent.borrow_mut());
        let silent = remembered.into_iter().filter_map(|silent| {
            let Silent { connection, is_outside, since } = silent;
            match Asker::read(connection, is_outside) {
                Ok(asker) => {
                    heard.push(asker);
                    None
                }
                Err(connection) => {
                    let connection = connection.filter(|_| since.elapsed() < SILENCE)?;
                    Some(Silent { connection, is_outside, since })
                }
            }
        });
        let silent: VecDeque<Silent> = silent.collect();
        *self.silent.borrow_mut() = silent;
        while heard.len() < most
            && let Some(connection) = accept(&self.socket)
        {
            heard.extend(self.listen_to(connection, false));
        }
        heard
    }

    /// Returns new connections from outside of the run folder, through those of the sockets that are `readable`. Nothing has been read
    /// from them. Those of other processes than the profiled ones are to be dropped.
    pub(crate) fn strangers(&self, readable: &[RawFd]) -> Vec<Stranger> {
        let outside = self.outside.iter().filter(|socket| readable.contains(&socket.as_raw_fd()));
        // Any number of processes may connect all the time.
        let connections = outside.flat_map(|socket| (0..OUTSIDE_MOST).map_while(|_| accept(socket)));
        let known = connections
            .filter_map(|connection| Some(Stranger { pid: peer(&connection).ok()?.pid, connection }));
        known.collect()
    }

    /// Returns the packet of a profiled process. If there is none yet, remembers the connection.
    pub(crate) fn hear_stranger(&self, stranger: Stranger) -> Option<Asker> {
        self.listen_to(stranger.connection, true)
    }

    /// Returns the packet of a new connection. If there is none yet, remembers the connection.
    fn listen_to(&self, connection: OwnedFd, is_outside: bool) -> Option<Asker> {
        match Asker::read(connection, is_outside) {
            Ok(asker) => return Some(asker),
            Err(connection) => {
                let connection = connection?;
                let mut silent = self.silent.borrow_mut();
                if silent.len() >= SILENT_MAX {
                    silent.pop_front();
                }
                silent.push_back(Silent { connection, is_outside, since: Instant::now() });
            }
        }
        None
    }
}

/// Accepts a connection, if there is a new one.
fn accept(socket: &OwnedFd) -> Option<OwnedFd> {
    loop {
        // SAFETY: no address is asked for.
        let connection = unsafe {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            libc::accept4(socket.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags)
        };
        match check(connection) {
            // SAFETY: this is a new descriptor that nobody else owns.
            Ok(fd) => return Some(unsafe { OwnedFd::from_raw_fd(fd) }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}

/// Returns who has connected.
fn peer(connection: &OwnedFd) -> io::Result<libc::ucred> {
    // SAFETY: the results are written to local variables of the right size.
    unsafe {
        let mut peer: libc::ucred = std::mem::zeroed();
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let to = (&raw mut peer).cast();
        check(libc::getsockopt(connection.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, to, &mut len))?;
        Ok(peer)
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
    /// Reads the packet of a connection without waiting.
    ///
    /// # Errors
    /// There is none. The connection is returned if it may still send one.
    fn read(connection: OwnedFd, is_outside: bool) -> Result<Asker, Option<OwnedFd>> {
        let Ok(libc::ucred { pid, uid: user, .. }) = peer(&connection) else { return Err(None) };
        let mut packet = vec![0; PACKET];
        match receive(&connection, &mut packet) {
            Ok(mut files) => {
                let mut file = None;
                if packet.first() != Some(&ask::AHEAD) {
                    file = files.drain(..).next();
                }
                Ok(Asker { connection, pid, user, packet, file, files, is_outside })
            }
            Err(error) => Err((error.kind() == io::ErrorKind::WouldBlock).then_some(connection)),
        }
    }

    /// Sends an answer, and one or two descriptors with it. A process that has ended gets none.
    pub(crate) fn answer_with(&self, packet: &[u8], files: &[BorrowedFd]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(files));
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

    /// Connects to the abstract name, and sends a byte.
    fn from_outside(folder: &PrivateFolder) -> OwnedFd {
        let name = folder.path().join(ASK_FILE);
        let address =
            rustix::net::SocketAddrUnix::new_abstract_name(name.as_os_str().as_bytes()).expect("short");
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None)
                .expect("one");
        rustix::net::connect(&socket, &address).expect("connected");
        rustix::net::send(&socket, b"x", rustix::net::SendFlags::NOSIGNAL).expect("sent");
        socket
    }

    #[test]
    fn who_speaks_from_outside_is_known_first() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        let mut listener = Listener::new(&folder).expect("listens");
        let own = std::process::id() as i32;
        listener.listen_outside(&folder, None).expect("listens");
        assert!(Listener::new(&folder).is_err() && listener.listen_outside(&folder, None).is_err(), "in use");
        let _inside = connect(&folder);
        let talkers = [(); 2].map(|()| from_outside(&folder));
        assert!(listener.heard(usize::MAX).is_empty(), "not before it is known who speaks");
        let strangers = listener.strangers(&listener.descriptors());
        assert!(strangers.len() == 2 && strangers.iter().all(|stranger| stranger.pid == own));
        let heard = strangers.into_iter().filter_map(|stranger| listener.hear_stranger(stranger));
        assert_eq!(heard.map(|asker| (asker.is_outside, asker.pid)).collect::<Vec<_>>(), [(true, own); 2]);
        drop(talkers);
        // The connection from inside, which says nothing.
        let before = listener.descriptors().len();
        let strangers: Vec<OwnedFd> = (0..OUTSIDE_MOST + 9).map(|_| from_outside(&folder)).collect();
        assert_eq!(listener.strangers(&listener.descriptors()).len(), OUTSIDE_MOST);
        assert_eq!(listener.strangers(&listener.descriptors()).len(), 9);
        assert_eq!(listener.descriptors().len(), before, "no stranger is remembered");
        let flags = rustix::net::RecvFlags::DONTWAIT;
        for stranger in strangers {
            let end = rustix::net::recv(&stranger, &mut [0; 9], flags);
            assert!(matches!(end, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)), "{end:?}");
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
