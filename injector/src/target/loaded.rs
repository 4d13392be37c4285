//! The libraries that a running process has mapped.
//!
//! The process controls its mappings and what is in them. Numbers from there are bounded, and decide only what the agent
//! does in that process.

use std::fs::Metadata;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use gprofinject_abi::attach::LibraryOrder;

use crate::os::proc::{self, Mapping};
use crate::program::library;
use crate::program::resolve::Executed;
use crate::target::agent::foreign_file;
use crate::target::process::Process;
use crate::target::threads::memory::Memory;

/// The greatest number of libraries that are considered.
const MOST: usize = 1024;
/// The greatest length in bytes of all their files together, which are read as a whole. Chromium and its libraries have a
/// tenth of that.
pub(crate) const BYTES_MOST: u64 = 4 << 30;
/// The greatest number of program headers that are read. Libraries have about ten.
const HEADERS_MOST: u64 = 256;
/// The size in bytes of struct Elf64_Phdr, and the offsets of e_phoff, e_phentsize and e_phnum in struct Elf64_Ehdr.
const HEADER: u64 = 56;
const PHOFF: u64 = 0x20;
const PHENTSIZE: u64 = 0x36;
const PHNUM: u64 = 0x38;

/// A library that a process has mapped.
pub(crate) struct Loaded {
    /// Its file.
    pub(crate) file: Executed,
    /// Where it is, without a plan.
    pub(crate) order: LibraryOrder,
}

/// What a process has mapped.
#[derive(Default)]
pub(crate) struct Mapped {
    /// The address of the dynamic linker, which is one of the libraries; 0 if there is none.
    pub(crate) dynamic_linker: u64,
    /// The libraries whose files can be read, in the order of their addresses.
    pub(crate) loaded: Vec<Loaded>,
    /// The paths of the others. A library whose file has been replaced since may be among them, and what is beyond
    /// [`BYTES_MOST`].
    pub(crate) unreadable: Vec<PathBuf>,
}

/// Returns the libraries that a process has mapped.
pub(crate) fn libraries(process: &Process) -> Mapped {
    let mut mapped = Mapped { dynamic_linker: process.dynamic_linker(), ..Mapped::default() };
    let (Ok(mappings), Ok(memory)) = (process.mappings(), Memory::open(process.pid)) else {
        return mapped;
    };
    let program =
        mappings.iter().find(|mapping| (mapping.lo..mapping.hi).contains(&process.program_headers()));
    let program = program.map_or(0, |mapping| mapping.inode);
    let first = |mapping: &&Mapping| {
        mapping.offset == 0 && mapping.path.starts_with('/') && mapping.inode != 0 && mapping.inode != program
    };
    let mut left = BYTES_MOST;
    // Files that are no libraries do not count: a database may have mapped thousands of them.
    let libraries =
        mappings.iter().filter(first).filter_map(|mapping| Some((mapping, placed(&memory, mapping.lo)?)));
    for (mapping, order) in libraries.take(MOST) {
        let is_code =
            |other: &Mapping| other.executable && other.inode == mapping.inode && other.hi >= order.text[1];
        if !mappings.iter().any(|other| is_code(other) && other.lo <= order.text[0]) {
            continue;
        }
        let file = foreign_file::of_mapping(process.pid, mapping).ok().and_then(|file| {
            let metadata = file.metadata().ok()?;
            left = left.checked_sub(metadata.len())?;
            library::is_mapped_at(process.pid, mapping.lo, &metadata).then_some((file, metadata))
        });
        match file {
            Some((file, metadata)) => mapped.loaded.push(Loaded {
                file: Executed::new(OwnedFd::from(file)),
                order: LibraryOrder { file: identity(&metadata), ..order },
            }),
            None => mapped.unreadable.push(PathBuf::from(&mapping.path)),
        }
    }
    mapped
}

/// Returns the file of which a process has mapped the first page at an address, and its length in bytes.
pub(crate) fn file_at(pid: i32, address: u64) -> Option<(Executed, u64)> {
    let mappings = proc::mappings(pid).ok()?;
    let is_it =
        |mapping: &&Mapping| mapping.lo == address && mapping.offset == 0 && mapping.path.starts_with('/');
    let file = foreign_file::of_mapping(pid, mappings.iter().find(is_it)?).ok()?;
    let metadata = file.metadata().ok()?;
    library::is_mapped_at(pid, address, &metadata)
        .then(|| (Executed::new(OwnedFd::from(file)), metadata.len()))
}

/// Returns where the parts of an ELF object are whose header is at an address, or `None` if there is no object with code,
/// or one that does not begin at link address 0.
fn placed(memory: &Memory, start: u64) -> Option<LibraryOrder> {
    const PT_LOAD: u64 = 1;
    const PF_X: u64 = 1;
    const ELF: &[u8] = b"\x7fELF\x02";
    if memory.bytes(start, ELF.len()).ok()? != ELF {
        return None;
    }
    let half = |at: u64| Some(memory.word(start + at).ok()? & 0xffff);
    let (offset, size, count) = (memory.word(start + PHOFF).ok()?, half(PHENTSIZE)?, half(PHNUM)?);
    if size != HEADER || count > HEADERS_MOST {
        return None;
    }
    let headers = start.checked_add(offset)?;
    let records: Vec<[u64; HEADER as usize / 8]> = memory.records(headers, count as usize).ok()?;
    let mut loads = records.iter().filter(|record| record[0] as u32 as u64 == PT_LOAD);
    if loads.clone().next()?[2] != 0 {
        return None;
    }
    let mut text = [u64::MAX, 0];
    // Each record has: type and flags, offset, virtual address, physical address, size in the file, size in memory.
    for record in loads.by_ref().filter(|record| record[0] >> 32 & PF_X != 0) {
        let lo = start.checked_add(record[2])?;
        text = [text[0].min(lo), text[1].max(lo.checked_add(record[5])?)];
    }
    let is_code = text[0] < text[1];
    is_code.then_some(LibraryOrder {
        start,
        text,
        headers: [headers, size, count],
        ..LibraryOrder::default()
    })
}

/// Returns what identifies a file's contents, as the agent computes it.
fn identity(metadata: &Metadata) -> [u64; 5] {
    let changed = [metadata.mtime() as u64, metadata.mtime_nsec() as u64];
    [metadata.dev(), metadata.ino(), metadata.len(), changed[0], changed[1]]
}

#[cfg(test)]
#[allow(unsafe_code, reason = "the tests map files")]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::path::Path;

    use super::*;
    use crate::target::threads::filters::Filters;

    const PAGE: usize = 4096;

    /// Returns the first page of an ELF object with these program headers: type and flags, offset, virtual address, physical
    /// address, size in the file, size in memory.
    fn object(headers: &[[u64; 6]]) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        let mut put = |at: usize, bytes: &[u8]| page[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, b"\x7fELF\x02");
        put(PHOFF as usize, &64_u64.to_le_bytes());
        put(PHENTSIZE as usize, &(HEADER as u16).to_le_bytes());
        put(PHNUM as usize, &(headers.len() as u16).to_le_bytes());
        for (index, header) in headers.iter().enumerate() {
            for (word, value) in header.iter().enumerate() {
                put(64 + index * HEADER as usize + word * 8, &value.to_le_bytes());
            }
        }
        page
    }

    /// One segment of code, of this length.
    fn code(len: u64) -> [[u64; 6]; 1] {
        [[1 | 5 << 32, 0, 0, 0, len, len]]
    }

    /// Maps the first page of a file. The mapping stays.
    fn map(file: &File) -> u64 {
        let access = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: this is a new mapping, which replaces no other one.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE, access, libc::MAP_PRIVATE, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at as u64
    }

    fn file(path: &Path, len: u64) -> File {
        let mut file = File::options().read(true).write(true).create_new(true).open(path).expect("a file");
        file.write_all(&object(&code(PAGE as u64))).expect("written");
        file.set_len(len).expect("sparse");
        file
    }

    /// This process, as one that is attached to.
    fn own() -> Process {
        let pid = std::process::id() as i32;
        Process { pid, auxiliary: Vec::new(), stack: 0, started: 0, is_foreign: true, filters: Filters::None }
    }

    #[test]
    fn headers_that_cannot_be() {
        let memory = Memory::open(std::process::id() as i32).expect("its own memory");
        let placed = |page: &[u8]| placed(&memory, page.as_ptr() as u64);
        let sound = object(&code(0x800));
        let order = placed(&sound).expect("sound");
        assert_eq!(order.text, [order.start, order.start + 0x800]);
        assert_eq!(order.headers, [order.start + 64, HEADER, 1]);
        let changed = |at: u64, bytes: &[u8]| {
            let mut page = sound.clone();
            page[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
            page
        };
        for (why, page) in [
            ("no object", changed(0, b"\x7fELG")),
            ("32 bits", changed(4, &[1])),
            ("headers elsewhere", changed(PHOFF, &u64::MAX.to_le_bytes())),
            ("headers at no address", changed(PHOFF, &(1_u64 << 62).to_le_bytes())),
            ("headers of another size", changed(PHENTSIZE, &57_u16.to_le_bytes())),
            ("too many headers", changed(PHNUM, &(HEADERS_MOST as u16 + 1).to_le_bytes())),
            ("no header", changed(PHNUM, &0_u16.to_le_bytes())),
            ("not at address 0", object(&[[1 | 5 << 32, 0, 0x1000, 0, 1, 1]])),
            ("no code", object(&[[1 | 4 << 32, 0, 0, 0, 0x800, 0x800]])),
            ("no bytes", object(&code(0))),
            ("an end beyond all addresses", object(&code(u64::MAX))),
            ("a start beyond all addresses", object(&[code(1)[0], [1 | 5 << 32, 0, u64::MAX, 0, 1, 1]])),
        ] {
            assert!(placed(&page).is_none(), "{why}");
        }
        assert!(super::placed(&memory, 8).is_none(), "nothing is mapped there");
    }

    /// A process can map any file as often as the kernel lets it, and sparse files as long as the file system lets it.
    #[test]
    fn files_are_bounded_in_number_and_length() {
        let place = tempfile::tempdir().expect("a folder");
        let of_place = |path: &Path| path.starts_with(place.path());
        let longs: Vec<File> =
            (0..3).map(|n| file(&place.path().join(format!("long{n}")), (BYTES_MOST / 8) * 3)).collect();
        let at: Vec<u64> = longs.iter().map(map).collect();
        let mapped = libraries(&own());
        let long = mapped.loaded.iter().filter(|library| of_place(&library.file.name)).count();
        let not_read = mapped.unreadable.iter().filter(|path| of_place(path)).count();
        assert_eq!((long, not_read), (2, 1));
        for at in at {
            // SAFETY: this is a mapping of this test's, and nothing else.
            unsafe { libc::munmap(at as *mut libc::c_void, PAGE) };
        }
        let short = file(&place.path().join("short"), PAGE as u64);
        let at: Vec<u64> = (0..2 * MOST).map(|_| map(&short)).collect();
        let mapped = libraries(&own());
        assert!(mapped.loaded.len() <= MOST && mapped.loaded.len() > MOST / 2, "{}", mapped.loaded.len());
        for at in at {
            // SAFETY: as above.
            unsafe { libc::munmap(at as *mut libc::c_void, PAGE) };
        }
    }
}
