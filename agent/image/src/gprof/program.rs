//! gprof's reading of an ELF symbol table.
//!
//! The rules are those of binutils 2.40: `core_sym_class` and `core_create_function_syms` in
//! `gprof/corefile.c`, `symtab_finalize` in `gprof/symtab.c`, `bfd_decode_symclass` in `bfd/syms.c` and
//! `elf_slurp_symbol_table` in `bfd/elfcode.h`. x86 has no synthetic symbols there.

use std::collections::HashMap;

use ::object::elf;
use ::object::read::elf::{ElfFile, FileHeader, SectionHeader, Sym};
use ::object::{Endianness, File, Object, ObjectSection};
use gmon::{Endian, Format, Hidden, Program, Width};

use crate::file::object::{self, ProgramError, is_code};
use crate::gprof::clones::{self, Label};
use crate::names::text;

/// Reads the functions of an ELF file as gprof does: the symbols that gprof accepts, and those that it leaves
/// out because of their names. A file without a symbol table has none, as for gprof.
///
/// # Errors
/// The bytes are not an ELF file.
pub fn parse(bytes: &[u8]) -> Result<Program, ProgramError> {
    let file = object::open(bytes)?;
    let labels = match &file {
        File::Elf32(file) => labels(file),
        File::Elf64(file) => labels(file),
        _ => return Err(ProgramError::NotElf(file.format())),
    };
    let endian = if file.is_little_endian() { Endian::Little } else { Endian::Big };
    let width = if file.is_64() { Width::Bits64 } else { Width::Bits32 };
    let code = file
        .sections()
        .filter(is_code)
        .map(|section| section.address()..section.address().saturating_add(section.size()));
    let program = Program::new(Format { endian, width }, Vec::new(), code.collect());
    Ok(with_labels(program, labels, &file))
}

fn with_labels(program: Program, mut labels: Vec<Label<'_>>, file: &File<'_>) -> Program {
    let (mut functions, mut data, mut hidden) = (Vec::new(), Vec::new(), Vec::<Hidden>::new());
    // gprof sorts by these keys, and its sort keeps the order of equal ones.
    labels.sort_by_key(|label| (label.start, !label.function, label.local));
    for same in labels.chunk_by(|a, b| a.start == b.start) {
        let Some(chosen) = preferred(same) else { continue };
        if same.iter().filter(|label| label.shown).all(|label| label.data) {
            data.push(chosen.start);
        }
        functions.push(chosen.to_function());
    }
    let mut code: Vec<(u64, &[u8])> = file
        .sections()
        .filter(is_code)
        .filter_map(|section| Some((section.address(), section.data().ok()?)))
        .collect();
    code.sort_by_key(|(start, _)| *start);
    let text = |address: u64, len: u64| {
        let (start, bytes) =
            code.get(code.partition_point(|(start, _)| *start <= address).checked_sub(1)?)?;
        let at = usize::try_from(address - start).ok()?;
        bytes.get(at..at.checked_add(usize::try_from(len).ok()?)?)
    };
    let len = code.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(bytes.len() as u64));
    for (label, whole) in clones::wholes(&labels, len, &text) {
        let known = functions.binary_search_by_key(&label.start, |function| function.start);
        let listed = hidden.last().is_some_and(|hidden| hidden.function.start == label.start);
        if known.is_err() && !listed {
            hidden.push(Hidden { function: label.to_function(), whole });
        }
    }
    program.with_symbols(object::build_id(file), functions, data, hidden)
}

/// Returns the symbol whose name gprof keeps, of several with the same address.
fn preferred<'l, 'd>(same: &'l [Label<'d>]) -> Option<&'l Label<'d>> {
    let mut shown = same.iter().filter(|label| label.shown);
    let mut kept = shown.next()?;
    for label in shown {
        let second = |name: &str| name.as_bytes().get(1) == Some(&b'_');
        let (name, other) = (label.name.starts_with('_'), kept.name.starts_with('_'));
        let plainer = other && (!name || !second(label.name) && second(kept.name));
        let better = match (label.local, kept.local) {
            (false, true) => true,
            (true, false) => false,
            _ => match (label.function, kept.function) {
                (true, false) => true,
                (false, true) => false,
                _ => plainer,
            },
        };
        if better {
            kept = label;
        }
    }
    Some(kept)
}

/// Returns the symbols that gprof accepts, and the functions among those that it leaves out because of their
/// names.
fn labels<'d, Elf: FileHeader<Endian = Endianness>>(file: &ElfFile<'d, Elf>) -> Vec<Label<'d>> {
    let endian = file.endian();
    let table = file.elf_symbol_table();
    let sections = file.elf_section_table();
    let strings =
        sections.section(table.string_section()).and_then(|section| section.data(endian, file.data()));
    let strings = strings.unwrap_or_default();
    let mut names = LocalNames::default();
    let mut labels = Vec::new();
    let mut file_name: &[u8] = &[];
    let mut file_number = 0;
    for (index, symbol) in table.enumerate() {
        let kind = symbol.st_type();
        let bytes = usize::try_from(symbol.st_name(endian)).ok().and_then(|at| strings.get(at..));
        let bytes = bytes.unwrap_or_default();
        let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
        if kind == elf::STT_FILE {
            (file_name, file_number) = (name, file_number + 1);
            continue;
        }
        let is_ifunc = kind == elf::STT_GNU_IFUNC;
        let section = table.symbol_section(endian, symbol, index).ok().flatten();
        let section = section.and_then(|index| sections.section(index).ok());
        let wanted = elf::SHF_EXECINSTR;
        let executable = section.is_some_and(|section| section.sh_flags(endian) & wanted == wanted);
        let local = symbol.st_bind() == elf::STB_LOCAL;
        let taken = match symbol.st_bind() {
            _ if kind == elf::STT_SECTION || is_ifunc => false,
            elf::STB_LOCAL | elf::STB_GLOBAL => executable,
            // Wherever it is, even in data, unless its type says that it is data.
            elf::STB_WEAK => {
                let object = matches!(kind, elf::STT_OBJECT | elf::STT_COMMON);
                symbol.st_shndx(endian) != elf::SHN_UNDEF && !object
            }
            _ => false,
        };
        let shown = taken && (!local || names.is_shown(bytes));
        let hidden = executable && local && !shown && kind == elf::STT_FUNC;
        if !shown && !hidden {
            continue;
        }
        labels.push(Label {
            start: symbol.st_value(endian).into(),
            size: symbol.st_size(endian).into(),
            name: text::of(name),
            local,
            function: kind == elf::STT_FUNC,
            data: !executable || matches!(kind, elf::STT_OBJECT | elf::STT_TLS | elf::STT_COMMON),
            shown,
            // The source file is not known for code that was optimised as a whole program, or was global
            // until the link.
            file: (local && !matches!(file_name, b"" | b"<artificial>" | b"ld-temp.o"))
                .then_some(file_number),
        });
    }
    labels
}

/// The local names that gprof accepts.
///
/// gprof's loop steps over the zero after a name that ends with a number, such as `f.1`, and continues with
/// the next string of the table, whatever symbol that belongs to.
#[derive(Default)]
struct LocalNames {
    /// What the loop finds from the start of a string on, by the number of bytes from there to the end of the table. Without
    /// it, each of many such names would take the rest of the table.
    known: HashMap<usize, bool>,
}

impl LocalNames {
    /// Whether gprof accepts a local symbol with this name. `bytes` is the string table from the name on.
    fn is_shown(&mut self, bytes: &[u8]) -> bool {
        let end = |at: usize| bytes.get(at).is_none_or(|&byte| byte == 0);
        let is_mark = |mark: &[u8]| bytes.starts_with(mark);
        if end(0) || is_mark(b"__gnu_compiled") || is_mark(b"___gnu_compiled") {
            return false;
        }
        let mut strings = Vec::new();
        let is_shown = self.runs_through(bytes, &mut strings);
        self.known.extend(strings.into_iter().map(|len| (len, is_shown)));
        is_shown
    }

    /// Runs gprof's loop. `strings` gets the further strings that it has come to.
    fn runs_through(&self, bytes: &[u8], strings: &mut Vec<usize>) -> bool {
        const CLONES: [&[u8]; 2] = [b".clone.", b".constprop."];
        let end = |at: usize| bytes.get(at).is_none_or(|&byte| byte == 0);
        let mut at = 0;
        while !end(at) {
            if bytes[at] == b'$' {
                return false;
            }
            while bytes.get(at) == Some(&b'.') {
                let is_it = |clone: &&&[u8]| bytes[at..].starts_with(clone) && !end(at + clone.len());
                at += CLONES.iter().find(is_it).map_or(0, |clone| clone.len() - 1) + 1;
                let mut digits = false;
                while !(end(at) || digits && bytes[at] == b'.') {
                    if !bytes[at].is_ascii_digit() {
                        return false;
                    }
                    digits = true;
                    at += 1;
                }
            }
            at += 1;
            if bytes.get(at - 1) == Some(&0) && !end(at) {
                let left = bytes.len() - at;
                if let Some(&known) = self.known.get(&left) {
                    return known;
                }
                strings.push(left);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gprofs_choice_of_local_names() {
        for kept in ["main", "f.1", "f.constprop.0", "f.clone.12", "f.1.constprop.0", "f."] {
            assert!(LocalNames::default().is_shown(kept.as_bytes()), "{kept}");
        }
        let dropped =
            ["f.cold", "f.part.0", "f$1", "f.constprop", "f.isra.0", "f.constprop.0.cold", "", "f.clone."];
        for dropped in dropped {
            assert!(!LocalNames::default().is_shown(dropped.as_bytes()), "{dropped}");
        }
        assert!(!LocalNames::default().is_shown(b"__gnu_compiled_c\0"));
    }

    #[test]
    fn a_number_at_the_end_lets_gprof_read_on() {
        assert!(LocalNames::default().is_shown(b"f.1\0g\0h.part.0\0"));
        assert!(!LocalNames::default().is_shown(b"f.1\0g.part.0\0"));
        assert!(LocalNames::default().is_shown(b"f\0g.part.0\0"));
    }
}
