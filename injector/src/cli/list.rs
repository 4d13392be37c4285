//! `--list`: prints what would be hooked, and how; with `--count`, also what would be counted.

use std::io::{self, BufWriter, Write};

use anyhow::{Context, Result};
use gmon::counted;
use gprofinject_image::Function;
use gprofinject_plan::Verdict;

use crate::os::say;
use crate::program::planned::Planned;
use gprofinject_image::names::demangle;

/// Prints a line for each function: address, size, name, and the tactic or the reason for refusal. With
/// `verbose`, also prints the demangled name.
///
/// # Errors
/// Standard output cannot be written to.
pub(crate) fn print(planned: &Planned, verbose: bool) -> Result<()> {
    match write(planned, verbose, &mut BufWriter::new(io::stdout().lock())) {
        // The reader has closed the pipe on purpose.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the list to standard output"),
    }
}

fn write(planned: &Planned, verbose: bool, out: &mut impl Write) -> io::Result<()> {
    let functions: Vec<_> = planned.functions().collect();
    let plan = planned.plan.as_ref().filter(|_| planned.counts);
    let widest =
        |width: &dyn Fn(&Function) -> usize| functions.iter().map(|(f, _)| width(f)).max().unwrap_or(0);
    let digits = widest(&|f| format!("{:x}", f.address).len());
    let size = widest(&|f| f.size.to_string().len());
    // A few names are very long.
    let name = widest(&|f| f.name.chars().count()).min(40);
    for (function, verdict) in functions {
        let what = match verdict {
            Verdict::Hooked(tactic) => tactic.name().to_owned(),
            Verdict::Refused(reason) => format!("refused: {} ({reason})", reason.name()),
        };
        write!(
            out,
            "0x{:0digits$x}  {:>size$}  {:<name$}  {what}",
            function.address,
            function.size,
            say::visible(function.name)
        )?;
        if let Some(plan) = plan {
            match plan.counting(function.address) {
                Ok((blocks, counters)) => {
                    let blocks = counted(blocks, "block", "blocks");
                    let counters = counted(counters, "counter", "counters");
                    write!(out, "  {blocks}, {counters}")?
                }
                Err(why) => write!(out, "  not counted: {} ({why})", why.name())?,
            }
        }
        match demangle::demangle(function.name) {
            plain if verbose && plain != function.name => writeln!(out, "  {}", say::visible(&plain))?,
            _ => writeln!(out)?,
        }
    }
    out.flush()
}
