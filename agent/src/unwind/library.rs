//! The extent of the agent's own library, whose frames a backtrace does not show.
#![allow(unsafe_code, reason = "the linker's symbols are read by instructions")]

use crate::program::agent::Agent;

#[cfg(not(test))]
core::arch::global_asm!(".hidden _end");

/// Returns the start address of the library.
pub(crate) fn start() -> u64 {
    let start: u64;
    #[cfg(not(test))]
    // SAFETY: the linker defines the symbol, and only its address is taken.
    unsafe {
        core::arch::asm!("lea {}, [rip + __ehdr_start]", out(reg) start, options(nostack, pure, nomem));
    }
    #[cfg(test)]
    {
        start = 0;
    }
    start
}

/// Returns the end address of the library.
fn end() -> u64 {
    let end: u64;
    #[cfg(not(test))]
    // SAFETY: the linker defines the symbol, and only its address is taken.
    unsafe {
        core::arch::asm!("lea {}, [rip + _end]", out(reg) end, options(nostack, pure, nomem));
    }
    #[cfg(test)]
    {
        end = 0;
    }
    end
}

/// Returns whether a program counter belongs to a frame that the program would not have without the agent.
pub(crate) fn is_ours(agent: &Agent, pc: u64) -> bool {
    agent.in_thunks(pc) || (start()..end()).contains(&pc)
}
