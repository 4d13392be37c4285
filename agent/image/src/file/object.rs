//! An ELF file of either width and byte order, opened by the `object` crate.
//!
//! [`Elf`](crate::file::elf::Elf) reads the x86-64 programs that gprofinject patches, table by table. The readers of reports also
//! take 32-bit programs and files of other byte order; they all open them here.

use gmon::BuildId;
use object::{Object, ObjectSection, SectionFlags, elf};

/// Why a file is not a program that gprof could read.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("not a program in ELF")]
    Object(#[from] object::Error),
    #[error("an object file of format {0:?}, expected ELF")]
    NotElf(object::BinaryFormat),
}

/// Opens an ELF file.
///
/// # Errors
/// The bytes are no object file, or one of another format.
pub(crate) fn open(bytes: &[u8]) -> Result<object::File<'_>, ProgramError> {
    let file = object::File::parse(bytes)?;
    if file.format() != object::BinaryFormat::Elf {
        return Err(ProgramError::NotElf(file.format()));
    }
    Ok(file)
}

/// Returns the build-id that profiles carry. A damaged note counts as none, because the file may be sound
/// otherwise.
pub(crate) fn build_id(file: &object::File<'_>) -> BuildId {
    file.build_id().ok().flatten().map_or(BuildId::UNKNOWN, BuildId::new)
}

/// Whether a section contains code.
pub(crate) fn is_code<'data>(section: &impl ObjectSection<'data>) -> bool {
    let wanted = elf::SHF_ALLOC | elf::SHF_EXECINSTR;
    matches!(section.flags(), SectionFlags::Elf { sh_flags, .. } if sh_flags & wanted == wanted)
}
