//! The agent library, put into a process without the help of its dynamic linker. A borrowed thread could call
//! dlopen only if no thread holds a lock of the loader or of the allocator, and the injector cannot see that
//! from outside.
//!
//! The library needs little: relative relocations, and the offset of its thread words. It has no TLS segment
//! there; the words are in a part of glibc's thread control block that glibc keeps unused for older programs
//! ([`WORDS`]).

use anyhow::{Context, Result};
use gprofinject_abi::attach::WORDS;
use gprofinject_abi::region::PAGE;
use gprofinject_image::headers;
use gprofinject_image::library::{Library, Word};

use crate::store::libraries::{AGENT, STANDALONE};

/// The library's bytes as they will be in memory.
pub(crate) struct Agent {
    library: Library<'static>,
    /// The address range of its code: whole pages.
    pub(crate) code: (u64, u64),
}

impl Agent {
    /// Reads one of the two agent libraries that are part of this command: the one for standalone programs, or the one for
    /// programs with glibc's dynamic linker.
    ///
    /// # Errors
    /// The library is damaged, or has a relocation of an unexpected kind.
    pub(crate) fn read(is_standalone: bool) -> Result<Agent> {
        let library = if is_standalone { STANDALONE } else { AGENT };
        let library = Library::read(library).context("the agent library is damaged")?;
        Ok(Agent { code: library.code, library })
    }

    /// The number of bytes that the library needs in memory.
    pub(crate) fn len(&self) -> u64 {
        self.library.bytes.len() as u64
    }

    /// Returns the offset in the file of the library for glibc's dynamic linker of the first byte of its code.
    pub(crate) fn code_offset() -> Option<u64> {
        let program = headers::read(AGENT).ok()?;
        let segment = program.code.first()?;
        // The code begins at the start of a page in the file as in memory.
        Some(segment.offset - segment.address % PAGE)
    }

    /// Returns the offset of a function in the library.
    pub(crate) fn function(&self, name: &str) -> Option<u64> {
        self.library.functions.iter().find(|function| function.name == name).map(|function| function.address)
    }

    /// Returns the code for the address `base`, with all relocations applied.
    pub(crate) fn code_at(&self, base: u64) -> Vec<u8> {
        self.at(base).get(self.code.0 as usize..self.code.1 as usize).unwrap_or_default().to_vec()
    }

    /// Returns the bytes for the address `base`, with all relocations applied.
    pub(crate) fn at(&self, base: u64) -> Vec<u8> {
        let mut bytes = self.library.bytes.clone();
        for &(at, word) in &self.library.words {
            let value = match word {
                Word::Address(offset) => base.wrapping_add(offset),
                Word::ThreadOffset => WORDS,
            };
            if let Some(word) = bytes.get_mut(at as usize..at as usize + 8) {
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_can_be_placed_by_hand() {
        for is_standalone in [false, true] {
            let agent = Agent::read(is_standalone).expect("only relocations that we know");
            assert!(agent.function(gprofinject_abi::attach::CONTROL).is_some());
            assert!(agent.at(0x10_0000) != agent.at(0x20_0000));
        }
        let agent = Agent::read(false).expect("only relocations that we know");
        let (one, other) = (agent.at(0x10_0000), agent.at(0x20_0000));
        assert_eq!(one.len() as u64, agent.len());
        assert!(one != other && agent.code.1 <= agent.len());
        let offset = Agent::code_offset().expect("code") as usize;
        let (at, len, offset) = (agent.code.0 as usize + 4096, 4096, offset + 4096);
        assert!(agent.library.bytes[at..at + len] == AGENT[offset..offset + len], "the same code");
    }
}
