//! The sections of an x86-64 file's debug information.

use std::borrow::Cow;

use gimli::{DwarfSections, EndianSlice, LittleEndian};
use object::{Architecture, Endianness, Object};

use crate::debug::{SectionError, contents};
use crate::file::object::{self as file, ProgramError};

pub(crate) type Slice<'s> = EndianSlice<'s, LittleEndian>;

/// The debug information of a program, a library, or their separate debug file.
#[derive(Debug)]
pub struct DebugInfo<'d> {
    sections: DwarfSections<Cow<'d, [u8]>>,
}

/// Why debug information cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum DebugInfoError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("damaged debug information")]
    Dwarf(#[from] gimli::Error),
    #[error("cannot read section {name}")]
    Section { name: &'static str, source: SectionError },
    #[error("the file is not for x86-64")]
    Architecture,
}

impl<'d> DebugInfo<'d> {
    /// Whether a file has debug information of functions.
    pub fn is_in(bytes: &[u8]) -> bool {
        let Ok(file) = file::open(bytes) else { return false };
        // A file that is only stripped of the contents of its sections has an empty one.
        let section = file.section_by_name(".debug_info");
        section.is_some_and(|section| contents(&section).is_ok_and(|bytes| !bytes.is_empty()))
    }

    /// Reads the sections of a file. Compressed ones are decompressed.
    ///
    /// # Errors
    /// It is not a file for x86-64, or a section is damaged.
    pub fn read(bytes: &'d [u8]) -> Result<DebugInfo<'d>, DebugInfoError> {
        let file = file::open(bytes)?;
        let is_ours = file.architecture() == Architecture::X86_64
            && file.is_64()
            && file.endianness() == Endianness::Little;
        if !is_ours {
            return Err(DebugInfoError::Architecture);
        }
        let sections = DwarfSections::load(|id| {
            let name = id.name();
            let Some(section) = file.section_by_name(name) else { return Ok(Cow::Borrowed(&[][..])) };
            contents(&section).map_err(|source| DebugInfoError::Section { name, source })
        })?;
        Ok(DebugInfo { sections })
    }

    pub(crate) fn dwarf(&self) -> gimli::Dwarf<Slice<'_>> {
        self.sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian))
    }
}
