//! Landing pads: the addresses at which an unwinder re-enters a function, from the exception tables (LSDA) to
//! which .eh_frame refers.
//!
//! ```text
//! lp_start encoding, [lp_start]      default: the start of the function
//! type table encoding, [offset]
//! call site encoding, table length
//! call sites: start, length, landing pad (0: none), action
//! ```

use crate::file::elf::Elf;
use crate::file::ranges::CodeRanges;
use crate::frames::encoded::Reader;
use crate::frames::unwind::Fde;
use gimli::constants as dwarf;

/// Returns the landing pads of all functions, sorted and without duplicates.
pub(crate) fn landing_pads(elf: &Elf<'_>, code: &CodeRanges, fdes: &[Fde]) -> Vec<u64> {
    let table = elf.section(b".gcc_except_table").and_then(|section| Some((section.address, section.bytes?)));
    let mut pads = Vec::new();
    // Tables that overlap would be read again and again. The total is limited to the file's length.
    let mut budget: usize = elf.loads.iter().map(|load| load.bytes.len()).sum();
    for fde in fdes.iter().filter(|fde| fde.lsda != 0) {
        let bytes = match table {
            Some((address, bytes)) => offset(address, fde.lsda).and_then(|at| bytes.get(at..)),
            None => elf.rest_at(fde.lsda),
        };
        let Some(bytes) = bytes else { continue };
        let mut reader = Reader { bytes, address: fde.lsda, function: fde.start };
        // What a damaged table has given before the damage is kept, because additional landing pads do no
        // harm.
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
