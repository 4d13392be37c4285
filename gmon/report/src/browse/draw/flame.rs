//! The flame graph: each frame below its caller, with the widest one first.

use gmon_export::Time;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use crate::browse::data::Data;
use crate::browse::draw::pen::Pen;
use crate::browse::draw::theme::Theme;
use crate::browse::flame::frame::{Frame, Of, Unit};
use crate::browse::flame::layout::Flame;
use crate::browse::model::Model;
use crate::browse::numbers::{ESTIMATE, share};
use crate::cli::units::duration;

/// Draws the flame graph.
pub(crate) fn draw(buffer: &mut Buffer, area: Rect, model: &mut Model, theme: Theme) {
    let body = Rect { y: area.y + area.height.min(1), height: area.height.saturating_sub(1), ..area };
    let Some(flame) = &mut model.flame else { return };
    let shown = flame.lay_out(body.width, body.height.into());
    let chosen = flame.chosen().map_or_else(String::new, |bar| {
        let name = name(&model.data, flame, &bar.frame, model.has_full_names);
        format!("{name}: {}", numbers(flame, &bar.frame))
    });
    Pen::new(buffer, area, 0, theme.reversed()).word(&chosen, Style::new());
    if flame.paths.root().weight <= 0.0 {
        Pen::new(buffer, body, 0, Style::new()).word("nothing was counted or sampled", Style::new());
        return;
    }
    for (line, level) in shown.enumerate() {
        for (index, bar) in flame.layout.levels[level].iter().enumerate() {
            let mut style = match bar.frame.of {
                Of::Function(function) => theme.frame(function),
                Of::All | Of::Rest => Style::new(),
            };
            if flame.selected == (level, index) {
                style = theme.reversed().add_modifier(Modifier::BOLD);
            }
            let place = Rect { x: body.x + bar.x, width: bar.width, ..body };
            let mut pen = Pen::new(buffer, place, line, style);
            pen.word("|", Style::new());
            let name = name(&model.data, flame, &bar.frame, model.has_full_names);
            // The beginning of a name tells more than a mark that it is cut off.
            let start: String = name.chars().take(pen.room()).collect();
            pen.word(&start, Style::new());
        }
    }
}

/// Returns what a frame is called.
fn name(data: &Data, flame: &Flame, frame: &Frame, is_full: bool) -> String {
    match frame.of {
        Of::All if flame.paths.is_estimate => {
            "all, estimated from the call graph (gprofinject --paths records call paths)".to_owned()
        }
        Of::All if data.run.time == Time::Sampled => "all, by sampled stacks".to_owned(),
        Of::All => "all".to_owned(),
        Of::Function(function) => data.name(function, is_full),
        Of::Rest => data.run.name_without_function().to_owned(),
    }
}

/// Returns what a frame has cost.
fn numbers(flame: &Flame, frame: &Frame) -> String {
    let mark = if flame.paths.is_estimate { ESTIMATE } else { "" };
    let number = |weight: f64| match flame.paths.unit {
        Unit::Nanoseconds => format!("{mark}{}", duration(weight.round() as u64).trim_end()),
        Unit::Samples => format!("{mark}{weight:.0} samples"),
        Unit::Executed | Unit::Instructions => format!("{mark}{weight:.0} instructions"),
        Unit::Calls => format!("{mark}{weight:.0} calls"),
    };
    let whole = flame.paths.root().weight;
    let share = share(frame.weight.round() as u64, whole.round() as u64);
    format!("{}, {share} %, itself {}", number(frame.weight), number(frame.own))
}
