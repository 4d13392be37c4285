//! Colours, and what stands in for them.

use ratatui::style::{Color, Modifier, Style};

/// Whether there are colours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    pub(crate) has_colours: bool,
}

impl Theme {
    /// Returns the theme that the environment asks for.
    pub(crate) fn of_environment() -> Theme {
        Theme { has_colours: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) }
    }

    /// Returns the style of headings and of the selected row.
    pub(crate) fn reversed(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn bold(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Returns the style of what is less important.
    pub(crate) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Returns the style of a part of a whole: the large ones stand out.
    pub(crate) fn heat(self, part: u64, whole: u64) -> Style {
        let share = if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        match share {
            _ if !self.has_colours => Style::new(),
            0.05.. => Style::new().fg(Color::Red),
            0.005.. => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        }
    }

    /// Returns the style of a frame of a flame graph. The same number always has the same colour.
    pub(crate) fn frame(self, number: u32) -> Style {
        const COLOURS: [Color; 4] = [Color::Yellow, Color::LightRed, Color::LightYellow, Color::Red];
        match self.has_colours {
            true => {
                let mixed = number.wrapping_mul(0x9e37_79b1) >> 28;
                Style::new().fg(Color::Black).bg(COLOURS[mixed as usize % COLOURS.len()])
            }
            false => Style::new(),
        }
    }
}
