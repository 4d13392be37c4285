//! Finds the C library's functions that the agent's definitions call.

use crate::process::children;
use crate::process::execute;
use crate::process::originals;
use crate::unwind::jumps;
use crate::unwind::unwinder;

/// Finds them all. `dynamic_linker` is the address of ld.so's ELF header (AT_BASE).
pub(crate) fn find(dynamic_linker: u64) {
    jumps::prepare(dynamic_linker);
    unwinder::prepare(dynamic_linker);
    children::prepare(dynamic_linker);
    execute::find(dynamic_linker);
    originals::prepare(dynamic_linker);
}
