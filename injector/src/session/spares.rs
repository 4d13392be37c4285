//! Region files of processes that have ended, kept for processes of the same programs.
//!
//! In a run of many short processes, most of what counters cost is that the kernel makes their pages, and frees them. The file of a
//! process that has ended has the pages that a process of this program needs.

use std::collections::VecDeque;

use rustix::process::Resource;

use crate::os::limits::Limit;
use crate::os::sys;

/// The files of a process that has ended. All counts are zero.
pub(crate) struct Spare {
    /// The number of its program.
    pub(crate) program: u32,
    /// The name in the run folder.
    pub(crate) name: String,
    /// The memory that the counters occupy.
    pub(crate) bytes: u64,
}

/// All of them, the oldest first.
pub(crate) struct Spares {
    all: VecDeque<Spare>,
    /// The memory that they may occupy together.
    most: u64,
    /// The number of files.
    files: usize,
}

impl Default for Spares {
    fn default() -> Self {
        /// The memory on any machine.
        const MOST: u64 = 64 << 20;
        /// The part of the machine's memory.
        const SHARE: u64 = 64;
        /// The part of the files that this process may have open, without those that it needs itself.
        const OPEN: u64 = 16;
        const NEEDED: u64 = 128;
        let open = Limit::of(Resource::Nofile).map_or(u64::MAX, |limit| limit.most());
        let files = open.saturating_sub(NEEDED) / OPEN;
        let most = MOST.min(sys::memory() / SHARE);
        Spares { all: VecDeque::new(), most, files: files.min(64) as usize }
    }
}

impl Spares {
    /// Takes into account that a process may use so many bytes of memory, if that is limited. Its pages are its control group's as long
    /// as the file is there.
    pub(crate) fn limit(&mut self, memory: Option<u64>) {
        /// The part of that memory.
        const SHARE: u64 = 32;
        if let Some(memory) = memory {
            self.most = self.most.min(memory / SHARE);
        }
    }

    /// Whether one that occupies so many bytes may be kept.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        bytes <= self.most && self.files > 0
    }

    /// Keeps one.
    pub(crate) fn add(&mut self, spare: Spare) {
        self.all.push_back(spare);
    }

    /// Returns the files for a process of a program: those that were used last, because they are in the processor's cache.
    pub(crate) fn take(&mut self, program: u32) -> Option<Spare> {
        let at = self.all.iter().rposition(|spare| spare.program == program)?;
        self.all.remove(at)
    }

    /// Returns the oldest one if they are too many.
    pub(crate) fn surplus(&mut self) -> Option<Spare> {
        let bytes = self.all.iter().fold(0_u64, |sum, spare| sum.saturating_add(spare.bytes));
        if bytes > self.most || self.all.len() > self.files { self.all.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_ones_go() {
        let mut spares = Spares { all: VecDeque::new(), most: 100, files: 3 };
        assert!(spares.has_room(100) && !spares.has_room(101));
        let spare = |program, bytes| Spare { program, name: format!("{program}-{bytes}"), bytes };
        spares.all.extend([spare(1, 50), spare(2, 20), spare(1, 30)]);
        assert!(spares.surplus().is_none());
        spares.all.push_back(spare(2, 0));
        assert_eq!(spares.surplus().expect("four are too many").name, "1-50");
        assert!(spares.surplus().is_none() && spares.take(3).is_none());
        assert_eq!(spares.take(2).expect("kept").name, "2-0");
        assert_eq!(spares.take(2).expect("kept").name, "2-20");
        spares.limit(Some(640));
        assert_eq!(spares.surplus().expect("there is less memory").name, "1-30");
        assert!(spares.take(1).is_none() && !spares.has_room(21));
        spares.limit(None);
        assert!(spares.has_room(20));
    }
}
