//! A flame graph as one picture without a script. The names of functions, with their times, appear where the pointer rests.
//!
//! The picture is an icicle, as the one of the report for a browser: callers are above what they call, and a box is as wide as the
//! time of its path. The text is XML 1.0 (<https://www.w3.org/TR/xml>), which has no control characters, escaped or not.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gmon_run::Module;
use gprofinject_image::names::short;

use crate::flame::{Flame, Path};
use crate::likely::Paths;
use crate::markup::escaped;
use crate::model::{Run, Time};

/// The width of the boxes, and the space beside them, in pixels.
const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 10.0;
/// The height of a box, and of what is above all.
const LEVEL: f64 = 16.0;
const HEAD: f64 = 44.0;
/// The narrowest box that is drawn, in pixels.
const NARROWEST: f64 = 0.7;
/// The width of a letter of the font, in pixels.
const LETTER: f64 = 6.7;
/// The most levels that are drawn.
const LEVELS: u32 = 300;
/// The colours of modules, those with the most time first, and that of all others.
const COLOURS: [&str; 9] =
    ["#f7cfa8", "#aed3f2", "#b3efcc", "#d7b5f5", "#f5b5c4", "#e9f0b5", "#b5f0ee", "#b7bdf0", "#dcdfe4"];

pub(crate) fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let paths = Paths::of(run);
    let mut flame = Flame::default();
    flame.add(&paths.nodes, 1, |function| function);
    let all = paths.nodes.iter().fold(0_u64, |sum, node| sum.saturating_add(node.self_ns));
    let least = (all as f64 * NARROWEST / WIDTH) as u64;
    let boxes = flame.finish([0, least]);
    let levels = boxes.iter().map(|found| found.depth + 1).max().unwrap_or(0).min(LEVELS) + 1;
    let height = HEAD + f64::from(levels) * LEVEL + MARGIN;
    let full = WIDTH + 2.0 * MARGIN;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{full}\" height=\"{height}\" viewBox=\"0 0 {full} {height}\">"
    )?;
    writeln!(
        out,
        "<style>text{{font:11px monospace;fill:#1c2026}}rect{{stroke:#fff;stroke-width:.5}}</style>"
    )?;
    writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>")?;
    writeln!(out, "<text x=\"{MARGIN}\" y=\"18\" font-weight=\"bold\">{}</text>", escaped(&run.program))?;
    writeln!(out, "<text x=\"{MARGIN}\" y=\"34\">{}</text>", escaped(&said(run, &paths, all)))?;
    if all > 0 {
        draw(run, &boxes, all, out)?;
    }
    writeln!(out, "</svg>")
}

/// Returns what is said of the picture.
fn said(run: &Run, paths: &Paths, all: u64) -> String {
    let guess = match paths.is_estimate {
        true => {
            "; ESTIMATE: paths were not recorded, a function's time is divided among its callers (gprofinject --paths records them)"
        }
        false => "",
    };
    let kind = match run.time {
        _ if all == 0 => return "no times were measured or sampled, so there is no flame graph".to_owned(),
        Time::Executed => {
            return format!("{} executed{guess}", gmon::counted(all, "instruction", "instructions"));
        }
        Time::Measured { .. } => "wall time, measured",
        Time::Sampled => "CPU time, by sampled stacks",
        _ => "CPU time, by samples",
    };
    format!("{} of {kind}{guess}", time(all))
}

fn draw(run: &Run, boxes: &[Path], all: u64, out: &mut dyn Write) -> io::Result<()> {
    let colours = colours(run);
    let scale = WIDTH / all as f64;
    let root = format!("all\n{}", time(all));
    element(out, (MARGIN, HEAD, WIDTH), COLOURS[COLOURS.len() - 1], "all", &root)?;
    // The places at which the next child of each path begins.
    let mut next: Vec<f64> = Vec::with_capacity(boxes.len());
    let mut top = MARGIN;
    for found in boxes {
        let width = found.total[1] as f64 * scale;
        let place = match found.parent {
            Some(parent) => &mut next[parent as usize],
            None => &mut top,
        };
        let x = *place;
        *place += width;
        next.push(x);
        if found.depth >= LEVELS {
            continue;
        }
        let y = HEAD + f64::from(found.depth + 1) * LEVEL;
        let function = found.function.and_then(|function| run.functions.get(function as usize));
        let name = function.map_or(run.name_without_function(), |function| &function.demangled);
        let module = function.and_then(|function| run.module_of(function));
        let is_generated = module.is_some_and(Module::is_generated);
        let shown = if is_generated { name.into() } else { short(name) };
        let module = module.map_or("", Module::name);
        let share = 100.0 * found.total[1] as f64 / all as f64;
        let title =
            format!("{name}\n{module}\n{} ({share:.2} %), self {}", time(found.total[1]), time(found.own[1]));
        let colour = function.and_then(|function| function.module).and_then(|module| colours.get(&module));
        let colour = colour.copied().unwrap_or(COLOURS[COLOURS.len() - 1]);
        element(out, (x, y, width), colour, &shown, &title)?;
    }
    Ok(())
}

/// Writes a box with its text.
fn element(
    out: &mut dyn Write,
    (x, y, width): (f64, f64, f64),
    colour: &str,
    name: &str,
    title: &str,
) -> io::Result<()> {
    write!(
        out,
        "<g><title>{}</title><rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{LEVEL}\" fill=\"{colour}\"/>",
        escaped(title)
    )?;
    let room = ((width - 6.0) / LETTER) as usize;
    if room >= 3 {
        let shown: String = match name.chars().count() > room {
            true => name.chars().take(room - 1).chain(['…']).collect(),
            false => name.to_owned(),
        };
        write!(out, "<text x=\"{:.1}\" y=\"{}\">{}</text>", x + 3.0, y + 11.5, escaped(&shown))?;
    }
    writeln!(out, "</g>")
}

/// Returns the colour of each module.
fn colours(run: &Run) -> BTreeMap<u32, &'static str> {
    let mut times: BTreeMap<u32, u64> = BTreeMap::new();
    for function in &run.functions {
        if let Some(module) = function.module {
            let sum = times.entry(module).or_default();
            *sum = sum.saturating_add(function.self_ns);
        }
    }
    let mut order: Vec<(u32, u64)> = times.into_iter().collect();
    order.sort_by_key(|&(module, time)| (std::cmp::Reverse(time), module));
    let last = COLOURS.len() - 1;
    order.into_iter().enumerate().map(|(rank, (module, _))| (module, COLOURS[rank.min(last)])).collect()
}

/// Returns a duration with a unit.
fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.2} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Arc, Function};
    use gmon_run::{Module, Node};

    fn picture(run: &Run) -> String {
        let mut out = Vec::new();
        write(run, &mut out).expect("memory can be written to");
        String::from_utf8(out).expect("UTF-8")
    }

    fn run() -> Run {
        let function = |name: &str, self_ns| Function {
            demangled: name.into(),
            module: Some(0),
            self_ns,
            ..Function::default()
        };
        Run {
            program: "a<b>&\"\u{7}".into(),
            time: Time::Measured { error_ns: 1.0 },
            modules: vec![Module { path: "/p".into(), ..Module::default() }],
            functions: vec![function("main", 1000), function("</title><script>x\u{1b}\u{202e}", 3000)],
            arcs: vec![Arc {
                caller: Some(0),
                callee: 1,
                calls: 1,
                self_ns: 3000,
                inclusive_ns: 3000,
                ..Arc::default()
            }],
            ..Run::default()
        }
    }

    #[test]
    fn boxes_with_titles() {
        let mut run = run();
        let estimate = picture(&run);
        assert!(estimate.contains("ESTIMATE"), "{estimate}");
        let node =
            |parent, function, self_ns| Node { parent, function: Some(function), self_ns, ..Node::default() };
        run.nodes = vec![node(None, 0, 1000), node(Some(0), 1, 3000)];
        let picture = picture(&run);
        assert!(!picture.contains("ESTIMATE") && !picture.contains("<script>"), "{picture}");
        assert!(picture.contains("<title>main\np\n4.00 µs (100.00 %), self 1.00 µs</title>"), "{picture}");
        assert!(picture.contains("x=\"10.0\" y=\"76\" width=\"900.0\""), "{picture}");
        assert!(picture.contains("&lt;/title&gt;&lt;script&gt;x\\u{1b}\\u{202e}"), "{picture}");
        assert!(picture.contains(">a&lt;b&gt;&amp;&quot;\\u{7}</text>"), "{picture}");
        assert_eq!(picture.matches("<g>").count(), 3);
    }

    #[test]
    fn nothing_measured() {
        let picture = picture(&Run::default());
        assert!(picture.contains("no times were measured") && picture.ends_with("</svg>\n"), "{picture}");
    }
}
