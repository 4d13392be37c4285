//! What Frida's library asks for when the C library is ready. See [`gprofinject_abi::frida`].
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::text;
use gprofinject_abi::frida::Orders;
use gprofinject_abi::region::State;
use gprofinject_abi::shared::RegionRef;

/// # Safety
/// `orders` must be writable. For Frida's library only, and before any other thread runs.
#[cfg_attr(test, allow(dead_code))]
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gprofinject_frida_orders(orders: *mut Orders) -> bool {
    let agent = Agent::get();
    // SAFETY: the region header stays mapped.
    if agent.region.is_null() || unsafe { (*agent.region).state } != State::Armed.code() {
        return false;
    }
    if text::is_writable() {
        return false;
    }
    let (patches, bias) = text::patches();
    // SAFETY: the region header stays mapped.
    let Some(region) = (unsafe { RegionRef::at(agent.region as u64) }) else { return false };
    let count = patches.len() as u64;
    // SAFETY: the caller's.
    unsafe { orders.write(Orders { patches: patches.as_ptr(), count, bias, region }) };
    true
}
