//! More records for the same counts.
//!
//! A record `(address, count)` holds for every instruction from its address on in a straight line, up to
//! the next record, a call, an instruction that never falls through, or the function's end. So a record with the same count may be put
//! at any instruction on the way, and nothing but the number of records changes.

use std::collections::BTreeSet;

use gmon::{Block, Profile};
use gprofinject_image::debug::Lines;
use gprofinject_image::instructions::Code;
use gprofinject_image::x86::goes_on;

/// The blocks, sorted by address, with a record at each of the addresses `at` (sorted) that a straight line
/// leads to. What is reached by none gets none: it was not counted, or is not code.
pub fn split(blocks: &[Block], code: &Code, at: &[u64]) -> Vec<Block> {
    let mut out = Vec::with_capacity(blocks.len());
    for (index, &block) in blocks.iter().enumerate() {
        out.push(block);
        let next = blocks.get(index + 1).map_or(u64::MAX, |next| next.addr);
        let wanted = &at[at.partition_point(|&address| address <= block.addr)..];
        let mut wanted = wanted[..wanted.partition_point(|&address| address < next)].iter().peekable();
        if wanted.peek().is_none() {
            continue;
        }
        let end = code.function_at(block.addr).map_or(u64::MAX, |index| code.functions()[index].end());
        for instruction in code.instructions(block.addr) {
            let address = instruction.ip();
            if address >= end {
                break;
            }
            // One within an instruction is reached by nobody.
            while wanted.next_if(|&&wanted| wanted < address).is_some() {}
            if wanted.next_if(|&&wanted| wanted == address).is_some() {
                out.push(Block { addr: address, count: block.count });
            }
            if wanted.peek().is_none() || !goes_on(&instruction) {
                break;
            }
        }
    }
    out
}

/// Gives each profile a record wherever another has one, so that they may be summed by address.
///
/// Files of one program differ in their records where a run crashed within a block, where the functions
/// to count were chosen differently, and where one was made with line information and the other
/// without. A function that one file has no record of was not counted there, and adds nothing.
pub fn align(profiles: &mut [Profile], code: &Code) {
    let all: BTreeSet<u64> = profiles.iter().flat_map(|p| &p.blocks).map(|block| block.addr).collect();
    let all: Vec<u64> = all.into_iter().collect();
    for profile in profiles.iter_mut().filter(|profile| profile.blocks.len() < all.len()) {
        profile.blocks.sort_unstable();
        profile.blocks = split(&profile.blocks, code, &all);
    }
}

/// The records by which gprof prints the count of each line right, from those of the basic blocks alone.
///
/// `gprof -l` makes a symbol of each stretch of code of one line, and of a line with several takes the
/// lowest one's counts; where that begins within a block, `-x` puts the count of the line printed before
/// in front (binutils `gprof/basic_blocks.c`, `annotate_with_count`). So each line gets a record where
/// its code begins. Then `gprof -l -A` prints each line's count first.
///
/// What remains is gprof's: it keeps ten addresses of a stretch, cuts numbers off after 16 columns, and
/// with `-x` puts that count in front of each line with several stretches.
pub fn at_lines(blocks: &[Block], code: &Code, lines: &Lines) -> Vec<Block> {
    split(blocks, code, &lines.starts())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mov eax, 1; nop; call; nop; ret`, and padding.
    const BYTES: [u8; 14] = [0xb8, 1, 0, 0, 0, 0x90, 0xe8, 0, 0, 0, 0, 0x90, 0xc3, 0x90];

    fn addresses(blocks: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let code = Code::of_bytes(&[(0x1000, "f", &BYTES), (0x100e, "g", &[0x90, 0xc3])]);
        let blocks: Vec<_> = blocks.iter().map(|&(addr, count)| Block { addr, count }).collect();
        let every: Vec<u64> = (0xff0..0x1020).collect();
        split(&blocks, &code, &every).into_iter().map(|block| (block.addr, block.count)).collect()
    }

    #[test]
    fn a_count_holds_in_a_straight_line() {
        // Not within an instruction, nor behind the call.
        assert_eq!(addresses(&[(0x1000, 3)]), [(0x1000, 3), (0x1005, 3), (0x1006, 3)]);
        assert_eq!(
            addresses(&[(0x1000, 3), (0x1006, 2), (0x100b, 1)]),
            [(0x1000, 3), (0x1005, 3), (0x1006, 2), (0x100b, 1), (0x100c, 1)]
        );
        // Not on into the next function.
        assert_eq!(addresses(&[(0x100d, 7)]), [(0x100d, 7)]);
        assert_eq!(addresses(&[(0x5000, 7)]), [(0x5000, 7)]);
    }

    #[test]
    fn files_of_one_program_get_the_same_records() {
        let code = Code::of_bytes(&[(0x1000, "f", &BYTES)]);
        let profile = |blocks: &[(u64, u64)]| {
            let blocks = blocks.iter().map(|&(addr, count)| Block { addr, count }).collect();
            Profile { blocks, ..Profile::new(gmon::Format::LITTLE_64) }
        };
        // The first crashed in the call; the third did not count the function behind the call.
        let mut all = [
            profile(&[(0x1000, 5), (0x1006, 4), (0x100b, 4)]),
            profile(&[(0x1000, 2), (0x100b, 2)]),
            profile(&[(0x1000, 1)]),
        ];
        align(&mut all, &code);
        let sum = gmon::merge(all).expect("one program's").blocks;
        let sum: Vec<_> = sum.into_iter().map(|block| (block.addr, block.count)).collect();
        assert_eq!(sum, [(0x1000, 8), (0x1006, 7), (0x100b, 6)]);
    }
}
