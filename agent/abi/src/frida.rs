//! The interface inside the profiled process between the agent and the library that contains Frida's gum.
//!
//! The agent sets up everything but the patches that gum makes ([`crate::plan::Maker::Frida`]). When the C
//! library is ready, the dynamic linker runs the constructor of gum's library, which asks the agent for its
//! [`Orders`] and has gum redirect each of those functions to its thunk.
//!
//! [`Orders`] never leaves the process and holds pointers, so unlike the records of the other modules, it is
//! not read and written as bytes.

use core::ffi::c_void;

use crate::plan::Patch;
use crate::shared::RegionRef;

/// The name of the agent's function that fills in the orders; its type is [`Ask`].
pub const ASK: &core::ffi::CStr = c"gprofinject_frida_orders";

/// Fills in the orders and returns true, or returns false if the program is not hooked and gum's library has
/// nothing to do.
pub type Ask = unsafe extern "C" fn(orders: *mut Orders) -> bool;

/// The agent's orders to gum's library.
#[repr(C)]
#[derive(Debug)]
pub struct Orders {
    /// All patches of the plan, sorted by address. They stay mapped as long as the process lives.
    pub patches: *const Patch,
    /// Number of patches.
    pub count: u64,
    /// Runtime address minus link address.
    pub bias: u64,
    /// The header of the region file, in which gum's library reports its results:
    /// [`RegionRef::frida_patched`] and [`RegionRef::frida_ns`].
    pub region: RegionRef,
    /// Calls the routine with the argument. Returns true, or false if the routine has panicked; the agent
    /// reports the panic in the region file.
    pub attempt: unsafe extern "C" fn(routine: Routine, argument: *mut c_void) -> bool,
    /// The function that the panic handler must call for a panic in such a routine. Its arguments are the
    /// place of the panic: the source file's name, its length in bytes, and the line.
    pub panicked: Panicked,
}

/// A function that [`Orders::attempt`] calls.
pub type Routine = unsafe extern "C" fn(argument: *mut c_void);

/// See [`Orders::panicked`].
pub type Panicked = unsafe extern "C" fn(file: *const u8, len: u64, line: u32) -> !;
