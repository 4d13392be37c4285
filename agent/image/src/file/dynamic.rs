//! The tables of the dynamic linker: symbols and relocations, found as it finds them, by the dynamic section.

use crate::file::elf::{Elf, Rela, Symbol, records, slice};
use object::elf::{self, DynamicTag};

/// The dynamic symbols.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Symbols<'d> {
    pub(crate) entries: &'d [Symbol],
    /// The table of their names, and what follows it.
    pub(crate) names: &'d [u8],
}

impl<'d> Symbols<'d> {
    /// Returns the dynamic symbols. Their number is nowhere: the table ends at the latest where another one begins. What is
    /// behind it has no addresses in code if it is read as symbols.
    pub(crate) fn read(elf: &Elf<'d>) -> Symbols<'d> {
        /// The tables between which linkers put it.
        const TABLES: [DynamicTag; 9] = [
            elf::DT_STRTAB,
            elf::DT_HASH,
            elf::DT_GNU_HASH,
            elf::DT_VERSYM,
            elf::DT_VERNEED,
            elf::DT_VERDEF,
            elf::DT_RELA,
            elf::DT_JMPREL,
            elf::DT_RELR,
        ];
        let Some(start) = elf.dynamic_value(elf::DT_SYMTAB) else { return Symbols::default() };
        let next = TABLES.into_iter().filter_map(|tag| elf.dynamic_value(tag)).filter(|&at| at > start).min();
        let rest = elf.rest_at(start).unwrap_or_default();
        let table = next.and_then(|next| slice(rest, 0, next - start)).unwrap_or(rest);
        let names = elf.dynamic_value(elf::DT_STRTAB).and_then(|at| elf.rest_at(at)).unwrap_or_default();
        Symbols { entries: records(table), names }
    }
}

/// Returns the relocations that have addends, each once.
pub(crate) fn relocations<'d>(elf: &Elf<'d>) -> impl Iterator<Item = &'d Rela> + use<'d> {
    let tables = [(elf::DT_RELA, elf::DT_RELASZ), (elf::DT_JMPREL, elf::DT_PLTRELSZ)];
    let value = |tag| elf.dynamic_value(tag);
    let mut ranges: Vec<(u64, u64)> =
        tables.iter().filter_map(|&(address, len)| Some((value(address)?, value(len)?))).collect();
    // Of two tables with the same start the longer comes first, because DT_RELASZ may include .rela.plt.
    ranges.sort_unstable_by_key(|&(address, len)| (address, std::cmp::Reverse(len)));
    let mut covered = 0;
    ranges.retain(|&(address, len)| {
        let end = address.saturating_add(len);
        let new = end > covered;
        covered = covered.max(end);
        new
    });
    let tables: Vec<_> = ranges.iter().filter_map(|&(address, len)| elf.at_address(address, len)).collect();
    tables.into_iter().flat_map(records::<Rela>)
}

/// Returns the table of relative relocations without addends (DT_RELR).
pub(crate) fn relative<'d>(elf: &Elf<'d>) -> &'d [u8] {
    let table = elf.dynamic_value(elf::DT_RELR).zip(elf.dynamic_value(elf::DT_RELRSZ));
    table.and_then(|(address, len)| elf.at_address(address, len)).unwrap_or_default()
}
