//! The image of a program or library: a copy of its file with the patches, and the plan behind it.
//!
//! Processes map the text of the copy in place of the program's own, so that the patches cost none of them anything. Whoever finds the
//! file in the list of a process's mappings (perf, profilers that write this list into their output) finds a whole ELF file there: the same
//! symbols, addresses and build-id, and one more section, which is the arena.

use crate::plan::Plan;
use gprofinject_abi::plan::{FileVersion, Maker, PlanHeader, Table, TextRange};
use gprofinject_abi::region::{PAGE, round_up};
use object::LittleEndian as LE;
use object::elf::{FileHeader64, ProgramHeader64, SectionHeader64};
use object::{U16, U32, U64, elf, pod};
use std::borrow::Cow;
use zerocopy::IntoBytes;

/// An image, in pieces that have to be written in this order.
#[derive(Debug)]
pub struct ImageFile<'p> {
    /// The pieces.
    pub pieces: Vec<Cow<'p, [u8]>>,
    /// Byte offset of the plan's header, a multiple of the page size.
    pub plan: u64,
}

/// The name of the section that is the arena.
const SECTION: &[u8] = b".gprofinject\0";

impl Plan {
    /// Returns the image of the program whose file has these bytes. If there is no `version`, or the program's text cannot be replaced by
    /// that of an image, the image begins with the plan.
    pub fn image(&self, program: &[u8], version: Option<FileVersion>) -> ImageFile<'_> {
        let copy = version.and_then(|version| Some((self.patched(program)?, version)));
        let (mut header, tables, arena) = self.parts();
        let Some((Patched { mut bytes, ranges }, version)) = copy else {
            let pieces = vec![Cow::Owned(header.as_bytes().to_vec()), tables, Cow::Borrowed(arena)];
            return ImageFile { pieces, plan: 0 };
        };
        bytes.resize(round_up(bytes.len() as u64, PAGE) as usize, 0);
        let plan = bytes.len() as u64;
        // The ranges follow the arena, because the tables are already made.
        let text = ranges.as_bytes().to_vec();
        let text_at = header.arena_file + header.arena_len;
        header.text = Table { offset: text_at, count: ranges.len() as u64 };
        header.version_of_text = version;
        let sections_at = plan + text_at + text.len() as u64;
        let sections = add_section(&mut bytes, sections_at, &header, plan).unwrap_or_default();
        let pieces = vec![
            Cow::Owned(bytes),
            Cow::Owned(header.as_bytes().to_vec()),
            tables,
            Cow::Borrowed(arena),
            Cow::Owned(text),
            Cow::Owned(sections),
        ];
        ImageFile { pieces, plan }
    }

    /// Whether the plan was read from an image that has patched text.
    pub fn has_patched_text(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.header().text.count > 0)
    }

    /// Returns a copy of the program's file with the patches, or `None` if its text may not be replaced: others make patches too, or the
    /// program may write to its text.
    fn patched(&self, program: &[u8]) -> Option<Patched> {
        let is_own = |by| by == Maker::Agent.code();
        if self.patches.is_empty() || !self.patches.iter().all(|patch| is_own(patch.by)) {
            return None;
        }
        let mut bytes = program.to_vec();
        let segments = code_segments(program)?;
        for patch in &*self.patches {
            let replacement = patch.replacement.get(..patch.len.into())?;
            let at = segments.iter().find_map(|segment| {
                let inside = patch.address.checked_sub(segment.address)?;
                (inside + u64::from(patch.len) <= segment.len).then(|| segment.offset + inside)
            })?;
            bytes.get_mut(at as usize..)?.get_mut(..replacement.len())?.copy_from_slice(replacement);
        }
        blank_unused(&mut bytes, &segments);
        let ranges = segments.iter().map(|segment| {
            let before = segment.address % PAGE;
            TextRange {
                address: segment.address - before,
                len: round_up(segment.len + before, PAGE),
                offset: segment.offset - before,
            }
        });
        Some(Patched { bytes, ranges: ranges.collect() })
    }
}

/// A copy of a program's file with the patches.
struct Patched {
    bytes: Vec<u8>,
    /// Its text.
    ranges: Vec<TextRange>,
}

/// An executable segment.
struct CodeSegment {
    address: u64,
    offset: u64,
    len: u64,
}

/// Returns the executable segments of a program, or `None` if one of them is not just code in the file.
fn code_segments(program: &[u8]) -> Option<Vec<CodeSegment>> {
    let (header, _) = pod::from_bytes::<FileHeader64<LE>>(program).ok()?;
    let table = program.get(usize::try_from(header.e_phoff.get(LE)).ok()?..)?;
    let count = usize::from(header.e_phnum.get(LE));
    let (segments, _) = pod::slice_from_bytes::<ProgramHeader64<LE>>(table, count).ok()?;
    let mut code = Vec::new();
    for segment in segments.iter().filter(|segment| segment.p_type.get(LE) == elf::PT_LOAD) {
        let flags = segment.p_flags.get(LE);
        if !flags.contains(elf::PF_X) {
            continue;
        }
        let (address, offset, len) =
            (segment.p_vaddr.get(LE), segment.p_offset.get(LE), segment.p_filesz.get(LE));
        let is_plain = flags.contains(elf::PF_R)
            && !flags.contains(elf::PF_W)
            && len == segment.p_memsz.get(LE)
            && address % PAGE == offset % PAGE
            && offset.checked_add(len)? <= program.len() as u64
            && address.checked_add(len)?.checked_add(PAGE).is_some();
        if !is_plain {
            return None;
        }
        code.push(CodeSegment { address, offset, len });
    }
    Some(code)
}

/// Fills sections with zeros that nobody reads in an image, so that they take no space where the image is kept: the data and the
/// relocations of the program, which its processes have from its own file. What names or unwinds code stays, and so does whatever shares a
/// page with code.
fn blank_unused(bytes: &mut [u8], code: &[CodeSegment]) {
    let unused = unused_sections(bytes, code).unwrap_or_default();
    for (start, end) in unused {
        if let Some(section) = bytes.get_mut(start..end) {
            section.fill(0);
        }
    }
}

/// Returns where such sections begin and end in the file, or `None` if it has no section headers, or odd ones.
fn unused_sections(bytes: &[u8], code: &[CodeSegment]) -> Option<Vec<(usize, usize)>> {
    let (sections, names) = sections_of(bytes)?;
    let names = sections.get(names)?;
    let names = bytes.get(usize::try_from(names.sh_offset.get(LE)).ok()?..)?;
    let is_unused = |section: &SectionHeader64<LE>| {
        let name = names.get(section.sh_name.get(LE) as usize..).unwrap_or_default();
        let is_called = |start: &&[u8]| name.starts_with(start);
        let flags = section.sh_flags.get(LE);
        let is_data = match section.sh_type.get(LE) {
            elf::SHT_PROGBITS => ![&b".eh_frame"[..], b".interp", b".note", b".plt"].iter().any(is_called),
            elf::SHT_RELA | elf::SHT_RELR => [&b".rela.dyn"[..], b".relr.dyn"].iter().any(is_called),
            _ => false,
        };
        flags.contains(elf::SHF_ALLOC) && !flags.contains(elf::SHF_EXECINSTR) && is_data
    };
    let range = |section: &SectionHeader64<LE>| {
        let (start, len) = (section.sh_offset.get(LE), section.sh_size.get(LE));
        let end = start.checked_add(len).filter(|&end| end <= bytes.len() as u64)?;
        let is_apart = |segment: &CodeSegment| {
            let last = segment.offset.saturating_add(segment.len);
            end <= segment.offset - segment.offset % PAGE || start >= round_up(last, PAGE)
        };
        code.iter().all(is_apart).then_some((start as usize, end as usize))
    };
    Some(sections.iter().filter(|section| is_unused(section)).filter_map(range).collect())
}

/// Returns the section headers of a file, and the index of the section with their names. Returns `None` if there are none, or odd ones.
fn sections_of(bytes: &[u8]) -> Option<(&[SectionHeader64<LE>], usize)> {
    let (header, _) = pod::from_bytes::<FileHeader64<LE>>(bytes).ok()?;
    let table = bytes.get(usize::try_from(header.e_shoff.get(LE)).ok()?..)?;
    let count = usize::from(header.e_shnum.get(LE));
    let (sections, _) = pod::slice_from_bytes(table, count).ok()?;
    Some((sections, usize::from(header.e_shstrndx.get(LE).0)))
}

/// Returns new section headers and their names, which will be at an offset of the file, with a section for the arena, and changes the
/// ELF header so that it names them. Returns `None` if the file has no section headers, or odd ones.
fn add_section(bytes: &mut [u8], at: u64, plan: &PlanHeader, start: u64) -> Option<Vec<u8>> {
    let (sections, names) = sections_of(bytes)?;
    let (mut sections, count) = (sections.to_vec(), sections.len() as u16);
    let of_names = sections.get_mut(names).filter(|_| count > 0 && count < elf::SHN_LORESERVE)?;
    let (from, len) = (of_names.sh_offset.get(LE) as usize, of_names.sh_size.get(LE) as usize);
    let mut text = bytes.get(from..from.checked_add(len)?)?.to_vec();
    let name = U32::new(LE, text.len() as u32);
    text.extend_from_slice(SECTION);
    of_names.sh_offset = U64::new(LE, at);
    of_names.sh_size = U64::new(LE, text.len() as u64);
    text.resize(text.len().next_multiple_of(8), 0);
    sections.push(SectionHeader64 {
        sh_name: name,
        sh_type: U32::new(LE, elf::SHT_PROGBITS),
        sh_flags: U64::new(LE, elf::SHF_ALLOC | elf::SHF_EXECINSTR),
        sh_addr: U64::new(LE, plan.arena),
        sh_offset: U64::new(LE, start + plan.arena_file),
        sh_size: U64::new(LE, plan.arena_len),
        sh_link: U32::new(LE, 0),
        sh_info: U32::new(LE, 0),
        sh_addralign: U64::new(LE, PAGE),
        sh_entsize: U64::new(LE, 0),
    });
    let (header, _) = pod::from_bytes_mut::<FileHeader64<LE>>(bytes).ok()?;
    header.e_shoff = U64::new(LE, at + text.len() as u64);
    header.e_shnum = U16::new(LE, count + 1);
    text.extend_from_slice(pod::bytes_of_slice(&sections));
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::options::{Engine, Hooks, Options};
    use crate::x86::template::kind::{Measured, Role};
    use gprofinject_image::Image;
    use object::{Object, ObjectSection, ObjectSymbol};
    use zerocopy::FromBytes;

    fn options() -> Options<'static> {
        Options {
            hooks: Hooks::Both,
            engine: Engine::Builtin,
            selected: &|_| true,
            min_size: 0,
            insist: true,
            shadow_stack: false,
            counted: None,
            clock: false,
            outermost: false,
            role: Role::Program,
            measured: Measured::None,
            told: None,
            arena: None,
            words: -128,
        }
    }

    #[test]
    fn an_image_is_the_program_with_patches_and_one_more_section() {
        let bytes = std::fs::read("/proc/self/exe").expect("our own program");
        let program = Image::read(&bytes).expect("a program");
        let plan = Plan::new(&program, &options());
        let image = plan.image(&bytes, Some([1, 2, 3, 4, 5, 6, 7]));
        let file = image.pieces.concat();
        let header = PlanHeader::read_from_prefix(&file[image.plan as usize..]).expect("whole").0;
        assert_eq!((header.version_of_text, header.words), ([1, 2, 3, 4, 5, 6, 7], -128));
        let (before, after) =
            (object::File::parse(&*bytes).expect("ELF"), object::File::parse(&*file).expect("ELF"));
        let symbols = |file: &object::File| -> Vec<(String, u64)> {
            file.symbols()
                .map(|symbol| (symbol.name().unwrap_or_default().to_owned(), symbol.address()))
                .collect()
        };
        assert!(symbols(&before) == symbols(&after) && !symbols(&after).is_empty());
        assert_eq!(before.build_id().expect("sound"), after.build_id().expect("sound"));
        let data = |file: &object::File, name: &str| {
            file.section_by_name(name).and_then(|section| Some(section.data().ok()?.to_vec())).expect("there")
        };
        for name in [".eh_frame", ".eh_frame_hdr", ".dynsym"] {
            assert_eq!(data(&before, name), data(&after, name), "{name}");
        }
        assert!(
            data(&after, ".rodata").iter().all(|&byte| byte == 0),
            "processes have it from the program's own file"
        );
        assert_eq!(before.sections().count() + 1, after.sections().count());
        let arena = after.section_by_name(".gprofinject").expect("the section");
        assert_eq!(
            (arena.address(), arena.data().expect("there")),
            (plan.arena, plan.emitted.code.bytes.as_slice())
        );
        let text = after.section_by_name(".text").expect("the section");
        let patched = plan.patches().iter().filter(|patch| {
            let at = patch.address.wrapping_sub(text.address()) as usize;
            let here = text.data().expect("there").get(at..at + usize::from(patch.len));
            here == patch.replacement.get(..usize::from(patch.len))
        });
        assert!(patched.count() > plan.records.len() / 2 && !plan.records.is_empty());
        // What is mapped is what the kernel has mapped, page by page.
        let at = (image.plan + header.text.offset) as usize;
        let range = TextRange::read_from_prefix(&file[at..]).expect("a range").0;
        assert!(
            header.text.count == 1
                && range.address % PAGE == 0
                && range.len % PAGE == 0
                && range.offset % PAGE == 0
        );
        assert!(range.address <= text.address() && text.address() + text.size() <= range.address + range.len);
    }

    #[test]
    fn without_a_version_there_is_the_plan_alone() {
        let bytes = std::fs::read("/proc/self/exe").expect("our own program");
        let program = Image::read(&bytes).expect("a program");
        let plan = Plan::new(&program, &options());
        let image = plan.image(&bytes, None);
        let header = PlanHeader::read_from_prefix(&image.pieces.concat()).expect("whole").0;
        assert_eq!((image.plan, header.text.count, header.version_of_text), (0, 0, [0; 7]));
        // A file whose segments are not known has no text that could be replaced.
        assert_eq!(plan.image(&bytes[..40], Some([1; 7])).plan, 0);
    }
}
