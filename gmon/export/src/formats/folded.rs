//! Folded stacks: a line `outer;inner NUMBER` for each stack, as Brendan Gregg's `flamegraph.pl`, inferno and speedscope read them.
//!
//! Numbers are nanoseconds if there are times, otherwise executed instructions, otherwise calls. Lines of one thread begin with
//! its name if there are several.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::formats::names::one_line;
use crate::model::Run;
use crate::stacks::{Weight, levels, visit};

pub(crate) fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let weight = Weight::of(run);
    // Stacks of different lines, or of calls and times, may have the same names.
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    visit(run, |stack| {
        let number = weight.get(stack);
        if number == 0 {
            return Ok(());
        }
        let mut names: Vec<String> = Vec::new();
        let thread = stack.thread.filter(|_| run.threads.len() > 1);
        if let Some(thread) = thread.and_then(|thread| run.threads.get(thread as usize)) {
            names.push(frame(&format!("{} {}", thread.name, thread.tid)));
        }
        for &place in stack.places.iter().rev() {
            names.extend(levels(run, place).iter().rev().map(|level| frame(level.name)));
        }
        let sum = sums.entry(names.join(";")).or_default();
        *sum = sum.saturating_add(number);
        Ok(())
    })?;
    sums.iter().try_for_each(|(stack, number)| writeln!(out, "{stack} {number}"))
}

/// Returns a name without what separates names.
fn frame(name: &str) -> String {
    one_line(name).replace(';', ":").trim().to_owned()
}
