//! Compares the view of the whole process (`gmon.syms`, `gmon.whole`) with callgrind's counts: the calls of every hooked
//! function of the program and of its libraries, by caller.
//!
//! Callgrind identifies code by object file and link address. The view has only names, so both are brought to the same
//! identity: a module and a name, or a module and an address for a function without a name. `gprofinject --list` has the
//! address, the size and the name of every function, and says which ones are refused. It decides only what a function
//! is; every count comes from callgrind.
//!
//! Callgrind's records are treated as follows:
//!
//! - A call instruction in a function is an arc from this function.
//! - A jump to the start of another function is a tail call. Callgrind records it as a call or, in code without symbols,
//!   as a jump. With entry hooks only, its caller is the one of the function that jumped, or of that one's caller.
//! - A jump of a function, or of its cold part, to its own start is a loop, and no call.
//! - PLT stubs are removed. Valgrind knows no object for code in sections other than `.text`, such as libc's `.plt`, and
//!   gives its runtime address. A direct call to such an address tells where the object was loaded.
//! - For a call from code that is not hooked, the caller is any hooked function from which callgrind's calls lead
//!   there. If none does, it is nobody: the program's entry point, or `[outside]`.
//! - How often a function's first instruction was executed, less the loops to it, is how often it was entered. If this
//!   is more than the recorded calls, control ran on into it, or callgrind has lost a call. The report names such
//!   functions; up to this number, calls may be counted or not.
//! - A piece of code without a name that is in no function is a cold part of the function whose jumps lead there.
//!
//! `modules` reads what there is, `expected` makes calls of callgrind's records, `comparison` compares them with the view,
//! and `runs` runs the program for both.

mod comparison;
mod expected;
mod modules;
mod runs;

pub use comparison::Report;
pub use runs::{Runs, Truth, check};
