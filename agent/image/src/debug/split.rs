//! The files of split DWARF (`-gsplit-dwarf`), in which most debug information of a program is: a `.dwo` file for each of its units,
//! or all of them in a package, `PROGRAM.dwp`.
//!
//! Whoever has made a program chooses the names of its .dwo files. So a file counts only if it is a regular one that this user could
//! read, as for source files, and if it belongs to this user, to root or to the program's owner. Whether it belongs to a unit, its
//! reader decides, by the number that both have ([`split_units`]).

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gimli::{Dwarf, DwoId, Reader, SectionId};
use object::{Object, ObjectSection, SectionFlags, elf};

use crate::debug::authors::Authors;
use crate::debug::files::{MAX_SIZE, read_open};
use crate::debug::sections::{SectionError, contents};

/// The size in bytes above which further sections of one name are left out.
const SECTIONS_MAX: usize = 1 << 30;

/// Where a program's .dwo files and its package are searched.
#[derive(Debug, Default)]
pub struct SplitFiles {
    packages: Vec<PathBuf>,
    /// The folders of the program and of its debug file, in which a .dwo file may be after the program has been moved.
    folders: Vec<PathBuf>,
    authors: Authors,
    /// The users whose files count.
    owners: BTreeSet<u32>,
    /// How many more bytes are read.
    left: Cell<u64>,
}

impl SplitFiles {
    /// Returns where those of a program or library are, and of its debug file if that has the debug information.
    pub fn of(program: &Path, debug_file: Option<&Path>) -> SplitFiles {
        let mut found = SplitFiles { left: Cell::new(MAX_SIZE), ..SplitFiles::default() };
        for path in std::iter::once(program).chain(debug_file) {
            // Nothing is known of who has made a file that is gone, and has chosen the names in it.
            let Ok(metadata) = path.metadata() else { return SplitFiles::default() };
            found.owners.insert(metadata.uid());
            let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            for path in [&real, path] {
                let mut name = path.as_os_str().to_owned();
                name.push(".dwp");
                push_new(&mut found.packages, name.into());
            }
            push_new(&mut found.folders, real.parent().unwrap_or(Path::new("/")).to_owned());
        }
        found.authors = Authors::among(found.owners.iter().copied());
        found.owners.extend([0, rustix::process::geteuid().as_raw()]);
        found
    }

    /// Returns the bytes of the package, if there is one.
    pub(crate) fn package(&self) -> Option<Vec<u8>> {
        self.packages.iter().find_map(|path| self.read(path))
    }

    /// Returns the paths at which the .dwo file may be to which a unit gives this name, relative to the folder in which it was
    /// compiled: there, and beside the program.
    pub(crate) fn candidates(&self, compiled_in: Option<&Path>, name: &Path) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        let full = compiled_in.map_or_else(|| name.to_owned(), |folder| folder.join(name));
        if full.is_absolute() {
            paths.push(full.clone());
        }
        for folder in &self.folders {
            push_new(&mut paths, folder.join(&full));
            paths.extend(name.file_name().map(|file| folder.join(file)));
        }
        paths.dedup();
        paths
    }

    /// Reads a file, if it counts and is an ELF file.
    pub(crate) fn read(&self, path: &Path) -> Option<Vec<u8>> {
        let file = self.authors.open(path).ok()?;
        let (bytes, _) = read_open(file, self.left.get(), |owner| self.owners.contains(&owner))?;
        self.left.set(self.left.get().saturating_sub(bytes.len() as u64));
        Some(bytes)
    }
}

fn push_new(paths: &mut Vec<PathBuf>, path: PathBuf) {
    if !paths.contains(&path) {
        paths.push(path);
    }
}

/// Returns the contents of a section of a .dwo file or a package. Those with macros, which are large, count as missing.
///
/// Types that several files define (`-fdebug-types-section`) have sections of their own, in groups. They follow the others here.
///
/// # Errors
/// The section is damaged, or compressed in an unknown way.
pub(crate) fn section<'d>(file: &object::File<'d>, id: SectionId) -> Result<Cow<'d, [u8]>, SectionError> {
    let is_read = !matches!(id, SectionId::DebugMacinfo | SectionId::DebugMacro);
    let Some(name) = id.dwo_name().filter(|_| is_read) else { return Ok(Cow::Borrowed(&[])) };
    let mut found: Vec<_> = file.sections().filter(|section| section.name() == Ok(name)).collect();
    found.sort_by_key(|section| {
        matches!(section.flags(), SectionFlags::Elf { sh_flags, .. } if sh_flags & elf::SHF_GROUP == elf::SHF_GROUP)
    });
    match found.as_slice() {
        [only] => contents(only),
        all => {
            let mut bytes = Vec::new();
            for section in all {
                let contents = contents(section)?;
                if bytes.len() + contents.len() > SECTIONS_MAX {
                    break;
                }
                bytes.extend_from_slice(&contents);
            }
            Ok(Cow::Owned(bytes))
        }
    }
}

/// Returns the numbers of the units in a .dwo file.
pub(crate) fn split_units<R: Reader>(dwarf: &Dwarf<R>) -> HashSet<DwoId> {
    let mut ids = HashSet::new();
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        ids.extend(dwarf.unit(header).ok().and_then(|unit| unit.dwo_id));
    }
    ids
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn beside(folder: &Path) -> SplitFiles {
        std::fs::write(folder.join("p"), "a program").expect("a file");
        SplitFiles::of(&folder.join("p"), None)
    }

    #[test]
    fn where_a_file_may_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().canonicalize().expect("a path");
        let files = beside(&folder);
        let found =
            |compiled_in: &str, name: &str| files.candidates(Some(Path::new(compiled_in)), Path::new(name));
        let own = |name: &str| folder.join(name);
        assert_eq!(found("/build", "o/a.dwo"), [PathBuf::from("/build/o/a.dwo"), own("a.dwo")]);
        assert_eq!(found("/build", "/o/a.dwo"), [PathBuf::from("/o/a.dwo"), own("a.dwo")]);
        assert_eq!(found(".", "o/a.dwo"), [own("./o/a.dwo"), own("a.dwo")]);
        assert!(files.candidates(None, Path::new("..")).len() == 1);
        assert!(
            SplitFiles::of(Path::new("/no/such/program"), None).candidates(None, Path::new("a")).is_empty()
        );
    }

    #[test]
    fn what_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = beside(folder.path());
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a.dwo"), b"\x7fELF...").expect("a file");
        std::fs::write(at("text.dwo"), b"text").expect("a file");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe.dwo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .expect("a pipe");
        symlink("a.dwo", at("link.dwo")).expect("a link");
        let reads = |name: &str| files.read(&at(name)).is_some();
        assert_eq!(
            ["a.dwo", "link.dwo", "text.dwo", "pipe.dwo", "."].map(reads),
            [true, true, false, false, false]
        );
        files.left.set(7);
        assert!(!reads("a.dwo"));
        files.left.set(8);
        assert!(reads("a.dwo") && !reads("a.dwo"));
    }

    #[test]
    fn what_the_owner_of_the_program_could_read() {
        let folder = tempfile::tempdir().expect("a folder");
        drop(beside(folder.path()));
        let at = |name: &str| folder.path().join(name);
        let mode = |name: &str, mode| {
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(mode)).expect("a mode");
        };
        mode("", 0o755);
        for name in ["open.dwo", "private.dwo", "other.dwo"] {
            std::fs::write(at(name), b"\x7fELF").expect("a file");
        }
        if chown(at("p"), Some(54_321), None)
            .and_then(|()| chown(at("other.dwo"), Some(54_322), None))
            .is_err()
        {
            return gprofinject_skip::skipped(
                "what_the_owner_of_the_program_could_read",
                "not permitted here",
            );
        }
        mode("open.dwo", 0o644);
        mode("other.dwo", 0o644);
        mode("private.dwo", 0o600);
        let files = SplitFiles::of(&at("p"), None);
        let reads = |name: &str| files.read(&at(name)).is_some();
        assert_eq!(["open.dwo", "private.dwo", "other.dwo"].map(reads), [true, false, false]);
    }
}
