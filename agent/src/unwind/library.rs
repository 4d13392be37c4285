//! The extent of the agent's own library, whose frames a backtrace does not show.

use crate::os::own_image::{end, start, unwind_tables};
use crate::os::words;
use crate::program::agent::Agent;

/// Returns whether the dynamic linker does not know the library: in a standalone program, and in a process to which gprofinject
/// attaches.
pub(crate) fn is_unlisted() -> bool {
    cfg!(feature = "standalone") || words::is_attached()
}

/// Returns the extent of the library and the address of its unwind tables, `.eh_frame_hdr`, if an address lies in it and no
/// dynamic linker knows it.
pub(crate) fn unlisted(pc: u64) -> Option<(u64, u64, u64)> {
    if !is_unlisted() || !(start()..end()).contains(&pc) {
        return None;
    }
    unwind_tables().map(|tables| (start(), end(), tables))
}

/// Returns whether a program counter belongs to a frame that the program would not have without the agent.
pub(crate) fn is_ours(agent: &Agent, pc: u64) -> bool {
    agent.in_thunks(pc) || (start()..end()).contains(&pc)
}
