//! The addresses of code in data: those that relocations write, or the plain words of a program without
//! relocations. Also the relocations that change code itself, and whether there are descriptors of thread-local variables.

use crate::file::elf::{Elf, Load, Rela, Section, Symbol, Word, records};
use crate::file::marks::TextMarks;
use crate::file::ranges::CodeRanges;
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64};
use object::read::elf::RelrIterator;

/// The pointers to code in a program.
#[derive(Debug, Default)]
pub(crate) struct Pointers {
    /// The addresses, sorted and without duplicates.
    pub(crate) to_code: Vec<u64>,
    /// The places at which relocations write addresses of code, each with the address, sorted.
    pub(crate) relocated: Vec<(u64, u64)>,
    /// The addresses at which relocations write into code, if the program says that they do, sorted.
    pub(crate) in_code: Vec<u64>,
    /// Whether relocations write descriptors of thread-local variables.
    pub(crate) tls_descriptors: bool,
}

impl Pointers {
    /// Reads the pointers. `more` are further addresses, and `marks` gets the marks whose addresses data
    /// contains.
    pub(crate) fn read(elf: &Elf<'_>, code: &CodeRanges, more: Vec<u64>, marks: &mut TextMarks) -> Self {
        let hull = code.hull();
        let points_to_code = |&value: &u64| hull.contains(&value) && code.find_code(value).is_some();
        let mut pointers = Pointers { to_code: more, ..Pointers::default() };
        pointers.to_code.retain(points_to_code);
        let text_relocations = elf.dynamic_value(elf::DT_TEXTREL).is_some()
            || elf.dynamic_value(elf::DT_FLAGS).is_some_and(|flags| flags & elf::DF_TEXTREL.0 != 0);
        // The range of words that may be an address in code, or a mark.
        let first = marks.start.into_iter().chain(marks.end).fold(hull.start, u64::min);
        let last = marks.start.into_iter().chain(marks.end).fold(hull.end, u64::max);
        let mut mark = |value: u64| {
            marks.start_in_data |= marks.start == Some(value);
            marks.end_in_data |= marks.end == Some(value);
        };
        let mut found = |place: u64, value: Option<u64>| {
            value.into_iter().for_each(&mut mark);
            let value = value.unwrap_or(0);
            if points_to_code(&value) {
                pointers.to_code.push(value);
                pointers.relocated.push((place, value));
            }
            let code = |load: &Load<'_>| load.executable && load.contains(place);
            if text_relocations && elf.loads.iter().any(code) {
                pointers.in_code.push(place);
            }
        };
        let symbols = dynamic_symbols(elf);
        let mut tls_descriptors = false;
        for table in
            tables(elf, elf::SHT_RELA, &[(elf::DT_RELA, elf::DT_RELASZ), (elf::DT_JMPREL, elf::DT_PLTRELSZ)])
        {
            for relocation in records::<Rela>(table) {
                tls_descriptors |= relocation.r_type(LE, false) == elf::R_X86_64_TLSDESC;
                found(relocation.r_offset.get(LE), target(relocation, symbols));
            }
        }
        for table in tables(elf, elf::SHT_RELR, &[(elf::DT_RELR, elf::DT_RELRSZ)]) {
            for place in RelrIterator::<FileHeader64<LE>>::new(LE, records(table)) {
                let word = elf.at_address(place, 8).and_then(|bytes| bytes.try_into().ok());
                found(place, word.map(u64::from_le_bytes));
            }
        }
        if !elf.position_independent {
            for_each_data_word(elf, |value| {
                // Most words of the data are outside this range.
                if (first..=last).contains(&value) {
                    mark(value);
                    if points_to_code(&value) {
                        pointers.to_code.push(value);
                    }
                }
            });
        }
        pointers.tls_descriptors = tls_descriptors;
        pointers.to_code.sort_unstable();
        pointers.to_code.dedup();
        pointers.relocated.sort_unstable();
        pointers.relocated.dedup_by_key(|&mut (place, _)| place);
        pointers.in_code.sort_unstable();
        pointers.in_code.dedup();
        pointers
    }
}

/// Returns the address that a relocation writes, as linked, if it is known before the program runs.
fn target(relocation: &Rela, symbols: &[Symbol]) -> Option<u64> {
    let addend = relocation.r_addend.get(LE) as u64;
    match relocation.r_type(LE, false) {
        elf::R_X86_64_RELATIVE | elf::R_X86_64_IRELATIVE => Some(addend),
        elf::R_X86_64_64 | elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT => {
            match symbols.get(relocation.r_sym(LE, false) as usize) {
                _ if relocation.r_sym(LE, false) == 0 => Some(addend),
                Some(symbol) if symbol.st_shndx.get(LE) != elf::SHN_UNDEF => {
                    Some(symbol.st_value.get(LE).wrapping_add(addend))
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Returns the relocation tables that the loader sees, by the dynamic section and by the sections (a static
/// program has only those). A table that is in both comes once.
pub(crate) fn tables<'d>(
    elf: &Elf<'d>,
    kind: elf::SectionType,
    tags: &[(elf::DynamicTag, elf::DynamicTag)],
) -> Vec<&'d [u8]> {
    let value = |tag| elf.dynamic_value(tag);
    let dynamic = tags.iter().filter_map(|&(address, len)| Some((value(address)?, value(len)?)));
    let sections = elf.sections.iter().filter(|section| section.loaded() && section.kind == kind);
    let mut ranges: Vec<(u64, u64)> =
        dynamic.chain(sections.map(|section| (section.address, section.size))).collect();
    // Of two tables with the same start the longer comes first, because DT_RELASZ may include .rela.plt.
    ranges.sort_unstable_by_key(|&(address, len)| (address, std::cmp::Reverse(len)));
    let mut covered = 0;
    ranges.retain(|&(address, len)| {
        let end = address.saturating_add(len);
        let new = end > covered;
        covered = covered.max(end);
        new
    });
    ranges.iter().filter_map(|&(address, len)| elf.at_address(address, len)).collect()
}

/// Returns the dynamic symbols.
pub(crate) fn dynamic_symbols<'d>(elf: &Elf<'d>) -> &'d [Symbol] {
    let section = elf.sections.iter().find(|section| section.kind == elf::SHT_DYNSYM);
    if let Some(bytes) = section.and_then(|section| section.bytes) {
        return records(bytes);
    }
    // Their number is nowhere. The table is as long as the largest index of a relocation requires.
    elf.dynamic_value(elf::DT_SYMTAB).and_then(|address| elf.rest_at(address)).map_or(&[], records)
}

/// Visits the aligned words of all data. In a program that is loaded at its link addresses, pointers are
/// plain words.
fn for_each_data_word(elf: &Elf<'_>, mut found: impl FnMut(u64)) {
    let data = |section: &&Section<'_>| section.loaded() && !section.executable() && !is_table(section.kind);
    let sections = elf.sections.iter().filter(data).map(|section| (section.address, section.bytes));
    // Without sections, nothing says which part of an executable segment is data.
    let whole = elf.loads.iter().filter(|_| elf.sections.is_empty());
    for (address, bytes) in sections.chain(whole.map(|load| (load.address, Some(load.bytes)))) {
        let skip = (address.wrapping_neg() & 7) as usize;
        for word in records::<Word>(bytes.and_then(|bytes| bytes.get(skip..)).unwrap_or_default()) {
            found(word.get(LE));
        }
    }
}

/// Whether a section is one of the loader's, which contain no pointers of the program.
fn is_table(kind: elf::SectionType) -> bool {
    matches!(
        kind,
        elf::SHT_STRTAB
            | elf::SHT_RELA
            | elf::SHT_HASH
            | elf::SHT_NOTE
            | elf::SHT_DYNSYM
            | elf::SHT_RELR
            | elf::SHT_GNU_HASH
            | elf::SHT_GNU_VERDEF
            | elf::SHT_GNU_VERNEED
            | elf::SHT_GNU_VERSYM
    )
}
