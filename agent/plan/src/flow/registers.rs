//! Which registers nobody needs when a function is entered, and when it returns.
//!
//! A thunk uses two registers on entry, rax and r11 or r10, and two on exit. It must leave all as they were:
//! a caller that knows the function's code may keep a value in any register that the function leaves alone
//! (gcc -fipa-ra), rax carries the number of vector arguments of a variadic call, and results may be in more
//! registers than rax and rdx. These proofs spare the saving:
//!
//! * rax or r10 is overwritten, unread, in the straight line that the function begins with. Then it is no
//!   input (r10 is that of nested functions), and the function is known to change it. Nor is r10 an input where
//!   neither the function reads it nor one to which it jumps, nor one that it calls, while r10 may still be as it
//!   was, reads it before it writes it: nested functions pass it on to each other.
//! * No caller keeps a value in r10 or r11. Either they cannot: it is changed somewhere in the function, or the
//!   function calls code that is not known, which may change it, or calls a function for which that holds. Or they
//!   do not: who calls the function directly, or may do so through a pointer, does not name the register anywhere (it may write it as
//!   the input of several calls), nor has r10 as an input, and no caller of such a one keeps a value in it through both
//!   calls. For the entry, the function does not read r11 before it writes
//!   it, which only helpers of compilers do. For the exit, the register is not left with a value that nobody has used
//!   when the function returns, which only hand-written code does, to hand over a result.

pub(crate) mod facts;
pub(crate) mod scan;
pub(crate) mod targets;
pub(crate) mod uses;
