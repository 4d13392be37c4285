//! Unwind tables of thunks, with which an unwinder gets past a thunk.
//! The return slot of a hooked frame contains its thunk's exit label, so an unwinder takes the thunk for
//! the function's caller. The agent gives it one of these tables, depending on the place in the thunk
//! ([`Frame`]). Each table describes the whole arena. The important one is [`Frame::Left`]:
//!
//! ```text
//! CFA = rsp + 4
//! rsp = CFA - 4
//! rip = return address in the cell of the frame whose CFA is rsp  (a DWARF expression)
//! ```
//!
//! The caller's rsp is the callee's, so the true CFA is that of the frame before. But libgcc distinguishes
//! frames by their CFAs when it looks for the handler's frame a second time (`uw_identify_context`), and
//! aborts if it reaches the thunk first. No other frame's CFA is an odd multiple of 4.
//!
//! Sources: LSB core 10.6 (`.eh_frame`, `.eh_frame_hdr`); DWARF 5, 6.4; libgcc/unwind.inc, unwind-dw2.c.

use gimli::constants::{
    DW_EH_PE_datarel, DW_EH_PE_pcrel, DW_EH_PE_sdata4, DW_EH_PE_udata4, DW_OP_and, DW_OP_dup, DW_OP_minus,
    DW_OP_plus, DW_OP_shl, DW_OP_shr, DW_OP_swap, DwEhPe,
};
use gimli::write::{
    Address, CallFrameInstruction, CommonInformationEntry, EhFrame, EndianVec, Expression,
    FrameDescriptionEntry, FrameTable,
};
use gimli::{Encoding, Format, LittleEndian, X86_64};
use gprofinject_abi::plan::{Cell, Frame, WINDOW};
use std::mem::offset_of;

/// Bytes of the padded `.eh_frame_hdr` with one entry, with which each table begins. The `.eh_frame`
/// follows.
const HEADER: usize = 24;
/// Distance between a thunk's CFA and the function's, in bytes.
const APART: u32 = 4;
/// Addresses are relative words.
const RELATIVE: DwEhPe = DwEhPe(DW_EH_PE_pcrel.0 | DW_EH_PE_sdata4.0);

/// The unwind tables of an arena's thunks.
pub(crate) struct Tables {
    /// All tables.
    pub(crate) bytes: Vec<u8>,
    /// Offset of each table in `bytes`.
    pub(crate) starts: [(Frame, u32); 4],
    /// Offsets in `bytes` of u64 words that hold addresses.
    pub(crate) addresses: Vec<u32>,
}

impl Tables {
    /// Makes the tables for the offset `at` in an arena of `len` bytes. `shadows` is the address of the
    /// word that contains the address of the table of shadows. The length of the tables does not depend on
    /// the arguments. Returns `None` if the arena is too large for a description.
    pub(crate) fn new(len: u32, at: u32, shadows: u64) -> Option<Tables> {
        let starts = [Frame::Left, Frame::Called, Frame::Popped, Frame::LeftPlain].map(|frame| (frame, 0));
        let mut tables = Tables { bytes: Vec::new(), starts, addresses: Vec::new() };
        for (frame, at_start) in starts.iter().map(|s| s.0).zip(0..) {
            let start = tables.bytes.len() as u32;
            tables.starts[at_start].1 = start;
            let (code, description) = entries(frame, len, at + start + HEADER as u32, shadows)?;
            let header = header(at + start, description);
            tables.bytes.extend_from_slice(&header);
            if matches!(frame, Frame::Left | Frame::LeftPlain) {
                let word = code.windows(8).position(|w| w == shadows.to_le_bytes())?;
                tables.addresses.push(tables.bytes.len() as u32 + word as u32);
            }
            tables.bytes.extend_from_slice(&code);
            tables.bytes.resize(tables.bytes.len().next_multiple_of(8), 0);
        }
        Some(tables)
    }
}

/// Makes an `.eh_frame_hdr` for the arena offset `at`. The `.eh_frame` follows it; `description` is the
/// offset of the arena's description in the `.eh_frame`.
fn header(at: u32, description: u32) -> [u8; HEADER] {
    const VERSION: u8 = 1;
    let encodings = [VERSION, RELATIVE.0, DW_EH_PE_udata4.0, DW_EH_PE_datarel.0 | DW_EH_PE_sdata4.0];
    let words = [
        HEADER as u32 - 4, // the frames, from here
        1,                 // entries
        at.wrapping_neg(), // where the arena begins, from the header
        HEADER as u32 + description,
    ];
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&encodings);
    for (to, word) in header[4..].chunks_exact_mut(4).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    header
}

/// Makes the `.eh_frame` for the arena offset `at`, with its end mark. Returns it with the offset of the
/// description.
fn entries(frame: Frame, len: u32, at: u32, shadows: u64) -> Option<(Vec<u8>, u32)> {
    let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 1 };
    let mut common = CommonInformationEntry::new(encoding, 1, -(APART as i8), X86_64::RA);
    common.fde_address_encoding = RELATIVE;
    for rule in rules(frame, shadows) {
        common.add_instruction(rule);
    }
    let mut frames = FrameTable::default();
    let common = frames.add_cie(common);
    // This address is relative to the start of these bytes; the encoding makes it relative to its own place.
    let arena = Address::Constant(u64::from(at).wrapping_neg());
    frames.add_fde(common, FrameDescriptionEntry::new(arena, len));
    let mut out = EhFrame(EndianVec::new(LittleEndian));
    frames.write_eh_frame(&mut out).ok()?;
    let mut bytes = out.0.into_vec();
    let description = u32::from_le_bytes(bytes.first_chunk().copied()?) + 4;
    bytes.extend_from_slice(&[0; 4]);
    Some((bytes, description))
}

/// Returns the rules of a table.
fn rules(frame: Frame, shadows: u64) -> Vec<CallFrameInstruction> {
    use CallFrameInstruction::{Cfa, Expression as AtExpression, Offset, ValExpression};
    match frame {
        Frame::Left => vec![
            Cfa(X86_64::RSP, APART as i32),
            ValExpression(X86_64::RSP, stack_pointer(APART)),
            ValExpression(X86_64::RA, return_address(shadows, APART)),
        ],
        Frame::LeftPlain => {
            // nongnu.org's libunwind changes the instruction pointer of a frame in the place where the unwinder has found it,
            // so the rule names the place, which is the cell. The frame is left then.
            vec![Cfa(X86_64::RSP, 0), AtExpression(X86_64::RA, place_of_return_address(shadows, 0))]
        }
        // These are the initial rules. `emit/bodies.rs` and `blocks/tables.rs` make the others.
        Frame::Called | Frame::Moved | Frame::Copied | Frame::Cave => {
            vec![Cfa(X86_64::RSP, 8), Offset(X86_64::RA, -8)]
        }
        Frame::Popped => vec![Cfa(X86_64::RSP, 0), Offset(X86_64::RA, -8)],
    }
}

/// The expression `cfa - apart`. The rule DW_CFA_val_offset would say the same, but LLVM's unwinder does not implement it.
fn stack_pointer(apart: u32) -> Expression {
    let mut e = Expression::new();
    e.op_constu(apart.into());
    e.op(DW_OP_minus);
    e
}

/// The expression `cfa -= apart; *(*(shadows + cfa / WINDOW * 8) + cfa % WINDOW * 2)`. The unwinder pushes
/// the CFA before it evaluates the expression.
fn return_address(shadows: u64, apart: u32) -> Expression {
    let mut e = place_of_return_address(shadows, apart);
    e.op_deref();
    e
}

/// The same expression without the last access: the address of the cell.
fn place_of_return_address(shadows: u64, apart: u32) -> Expression {
    const { assert!(offset_of!(Cell, return_address) == 0 && size_of::<Cell>() == 16) };
    let mut e = Expression::new();
    e.op_constu(apart.into());
    e.op(DW_OP_minus);
    e.op(DW_OP_dup);
    e.op_constu(WINDOW.trailing_zeros().into());
    e.op(DW_OP_shr);
    e.op_constu(3);
    e.op(DW_OP_shl);
    e.op_addr(Address::Constant(shadows));
    e.op_deref();
    e.op(DW_OP_plus);
    e.op_deref();
    e.op(DW_OP_swap);
    e.op_constu(WINDOW - 1);
    e.op(DW_OP_and);
    e.op_constu(1);
    e.op(DW_OP_shl);
    e.op(DW_OP_plus);
    e
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use gimli::read::{
        BaseAddresses, CfaRule, EhFrameHdr, EvaluationResult, RegisterRule, UnwindContext, UnwindSection,
    };
    use gimli::{EndianSlice, Value};

    const ARENA: u64 = 0x5555_0000;
    const LEN: u32 = 0x10_0000;
    const AT: u32 = 0x80;
    const SHADOWS: u64 = ARENA + 0x28;

    /// Returns the rules that another reader, gimli, finds for an address in the arena.
    fn read(frame: Frame, address: u64) -> (CfaRule<usize>, RegisterRule<usize>, RegisterRule<usize>) {
        let tables = Tables::new(LEN, AT, SHADOWS).unwrap();
        let start = tables.starts.iter().find(|s| s.0 == frame).unwrap().1 as usize;
        let header_at = ARENA + u64::from(AT) + start as u64;
        let frames = &tables.bytes[start + HEADER..];
        let bases =
            BaseAddresses::default().set_eh_frame_hdr(header_at).set_eh_frame(header_at + HEADER as u64);
        let header = EhFrameHdr::new(&tables.bytes[start..], LittleEndian).parse(&bases, 8).unwrap();
        let eh_frame = gimli::read::EhFrame::new(frames, LittleEndian);
        let table = header.table().unwrap();
        let cie =
            |section: &gimli::read::EhFrame<_>, bases: &_, offset| section.cie_from_offset(bases, offset);
        let fde = table.fde_for_address(&eh_frame, &bases, address, cie).unwrap();
        assert_eq!((fde.initial_address(), fde.len()), (ARENA, LEN.into()));
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&eh_frame, &bases, &mut context, address).unwrap();
        let rule = |register| row.register(register).unwrap_or(RegisterRule::SameValue);
        (row.cfa().clone(), rule(X86_64::RA), rule(X86_64::RSP))
    }

    #[test]
    fn rules_are_found_at_every_address_of_the_arena() {
        for address in [ARENA, ARENA + 0x1234, ARENA + u64::from(LEN) - 1] {
            let cfa = |offset| CfaRule::RegisterAndOffset { register: X86_64::RSP, offset };
            let (called, ra, _) = read(Frame::Called, address);
            assert_eq!((called, ra), (cfa(8), RegisterRule::Offset(-8)));
            let (popped, ra, _) = read(Frame::Popped, address);
            assert_eq!((popped, ra), (cfa(0), RegisterRule::Offset(-8)));
            let (left, ra, rsp) = read(Frame::Left, address);
            assert_eq!(left, cfa(4));
            assert!(matches!(rsp, RegisterRule::ValExpression(_)));
            assert!(matches!(ra, RegisterRule::ValExpression(_)));
            let (plain, ra, rsp) = read(Frame::LeftPlain, address);
            assert_eq!((plain, rsp), (cfa(0), RegisterRule::SameValue));
            assert!(matches!(ra, RegisterRule::Expression(_)));
        }
    }

    #[test]
    fn the_expression_finds_the_cell() {
        let tables = Tables::new(LEN, AT, SHADOWS).unwrap();
        let (code, _) = entries(Frame::Left, LEN, AT, SHADOWS).unwrap();
        // The expression ends the common entry: find it by its first operations (lit4, minus, dup).
        let start = code.windows(3).position(|w| w == [0x34, 0x1c, 0x12]).unwrap();
        let len = code[start - 1] as usize;
        let bytes = EndianSlice::new(&code[start..start + len], LittleEndian);
        let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 1 };
        let mut evaluation = gimli::read::Expression(bytes).evaluation(encoding);
        let cfa = 0x7ffd_1234_5678_u64;
        evaluation.set_initial_value(cfa + 4);
        let mut asked = Vec::new();
        // Memory: the word at SHADOWS holds 0x1000, the table's entry 0x9000_0000, the cell 0x40_1234.
        let answers = [0x1000, 0x9000_0000, 0x40_1234];
        let mut result = evaluation.evaluate().unwrap();
        while result != EvaluationResult::Complete {
            result = match result {
                EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                    asked.push(address);
                    evaluation.resume_with_memory(Value::Generic(answers[asked.len() - 1])).unwrap()
                }
                EvaluationResult::RequiresRelocatedAddress(address) => {
                    evaluation.resume_with_relocated_address(address).unwrap()
                }
                other => panic!("{other:?}"),
            };
        }
        let cell = 0x9000_0000 + cfa % WINDOW * 2;
        assert_eq!(asked, [SHADOWS, 0x1000 + cfa / WINDOW * 8, cell]);
        assert_eq!(evaluation.value_result(), Some(Value::Generic(0x40_1234)));
        assert_eq!(tables.addresses.len(), 2);
    }
}
