//! *Sites*: the call sites in unhooked code that have called hooked functions recently.

use crate::hot::objects;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicU64, Ordering};

/// The number of entries in the table of sites.
pub(crate) const SITES_LEN: usize = 1024;

/// The return addresses of calls of hooked functions made recently by code that is not hooked but belongs to
/// a loaded object. The start address of a context and the restorer of a signal handler are never in the
/// table. If a call returns to a site, the assembly in [`crate::hot::gate`] looks for the caller without any
/// other check of the return address. The low bits of a site's address are its index in the table. Any thread
/// may replace it by another site; a call whose return address is not found here takes the slow path.
pub(crate) static SITES: [AtomicU64; SITES_LEN] = [const { AtomicU64::new(0) }; SITES_LEN];

fn site(return_address: u64) -> &'static AtomicU64 {
    // The index is less than the length.
    &SITES[return_address as usize % SITES_LEN]
}

/// Returns whether a return address is recorded as a site. Integer code only; see [`crate::hot::gate`].
pub(crate) fn is_site(return_address: u64) -> bool {
    site(return_address).load(Ordering::Relaxed) == return_address
}

/// Returns whether a return address in code that is not hooked is a site, and records it if so. Integer code
/// only; see [`crate::hot::gate`].
pub(crate) fn note(agent: &Agent, return_address: u64) -> bool {
    let is = return_address != 0
        && !agent.in_copies(return_address)
        && !agent.in_arena(return_address)
        && (!agent.both || agent.in_text(return_address) || objects::known(return_address) == Some(false))
        && !agent.is_restorer(return_address)
        && !agent.is_start_of_context(return_address);
    if is {
        site(return_address).store(return_address, Ordering::Relaxed);
    }
    is
}
