//! Code that belongs to no function: the bytes between functions, which neither a symbol nor a frame
//! description covers, and the bytes after an undecodable byte of a function.
//!
//! Such code may call functions, jump to them and compute their addresses like any other. But its
//! instructions cannot be distinguished from data with certainty, so nothing in it is ever patched or
//! relocated. The addresses that it seems to refer to count as taken, or as targets of indirect jumps; the
//! tactics then expect control to come from anywhere.

use crate::flow::branch::NEAR;
use crate::parallel;
use gprofinject_image::x86::is_padding_instruction;
use gprofinject_image::{ElfType, Function, Image};
use iced_x86::{Decoder, DecoderOptions, Instruction, OpKind};
use std::ops::Range;

/// Bytes that are searched in one piece.
const PIECE: u64 = 1 << 20;
/// So many bytes are as much work as a function.
const FUNCTION: u64 = 1 << 8;
/// The number of bytes by which two pieces overlap: more than the longest instruction has.
const OVERLAP: u64 = 16;
/// Bytes of a displacement or an address.
const WORD: usize = 4;

/// The addresses that the code refers to, in no particular order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct References {
    /// Addresses in code.
    pub(crate) taken: Vec<u64>,
    /// Addresses inside a function, near its start.
    pub(crate) indirect: Vec<u64>,
    /// Starts of functions that the code calls or jumps to.
    pub(crate) entered: Vec<u64>,
    /// The calls among them: the start of the function, and the address after the call.
    pub(crate) called: Vec<(u64, u64)>,
}

/// Searches the code between the functions of an image, what may be code outside of its sections, and `rest`, the parts of functions that could not be
/// decoded.
pub(crate) fn references(image: &Image, rest: &[Range<u64>]) -> References {
    // An image without functions has nothing that the code could enter.
    if image.functions.is_empty() {
        return References::default();
    }
    let mut pieces = Vec::new();
    let gaps = between_functions(image).into_iter().chain(outside_sections(image));
    for range in gaps.chain(rest.iter().cloned()) {
        if !is_padding(image, &range) {
            let end = range.end;
            pieces.extend(range.step_by(PIECE as usize).map(|lo| lo..end.min(lo + PIECE + OVERLAP)));
        }
    }
    // Most programs have only a few such bytes, for which a thread costs more than it saves.
    let bytes: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
    let work = image.functions.len().max((bytes / FUNCTION) as usize);
    let batch = pieces.len().div_ceil(parallel::parts(work)).max(1);
    let found = parallel::each(pieces.chunks(batch).collect(), |pieces| {
        let mut found = References::default();
        for piece in pieces {
            found.decode(image, piece);
            found.search(image, piece);
        }
        found
    });
    found.into_iter().fold(References::default(), |mut all, part| {
        all.taken.extend(part.taken);
        all.indirect.extend(part.indirect);
        all.entered.extend(part.entered);
        all.called.extend(part.called);
        all
    })
}

/// Returns the parts of executable sections that belong to no function.
pub(crate) fn between_functions(image: &Image) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut functions = image.functions.iter().peekable();
    for range in &image.code_ranges {
        let mut at = range.start;
        while let Some(f) = functions.next_if(|f| f.address < range.end) {
            gaps.push(at..f.address);
            at = at.max(f.address.saturating_add(f.size));
        }
        gaps.push(at..range.end);
    }
    gaps.retain(|gap| gap.start < gap.end);
    gaps
}

/// Returns the parts of executable segments that are in no executable section. Section headers may hide code there.
fn outside_sections(image: &Image) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    for code in &image.code {
        let (start, end) = (code.address, code.address + code.bytes.len() as u64);
        let mut at = start;
        for range in image.code_ranges.iter().filter(|range| range.end > start && range.start < end) {
            gaps.push(at..range.start);
            at = range.end;
        }
        gaps.push(at..end);
    }
    gaps.retain(|gap| gap.start < gap.end);
    gaps
}

/// Returns whether the bytes only align functions. Such bytes are frequent and refer to nothing.
fn is_padding(image: &Image, range: &Range<u64>) -> bool {
    let Some(bytes) = image.code_at(range.start, range.end - range.start) else { return true };
    if bytes.iter().all(|&b| b == 0) || bytes.iter().all(|&b| b == 0xcc) || bytes.iter().all(|&b| b == 0x90) {
        return true;
    }
    let mut decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
    let mut instructions = std::iter::from_fn(|| decoder.can_decode().then(|| decoder.decode()));
    instructions.all(|i| is_padding_instruction(&i))
}

impl References {
    /// Decodes the bytes as consecutive instructions. If a byte begins no instruction, decoding resumes at
    /// the next byte.
    fn decode(&mut self, image: &Image, piece: &Range<u64>) {
        let Some(bytes) = image.code_at(piece.start, piece.end - piece.start) else { return };
        let mut decoder = Decoder::with_ip(64, bytes, piece.start, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() {
            let at = decoder.position();
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                decoder.set_ip(piece.start + at as u64 + 1);
                // This cannot fail: the byte at `at` has just been read, so the position after it exists.
                _ = decoder.set_position(at + 1);
                continue;
            }
            let branches = instruction.op0_kind() == OpKind::NearBranch64;
            let target = match branches {
                true => instruction.near_branch_target(),
                false if instruction.is_ip_rel_memory_operand() => instruction.ip_rel_memory_address(),
                false => continue,
            };
            if image.is_code(target) && !piece.contains(&target) {
                self.note(image, target, branches);
                if instruction.is_call_near() && self.entered.last() == Some(&target) {
                    self.called.push((target, instruction.next_ip()));
                }
            }
        }
    }

    /// Records a reference. `branches` is whether the instruction is a branch.
    fn note(&mut self, image: &Image, target: u64, branches: bool) {
        self.taken.push(target);
        let Some(f) = image.function_at(target).map(|i| &image.functions[i]).filter(|_| branches) else {
            return;
        };
        if f.address == target {
            self.entered.push(target);
        } else if leads_inside(image, f, target) {
            self.indirect.push(target);
        }
    }

    /// Finds references to the starts of functions at every byte, because data among the code can make a
    /// decoder miss instructions. Bytes that only look like a reference do no harm, and are rare.
    fn search(&mut self, image: &Image, piece: &Range<u64>) {
        const CALL: u8 = 0xe8;
        const JUMP: u8 = 0xe9;
        const LEA: u8 = 0x8d;
        let Some(bytes) = image.code_at(piece.start, piece.end - piece.start) else { return };
        let starts = image.functions[0].address..=image.functions[image.functions.len() - 1].address;
        let is_start = |address: u64| {
            starts.contains(&address)
                && image.functions.binary_search_by_key(&address, |function| function.address).is_ok()
        };
        for (n, window) in bytes.windows(WORD).enumerate() {
            let Ok(word) = <[u8; WORD]>::try_from(window) else { continue };
            // Returns a byte in front of the word, or 0 if the piece begins with the word.
            let before = |distance: usize| n.checked_sub(distance).map_or(0, |n| bytes[n]);
            let is_branch = matches!((before(2), before(1)), (_, CALL | JUMP) | (0x0f, 0x80..=0x8f));
            let is_relative = is_branch || before(2) == LEA && before(1) & 0xc7 == 5;
            let end = piece.start + (n + WORD) as u64;
            let relative = end.wrapping_add(i32::from_le_bytes(word) as u64);
            if is_relative && is_start(relative) {
                self.taken.push(relative);
                self.entered.extend(Some(relative).filter(|_| is_branch));
                self.called.extend(Some((relative, end)).filter(|_| before(1) == CALL));
            }
            let absolute = u64::from(u32::from_le_bytes(word));
            if image.elf_type == ElfType::Exec && is_start(absolute) {
                self.taken.push(absolute);
            }
        }
    }
}

/// Returns whether the target lies inside the function, near its start, at the beginning of an
/// instruction. Text among the code looks like short jumps to arbitrary bytes.
fn leads_inside(image: &Image, function: &Function, target: u64) -> bool {
    let offset = target - function.address;
    if !(1..NEAR).contains(&offset) {
        return false;
    }
    let bytes = image.code_at(function.address, function.size).unwrap_or_default();
    let decoder = Decoder::with_ip(64, bytes, function.address, DecoderOptions::NONE);
    decoder.into_iter().map(|i| i.ip()).take_while(|&at| at <= target).any(|at| at == target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TEXT, image, plan_of, tactics};

    const RET: u8 = 0xc3;
    /// The address of the code without a symbol, which follows a function of one byte.
    const GAP: u64 = TEXT + 1;

    /// `ret`, then code that no symbol describes, then a function of sixteen bytes. The first one's address is not taken.
    fn with_gap<'d>(kind: ElfType, base: u64, code: &'d mut Vec<u8>, gap: &[u8]) -> Image<'d> {
        code.push(RET);
        code.extend(gap);
        code.extend([0x90; 15]);
        code.push(RET);
        let mut image = image(kind, base, code, &[1, gap.len(), 16]);
        image.functions.remove(1);
        image.functions[0].limit = image.functions[1].address;
        image.details_mut().code_pointers.clear();
        image
    }

    fn references_of(gap: &[u8]) -> References {
        let mut code = Vec::new();
        let image = with_gap(ElfType::Dyn, TEXT, &mut code, gap);
        let mut references = references(&image, &[]);
        for addresses in [&mut references.taken, &mut references.entered] {
            addresses.sort_unstable();
            addresses.dedup();
        }
        references
    }

    fn found(gap: &[u8]) -> (Vec<u64>, Vec<u64>) {
        let References { taken, indirect, .. } = references_of(gap);
        (taken, indirect)
    }

    /// Returns the instruction at the address `at` that begins with these bytes and refers to `target`.
    fn relative(bytes: &[u8], at: u64, target: u64) -> Vec<u8> {
        let end = at + bytes.len() as u64 + 4;
        [bytes, &(target.wrapping_sub(end) as u32).to_le_bytes()].concat()
    }

    #[test]
    fn calls_jumps_and_addresses_are_found() {
        // call, jmp, je, lea rdi
        for bytes in [&[0xe8][..], &[0xe9], &[0x0f, 0x84], &[0x48, 0x8d, 0x3d]] {
            let instruction = relative(bytes, GAP, TEXT);
            assert_eq!(found(&instruction), (vec![TEXT], vec![]), "{instruction:x?}");
        }
    }

    #[test]
    fn branches_are_distinguished_from_other_references() {
        // call, jmp, je; jmp of two bytes; lea rdi
        let near = [&[0xe8][..], &[0xe9], &[0x0f, 0x84]].map(|bytes| relative(bytes, GAP, TEXT));
        let short = vec![0xeb, (TEXT as u8).wrapping_sub(GAP as u8 + 2)];
        for branch in near.into_iter().chain([short]) {
            assert_eq!(references_of(&branch).entered, [TEXT], "{branch:x?}");
        }
        assert_eq!(references_of(&relative(&[0x48, 0x8d, 0x3d], GAP, TEXT)).entered, []);
    }

    #[test]
    fn a_call_behind_data_is_found() {
        // The data is the beginning of a `mov rax, imm64`, whose operand contains the call.
        let data = [0x48, 0xb8, 1];
        let call = relative(&[0xe8], GAP + data.len() as u64, TEXT);
        let gap = [&data[..], &call, &[RET; 8]].concat();
        assert_eq!(found(&gap).0, [TEXT]);
    }

    #[test]
    fn a_jump_into_a_function_is_an_indirect_target() {
        // jmp +6, over four bytes, to the third byte of the next function.
        let gap = [0xeb, 6, RET, RET, RET, RET];
        let inside = GAP + gap.len() as u64 + 2;
        assert_eq!(found(&gap), (vec![inside], vec![inside]));
    }

    #[test]
    fn what_would_lead_into_an_instruction_is_no_jump() {
        // ret; text that reads as `jb +1`, `sub [rcx], esp`; mov eax, 1; ret
        let code = [&[RET, b'r', 1, b')', b'!', 0xb8, 1, 0, 0, 0, RET][..], &[0x90; 9]].concat();
        for (distance, expected) in [(3, vec![]), (7, vec![TEXT + 10])] {
            let mut code = code.clone();
            code[2] = distance;
            let mut image = image(ElfType::Dyn, TEXT, &code, &[1, 4, 15]);
            image.functions.remove(1);
            assert_eq!(references(&image, &[]).indirect, expected, "{distance}");
        }
    }

    #[test]
    fn padding_and_jumps_within_the_code_refer_to_nothing() {
        for gap in
            [&[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0][..], &[0x90; 7], &[0xcc; 7], &[0xeb, 1, 0x90, RET], &[]]
        {
            assert_eq!(found(gap), (vec![], vec![]), "{gap:x?}");
        }
    }

    #[test]
    fn absolute_addresses_count_where_the_program_is_not_moved() {
        const BASE: u64 = 0x40_1000;
        // mov edi, BASE
        let gap = [&[0xbf][..], &(BASE as u32).to_le_bytes()].concat();
        for (kind, expected) in [(ElfType::Exec, vec![BASE]), (ElfType::Dyn, vec![])] {
            let mut code = Vec::new();
            let image = with_gap(kind, BASE, &mut code, &gap);
            assert_eq!(references(&image, &[]).taken, expected);
        }
    }

    #[test]
    fn a_large_gap_is_searched_to_its_end() {
        for len in [PIECE as usize - 3, PIECE as usize, PIECE as usize + 3] {
            let mut gap = vec![RET; len];
            gap.extend(relative(&[0xe8], GAP + len as u64, TEXT));
            assert_eq!(found(&gap).0, [TEXT], "{len}");
        }
    }

    #[test]
    fn what_stands_behind_an_undecodable_byte_is_searched() {
        // ret; in the second function: push es, which no 64-bit program has, then a call of the first.
        let code = [&[RET, 0x06][..], &relative(&[0xe8], TEXT + 2, TEXT), &[RET]].concat();
        let mut image = image(ElfType::Dyn, TEXT, &code, &[1, code.len() - 1]);
        image.details_mut().code_pointers.clear();
        assert!(crate::flow::facts::Flow::of(&image, true).is_taken(TEXT));
    }

    /// All calls of a function must be known if it is hooked at its call sites, so one that such code calls
    /// is not.
    #[test]
    fn a_function_called_from_there_is_not_hooked_at_its_call_sites() {
        let call = relative(&[0xe8], GAP, TEXT);
        for (gap, hooked) in [
            (&[0x31, 0xc0, 0x31, 0xc0, RET][..], Some(crate::decide::verdict::Tactic::CallSites)),
            (&call, None),
        ] {
            let mut code = Vec::new();
            let image = with_gap(ElfType::Dyn, TEXT, &mut code, gap);
            assert_eq!(tactics(&plan_of(&image, None))[0], hooked, "{gap:x?}");
        }
    }
}
