//! AutoFDO's samples as text, which `create_llvm_prof --profiler=text` and `create_gcov --profiler=text` read.
//!
//! ```text
//! NUMBER                ranges of instructions that ran, the last one included
//! FROM-TO:COUNT
//! NUMBER                samples of addresses: none
//! NUMBER                taken branches and calls
//! FROM->TO:COUNT
//! ```
//!
//! Addresses are in hexadecimal, and count from where the file begins in memory. The rules are those of AutoFDO's `sample_reader.cc`, `TextSampleReaderWriter`.

use std::io::{self, Write};

use crate::branches::Branches;

/// Writes the samples.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(branches: &Branches, out: &mut dyn Write) -> io::Result<()> {
    let at = |address: u64| address.wrapping_sub(branches.base);
    writeln!(out, "{}", branches.blocks.len())?;
    for block in &branches.blocks {
        writeln!(out, "{:x}-{:x}:{}", at(block.start), at(block.last), block.count)?;
    }
    writeln!(out, "0")?;
    writeln!(out, "{}", branches.taken.len() + branches.calls.len())?;
    for (&(from, to), count) in branches.taken.iter().chain(&branches.calls) {
        writeln!(out, "{:x}->{:x}:{count}", at(from), at(to))?;
    }
    Ok(())
}
