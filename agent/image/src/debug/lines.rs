//! The source lines of a program: DWARF's line table, and the inlined calls.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::object::Object;
use addr2line::{Context, SplitDwarfLoad};
use gimli::{Dwarf, DwarfPackage, EndianArcSlice, Reader, RunTimeEndian, Section, SectionId};
use gmon::BuildId;

use crate::debug::sections::{self, SectionError};
use crate::debug::split::{SplitFiles, section};
use crate::file::object::{self, ProgramError};

type Slice = EndianArcSlice<RunTimeEndian>;

/// The line information of a program or of its separate debug file.
pub struct Lines {
    pub build_id: BuildId,
    context: Context<Slice>,
    /// Where the inlined calls are, if the program has skeleton units only.
    split: Option<SplitUnits>,
    files: Vec<String>,
    /// The index in `files` of each path as the line tables have it.
    indices: HashMap<String, FileIndex>,
    rows: Vec<Row>,
}

/// An index into [`Lines::files`].
pub type FileIndex = usize;

/// A source line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    pub file: FileIndex,
    /// The line number, from 1 on.
    pub line: u32,
}

/// The instructions of one source line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub start: u64,
    /// The address after the last instruction.
    pub end: u64,
    /// The line; `None` for instructions that the compiler has added and that belong to no line.
    pub location: Option<Location>,
}

/// A function to which an instruction belongs: the symbol's, or one that was inlined into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The name as the symbol table would have it, not demangled.
    pub name: Option<String>,
    /// Distinguishes the inlined calls of one function. It has no other meaning.
    pub id: usize,
    /// The line of the instruction in this function; for all frames but the innermost, the line of the inlined call.
    pub location: Option<Location>,
}

/// Why there is no line information.
#[derive(Debug, thiserror::Error)]
pub enum LinesError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("damaged debug information")]
    Dwarf(#[from] gimli::Error),
    #[error("cannot read section {name}")]
    Section { name: &'static str, source: SectionError },
    #[error("damaged debug information: more units than a program has share a line table")]
    Shared,
    #[error("no line information")]
    None,
}

impl Lines {
    /// Reads the line information of an ELF file.
    ///
    /// # Errors
    /// The file has no line information, or it is damaged.
    pub fn parse(bytes: &[u8]) -> Result<Lines, LinesError> {
        let file = object::open(bytes)?;
        let endian = endian(&file);
        let mut dwarf = gimli::Dwarf::load(|id| {
            let name = id.name();
            let section = file.section_by_name(name);
            let data = section.map(|section| sections::contents(&section)).transpose();
            let data = data.map_err(|source| LinesError::Section { name, source })?.unwrap_or_default();
            Ok::<_, LinesError>(Slice::new(Arc::from(data.as_ref()), endian))
        })?;
        let build_id = object::build_id(&file);
        check_size(&mut dwarf)?;
        let context = Context::from_dwarf(dwarf)?;
        let Table { files, indices, rows } = table(&context)?;
        if rows.is_empty() {
            return Err(LinesError::None);
        }
        Ok(Lines { build_id, context, split: None, files, indices, rows })
    }

    /// Reads the line information of a program, or that of its debug file with this path. Inlined calls are also found in the files
    /// of split DWARF.
    ///
    /// # Errors
    /// The same as those of [`Lines::parse`].
    pub fn of(bytes: &[u8], program: &Path, debug_file: Option<&Path>) -> Result<Lines, LinesError> {
        let lines = Lines::parse(bytes)?;
        let files = SplitFiles::of(program, debug_file);
        Ok(Lines { split: Some(SplitUnits { files, package: OnceCell::new() }), ..lines })
    }

    /// The paths of the source files, without `.` and `..` where these can be resolved.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// All rows, sorted by address and without overlap.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the addresses at which the line changes, sorted. There gprof's line symbols begin.
    pub fn starts(&self) -> Vec<u64> {
        let before = std::iter::once(None).chain(self.rows.iter().map(Some));
        let goes_on = |before: Option<&Row>, row: &Row| {
            before.is_some_and(|before| (before.end, before.location) == (row.start, row.location))
        };
        let starts = self.rows.iter().zip(before).filter(|&(row, before)| !goes_on(before, row));
        starts.map(|(row, _)| row.start).collect()
    }

    /// Returns the line of an address.
    pub fn location(&self, address: u64) -> Option<Location> {
        let index = self.rows.partition_point(|row| row.start <= address).checked_sub(1)?;
        self.rows[index].location.filter(|_| address < self.rows[index].end)
    }

    /// Returns the inlined calls to which an address belongs, by [`Frame::id`], the innermost first.
    pub fn inlined(&self, address: u64) -> Vec<usize> {
        let mut ids = Vec::new();
        self.load(address);
        let Ok(mut found) = self.context.find_frames(address).skip_all_loads() else { return ids };
        while let Ok(Some(frame)) = found.next() {
            ids.push(frame.dw_die_offset.map_or(0, |offset| offset.0));
        }
        // The last one is the function itself.
        ids.pop();
        ids
    }

    /// Returns the functions of an address, the innermost inlined one first. Damaged ones are left out.
    pub fn frames(&self, address: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.load(address);
        let Ok(mut found) = self.context.find_frames(address).skip_all_loads() else { return frames };
        while let Ok(Some(frame)) = found.next() {
            let name = frame.function.as_ref().and_then(|name| name.raw_name().ok());
            let id = frame.dw_die_offset.map_or(0, |offset| offset.0);
            let location = frame.location.as_ref().and_then(|location| {
                let file = *self.indices.get(location.file?)?;
                Some(Location { file, line: location.line.filter(|&line| line > 0)? })
            });
            frames.push(Frame { name: name.map(|name| name.into_owned()), id, location });
        }
        frames
    }

    /// Reads the units of split DWARF to which an address belongs, if that has not happened yet.
    fn load(&self, address: u64) {
        let Some(split) = &self.split else { return };
        for (load, resume) in self.context.preload_units(address) {
            // A damaged unit is left out.
            let _ = resume(split.find(&load).map(Arc::new));
        }
    }
}

/// The units of split DWARF.
struct SplitUnits {
    files: SplitFiles,
    package: OnceCell<Option<DwarfPackage<Slice>>>,
}

impl SplitUnits {
    /// Returns the file with a unit, which is the first one in it.
    fn find(&self, wanted: &SplitDwarfLoad<Slice>) -> Option<Dwarf<Slice>> {
        let package = self.package.get_or_init(|| {
            let bytes = self.files.package()?;
            let file = object::open(&bytes).ok()?;
            let endian = endian(&file);
            DwarfPackage::load(|id| split_section(&file, id), Slice::new(Arc::from([]), endian)).ok()
        });
        let packed =
            package.as_ref().and_then(|package| package.find_cu(wanted.dwo_id, &wanted.parent).ok()?);
        packed.or_else(|| {
            let (name, folder) = (path(wanted.path.as_ref()?)?, wanted.comp_dir.as_ref().and_then(path));
            let mut candidates = self.files.candidates(folder.as_deref(), &name).into_iter();
            candidates.find_map(|path| {
                let bytes = self.files.read(&path)?;
                let file = object::open(&bytes).ok()?;
                let mut dwarf = Dwarf::load(|id| split_section(&file, id)).ok()?;
                dwarf.make_dwo(&wanted.parent);
                let first = dwarf.unit(dwarf.units().next().ok()??).ok()?;
                (first.dwo_id == Some(wanted.dwo_id)).then_some(dwarf)
            })
        })
    }
}

/// Reads a section of a .dwo file or a package.
fn split_section(file: &::object::File<'_>, id: SectionId) -> Result<Slice, LinesError> {
    let data = section(file, id).map_err(|source| LinesError::Section { name: id.name(), source })?;
    Ok(Slice::new(Arc::from(data.as_ref()), endian(file)))
}

fn path(text: &Slice) -> Option<PathBuf> {
    Some(Path::new(OsStr::from_bytes(&text.to_slice().ok()?)).to_owned())
}

fn endian(file: &::object::File<'_>) -> RunTimeEndian {
    if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big }
}

/// Checks that reading all line tables takes time in proportion to them. Units may share one; only a damaged file has many units
/// that all name a long one.
fn check_size(dwarf: &mut gimli::Dwarf<Slice>) -> Result<(), LinesError> {
    /// How often the bytes of all line tables are read at most.
    const TIMES: usize = 8;
    dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
    let mut left = dwarf.debug_line.reader().len().saturating_mul(TIMES);
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        // A unit that cannot be read is left out later.
        let Ok(unit) = dwarf.unit(header) else { continue };
        let Some(program) = &unit.line_program else { continue };
        let len = program.header().raw_program_buf().len();
        left = left.checked_sub(len).ok_or(LinesError::Shared)?;
    }
    Ok(())
}

/// A whole line table; see [`Lines`].
struct Table {
    files: Vec<String>,
    indices: HashMap<String, FileIndex>,
    rows: Vec<Row>,
}

/// Reads the whole line table. Where rows overlap (in a damaged table, or in sections that the linker has
/// dropped, which all begin at 0), the first row with the highest start counts.
fn table(context: &Context<Slice>) -> Result<Table, LinesError> {
    let mut files: Vec<String> = Vec::new();
    let mut indices: HashMap<&str, FileIndex> = HashMap::new();
    let mut cleaned: HashMap<String, FileIndex> = HashMap::new();
    let mut rows = Vec::new();
    for (start, len, location) in context.find_location_range(0, u64::MAX)? {
        let Some(end) = start.checked_add(len).filter(|_| len > 0 && start > 0) else { continue };
        let location = location.file.zip(location.line).map(|(file, line)| {
            let file = *indices.entry(file).or_insert_with(|| {
                let path = clean(file);
                *cleaned.entry(path).or_insert_with_key(|path| {
                    files.push(path.clone());
                    files.len() - 1
                })
            });
            Location { file, line }
        });
        rows.push(Row { start, end, location });
    }
    rows.sort_by_key(|row| row.start);
    rows.dedup_by_key(|row| row.start);
    let starts: Vec<u64> = rows.iter().skip(1).map(|row| row.start).collect();
    rows.iter_mut().zip(starts).for_each(|(row, next)| row.end = row.end.min(next));
    let indices = indices.into_iter().map(|(path, index)| (path.to_owned(), index)).collect();
    Ok(Table { files, indices, rows })
}

/// Returns `/a/c` for `/a/./b/../c`. If b is a symbolic link, that is another file; debuggers do the same.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
        match parts.last() {
            Some(&last) if part == ".." && last != ".." => {
                parts.pop();
            }
            None if part == ".." && path.starts_with('/') => {}
            _ => parts.push(part),
        }
    }
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::clean;

    #[test]
    fn paths_without_detours() {
        assert_eq!(clean("/a/./b//../c.c"), "/a/c.c");
        assert_eq!(clean("/../c.c"), "/c.c");
        assert_eq!(clean("../x/../../c.c"), "../../c.c");
        assert_eq!(clean("./c.c"), "c.c");
    }
}
