//! What Frida's library asks for when the C library is ready. See [`gprofinject_abi::frida`].
#![allow(unsafe_code, reason = "Frida's library calls a function with the address of a result")]

use crate::program::agent::Agent;
use crate::program::text;
use core::sync::atomic::Ordering;
use gprofinject_abi::frida::Orders;
use gprofinject_abi::region::State;

/// # Safety
/// `orders` must be writable. For Frida's library only, and before any other thread runs.
#[cfg_attr(test, allow(dead_code))]
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gprofinject_frida_orders(orders: *mut Orders) -> bool {
    let agent = Agent::get();
    let armed = agent.region.state().load(Ordering::Acquire) == State::Armed.code().0;
    if !agent.is_set_up || !armed || text::is_writable(agent) {
        return false;
    }
    let (patches, count) = (agent.patches.as_ptr(), agent.patches.len() as u64);
    // SAFETY: the caller has promised that the result is writable.
    unsafe { orders.write(Orders { patches, count, bias: agent.bias, region: agent.region }) };
    true
}
