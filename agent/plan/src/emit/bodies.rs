//! Unwind tables of relocated instructions. A signal may interrupt the program between any two of them, and a
//! backtrace or a cancellation may begin there.
//!
//! Compilers begin functions with pushes and with room for locals, so the first instructions, which are
//! relocated, are those that move the stack pointer. What each does is taken from the code itself. That is
//! quicker than a search in `.eh_frame`, and works for functions without a frame description too.
//!
//! There is one table for all bodies that need it: an `.eh_frame_hdr` with its index, and the `.eh_frame`.
//! Caves are in it too, because a jump to one function's thunk may overwrite another function's prologue.
//! Sources: LSB core 10.6; DWARF 5, 6.4.2.

use crate::x86::frames::RSP;
use std::ops::Range;

/// The bodies and caves that need a description.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    /// For each body: its start relative to the arena, its length in bytes, and the range of its
    /// call frame instructions in `code`.
    list: Vec<(i32, u32, Range<usize>)>,
    /// The caves: start relative to the arena, and length in bytes.
    caves: Vec<(i32, u32)>,
    /// Call frame instructions.
    code: Vec<u8>,
}

/// The common entry, with augmentation `zR`: code and data in units of 1 and -8; the return address is
/// register 16; addresses are relative words; CFA = rsp + 8, and the return address is at CFA - 8.
const COMMON: [u8; 24] =
    [20, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0x0c, RSP, 8, 0x80 | 16, 1, 0, 0];
/// Bytes of an entry without its instructions: length, common entry, start, length of code, no augmentation.
const ENTRY: usize = 17;
/// Bytes of the `.eh_frame_hdr` without its index.
const HEADER: usize = 12;
/// Bytes of an entry of the index.
const INDEX: usize = 8;

impl Bodies {
    /// Adds a body whose first `gate` bytes precede the relocated instructions. `code` has the call frame
    /// instructions of the relocated instructions.
    pub(crate) fn add(&mut self, start: usize, gate: usize, end: usize, code: &[u8]) {
        let from = self.code.len();
        if gate > 0 {
            self.code.push(0x40 | gate as u8);
        }
        self.code.extend_from_slice(code);
        self.list.push((start as i32, (end - start) as u32, from..self.code.len()));
    }

    /// Adds a jump at this address, relative to the arena. The stack there is that of a function's first
    /// instruction.
    pub(crate) fn cave(&mut self, address: u64, len: u64) {
        if let Ok(at) = i32::try_from(address as i64) {
            self.caves.push((at, len as u32));
        }
    }

    /// Adds the elements of another list.
    pub(crate) fn append(&mut self, other: Bodies) {
        let base = self.code.len();
        let shifted = |code: Range<usize>| code.start + base..code.end + base;
        self.list.extend(other.list.into_iter().map(|(start, len, code)| (start, len, shifted(code))));
        self.code.extend(other.code);
        self.caves.extend(other.caves);
    }

    /// Returns the maximum size in bytes of the table's part for a body with this many bytes of
    /// instructions.
    pub(crate) fn most(relocated: usize) -> usize {
        // A push of one byte takes five bytes; an emulated call takes seven bytes three times; a jump
        // through the agent takes one; and there is padding.
        INDEX + ENTRY + 5 * relocated + 21 + 1 + 3
    }

    /// Returns the size in bytes of the rest of the two tables, with the given number of caves.
    pub(crate) const fn others(caves: usize) -> usize {
        2 * (HEADER + COMMON.len() + 4) + caves * (INDEX + ENTRY + 3) + 8
    }

    /// Returns the table of the bodies for the arena offset `at`, which must be a multiple of 4.
    pub(crate) fn table(&mut self, at: u32) -> Vec<u8> {
        self.list.sort_unstable_by_key(|&(start, ..)| start);
        table(at, &self.list, &self.code, &mut Vec::new())
    }

    /// Returns the table of the caves for the arena offset `at`, which must be a multiple of 4, and the arena offsets of
    /// its words that hold distances to the module's text. The caves have a table of their own, because it depends on where
    /// the arena is, seen from the text, which of them come before the bodies.
    pub(crate) fn caves(&mut self, at: u32) -> (Vec<u8>, Vec<u32>) {
        // Two branches may share a cave.
        self.caves.sort_unstable();
        self.caves.dedup_by_key(|&mut (start, _)| start);
        let list: Vec<_> = self.caves.iter().map(|&(start, len)| (start, len, 0..0)).collect();
        let mut to_text = Vec::new();
        let table = table(at, &list, &[], &mut to_text);
        (table, to_text)
    }
}

/// Returns the table of these bodies or caves, which are sorted, for the arena offset `at`. The arena offsets of the words
/// that hold distances to them are added to `holes`.
fn table(at: u32, list: &[(i32, u32, Range<usize>)], code: &[u8], holes: &mut Vec<u32>) -> Vec<u8> {
    let common = HEADER + INDEX * list.len();
    let mut out = Vec::with_capacity(common + COMMON.len() + list.len() * 28 + code.len());
    // The version and the encodings: the address of the frames as a relative word, the number of
    // entries as a word, and an index of words relative to this table.
    out.extend_from_slice(&[1, 0x1b, 0x03, 0x3b]);
    word(&mut out, common as u32 - 4);
    word(&mut out, list.len() as u32);
    out.resize(common, 0);
    out.extend_from_slice(&COMMON);
    for (n, (start, len, instructions)) in list.iter().enumerate() {
        let here = out.len();
        let index = HEADER + INDEX * n;
        let start = (*start as u32).wrapping_sub(at);
        out[index..index + 4].copy_from_slice(&start.to_le_bytes());
        out[index + 4..index + 8].copy_from_slice(&(here as u32).to_le_bytes());
        let instructions = &code[instructions.clone()];
        word(&mut out, ((ENTRY + instructions.len()).next_multiple_of(4) - 4) as u32);
        word(&mut out, (here + 4 - common) as u32);
        holes.extend([at + index as u32, at + out.len() as u32]);
        word(&mut out, start.wrapping_sub(here as u32 + 8));
        word(&mut out, *len);
        out.push(0);
        out.extend_from_slice(instructions);
        out.resize(out.len().next_multiple_of(4), 0); // DW_CFA_nop
    }
    word(&mut out, 0);
    out
}

/// Appends a u32.
fn word(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::x86::relocate::call::Call;
    use crate::x86::relocate::instructions::relocate;
    use gimli::read::{
        BaseAddresses, CfaRule, EhFrame, EhFrameHdr, RegisterRule, UnwindContext, UnwindSection,
    };
    use gimli::{LittleEndian, X86_64};

    const ARENA: u64 = 0x5555_0000;
    const AT: u32 = 0x4000;

    /// Returns the CFA register and offset, and the rule for rbp, at each offset of a body that is made of
    /// `bytes`.
    fn rows(bytes: &[u8], gate: usize, form: Call) -> Vec<(u16, i64, Option<i64>)> {
        let start = 0x100_u32;
        let moved =
            relocate(bytes, 0x1000, ARENA + u64::from(start) + gate as u64, 0x1000, form, &|_| None).unwrap();
        let mut bodies = Bodies::default();
        bodies.add(0x40, 0, 0x48, &[0x41, 0x0e, 16]);
        bodies.cave(0x9000, 5);
        bodies.add(start as usize, gate, start as usize + gate + moved.bytes.len(), &moved.frames);
        let table = bodies.table(AT);
        let (caves, to_text) = bodies.caves(AT + 0x1000);
        assert!(table.len() + caves.len() <= Bodies::others(1) + Bodies::most(1) + Bodies::most(bytes.len()));
        describes_the_cave(&caves, &to_text);
        let at = ARENA + u64::from(AT);
        let bases = BaseAddresses::default().set_eh_frame_hdr(at);
        let header = EhFrameHdr::new(&table, LittleEndian).parse(&bases, 8).unwrap();
        let frames_at = header.eh_frame_ptr().pointer() - at;
        let bases = bases.set_eh_frame(at + frames_at);
        let frames = EhFrame::new(&table[frames_at as usize..], LittleEndian);
        let index = header.table().unwrap();
        let mut context = UnwindContext::new();
        let cie = |section: &EhFrame<_>, bases: &_, offset| section.cie_from_offset(bases, offset);
        (0..(gate + moved.bytes.len()) as u64)
            .map(|offset| {
                let pc = ARENA + u64::from(start) + offset;
                let fde = index.fde_for_address(&frames, &bases, pc, cie).unwrap();
                let row = fde.unwind_info_for_address(&frames, &bases, &mut context, pc).unwrap();
                assert_eq!(row.register(X86_64::RA), Some(RegisterRule::Offset(-8)));
                let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { panic!() };
                let rbp = match row.register(X86_64::RBP) {
                    Some(RegisterRule::Offset(at)) => Some(at),
                    _ => None,
                };
                (register.0, offset, rbp)
            })
            .collect()
    }

    /// Checks the table of one cave, at the arena offset 0x9000, also after the arena has moved. `to_text` are the words that
    /// then change.
    fn describes_the_cave(table: &[u8], to_text: &[u32]) {
        const MOVED: u64 = 0x123_4000;
        for moved in [0, MOVED] {
            let mut table = table.to_vec();
            for &word in to_text {
                let word = (word - AT - 0x1000) as usize;
                let distance = u32::from_le_bytes(*table[word..].first_chunk().unwrap());
                table[word..word + 4].copy_from_slice(&distance.wrapping_sub(moved as u32).to_le_bytes());
            }
            let at = ARENA + moved + u64::from(AT) + 0x1000;
            let bases = BaseAddresses::default().set_eh_frame_hdr(at);
            let header = EhFrameHdr::new(&table, LittleEndian).parse(&bases, 8).unwrap();
            let frames_at = header.eh_frame_ptr().pointer() - at;
            let bases = bases.set_eh_frame(at + frames_at);
            let frames = EhFrame::new(&table[frames_at as usize..], LittleEndian);
            let cie = |section: &EhFrame<_>, bases: &_, offset| section.cie_from_offset(bases, offset);
            let index = header.table().unwrap();
            let cave = index.fde_for_address(&frames, &bases, ARENA + 0x9004, cie).unwrap();
            assert_eq!((cave.initial_address(), cave.len()), (ARENA + 0x9000, 5));
        }
    }

    #[test]
    fn pushes_and_room() {
        // push rbp; mov rbp,rsp; push r12; sub rsp,0x400
        let rows =
            rows(&[0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x48, 0x81, 0xec, 0, 4, 0, 0], 0, Call::Emulated);
        assert_eq!(rows[0], (7, 8, None));
        assert_eq!((rows[1], rows[4], rows[5]), ((7, 16, Some(-16)), (7, 16, Some(-16)), (7, 16, Some(-16))));
        assert_eq!((rows[6], rows[12]), ((7, 24, Some(-16)), (7, 24, Some(-16))));
        assert_eq!(rows[13..], [(7, 24 + 0x400, Some(-16)); 5], "the jump to the rest");
    }

    #[test]
    fn an_aligned_stack_is_described_by_another_register() {
        // lea r10,[rsp+8]; and rsp,-32; push [r10-8]
        let code = [0x4c, 0x8d, 0x54, 0x24, 8, 0x48, 0x83, 0xe4, 0xe0, 0x41, 0xff, 0x72, 0xf8];
        let rows = rows(&code, 0, Call::Emulated);
        assert_eq!((rows[0], rows[8]), ((7, 8, None), (7, 8, None)));
        assert_eq!(rows[9..], [(10, 0, None); 9]);
    }

    #[test]
    fn a_call_behind_a_jump_through_the_agent() {
        // sub rsp,8; call 0x2000
        let code = [0x48, 0x83, 0xec, 8, 0xe8, 0xf7, 0x0f, 0, 0];
        let rows = rows(&code, 20, Call::Emulated);
        assert_eq!((rows[0], rows[23]), ((7, 8, None), (7, 8, None)));
        // call; lea; push; jmp
        let depths = [24, 29, 34, 40].map(|at| rows[at].1);
        assert_eq!(depths, [16, 24, 16, 24]);
        assert_eq!([28, 33, 39].map(|at| rows[at].1), [16, 24, 16]);
    }

    #[test]
    fn a_call_in_its_place() {
        // sub rsp,8; call 0x2000
        let code = [0x48, 0x83, 0xec, 8, 0xe8, 0xf7, 0x0f, 0, 0];
        let rows = rows(&code, 0, Call::InPlace);
        assert_eq!((rows[0], rows[3]), ((7, 8, None), (7, 8, None)));
        // lea; jmp; call; lea; push; jmp
        let depths = [4, 11, 16, 21, 26, 32].map(|at| rows[at].1);
        assert_eq!(depths, [16, 16, 16, 24, 16, 24]);
    }
}
