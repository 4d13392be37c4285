//! Landing pads: where an unwinder enters a function again, from the exception tables that `.eh_frame` refers to.

use crate::file::elf::Elf;
use crate::file::ranges::CodeRanges;
use crate::frames::encoded::Reader;
use crate::frames::lsda::Head;
use crate::frames::unwind::Fde;

/// Returns the landing pads of all exception tables, sorted and without duplicates.
pub(crate) fn landing_pads(elf: &Elf<'_>, code: &CodeRanges, fdes: &[Fde]) -> Vec<u64> {
    let mut pads = Vec::new();
    // Tables that overlap would be read over and over: a file's length of them is enough.
    let mut budget: usize = elf.loads.iter().map(|load| load.bytes.len()).sum();
    for fde in fdes.iter().filter(|fde| fde.lsda != 0) {
        let Some(bytes) = elf.rest_at(fde.lsda) else { continue };
        let Some(head) = Head::read(Reader { bytes, address: fde.lsda, function: fde.start }) else {
            continue;
        };
        let Some(left) = budget.checked_sub(head.sites.bytes.len()) else { continue };
        budget = left;
        // What a damaged table has given before the damage is kept: too many pads do no harm.
        let found = head.sites().map_while(|site| site).map(|site| site.pad);
        pads.extend(found.filter(|&pad| pad != 0 && code.find_code(pad).is_some()));
    }
    pads.sort_unstable();
    pads.dedup();
    pads
}
