//! What the stacks of stopped threads hold, as far as it decides whether code may be changed or taken away.

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

/// The words on a thread's stack, with their addresses.
pub(crate) fn words(
    memory: &Memory,
    thread: &Thread,
    mappings: &[Mapping],
) -> impl Iterator<Item = (u64, u64)> {
    let top = thread.registers.rsp & !7;
    let stack = mappings.iter().find(|mapping| (mapping.lo..mapping.hi).contains(&top));
    let from = top.saturating_sub(RED_ZONE);
    let bytes = stack.and_then(|stack| {
        let from = from.max(stack.lo);
        memory.bytes(from, (stack.hi.min(from + MOST) - from) as usize).ok().map(|bytes| (from, bytes))
    });
    bytes.into_iter().flat_map(|(from, bytes)| {
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let words: Vec<u64> = bytes.chunks_exact(8).map(word).collect();
        (from..).step_by(8).zip(words)
    })
}

/// Whether signal handlers return there.
pub(crate) fn is_restorer(memory: &Memory, at: u64) -> bool {
    memory.bytes(at, RESTORER.len()).is_ok_and(|bytes| bytes == RESTORER)
}

/// Places where signal handlers have interrupted the thread.
pub(crate) fn interrupted(
    memory: &Memory,
    thread: &Thread,
    mappings: &[Mapping],
    code: &Range<u64>,
) -> Vec<u64> {
    let mut restorer = None;
    let mut places = Vec::new();
    let words: Vec<(u64, u64)> = words(memory, thread, mappings).collect();
    for &(at, word) in &words {
        if !code.contains(&word) {
            continue;
        }
        let known = match restorer {
            Some(restorer) => word == restorer,
            None => is_restorer(memory, word),
        };
        if known {
            restorer = Some(word);
            places.extend(memory.word(at + SAVED_PC));
        }
    }
    places
}
