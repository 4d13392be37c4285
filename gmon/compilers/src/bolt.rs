//! BOLT's pre-aggregated profile: the branches of a linked program as text, which `llvm-bolt -pa -p FILE` and `perf2bolt -pa -p FILE`
//! read.
//!
//! ```text
//! B FROM TO COUNT MISPREDICTED     taken branches, calls: from the instruction to its target
//! F START END COUNT                control that went straight on from START to END
//! ```
//!
//! Addresses are those in the file, in hexadecimal. Mispredictions are not known and are 0. The rules are those of
//! `bolt/include/bolt/Profile/DataAggregator.h`.

use std::io::{self, Write};

use crate::branches::Branches;

/// Writes a profile.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(branches: &Branches, out: &mut dyn Write) -> io::Result<()> {
    for (&(from, to), count) in branches.taken.iter().chain(&branches.calls) {
        writeln!(out, "B {from:x} {to:x} {count} 0")?;
    }
    for (to, count) in &branches.entries {
        writeln!(out, "B X:0 {to:x} {count} 0")?;
    }
    for (&(from, to), count) in &branches.through {
        writeln!(out, "F {from:x} {to:x} {count}")?;
    }
    Ok(())
}
