//! Where the thunks of a process are: those of the program, and those of its libraries.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Where the thunks of a process are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Arenas {
    /// The runtime addresses of the program's thunks, also before they are mapped.
    pub(super) program: Range<u64>,
    /// The addresses of the libraries' thunks, as far as they are known: sorted, and parted by other addresses.
    pub(super) libraries: Vec<Range<u64>>,
}

impl Arenas {
    pub(super) fn contains(&self, at: u64) -> bool {
        let after = self.libraries.partition_point(|arena| arena.start <= at);
        self.program.contains(&at) || after > 0 && self.libraries[after - 1].contains(&at)
    }

    /// Adds the thunks of a library. Ranges that touch become one.
    pub(super) fn add(&mut self, mut arena: Range<u64>) {
        let from = self.libraries.partition_point(|other| other.end < arena.start);
        let to = self.libraries.partition_point(|other| other.start <= arena.end);
        for other in self.libraries.drain(from..to.max(from)) {
            arena = arena.start.min(other.start)..arena.end.max(other.end);
        }
        self.libraries.insert(from, arena);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thunks_are_where_libraries_have_them() {
        let mut arenas = Arenas { program: 0x100..0x200, ..Arenas::default() };
        for arena in [0x5000..0x6000, 0x1000..0x2000, 0x2000..0x3000, 0x1000..0x2000, 0x8000..0x9000] {
            arenas.add(arena);
        }
        assert_eq!(arenas.libraries, [0x1000..0x3000, 0x5000..0x6000, 0x8000..0x9000]);
        let inside = [0x100, 0x1000, 0x2fff, 0x5000, 0x8fff];
        let outside = [0x200, 0xfff, 0x3000, 0x4fff, 0x6000, 0x7000, 0x9000, u64::MAX];
        assert!(
            inside.iter().all(|&at| arenas.contains(at)) && !outside.iter().any(|&at| arenas.contains(at))
        );
        arenas.add(0x1500..0x8500);
        assert_eq!(arenas.libraries, Vec::from_iter([Range { start: 0x1000, end: 0x9000 }]));
    }
}
