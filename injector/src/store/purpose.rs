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
}

impl Purpose {
    /// Returns what a library is planned for that is `wanted` by the user or not, in a process that is of musl's or not. A
    /// library that is left out in a process of glibc's has no plan.
    pub(crate) fn of(wanted: bool, musl: bool) -> Option<Purpose> {
        match (wanted, musl) {
            (true, false) => Some(Purpose::Hooks),
            (true, true) => Some(Purpose::MuslHooks),
            (false, true) => Some(Purpose::MuslGates),
            (false, false) => None,
        }
    }

    /// Whether the library is planned for processes of musl's.
    pub(crate) fn is_musl(self) -> bool {
        self != Purpose::Hooks
    }

    /// Whether the user wants the library's functions hooked.
    pub(crate) fn is_wanted(self) -> bool {
        self != Purpose::MuslGates
    }
}
