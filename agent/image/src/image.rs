//! A program, read and checked.

use std::borrow::Cow;
use std::ops::Range;

use crate::error::ImageError;
use crate::imports::{self, Profiling};
use crate::profiling::Removed;
use crate::{elf, functions, lsda, notes, pointers, ranges, symbols, unwind};

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

/// What else decides about hooking.
#[derive(Debug, Default)]
pub struct Facts {
    /// PT_INTERP, if any; none: a static program.
    pub interpreter: Option<String>,
    /// There is a .symtab with functions in it, in the program or in the debug file that was read with it.
    pub has_symtab: bool,
    /// The unwinder is part of the program (libgcc or libunwind, linked statically).
    pub own_unwinder: bool,
    /// A runtime that insists on true return addresses: exits must not be hooked.
    pub runtime: Option<&'static str>,
    pub go: bool,
    /// A cryptographic module in it checks its own code, by FIPS 140.
    pub checker: Option<&'static str>,
    pub marks: TextMarks,
    /// Wants the shared AddressSanitizer, which insists on being the first library of a program.
    pub address_sanitizer: bool,
    pub build_id: Option<Vec<u8>>,
    /// Sorted: addresses in code that dynamic relocations write to (DT_TEXTREL).
    pub text_relocations: Vec<u64>,
    pub profiling: Profiling,
    /// Calls of hooks are among what is [`Image::removed`]: they must be the C library's empty ones.
    pub hooks_removed: bool,
}

/// Where the linker's marks of the program's code stand, if somebody asked for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextMarks {
    /// `__executable_start` and the like: where the file's first segment is.
    pub start: Option<u64>,
    /// `etext` and the like.
    pub end: Option<u64>,
    /// Data holds the address.
    pub start_in_data: bool,
    pub end_in_data: bool,
}

#[derive(Clone, Debug)]
pub struct Function<'d> {
    pub address: u64,
    /// Bytes; from the symbol, else from its FDE, else up to the next function.
    pub size: u64,
    /// End of the room that belongs to nobody else: the next function's start or the end of the section.
    pub limit: u64,
    /// Preferred name: global before local.
    pub name: &'d str,
    pub aliases: Vec<&'d str>,
    pub kind: FunctionKind,
    /// Whether the function's FDE begins with CFA = rsp + 8; None: no FDE.
    pub frame: Option<bool>,
}

impl<'d> Function<'d> {
    pub fn names(&self) -> impl Iterator<Item = &'d str> + Clone {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    Ordinary,
    /// STT_GNU_IFUNC: the symbol's address is the resolver, itself an ordinary function.
    IfuncResolver,
    /// A `.cold` part, jumped into, never called; index of the function it belongs to, where known.
    Cold(Option<usize>),
    /// The ELF entry point.
    Start,
}

/// Files with more bytes than this are worth a second thread.
const LARGE: usize = 1 << 20;

impl<'d> Image<'d> {
    /// Reads a program's file.
    pub fn read(bytes: &'d [u8]) -> Result<Self, ImageError> {
        Image::read_with(bytes, None)
    }

    /// The same with the names of functions from a separate debug file of this build, if the program has none itself.
    pub fn read_with(bytes: &'d [u8], debug_file: Option<&'d [u8]>) -> Result<Self, ImageError> {
        let elf = elf::Elf::parse(bytes)?;
        let ranges = ranges::CodeRanges::of(&elf);
        // The two witnesses know nothing of each other.
        let (labels, unwind) = std::thread::scope(|scope| {
            let unwind = (bytes.len() > LARGE).then(|| scope.spawn(|| unwind::Unwind::read(&elf)));
            let labels = symbols::Labels::read(&elf, &ranges, debug_file);
            (labels, unwind.and_then(|thread| thread.join().ok()))
        });
        let labels = labels?;
        let mut unwind = unwind.unwrap_or_else(|| unwind::Unwind::read(&elf))?;
        let functions = functions::Functions::merge(&elf, &ranges, &labels, &mut unwind);
        let landing_pads = lsda::landing_pads(&elf, &ranges, &unwind.fdes);
        let mut marks = labels.marks;
        let pointers = pointers::Pointers::read(&elf, &ranges, functions.inner_labels, &mut marks);
        let notes = notes::Notes::read(&elf);
        let address_sanitizer = elf.needed().any(|name| name.starts_with(b"libasan.so"));
        let mut profiling = imports::read(&elf);
        profiling.starts |= labels.profiler;
        let stubs = imports::stubs(&elf, &ranges, &profiling);
        let code = |load: &elf::Load<'d>| Code { address: load.address, bytes: load.bytes.into() };
        let segment = |load: &elf::Load<'d>| Segment { address: load.address, bytes: load.bytes };
        Ok(Image {
            kind: if elf.position_independent { ImageKind::Pie } else { ImageKind::Exec },
            entry: elf.entry,
            phdr: elf.phdr,
            lo: elf.lo,
            hi: elf.hi,
            code: elf.loads.iter().filter(|load| load.executable).map(code).collect(),
            segments: elf.loads.iter().map(segment).collect(),
            removed: Vec::new(),
            code_ranges: ranges.iter().map(|range| range.start..range.end).collect(),
            functions: functions.list,
            code_pointers: pointers.to_code,
            exported: symbols::exported(&elf, &ranges),
            landing_pads,
            facts: Facts {
                interpreter: elf.interpreter,
                has_symtab: labels.complete,
                own_unwinder: labels.unwinder,
                runtime: labels.runtime,
                go: notes.go,
                checker: labels.checker,
                marks,
                address_sanitizer,
                build_id: notes.build_id,
                text_relocations: pointers.in_code,
                profiling,
                hooks_removed: false,
            },
            stubs,
            frames: unwind.keep(),
        })
    }

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
