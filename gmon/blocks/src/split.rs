//! Adds records that say the same.
//!
//! A record `(address, count)` holds for every instruction from its address on in a straight line, up to the
//! next record, a call, an instruction that never falls through, or the function's end. So a record with the
//! same count may be added at any instruction on the way, and nothing changes except the number of records.

use std::collections::BTreeSet;

use gmon::{Block, Profile};
use gprofinject_image::debug::Lines;
use gprofinject_image::instructions::Code;
use gprofinject_image::x86::goes_on;

/// Returns the blocks, sorted by address, with a record at each of the addresses `at` (sorted) to which a
/// straight line leads. An address to which none leads gets no record: it was not counted, or is not code.
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
            // An address within an instruction is never reached.
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

/// Gives each profile a record wherever another one has one, so that they can be summed by address.
///
/// The records in files of one program differ if a run crashed within a basic block, if different functions
/// were selected for counting, and if one file was made with line information and the other without. A
/// function without a record in a file was not counted there, and adds nothing.
pub fn align(profiles: &mut [Profile], code: &Code) {
    let all: BTreeSet<u64> = profiles.iter().flat_map(|p| &p.blocks).map(|block| block.addr).collect();
    let all: Vec<u64> = all.into_iter().collect();
    for profile in profiles.iter_mut().filter(|profile| profile.blocks.len() < all.len()) {
        profile.blocks.sort_unstable();
        profile.blocks = split(&profile.blocks, code, &all);
    }
}

/// Returns the records with which gprof prints the right count of each line, from those of the basic blocks
/// alone.
///
/// `gprof -l` makes a symbol of each range of code of one line, and shows the counts at the lowest address of
/// a line with several ranges. If that range begins within a basic block, `-x` shows the count of the line
/// printed before (binutils `gprof/basic_blocks.c`, `annotate_with_count`). So each line gets a record where
/// its code begins. Then `gprof -l -A` prints each line's count first.
///
/// The other limits are gprof's: it keeps ten addresses of a range, cuts numbers off after 16 columns, and
/// with `-x` shows that count before each line with several ranges.
pub fn at_lines(blocks: &[Block], code: &Code, lines: &Lines) -> Vec<Block> {
    split(blocks, code, &lines.starts())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code is `mov eax, 1; nop; call; nop; ret`, and padding.
    const BYTES: [u8; 14] = [0xb8, 1, 0, 0, 0, 0x90, 0xe8, 0, 0, 0, 0, 0x90, 0xc3, 0x90];

    fn addresses(blocks: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let code = Code::of_bytes(&[(0x1000, "f", &BYTES), (0x100e, "g", &[0x90, 0xc3])]);
        let blocks: Vec<_> = blocks.iter().map(|&(addr, count)| Block { addr, count }).collect();
        let every: Vec<u64> = (0xff0..0x1020).collect();
        split(&blocks, &code, &every).into_iter().map(|block| (block.addr, block.count)).collect()
    }

    #[test]
    fn a_count_holds_in_a_straight_line() {
        // There is no record within an instruction or after the call.
        assert_eq!(addresses(&[(0x1000, 3)]), [(0x1000, 3), (0x1005, 3), (0x1006, 3)]);
        assert_eq!(
            addresses(&[(0x1000, 3), (0x1006, 2), (0x100b, 1)]),
            [(0x1000, 3), (0x1005, 3), (0x1006, 2), (0x100b, 1), (0x100c, 1)]
        );
        // It does not continue into the next function.
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
        // The first run crashed in the call; the third did not count the function after the call.
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
