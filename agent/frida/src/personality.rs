//! A name that the unwind tables of the crate `alloc` want and the standard library would have. Nothing here
//! unwinds. In assembly, because it has to be hidden: a program may have the real one from a library of its own.
#![allow(unsafe_code, reason = "a symbol is defined in assembly")]

core::arch::global_asm!(
    ".text",
    ".hidden rust_eh_personality",
    ".globl rust_eh_personality",
    "rust_eh_personality: ud2",
);
