//! Split DWARF: the units whose entries are in .dwo files or in a package, as the skeleton units of the program name them.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use gimli::{
    DebugInfoOffset, Dwarf, DwarfPackage, DwarfPackageSections, DwarfSections, DwoId, Section, Unit,
    UnitHeader,
};

use crate::debug::{SplitFiles, split_units};
use crate::signatures::sections::{DebugInfoError, Slice, slice, split_sections};

/// The greatest number of address ranges that are kept of units that were not found.
const RANGES_MAX: usize = 1 << 20;
/// The number of address ranges above which all further units are read, whatever addresses are wanted.
const SEARCHED_MAX: usize = 1 << 24;

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Split {
    package: Option<DwarfPackageSections<Vec<u8>>>,
    files: Vec<DwarfSections<Vec<u8>>>,
    skeletons: Vec<Skeleton>,
    missing: MissingUnits,
}

/// Skeleton units, by the numbers that their units have.
pub(crate) type Skeletons<'s> = HashMap<DwoId, Unit<Slice<'s>>>;

/// A skeleton unit.
#[derive(Debug)]
struct Skeleton {
    offset: DebugInfoOffset,
    id: DwoId,
    source: Source,
}

/// Where the entries of a skeleton's unit are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Package,
    /// In one of [`Split::files`].
    File(usize),
    /// Nowhere, or they are not wanted.
    Nowhere,
}

/// The units of which no entries were found.
#[derive(Debug, Default)]
pub struct MissingUnits {
    /// Their number.
    pub count: usize,
    /// The name of one of the .dwo files, as the program has it.
    pub name: PathBuf,
    /// The addresses of their code, sorted.
    ranges: Vec<gimli::Range>,
}

impl MissingUnits {
    /// Whether they have the code at an address.
    pub fn have(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|range| range.begin <= address);
        after.checked_sub(1).and_then(|at| self.ranges.get(at)).is_some_and(|range| address < range.end)
    }
}

impl Split {
    /// Finds the units for all skeleton units of a program, or for those with code at one of these sorted addresses.
    pub(crate) fn find(dwarf: &Dwarf<Slice<'_>>, files: &SplitFiles, addresses: Option<&[u64]>) -> Split {
        let mut split = Split::default();
        let mut wanted = Vec::new();
        let mut searched = 0;
        let mut units = dwarf.units();
        while let Ok(Some(header)) = units.next() {
            let Some((id, unit)) = skeleton(dwarf, header) else { continue };
            let Some(offset) = unit.header.debug_info_offset() else { continue };
            if addresses.is_none_or(|addresses| has_some(dwarf, &unit, addresses, &mut searched)) {
                wanted.push((split.skeletons.len(), unit));
            }
            split.skeletons.push(Skeleton { offset, id, source: Source::Nowhere });
        }
        if wanted.is_empty() {
            return split;
        }
        split.package = files.package().and_then(|bytes| package(&bytes).ok());
        let in_package = split.package.as_ref().and_then(borrowed);
        let has = |id| in_package.as_ref().is_some_and(|all| matches!(all.find_cu(id, dwarf), Ok(Some(_))));
        let mut opened = HashMap::new();
        for (index, unit) in wanted {
            let Some(Skeleton { id, source, .. }) = split.skeletons.get_mut(index) else { continue };
            if has(*id) {
                *source = Source::Package;
                continue;
            }
            let name = name(dwarf, &unit);
            let found = name.as_ref().and_then(|name| {
                let folder = unit.comp_dir.map(|folder| path(folder.slice()));
                let mut paths = files.candidates(folder, name).into_iter();
                paths.find_map(|path| open(&mut opened, &mut split.files, files, path, *id))
            });
            match found {
                Some(file) => *source = Source::File(file),
                None => split.missing.add(dwarf, &unit, name.unwrap_or_default()),
            }
        }
        split.missing.ranges.sort_by_key(|range| range.begin);
        split
    }

    pub(crate) fn missing(&self) -> Option<&MissingUnits> {
        Some(&self.missing).filter(|missing| missing.count > 0)
    }

    /// Whether the unit at this offset is a skeleton unit.
    pub(crate) fn is_skeleton(&self, offset: Option<DebugInfoOffset>) -> bool {
        self.skeletons.binary_search_by_key(&offset, |skeleton| Some(skeleton.offset)).is_ok()
    }

    /// Returns the files in which the units are that were found, each with the skeleton units of its units. A package counts as
    /// many files, and some of these have only units of types.
    pub(crate) fn files<'s>(&'s self, main: &Dwarf<Slice<'s>>) -> Vec<(Dwarf<Slice<'s>>, Skeletons<'s>)> {
        let skeleton = |of: &Skeleton| Some((of.id, main.unit(main.unit_header(of.offset).ok()?).ok()?));
        let files = self.files.iter();
        let mut all: Vec<_> = files.map(|sections| (split(sections, main), Skeletons::new())).collect();
        let package = self.package.as_ref().and_then(borrowed);
        // A damaged program may name a unit more than once.
        let mut used = HashSet::new();
        for of in &self.skeletons {
            match of.source {
                Source::File(index) => {
                    if let Some((_, units)) = all.get_mut(index) {
                        units.extend(skeleton(of));
                    }
                }
                Source::Package if used.insert(of.id) => {
                    let found = package.as_ref().and_then(|package| package.find_cu(of.id, main).ok()?);
                    all.extend(found.map(|found| (found, skeleton(of).into_iter().collect())));
                }
                Source::Package | Source::Nowhere => {}
            }
        }
        // Those of another build.
        all.retain(|(_, skeletons)| !skeletons.is_empty());
        if let Some(package) = package.filter(|_| !used.is_empty()) {
            let types = 1..=package.tu_index.unit_count();
            all.extend(
                types.map_while(|index| Some((package.tu_sections(index, main).ok()?, Skeletons::new()))),
            );
        }
        all
    }
}

impl MissingUnits {
    fn add(&mut self, dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>, name: PathBuf) {
        if self.count == 0 {
            self.name = name;
        }
        self.count += 1;
        let Ok(mut ranges) = dwarf.unit_ranges(unit) else { return };
        while let Ok(Some(range)) = ranges.next() {
            if self.ranges.len() == RANGES_MAX {
                return;
            }
            self.ranges.push(range);
        }
    }
}

/// Returns the number of a unit's entries elsewhere if it is a skeleton unit.
fn skeleton<'s>(dwarf: &Dwarf<Slice<'s>>, header: UnitHeader<Slice<'s>>) -> Option<(DwoId, Unit<Slice<'s>>)> {
    // Only units of split DWARF have their addresses in a table before version 5.
    let is_possible = match header.version() {
        5.. => matches!(header.type_(), gimli::UnitType::Skeleton(_)),
        _ => !dwarf.debug_addr.reader().slice().is_empty(),
    };
    let unit = if is_possible { dwarf.unit(header).ok()? } else { return None };
    let has_name = unit.dwo_name().is_ok_and(|name| name.is_some());
    unit.dwo_id.filter(|_| has_name).map(|id| (id, unit))
}

fn name(dwarf: &Dwarf<Slice<'_>>, unit: &Unit<Slice<'_>>) -> Option<PathBuf> {
    let name = dwarf.attr_string(unit, unit.dwo_name().ok()??).ok()?;
    Some(path(name.slice()).to_owned())
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// Whether a unit has code at one of these addresses, or does not say where its code is.
fn has_some(
    dwarf: &Dwarf<Slice<'_>>,
    unit: &Unit<Slice<'_>>,
    addresses: &[u64],
    searched: &mut usize,
) -> bool {
    let Ok(mut ranges) = dwarf.unit_ranges(unit) else { return true };
    let mut is_known = false;
    while let Ok(Some(range)) = ranges.next() {
        is_known = true;
        *searched += 1;
        if *searched > SEARCHED_MAX {
            return true;
        }
        let first = addresses.partition_point(|&address| address < range.begin);
        if addresses.get(first).is_some_and(|&address| address < range.end) {
            return true;
        }
    }
    !is_known
}

/// Returns the index in `files` of the .dwo file at a path if it has the unit with this number. Each file is read once.
fn open(
    opened: &mut HashMap<PathBuf, Option<(usize, HashSet<DwoId>)>>,
    files: &mut Vec<DwarfSections<Vec<u8>>>,
    from: &SplitFiles,
    path: PathBuf,
    id: DwoId,
) -> Option<usize> {
    let known = opened.entry(path).or_insert_with_key(|path| {
        let bytes = from.read(path)?;
        let sections = DwarfSections::load(split_sections(&bytes).ok()?).ok()?;
        let mut dwarf = sections.borrow(|bytes| slice(bytes));
        dwarf.file_type = gimli::DwarfFileType::Dwo;
        let ids = split_units(&dwarf);
        files.push(sections);
        Some((files.len() - 1, ids))
    });
    known.as_ref().filter(|(_, ids)| ids.contains(&id)).map(|&(index, _)| index)
}

/// Reads the sections of a package.
fn package(bytes: &[u8]) -> Result<DwarfPackageSections<Vec<u8>>, DebugInfoError> {
    DwarfPackageSections::load(split_sections(bytes)?)
}

fn borrowed(sections: &DwarfPackageSections<Vec<u8>>) -> Option<DwarfPackage<Slice<'_>>> {
    sections.borrow(|bytes| slice(bytes), slice(&[])).ok()
}

/// Returns the units of a .dwo file, with what they need of the program.
fn split<'s>(sections: &'s DwarfSections<Vec<u8>>, main: &Dwarf<Slice<'s>>) -> Dwarf<Slice<'s>> {
    let mut dwarf = sections.borrow(|bytes| slice(bytes));
    dwarf.make_dwo(main);
    dwarf
}
