//! A program, read and checked.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use crate::facts::Facts;
use crate::file::elf::ElfType;
use crate::file::imports;
use crate::frames::{lsda, unwind};
use crate::list::Functions;
use crate::removed::Removed;

/// A program, read and checked. Addresses are link addresses.
#[derive(Debug)]
pub struct Image<'d> {
    pub elf_type: ElfType,
    /// The entry point (e_entry).
    pub entry: u64,
    /// The address of the program headers when the program is loaded.
    pub phdr: u64,
    /// The extent of all PT_LOAD segments, as mapped (page-aligned).
    pub lo: u64,
    pub hi: u64,
    /// The executable PT_LOAD segments with their file contents up to the end of the last page, except for what is
    /// [`Image::removed`].
    pub code: Vec<Code<'d>>,
    /// All PT_LOAD segments with their file contents.
    pub segments: Vec<Segment<'d>>,
    /// The calls that the plan removes from the program, sorted. See [`Image::remove_profiling`].
    pub removed: Vec<Removed>,
    /// The executable sections, or segments if no sections are believed, sorted and disjoint. Functions are nowhere else.
    pub code_ranges: Vec<Range<u64>>,
    /// The functions, sorted by address, one for each address (aliases are merged), without overlap.
    pub functions: Functions<'d>,
    pub facts: Facts,
    /// See [`Image::nameless_parts`].
    pub nameless_parts: OnceLock<Vec<(usize, usize)>>,
    /// See [`Image::details`].
    pub details: OnceLock<Details>,
    /// The section .eh_frame.
    pub eh_frame: &'d [u8],
    /// The files that were read: the program's, and the separate debug file with its names.
    pub files: (&'d [u8], Option<&'d [u8]>),
}

/// What only the planner needs to know of a program.
#[derive(Debug, Default)]
pub struct Details {
    /// The addresses in code to which data has pointers (relocations, and words of an ET_EXEC), the exported ones, and those
    /// to which the kernel and the dynamic linker give control, sorted.
    pub code_pointers: Vec<u64>,
    /// The places in the data of a position-independent image at which relocations write addresses of code, each with the address,
    /// sorted.
    pub relocated: Vec<(u64, u64)>,
    /// The addresses in code that .dynsym exports by name, sorted.
    pub exported: Vec<u64>,
    /// Those of them that are in `code_pointers` for no other reason, sorted.
    pub only_exported: Vec<u64>,
    /// The addresses to which the kernel and the dynamic linker give control, sorted. Some may not be in code.
    pub entries: Vec<u64>,
    /// The landing pads in the exception tables, sorted.
    pub landing_pads: Vec<u64>,
    /// The dynamic linker's stubs, if there are calls to remove.
    pub stubs: imports::Stubs,
    /// The functions of the file that it calls through the dynamic linker's stubs, each with its stub, sorted.
    pub own_stubs: Vec<(u64, u64)>,
    pub frames: unwind::FrameTable,
}

/// The bytes of an executable segment.
#[derive(Clone, Debug)]
pub struct Code<'d> {
    pub address: u64,
    pub bytes: Cow<'d, [u8]>,
}

/// The bytes of a segment.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'d> {
    pub address: u64,
    pub bytes: &'d [u8],
    /// The number of bytes in memory, at least those of the file.
    pub memory: u64,
}

impl<'d> Image<'d> {
    /// Returns the details. Those of an image that was kept ([`Image::outline`]) are read when they are first needed.
    pub fn details(&self) -> &Details {
        self.details.get_or_init(|| Image::read_details(self.files.0, self.files.1))
    }

    /// Returns the details, which may be changed.
    pub fn details_mut(&mut self) -> &mut Details {
        self.details();
        self.details.get_mut().expect("they were just read")
    }

    /// Returns the frame descriptions.
    pub fn frames(&self) -> unwind::Frames<'_, 'd> {
        unwind::Frames { bytes: self.eh_frame, table: &self.details().frames }
    }

    /// Returns the canonical frame address that .eh_frame has for an address, as a DWARF register number (6:
    /// rbp, 7: rsp) and an offset.
    pub fn cfa(&self, address: u64) -> Option<(u16, i64)> {
        self.frames().cfa(address)
    }

    /// Whether a frame description begins at an address.
    pub fn begins_frame(&self, address: u64) -> bool {
        self.frames().begin(address)
    }

    /// Returns the canonical frame addresses for all addresses of the frame description that covers this one.
    pub fn cfas(&self, address: u64) -> Option<unwind::Cfas> {
        self.frames().cfas(address, None)
    }

    /// Returns the landing pads in these ranges.
    pub fn landing_pads_in(&self, ranges: &[(u64, u64)]) -> Vec<u64> {
        let mut pads = Vec::new();
        for &(lo, hi) in ranges {
            let from = self.details().landing_pads.partition_point(|&pad| pad < lo);
            pads.extend(self.details().landing_pads[from..].iter().take_while(|&&pad| pad < hi));
        }
        pads
    }

    /// Returns the exception table of a frame description, or `None` if it has none or a damaged one.
    pub fn exception_table(&self, description: &unwind::Description<'_>) -> Option<lsda::Table<'d>> {
        let at = Some(description.lsda).filter(|&at| at != 0)?;
        lsda::Table::read(at, description.start, |at| self.data_from(at), |at, len| self.data_at(at, len))
    }

    /// Returns the machine code at an address, without what is [`Image::removed`], if the file has all of it.
    pub fn code_at(&self, address: u64, len: u64) -> Option<&[u8]> {
        self.code.iter().find_map(|code| bytes_at(code.address, &code.bytes, address, len))
    }

    /// Returns the machine code from an address to the end of the segment.
    pub fn code_from(&self, address: u64) -> Option<&[u8]> {
        self.code.iter().find_map(|code| {
            let start = usize::try_from(address.checked_sub(code.address)?).ok()?;
            code.bytes.get(start..).filter(|bytes| !bytes.is_empty())
        })
    }

    /// Returns the bytes of code or data at an address, as the file has them (before relocation).
    pub fn data_at(&self, address: u64, len: u64) -> Option<&'d [u8]> {
        self.segments.iter().find_map(|segment| bytes_at(segment.address, segment.bytes, address, len))
    }

    /// Returns the pointer that the data at an address contains when the program runs, if that is known, and if it leads to code in a
    /// position-independent image.
    pub fn pointer_at(&self, address: u64) -> Option<u64> {
        if self.elf_type == ElfType::Exec {
            return Some(u64::from_le_bytes(self.data_at(address, 8)?.try_into().ok()?));
        }
        let at = self.details().relocated.binary_search_by_key(&address, |&(place, _)| place).ok()?;
        Some(self.details().relocated[at].1)
    }

    /// Returns the bytes from an address to the end of the segment.
    pub fn data_from(&self, address: u64) -> Option<&'d [u8]> {
        self.segments.iter().find_map(|segment| {
            let start = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            segment.bytes.get(start..)
        })
    }

    /// Returns the index of the function that contains `address`, or `None` between functions.
    pub fn function_at(&self, address: u64) -> Option<usize> {
        let index = self.functions.last_up_to(address, usize::MAX)?;
        let (start, end) = self.functions.bounds(index)?;
        (address < end.max(start.saturating_add(1))).then_some(index)
    }

    /// Whether data may be at the address: outside of executable sections or, if they are unknown, of functions.
    pub fn may_be_data(&self, address: u64) -> bool {
        !self.is_code(address) || !self.facts.has_code_sections && self.function_at(address).is_none()
    }

    /// Whether the address is in an executable section.
    pub fn is_code(&self, address: u64) -> bool {
        let after = self.code_ranges.partition_point(|range| range.start <= address);
        self.code_ranges[..after].last().is_some_and(|range| address < range.end)
    }
}

fn bytes_at(start: u64, bytes: &[u8], address: u64, len: u64) -> Option<&[u8]> {
    let start = usize::try_from(address.checked_sub(start)?).ok()?;
    bytes.get(start..start.checked_add(usize::try_from(len).ok()?)?)
}
