//! Asks the injector for the process's files and about its libraries, over a socket in the run folder; see `gprofinject_abi::ask`.
#![allow(unsafe_code, reason = "the dynamic linker's names of libraries are read")]

use crate::os::current::Current;
use crate::os::files::{self, Identity};
use crate::os::kernel;
use crate::os::lookup::{self, LinkMap};
use crate::os::place::Place;
use crate::os::words;
use crate::process::run;
use core::sync::atomic::{AtomicI32, Ordering};
use gprofinject_abi::ask::{self, AHEAD, AHEAD_MAX, Answer, NAME_MAX, OPENS, Question};
use gprofinject_abi::region::{LeftOut, Lost, RegionOrders};
use gprofinject_abi::shared::RegionRef;
use gprofinject_abi::{PLAN_SUFFIX, REGION_SUFFIX};
use zerocopy::{FromBytes, IntoBytes};

const LONGEST_SUFFIX: usize =
    if REGION_SUFFIX.len() > PLAN_SUFFIX.len() { REGION_SUFFIX.len() } else { PLAN_SUFFIX.len() };
/// For a path that is relative to the current folder.
pub(crate) const AT_FDCWD: i32 = -100;
/// A place in the run folder, through which the injector is reached.
static PLACE: Current<Place, 1> = Current::new(&Place::NONE);
/// The errno for which the injector did not answer once, or 0. Then it is not asked again.
static SILENT: AtomicI32 = AtomicI32::new(0);

/// Why a library is not hooked.
pub(crate) enum Unhooked {
    NotWanted,
    /// The agent has not hooked it, for this reason; the second number is an errno, or 0.
    Failed(Lost, i32),
}

/// Prepares for questions. `place` is a place in the run folder. Returns whether questions can be asked.
pub(crate) fn begin(place: &Place) -> bool {
    run::note_owner();
    PLACE.reserve().map(|reserved| reserved.install(*place)).is_some()
}

/// Returns why the injector is not asked about another library, if it did not answer once.
pub(crate) fn is_over() -> Option<Unhooked> {
    match SILENT.load(Ordering::Relaxed) {
        0 => None,
        errno => Some(unanswered(errno)),
    }
}

/// Returns what becomes of a library about which the injector could not be asked.
fn unanswered(errno: i32) -> Unhooked {
    match errno {
        // An injector that is about to leave a process to which it has attached hears no questions any more.
        kernel::ECONNREFUSED if words::is_attached() => Unhooked::NotWanted,
        _ => Unhooked::Failed(Lost::Answer, errno),
    }
}

/// Returns whether a library that the process has loaded from this file, by this [`name`], is left out, and tells the injector by the region
/// file.
pub(crate) fn is_left_out(file: &Identity, name: u64, region: RegionRef, orders: &RegionOrders) -> bool {
    let index = orders.left_out.iter().position(|known| *known == LeftOut { file: file.0, name });
    index.inspect(|index| _ = region.left_out_seen().fetch_or(1 << index, Ordering::Relaxed)).is_some()
}

/// Returns [`Question::name`] of an object.
pub(crate) fn name(map: &LinkMap) -> u64 {
    let mut at = map.name;
    ask::hash_of(core::iter::from_fn(|| {
        // SAFETY: the dynamic linker's names are NUL-terminated, and nothing behind the NUL is read.
        let byte = if at.is_null() { 0 } else { unsafe { *at } };
        (byte != 0).then(|| {
            at = at.wrapping_add(1);
            byte
        })
    }))
}

/// Tells the injector which libraries are loaded, so that it can plan them while the agent hooks the program. What cannot be
/// told is planned later. What the orders leave out is passed to `note_asked`: it is not
/// asked about later either.
pub(crate) fn announce(
    dynamic_linker: u64,
    place: &Place,
    (region, orders): (RegionRef, &RegionOrders),
    note_asked: impl Fn(&LinkMap),
) {
    let mut files = [0; AHEAD_MAX];
    let mut count = 0;
    lookup::all_objects(dynamic_linker, |map| {
        if map.bias != 0
            && has_path(map.name)
            && let Some(file) = files.get_mut(count)
            && let Ok(fd) = files::open_path(AT_FDCWD, map.name as u64)
        {
            if files::identity(fd).is_ok_and(|identity| is_left_out(&identity, name(map), region, orders)) {
                note_asked(map);
                files::close(fd);
            } else {
                *file = fd;
                count += 1;
            }
        }
    });
    let files = files.get(..count).unwrap_or_default();
    if !files.is_empty() {
        run::tell_from(place, &[AHEAD], files).into_iter().for_each(files::close);
    }
    files.iter().for_each(|&fd| files::close(fd));
}

/// Asks the injector. `file` has a descriptor of the library's file, if the process can open it. Returns the answer, and the descriptors
/// that come with it: of the plan file, and of an image.
///
/// # Errors
/// There is no answer; [`SILENT`] is set then.
pub(crate) fn ask(question: &Question, file: &[i32]) -> Result<(Answer, [Option<i32>; 2]), Unhooked> {
    answer(question, file).map_err(|errno| {
        SILENT.store(errno.max(1), Ordering::Relaxed);
        unanswered(errno)
    })
}

/// Asks the injector.
///
/// # Errors
/// Returns an errno if there is no answer: ECONNREFUSED if the injector does not listen, or has stopped to listen.
fn answer(question: &Question, file: &[i32]) -> Result<(Answer, [Option<i32>; 2]), i32> {
    let socket = run::tell_from(PLACE.get(), question.as_bytes(), file)?;
    let mut bytes = [0; size_of::<Answer>()];
    let files = receive(socket, &mut bytes)?;
    Ok((Answer::read_from_bytes(&bytes).map_err(|_| kernel::EINVAL)?, files))
}

/// Asks the injector for a descriptor of one of the process's files, which the process cannot open. `place` is the process's place.
///
/// # Errors
/// Returns an errno if there is no descriptor.
pub(crate) fn file(place: &Place, suffix: &str) -> Result<i32, i32> {
    let mut packet = [OPENS; 1 + NAME_MAX + LONGEST_SUFFIX];
    let (name, suffix) = (place.name(), suffix.as_bytes());
    let end = 1 + name.len() + suffix.len();
    packet.get_mut(1..=name.len()).ok_or(kernel::EINVAL)?.copy_from_slice(name);
    packet.get_mut(1 + name.len()..end).ok_or(kernel::EINVAL)?.copy_from_slice(suffix);
    let socket = run::tell_from(place, packet.get(..end).ok_or(kernel::EINVAL)?, &[])?;
    let [file, other] = receive(socket, &mut [0])?;
    other.into_iter().for_each(files::close);
    file.ok_or(kernel::EINVAL)
}

/// Waits for the answer to a question, which is as long as `bytes`, and closes the socket. Returns the descriptors that come with the
/// answer.
///
/// # Errors
/// Returns an errno if there is no such answer.
fn receive(socket: i32, bytes: &mut [u8]) -> Result<[Option<i32>; 2], i32> {
    /// This is longer than planning takes.
    const PATIENCE_MS: u64 = 60_000;
    let received = if files::wait_readable(socket, PATIENCE_MS) {
        files::receive_with(socket, bytes).map_err(|_| kernel::ECONNREFUSED)
    } else {
        Err(kernel::EAGAIN)
    };
    files::close(socket);
    let (len, files) = received?;
    if len != bytes.len() {
        files.into_iter().flatten().for_each(files::close);
        return Err(if len == 0 { kernel::ECONNREFUSED } else { kernel::EINVAL });
    }
    Ok(files)
}

/// Returns whether a name is a path: the program has an empty name, and the kernel's object has one without a folder.
pub(crate) fn has_path(name: *const u8) -> bool {
    let mut at = name;
    // SAFETY: the dynamic linker's names are NUL-terminated.
    unsafe {
        while !at.is_null() && *at != 0 {
            if *at == b'/' {
                return true;
            }
            at = at.add(1);
        }
    }
    false
}
