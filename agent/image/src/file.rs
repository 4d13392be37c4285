//! The tables of an ELF file, checked: headers, sections, segments, notes, relocations and imports. What this folder reads it
//! takes as written; what it means for functions is told above.

pub(crate) mod elf;
pub(crate) mod error;
pub(crate) mod imports;
pub(crate) mod marks;
pub(crate) mod notes;
pub(crate) mod object;
pub(crate) mod pointers;
pub(crate) mod ranges;
