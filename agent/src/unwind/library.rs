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
pub(crate) fn end() -> u64 {
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

/// Returns the extent of the library and the address of its unwind tables, `.eh_frame_hdr`, if an address lies in a
/// library that no dynamic linker knows.
#[cfg_attr(not(feature = "standalone"), allow(unused_variables, clippy::unnecessary_wraps))]
pub(crate) fn unlisted(pc: u64) -> Option<(u64, u64, u64)> {
    #[cfg(feature = "standalone")]
    if (start()..end()).contains(&pc) {
        const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
        let library = start();
        // SAFETY: e_phoff, e_phentsize and e_phnum of our own header, and the program headers that they name.
        unsafe {
            let headers = library + *((library + 0x20) as *const u64);
            let (size, count) = (*((library + 0x36) as *const u16), *((library + 0x38) as *const u16));
            for i in 0..u64::from(count) {
                let header = headers + i * u64::from(size);
                if *(header as *const u32) == PT_GNU_EH_FRAME {
                    return Some((library, end(), library + *((header + 0x10) as *const u64)));
                }
            }
        }
    }
    None
}

/// Returns whether a program counter belongs to a frame that the program would not have without the agent.
pub(crate) fn is_ours(agent: &Agent, pc: u64) -> bool {
    agent.in_thunks(pc) || (start()..end()).contains(&pc)
}
