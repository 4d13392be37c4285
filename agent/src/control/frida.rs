//! Answers Frida's library when the C library is ready. See [`gprofinject_abi::frida`].
#![allow(unsafe_code, reason = "Frida's library calls a function with the address of a result")]

use crate::program::agent::Agent;
use crate::program::{failure, text};
use core::ffi::c_void;
use core::sync::atomic::Ordering;
use gprofinject_abi::frida::{Orders, Routine};
use gprofinject_abi::region::State;

/// # Safety
/// `orders` must be writable. For Frida's library only, and before any other thread runs.
#[cfg_attr(test, allow(dead_code))]
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn gprofinject_frida_orders(orders: *mut Orders) -> bool {
    let agent = Agent::get();
    let armed = agent.region.state().load(Ordering::Acquire) == State::Armed.code().0;
    if !agent.is_set_up || !armed || text::is_writable(&agent.program) {
        return false;
    }
    let (patches, count) = (agent.program.patches.as_ptr(), agent.program.patches.len() as u64);
    // SAFETY: the caller has promised that the result is writable.
    unsafe {
        orders.write(Orders {
            patches,
            count,
            bias: agent.program.bias,
            region: agent.region,
            attempt,
            panicked,
        });
    }
    true
}

/// See [`Orders::attempt`].
unsafe extern "C" fn attempt(routine: Routine, argument: *mut c_void) -> bool {
    // SAFETY: Frida's library passes a routine of its own with the argument that the routine expects.
    failure::guarded(|| unsafe { routine(argument) }).is_some()
}

/// See [`Orders::panicked`].
unsafe extern "C" fn panicked(file: *const u8, len: u64, line: u32) -> ! {
    // SAFETY: Frida's library passes a name from its panic handler, which is a constant of that library.
    let file = unsafe { core::slice::from_raw_parts(file, len as usize) };
    failure::panicked(Some((file, line)))
}
