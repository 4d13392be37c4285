//! The sections of an x86-64 file's debug information.

use gimli::{EndianSlice, LittleEndian, SectionId};
use object::{Architecture, Endianness, Object};

use crate::debug::{SectionError, section};
use crate::file::object::{self as file, ProgramError};

pub(crate) type Slice<'s> = EndianSlice<'s, LittleEndian>;

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

/// Returns a reader of a section.
pub(crate) fn slice(bytes: &[u8]) -> Slice<'_> {
    EndianSlice::new(bytes, LittleEndian)
}

/// Opens a file for x86-64.
///
/// # Errors
/// It is no ELF file, or one for another machine.
pub(crate) fn open(bytes: &[u8]) -> Result<object::File<'_>, DebugInfoError> {
    let file = file::open(bytes)?;
    let is_ours = file.architecture() == Architecture::X86_64
        && file.is_64()
        && file.endianness() == Endianness::Little;
    if is_ours { Ok(file) } else { Err(DebugInfoError::Architecture) }
}

/// Returns a function that reads the sections of a .dwo file or a package.
///
/// # Errors
/// It is not a file for x86-64.
pub(crate) fn split_sections(
    bytes: &[u8],
) -> Result<impl Fn(SectionId) -> Result<Vec<u8>, DebugInfoError>, DebugInfoError> {
    let file = open(bytes)?;
    Ok(move |id: SectionId| {
        let data = section(&file, id);
        let data = data.map_err(|source| DebugInfoError::Section { name: id.name(), source })?;
        Ok(data.into_owned())
    })
}
