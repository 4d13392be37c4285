//! The area of a thread block: records that the agent has made one after another, whatever its process has written there.

use gprofinject_abi::times::{Kind, Record, UNIT};
use zerocopy::FromBytes;

/// A record of an area.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) kind: Kind,
    /// Its offset in the area.
    pub(super) at: usize,
    /// Its length in bytes, which the area has.
    pub(super) len: usize,
}

/// Returns the records of an area. They end where something else is.
pub(super) fn records(area: &[u8]) -> impl Iterator<Item = Found> {
    let mut at = 0_usize;
    std::iter::from_fn(move || {
        let Record { kind, units } = value(area, at)?;
        let kind = kind.get().filter(|&kind| kind != Kind::Free)?;
        let len = units as usize * UNIT as usize;
        if len == 0 || len > area.len() - at {
            return None;
        }
        let found = Found { kind, at, len };
        at += len;
        Some(found)
    })
}

/// Returns the value at an offset of an area, if it is all there.
pub(super) fn value<T: FromBytes>(area: &[u8], at: usize) -> Option<T> {
    T::read_from_prefix(area.get(at..)?).ok().map(|(value, _)| value)
}
