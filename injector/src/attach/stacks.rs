//! What the stacks of stopped threads hold, as far as it decides whether code may be changed or taken away.

use std::collections::HashSet;
use std::ops::Range;

use super::process::Mapping;
use super::tracee::{Memory, Thread};

/// More of a stack is not looked at.
const MOST: u64 = 16 << 20;
const RED_ZONE: u64 = 128;
/// `__restore_rt`: mov rax, 15; syscall.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// From a signal frame's return address to its saved instruction pointer: struct ucontext's flags, link and
/// stack, then register 16.
const SAVED_PC: u64 = 8 + 40 + 16 * 8;

/// The words on a thread's stack, read once. Nobody's, if it has none that we know of.
#[derive(Debug, Default)]
pub(crate) struct Words {
    from: u64,
    bytes: Vec<u8>,
}

impl Words {
    pub(crate) fn of(memory: &Memory, thread: &Thread, mappings: &[Mapping]) -> Words {
        let top = thread.registers.rsp & !7;
        let n = mappings.partition_point(|mapping| mapping.hi <= top);
        let Some(stack) = mappings.get(n).filter(|stack| stack.lo <= top) else { return Words::default() };
        let from = top.saturating_sub(RED_ZONE).max(stack.lo);
        let bytes = memory.bytes(from, (stack.hi.min(from + MOST) - from) as usize).unwrap_or_default();
        Words { from, bytes }
    }

    /// With their addresses.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let words = self.bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes));
        (self.from..).step_by(8).zip(words)
    }

    /// Places where signal handlers have interrupted the thread.
    pub(crate) fn interrupted(&self, memory: &Memory, code: &Range<u64>) -> Vec<u64> {
        let mut restorer = None;
        let mut others = HashSet::new();
        let mut places = Vec::new();
        for (at, word) in self.iter().filter(|(_, word)| code.contains(word)) {
            let known = match restorer {
                Some(restorer) => word == restorer,
                None => others.insert(word) && is_restorer(memory, word),
            };
            if known {
                restorer = Some(word);
                places.extend(memory.word(at + SAVED_PC));
            }
        }
        places
    }
}

/// Whether signal handlers return there.
pub(crate) fn is_restorer(memory: &Memory, at: u64) -> bool {
    memory.bytes(at, RESTORER.len()).is_ok_and(|bytes| bytes == RESTORER)
}
