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
//! Addresses are those in the file, in hexadecimal. The rules are those of AutoFDO's `sample_reader.cc`, `TextSampleReaderWriter`.

use std::io::{self, Write};

use crate::branches::Branches;

/// Writes the samples.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(branches: &Branches, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", branches.blocks.len())?;
    for block in &branches.blocks {
        writeln!(out, "{:x}-{:x}:{}", block.start, block.last, block.count)?;
    }
    writeln!(out, "0")?;
    writeln!(out, "{}", branches.taken.len() + branches.calls.len())?;
    for (&(from, to), count) in branches.taken.iter().chain(&branches.calls) {
        writeln!(out, "{from:x}->{to:x}:{count}")?;
    }
    Ok(())
}
