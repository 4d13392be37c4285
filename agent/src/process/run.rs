//! The run that the process belongs to, if the injector follows it: its place in the run folder, and the injector's
//! socket.

use crate::os::current::Current;
use crate::os::files;
use crate::os::kernel;
use crate::os::place::Place;
use crate::os::task;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gprofinject_abi::ASK_FILE;
use linux_raw_sys::net;

/// The process's place. The set-up stores it, and so does each forked child that has a file of its own; for two
/// generations of children this takes no system call.
static PLACE: Current<Place, 3> = Current::new(&Place::NONE);

/// The effective user that the process had when the agent began, which is the one that has started gprofinject, or root.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// The number of the overflow user, if whoever has no user in this process's user namespace and no number in its PID namespace is
/// trusted as well, or else 0. See [`gprofinject_abi::attach::Order::outsider`].
static OUTSIDER: AtomicU32 = AtomicU32::new(0);

/// Whether an injector has listened by an abstract name.
static HAS_LISTENED: AtomicBool = AtomicBool::new(false);

/// Returns the process's place in the run, or [`Place::NONE`] if the process is not followed.
pub(crate) fn place() -> &'static Place {
    PLACE.get()
}

/// Makes the process a followed one with this place. Returns `false` if that is not possible, because the path of the
/// injector's socket is too long for a socket address, or because there is no memory.
pub(crate) fn follow(place: &Place) -> bool {
    if Address::of(place).is_none() {
        return false;
    }
    let reserved = PLACE.reserve();
    let done = reserved.is_some();
    if let Some(reserved) = reserved {
        reserved.install(*place);
    }
    done
}

/// Notes whose injector the process trusts from now on, besides root's.
pub(crate) fn note_owner() {
    OWNER.store(task::geteuid(), Ordering::Relaxed);
}

/// Notes by which number of a user processes that are outside of this one's namespaces are known and trusted, or 0 for none.
pub(crate) fn trust_outsider(user: u32) {
    OUTSIDER.store(user, Ordering::Relaxed);
}

/// Whether machine code is accepted from the process that has made a socket.
fn is_trusted(peer: files::Peer) -> bool {
    const ROOT: u32 = 0;
    let is_outside = peer.process == 0 && peer.user == OUTSIDER.load(Ordering::Relaxed);
    is_outside || peer.user == ROOT || peer.user == OWNER.load(Ordering::Relaxed)
}

/// Connects to the injector, which is sent a packet at once. Returns the socket, or `None` if there is no injector.
pub(crate) fn reach() -> Option<i32> {
    connect()?.ok()
}

/// Sends a packet and a descriptor to the injector. Returns the socket, or `None` if there is no injector.
pub(crate) fn tell_with(packet: &[u8], passed: i32) -> Option<i32> {
    tell_by(connect()?, |fd| files::send_with(fd, packet, &[passed])).ok()
}

/// The same with several descriptors, for a process that need not be followed. `place` is any place in its run folder.
///
/// # Errors
/// Returns an errno; it is ECONNREFUSED if no injector listens any more.
pub(crate) fn tell_from(place: &Place, packet: &[u8], passed: &[i32]) -> Result<i32, i32> {
    let connection = connect_from(place).unwrap_or(Err(kernel::EINVAL));
    let connection = connection.or_else(|errno| connect_from_outside(place, errno));
    tell_by(connection, |fd| match passed {
        [] => files::send(fd, packet),
        _ => files::send_with(fd, packet, passed),
    })
}

/// Connects to the injector from a process that cannot enter the run folder, because it belongs to another user or has
/// another root folder. `errno` is what became of the usual way. The injector listens by a name in the abstract namespace as
/// well, which is the path of the socket.
///
/// Whoever gets such a name first has it, so a user could take it when the injector has ended. The answer contains machine
/// code, so it is accepted only from root and from the user that the process had at first, all of whom may trace this process. In a
/// user namespace root is that of the namespace, and root of the machine has no number there: see [`trust_outsider`].
///
/// # Errors
/// Returns `errno` if no injector listens, or ECONNREFUSED if one listened before.
fn connect_from_outside(place: &Place, errno: i32) -> Result<i32, i32> {
    if !matches!(errno, kernel::EACCES | kernel::ENOENT) {
        return Err(errno);
    }
    let address = Address::abstract_of(place).ok_or(errno)?;
    let connected = files::connect(address.bytes.get(..address.len).unwrap_or_default());
    let fd = match connected {
        Ok(fd) => fd,
        Err(kernel::ECONNREFUSED) if HAS_LISTENED.load(Ordering::Relaxed) => {
            return Err(kernel::ECONNREFUSED);
        }
        Err(_) => return Err(errno),
    };
    if !files::peer(fd).is_ok_and(is_trusted) {
        files::close(fd);
        return Err(kernel::EPERM);
    }
    HAS_LISTENED.store(true, Ordering::Relaxed);
    Ok(fd)
}

fn tell_by(connection: Result<i32, i32>, send: impl FnOnce(i32) -> Result<(), i32>) -> Result<i32, i32> {
    let fd = connection?;
    send(fd).map(|()| fd).inspect_err(|_| files::close(fd))
}

/// Returns whether an injector listens.
pub(crate) fn is_injector_there() -> bool {
    match connect() {
        Some(Ok(fd)) => {
            files::close(fd);
            true
        }
        // Only this error means that no process listens.
        Some(Err(errno)) => errno != kernel::ECONNREFUSED,
        None => true,
    }
}

/// Connects to the injector's socket. Returns `None` if the process is not followed.
fn connect() -> Option<Result<i32, i32>> {
    connect_from(Some(place()).filter(|place| !place.is_none())?)
}

fn connect_from(place: &Place) -> Option<Result<i32, i32>> {
    let address = Address::of(place)?;
    Some(files::connect(address.bytes.get(..address.len)?))
}

/// A struct sockaddr_un: family, path.
struct Address {
    bytes: [u8; 110],
    len: usize,
}

impl Address {
    /// Returns the address of the injector's socket, or `None` if its path is too long.
    fn of(place: &Place) -> Option<Address> {
        let file = place.shared(ASK_FILE);
        let path = file.path();
        let mut address = Address { bytes: [0; 110], len: size_of::<u16>() + path.len() };
        address.bytes.get_mut(size_of::<u16>()..address.len)?.copy_from_slice(path);
        address.bytes[0] = net::AF_UNIX as u8;
        Some(address)
    }

    /// Returns the address whose abstract name is that path: a NUL, then the path without one.
    fn abstract_of(place: &Place) -> Option<Address> {
        const FAMILY: usize = size_of::<u16>();
        let mut address = Address::of(place)?;
        let path = address.len - FAMILY - 1;
        address.bytes.copy_within(FAMILY..FAMILY + path, FAMILY + 1);
        address.bytes[FAMILY] = 0;
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_addresses_have_the_same_length() {
        let place = Place::new(b"/dev/shm/run/0").expect("a place");
        let bytes = |address: Option<Address>| address.map(|found| found.bytes[..found.len].to_vec());
        assert_eq!(bytes(Address::of(&place)).expect("short"), b"\x01\0/dev/shm/run/ask\0");
        assert_eq!(bytes(Address::abstract_of(&place)).expect("short"), b"\x01\0\0/dev/shm/run/ask");
        let long = Place::new(&[b"/".as_slice(), &[b'x'; 104], b"/0"].concat()).expect("a place");
        assert!(Address::of(&long).is_none() && Address::abstract_of(&long).is_none());
    }
}
