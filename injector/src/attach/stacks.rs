//! What the stacks of stopped threads hold, as far as it decides whether code may be changed or taken away.

use std::ops::Range;

use super::process::Mapping;
use super::tracee::Thread;
use super::tracee::memory::Memory;

/// More of a stack is not looked at.
const MOST: u64 = 16 << 20;
const RED_ZONE: u64 = 128;
/// `__restore_rt`: mov rax, 15; syscall.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// Goes through a thread's stack and passes on the words that lie in one of the ranges, with their addresses, until
/// `is_it` holds for one: that one.
pub(crate) fn find(
    memory: &Memory,
    thread: &Thread,
    mappings: &[Mapping],
    ranges: &[Range<u64>],
    mut is_it: impl FnMut(u64, u64) -> bool,
) -> Option<u64> {
    /// Stays in the cache.
    const PIECE: u64 = 128 << 10;
    const ROW: usize = 512;
    let top = thread.registers.rsp & !7;
    let n = mappings.partition_point(|mapping| mapping.hi <= top);
    let stack = mappings.get(n).filter(|stack| stack.lo <= top)?;
    let mut from = top.saturating_sub(RED_ZONE).max(stack.lo);
    let end = stack.hi.min(from + MOST);
    let mut buffer = vec![0; PIECE.min(end - from) as usize];
    while from < end {
        let piece = buffer.get_mut(..PIECE.min(end - from) as usize)?;
        memory.read(from, piece).ok()?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        for (row, at) in piece.chunks(ROW).zip((from..).step_by(ROW)) {
            // Without a branch for each word: nearly all rows are passed over.
            let is_in = |range: &Range<u64>| {
                let len = range.end - range.start;
                row.chunks_exact(8).fold(false, |any, w| any | (word(w).wrapping_sub(range.start) < len))
            };
            if !ranges.iter().any(is_in) {
                continue;
            }
            let mut words = row.chunks_exact(8).map(word).zip((at..).step_by(8));
            let is_hit = |&(word, at): &(u64, u64)| {
                ranges.iter().any(|range| range.contains(&word)) && is_it(at, word)
            };
            if let Some((word, _)) = words.find(is_hit) {
                return Some(word);
            }
        }
        from += PIECE;
    }
    None
}

/// Whether signal handlers return there.
pub(crate) fn is_restorer(memory: &Memory, at: u64) -> bool {
    memory.bytes(at, RESTORER.len()).is_ok_and(|bytes| bytes == RESTORER)
}
