//! *Sites*: the places in unhooked code that have called hooked functions lately.

use crate::hot::objects;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicU64, Ordering};

/// How many sites are known at a time.
pub(crate) const SITES_LEN: usize = 1024;

/// The sites that have called hooked functions lately: return addresses in code that is not hooked, but belongs to a
/// loaded object, and that begin no context and are no signal handler's. If a call returns to a site, the assembly in
/// [`crate::hot::gate`] looks for the caller without asking anything else about the return address. The low bits of a site's
/// address say where in the table it stands. Any thread may replace it by another site; a call whose return address is not
/// found here takes the slow path.
pub(crate) static SITES: [AtomicU64; SITES_LEN] = [const { AtomicU64::new(0) }; SITES_LEN];

fn site(return_address: u64) -> &'static AtomicU64 {
    // The index is less than the length.
    &SITES[return_address as usize % SITES_LEN]
}

/// Whether a return address is known to be a site. Integer code only; see [`crate::hot::gate`].
pub(crate) fn is_site(return_address: u64) -> bool {
    site(return_address).load(Ordering::Relaxed) == return_address
}

/// Answers with whether a return address in code that is not hooked is a site, and remembers it. Integer code only; see
/// [`crate::hot::gate`].
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
