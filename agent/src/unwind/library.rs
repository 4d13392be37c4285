//! The extent of the agent's own library, whose frames a backtrace does not show.

#[cfg(feature = "standalone")]
use crate::os::own_image::unwind_tables;
use crate::os::own_image::{end, start};
use crate::program::agent::Agent;

/// Returns the extent of the library and the address of its unwind tables, `.eh_frame_hdr`, if an address lies in a
/// library that no dynamic linker knows.
#[cfg_attr(not(feature = "standalone"), allow(unused_variables, clippy::unnecessary_wraps))]
pub(crate) fn unlisted(pc: u64) -> Option<(u64, u64, u64)> {
    #[cfg(feature = "standalone")]
    if (start()..end()).contains(&pc)
        && let Some(tables) = unwind_tables()
    {
        return Some((start(), end(), tables));
    }
    None
}

/// Returns whether a program counter belongs to a frame that the program would not have without the agent.
pub(crate) fn is_ours(agent: &Agent, pc: u64) -> bool {
    agent.in_thunks(pc) || (start()..end()).contains(&pc)
}
