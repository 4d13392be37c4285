//! The terminal as ratatui sees it.

use std::io;
use std::os::fd::RawFd;

use ratatui::backend::CrosstermBackend;
use ratatui::{Frame, Terminal};

use crate::live::keys::{self, Key};
use crate::os::terminal;

/// The terminal, which is restored when this is dropped.
pub(crate) struct Screen {
    drawn: Terminal<CrosstermBackend<terminal::Output>>,
    // Dropped last.
    terminal: terminal::Terminal,
}

impl Screen {
    /// # Errors
    /// As for [`terminal::Terminal::take`].
    pub(crate) fn take() -> io::Result<Screen> {
        let (terminal, output) = terminal::Terminal::take()?;
        Ok(Screen { drawn: Terminal::new(CrosstermBackend::new(output))?, terminal })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.terminal.descriptor()
    }

    /// Returns the keys that the user has typed.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn typed(&mut self) -> io::Result<Vec<Key>> {
        Ok(keys::keys(&self.terminal.typed()?))
    }

    /// # Errors
    /// The terminal is gone.
    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        if terminal::take_torn() {
            self.drawn.clear()?;
        }
        self.drawn.draw(draw).map(drop)
    }
}
