//! The state of the process before Rust's runtime has changed it. The runtime ignores SIGPIPE and opens
//! /dev/null in place of closed standard descriptors, and the profiled program must see neither change.
//!
//! A file that exceeds the limit of file sizes is an error for gprofinject, and no SIGXFSZ that ends it.
#![allow(unsafe_code, reason = "it runs before main, from .init_array")]

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static FILE_SIZE_IGNORED: AtomicBool = AtomicBool::new(false);
static CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[used]
// SAFETY: `.init_array` contains pointers to functions of this signature, which libc calls once before main.
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = record;

extern "C" fn record(_: c_int, _: *const *const c_char, _: *const *const c_char) {
    // SAFETY: these are plain system calls; the sigaction that is written is a local variable of the right
    // type, valid when zeroed.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) == 0 {
            PIPE_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Relaxed);
        }
        if libc::sigaction(libc::SIGXFSZ, std::ptr::null(), &mut action) == 0 {
            FILE_SIZE_IGNORED.store(action.sa_sigaction == libc::SIG_IGN, Relaxed);
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
        for (fd, closed) in (0..).zip(&CLOSED) {
            closed.store(libc::fcntl(fd, libc::F_GETFD) == -1, Relaxed);
        }
    }
}

/// Whether SIGPIPE was ignored when the injector was started.
pub(crate) fn pipe_ignored() -> bool {
    PIPE_IGNORED.load(Relaxed)
}

/// Gives SIGPIPE the disposition that it had when the injector was started.
pub(crate) fn restore_pipe() {
    if !pipe_ignored() {
        // SAFETY: no handler runs, and the disposition is that of a process that has set none.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
}

/// Gives SIGXFSZ the disposition that it had when the injector was started. To be called when the signal is blocked.
pub(crate) fn restore_file_size() {
    if !FILE_SIZE_IGNORED.load(Relaxed) {
        // SAFETY: no handler runs, and the disposition is that of a process that has set none.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    }
}

/// Returns the standard descriptors that were closed when the injector was started.
pub(crate) fn closed_descriptors() -> impl Iterator<Item = c_int> {
    (0..).zip(&CLOSED).filter(|(_, closed)| closed.load(Relaxed)).map(|(fd, _)| fd)
}
