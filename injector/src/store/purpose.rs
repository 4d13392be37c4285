//! What a library is planned for.

use serde::{Deserialize, Serialize};

/// What a library is planned for. One library may have several plans, for processes of different kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// Its functions are hooked, in a process of glibc's.
    Hooks,
    /// Its functions are hooked, in a process of musl's.
    MuslHooks,
    /// It is left out, in a process of musl's. There the agent has to be called in place of some of its instructions all
    /// the same: system calls that make threads or processes or execute programs, longjmp, and the functions by which an
    /// unwinder looks up its data.
    MuslGates,
    /// It is left out, in a process of glibc's. There the agent has to be called in place of functions that copy parts of the stack,
    /// because the frames of hooked functions may be among these.
    Gates,
}

impl Purpose {
    /// Returns what a library is planned for that is `wanted` by the user or not, in a process that is of musl's or not.
    pub(crate) fn of(wanted: bool, musl: bool) -> Purpose {
        match (wanted, musl) {
            (true, false) => Purpose::Hooks,
            (true, true) => Purpose::MuslHooks,
            (false, true) => Purpose::MuslGates,
            (false, false) => Purpose::Gates,
        }
    }

    /// Whether the library is planned for processes of musl's.
    pub(crate) fn is_musl(self) -> bool {
        matches!(self, Purpose::MuslHooks | Purpose::MuslGates)
    }

    /// Whether the user wants the library's functions hooked.
    pub(crate) fn is_wanted(self) -> bool {
        matches!(self, Purpose::Hooks | Purpose::MuslHooks)
    }
}
