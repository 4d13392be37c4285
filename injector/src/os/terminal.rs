//! The terminal while a view fills it: it is set up, and restored on every way out of this process but SIGKILL.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::termios::{self, InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

use crate::os::say;
use crate::os::sys;

/// Another screen, no cursor, and no line that is broken at its end.
const BEGIN: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
/// The opposite.
const END: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// A terminal that was set up.
struct Taken {
    terminal: File,
    before: Termios,
}

/// The terminal that this process has set up, if it has.
static TAKEN: Mutex<Option<Taken>> = Mutex::new(None);
/// Whether nothing is known of what the terminal shows: this process was stopped, or something could not be written.
static IS_TORN: AtomicBool = AtomicBool::new(false);

/// The terminal of this process, for a view that fills it. It is restored when this is dropped.
pub(crate) struct Terminal {
    file: File,
}

/// What is written to that terminal.
pub(crate) struct Output {
    file: File,
    /// What has not been written yet.
    pending: Vec<u8>,
}

impl Terminal {
    /// Sets the terminal up.
    ///
    /// # Errors
    /// There is none, or this process is in the background there.
    pub(crate) fn take() -> io::Result<Terminal> {
        static HOOK: Once = Once::new();
        let file = foreground()?;
        let before = termios::tcgetattr(&file)?;
        HOOK.call_once(|| {
            let other = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                other(panic);
            }));
        });
        set_up(&file, &before)?;
        *lock() = Some(Taken { terminal: file.try_clone()?, before });
        say::hold();
        Ok(Terminal { file })
    }

    /// Returns a writer to the terminal.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn output(&self) -> io::Result<Output> {
        Ok(Output { file: self.file.try_clone()?, pending: Vec::new() })
    }

    /// The descriptor that is readable when the user has typed something.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns what the user has typed.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(crate) fn typed(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 1024];
        match self.file.read(&mut bytes) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                bytes.truncate(count);
                Ok(bytes)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns whether everything has to be drawn anew, because nothing is known of what the terminal shows.
pub(crate) fn take_torn() -> bool {
    IS_TORN.swap(false, Ordering::Relaxed)
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Writes what is pending. A terminal that takes nothing for a while loses it: the profile must not wait for it.
    fn flush(&mut self) -> io::Result<()> {
        const PATIENCE: Duration = Duration::from_millis(100);
        let until = Instant::now() + PATIENCE;
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        IS_TORN.store(true, Ordering::Relaxed);
                        return Ok(());
                    }
                    std::thread::sleep(left.min(Duration::from_millis(5)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
        say::release();
    }
}

fn open() -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open("/dev/tty", flags, Mode::empty())?))
}

/// Opens the terminal of this process.
///
/// # Errors
/// There is none, or this process is in the background there.
fn foreground() -> io::Result<File> {
    let file = open()?;
    if termios::tcgetpgrp(&file)? != rustix::process::getpgrp() {
        return Err(io::Error::other("gprofinject runs in the background there"));
    }
    Ok(file)
}

/// Checks that a view can fill the terminal.
///
/// # Errors
/// There is none, or this process is in the background there.
pub(crate) fn check() -> io::Result<()> {
    foreground().map(drop)
}

/// Returns whether a descriptor is a terminal.
pub(crate) fn is_one(descriptor: impl AsFd) -> bool {
    termios::isatty(descriptor)
}

fn lock() -> std::sync::MutexGuard<'static, Option<Taken>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set_up(file: &File, before: &Termios) -> io::Result<()> {
    let mut now = before.clone();
    // Ctrl-C, Ctrl-\ and Ctrl-Z still send signals, as they do without a view.
    now.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN;
    now.input_modes -= InputModes::ICRNL | InputModes::IXON;
    now.special_codes[SpecialCodeIndex::VMIN] = 1;
    now.special_codes[SpecialCodeIndex::VTIME] = 0;
    termios::tcsetattr(file, OptionalActions::Now, &now)?;
    write_all(file, BEGIN);
    Ok(())
}

/// Restores the terminal, if it was set up.
fn give_back() {
    if let Some(Taken { terminal, before }) = lock().take() {
        write_all(&terminal, END);
        let _ = termios::tcsetattr(&terminal, OptionalActions::Now, &before);
    }
}

/// Restores the terminal for `work`, in which this process is stopped, and sets it up again.
pub(crate) fn without<T>(work: impl FnOnce() -> T) -> T {
    let taken = lock().take();
    if let Some(Taken { terminal, before }) = &taken {
        write_all(terminal, END);
        let _ = termios::tcsetattr(terminal, OptionalActions::Now, before);
    }
    let result = work();
    if let Some(Taken { terminal, before }) = taken {
        // The shell may have changed the terminal's modes, and leaves it to this process when it is in the foreground again.
        let before = termios::tcgetattr(&terminal).unwrap_or(before);
        let _ = set_up(&terminal, &before);
        IS_TORN.store(true, Ordering::Relaxed);
        *lock() = Some(Taken { terminal, before });
    }
    result
}

fn write_all(mut file: &File, bytes: &[u8]) {
    for _ in 0..50 {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sys::wait_readable(&[], Some(Duration::from_millis(2)));
            }
            _ => return,
        }
    }
}
