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
//! The return address of an interned frame ([`gprofinject_abi::plan::Interned`]) is that of the label in its return slot. While
//! the cell is that of such a frame, the contents of the standard frame's cell are aside.
//!
//! The caller's rsp is the callee's, so the true CFA is that of the frame before. But libgcc distinguishes
//! frames by their CFAs when it looks for the handler's frame a second time (`uw_identify_context`), and
//! aborts if it reaches the thunk first. No other frame's CFA is an odd multiple of 4.
//!
//! Sources: LSB core 10.6 (`.eh_frame`, `.eh_frame_hdr`); DWARF 5, 6.4; libgcc/unwind.inc, unwind-dw2.c.

use gimli::constants::{
    DW_EH_PE_datarel, DW_EH_PE_pcrel, DW_EH_PE_sdata4, DW_EH_PE_udata4, DW_OP_and, DW_OP_dup, DW_OP_minus,
    DW_OP_plus, DW_OP_shl, DW_OP_shr, DW_OP_swap, DW_OP_xor, DwEhPe,
};
use gimli::write::{
    Address, CallFrameInstruction, CommonInformationEntry, EhFrame, EndianVec, Expression,
    FrameDescriptionEntry, FrameTable,
};
use gimli::{Encoding, Format, LittleEndian, X86_64};
use gprofinject_abi::plan::{
    ASIDE, ArenaHeader, Cell, FREE, Frame, INTERNED, Interned, LABEL_LEN, LABELS_AT, RETURNING, SHADOWS,
    WINDOW,
};
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
    pub(crate) starts: [(Frame, u32); 6],
    /// Offsets in `bytes` of u64 words that hold addresses.
    pub(crate) addresses: Vec<u32>,
}

impl Tables {
    /// Makes the tables for the offset `at` in an arena of `len` bytes. `shadows` is the address of the
    /// word that contains the address of the table of shadows. The length of the tables does not depend on
    /// the arguments. Returns `None` if the arena is too large for a description.
    pub(crate) fn new(len: u32, at: u32, shadows: u64) -> Option<Tables> {
        use Frame::{Called, Interned, InternedPlain, Left, LeftPlain, Popped};
        let starts = [Left, Called, Popped, LeftPlain, Interned, InternedPlain].map(|frame| (frame, 0));
        let mut tables = Tables { bytes: Vec::new(), starts, addresses: Vec::new() };
        for (frame, at_start) in starts.iter().map(|s| s.0).zip(0..) {
            let start = tables.bytes.len() as u32;
            tables.starts[at_start].1 = start;
            let (code, description) = entries(frame, len, at + start + HEADER as u32, shadows)?;
            let header = header(at + start, description);
            tables.bytes.extend_from_slice(&header);
            let places = code.windows(8).enumerate().filter(|(_, w)| *w == shadows.to_le_bytes());
            let words = if matches!(frame, Called | Popped) { 0 } else { usize::MAX };
            let from = tables.bytes.len() as u32;
            tables.addresses.extend(places.take(words).map(|(word, _)| from + word as u32));
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
        Frame::Interned => vec![
            Cfa(X86_64::RSP, APART as i32),
            ValExpression(X86_64::RSP, stack_pointer(APART)),
            ValExpression(X86_64::RA, interned(shadows, APART)),
        ],
        Frame::InternedPlain => {
            vec![Cfa(X86_64::RSP, 0), ValExpression(X86_64::RA, interned(shadows, 0))]
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

/// The expression `cfa -= apart; cell = *(*shadows + cfa / WINDOW * 8) + cfa % WINDOW * 2;
/// state = *(u8 *)(cell + 15); *(cell + ((state >> 1 ^ 0x40) & state & 0x40) * (ASIDE / 0x40))`: if the state is
/// [`INTERNED`](gprofinject_abi::plan::INTERNED), the word is read aside. The unwinder pushes the CFA before it evaluates the
/// expression.
fn return_address(shadows: u64, apart: u32) -> Expression {
    let mut e = place_of_return_address(shadows, apart);
    e.op_deref();
    e
}

/// The same expression without the last access: the address of the cell, or of what is aside.
fn place_of_return_address(shadows: u64, apart: u32) -> Expression {
    const BIT: u32 = INTERNED >> 24;
    const {
        assert!(offset_of!(Cell, return_address) == 0 && size_of::<Cell>() == 16);
        assert!(BIT == 0x40 && FREE >> 24 == 0xc0 && RETURNING >> 24 == 0x80);
        assert!(ASIDE.is_power_of_two());
    }
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
    e.op(DW_OP_dup);
    e.op_plus_uconst(offset_of!(Cell, link) as u64 + 3);
    e.op_deref_size(1);
    e.op(DW_OP_dup);
    e.op_constu(1);
    e.op(DW_OP_shr);
    e.op_constu(BIT.into());
    e.op(DW_OP_xor);
    e.op(DW_OP_and);
    e.op_constu(BIT.into());
    e.op(DW_OP_and);
    e.op_constu((ASIDE / u64::from(BIT)).trailing_zeros().into());
    e.op(DW_OP_shl);
    e.op(DW_OP_plus);
    e
}

/// The expression `label = *(cfa - apart - 8); *(*shadows + SHADOWS + (label - labels) / LABEL_LEN * sizeof (Interned))`. The
/// labels are at a constant distance from the word `shadows`.
fn interned(shadows: u64, apart: u32) -> Expression {
    const DISTANCE: u64 = (LABELS_AT - offset_of!(ArenaHeader, shadows)) as u64;
    const { assert!(size_of::<Interned>() == 2 * LABEL_LEN && offset_of!(Interned, return_address) == 0) };
    let mut e = Expression::new();
    e.op_constu(u64::from(apart) + 8);
    e.op(DW_OP_minus);
    e.op_deref();
    // While the label's call is in progress, the slot contains the address behind it.
    e.op_consts(-(LABEL_LEN as i64));
    e.op(DW_OP_and);
    e.op_addr(Address::Constant(shadows));
    e.op_plus_uconst(DISTANCE);
    e.op(DW_OP_minus);
    e.op_constu(1);
    e.op(DW_OP_shl);
    e.op_addr(Address::Constant(shadows));
    e.op_deref();
    e.op_plus_uconst(SHADOWS);
    e.op(DW_OP_plus);
    e.op_deref();
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
        let cfa = 0x7ffd_1234_5678_u64;
        let cell = 0x9000_0000 + cfa % WINDOW * 2;
        // Memory: the word at SHADOWS holds 0x1000, the table's entry 0x9000_0000, the cell its state and 0x40_1234.
        for (state, at) in [(0, cell), (0x40, cell + ASIDE), (0x41, cell + ASIDE), (0x80, cell), (0xc0, cell)]
        {
            let answers = [0x1000, 0x9000_0000, state, 0x40_1234];
            let asked = evaluate(bytes, cfa + 4, &answers);
            assert_eq!(asked, [SHADOWS, 0x1000 + cfa / WINDOW * 8, cell + 15, at]);
        }
        assert_eq!(tables.addresses.len(), 6);
    }

    #[test]
    fn the_expression_finds_the_label() {
        let (code, _) = entries(Frame::Interned, LEN, AT, SHADOWS).unwrap();
        // lit12, minus, deref
        let start = code.windows(3).position(|w| w == [0x3c, 0x1c, 0x06]).unwrap();
        let bytes = EndianSlice::new(&code[start..start + code[start - 1] as usize], LittleEndian);
        let cfa = 0x7ffd_1234_5678_u64;
        for behind in [0, 6] {
            let label = ARENA + LABELS_AT as u64 + 5 * LABEL_LEN as u64 + behind;
            let asked = evaluate(bytes, cfa + 4, &[label, 0x1000, 0x40_1234]);
            assert_eq!(asked, [cfa - 8, SHADOWS, 0x1000 + gprofinject_abi::plan::SHADOWS + 5 * 16]);
        }
    }

    /// Evaluates an expression. The words that it reads have the values `answers`, of which the last one is the result.
    /// Returns the addresses of the words.
    fn evaluate(bytes: EndianSlice<LittleEndian>, initial: u64, answers: &[u64]) -> Vec<u64> {
        let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 1 };
        let mut evaluation = gimli::read::Expression(bytes).evaluation(encoding);
        evaluation.set_initial_value(initial);
        let mut asked = Vec::new();
        let mut result = evaluation.evaluate().unwrap();
        while result != EvaluationResult::Complete {
            result = match result {
                EvaluationResult::RequiresMemory { address, .. } => {
                    asked.push(address);
                    evaluation.resume_with_memory(Value::Generic(answers[asked.len() - 1])).unwrap()
                }
                EvaluationResult::RequiresRelocatedAddress(address) => {
                    evaluation.resume_with_relocated_address(address).unwrap()
                }
                other => panic!("{other:?}"),
            };
        }
        assert_eq!(evaluation.value_result(), answers.last().map(|&word| Value::Generic(word)));
        asked
    }
}
