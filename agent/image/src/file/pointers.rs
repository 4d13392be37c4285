//! The addresses of code in data: those that relocations write, or the plain words of a program without
//! relocations. Also the relocations that change code itself, and whether there are descriptors of thread-local variables.

use crate::file::dynamic;
use crate::file::elf::{Elf, ElfType, Load, Rela, Symbol, Word, records};
use crate::file::marks::TextMarks;
use crate::file::ranges::{CodeRange, CodeRanges};
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
        let symbols = dynamic::Symbols::read(elf).entries;
        let mut tls_descriptors = false;
        for relocation in dynamic::relocations(elf) {
            tls_descriptors |= relocation.r_type(LE, false) == elf::R_X86_64_TLSDESC;
            found(relocation.r_offset.get(LE), target(relocation, symbols));
        }
        for place in RelrIterator::<FileHeader64<LE>>::new(LE, records(dynamic::relative(elf))) {
            let word = elf.at_address(place, 8).and_then(|bytes| bytes.try_into().ok());
            found(place, word.map(u64::from_le_bytes));
        }
        if elf.elf_type == ElfType::Exec {
            let table = elf.dynamic_value(elf::DT_SYMTAB).unwrap_or_default();
            // That a function has a symbol does not say that anything has its address. (What is behind the table counts as data.)
            let is_of_symbol = |place: u64| {
                const SIZE: u64 = size_of::<Symbol>() as u64;
                let at = place.wrapping_sub(table);
                let symbol = symbols.get((at / SIZE) as usize).filter(|_| at % SIZE == VALUE);
                symbol.is_some_and(|s| s.st_type() == elf::STT_FUNC && s.st_shndx.get(LE) != elf::SHN_UNDEF)
            };
            for_each_data_word(elf, code, |place, value| {
                // Most words of the data are outside this range.
                if (first..=last).contains(&value) && !is_of_symbol(place) {
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

/// The offset of a symbol's address in its entry (`Elf64_Sym::st_value`).
const VALUE: u64 = 8;

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

/// Visits the aligned words of all data, and their addresses. In a program that is loaded at its link addresses, pointers are plain words. All
/// loaded bytes outside of executable sections count as data, whatever other sections say, because a pointer that is missed may
/// be a label. Without sections, nothing says which part of an executable segment is data. Words of the dynamic linker's tables
/// that look like addresses in code are ones, or do no harm; those of the program headers in the first segment are left out, because
/// the address of the file's start is there.
fn for_each_data_word(elf: &Elf<'_>, code: &CodeRanges, mut found: impl FnMut(u64, u64)) {
    for load in &elf.loads {
        let mut at = if load.contains(elf.phdr) { elf.phdr_end } else { load.address };
        let end = load.address + load.bytes.len() as u64;
        let is_code = |range: &CodeRange| range.start >= load.address && range.end <= end;
        let inside = code.iter().filter(|range| elf.has_code_sections() && is_code(range));
        for range in inside.map(|range| range.start..range.end).chain(std::iter::once(end..end)) {
            let data = elf.at_address(at, range.start.saturating_sub(at)).unwrap_or_default();
            let skip = (at.wrapping_neg() & 7) as usize;
            let words = records::<Word>(data.get(skip..).unwrap_or_default());
            let places = (at + skip as u64..).step_by(size_of::<Word>());
            places.zip(words).for_each(|(place, word)| found(place, word.get(LE)));
            at = range.end;
        }
    }
}
