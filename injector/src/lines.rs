//! Which source files a program's code comes from, by its line tables (DWARF 5, 6.2).

use gimli::{DwarfSections, EndianSlice, LittleEndian, Reader};
use object::{Object, ObjectSection};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Stretches of code with their source files, sorted by address.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    rows: Vec<(u64, u64, u32)>,
    files: Vec<PathBuf>,
}

impl Lines {
    /// Those of a program's file; what cannot be read is left out.
    pub(crate) fn read(bytes: &[u8]) -> Lines {
        let Ok(file) = object::File::parse(bytes) else { return Lines::default() };
        let section = |id: gimli::SectionId| -> Result<Cow<'_, [u8]>, gimli::Error> {
            let section = file.section_by_name(id.name());
            Ok(section.and_then(|s| s.uncompressed_data().ok()).unwrap_or_default())
        };
        let Ok(sections) = DwarfSections::load(section) else { return Lines::default() };
        let dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian));
        let mut lines = Lines::default();
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            let Ok(unit) = dwarf.unit(header) else { continue };
            let _ = lines.unit(&dwarf, &unit);
        }
        lines.rows.sort_unstable();
        lines
    }

    fn unit<R: Reader>(&mut self, dwarf: &gimli::Dwarf<R>, unit: &gimli::Unit<R>) -> gimli::Result<()> {
        let Some(program) = unit.line_program.clone() else { return Ok(()) };
        let folder = unit.comp_dir.as_ref().map(|dir| dir.to_string_lossy().map(|s| s.into_owned()));
        let folder = PathBuf::from(folder.transpose()?.unwrap_or_default());
        let mut known: Vec<Option<u32>> = Vec::new();
        let mut rows = program.rows();
        let mut last: Option<(u64, u32)> = None;
        while let Some((header, row)) = rows.next_row()? {
            let index = row.file_index() as usize;
            if let Some((start, file)) = last.take()
                && start < row.address()
            {
                self.rows.push((start, row.address(), file));
            }
            if row.end_sequence() {
                continue;
            }
            if known.len() <= index {
                known.resize(index + 1, None);
            }
            let file = match known[index] {
                Some(file) => file,
                None => {
                    let mut path = folder.clone();
                    if let Some(entry) = row.file(header) {
                        if let Some(directory) = entry.directory(header) {
                            path.push(dwarf.attr_string(unit, directory)?.to_string_lossy()?.as_ref());
                        }
                        path.push(dwarf.attr_string(unit, entry.path_name())?.to_string_lossy()?.as_ref());
                    }
                    self.files.push(path);
                    let file = self.files.len() as u32 - 1;
                    known[index] = Some(file);
                    file
                }
            };
            last = Some((row.address(), file));
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The source files of the code in a range, perhaps several times.
    pub(crate) fn files_of(&self, lo: u64, hi: u64) -> impl Iterator<Item = &Path> {
        // No stretch is longer than a function, and few are long.
        let from = self.rows.partition_point(|&(start, ..)| start < lo);
        let before = from.saturating_sub(8);
        let rows = self.rows[before..].iter().take_while(move |&&(start, ..)| start < hi);
        let inside = rows.filter(move |&&(_, end, _)| end > lo);
        inside.filter_map(|&(_, _, file)| self.files.get(file as usize).map(PathBuf::as_path))
    }
}
