//! The agent library, put into a process without the help of its dynamic linker. A borrowed thread could call
//! dlopen only if no thread holds a lock of the loader or of the allocator, and the injector cannot see that
//! from outside.
//!
//! The library needs little: relative relocations, and the offset of its thread words. It has no TLS segment
//! there; the words are in a part of glibc's thread control block that glibc keeps unused for older programs
//! ([`WORDS`]).

use anyhow::{Context, Result, bail};
use gprofinject_abi::attach::WORDS;
use object::elf;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object, ObjectSymbol, RelocationTarget};

use crate::store::libraries::AGENT;

const PAGE: u64 = 4096;

/// The library's bytes as they will be in memory.
pub(crate) struct Agent {
    bytes: Vec<u8>,
    relocations: Vec<(u64, Kind)>,
    /// The address range of its code: whole pages.
    pub(crate) code: (u64, u64),
    functions: Vec<(String, u64)>,
}

#[derive(Clone, Copy)]
enum Kind {
    /// The library's address plus this number.
    Relative(u64),
    Words,
}

impl Agent {
    /// Reads the agent library that is part of this command.
    ///
    /// # Errors
    /// The library is damaged, or has a relocation of an unexpected kind.
    pub(crate) fn new() -> Result<Agent> {
        let file = ElfFile64::<Endianness>::parse(AGENT).context("the agent library is damaged")?;
        let endian = file.endian();
        let headers = file.elf_header().program_headers(endian, AGENT)?;
        let mut agent =
            Agent { bytes: Vec::new(), relocations: Vec::new(), code: (0, 0), functions: Vec::new() };
        for header in headers.iter().filter(|header| header.p_type(endian) == elf::PT_LOAD) {
            let (address, end) = (header.p_vaddr(endian), header.p_vaddr(endian) + header.p_memsz(endian));
            let data = header.data(endian, AGENT).unwrap_or_default();
            let len = end.next_multiple_of(PAGE) as usize;
            agent.bytes.resize(agent.bytes.len().max(len), 0);
            if let Some(room) = agent.bytes.get_mut(address as usize..address as usize + data.len()) {
                room.copy_from_slice(data);
            }
            if header.p_flags(endian).contains(elf::PF_X) {
                agent.code = (address & !(PAGE - 1), end.next_multiple_of(PAGE));
            }
        }
        for (at, relocation) in file.dynamic_relocations().into_iter().flatten() {
            let object::RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
            let kind = match r_type {
                elf::R_X86_64_RELATIVE => Kind::Relative(relocation.addend() as u64),
                elf::R_X86_64_TPOFF64 => Kind::Words,
                // The entry point for the dynamic linker, which is not used here.
                elf::R_X86_64_IRELATIVE => continue,
                // The symbol is weak and stays undefined.
                elf::R_X86_64_GLOB_DAT if is_undefined(&file, relocation.target()) => continue,
                other => bail!("the agent library has a relocation of type {other}"),
            };
            agent.relocations.push((at, kind));
        }
        for symbol in file.dynamic_symbols().filter(|symbol| symbol.is_definition()) {
            agent.functions.push((symbol.name()?.to_owned(), symbol.address()));
        }
        Ok(agent)
    }

    /// The number of bytes that the library needs in memory.
    pub(crate) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the offset of a function in the library.
    pub(crate) fn function(&self, name: &str) -> Option<u64> {
        self.functions.iter().find(|(known, _)| known == name).map(|(_, at)| *at)
    }

    /// Returns the bytes for the address `base`, with all relocations applied.
    pub(crate) fn at(&self, base: u64) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        for &(at, kind) in &self.relocations {
            let value = match kind {
                Kind::Relative(offset) => base.wrapping_add(offset),
                Kind::Words => WORDS,
            };
            if let Some(word) = bytes.get_mut(at as usize..at as usize + 8) {
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        bytes
    }
}

fn is_undefined(file: &ElfFile64<Endianness>, target: RelocationTarget) -> bool {
    let RelocationTarget::Symbol(index) = target else { return false };
    let table = file.dynamic_symbol_table();
    let symbol = table.and_then(|table| object::ObjectSymbolTable::symbol_by_index(&table, index).ok());
    symbol.is_some_and(|symbol| symbol.is_undefined() && symbol.is_weak())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_can_be_placed_by_hand() {
        let agent = Agent::new().expect("only relocations that we know");
        assert!(agent.function(gprofinject_abi::attach::CONTROL).is_some());
        let (one, other) = (agent.at(0x10_0000), agent.at(0x20_0000));
        assert_eq!(one.len() as u64, agent.len());
        assert!(one != other && agent.code.1 <= agent.len());
    }
}
