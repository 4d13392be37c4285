//! The sections of an x86-64 file's debug information.

use std::borrow::Cow;

use gimli::{DwarfSections, EndianSlice, LittleEndian, SectionId};
use object::{Architecture, Endianness, Object};

use crate::debug::{SectionError, SplitFiles, contents, section};
use crate::file::object::{self as file, ProgramError};
use crate::signatures::split::{MissingUnits, Split};

pub(crate) type Slice<'s> = EndianSlice<'s, LittleEndian>;

/// The debug information of a program, a library, or their separate debug file.
#[derive(Debug)]
pub struct DebugInfo<'d> {
    sections: DwarfSections<Cow<'d, [u8]>>,
    /// What is in other files.
    split: Split,
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
        let file = open(bytes)?;
        let sections = DwarfSections::load(|id| {
            let name = id.name();
            let Some(section) = file.section_by_name(name) else { return Ok(Cow::Borrowed(&[][..])) };
            contents(&section).map_err(|source| DebugInfoError::Section { name, source })
        })?;
        Ok(DebugInfo { sections, split: Split::default() })
    }

    /// Reads the units of split DWARF as well, which are in .dwo files or in a package. With `addresses`, which are sorted, only
    /// those of units with code at one of them are read.
    pub fn find_split(&mut self, files: &SplitFiles, addresses: Option<&[u64]>) {
        self.split = Split::find(&self.dwarf(), files, addresses);
    }

    /// Returns what is known of the units of split DWARF that were not found, if there are some.
    pub fn missing_units(&self) -> Option<&MissingUnits> {
        self.split.missing()
    }

    pub(crate) fn split(&self) -> &Split {
        &self.split
    }

    pub(crate) fn dwarf(&self) -> gimli::Dwarf<Slice<'_>> {
        self.sections.borrow(|bytes| slice(bytes))
    }
}

/// Returns a reader of a section.
pub(crate) fn slice(bytes: &[u8]) -> Slice<'_> {
    EndianSlice::new(bytes, LittleEndian)
}

/// Opens a file for x86-64.
fn open(bytes: &[u8]) -> Result<object::File<'_>, DebugInfoError> {
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
