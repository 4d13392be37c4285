//! The heap. If a limit of memory leaves no room in it, a message says so, where Rust's standard library would only abort.
#![allow(unsafe_code, reason = "it is an allocator, which passes all work on to the standard one")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fmt::Write;

use crate::os::child;
use crate::os::limits;

/// Nothing that gprofinject does needs so many bytes at once. A length of this size was read in a damaged file, and whoever asks for it is
/// prepared for a refusal.
const FAR_TOO_MUCH: usize = 1 << 30;

pub(crate) struct Heap;

// SAFETY: each function passes its arguments on to the function of `System` with the same contract, and returns its result.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract, which is the same.
        obtained(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract, which is the same.
        obtained(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract, which is the same.
        obtained(unsafe { System.realloc(at, layout, len) }, len)
    }
}

/// Returns the memory, or ends the process if there is none because of a limit.
#[inline]
fn obtained(at: *mut u8, len: usize) -> *mut u8 {
    if at.is_null() && len < FAR_TOO_MUCH {
        exhausted();
    }
    at
}

/// Has [`exhausted`] called for a new thread that finds no memory for the stack of its signal handlers, too: Rust's standard library panics in
/// such a thread (`std/src/sys/pal/unix/stack_overflow.rs`), where a thread that gets no stack at all is an error that its creator handles.
pub(crate) fn watch_threads() {
    let other = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.location().is_some_and(|place| place.file().ends_with("stack_overflow.rs")) {
            exhausted();
        }
        other(panic);
    }));
}

/// Says which limit leaves no memory, and ends the process, once the program has ended if it runs. Returns if there is no such limit.
#[cold]
fn exhausted() {
    let Some(limit) = limits::lowest_of_memory() else { return };
    let mut line = Line { bytes: [0; 200], len: 0 };
    let running = if child::is_launched() { "the profile is lost" } else { "the program was not started" };
    let _ = writeln!(line, "gprofinject: no memory for gprofinject itself: {limit}; {running}");
    let _ = rustix::io::write(rustix::stdio::stderr(), &line.bytes[..line.len]);
    child::end_like_launched()
}

/// A line of text that takes no memory of the heap.
struct Line {
    bytes: [u8; 200],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = &mut self.bytes[self.len..];
        let len = text.len().min(room.len());
        room[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.len += len;
        Ok(())
    }
}
