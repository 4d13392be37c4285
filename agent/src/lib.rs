//! What gprofinject puts into the profiled program.
//!
//! The library is preloaded, links with nothing and calls nothing of the program's: raw system calls
//! only, no allocation, no lock. Its layers, from the top down:
//!
//! * [`control`]: orders of the injector to a running process, and questions of Frida's library.
//! * [`start`]: the set-up, while the dynamic linker still relocates, before any code of the program has run. It
//!   finds the run folder, removes its traces from the environment, and carries out the plan.
//! * [`process`]: forked children, executed programs, seccomp, and the end of a process that outlives the injector.
//! * [`unwind`]: unwinders that meet thunks, and frames that an exception or a longjmp leaves.
//! * [`hot`]: counting. Hooked functions count by themselves, in their thunks; what a thunk cannot do comes here.
//! * [`program`]: what is known of the profiled program and its text; and what happens if the agent's code panics.
//! * [`os`]: the kernel, the dynamic linker and the machine, without the C library.
//!
//! Counters lie in a shared file, so there is nothing to do at the end. The agent fails open: what it cannot do it
//! leaves alone, and it says so in the region file.
// Clippy looks at all crates as they are in tests, where panics unwind (.ci/run), for which there has to be the standard library.
#![cfg_attr(not(any(test, all(clippy, panic = "unwind"))), no_std)]
// Unit tests run outside any profiled program: no code calls the entry points there.
#![cfg_attr(test, allow(dead_code, unused_imports))]
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod control;
mod hot;
mod os;
mod process;
mod program;
mod start;
mod unwind;

#[cfg(not(any(test, all(clippy, panic = "unwind"))))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    program::failure::panicked(info.location().map(|place| (place.file().as_bytes(), place.line())))
}
