//! The agent's own library, as it lies in memory.
#![allow(
    unsafe_code,
    reason = "the linker's symbols are read by instructions; the library's headers are read"
)]

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

/// Returns the address of the library's unwind tables, an `.eh_frame_hdr`. Integer code only; see [`crate::hot::gate`].
pub(crate) fn unwind_tables() -> Option<u64> {
    const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
    let library = start();
    if library == 0 {
        return None;
    }
    // SAFETY: e_phoff, e_phentsize and e_phnum of our own header, and the program headers that they name.
    unsafe {
        let mut header = library + *((library + 0x20) as *const u64);
        let (size, count) = (*((library + 0x36) as *const u16), *((library + 0x38) as *const u16));
        let end = header + u64::from(count) * u64::from(size);
        while header < end {
            if *(header as *const u32) == PT_GNU_EH_FRAME {
                return Some(library + *((header + 0x10) as *const u64));
            }
            header += u64::from(size);
        }
    }
    None
}
