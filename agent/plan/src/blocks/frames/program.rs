//! Call frame instructions: read from a description of the original code, and written for the copy.

use crate::blocks::steps::Part;
use crate::x86::frames::leb128;
use gprofinject_image::frames::encoded::Reader;
use gprofinject_image::frames::unwind::Description;
use std::borrow::Cow;

/// Call frame instructions for a copy.
#[derive(Default)]
pub(crate) struct Program<'d> {
    /// Each instruction, with its offset in the copy.
    rules: Vec<(u32, Cow<'d, [u8]>)>,
}

impl<'d> Program<'d> {
    /// Returns the instructions with the advances between them.
    pub(crate) fn encode(mut self) -> Vec<u8> {
        self.rules.sort_by_key(|(offset, _)| *offset);
        let mut out = Vec::new();
        let mut at = 0;
        for (offset, rule) in &self.rules {
            let delta = offset - at;
            match delta {
                0 => {}
                1..64 => out.push(0x40 | delta as u8), // DW_CFA_advance_loc
                64..0x1_0000 => {
                    out.push(0x03); // DW_CFA_advance_loc2
                    out.extend_from_slice(&(delta as u16).to_le_bytes());
                }
                _ => {
                    out.push(0x04); // DW_CFA_advance_loc4
                    out.extend_from_slice(&delta.to_le_bytes());
                }
            }
            out.extend_from_slice(rule);
            at = *offset;
        }
        out
    }

    /// Records that the CFA is `cfa` bytes above the stack pointer from this offset on.
    pub(crate) fn moved(&mut self, at: u32, cfa: i64) {
        let mut rule = vec![0x0e]; // DW_CFA_def_cfa_offset
        leb128(&mut rule, cfa as u64);
        self.rules.push((at, rule.into()));
    }

    /// Adds the rules of a description that apply to a part. `place` returns the offset in the copy for an
    /// address. Returns `None` if the description has an unknown instruction.
    pub(crate) fn rules(
        &mut self,
        d: &Description<'d>,
        part: &Part,
        place: &dyn Fn(u64) -> u32,
    ) -> Option<()> {
        let mut reader = Reader { bytes: d.instructions, address: 0, function: 0 };
        let mut location = d.start;
        while !reader.bytes.is_empty() {
            let before = reader.bytes;
            let opcode = reader.byte()?;
            let delta = match (opcode >> 6, opcode) {
                (1, _) => Some(u64::from(opcode & 0x3f)),
                (_, 0x02) => Some(u64::from(reader.byte()?)),
                (_, 0x03) => Some(u64::from(u16::from_le_bytes(reader.take()?))),
                (_, 0x04) => Some(u64::from(u32::from_le_bytes(reader.take()?))),
                _ => None,
            };
            if let Some(delta) = delta {
                location = location.wrapping_add(delta.wrapping_mul(d.common.code_alignment));
                if location >= part.hi {
                    break;
                }
                continue;
            }
            operands(opcode, &mut reader)?;
            if opcode != 0 {
                let at = if location > part.lo.max(d.start) { place(location) } else { 0 };
                self.rules.push((at, before[..before.len() - reader.bytes.len()].into()));
            }
        }
        Some(())
    }
}

/// Skips the operands of a call frame instruction. Returns `None` if the instruction is unknown.
fn operands(opcode: u8, reader: &mut Reader) -> Option<()> {
    let block = |reader: &mut Reader| {
        for _ in 0..reader.uleb()? {
            reader.byte()?;
        }
        Some(())
    };
    match (opcode >> 6, opcode) {
        (2, _) => _ = reader.uleb()?,
        (3, _) => {}
        // nop, remember_state, restore_state
        (0, 0x00 | 0x0a | 0x0b) => {}
        // restore_extended, undefined, same_value, def_cfa_register, def_cfa_offset, GNU_args_size
        (0, 0x06..=0x08 | 0x0d | 0x0e | 0x2e) => _ = reader.uleb()?,
        // offset_extended, register, def_cfa, val_offset
        (0, 0x05 | 0x09 | 0x0c | 0x14) => _ = (reader.uleb()?, reader.uleb()?),
        // offset_extended_sf, def_cfa_sf, val_offset_sf
        (0, 0x11 | 0x12 | 0x15) => _ = (reader.uleb()?, reader.sleb()?),
        // def_cfa_offset_sf
        (0, 0x13) => _ = reader.sleb()?,
        // def_cfa_expression
        (0, 0x0f) => block(reader)?,
        // expression, val_expression
        (0, 0x10 | 0x16) => {
            reader.uleb()?;
            block(reader)?;
        }
        _ => return None,
    }
    Some(())
}
