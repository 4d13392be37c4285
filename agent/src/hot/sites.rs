//! *Sites*: the places in unhooked code that have recently called hooked functions, and those in hooked libraries that
//! have recently called functions of the program.

use crate::hot::objects;
use crate::program::agent::Agent;
use crate::program::libraries;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::region::TWICE;

/// The number of sites in the table.
pub(crate) const SITES_LEN: usize = 4096;

/// The sites that have recently called hooked functions: return addresses in code that is not hooked, but belongs to
/// a loaded object, and that are neither the start of a context nor the C library's signal restorer. If a call
/// returns to a site, the assembly in [`crate::hot::gate`] looks for the caller without any other check of the return
/// address. Code that was made at run time has sites too, with the bit [`MADE`]: the functions that they call get no cell. A site in hooked code of a library that has called a function of the program has the bit [`TWICE`], as the key
/// of such a call has. The low bits of a site's address are its index in the table. Any thread may replace it by another
/// site; a call whose return address is not in the table takes the slow path.
pub(crate) static SITES: [AtomicU64; SITES_LEN] = [const { AtomicU64::new(0) }; SITES_LEN];

/// The bit of a site in code that was made at run time ([`objects`]).
pub(crate) const MADE: u64 = 1 << 60;

fn site(return_address: u64) -> &'static AtomicU64 {
    // The index is less than the length of the table.
    &SITES[return_address as usize % SITES_LEN]
}

/// Forgets all sites.
pub(crate) fn forget() {
    for site in &SITES {
        site.store(0, Ordering::Relaxed);
    }
}

/// Returns whether a return address is a known site in unhooked code. Integer code only; see [`crate::hot::gate`].
pub(crate) fn is_site(return_address: u64) -> bool {
    site(return_address).load(Ordering::Relaxed) == return_address
}

/// Returns whether a return address in code that is not hooked is a site, and if so stores it in the table. Integer
/// code only; see [`crate::hot::gate`].
pub(crate) fn note(agent: &Agent, return_address: u64) -> bool {
    if return_address == 0
        || libraries::in_copies(agent, return_address)
        || agent.in_thunks(return_address)
        || agent.is_restorer(return_address)
        || agent.is_start_of_context(return_address)
    {
        return false;
    }
    let in_text = agent.program.in_text(return_address);
    let made = match objects::known(return_address) {
        _ if in_text || !agent.both && !libraries::both() => false,
        Some(made) => made,
        None if libraries::with_return(return_address).is_none() => return false,
        None => false,
    };
    let site_word = if made { return_address | MADE } else { return_address };
    site(return_address).store(site_word, Ordering::Relaxed);
    true
}

/// Returns whether the return address of a call out of hooked code of a library to a function of the program is a site,
/// and if so stores it in the table. Integer code only; see [`crate::hot::gate`].
pub(crate) fn note_library(agent: &Agent, return_address: u64) -> bool {
    let is = !agent.is_restorer(return_address) && !agent.is_start_of_context(return_address);
    if is {
        site(return_address).store(TWICE | return_address, Ordering::Relaxed);
    }
    is
}
