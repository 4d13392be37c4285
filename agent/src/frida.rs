//! What Frida's library asks for when the C library is ready. See [`gprofinject_abi::frida`].
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::text;
use gprofinject_abi::frida::Orders;
use gprofinject_abi::region::State;

/// # Safety
/// `orders` must be writable. For Frida's library only, and before any other thread runs.
#[cfg_attr(test, allow(dead_code))]
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gprofinject_frida_orders(orders: *mut Orders) -> bool {
    let agent = Agent::get();
    // SAFETY: the region header stays mapped.
    if agent.region.is_null() || unsafe { (*agent.region).state } != State::Armed as u32 {
        return false;
    }
    if text::is_writable() {
        return false;
    }
    let (patches, bias) = text::patches();
    let (count, region) = (patches.len() as u64, agent.region);
    // SAFETY: the caller's.
    unsafe { orders.write(Orders { patches: patches.as_ptr(), count, bias, region }) };
    true
}
