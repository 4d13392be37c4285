//! The call graph in Graphviz's language. Functions and arcs that cost next to nothing are left out.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io::{self, Write};

use crate::formats::names::one_line;
use crate::model::{Function, Run};
use crate::stacks::Weight;

/// The share of all cost below which a function is left out.
const LEAST_FUNCTION: f64 = 0.005;
/// The share of all cost below which an arc between functions that are shown is left out.
const LEAST_ARC: f64 = 0.001;
/// The greatest number of functions: larger pictures cannot be read, nor laid out in useful time.
const MOST: usize = 400;
/// The length above which a name is cut in its middle.
const LONGEST: usize = 80;

pub(crate) fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let by_time = matches!(Weight::of(run), Weight::Time | Weight::Executed);
    let cost = |function: &Function| if by_time { function.inclusive_ns } else { function.calls };
    let all = match by_time {
        true => run.functions.iter().map(cost).max().unwrap_or(0).max(run.self_ns()),
        false => run.calls(),
    };
    let share = |part: u64| if all == 0 { 0.0 } else { part as f64 / all as f64 };
    let mut shown: Vec<usize> = (0..run.functions.len())
        .filter(|&index| share(cost(&run.functions[index])) >= LEAST_FUNCTION)
        .collect();
    shown.sort_by_key(|&index| std::cmp::Reverse(cost(&run.functions[index])));
    shown.truncate(MOST);
    writeln!(out, "digraph {} {{", quoted(&run.program))?;
    writeln!(out, "  graph [ranksep=0.25, fontname=\"Helvetica\"];")?;
    writeln!(
        out,
        "  node [shape=box, style=filled, fontname=\"Helvetica\", fontcolor=white, width=0, height=0];"
    )?;
    writeln!(out, "  edge [fontname=\"Helvetica\"];")?;
    for &index in &shown {
        let function = &run.functions[index];
        let mut label = shortened(&function.demangled);
        if let Some(module) = run.module_of(function).filter(|_| function.module != Some(0)) {
            let _ = write!(label, "\n{}", module.name());
        }
        let part = share(cost(function));
        if by_time {
            let _ = write!(label, "\n{:.2}%\n({:.2}%)", 100.0 * part, 100.0 * share(function.self_ns));
        }
        let _ = write!(label, "\n{}\u{d7}", function.calls);
        writeln!(
            out,
            "  f{index} [label={}, tooltip={}, fillcolor=\"{}\"];",
            quoted(&label),
            quoted(&function.demangled),
            color(part)
        )?;
    }
    let shown: HashSet<u32> = shown.iter().map(|&index| index as u32).collect();
    for arc in run.pairs() {
        let Some(caller) = arc.caller.filter(|caller| shown.contains(caller)) else { continue };
        let part = share(if by_time { arc.inclusive_ns } else { arc.calls });
        // Recursion has no time by gprof's rule, and shows a loop all the same.
        if !shown.contains(&arc.callee) || (part < LEAST_ARC && caller != arc.callee) {
            continue;
        }
        let label = match by_time {
            // An arc of sampled stacks was not counted.
            true if arc.calls == 0 => format!("{:.2}%", 100.0 * part),
            true => format!("{:.2}%\n{}\u{d7}", 100.0 * part, arc.calls),
            false => format!("{}\u{d7}", arc.calls),
        };
        let (color, width) = (color(part), 0.5 + 4.0 * part.sqrt());
        writeln!(
            out,
            "  f{caller} -> f{} [label={}, color=\"{color}\", fontcolor=\"{color}\", penwidth={width:.2}];",
            arc.callee,
            quoted(&label)
        )?;
    }
    writeln!(out, "}}")
}

/// Returns a colour from blue (cheap) to red (expensive), in hue, saturation and value.
fn color(part: f64) -> String {
    let part = part.clamp(0.0, 1.0).sqrt();
    format!("{:.3} {:.3} {:.3}", 0.66 * (1.0 - part), 0.55 + 0.45 * part, 0.45 + 0.35 * part)
}

fn quoted(text: &str) -> String {
    let lines: Vec<_> =
        text.split('\n').map(|line| one_line(line).replace('\\', "\\\\").replace('"', "\\\"")).collect();
    format!("\"{}\"", lines.join("\\n"))
}

fn shortened(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    match chars.len() > LONGEST {
        true => {
            let (front, back) = (&chars[..LONGEST / 2], &chars[chars.len() - LONGEST / 2..]);
            format!("{}...{}", front.iter().collect::<String>(), back.iter().collect::<String>())
        }
        false => name.to_owned(),
    }
}
