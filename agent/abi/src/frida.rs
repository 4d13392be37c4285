//! What the agent tells the library with Frida's gum, inside the profiled process.
//!
//! The agent sets up everything but the patches that gum makes ([`crate::plan::Maker::Frida`]). When the C library is
//! ready, the dynamic linker runs the constructor of gum's library, which asks the agent for its [`Orders`] and has gum
//! lead each of those functions into its thunk.
//!
//! [`Orders`] never leaves the process and holds pointers, so it is no record of bytes like those of the other modules.

use crate::plan::Patch;
use crate::shared::RegionRef;

/// The agent's function that answers, an [`Ask`].
pub const ASK: &core::ffi::CStr = c"gprofinject_frida_orders";

/// Fills in the orders and answers true; or answers false if the program is not hooked, so that nothing is to be done.
pub type Ask = unsafe extern "C" fn(orders: *mut Orders) -> bool;

/// What gum's library needs to know.
#[repr(C)]
#[derive(Debug)]
pub struct Orders {
    /// All patches of the plan, sorted by address. They stay mapped as long as the process lives.
    pub patches: *const Patch,
    /// Number of patches.
    pub count: u64,
    /// Runtime address minus link address.
    pub bias: u64,
    /// Where gum's library says what it did: [`RegionRef::frida_patched`] and [`RegionRef::frida_ns`].
    pub region: RegionRef,
}
