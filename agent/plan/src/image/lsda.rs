//! Landing pads: where an unwinder enters a function again, from the exception tables (LSDA) that
//! .eh_frame refers to.
//!
//! ```text
//! lp_start encoding, [lp_start]      default: the start of the function
//! type table encoding, [offset]
//! call site encoding, table length
//! call sites: start, length, landing pad (0: none), action
//! ```

use super::elf::Elf;
use super::ranges::CodeRanges;
use super::unwind::Fde;
use gimli::constants as dwarf;

/// Sorted, without duplicates.
pub(super) fn landing_pads(elf: &Elf<'_>, code: &CodeRanges, fdes: &[Fde]) -> Vec<u64> {
    let table = elf.section(b".gcc_except_table").and_then(|section| Some((section.address, section.bytes?)));
    let mut pads = Vec::new();
    // Tables that overlap would be read over and over: a file's length of them is enough.
    let mut budget: usize = elf.loads.iter().map(|load| load.bytes.len()).sum();
    for fde in fdes.iter().filter(|fde| fde.lsda != 0) {
        let bytes = match table {
            Some((address, bytes)) => offset(address, fde.lsda).and_then(|at| bytes.get(at..)),
            None => elf.rest_at(fde.lsda),
        };
        let Some(bytes) = bytes else { continue };
        let mut reader = Reader { bytes, address: fde.lsda, function: fde.start };
        // What a damaged table has given before the damage is kept: too many pads do no harm.
        let _ = read_table(&mut reader, &mut budget, |pad| {
            if code.find_code(pad).is_some() {
                pads.push(pad);
            }
        });
    }
    pads.sort_unstable();
    pads.dedup();
    pads
}

fn offset(section: u64, address: u64) -> Option<usize> {
    usize::try_from(address.checked_sub(section)?).ok()
}

fn read_table(reader: &mut Reader<'_>, budget: &mut usize, mut found: impl FnMut(u64)) -> Option<()> {
    let pad_base = match dwarf::DwEhPe(reader.byte()?) {
        dwarf::DW_EH_PE_omit => reader.function,
        encoding => reader.pointer(encoding)?,
    };
    if dwarf::DwEhPe(reader.byte()?) != dwarf::DW_EH_PE_omit {
        reader.uleb()?;
    }
    let encoding = dwarf::DwEhPe(reader.byte()?);
    let len = usize::try_from(reader.uleb()?).ok()?;
    *budget = budget.checked_sub(len)?;
    let mut sites = Reader { bytes: reader.bytes.get(..len)?, ..*reader };
    while !sites.bytes.is_empty() {
        let _start = sites.value(encoding)?;
        let _length = sites.value(encoding)?;
        let pad = sites.value(encoding)?;
        let _action = sites.uleb()?;
        if pad != 0 {
            found(pad_base.wrapping_add(pad));
        }
    }
    Some(())
}

/// DWARF's encoded numbers, from the front of some bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'d> {
    pub(crate) bytes: &'d [u8],
    /// Of the first byte.
    pub(crate) address: u64,
    /// What DW_EH_PE_funcrel is relative to.
    pub(crate) function: u64,
}

impl<'d> Reader<'d> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        self.address = self.address.wrapping_add(N as u64);
        Some(*taken)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn uleb(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    pub(crate) fn sleb(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                // Bit 6 of the last byte is the sign.
                let sign = if byte & 0x40 != 0 && shift < 57 { u64::MAX << (shift + 7) } else { 0 };
                return Some(value | sign);
            }
        }
        None
    }

    /// A number, without what it is relative to.
    pub(crate) fn value(&mut self, encoding: dwarf::DwEhPe) -> Option<u64> {
        match encoding.format() {
            dwarf::DW_EH_PE_absptr | dwarf::DW_EH_PE_udata8 | dwarf::DW_EH_PE_sdata8 => {
                self.take().map(u64::from_le_bytes)
            }
            dwarf::DW_EH_PE_uleb128 => self.uleb(),
            dwarf::DW_EH_PE_sleb128 => self.sleb(),
            dwarf::DW_EH_PE_udata2 => self.take().map(|bytes| u16::from_le_bytes(bytes).into()),
            dwarf::DW_EH_PE_sdata2 => self.take().map(|bytes| i16::from_le_bytes(bytes) as u64),
            dwarf::DW_EH_PE_udata4 => self.take().map(|bytes| u32::from_le_bytes(bytes).into()),
            dwarf::DW_EH_PE_sdata4 => self.take().map(|bytes| i32::from_le_bytes(bytes) as u64),
            _ => None,
        }
    }

    pub(crate) fn pointer(&mut self, encoding: dwarf::DwEhPe) -> Option<u64> {
        let base = match encoding.application() {
            dwarf::DW_EH_PE_absptr => 0,
            dwarf::DW_EH_PE_pcrel => self.address,
            dwarf::DW_EH_PE_funcrel => self.function,
            _ => return None,
        };
        if encoding.is_indirect() {
            return None;
        }
        Some(base.wrapping_add(self.value(encoding)?))
    }
}
