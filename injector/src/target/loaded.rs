//! The libraries that a running process has mapped.
//!
//! The process controls its mappings and what is in them. Numbers from there are bounded, and decide only what the agent
//! does in that process.

use std::fs::Metadata;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use gprofinject_abi::attach::LibraryOrder;

use crate::os::proc::Mapping;
use crate::program::library;
use crate::program::resolve::Executed;
use crate::target::agent::foreign_file;
use crate::target::process::Process;
use crate::target::threads::memory::Memory;

/// The greatest number of libraries that are considered.
const MOST: usize = 1024;
/// The greatest length in bytes of all their files together, which are read as a whole. Chromium and its libraries have a
/// tenth of that.
const BYTES_MOST: u64 = 4 << 30;
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
    /// The libraries whose files can be read, in the order of their addresses.
    pub(crate) loaded: Vec<Loaded>,
    /// The paths of the others. A library whose file has been replaced since may be among them, and what is beyond
    /// [`BYTES_MOST`].
    pub(crate) unreadable: Vec<PathBuf>,
}

/// Returns the libraries that a process has mapped.
pub(crate) fn libraries(process: &Process) -> Mapped {
    let mut mapped = Mapped::default();
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
    for mapping in mappings.iter().filter(first).take(MOST) {
        let Some(order) = placed(&memory, mapping.lo) else { continue };
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
