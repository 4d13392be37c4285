//! What the agent tells the library with Frida's gum, inside the profiled process.
//!
//! The agent sets up everything but the patches that gum makes ([`crate::plan::Maker::Frida`]). When the C library is
//! ready, the dynamic linker runs the constructor of gum's library, which asks the agent for its [`Orders`] and has gum
//! lead each of those functions into its thunk.
//!
//! [`Orders`] never leaves the process and holds pointers, so it is no record of bytes like those of the other modules.

use core::ffi::c_void;

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
    /// Calls the routine with the argument and answers true; or answers false if the routine has panicked, which is reported in
    /// the region file then.
    pub attempt: unsafe extern "C" fn(routine: Routine, argument: *mut c_void) -> bool,
    /// What a panic handler in such a routine has to call, with the place of the panic: the source file's name, its length in
    /// bytes, and the line.
    pub panicked: Panicked,
}

/// What [`Orders::attempt`] calls.
pub type Routine = unsafe extern "C" fn(argument: *mut c_void);

/// See [`Orders::panicked`].
pub type Panicked = unsafe extern "C" fn(file: *const u8, len: u64, line: u32) -> !;
