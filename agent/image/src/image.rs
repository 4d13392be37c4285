//! A program, read and checked.

use std::borrow::Cow;
use std::ops::Range;

use crate::facts::Facts;
use crate::file::imports;
use crate::frames::{lsda, unwind};
use crate::function::{Function, FunctionKind};
use crate::removed::Removed;

/// A program, read and checked. Addresses are link addresses.
#[derive(Debug)]
pub struct Image<'d> {
    pub kind: ImageKind,
    /// e_entry.
    pub entry: u64,
    /// Address of the program headers when loaded.
    pub phdr: u64,
    /// Extents of all PT_LOAD segments, as mapped (page-aligned).
    pub lo: u64,
    pub hi: u64,
    /// The executable PT_LOAD segments with their file contents, but for what is [`Image::removed`].
    pub code: Vec<Code<'d>>,
    /// All PT_LOAD segments with their file contents.
    pub segments: Vec<Segment<'d>>,
    /// Sorted: calls that the plan takes out of the program. See [`Image::remove_profiling`].
    pub removed: Vec<Removed>,
    /// Sorted and disjoint: the executable sections (segments where the file has no sections).
    pub code_ranges: Vec<Range<u64>>,
    /// Sorted by address, one for each address (aliases merged), no two overlap.
    pub functions: Vec<Function<'d>>,
    /// Sorted: addresses in code that data holds pointers to (relocations, and words of an ET_EXEC).
    pub code_pointers: Vec<u64>,
    /// Sorted: addresses in code that .dynsym gives to everybody who asks for them by name.
    pub exported: Vec<u64>,
    /// Sorted: landing pads from the exception tables.
    pub landing_pads: Vec<u64>,
    pub facts: Facts,
    /// Of the dynamic linker, where there are calls to be removed.
    pub stubs: imports::Stubs,
    pub frames: unwind::Frames<'d>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// ET_EXEC: loaded where it was linked.
    Exec,
    /// ET_DYN with an entry point.
    Pie,
}

#[derive(Clone, Debug)]
pub struct Code<'d> {
    pub address: u64,
    pub bytes: Cow<'d, [u8]>,
}

#[derive(Clone, Copy, Debug)]
pub struct Segment<'d> {
    pub address: u64,
    pub bytes: &'d [u8],
}

impl<'d> Image<'d> {
    /// The canonical frame address that .eh_frame gives for an address, as a DWARF register number (6: rbp,
    /// 7: rsp) and an offset.
    pub fn cfa(&self, address: u64) -> Option<(u16, i64)> {
        self.frames.cfa(address)
    }

    /// The same for all addresses of the frame description that holds one.
    pub fn cfas(&self, address: u64) -> Option<unwind::Cfas> {
        self.frames.cfas(address, None)
    }

    /// The landing pads in these ranges.
    pub fn landing_pads_in(&self, ranges: &[(u64, u64)]) -> Vec<u64> {
        let mut pads = Vec::new();
        for &(lo, hi) in ranges {
            let from = self.landing_pads.partition_point(|&pad| pad < lo);
            pads.extend(self.landing_pads[from..].iter().take_while(|&&pad| pad < hi));
        }
        pads
    }

    /// The exception table of a frame description. `None`: it has none, or a damaged one.
    pub fn exception_table(&self, description: &unwind::Description<'_>) -> Option<lsda::Table<'d>> {
        let at = Some(description.lsda).filter(|&at| at != 0)?;
        lsda::Table::read(at, description.start, |at| self.data_from(at), |at, len| self.data_at(at, len))
    }

    /// The machine code at an address, without what is [`Image::removed`], if the file has all of it.
    pub fn code_at(&self, address: u64, len: u64) -> Option<&[u8]> {
        self.code.iter().find_map(|code| bytes_at(code.address, &code.bytes, address, len))
    }

    /// The same up to the end of the segment.
    pub fn code_from(&self, address: u64) -> Option<&[u8]> {
        self.code.iter().find_map(|code| {
            let start = usize::try_from(address.checked_sub(code.address)?).ok()?;
            code.bytes.get(start..)
        })
    }

    /// The bytes at an address of code or data, as the file has them (before relocation).
    pub fn data_at(&self, address: u64, len: u64) -> Option<&'d [u8]> {
        self.segments.iter().find_map(|segment| bytes_at(segment.address, segment.bytes, address, len))
    }

    /// The same up to the end of the segment.
    pub fn data_from(&self, address: u64) -> Option<&'d [u8]> {
        self.segments.iter().find_map(|segment| {
            let start = usize::try_from(address.checked_sub(segment.address)?).ok()?;
            segment.bytes.get(start..)
        })
    }

    /// The index of the function whose extent holds `address`; `None` between functions.
    pub fn function_at(&self, address: u64) -> Option<usize> {
        let i = self.functions.partition_point(|f| f.address <= address).checked_sub(1)?;
        let f = &self.functions[i];
        (address < f.address + f.size.max(1)).then_some(i)
    }

    /// The index of the function that the code of function `index` belongs to: the parent of a cold part, if it is known,
    /// and otherwise `index` itself.
    pub fn owner(&self, index: usize) -> usize {
        match self.functions.get(index).map(|f| f.kind) {
            Some(FunctionKind::Cold(Some(parent))) => parent,
            _ => index,
        }
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
