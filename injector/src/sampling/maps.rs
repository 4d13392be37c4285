//! Which files a process has mapped where, as far as they contain code.

use std::sync::Arc;

use crate::os::proc::{self, Mapping};
use crate::os::{memory_files, sys};
use crate::sampling::histogram::Elsewhere;

/// The name of memory without a file, as in the kernel's records.
const ANONYMOUS: &str = "//anon";

/// A mapping of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// The runtime address of the first byte.
    pub(crate) start: u64,
    /// The runtime address after the last byte.
    pub(crate) end: u64,
    /// The offset of the first byte in the file.
    pub(crate) offset: u64,
    /// The name of the file, or what the kernel calls the memory: `[vdso]`, `//anon`.
    pub(crate) file: Arc<str>,
}

/// The mappings of a process, sorted by address, without overlap.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maps {
    all: Vec<Mapped>,
    /// The files over whose code another file was mapped, each once: hooked code is mapped from files of the cache.
    covered: Vec<Arc<str>>,
    /// How often something was added.
    version: u64,
}

impl Maps {
    /// Adds a mapping, which replaces what was there. Of a mapping that it covers in part the rest stays: the kernel
    /// also reports the pages that mprotect(2) makes executable.
    pub(crate) fn add(&mut self, new: Mapped) {
        /// More mappings of code than a process plausibly has.
        const MOST: usize = 1 << 14;
        if new.start >= new.end {
            return;
        }
        self.version += 1;
        let first = self.all.partition_point(|old| old.end <= new.start);
        let last = self.all.partition_point(|old| old.start < new.end);
        for old in self.all[first..last].iter().filter(|old| old.file != new.file) {
            if self.covered.len() < MOST && !self.covered.contains(&old.file) {
                self.covered.push(Arc::clone(&old.file));
            }
        }
        let mut pieces = Vec::with_capacity(3);
        if let Some(old) = self.all.get(first).filter(|old| old.start < new.start) {
            pieces.push(Mapped { end: new.start, ..old.clone() });
        }
        let end = new.end;
        pieces.push(new);
        if let Some(old) = self.all[first..last].last().filter(|old| old.end > end) {
            let offset = old.offset.saturating_add(end - old.start);
            pieces.push(Mapped { start: end, offset, ..old.clone() });
        }
        if self.all.len() + pieces.len() <= MOST + (last - first) {
            self.all.splice(first..last, pieces);
        }
    }

    /// Adds what a process has mapped now. What it has unmapped stays, because there may be samples in it. If the process
    /// has ended, nothing is added.
    pub(crate) fn add_those_of(&mut self, pid: i32) {
        for mapping in proc::mappings(pid).unwrap_or_default() {
            let Mapping { lo, hi, executable, offset, path, .. } = mapping;
            if executable {
                let file = if path.is_empty() { ANONYMOUS.into() } else { path.into() };
                self.add(Mapped { start: lo, end: hi, offset, file });
            }
        }
    }

    /// Adds code that a process has mapped now where nothing was known to be mapped.
    pub(crate) fn add_new_of(&mut self, pid: i32) {
        for mapped in Maps::of(pid).all {
            let after = self.all.partition_point(|known| known.end <= mapped.start);
            if self.all.get(after).is_none_or(|known| known.start >= mapped.end) {
                self.add(mapped);
            }
        }
    }

    /// Returns a number that differs from an earlier one if something was added since.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the names of all files with code that the process has mapped, those as well over whose code another file was mapped since.
    /// A name may come several times.
    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.all.iter().map(|mapped| &*mapped.file).chain(self.covered.iter().map(|file| &**file))
    }

    /// Returns all mappings, sorted by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mapped> {
        self.all.iter()
    }

    /// Returns what a process has mapped now.
    pub(crate) fn of(pid: i32) -> Maps {
        let mut maps = Maps::default();
        maps.add_those_of(pid);
        maps
    }

    /// Returns the file that is mapped at an address, and the offset in it.
    pub(crate) fn place(&self, address: u64) -> Option<(Arc<str>, u64)> {
        self.at(address).map(|(file, offset)| (Arc::clone(file), offset))
    }

    /// Counts samples at a runtime address, taken at a time.
    pub(crate) fn count(&self, address: u64, time: u64, samples: u64, elsewhere: &mut Elsewhere) {
        match self.at(address) {
            Some((file, offset)) => elsewhere.add_file(file, offset, samples),
            None if self.mapped(address).is_some() => elsewhere.add_memory(time, address, samples),
            None => elsewhere.add_unmapped(address, samples),
        }
    }

    /// Whether code is mapped at an address that is in no file.
    pub(crate) fn is_memory(&self, address: u64) -> bool {
        self.mapped(address).is_some_and(is_memory)
    }

    /// Returns the file that is mapped at an address, and the offset in it. Memory without a file has none, and neither have the thunks of
    /// a library: they are known by their addresses.
    fn at(&self, address: u64) -> Option<(&Arc<str>, u64)> {
        let map = self.mapped(address).filter(|map| !is_memory(map))?;
        Some((&map.file, address - map.start + map.offset))
    }

    /// Returns the mapping that contains an address.
    fn mapped(&self, address: u64) -> Option<&Mapped> {
        let after = self.all.partition_point(|map| map.start <= address);
        self.all.get(after.checked_sub(1)?).filter(|map| address < map.end)
    }
}

/// Whether a mapping is memory without a file, or the thunks of a library. Memory files have no name by which they could be read, and
/// .NET maps the code that it makes from one.
fn is_memory(map: &Mapped) -> bool {
    /// What the kernel shows for memory: anonymous, shared, of huge pages, of System V; the heap and stacks.
    const NAMES: [&str; 8] = [
        "//",
        "[anon",
        "[heap]",
        "[stack",
        "/dev/zero",
        "/anon_hugepage",
        "/SYSV",
        memory_files::MEMORY_FILE,
    ];
    NAMES.iter().any(|name| map.file.starts_with(name)) || is_arena(&map.file)
}

/// Whether a file is one of the cache's that have the arena of a library.
fn is_arena(file: &str) -> bool {
    /// The name is a hash.
    const DIGITS: usize = 64;
    let name = file.trim_end_matches(" (deleted)").rsplit('/').next();
    let key = name.and_then(|name| name.strip_suffix(sys::ARENA));
    key.is_some_and(|key| key.len() == DIGITS && key.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_replaces_only_what_it_covers() {
        let mut maps = Maps::default();
        let map = |start, end, offset, file: &str| Mapped { start, end, offset, file: file.into() };
        maps.add(map(0x1000, 0x9000, 0x400, "a"));
        maps.add(map(0xa000, 0xb000, 0, "b"));
        maps.add(map(0x3000, 0x4000, 0x2400, "a"));
        maps.add(map(0x8000, 0xa800, 0, "//anon"));
        maps.add(map(0x5000, 0x5000, 0, "empty"));
        let expected = [
            map(0x1000, 0x3000, 0x400, "a"),
            map(0x3000, 0x4000, 0x2400, "a"),
            map(0x4000, 0x8000, 0x3400, "a"),
            map(0x8000, 0xa800, 0, "//anon"),
            map(0xa800, 0xb000, 0x800, "b"),
        ];
        assert_eq!(maps.all, expected);
        maps.add(map(0xc000, 0xd000, 0x1000, "/memfd:gprofinject (deleted)"));
        assert_eq!(maps.covered.iter().map(|file| &**file).collect::<Vec<_>>(), ["a", "b"]);
        assert!(["a", "b", "//anon"].iter().all(|file| maps.files().any(|of| of == *file)));
        let key = "0f".repeat(32);
        maps.add(map(0xd000, 0xe000, 0, &format!("/caches/gprofinject/{key}.arena (deleted)")));
        maps.add(map(0xe000, 0xf000, 0, "/home/user/noahs.arena"));
        let at = |address| maps.at(address).map(|(file, offset)| (&**file, offset));
        assert_eq!(at(0x7fff), Some(("a", 0x73ff)));
        assert_eq!(at(0x8000), None);
        assert_eq!(at(0xc000), None);
        assert_eq!(at(0xb000), None);
        assert_eq!((at(0xd800), at(0xe800)), (None, Some(("/home/user/noahs.arena", 0x800))));
        let names = [
            "[anon:v8]",
            "/memfd:doublemapper (deleted)",
            "/dev/zero (deleted)",
            "[heap]",
            "[vdso]",
            "/dev/shm/x",
        ];
        let memory = names.map(|name| {
            maps.add(map(0x2_0000, 0x2_1000, 0, name));
            maps.is_memory(0x2_0800)
        });
        assert_eq!(memory, [true, true, true, true, false, false]);
        assert!(!maps.is_memory(0x1_0000) && maps.is_memory(0x8000) && !maps.is_memory(0x7fff));
        let mut elsewhere = Elsewhere::default();
        for (address, time) in [(0x7fff, 1), (0x8000, 2), (0x1_0000, 3)] {
            maps.count(address, time, 1, &mut elsewhere);
        }
        assert_eq!((elsewhere.files.len(), elsewhere.memory.get(&(2, 0x8000))), (1, Some(&1)));
        assert_eq!(elsewhere.unmapped.get(&0x1_0000), Some(&1));
    }

    #[test]
    fn this_process() {
        let mut maps = Maps::default();
        maps.add_those_of(std::process::id() as i32);
        let here = this_process as *const () as u64;
        let file = std::env::current_exe().expect("a program");
        assert_eq!(maps.at(here).map(|(file, _)| file.to_string()), Some(file.display().to_string()));
    }
}
