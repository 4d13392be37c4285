//! The information that the agent gives to the library with Frida's gum, inside the profiled process.
//!
//! The agent does the whole set-up except for the patches that gum makes ([`crate::plan::Maker::Frida`]). When the C
//! library is ready, the dynamic linker runs the constructor of gum's library, which asks the agent for its
//! [`Orders`] and has gum redirect each of those functions to its thunk.
//!
//! [`Orders`] never leaves the process and contains pointers, so it is not a record of bytes like those of the other
//! modules.

use core::ffi::c_void;

use crate::plan::Patch;
use crate::shared::RegionRef;

/// Name of the agent's function that fills in the [`Orders`]; its type is [`Ask`].
pub const ASK: &core::ffi::CStr = c"gprofinject_frida_orders";

/// Fills in the orders and returns true, or returns false if the program is not hooked and gum's library has
/// nothing to do.
pub type Ask = unsafe extern "C" fn(orders: *mut Orders) -> bool;

/// The input of gum's library.
#[repr(C)]
#[derive(Debug)]
pub struct Orders {
    /// All patches of the plan, sorted by address. They stay mapped as long as the process lives.
    pub patches: *const Patch,
    /// Number of patches.
    pub count: u64,
    /// Runtime address minus link address.
    pub bias: u64,
    /// The region header in which gum's library reports its work: [`RegionRef::frida_patched`] and
    /// [`RegionRef::frida_ns`].
    pub region: RegionRef,
    /// Calls the routine with the argument. Returns whether the routine has returned; otherwise it has panicked, and
    /// the region file reports that.
    pub attempt: unsafe extern "C" fn(routine: Routine, argument: *mut c_void) -> bool,
    /// A panic handler in such a routine must call this function with the place of the panic: the source file's name,
    /// the name's length in bytes, and the line.
    pub panicked: Panicked,
}

/// The type of the routines that [`Orders::attempt`] calls.
pub type Routine = unsafe extern "C" fn(argument: *mut c_void);

/// See [`Orders::panicked`].
pub type Panicked = unsafe extern "C" fn(file: *const u8, len: u64, line: u32) -> !;
