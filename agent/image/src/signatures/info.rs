//! The debug information of a file, with what of it is in other files.

use std::borrow::Cow;

use gimli::DwarfSections;
use object::Object;

use crate::debug::{SplitFiles, contents};
use crate::file::object as file;
use crate::signatures::sections::{DebugInfoError, Slice, open, slice};
use crate::signatures::split::{MissingUnits, Split};

/// The debug information of a program, a library, or their separate debug file.
#[derive(Debug)]
pub struct DebugInfo<'d> {
    sections: DwarfSections<Cow<'d, [u8]>>,
    /// What is in other files.
    split: Split,
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
