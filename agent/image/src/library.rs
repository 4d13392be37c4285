//! A shared library as it lies in memory, for somebody who puts it there without a dynamic linker.
//!
//! The bytes of the file enter. The bytes of its segments leave, with the words that depend on where the library is, and
//! the functions that it offers. Only libraries of a simple kind can be read: they need no other library.

use ::object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use ::object::{Endianness, Object, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget, elf};

use crate::symbols::{Export, exported_functions};

/// The smallest page of Linux, in bytes.
const PAGE: u64 = 4096;

/// A library in memory at address 0.
#[derive(Debug)]
pub struct Library<'d> {
    /// The bytes of all segments, in whole pages.
    pub bytes: Vec<u8>,
    /// The first and the last address of the code, in whole pages.
    pub code: (u64, u64),
    /// The words to be set, by their addresses.
    pub words: Vec<(u64, Word)>,
    /// The functions that it offers.
    pub functions: Vec<Export<'d>>,
}

/// The value of a word that depends on the place of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The library's address plus this number.
    Address(u64),
    /// The offset of the library's thread-local variables from the thread pointer.
    ThreadOffset,
}

/// Why a library cannot be put into memory.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    #[error("the library is damaged")]
    Damaged(#[from] ::object::Error),
    #[error("the library has a relocation of type {0}")]
    Relocation(u32),
}

impl<'d> Library<'d> {
    /// Reads a library.
    ///
    /// # Errors
    /// The file is damaged, or has a relocation for which other libraries are needed.
    pub fn read(bytes: &'d [u8]) -> Result<Library<'d>, LibraryError> {
        let file = ElfFile64::<Endianness>::parse(bytes)?;
        let endian = file.endian();
        let headers = file.elf_header().program_headers(endian, bytes)?;
        let functions = exported_functions(bytes);
        let mut library = Library { bytes: Vec::new(), code: (0, 0), words: Vec::new(), functions };
        for header in headers.iter().filter(|header| header.p_type(endian) == elf::PT_LOAD) {
            let (address, end) = (header.p_vaddr(endian), header.p_vaddr(endian) + header.p_memsz(endian));
            let data = header.data(endian, bytes).unwrap_or_default();
            let len = end.next_multiple_of(PAGE) as usize;
            library.bytes.resize(library.bytes.len().max(len), 0);
            if let Some(room) = library.bytes.get_mut(address as usize..address as usize + data.len()) {
                room.copy_from_slice(data);
            }
            if header.p_flags(endian).contains(elf::PF_X) {
                library.code = (address & !(PAGE - 1), end.next_multiple_of(PAGE));
            }
        }
        for (at, relocation) in file.dynamic_relocations().into_iter().flatten() {
            let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let word = match r_type {
                elf::R_X86_64_RELATIVE => Word::Address(relocation.addend() as u64),
                elf::R_X86_64_TPOFF64 => Word::ThreadOffset,
                // Only a dynamic linker calls such a function.
                elf::R_X86_64_IRELATIVE => continue,
                // The symbol is weak and stays undefined.
                elf::R_X86_64_GLOB_DAT if is_undefined(&file, relocation.target()) => continue,
                other => return Err(LibraryError::Relocation(other.0)),
            };
            library.words.push((at, word));
        }
        Ok(library)
    }
}

fn is_undefined(file: &ElfFile64<Endianness>, target: RelocationTarget) -> bool {
    let RelocationTarget::Symbol(index) = target else { return false };
    let symbol = file.dynamic_symbol_table().and_then(|table| table.symbol_by_index(index).ok());
    symbol.is_some_and(|symbol| symbol.is_undefined() && symbol.is_weak())
}
