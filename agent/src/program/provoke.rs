//! Panics at chosen places, for tests alone: without the feature `provoke-panic`, nothing of this is compiled in.

use crate::os::initial::Start;
#[cfg(feature = "provoke-panic")]
use core::sync::atomic::{AtomicU32, Ordering};

/// Where a panic can be provoked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// While the process is set up.
    SetUp = 1,
    /// On the slow path of a call, the third time that a thread comes there.
    Rare = 2,
    /// In a forked child.
    Fork = 3,
    /// Where a program is executed.
    Execute = 4,
}

/// The place that the environment names, or 0. Written before any other code of the library may come to such a place.
#[cfg(feature = "provoke-panic")]
static WANTED: AtomicU32 = AtomicU32::new(0);

/// Reads the environment variable.
pub(crate) fn read(_start: &Start) {
    #[cfg(feature = "provoke-panic")]
    {
        let wanted = match _start.value("GPROFINJECT_PROVOKE") {
            Some(b"setup") => Place::SetUp as u32,
            Some(b"rare") => Place::Rare as u32,
            Some(b"fork") => Place::Fork as u32,
            Some(b"execute") => Place::Execute as u32,
            _ => 0,
        };
        WANTED.store(wanted, Ordering::Relaxed);
    }
}

/// Panics if a panic at this place was asked for.
#[inline(always)]
pub(crate) fn at(_place: Place) {
    #[cfg(feature = "provoke-panic")]
    {
        static RARE: AtomicU32 = AtomicU32::new(0);
        let wanted = WANTED.load(Ordering::Relaxed) == _place as u32;
        if wanted && (_place != Place::Rare || RARE.fetch_add(1, Ordering::Relaxed) == 2) {
            panic!("a panic was asked for");
        }
    }
}
