//! Frame descriptions and exception tables for the copies, made from those of the originals. Unwinders need
//! them.
//!
//! A frame description is the same list of rules, at the offsets of the copy. An exception table is the same
//! list of ranges and landing pads, in the copy. Its actions do not change; types that are encoded relative
//! to their own place are encoded for the new place. All of these tables follow the copies, with an index
//! like that of an `.eh_frame_hdr`. Sources: LSB core 10.6; Itanium C++ ABI, exception handling tables (as
//! GCC writes them, gcc/except.c).

use crate::blocks::code::Site;
use crate::blocks::copies::Copies;
use crate::blocks::frames::program::Program;
use crate::blocks::unit::Unit;
use crate::x86::frames::leb128;
use gimli::constants::{
    DW_EH_PE_datarel, DW_EH_PE_indirect, DW_EH_PE_omit, DW_EH_PE_pcrel, DW_EH_PE_sdata4, DW_EH_PE_udata4,
};
use gprofinject_image::Image;
use gprofinject_image::frames::unwind::{Common, Description};

/// The DWARF register number of rsp.
const RSP: u16 = 7;
/// The encoding of addresses: as relative 32-bit words.
const RELATIVE: u8 = DW_EH_PE_pcrel.0 | DW_EH_PE_sdata4.0;

/// The tables of all copies.
pub(crate) struct Tables {
    /// Their bytes.
    pub(crate) bytes: Vec<u8>,
    /// The offsets of displacements that lead to the module itself.
    pub(crate) text: Vec<u32>,
    /// The same for displacements of eight bytes.
    pub(crate) wide_text: Vec<u32>,
}

/// Makes the frame descriptions and exception tables of all copies, for the address `at`.
///
/// # Errors
///
/// Returns the functions, by index in the image, for which the tables cannot be made.
pub(crate) fn tables(image: &Image, copies: &Copies, site: Site, at: u64) -> Result<Tables, Vec<usize>> {
    let (text, wide_text) = (Vec::new(), Vec::new());
    let (commons, index) = (Vec::new(), Vec::new());
    let mut frames = Writer { out: vec![0; 12], at, site, commons, index, text, wide_text };
    let descriptions: Vec<(usize, Vec<(usize, Description)>)> = copies
        .units
        .iter()
        .enumerate()
        .map(|(u, unit)| {
            let parts = unit.steps.parts.iter().enumerate();
            let all = parts.flat_map(|(p, part)| {
                let found = image.frames().descriptions(part.lo, part.hi).unwrap_or_default();
                found.into_iter().map(move |d| (p, d))
            });
            (u, all.collect())
        })
        .collect();
    let count: usize = descriptions.iter().map(|(_, all)| all.len()).sum();
    // The index comes first, and exception tables before the descriptions that refer to them.
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

/// Writes the tables.
struct Writer {
    /// The bytes that have been written.
    out: Vec<u8>,
    /// Address of `out`.
    at: u64,
    /// Where the copies are.
    site: Site,
    /// For each common entry, its offset in its original section and its offset in `out`.
    commons: Vec<(usize, u32)>,
    /// The address of each copy that is described, and the offset of its description in `out`.
    index: Vec<(u64, u32)>,
    /// See [`Tables::text`].
    text: Vec<u32>,
    /// See [`Tables::wide_text`].
    wide_text: Vec<u32>,
}

impl Writer {
    /// Returns the address of the next byte to be written.
    fn here(&self) -> u64 {
        self.at.wrapping_add(self.out.len() as u64)
    }

    /// Appends a u32.
    fn word(&mut self, value: u32) {
        self.out.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a word that holds an address relative to the word itself. The address 0 is written as 0.
    /// Returns `None` if the address is out of reach.
    fn relative(&mut self, address: u64) -> Option<()> {
        let distance = address.wrapping_sub(self.here()) as i64;
        let distance = if address == 0 { 0 } else { i32::try_from(distance).ok()? };
        if address != 0 && !self.site.is_in_arena(address) {
            self.text.push(self.out.len() as u32);
        }
        self.word(distance as u32);
        Some(())
    }

    /// Aligns the next byte to four bytes.
    fn align(&mut self) {
        self.out.resize(self.out.len().next_multiple_of(4), 0);
    }

    /// Writes the exception table of a part's copy. Returns its address, or `None` if the table cannot be
    /// made.
    fn lsda(&mut self, image: &Image, unit: &Unit, part: usize, d: &Description) -> Option<u64> {
        let table = image.exception_table(d)?;
        let bounds = &unit.steps.parts[part];
        let copy = Place { unit, part };
        let start = copy.of(d.start.max(bounds.lo));
        let mut sites = Vec::new();
        for site in &table.sites {
            let (lo, hi) = (site.start.clamp(bounds.lo, bounds.hi), site.end.clamp(bounds.lo, bounds.hi));
            let (lo, hi) = (copy.bound(lo), copy.bound(hi));
            let pad = if site.pad == 0 { 0 } else { unit.offset(site.pad)? };
            if hi <= lo && site.start != site.end {
                continue;
            }
            for value in [lo - start, hi - lo, pad] {
                sites.extend_from_slice(&value.to_le_bytes());
            }
            leb128(&mut sites, site.action);
        }
        self.align();
        let address = self.here();
        // Landing pads are relative to the start of the copies.
        self.out.push(RELATIVE);
        self.relative(self.site.base)?;
        self.out.push(table.encoding.0);
        if table.encoding != DW_EH_PE_omit {
            let mut rest = vec![DW_EH_PE_udata4.0];
            leb128(&mut rest, sites.len() as u64);
            let behind = rest.len() + sites.len() + table.actions.len() + table.types.len();
            leb128(&mut self.out, behind as u64);
        }
        self.out.push(DW_EH_PE_udata4.0);
        leb128(&mut self.out, sites.len() as u64);
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
                    self.text.push(self.out.len() as u32);
                    self.out.extend_from_slice(&new.to_le_bytes());
                }
                8 => {
                    let old = u64::from_le_bytes(entry.try_into().ok()?);
                    self.wide_text.push(self.out.len() as u32);
                    self.out.extend_from_slice(&old.wrapping_add(moved).to_le_bytes());
                }
                _ => return None,
            }
        }
        self.out.extend_from_slice(table.specifications);
        Some(address)
    }

    /// Writes the frame description of a part's copy, with its exception table at `lsda`.
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
        // After the last instruction, there may be a jump to the place where the original continues.
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
        let address = self.site.base.wrapping_add(start.into());
        self.index.push((address, at as u32));
        self.word(0);
        self.word((at + 4) as u32 - common);
        self.relative(address)?;
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

    /// Returns the offset of a common entry, and writes it if it has not been written yet.
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
        // The unit of the rules is one byte.
        leb128(&mut self.out, 1);
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

    /// Ends an entry that begins at `at`: writes its length.
    fn close(&mut self, at: usize) {
        self.align();
        let len = (self.out.len() - at - 4) as u32;
        self.out[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Ends the section, and writes the index. `start` is the offset of the descriptions.
    fn finish(mut self, start: u32) -> Tables {
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
        Tables { bytes: self.out, text: self.text, wide_text: self.wide_text }
    }
}

/// Maps the addresses of a part to the copy.
struct Place<'a> {
    /// The unit.
    unit: &'a Unit,
    /// The index of the part.
    part: usize,
}

impl Place<'_> {
    /// Returns the offset in the copies for a bound of a range of calls. Unwinders look up the last byte of a call, so an instruction in whose
    /// middle a range begins belongs to it, and one in whose middle it ends does not.
    fn bound(&self, address: u64) -> u32 {
        let part = &self.unit.steps.parts[self.part];
        let list = &self.unit.steps.list[part.first..part.end];
        let n = list.partition_point(|step| step.end() <= address);
        let is_inside = list.get(n).is_some_and(|step| step.ip < address);
        if is_inside { self.unit.layout.offset(part.first + n) } else { self.of(address) }
    }

    /// Returns the offset in the copies for an address of the original. For an address between instructions,
    /// this is the offset of the next instruction.
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
