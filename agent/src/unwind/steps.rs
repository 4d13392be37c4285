//! Leaves thunks out of walks with libunwind's own functions, nongnu.org's and LLVM's: `unw_step` goes on until it has come to
//! a frame of the program.
#![allow(unsafe_code, reason = "functions of the unwinder are defined, and called by their addresses")]
#![cfg_attr(test, allow(non_snake_case, reason = "these are the names of the library's functions"))]

use crate::os::lookup;
use crate::program::agent::Agent;
use crate::unwind::backtraces;
use crate::unwind::library::is_ours;
use crate::unwind::unwinder::dynamic_linker;
use core::ffi::c_void;
use core::mem::transmute;
use core::sync::atomic::{AtomicU64, Ordering};

/// A library's function that steps, and the one that reads a register; each is 0 until it is found, and then stored as in
/// [`crate::unwind::unwinder`].
struct Walker {
    step: AtomicU64,
    get_register: AtomicU64,
    names: [&'static [u8]; 2],
    /// The number of the instruction pointer.
    instruction_pointer: i32,
}

impl Walker {
    const fn new(names: [&'static [u8]; 2], instruction_pointer: i32) -> Walker {
        Walker { step: AtomicU64::new(0), get_register: AtomicU64::new(0), names, instruction_pointer }
    }
}

/// nongnu.org's, for the process itself. The number is UNW_X86_64_RIP.
static LOCAL: Walker = Walker::new([b"_ULx86_64_step", b"_ULx86_64_get_reg"], 16);
/// The same for any process.
static ANY: Walker = Walker::new([b"_Ux86_64_step", b"_Ux86_64_get_reg"], 16);
/// LLVM's. The number is UNW_REG_IP.
static LLVM: Walker = Walker::new([b"unw_step", b"unw_get_reg"], -1);
/// nongnu.org's function that fills an array with addresses.
static BACKTRACE: AtomicU64 = AtomicU64::new(0);

/// Returns a function's address, which it looks for if it is not known yet.
fn found(place: &AtomicU64, name: &[u8]) -> u64 {
    match place.load(Ordering::Relaxed) {
        0 => {
            let function = lookup::function(dynamic_linker(), name);
            place.store(function, Ordering::Relaxed);
            function
        }
        known => known,
    }
}

/// Steps to the next frame of the program. Returns what the library's function returns.
///
/// # Safety
/// The cursor must be one of the walker's library.
unsafe fn step(walker: &Walker, cursor: *mut c_void) -> i32 {
    type Step = unsafe extern "C" fn(*mut c_void) -> i32;
    type GetRegister = unsafe extern "C" fn(*mut c_void, i32, *mut u64) -> i32;
    /// -UNW_EUNSPEC.
    const FAILED: i32 = -1;
    let step = found(&walker.step, walker.names[0]);
    let get_register = found(&walker.get_register, walker.names[1]);
    if step == 0 {
        return FAILED;
    }
    // SAFETY: the addresses are those of the library's functions, which have these types. The cursor is the library's, and the
    // value is a local variable.
    unsafe {
        let step = transmute::<u64, Step>(step);
        loop {
            let answer = step(cursor);
            if answer <= 0 || get_register == 0 {
                return answer;
            }
            let mut pc = 0;
            let get_register = transmute::<u64, GetRegister>(get_register);
            if get_register(cursor, walker.instruction_pointer, &raw mut pc) != 0
                || !is_ours(Agent::get(), pc)
            {
                return answer;
            }
        }
    }
}

/// # Safety
/// As libunwind's function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn _ULx86_64_step(cursor: *mut c_void) -> i32 {
    // SAFETY: the caller has promised that the cursor is one of this library.
    unsafe { step(&LOCAL, cursor) }
}

/// # Safety
/// As libunwind's function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn _Ux86_64_step(cursor: *mut c_void) -> i32 {
    // SAFETY: the caller has promised that the cursor is one of this library.
    unsafe { step(&ANY, cursor) }
}

/// # Safety
/// As the function of LLVM's libunwind of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn unw_step(cursor: *mut c_void) -> i32 {
    // SAFETY: the caller has promised that the cursor is one of this library.
    unsafe { step(&LLVM, cursor) }
}

/// # Safety
/// As libunwind's function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn unw_backtrace(buffer: *mut u64, size: i32) -> i32 {
    match found(&BACKTRACE, b"unw_backtrace") {
        0 => 0,
        // SAFETY: the address is that of the library's function, and the caller's buffer has room for `size` addresses.
        real => unsafe { backtraces::filtered(real, buffer, size) },
    }
}
