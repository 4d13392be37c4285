//! The stacks of stopped threads: what they contain decides whether code may be changed or removed.

use std::ops::Range;

use crate::os::proc::Mapping;
use crate::os::signal_frame;
use crate::target::agent::arenas::Arenas;
use crate::target::threads::memory::Memory;
use crate::target::threads::thread::Thread;

/// The number of bytes of a stack that are examined at most.
const MOST: u64 = 16 << 20;
const RED_ZONE: u64 = 128;
/// Searches a thread's stack, which ends at `end` or else with the mapping, for words that are in one of the ranges. Passes each
/// word and its address to `is_it`, and returns the first word for which it returns true.
pub(crate) fn find(
    memory: &Memory,
    thread: &Thread,
    end: Option<u64>,
    mappings: &[Mapping],
    ranges: &[Range<u64>],
    mut is_it: impl FnMut(u64, u64) -> bool,
) -> Option<u64> {
    /// This size fits into the processor's cache.
    const PIECE: u64 = 128 << 10;
    const ROW: usize = 512;
    let top = thread.registers.rsp & !7;
    let n = mappings.partition_point(|mapping| mapping.hi <= top);
    let stack = mappings.get(n).filter(|stack| stack.lo <= top)?;
    let mut from = top.saturating_sub(RED_ZONE).max(stack.lo);
    let end = stack.hi.min(from + MOST).min(end.map_or(u64::MAX, |end| end.next_multiple_of(8).max(from)));
    let mut buffer = vec![0; PIECE.min(end - from) as usize];
    while from < end {
        let piece = buffer.get_mut(..PIECE.min(end - from) as usize)?;
        memory.read(from, piece).ok()?;
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        for (row, at) in piece.chunks(ROW).zip((from..).step_by(ROW)) {
            // Without a branch for each word, because nearly all rows contain no such word.
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

/// Whether the word at an address is where a signal handler returns to the interrupted code. A hooked handler
/// returns through one of the `arenas` first.
pub(crate) fn is_interrupted(memory: &Memory, at: u64, arenas: &Arenas) -> bool {
    /// The offset of the saved instruction pointer in struct rt_sigframe, which begins with the handler's return address.
    const RIP: u64 = 8 + signal_frame::offset(signal_frame::RIP);
    /// The offset of the code segment from the saved instruction pointer: the flags are in between.
    const CS: u64 = 2 * 8;
    const USER: u64 = 0x33;
    memory.word(at + CS).is_ok_and(|word| word & 0xffff == USER)
        && memory
            .word(at.wrapping_sub(RIP))
            .is_ok_and(|handler| arenas.contains(handler) || is_restorer(memory, handler))
}

/// Whether the code at an address is what signal handlers return to.
pub(crate) fn is_restorer(memory: &Memory, at: u64) -> bool {
    memory.bytes(at, signal_frame::RESTORER.len()).is_ok_and(|bytes| bytes == signal_frame::RESTORER)
}

/// Whether a word that was found on a stack at `at` can be an address at which the thread continues: it
/// follows a call instruction, or is where a signal has interrupted the thread. Otherwise it is an ordinary
/// number, because the text of a program that is not position-independent has small addresses.
pub(crate) fn may_go_on_at(memory: &Memory, at: u64, word: u64, arenas: &Arenas) -> bool {
    let before = memory.bytes(word - LONGEST_CALL as u64, LONGEST_CALL);
    before.is_ok_and(|code| ends_with_call(&code)) || is_interrupted(memory, at, arenas)
}

const LONGEST_CALL: usize = 7;

fn ends_with_call(code: &[u8]) -> bool {
    let direct = code.len() >= 5 && code[code.len() - 5] == 0xe8;
    direct || (2..=LONGEST_CALL.min(code.len())).any(|len| is_indirect_call(&code[code.len() - len..]))
}

/// Whether the code is an indirect `call` without prefixes: opcode, ModRM, and perhaps SIB and displacement.
fn is_indirect_call(code: &[u8]) -> bool {
    let [0xff, modrm, rest @ ..] = code else { return false };
    let (mode, base) = (modrm >> 6, modrm & 7);
    let sib = usize::from(mode != 3 && base == 4);
    let displacement = match (mode, base) {
        (0, 5) | (2, _) => 4,
        (0, 4) if rest.first().is_some_and(|sib| sib & 7 == 5) => 4,
        (1, _) => 1,
        _ => 0,
    };
    modrm >> 3 & 7 == 2 && rest.len() == sib + displacement
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_known_by_their_last_bytes() {
        // The bytes and texts are objdump's.
        for call in [
            &[0xe8, 1, 2, 3, 4][..],         // call rel32
            &[0xff, 0xd0],                   // call rax
            &[0x41, 0xff, 0xd3],             // call r11
            &[0xff, 0x10],                   // call [rax]
            &[0xff, 0x15, 1, 2, 3, 4],       // call [rip+0x4030201]
            &[0xff, 0x14, 0xc8],             // call [rax+rcx*8]
            &[0xff, 0x14, 0xc5, 1, 2, 3, 4], // call [rax*8+0x4030201]
            &[0xff, 0x50, 0x18],             // call [rax+0x18]
            &[0xff, 0x54, 0x24, 0x08],       // call [rsp+8]
            &[0xff, 0x90, 1, 2, 3, 4],       // call [rax+0x4030201]
            &[0xff, 0x94, 0x24, 1, 2, 3, 4], // call [rsp+0x4030201]
        ] {
            let code = [&[0x90; LONGEST_CALL][..], call].concat();
            assert!(ends_with_call(&code[code.len() - LONGEST_CALL..]), "{call:x?}");
        }
        for other in [
            &[0x55][..],               // push rbp
            &[0xff, 0xe0],             // jmp rax
            &[0xff, 0x75, 0x08],       // push [rbp+8]
            &[0xff, 0x25, 1, 2, 3, 4], // jmp [rip+0x4030201]
            &[0xff, 0xc0],             // inc eax
        ] {
            let code = [&[0x90; LONGEST_CALL][..], other].concat();
            assert!(!ends_with_call(&code[code.len() - LONGEST_CALL..]), "{other:x?}");
        }
        assert!(!ends_with_call(&[]) && !ends_with_call(&[0xff]));
    }
}
