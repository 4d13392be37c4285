//! The result of a search for the caller of a call out of unhooked code.

use gprofinject_abi::plan::DISTANCE;

/// The newest live frame of the program, or of libraries.
#[derive(Clone, Copy)]
pub(crate) struct Nearest {
    /// The function that is charged, or `None` if no frame is alive.
    pub(crate) function: Option<u32>,
    /// The CFA of the newest live frame, or the end of the stack if there is none. 0 if the call is not on the
    /// thread's own stack, so that no link may lead there.
    pub(crate) link: u64,
}

/// Returns the link from the cell of a frame with this CFA to that of the frame with the CFA `caller`; see
/// [`Nearest::link`].
pub(crate) fn link_between(caller: u64, cfa: u64) -> u32 {
    if caller <= cfa {
        return 0;
    }
    // Both are multiples of 8. A link may refer from a signal stack to the thread's own stack.
    match (caller - cfa) / 8 + 1 {
        link if link <= u64::from(DISTANCE) => link as u32,
        _ => 0,
    }
}
