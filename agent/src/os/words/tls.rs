//! The thread words where the dynamic linker loads the agent: an initial-exec TLS variable, so that a thunk reaches them
//! with one `fs:` access.
#![allow(unsafe_code, reason = "the thread pointer and the linker's symbols are read by instructions")]

use core::arch::{asm, global_asm};
use core::sync::atomic::AtomicU64;
use gprofinject_abi::attach;
use gprofinject_abi::plan::{ThreadWords, WORDS_ALIGN, WORDS_BYTES};
use gprofinject_abi::shared::WordsRef;

/// Bytes of the words.
const WORDS_LEN: usize = 112;
/// Bytes of the symbol below.
const LEN: usize = DISPATCH + 8;

/// The offset of the word of the thread's stack for slow paths ([`crate::hot::small_stacks`]) from the others. In a process
/// that was already running, the words for a thread that waits for the injector are in between.
pub(crate) const SLOW_STACK: usize = WORDS_LEN + 24;
const _: () = assert!(SLOW_STACK as u64 + attach::WORDS == attach::ROUNDS + 8);
/// The offset of the word that [`dispatch`] returns. A process that was already running has no such word.
const DISPATCH: usize = SLOW_STACK + 8;

// A thread begins with the contents of the TLS image; the set-up writes the image (see `image`). The symbol is global
// because the compiler may divide the crate into several object files, and only one of them has this definition.
global_asm!(
    ".section .tdata.gprofinject, \"awT\", @progbits",
    ".balign {align}",
    ".globl gprofinject_thread_words",
    ".hidden gprofinject_thread_words",
    ".type gprofinject_thread_words, @object",
    ".size gprofinject_thread_words, {len}",
    "gprofinject_thread_words:",
    ".zero {len}",
    ".hidden __ehdr_start",
    ".text",
    len = const LEN,
    align = const WORDS_ALIGN,
);

const _: () = assert!(size_of::<ThreadWords>() == WORDS_LEN && LEN as u64 == WORDS_BYTES);

/// Assembly: an instruction with one of the calling thread's words as its memory operand. The register in the operand
/// contains what [`words_offset`] has loaded.
macro_rules! thread_word {
    ($before:literal, $operand:literal $(, $behind:literal)?) => {
        concat!($before, "fs:", $operand $(, $behind)?)
    };
}

/// Assembly: loads the offset by which [`thread_word`] reaches the calling thread's words.
macro_rules! words_offset {
    ($register:literal) => {
        concat!("mov ", $register, ", [rip+gprofinject_thread_words@GOTTPOFF]")
    };
}

pub(crate) use {thread_word, words_offset};

/// Returns the offset of the words from the thread pointer, which is the same in every thread.
pub(crate) fn offset() -> i64 {
    let offset: i64;
    // SAFETY: the instruction reads the GOT entry, which the dynamic linker has filled before any code of ours ran.
    unsafe {
        asm!("mov {}, [rip + gprofinject_thread_words@GOTTPOFF]", out(reg) offset, options(nostack, pure, readonly));
    }
    offset
}

/// Returns whether the agent was put into a process that was already running.
pub(crate) fn is_attached() -> bool {
    offset() == attach::WORDS as i64
}

/// Returns the calling thread's words.
pub(crate) fn get() -> WordsRef {
    let at = thread_pointer().wrapping_add_signed(offset()) as *mut ThreadWords;
    // SAFETY: the words are part of the thread's TLS block, which is aligned like the variable, and lives as
    // long as the thread. No copy of the pointer leaves the thread. Apart from thunks, only `WordsRef`
    // accesses the words.
    unsafe { WordsRef::new(core::ptr::NonNull::new_unchecked(at)) }
}

/// Returns the address of the word of the calling thread's stack for slow paths.
pub(crate) fn slow_stack() -> *mut u64 {
    thread_pointer().wrapping_add_signed(offset() + SLOW_STACK as i64) as *mut u64
}

/// Returns the calling thread's word for system call user dispatch, which is 0 in a new thread: see [`crate::os::dispatch`].
pub(crate) fn dispatch() -> Option<&'static AtomicU64> {
    let at = thread_pointer().wrapping_add_signed(offset() + DISPATCH as i64) as *mut u64;
    // SAFETY: the word is part of the thread's TLS block, and only the thread itself uses the reference.
    (!is_attached()).then(|| unsafe { AtomicU64::from_ptr(at) })
}

/// Returns the address of the thread control block, which no other thread has.
pub(crate) fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: fs:0 contains the thread pointer itself (x86-64 TLS ABI, variant II).
    unsafe { asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, pure, readonly)) };
    pointer
}

/// Returns an address at which the calling thread's stack ends, if it is not the main thread: glibc places the thread
/// control block at the top of the stack.
pub(crate) fn stack_end() -> u64 {
    thread_pointer()
}

/// Returns the words in the library's TLS image, from which the words of new threads are copied. The library
/// has no other TLS, so its image begins with the words.
pub(crate) fn image() -> Option<WordsRef> {
    #[cfg(not(test))]
    {
        const PT_TLS: u32 = linux_raw_sys::elf::PT_TLS;
        let library: u64;
        // SAFETY: the linker defines __ehdr_start as the place where it maps the ELF header.
        unsafe { asm!("lea {}, [rip + __ehdr_start]", out(reg) library, options(nostack, pure, nomem)) };
        // SAFETY: e_phoff, e_phentsize and e_phnum of our own header, and the program headers that they name. The
        // linker leaves the image writable, as build.rs orders.
        unsafe {
            let headers = library + *((library + 0x20) as *const u64);
            let (size, count) = (*((library + 0x36) as *const u16), *((library + 0x38) as *const u16));
            for i in 0..u64::from(count) {
                let header = headers + i * u64::from(size);
                if *(header as *const u32) == PT_TLS {
                    return WordsRef::at(library + *((header + 0x10) as *const u64));
                }
            }
        }
    }
    None
}
