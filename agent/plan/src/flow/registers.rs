//! The registers whose values are not needed when a function is entered, or when it returns.
//!
//! A thunk uses two registers on entry, rax and r11 or r10, and two on exit. It must preserve all of them: a
//! caller that knows the function's code may keep a value in any register that the function leaves alone (gcc
//! -fipa-ra), rax holds the number of vector arguments of a variadic call, and results may be in more
//! registers than rax and rdx. Saving can be left out where one of these proofs holds:
//!
//! * The straight line of code that the function begins with overwrites rax, or r10, without reading it
//!   first. Then the register is no input (r10 is that of nested functions), and the function is known to
//!   change it. r10 is no input either if the function does not read it, does not jump to a function that
//!   does, and calls no function that reads it before writing it while r10 may still hold its value from
//!   entry: nested functions pass it on to each other.
//! * No caller keeps a value in r10 or r11. Either callers cannot, because the function changes the register
//!   somewhere, or calls code that is not known and may change it, or calls a function for which one of these
//!   holds. Or callers do not: none that calls the function directly, or may do so through a pointer, names
//!   the register (except to write it as an input of several calls) or has r10 as an input, and no caller of
//!   such a caller keeps a value in it across both calls. For the entry, it must also hold that the function
//!   does not read r11 before it writes it, which only helpers of compilers do. For the exit, the function
//!   must not return with a result in the register, which only hand-written code does: no caller reads the
//!   register after the call before it writes it, the function does not return with a value there that no
//!   instruction has used, and it takes none in it.

pub(crate) mod argument;
pub(crate) mod facts;
pub(crate) mod scan;
pub(crate) mod targets;
pub(crate) mod uses;
