//! The program's notes: its build-id, and whether Go has made it.

use crate::file::elf::Elf;
use object::elf;

/// What the notes say.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) build_id: Option<Vec<u8>>,
    pub(crate) go: bool,
}

impl Notes {
    /// Reads the notes of a program.
    pub(crate) fn read(elf: &Elf<'_>) -> Self {
        let mut notes = Notes::default();
        for &(bytes, align) in &elf.notes {
            // Only .note.gnu.property is aligned to 8 bytes.
            let align = if align == 8 { 8 } else { 4 };
            notes.read_segment(bytes, align);
        }
        let is_go = |name: &[u8]| {
            matches!(name, b".go.buildinfo" | b".note.go.buildid") || name.ends_with(b".gopclntab")
        };
        notes.go |= elf.sections.iter().any(|section| is_go(section.name));
        notes
    }

    /// Reads notes: the lengths of the owner's name and of the contents, the type, then both, padded.
    fn read_segment(&mut self, mut bytes: &[u8], align: usize) {
        const HEADER: usize = 12;
        while let Some((header, _)) = bytes.split_first_chunk::<HEADER>() {
            let field =
                |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let (name_len, len, kind) = (field(0) as usize, field(4) as usize, field(8));
            let contents_at = (HEADER + name_len).next_multiple_of(align);
            let owner = bytes.get(HEADER..HEADER + name_len);
            let contents = bytes.get(contents_at..contents_at + len);
            let (Some(owner), Some(contents)) = (owner, contents) else { return };
            match owner {
                b"GNU\0" if kind == elf::NT_GNU_BUILD_ID.0 => {
                    self.build_id.get_or_insert_with(|| contents.to_vec());
                }
                b"Go\0\0" => self.go = true,
                _ => {}
            }
            bytes = bytes.get((contents_at + len).next_multiple_of(align)..).unwrap_or_default();
        }
    }
}
