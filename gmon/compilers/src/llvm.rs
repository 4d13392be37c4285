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
        for (name, callee) in count.callees.iter().filter(|(name, callee)| callee.calls > 0 && is_name(name))
        {
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

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::source::{Callee, Count};

    /// A function with a call through a pointer, and another one inlined two deep, with counts above 2^32.
    pub(crate) fn example() -> Source {
        let at = |line, discriminator| Place { line, discriminator };
        let count = |count| Count { count, ..Count::default() };
        let mut source = Source::default();
        let main = source.functions.entry("main".to_owned()).or_default();
        main.head = 1;
        main.places.insert(at(2, 0), count(1));
        main.places.insert(at(2, 3), count(7_000_000_000));
        let callee = |calls| Callee { calls, is_indirect: true };
        let callees =
            [("_Z1ai", 4), ("b", 3), ("no name", 1)].map(|(name, calls)| (name.to_owned(), callee(calls)));
        main.places.insert(at(5, 0), Count { count: 7, callees: callees.into() });
        let outer = main.inlined.entry((at(3, 1), "outer".to_owned())).or_default();
        outer.places.insert(at(1, 0), count(10));
        outer.inlined.entry((at(2, 0), "inner".to_owned())).or_default().places.insert(at(0, 0), count(5));
        source.functions.entry("b".to_owned()).or_default().places.insert(at(65535, 0), count(0));
        source
    }

    #[test]
    fn as_llvm_reads_it() {
        let mut text = Vec::new();
        write(&example(), &mut text).expect("memory");
        let expected = "main:7000000023:1\n 2: 1\n 2.3: 7000000000\n 5: 7 _Z1ai:4 b:3\n 3.1: outer:15\n  1: 10\n  2: inner:5\n   0: 5\nb:0:0\n 65535: 0\n";
        assert_eq!(String::from_utf8(text).expect("text"), expected);
    }
}
