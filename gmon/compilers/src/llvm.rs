//! LLVM's sample profile as text, which clang's and rustc's `-fprofile-sample-use` and `llvm-profdata` read.
//!
//! ```text
//! FUNCTION:TOTAL:HEAD
//!  LINE[.DISCRIMINATOR]: COUNT [CALLEE:CALLS ...]
//!  LINE[.DISCRIMINATOR]: INLINED:TOTAL
//!   LINE: COUNT
//! ```
//!
//! The rules are those of LLVM's `llvm/ProfileData/SampleProfReader.h`. Places that never ran are in it with 0: LLVM guesses what has no
//! count at all.

use std::io::{self, Write};

use crate::source::{Function, Place, Source};

/// Writes a profile. Functions come in the order of their totals, the largest first.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(source: &Source, out: &mut dyn Write) -> io::Result<()> {
    let mut functions: Vec<(u64, &str, &Function)> =
        source.functions.iter().map(|(name, function)| (function.total(), name.as_str(), function)).collect();
    functions.sort_by_key(|&(total, name, _)| (std::cmp::Reverse(total), name));
    for (total, name, function) in functions.into_iter().filter(|(_, name, _)| is_name(name)) {
        writeln!(out, "{name}:{total}:{}", function.head)?;
        body(function, 1, out)?;
    }
    Ok(())
}

fn body(function: &Function, depth: usize, out: &mut dyn Write) -> io::Result<()> {
    let indent = " ".repeat(depth);
    for (place, count) in &function.places {
        write!(out, "{indent}{}: {}", shown(*place), count.count)?;
        for (name, callee) in count.callees.iter().filter(|(name, callee)| callee.calls > 0 && is_name(name)) {
            write!(out, " {name}:{}", callee.calls)?;
        }
        writeln!(out)?;
    }
    for ((place, name), inlined) in function.inlined.iter().filter(|((_, name), _)| is_name(name)) {
        writeln!(out, "{indent}{}: {name}:{}", shown(*place), inlined.total())?;
        body(inlined, depth + 1, out)?;
    }
    Ok(())
}

fn shown(place: Place) -> String {
    match place.discriminator {
        0 => place.line.to_string(),
        discriminator => format!("{}.{discriminator}", place.line),
    }
}

/// Whether a name can be in the text.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control())
}
