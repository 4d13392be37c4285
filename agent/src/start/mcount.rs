//! Switches off glibc's own profiler.
//!
//! A program built with -pg calls `mcount` or `__fentry__` in each function, and its start-up code starts glibc's
//! sampling (SIGPROF) and has a gmon.out written at exit. The plan removes the calls from the program's code. The
//! functions are defined here too, and the program and its libraries find these definitions first; the remaining
//! calls (in libraries, and in functions that could not be decoded) return at once, and no second profile is written.
//! If nothing was hooked, these definitions call glibc's functions, and the program has glibc's profile.
//!
//! The hooks of -finstrument-functions are not defined here: a program that defines them wants them to be called.
#![allow(unsafe_code, reason = "functions of the C library are defined")]

use crate::os::lookup;
use core::sync::atomic::AtomicU64;

/// The addresses of glibc's functions, or 0 if they are not to be called.
static MCOUNT: AtomicU64 = AtomicU64::new(0);
static FENTRY: AtomicU64 = AtomicU64::new(0);
static START: AtomicU64 = AtomicU64::new(0);
static CONTROL: AtomicU64 = AtomicU64::new(0);
static CLEAN_UP: AtomicU64 = AtomicU64::new(0);

/// Makes glibc's profiler work as it would without the agent, because nothing was hooked.
#[cfg_attr(
    feature = "standalone",
    allow(dead_code, reason = "there is no other runtime to which calls could be passed")
)]
pub(crate) fn pass_on(dynamic_linker: u64) {
    let functions: [(_, &[u8]); 5] = [
        (&MCOUNT, b"_mcount"),
        (&FENTRY, b"__fentry__"),
        (&START, b"__monstartup"),
        (&CONTROL, b"moncontrol"),
        (&CLEAN_UP, b"_mcleanup"),
    ];
    lookup::store(dynamic_linker, &functions);
}

/// Returns whether the hooks of -finstrument-functions, which the plan has taken for the C library's empty ones, are
/// defined elsewhere. Then their calls must remain.
pub(crate) fn has_hooks(dynamic_linker: u64, libc: (u64, u64)) -> bool {
    let is_others = |name| !(libc.0..libc.1).contains(&lookup::function(dynamic_linker, name));
    is_others(b"__cyg_profile_func_enter") || is_others(b"__cyg_profile_func_exit")
}

macro_rules! switched {
    ($($name:ident: $place:ident,)*) => {$(
        /// Calls glibc's function of that name, or does nothing and preserves all registers. A library's IFUNC
        /// resolver may call it before the agent is relocated or set up, so the address is 0 at first.
        ///
        /// # Safety
        /// As glibc's function.
        #[cfg(not(test))]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "cmp qword ptr [rip + {place}], 0",
                "jne 2f",
                "ret",
                "2:",
                "jmp [rip + {place}]",
                place = sym $place,
            );
        }
    )*};
}

switched! {
    mcount: MCOUNT,
    _mcount: MCOUNT,
    __fentry__: FENTRY,
    __monstartup: START,
    monstartup: START,
    moncontrol: CONTROL,
    _mcleanup: CLEAN_UP,
}
