//! The terminal while a view fills it: it is set up, and restored on every way out of this process.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::termios::{self, InputModes, LocalModes, OptionalActions, SpecialCodeIndex};

pub use rustix::termios::Termios;

/// Another screen, no cursor, and no line that is broken at its end.
const BEGIN: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
/// The opposite.
const END: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// What restores the terminal if this process is killed by a signal that it cannot handle.
pub trait Keeper: Send {
    /// Says that the terminal is about to be set up.
    fn is_set_up(&mut self);

    /// Says that the terminal was restored.
    fn is_restored(&mut self);
}

/// Starts a keeper for a terminal, which has these modes while no view fills it. `None` if there is to be none, or none can be
/// started.
pub type StartKeeper = dyn Fn(&File, &Termios) -> Option<Box<dyn Keeper>>;

/// A terminal that was set up.
struct Taken {
    terminal: File,
    before: Termios,
    keeper: Option<Box<dyn Keeper>>,
}

/// The terminal that this process has set up, if it has.
static TAKEN: Mutex<Option<Taken>> = Mutex::new(None);
/// Whether nothing is known of what the terminal shows: this process was stopped, or something could not be written.
static IS_TORN: AtomicBool = AtomicBool::new(false);
/// Whether writing to the terminal has failed, as when its window or its connection was closed.
static IS_GONE: AtomicBool = AtomicBool::new(false);

/// The terminal of this process, for a view that fills it. It is restored when this is dropped.
pub struct Terminal {
    file: File,
}

/// What is written to that terminal.
pub struct Output {
    file: File,
    /// What has not been written yet.
    pending: Vec<u8>,
}

impl Terminal {
    /// Sets the terminal up.
    ///
    /// # Errors
    /// There is none, or this process is in the background there.
    pub fn take(keeper: &StartKeeper) -> io::Result<Terminal> {
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
        let terminal = file.try_clone()?;
        let keeper = keeper(&terminal, &before);
        IS_GONE.store(false, Ordering::Relaxed);
        let mut taken = Taken { terminal, before, keeper };
        taken.set_up()?;
        *lock() = Some(taken);
        Ok(Terminal { file })
    }

    /// Returns a writer to the terminal.
    ///
    /// # Errors
    /// No descriptor is available.
    pub fn output(&self) -> io::Result<Output> {
        Ok(Output { file: self.file.try_clone()?, pending: Vec::new() })
    }

    /// The descriptor that is readable when the user has typed something.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Returns what the user has typed.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn typed(&mut self) -> io::Result<Vec<u8>> {
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

/// Returns whether the terminal is gone.
pub fn is_gone() -> bool {
    IS_GONE.load(Ordering::Relaxed)
}

/// Returns whether everything has to be drawn anew, because nothing is known of what the terminal shows.
pub fn take_torn() -> bool {
    IS_TORN.swap(false, Ordering::Relaxed)
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Writes what is pending. A terminal that takes nothing for a while loses it: a profile must not wait for it. A terminal that
    /// is gone is no error here, because ratatui reports an error when it is dropped on standard error, and panics if that is gone
    /// too: see [`is_gone`].
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
                Err(_) => {
                    IS_GONE.store(true, Ordering::Relaxed);
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

impl AsFd for Terminal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

/// Opens the terminal of this process's session.
///
/// # Errors
/// The session has none.
pub fn controlling() -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open("/dev/tty", flags, Mode::empty())?))
}

/// Opens the terminal of this process.
///
/// # Errors
/// There is none, or this process is in the background there.
fn foreground() -> io::Result<File> {
    let file = controlling()?;
    if termios::tcgetpgrp(&file)? != rustix::process::getpgrp() {
        return Err(io::Error::other("this command runs in the background there"));
    }
    Ok(file)
}

/// Checks that a view can fill the terminal.
///
/// # Errors
/// There is none, it has no cursor that can be moved, or this process is in the background there.
pub fn check() -> io::Result<()> {
    let terminal = foreground()?;
    drop(terminal);
    if std::env::var_os("TERM").is_some_and(|name| name == "dumb") {
        return Err(io::Error::other("one that is dumb (TERM) is none"));
    }
    Ok(())
}

/// Returns whether a descriptor is a terminal.
pub fn is_one(descriptor: impl AsFd) -> bool {
    termios::isatty(descriptor)
}

fn lock() -> std::sync::MutexGuard<'static, Option<Taken>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Taken {
    fn set_up(&mut self) -> io::Result<()> {
        if let Some(keeper) = &mut self.keeper {
            keeper.is_set_up();
        }
        let mut now = self.before.clone();
        // Ctrl-C, Ctrl-\\ and Ctrl-Z still send signals, as they do without a view.
        now.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::IEXTEN;
        now.input_modes -= InputModes::ICRNL | InputModes::IXON;
        now.special_codes[SpecialCodeIndex::VMIN] = 1;
        now.special_codes[SpecialCodeIndex::VTIME] = 0;
        termios::tcsetattr(&self.terminal, OptionalActions::Now, &now)?;
        write_all(&self.terminal, BEGIN);
        Ok(())
    }

    fn restore(&mut self) {
        restore(&self.terminal, &self.before);
        if let Some(keeper) = &mut self.keeper {
            keeper.is_restored();
        }
    }
}

/// Restores a terminal. This makes system calls only, so that a keeper that was forked may call it.
pub fn restore(terminal: &File, before: &Termios) {
    write_all(terminal, END);
    let _ = termios::tcsetattr(terminal, OptionalActions::Now, before);
}

/// Restores the terminal, if it was set up.
fn give_back() {
    if let Some(mut taken) = lock().take() {
        taken.restore();
    }
}

/// Restores the terminal for `work`, in which this process is stopped, and sets it up again.
pub fn without<T>(work: impl FnOnce() -> T) -> T {
    let mut taken = lock().take();
    if let Some(taken) = &mut taken {
        taken.restore();
    }
    let result = work();
    if let Some(mut taken) = taken {
        // The shell may have changed the terminal's modes, and leaves it to this process when it is in the foreground again.
        taken.before = termios::tcgetattr(&taken.terminal).unwrap_or(taken.before);
        let _ = taken.set_up();
        IS_TORN.store(true, Ordering::Relaxed);
        *lock() = Some(taken);
    }
    result
}

fn write_all(mut file: &File, bytes: &[u8]) {
    for _ in 0..50 {
        match file.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                std::thread::sleep(Duration::from_millis(2));
            }
            _ => return,
        }
    }
}
