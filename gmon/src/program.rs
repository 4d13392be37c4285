//! The profiled program's functions, as gprof sees them.

use std::ops::Range;

use crate::build_id::BuildId;
use crate::format::Format;

/// A function symbol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    /// Link-time address.
    pub start: u64,
    /// Bytes; 0 if the symbol does not say.
    pub size: u64,
    /// As in the symbol table, not demangled.
    pub name: String,
}

impl Function {
    /// First address behind it.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

/// Functions and code of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub format: Format,
    /// [`BuildId::UNKNOWN`] unless the file has one.
    pub build_id: BuildId,
    functions: Vec<Function>,
    code: Vec<Range<u64>>,
}

/// Where gprof puts an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// In the function, or in code after a symbol without size.
    In(&'a Function),
    /// Behind the function's end; gprof extends it to the next symbol.
    Behind(&'a Function),
    /// Before the first function or outside the code; gprof drops it.
    Nowhere,
}

impl Program {
    /// `functions` in any order, one name for each address is kept; `code`: the ranges of executable
    /// sections.
    pub fn new(format: Format, mut functions: Vec<Function>, mut code: Vec<Range<u64>>) -> Program {
        // Of several names of an address, one that has a size says more.
        functions.sort_by(|a, b| {
            (a.start, a.size == 0, &a.name, a.size).cmp(&(b.start, b.size == 0, &b.name, b.size))
        });
        functions.dedup_by_key(|function| function.start);
        code.sort_by_key(|range| range.start);
        Program { format, build_id: BuildId::UNKNOWN, functions, code }
    }

    /// Sorted by address, one for each address.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Ranges of the executable sections, sorted.
    pub fn code(&self) -> &[Range<u64>] {
        &self.code
    }

    /// The function that gprof charges for an address.
    pub fn place(&self, address: u64) -> Place<'_> {
        let after = self.functions.partition_point(|function| function.start <= address);
        let Some(function) = after.checked_sub(1).map(|index| &self.functions[index]) else {
            return Place::Nowhere;
        };
        let inside = function.size > 0 && address - function.start < function.size;
        let has_next = after < self.functions.len();
        match (inside, self.code.iter().any(|range| range.contains(&address))) {
            (true, _) => Place::In(function),
            (false, true) if function.size == 0 => Place::In(function),
            (false, true) => Place::Behind(function),
            (false, false) if has_next => Place::Behind(function),
            (false, false) => Place::Nowhere,
        }
    }
}

#[cfg(feature = "elf")]
pub use elf::ProgramError;

#[cfg(feature = "elf")]
mod elf {
    use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind, elf};

    use super::{Function, Program};
    use crate::build_id::BuildId;
    use crate::format::{Endian, Format, Width};

    /// Why a file is not a program that gprof could read.
    #[derive(Debug, thiserror::Error)]
    pub enum ProgramError {
        #[error("not a program in ELF")]
        Object(#[from] object::Error),
        #[error("an object file of format {0:?}, expected ELF")]
        NotElf(object::BinaryFormat),
    }

    impl Program {
        /// Functions of an ELF file: the symbols that gprof takes (binutils `gprof/corefile.c`,
        /// `core_sym_class`). Without a symbol table there are none, as for gprof.
        pub fn parse(bytes: &[u8]) -> Result<Program, ProgramError> {
            let file = object::File::parse(bytes)?;
            if file.format() != object::BinaryFormat::Elf {
                return Err(ProgramError::NotElf(file.format()));
            }
            let endian = if file.is_little_endian() { Endian::Little } else { Endian::Big };
            let width = if file.is_64() { Width::Bits64 } else { Width::Bits32 };
            let code = file
                .sections()
                .filter(is_code)
                .map(|section| section.address()..section.address().saturating_add(section.size()));
            let functions = file.symbols().filter_map(|symbol| {
                let section = file.section_by_index(symbol.section_index()?).ok()?;
                let name = symbol.name().ok()?;
                let local = !symbol.is_global();
                // IFUNC symbols are `i` to nm: gprof does not take them.
                let kind =
                    matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown)
                        && !is_ifunc(&symbol);
                let taken = kind && is_code(&section) && !name.is_empty() && !(local && is_hidden_part(name));
                taken.then(|| Function {
                    start: symbol.address(),
                    size: symbol.size(),
                    name: name.to_owned(),
                })
            });
            let program = Program::new(Format { endian, width }, functions.collect(), code.collect());
            // A damaged note is none: the program may be good for all else.
            let build_id = file.build_id().ok().flatten().map_or(BuildId::UNKNOWN, BuildId::new);
            Ok(Program { build_id, ..program })
        }
    }

    fn is_code<'data>(section: &impl ObjectSection<'data>) -> bool {
        let wanted = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
        matches!(section.flags(), SectionFlags::Elf { sh_flags, .. } if sh_flags & wanted == wanted)
    }

    fn is_ifunc<'data>(symbol: &impl ObjectSymbol<'data>) -> bool {
        matches!(symbol.flags(), object::SymbolFlags::Elf { st_info, .. } if st_info.st_type() == elf::STT_GNU_IFUNC)
    }

    /// A local name that gprof drops: one with a `$`, or with a `.` that is not followed by a number,
    /// `clone.N` or `constprop.N`. Its code counts for the symbol before.
    pub(super) fn is_hidden_part(name: &str) -> bool {
        let mut parts = name.split('.');
        parts.next();
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let mut kept = true;
        while let Some(part) = parts.next() {
            kept &= is_number(part)
                || (matches!(part, "clone" | "constprop") && parts.next().is_some_and(is_number));
        }
        name.contains('$') || !kept
    }
}

#[cfg(all(test, feature = "elf"))]
mod tests {
    use super::elf::is_hidden_part;
    use super::*;

    #[test]
    fn gprofs_choice_of_local_names() {
        for kept in ["main", "f.1", "f.constprop.0", "f.clone.12", "f.1.constprop.0"] {
            assert!(!is_hidden_part(kept), "{kept}");
        }
        for dropped in ["f.cold", "f.part.0", "f$1", "f.", "f.constprop", "f.isra.0", "f.constprop.0.cold"] {
            assert!(is_hidden_part(dropped), "{dropped}");
        }
    }

    #[test]
    fn an_address_is_in_behind_or_nowhere() {
        let function = |start, size| Function { start, size, name: format!("f{start:x}") };
        let functions = vec![function(0x110, 0x10), function(0x140, 0), function(0x160, 8)];
        let program = Program::new(Format::LITTLE_64, functions, std::iter::once(0x100..0x180).collect());
        let name = |address| match program.place(address) {
            Place::In(function) => format!("in {}", function.name),
            Place::Behind(function) => format!("behind {}", function.name),
            Place::Nowhere => "nowhere".to_owned(),
        };
        assert_eq!(name(0x10f), "nowhere");
        assert_eq!(name(0x11f), "in f110");
        assert_eq!(name(0x120), "behind f110");
        assert_eq!(name(0x15f), "in f140");
        assert_eq!(name(0x17f), "behind f160");
        assert_eq!(name(0x180), "nowhere");
    }
}
