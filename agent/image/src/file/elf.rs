//! The headers, segments and sections of an x86-64 program that gprofinject may patch.
//!
//! The kernel and the dynamic linker read program headers and what these lead to. Nobody reads section headers when a program
//! runs, so they may be wrong in a program that works. They only refine what the segments say, and loaded sections are believed
//! only if all of them agree with the segments.
//!
//! The structures are those of the `object` crate; the checks are made here, because a plan needs more than a
//! report: every range is checked against the file's length once, so that later code only slices, a damaged
//! table is named in the error, and what the kernel would refuse to load is refused. Reports open files of any
//! width by [`object`](crate::file::object) instead.

use crate::file::error::{ImageError, NotExecutable};
use crate::x86::is_fill;
use object::LittleEndian as LE;
use object::elf;
use object::pod;

type Header = elf::FileHeader64<LE>;
type SegmentHeader = elf::ProgramHeader64<LE>;
type SectionHeader = elf::SectionHeader64<LE>;
/// An entry of a symbol table.
pub(crate) type Symbol = elf::Sym64<LE>;
/// A relocation.
pub(crate) type Rela = elf::Rela64<LE>;
/// An entry of the dynamic section.
pub(crate) type Dynamic = elf::Dyn64<LE>;
/// A little-endian word.
pub(crate) type Word = object::U64<LE>;

/// The number of program headers that Linux accepts at most: they must fit into 64 KiB.
const SEGMENTS_MAX: u16 = (65536 / size_of::<SegmentHeader>()) as u16;
/// Linux's smallest page, in bytes.
const PAGE: u64 = 4096;
/// The end of user space. Addresses from here on are never mapped.
const ADDRESS_END: u64 = 1 << 47;

/// A PT_LOAD segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load<'d> {
    pub(crate) address: u64,
    pub(crate) bytes: &'d [u8],
    /// The bytes, and those after them up to the end of the last page, which the kernel maps as well.
    pub(crate) mapped: &'d [u8],
    /// The number of bytes in memory, at least those of the file.
    pub(crate) memory: u64,
    pub(crate) executable: bool,
    /// The offset of the bytes in the file.
    offset: u64,
}

impl Load<'_> {
    /// Whether the file has bytes for this address of the segment.
    pub(crate) fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|offset| offset < self.bytes.len() as u64)
    }
}

/// A section of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section<'d> {
    pub(crate) name: &'d [u8],
    pub(crate) kind: elf::SectionType,
    pub(crate) flags: elf::SectionFlags,
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The contents; `None` if the section has none (NOBITS) or is partly beyond the file's end.
    pub(crate) bytes: Option<&'d [u8]>,
    pub(crate) link: u32,
    /// The offset of the contents in the file.
    offset: u64,
}

impl Section<'_> {
    /// Whether the section is loaded into memory.
    pub(crate) fn loaded(&self) -> bool {
        self.flags.0 & elf::SHF_ALLOC.0 != 0
    }

    /// Whether the section contains code.
    pub(crate) fn executable(&self) -> bool {
        self.loaded() && self.flags.0 & elf::SHF_EXECINSTR.0 != 0
    }

    /// Whether the section contains stubs of the dynamic linker: code that belongs to no function.
    pub(crate) fn is_plt(&self) -> bool {
        is_plt(self.name)
    }
}

/// Whether a section of this name has stubs of the dynamic linker.
pub(crate) fn is_plt(name: &[u8]) -> bool {
    matches!(name, b".plt" | b".plt.sec" | b".plt.got" | b".plt.bnd" | b".iplt")
}

/// How the addresses of a program or library are meant (e_type).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElfType {
    /// ET_EXEC: it is loaded at its link addresses.
    Exec,
    /// ET_DYN: it is position-independent.
    Dyn,
}

/// A checked ELF file.
#[derive(Debug)]
pub(crate) struct Elf<'d> {
    pub(crate) elf_type: ElfType,
    pub(crate) entry: u64,
    pub(crate) phdr: u64,
    /// The address after the program headers.
    pub(crate) phdr_end: u64,
    pub(crate) lo: u64,
    pub(crate) hi: u64,
    /// The loaded segments, sorted by address and disjoint.
    pub(crate) loads: Vec<Load<'d>>,
    /// The sections that are not loaded, and the loaded ones if all of them agree with the segments. Empty if the file has
    /// no section headers (sstrip) or damaged ones.
    pub(crate) sections: Vec<Section<'d>>,
    pub(crate) interpreter: Option<String>,
    /// The contents and alignments of the PT_NOTE segments.
    pub(crate) notes: Vec<(&'d [u8], u64)>,
    /// From the dynamic section to the end of its segment. The last entry is DT_NULL.
    dynamic: &'d [Dynamic],
    /// The address of .eh_frame_hdr.
    pub(crate) eh_frame_hdr: Option<u64>,
}

/// Returns the bytes of the file at `offset..offset + len`.
fn range<'d>(bytes: &'d [u8], what: &'static str, offset: u64, len: u64) -> Result<&'d [u8], ImageError> {
    slice(bytes, offset, len).ok_or(ImageError::Truncated { what, offset, len })
}

/// Returns `len` bytes at `offset`, if there are so many.
pub(crate) fn slice(bytes: &[u8], offset: u64, len: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = usize::try_from(offset.checked_add(len)?).ok()?;
    bytes.get(start..end)
}

/// Returns as many whole records as the bytes contain.
pub(crate) fn records<T: pod::Pod>(bytes: &[u8]) -> &[T] {
    // With object's "unaligned" types this can fail only if there are too few bytes, which the count rules
    // out.
    pod::slice_from_bytes(bytes, bytes.len() / size_of::<T>()).map_or(&[], |(records, _)| records)
}

impl<'d> Elf<'d> {
    /// Checks the headers of a file.
    ///
    /// # Errors
    /// The file is not an x86-64 Linux program, or is damaged.
    pub(crate) fn parse(bytes: &'d [u8]) -> Result<Self, ImageError> {
        let file = Elf::parse_any(bytes)?;
        if file.elf_type == ElfType::Dyn && !file.is_program() {
            return Err(ImageError::SharedLibrary);
        }
        // The kernel starts the program there, or the dynamic linker after it has loaded the libraries.
        let entered = |load: &Load<'_>| load.executable && load.contains(file.entry);
        if !file.loads.iter().any(entered) {
            return Err(ImageError::Corrupt { what: "the entry point", offset: 24, value: file.entry });
        }
        Ok(file)
    }

    /// Checks the headers of a program's or a library's file.
    ///
    /// # Errors
    /// The file is not an x86-64 Linux program or library, or is damaged.
    pub(crate) fn parse_any(bytes: &'d [u8]) -> Result<Self, ImageError> {
        let header = header(bytes)?;
        let phoff = header.e_phoff.get(LE);
        let segments = segment_headers(bytes, header)?;
        let mut file = Elf {
            elf_type: if header.e_type.get(LE) == elf::ET_DYN { ElfType::Dyn } else { ElfType::Exec },
            entry: header.e_entry.get(LE),
            phdr: 0,
            phdr_end: 0,
            lo: 0,
            hi: 0,
            loads: Vec::new(),
            sections: Vec::new(),
            interpreter: None,
            notes: Vec::new(),
            dynamic: &[],
            eh_frame_hdr: None,
        };
        file.read_segments(bytes, phoff, segments)?;
        if !file.loads.iter().any(|load| load.executable && !load.bytes.is_empty()) {
            return Err(ImageError::NoCode);
        }
        file.sections = sections(bytes, header);
        if !file.agrees_with_segments() {
            file.sections.retain(|section| !section.loaded());
        }
        Ok(file)
    }

    /// Whether each loaded section is where a segment loads its bytes, is executable only if the segment is, and overlaps no
    /// other one; and whether they hide no code.
    fn agrees_with_segments(&self) -> bool {
        let has_bytes =
            |section: &&Section<'_>| section.loaded() && section.kind != elf::SHT_NOBITS && section.size > 0;
        let mut sections: Vec<&Section<'_>> = self.sections.iter().filter(has_bytes).collect();
        let is_there = |section: &&Section<'_>| {
            let load = self.loads.iter().find(|load| load.contains(section.address));
            load.is_some_and(|load| {
                let within = section.address - load.address;
                within.checked_add(section.size).is_some_and(|end| end <= load.bytes.len() as u64)
                    && section.offset.checked_sub(load.offset) == Some(within)
                    && (load.executable || !section.executable())
            })
        };
        sections.sort_by_key(|section| section.address);
        sections.iter().all(is_there)
            && sections.windows(2).all(|two| two[0].address + two[0].size <= two[1].address)
            && self.loads.iter().filter(|load| load.executable).all(|load| hides_nothing(load, &sections))
    }

    /// Whether sections say where the code is.
    pub(crate) fn has_code_sections(&self) -> bool {
        self.sections.iter().any(Section::executable)
    }

    fn read_segments(
        &mut self,
        bytes: &'d [u8],
        phoff: u64,
        segments: &'d [SegmentHeader],
    ) -> Result<(), ImageError> {
        let mut mapped_end = 0;
        let mut dynamic = None;
        let mut budget = (bytes.len() as u64).saturating_mul(2);
        for (index, segment) in segments.iter().enumerate() {
            let header_at = phoff + (index * size_of::<SegmentHeader>()) as u64;
            let corrupt = |what, value| ImageError::Corrupt { what, offset: header_at, value };
            let (offset, len) = (segment.p_offset.get(LE), segment.p_filesz.get(LE));
            let address = segment.p_vaddr.get(LE);
            match segment.p_type.get(LE) {
                elf::PT_LOAD => {
                    let memory = segment.p_memsz.get(LE);
                    let end = address.checked_add(memory).filter(|&end| end <= ADDRESS_END);
                    let Some(end) = end else {
                        return Err(corrupt("the address of a segment", address));
                    };
                    if memory < len {
                        return Err(corrupt("the memory size of a segment", memory));
                    }
                    if address < mapped_end {
                        return Err(corrupt("the address of a segment, inside the one before,", address));
                    }
                    // Segments that map the same bytes again and again would make the loops below endless.
                    budget = budget
                        .checked_sub(len)
                        .ok_or_else(|| corrupt("the file size of a segment, mapped before,", len))?;
                    let data = range(bytes, "a segment", offset, len)?;
                    if self.loads.is_empty() {
                        self.lo = address & !(PAGE - 1);
                    }
                    self.hi = end.next_multiple_of(PAGE);
                    mapped_end = end;
                    if (offset..offset + len).contains(&phoff) {
                        self.phdr = address + (phoff - offset);
                    }
                    let executable = segment.p_flags.get(LE).0 & elf::PF_X.0 != 0;
                    // The bytes that the kernel maps begin and end with a page.
                    let after = (address + len).next_multiple_of(PAGE) - address;
                    let mapped =
                        slice(bytes, offset, after).or_else(|| bytes.get(usize::try_from(offset).ok()?..));
                    let mapped = mapped.filter(|_| len > 0).unwrap_or(data);
                    self.loads.push(Load { address, bytes: data, mapped, memory, executable, offset });
                }
                elf::PT_INTERP => {
                    let name = range(bytes, "the interpreter's name", offset, len)?;
                    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                    self.interpreter = Some(String::from_utf8_lossy(name).into_owned());
                }
                // The dynamic linker finds it by its address, and reads up to an entry that says that it is the last one.
                elf::PT_DYNAMIC => dynamic = Some(address),
                // Neither is needed to run the program, so a missing one is not an error.
                elf::PT_NOTE => {
                    if let Some(data) = slice(bytes, offset, len) {
                        self.notes.push((data, segment.p_align.get(LE)));
                    }
                }
                elf::PT_GNU_EH_FRAME => self.eh_frame_hdr = Some(address),
                _ => {}
            }
        }
        self.dynamic = dynamic.and_then(|address| self.rest_at(address)).map_or(&[], records);
        if self.phdr == 0 {
            let stated = segments.iter().find(|segment| segment.p_type.get(LE) == elf::PT_PHDR);
            self.phdr = stated.map_or(self.lo.saturating_add(phoff), |segment| segment.p_vaddr.get(LE));
        }
        self.phdr_end = self.phdr.saturating_add(size_of_val(segments) as u64);
        Ok(())
    }

    /// Whether the file is a program. An ET_DYN file is one if the kernel can start it by itself: with an
    /// interpreter, or as a static PIE, which DT_FLAGS_1 says, or which at least has neither a library's name
    /// nor needs libraries. (Old linkers gave libraries an entry point too.)
    fn is_program(&self) -> bool {
        if self.entry == 0 {
            return false;
        }
        let pie = self.dynamic_value(elf::DT_FLAGS_1).is_some_and(|flags| flags & elf::DF_1_PIE.0 != 0);
        let library = [elf::DT_SONAME, elf::DT_NEEDED];
        self.interpreter.is_some() || pie || !library.iter().any(|&tag| self.dynamic_value(tag).is_some())
    }

    /// Returns the value of an entry of the dynamic section.
    pub(crate) fn dynamic_value(&self, tag: elf::DynamicTag) -> Option<u64> {
        self.dynamic
            .iter()
            .take_while(|entry| entry.d_tag.get(LE) != elf::DT_NULL)
            .find(|entry| entry.d_tag.get(LE) == tag)
            .map(|entry| entry.d_val.get(LE))
    }

    /// Returns the names of the libraries that the program needs (DT_NEEDED).
    pub(crate) fn needed(&self) -> impl Iterator<Item = &'d [u8]> + '_ {
        self.dynamic_strings(elf::DT_NEEDED)
    }

    /// Returns the name by which other files need this library (DT_SONAME).
    pub(crate) fn soname(&self) -> Option<&'d [u8]> {
        self.dynamic_strings(elf::DT_SONAME).next()
    }

    fn dynamic_strings(&self, tag: elf::DynamicTag) -> impl Iterator<Item = &'d [u8]> + '_ {
        let table =
            self.dynamic_value(elf::DT_STRTAB).and_then(|address| self.rest_at(address)).unwrap_or_default();
        self.dynamic
            .iter()
            .take_while(|entry| entry.d_tag.get(LE) != elf::DT_NULL)
            .filter(move |entry| entry.d_tag.get(LE) == tag)
            .filter_map(move |entry| Some(string(table, u32::try_from(entry.d_val.get(LE)).ok()?, 255)))
    }

    /// Returns the file's bytes from this address to the end of its segment.
    pub(crate) fn rest_at(&self, address: u64) -> Option<&'d [u8]> {
        self.loads.iter().find_map(|load| at(load, address))
    }

    /// Returns `len` bytes at an address, if the file has all of them.
    pub(crate) fn at_address(&self, address: u64, len: u64) -> Option<&'d [u8]> {
        self.rest_at(address)?.get(..usize::try_from(len).ok()?)
    }

    /// Returns the first section of that name.
    pub(crate) fn section(&self, name: &[u8]) -> Option<&Section<'d>> {
        self.sections.iter().find(|section| section.name == name)
    }
}

/// Whether all bytes of an executable segment are in executable sections, except for padding between them. In a segment with
/// the ELF header, data is beside the code (`-z noseparate-code`), but that is in sections too.
fn hides_nothing(load: &Load<'_>, sections: &[&Section<'_>]) -> bool {
    let is_mixed = load.offset == 0;
    let inside: Vec<_> = sections.iter().filter(|section| load.contains(section.address)).collect();
    let Some(first) = inside.first() else { return false };
    let mut at = if is_mixed { first.address } else { load.address };
    for section in &inside {
        let gap = load.bytes.get((at - load.address) as usize..(section.address - load.address) as usize);
        if !gap.is_some_and(is_fill) || !is_mixed && !section.executable() {
            return false;
        }
        at = section.address + section.size;
    }
    load.bytes.get((at - load.address) as usize..).is_some_and(is_fill)
}

fn at<'d>(load: &Load<'d>, address: u64) -> Option<&'d [u8]> {
    let offset = usize::try_from(address.checked_sub(load.address)?).ok()?;
    load.bytes.get(offset..).filter(|rest| !rest.is_empty())
}

/// Checks the header of a 64-bit x86 program or library.
fn header(bytes: &[u8]) -> Result<&Header, ImageError> {
    if !bytes.starts_with(&elf::ELFMAG) {
        return Err(ImageError::NotElf);
    }
    let truncated =
        ImageError::Truncated { what: "the ELF header", offset: 0, len: size_of::<Header>() as u64 };
    let (Some(&class), Some(&data)) = (bytes.get(4), bytes.get(5)) else { return Err(truncated) };
    let corrupt = |what, offset, value| Err(ImageError::Corrupt { what, offset, value });
    match elf::FileClass(class) {
        elf::ELFCLASS64 => {}
        elf::ELFCLASS32 => return Err(ImageError::ThirtyTwoBit),
        _ => return corrupt("the ELF class", 4, class.into()),
    }
    match elf::DataEncoding(data) {
        elf::ELFDATA2LSB => {}
        elf::ELFDATA2MSB => return Err(ImageError::BigEndian),
        _ => return corrupt("the byte order", 5, data.into()),
    }
    let Ok((header, _)) = pod::from_bytes::<Header>(bytes) else { return Err(truncated) };
    match header.e_machine.get(LE) {
        elf::EM_X86_64 => {}
        other => return Err(ImageError::OtherMachine(machine_name(other))),
    }
    match header.e_type.get(LE) {
        elf::ET_EXEC | elf::ET_DYN => Ok(header),
        elf::ET_REL => Err(ImageError::NotExecutable(NotExecutable::Object)),
        elf::ET_CORE => Err(ImageError::NotExecutable(NotExecutable::Core)),
        other => Err(ImageError::NotExecutable(NotExecutable::Unknown(other.0))),
    }
}

fn machine_name(machine: elf::Machine) -> String {
    let name = match machine {
        elf::EM_AARCH64 => "64-bit ARM",
        elf::EM_RISCV => "RISC-V",
        elf::EM_PPC64 => "64-bit PowerPC",
        elf::EM_S390 => "IBM Z",
        elf::EM_LOONGARCH => "LoongArch",
        elf::EM_MIPS => "MIPS",
        elf::EM_SPARCV9 => "64-bit SPARC",
        elf::EM_ALPHA => "Alpha",
        elf::EM_IA_64 => "Itanium",
        elf::EM_BPF => "the kernel's BPF machine",
        other => return format!("machine number {}", other.0),
    };
    name.to_owned()
}

fn segment_headers<'d>(bytes: &'d [u8], header: &Header) -> Result<&'d [SegmentHeader], ImageError> {
    let size = header.e_phentsize.get(LE);
    if usize::from(size) != size_of::<SegmentHeader>() {
        return Err(ImageError::Corrupt { what: "the program header size", offset: 54, value: size.into() });
    }
    let count = header.e_phnum.get(LE);
    if count == 0 || count > SEGMENTS_MAX {
        return Err(ImageError::Corrupt {
            what: "the program header count",
            offset: 56,
            value: count.into(),
        });
    }
    let len = u64::from(count) * u64::from(size);
    range(bytes, "the program header table", header.e_phoff.get(LE), len).map(records)
}

/// Returns the sections of a file that need not be a program. In a debug file the segments are empty.
///
/// # Errors
/// The file is not an x86-64 ELF file.
pub(crate) fn sections_of(bytes: &[u8]) -> Result<Vec<Section<'_>>, ImageError> {
    Ok(sections(bytes, header(bytes)?))
}

/// Returns the sections, or none if the table is damaged: no program needs it to run.
fn sections<'d>(bytes: &'d [u8], header: &Header) -> Vec<Section<'d>> {
    section_table(bytes, header).unwrap_or_default()
}

fn section_table<'d>(bytes: &'d [u8], header: &Header) -> Option<Vec<Section<'d>>> {
    let offset = header.e_shoff.get(LE);
    let size = header.e_shentsize.get(LE);
    if offset == 0 || usize::from(size) != size_of::<SectionHeader>() {
        return None;
    }
    // The first section header has counts that do not fit into the ELF header.
    let first = records::<SectionHeader>(slice(bytes, offset, size.into())?).first()?;
    let count = match header.e_shnum.get(LE) {
        0 => first.sh_size.get(LE),
        count => count.into(),
    };
    let names_index = match header.e_shstrndx.get(LE) {
        elf::SHN_XINDEX => first.sh_link.get(LE),
        index => u32::from(index.0),
    };
    let headers: &[SectionHeader] = records(slice(bytes, offset, count.checked_mul(size.into())?)?);
    let contents = |header: &SectionHeader| {
        let present = header.sh_type.get(LE) != elf::SHT_NOBITS;
        present.then(|| slice(bytes, header.sh_offset.get(LE), header.sh_size.get(LE))).flatten()
    };
    let names = headers.get(names_index as usize).and_then(contents).unwrap_or_default();
    let section = |header: &SectionHeader| Section {
        name: string(names, header.sh_name.get(LE), 256),
        kind: header.sh_type.get(LE),
        flags: header.sh_flags.get(LE),
        address: header.sh_addr.get(LE),
        size: header.sh_size.get(LE),
        bytes: contents(header),
        offset: header.sh_offset.get(LE),
        link: header.sh_link.get(LE),
    };
    Some(headers.iter().map(section).collect())
}

/// Returns the zero-terminated string at an offset of a string table, or an empty one if there is none of at
/// most this length. (Without the limit, a table without zeros would cost the square of its size.)
pub(crate) fn string(table: &[u8], offset: u32, longest: usize) -> &[u8] {
    let rest = table.get(offset as usize..).unwrap_or_default();
    let rest = &rest[..rest.len().min(longest + 1)];
    std::ffi::CStr::from_bytes_until_nul(rest).map_or(&[], std::ffi::CStr::to_bytes)
}
