//! What the agent tells the library that holds Frida's gum, inside the profiled process.
//!
//! The agent sets up everything but the patches that are gum's ([`crate::plan::BY_FRIDA`]). The dynamic linker
//! runs the library's constructor when the C library is ready; it asks the agent for its [`Orders`] and has gum
//! lead each of those functions into its thunk.

use crate::plan::Patch;
use crate::region::RegionHeader;

/// The agent's function that answers, an [`Ask`].
pub const ASK: &core::ffi::CStr = c"gprofinject_frida_orders";

/// False: the program is not hooked, nothing is to be done. Else the orders were filled in.
pub type Ask = unsafe extern "C" fn(orders: *mut Orders) -> bool;

#[repr(C)]
#[derive(Debug)]
pub struct Orders {
    /// All patches of the plan, sorted by address. Mapped for ever.
    pub patches: *const Patch,
    pub count: u64,
    /// Runtime address minus link address.
    pub bias: u64,
    /// Where to say what was done: [`RegionHeader::frida_patched`] and [`RegionHeader::frida_ns`].
    pub region: *mut RegionHeader,
}
