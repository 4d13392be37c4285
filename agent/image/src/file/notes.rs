//! The program's notes: its build-id, and whether Go has made it.

use crate::file::elf::Elf;
use object::LittleEndian as LE;
use object::elf::{self, FileHeader64};
use object::read::elf::{Note, NoteIterator};

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
            let all = NoteIterator::<FileHeader64<LE>>::new(LE, align, bytes);
            // What a damaged segment has given before the damage is kept.
            all.into_iter().flatten().map_while(Result::ok).for_each(|note| notes.add(&note));
        }
        let is_go = |name: &[u8]| {
            matches!(name, b".go.buildinfo" | b".note.go.buildid") || name.ends_with(b".gopclntab")
        };
        notes.go |= elf.sections.iter().any(|section| is_go(section.name));
        notes
    }

    /// Adds what one note says.
    fn add(&mut self, note: &Note<'_, FileHeader64<LE>>) {
        match note.name_bytes() {
            b"GNU\0" if note.n_type(LE) == elf::NT_GNU_BUILD_ID => {
                self.build_id.get_or_insert_with(|| note.desc().to_vec());
            }
            b"Go\0\0" => self.go = true,
            _ => {}
        }
    }
}
