//! The words of the calling thread, and the macros by which machine code reaches them.
//!
//! The library is built in two ways. One is loaded by the dynamic linker or, into a running process, by the injector: its
//! words are reached by fs ([`tls`]). The other one, with the feature `standalone`, is for programs without glibc's
//! dynamic linker: its words are reached by gs ([`gs`]). Both modules offer the same functions.

#[cfg(feature = "standalone")]
mod gs;
#[cfg(not(feature = "standalone"))]
mod tls;

#[cfg(feature = "standalone")]
pub(crate) use gs::{
    SLOW_STACK, dispatch, get, image, is_attached, offset, set_attached, slow_stack, stack, stack_end,
    thread_pointer, thread_word, words_offset,
};
#[cfg(not(feature = "standalone"))]
pub(crate) use tls::{
    SLOW_STACK, dispatch, get, image, is_attached, offset, slow_stack, stack_end, thread_pointer,
    thread_word, words_offset,
};

/// The bit of the word of a thread's stack for slow paths that is set while the stack is not in use.
pub(crate) const SLOW_STACK_FREE: u64 = 1;
const _: () = assert!(SLOW_STACK_FREE == 1, "machine code tests bit 0");
