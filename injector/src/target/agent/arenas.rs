//! Where the thunks of a process are: those of the program, and those of its libraries.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Where the thunks of a process are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Arenas {
    /// The runtime addresses of the program's thunks, also before they are mapped.
    pub(super) program: Range<u64>,
    /// The addresses from the first to the last thunk of a library, as far as they are known.
    pub(super) libraries: Range<u64>,
}

impl Arenas {
    pub(super) fn contains(&self, at: u64) -> bool {
        self.program.contains(&at) || self.libraries.contains(&at)
    }
}
