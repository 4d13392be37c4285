//! The terminal while the live view fills it: a screen with a keeper, and with messages held back.

use std::fs::File;
use std::io;

use gmon_screen::Screen;
use gmon_screen::terminal::{Termios, restore};

pub(crate) use gmon_screen::terminal::{check, controlling, is_one, without};

use crate::os::keeper::Keeper;
use crate::os::say;

/// Messages are held back until this is dropped.
pub(crate) struct Held(());

impl Drop for Held {
    fn drop(&mut self) {
        say::release();
    }
}

/// Sets the terminal up. The screen is to be dropped before the messages are printed.
///
/// # Errors
/// There is no terminal, or this process is in the background there.
pub(crate) fn take() -> io::Result<(Screen, Held)> {
    let screen = Screen::take(&keeper)?;
    say::hold();
    Ok((screen, Held(())))
}

fn keeper(terminal: &File, before: &Termios) -> Option<Box<dyn gmon_screen::terminal::Keeper>> {
    Some(Box::new(Keeper::start(terminal, before, restore).ok()?))
}
