//! The thread words: an initial-exec TLS block, so that a thunk reaches it with one `fs:` access.
#![allow(unsafe_code)]

use core::arch::{asm, global_asm};
use gprofinject_abi::plan::ThreadWords;

// A thread starts with what the TLS image holds; the set-up writes the image (see `set_image`).
#[cfg(not(test))]
global_asm!(
    ".section .tdata.gprofinject, \"awT\", @progbits",
    ".balign 64",
    ".globl gprofinject_thread_words",
    ".hidden gprofinject_thread_words",
    ".type gprofinject_thread_words, @object",
    ".size gprofinject_thread_words, 56",
    "gprofinject_thread_words:",
    ".quad 0, 0, 0, 0, 0, 0, 0",
    ".hidden __ehdr_start",
    ".text",
);

#[cfg(test)]
global_asm!(
    ".section .tdata.gprofinject, \"awT\", @progbits",
    ".balign 64",
    ".type gprofinject_thread_words, @object",
    "gprofinject_thread_words:",
    ".quad 0, 0, 0, 0, 0, 0, 0",
    ".text",
);

const _: () = assert!(size_of::<ThreadWords>() == 56, "as long as the symbol above");

/// Offset of the words from the thread pointer; the same in every thread.
pub(crate) fn offset() -> i64 {
    let offset: i64;
    // SAFETY: reads the GOT entry that the dynamic linker has filled before it runs any of our code.
    unsafe {
        asm!("mov {}, [rip + gprofinject_thread_words@GOTTPOFF]", out(reg) offset, options(nostack, pure, readonly));
    }
    offset
}

/// The calling thread's words.
pub(crate) fn get() -> *mut ThreadWords {
    thread_pointer().wrapping_add_signed(offset()) as *mut ThreadWords
}

/// The address of the thread control block.
pub(crate) fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: fs:0 holds the thread pointer itself (x86-64 TLS ABI, variant II).
    unsafe { asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, pure, readonly)) };
    pointer
}

/// The words' place in the library's TLS image, from which the words of new threads are copied. The
/// library has no other TLS, so its image begins with the words.
pub(crate) fn image() -> Option<*mut ThreadWords> {
    #[cfg(not(test))]
    {
        const PT_TLS: u32 = 7;
        let library: u64;
        // SAFETY: the linker defines __ehdr_start where it maps the ELF header.
        unsafe { asm!("lea {}, [rip + __ehdr_start]", out(reg) library, options(nostack, pure, nomem)) };
        // SAFETY: e_phoff, e_phentsize and e_phnum of our own header, and the program headers they name.
        unsafe {
            let headers = library + *((library + 0x20) as *const u64);
            let (size, count) = (*((library + 0x36) as *const u16), *((library + 0x38) as *const u16));
            for i in 0..u64::from(count) {
                let header = headers + i * u64::from(size);
                if *(header as *const u32) == PT_TLS {
                    return Some((library + *((header + 0x10) as *const u64)) as *mut ThreadWords);
                }
            }
        }
    }
    None
}
