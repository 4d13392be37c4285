//! Signals as bytes of a pipe, so that one call waits for them, for keys and for the worker.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH};
use signal_hook::low_level::{emulate_default_handler, pipe};

/// The signals that ask this command to end.
const END: [i32; 4] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT];

/// The signals that the browser handles.
pub(crate) struct Signals {
    reader: UnixStream,
    writer: UnixStream,
    end: Vec<(i32, Arc<AtomicBool>)>,
    stop: Arc<AtomicBool>,
}

impl Signals {
    /// Takes the signals over.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn take() -> io::Result<Signals> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        // A full pipe has bytes enough to wake somebody.
        writer.set_nonblocking(true)?;
        let register = |signal| -> io::Result<Arc<AtomicBool>> {
            let flag = Arc::new(AtomicBool::new(false));
            // The flag is set before the byte is written.
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            pipe::register(signal, writer.try_clone()?)?;
            Ok(flag)
        };
        let end = END.iter().map(|&signal| Ok((signal, register(signal)?))).collect::<io::Result<_>>()?;
        let stop = register(SIGTSTP)?;
        // The size is asked for before each drawing, so it is enough to be woken.
        register(SIGWINCH)?;
        Ok(Signals { reader, writer, end, stop })
    }

    /// Returns what wakes whoever waits for signals.
    ///
    /// # Errors
    /// No descriptor is available.
    pub(crate) fn waker(&self) -> io::Result<UnixStream> {
        self.writer.try_clone()
    }

    /// Takes the bytes out of the pipe.
    pub(crate) fn drain(&mut self) {
        let mut bytes = [0; 256];
        while matches!(self.reader.read(&mut bytes), Ok(1..)) {}
    }

    /// Returns a signal that has asked this command to end, if any has.
    pub(crate) fn end(&self) -> Option<i32> {
        self.end.iter().find(|(_, flag)| flag.load(Ordering::SeqCst)).map(|(signal, _)| *signal)
    }

    /// Returns whether the user has typed Ctrl-Z since the last call.
    pub(crate) fn take_stop(&self) -> bool {
        self.stop.swap(false, Ordering::SeqCst)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Ends this process as the signal would have done.
pub(crate) fn die(signal: i32) {
    let _ = emulate_default_handler(signal);
}

/// Stops this process until somebody continues it. A process without a shell that could do that goes on.
pub(crate) fn stop() {
    let has_shell = rustix::process::getsid(None).is_ok_and(|session| session != rustix::process::getpgrp());
    if has_shell {
        let _ = emulate_default_handler(SIGTSTP);
    }
}
