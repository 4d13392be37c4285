//! What gprofinject puts into the profiled program.
//!
//! The library is preloaded, links with nothing and calls nothing of the program's: raw system calls
//! only, no allocation, no lock. Its life:
//!
//! 1. [`early`]: while the dynamic linker still relocates, before any code of the program has run, it
//!    finds the run folder, removes its traces from the environment, and has [`setup`] carry out the plan.
//! 2. Hooked functions count by themselves, in their thunks. What a thunk cannot do comes through
//!    [`gate`] to [`arcs`] (an arc not at home in its slot) or [`cells`] (a stack not seen before).
//!    [`threads`] hands out the memory.
//! 3. Counters lie in a shared file; there is nothing to do at the end, unless the injector has gone
//!    ([`orphan`]). [`mcount`] keeps glibc's own profiler out of it. [`children`] and [`execute`] see to processes that come of this one, [`unwind`] and
//!    [`jumps`] to frames that are left.
//!
//! It fails open: what it cannot do it leaves alone and says in the region file.
#![cfg_attr(not(test), no_std)]
// Unit tests run outside any profiled program: nobody calls the entry points there.
#![cfg_attr(test, allow(dead_code, unused_imports))]
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod control;
mod hot;
mod os;
mod process;
mod program;
mod start;
mod unwind;

/// The compiler wants one. Nothing here panics on purpose; if it did, the program would hang rather than
/// print somebody else's message or die.
#[cfg(not(test))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {
        core::hint::spin_loop();
    }
}
