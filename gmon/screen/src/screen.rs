//! The terminal as ratatui sees it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::layout::Size;
use ratatui::{Frame, Terminal};

use crate::keys::{self, Key};
use crate::terminal::{self, StartKeeper};

/// The terminal, which is restored when this is dropped.
pub struct Screen {
    drawn: Terminal<CrosstermBackend<terminal::Output>>,
    size: Size,
    // Dropped last.
    terminal: terminal::Terminal,
}

impl Screen {
    /// Sets the terminal up. `keeper` starts what restores it if this process is killed, if anything does.
    ///
    /// # Errors
    /// As for [`terminal::Terminal::take`].
    pub fn take(keeper: &StartKeeper) -> io::Result<Screen> {
        let terminal = terminal::Terminal::take(keeper)?;
        let drawn = Terminal::new(CrosstermBackend::new(terminal.output()?))?;
        Ok(Screen { size: drawn.size()?, drawn, terminal })
    }

    /// The descriptor that is readable when the user has typed something.
    pub fn descriptor(&self) -> RawFd {
        self.terminal.descriptor()
    }

    /// Returns the keys that the user has typed.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn typed(&mut self) -> io::Result<Vec<Key>> {
        Ok(keys::keys(&self.terminal.typed()?))
    }

    /// Draws a frame, of the size that the terminal has now.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> io::Result<()> {
        let size = self.drawn.size()?;
        if terminal::take_torn() || self.size != size {
            // ratatui would ask the terminal where the cursor is, and read the answer in place of keys.
            self.drawn = Terminal::new(CrosstermBackend::new(self.terminal.output()?))?;
            self.drawn.backend_mut().clear()?;
            self.size = size;
        }
        self.drawn.draw(draw)?;
        if terminal::is_gone() { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

impl AsFd for Screen {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.terminal.as_fd()
    }
}
