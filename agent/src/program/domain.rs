//! The two sets of hooked functions: those of the program, and those of libraries.
//!
//! The program's own view of its calls must not depend on which libraries are hooked. Each set therefore has its own
//! chain of frames: its own word for the thread's last event, and its own links ([`crate::hot::callers`]).

use core::sync::atomic::AtomicU64;
use gprofinject_abi::plan::LIBRARIES;
use gprofinject_abi::shared::WordsRef;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Domain {
    Program,
    Libraries,
}

impl Domain {
    /// Returns the set to which the function with this number belongs.
    pub(crate) fn of(number: u32) -> Domain {
        if number < LIBRARIES { Domain::Program } else { Domain::Libraries }
    }

    pub(crate) fn other(self) -> Domain {
        match self {
            Domain::Program => Domain::Libraries,
            Domain::Libraries => Domain::Program,
        }
    }

    /// Returns the word for the thread's last event in this set; see [`gprofinject_abi::plan::ThreadWords::last`].
    pub(crate) fn last(self, words: WordsRef) -> &'static AtomicU64 {
        match self {
            Domain::Program => words.last(),
            Domain::Libraries => words.library_last(),
        }
    }
}
