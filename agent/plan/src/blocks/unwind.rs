//! What unwinders must know of the copies: their frame descriptions and exception tables, made from the originals'.
//!
//! A description is the same list of rules, at the copy's offsets. An exception table is the same list of ranges and
//! landing pads, in the copy; actions stay as they are, and types that are named relative to their own place are named
//! from the new one. All of it stands behind the copies, with an index like that of an `.eh_frame_hdr`.
//! Sources: LSB core 10.6; Itanium C++ ABI, exception handling tables (as GCC writes them, gcc/except.c).

mod table;

use super::decode::{Part, Steps};
use super::{Copies, Uncounted, Unit};
use gimli::constants::{
    DW_EH_PE_datarel, DW_EH_PE_indirect, DW_EH_PE_omit, DW_EH_PE_pcrel, DW_EH_PE_sdata4, DW_EH_PE_udata4,
};
use gprofinject_image::Image;
use gprofinject_image::frames::encoded::Reader;
use gprofinject_image::frames::unwind::{Common, Description};
use std::borrow::Cow;
use table::Table;

/// DWARF's number of rsp.
const RSP: u16 = 7;
const RELATIVE: u8 = DW_EH_PE_pcrel.0 | DW_EH_PE_sdata4.0;

/// Whether the unit's descriptions and tables can be moved: everything but the places themselves.
pub(super) fn check(image: &Image, steps: &Steps) -> Result<(), Uncounted> {
    for part in &steps.parts {
        for description in image.frames.descriptions(part.lo, part.hi).ok_or(Uncounted::Frames)? {
            let mut out = Program::default();
            out.rules(&description, part, &|_| 0).ok_or(Uncounted::Frames)?;
            if description.common.signal {
                return Err(Uncounted::Frames);
            }
            if description.lsda != 0 {
                let table = Table::read(image, &description).ok_or(Uncounted::Frames)?;
                if table.sites.iter().any(|s| s.pad != 0 && !steps.holds(s.pad)) {
                    return Err(Uncounted::Frames);
                }
            }
        }
    }
    Ok(())
}

/// See [`super::tables`].
pub(super) fn tables(image: &Image, copies: &Copies, base: u64, at: u64) -> Result<Vec<u8>, Vec<usize>> {
    let mut frames = Writer { out: vec![0; 12], at, base, commons: Vec::new(), index: Vec::new() };
    let descriptions: Vec<(usize, Vec<(usize, Description)>)> = copies
        .units
        .iter()
        .enumerate()
        .map(|(u, unit)| {
            let parts = unit.steps.parts.iter().enumerate();
            let all = parts.flat_map(|(p, part)| {
                let found = image.frames.descriptions(part.lo, part.hi).unwrap_or_default();
                found.into_iter().map(move |d| (p, d))
            });
            (u, all.collect())
        })
        .collect();
    let count: usize = descriptions.iter().map(|(_, all)| all.len()).sum();
    // The index comes first, and the exception tables before the descriptions that name them.
    frames.out.resize(12 + 8 * count, 0);
    let mut failed = Vec::new();
    let mut described = Vec::new();
    for (u, all) in &descriptions {
        let unit = &copies.units[*u];
        for (p, description) in all {
            let lsda = match description.lsda {
                0 => Some(0),
                _ => frames.lsda(image, unit, *p, description),
            };
            match lsda {
                Some(lsda) => described.push((*u, *p, description, lsda)),
                None => failed.push(unit.function),
            }
        }
    }
    frames.align();
    let start = frames.out.len() as u32;
    for (u, p, description, lsda) in described {
        if frames.description(image, &copies.units[u], p, description, lsda).is_none() {
            failed.push(copies.units[u].function);
        }
    }
    if !failed.is_empty() {
        return Err(failed);
    }
    Ok(frames.finish(start))
}

/// Call frame instructions for a copy, each with its offset there.
#[derive(Default)]
struct Program<'d> {
    rules: Vec<(u32, Cow<'d, [u8]>)>,
}

impl<'d> Program<'d> {
    fn encode(mut self) -> Vec<u8> {
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

    /// From this offset on the CFA is `cfa` away from the stack pointer.
    fn moved(&mut self, at: u32, cfa: i64) {
        let mut rule = vec![0x0e]; // DW_CFA_def_cfa_offset
        leb(&mut rule, cfa as u64);
        self.rules.push((at, rule.into()));
    }

    /// The rules of a description that hold in a part; `place` maps addresses to offsets. None: something in them is
    /// not known.
    fn rules(&mut self, d: &Description<'d>, part: &Part, place: &dyn Fn(u64) -> u32) -> Option<()> {
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

/// Skips the operands of a call frame instruction.
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

struct Writer {
    out: Vec<u8>,
    /// Address of `out`, and of the copies.
    at: u64,
    base: u64,
    /// Offsets of common entries in their section and here.
    commons: Vec<(usize, u32)>,
    /// Address of each copy that is described, and the offset of its description.
    index: Vec<(u64, u32)>,
}

impl Writer {
    fn here(&self) -> u64 {
        self.at.wrapping_add(self.out.len() as u64)
    }

    fn word(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    /// A word that holds an address, relative to its own place. 0 stays 0.
    fn relative(&mut self, address: u64) -> Option<()> {
        let distance = address.wrapping_sub(self.here()) as i64;
        let distance = if address == 0 { 0 } else { i32::try_from(distance).ok()? };
        self.word(distance as u32);
        Some(())
    }

    fn uleb(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    fn align(&mut self) {
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }

    /// Writes the copy's exception table. Answers with its address.
    fn lsda(&mut self, image: &Image, unit: &Unit, part: usize, d: &Description) -> Option<u64> {
        let table = Table::read(image, d)?;
        let bounds = &unit.steps.parts[part];
        let copy = Place { unit, part };
        let start = copy.of(d.start.max(bounds.lo));
        let mut sites = Vec::new();
        for site in &table.sites {
            let (lo, hi) = (site.start.clamp(bounds.lo, bounds.hi), site.end.clamp(bounds.lo, bounds.hi));
            let (lo, hi) = (copy.of(lo), copy.of(hi));
            let pad = if site.pad == 0 { 0 } else { unit.offset(site.pad)? };
            if hi <= lo && site.start != site.end {
                continue;
            }
            for value in [lo - start, hi - lo, pad] {
                sites.extend_from_slice(&value.to_le_bytes());
            }
            leb(&mut sites, site.action);
        }
        self.align();
        let address = self.here();
        // Landing pads count from the start of the copies.
        self.out.push(RELATIVE);
        self.relative(self.base)?;
        self.out.push(table.encoding.0);
        if table.encoding != DW_EH_PE_omit {
            let mut rest = vec![DW_EH_PE_udata4.0];
            leb(&mut rest, sites.len() as u64);
            let behind = rest.len() + sites.len() + table.actions.len() + table.types.len();
            self.uleb(behind as u64);
        }
        self.out.push(DW_EH_PE_udata4.0);
        self.uleb(sites.len() as u64);
        self.out.extend_from_slice(&sites);
        self.out.extend_from_slice(table.actions);
        let relative = table.encoding.0 & 0x70 == DW_EH_PE_pcrel.0;
        for (n, entry) in table.types.chunks_exact(table.size.max(1)).enumerate() {
            let from = table.types_at + (n * table.size) as u64;
            let moved = from.wrapping_sub(self.here());
            if !relative || entry.iter().all(|&b| b == 0) {
                self.out.extend_from_slice(entry);
                continue;
            }
            match table.size {
                4 => {
                    let old = i64::from(i32::from_le_bytes(entry.try_into().ok()?));
                    let new = i32::try_from(old.wrapping_add(moved as i64)).ok()?;
                    self.out.extend_from_slice(&new.to_le_bytes());
                }
                8 => {
                    let old = u64::from_le_bytes(entry.try_into().ok()?);
                    self.out.extend_from_slice(&old.wrapping_add(moved).to_le_bytes());
                }
                _ => return None,
            }
        }
        self.out.extend_from_slice(table.specifications);
        Some(address)
    }

    fn description(
        &mut self,
        image: &Image,
        unit: &Unit,
        part: usize,
        d: &Description,
        lsda: u64,
    ) -> Option<()> {
        let bounds = &unit.steps.parts[part];
        let copy = Place { unit, part };
        let (lo, hi) = (d.start.max(bounds.lo), d.end.min(bounds.hi));
        let start = copy.of(lo);
        // Behind the last instruction a jump may stand that goes on in the original.
        let end = if hi == bounds.hi { unit.layout.range(part).1 } else { copy.of(hi) };
        if end <= start {
            return Some(());
        }
        let common = self.common(&d.common)?;
        let mut program = Program::default();
        program.rules(d, bounds, &|address| copy.of(address) - start)?;
        for (n, at, by) in unit.layout.moves(&unit.steps) {
            let ip = unit.steps.list[n].ip;
            if let Some((RSP, cfa)) = (lo..hi).contains(&ip).then(|| image.cfa(ip)).flatten() {
                program.moved(at - start, cfa + by);
            }
        }
        let at = self.out.len();
        self.index.push((self.base.wrapping_add(start.into()), at as u32));
        self.word(0);
        self.word((at + 4) as u32 - common);
        self.relative(self.base.wrapping_add(start.into()))?;
        self.word(end - start);
        if d.common.has_lsda {
            self.out.push(4);
            self.relative(lsda)?;
        } else {
            self.out.push(0);
        }
        self.out.extend_from_slice(&program.encode());
        self.close(at);
        Some(())
    }

    /// The common entry, written if it has not been yet. Answers with its offset.
    fn common(&mut self, common: &Common) -> Option<u32> {
        if let Some(&(_, at)) = self.commons.iter().find(|(offset, _)| *offset == common.offset) {
            return Some(at);
        }
        let at = self.out.len();
        self.commons.push((common.offset, at as u32));
        self.word(0);
        self.word(0);
        self.out.push(1);
        self.out.push(b'z');
        if common.personality.is_some() {
            self.out.push(b'P');
        }
        if common.has_lsda {
            self.out.push(b'L');
        }
        self.out.extend_from_slice(b"R\0");
        // Rules are written in units of one byte.
        self.uleb(1);
        self.out.extend_from_slice(common.middle);
        let len = 1 + if common.personality.is_some() { 5 } else { 0 } + u8::from(common.has_lsda);
        self.out.push(len);
        if let Some((encoding, address)) = common.personality {
            self.out.push(encoding & DW_EH_PE_indirect.0 | RELATIVE);
            self.relative(address)?;
        }
        if common.has_lsda {
            self.out.push(RELATIVE);
        }
        self.out.push(RELATIVE);
        self.out.extend_from_slice(common.instructions);
        self.close(at);
        Some(at as u32)
    }

    /// Ends an entry, whose length is known now.
    fn close(&mut self, at: usize) {
        self.align();
        let len = (self.out.len() - at - 4) as u32;
        self.out[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Ends the section, and writes the index; `start` is where the descriptions begin.
    fn finish(mut self, start: u32) -> Vec<u8> {
        self.word(0);
        self.index.sort_unstable();
        let index = std::mem::take(&mut self.index);
        let head = [1, RELATIVE, DW_EH_PE_udata4.0, DW_EH_PE_datarel.0 | DW_EH_PE_sdata4.0];
        self.out[..4].copy_from_slice(&head);
        self.out[4..8].copy_from_slice(&(start - 4).to_le_bytes());
        self.out[8..12].copy_from_slice(&(index.len() as u32).to_le_bytes());
        for (n, (address, description)) in index.into_iter().enumerate() {
            let entry = 12 + 8 * n;
            let distance = address.wrapping_sub(self.at) as u32;
            self.out[entry..entry + 4].copy_from_slice(&distance.to_le_bytes());
            self.out[entry + 4..entry + 8].copy_from_slice(&description.to_le_bytes());
        }
        self.out
    }
}

fn leb(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Where the addresses of a part are in the copy.
struct Place<'a> {
    unit: &'a Unit,
    part: usize,
}

impl Place<'_> {
    /// Offset in the copies; of an address between instructions, the next one's.
    fn of(&self, address: u64) -> u32 {
        let part = &self.unit.steps.parts[self.part];
        let list = &self.unit.steps.list[part.first..part.end];
        let n = list.partition_point(|s| s.ip < address);
        match list.get(n) {
            Some(_) => self.unit.layout.offset(part.first + n),
            None => self.unit.layout.behind(part.end - 1),
        }
    }
}
