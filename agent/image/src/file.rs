//! The tables of an ELF file, checked: headers, sections, segments, notes, relocations and imports. This
//! folder takes the tables as they are written; the folders above determine what they mean for functions.

pub(crate) mod dynamic;
pub(crate) mod elf;
pub(crate) mod entries;
pub(crate) mod error;
pub(crate) mod imports;
pub(crate) mod marks;
pub(crate) mod notes;
pub(crate) mod object;
pub(crate) mod pointers;
pub(crate) mod ranges;
