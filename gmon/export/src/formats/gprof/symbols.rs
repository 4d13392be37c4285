//! Writes an ELF file that contains nothing but the symbols of functions.
//!
//! gprof accepts a file of type ET_EXEC with a section named `.text` that has no contents. It takes a function to extend
//! to the next symbol. It leaves out local symbols with a `$` or a `.` in their names, so all symbols are global.
//!
//! gprof looks for the source line of each function. Without line tables BFD compares the address with all symbols of the
//! function's section each time (`_bfd_elf_find_function`), which takes minutes for 100,000 functions. BFD remembers its
//! last answer, however, and asks for the section by the address. So `.text` is a second section at the same addresses,
//! whose only symbol covers all of it.

use object::Endianness;
use object::elf;
use object::write::elf::{FileHeader, SectionHeader, Sym, Writer};
use object::write::{Result, StringId};

/// The name of the symbol that covers `.text`.
const COVER: &str = "[code]";
/// The name of the symbol at which the last function ends.
const END: &str = "[end]";
/// The number of bytes of `.text` before the first function, so that its symbol is not at the same address.
pub(super) const BEFORE: u64 = 16;

/// Returns the bytes of the file. The symbols are sorted by address, the first one is at [`BEFORE`] or above, and the last
/// one ends at `end`.
///
/// # Errors
/// There are more bytes than a file of this format can have.
pub(super) fn encode<'n>(symbols: impl Iterator<Item = (u64, &'n str)>, end: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(Endianness::Little, true, &mut bytes);
    writer.reserve_file_header();
    writer.reserve_null_section_index();
    let text_name = writer.add_section_name(b".text");
    let text = writer.reserve_section_index();
    let functions_name = writer.add_section_name(b".text.functions");
    let functions = writer.reserve_section_index();
    writer.reserve_null_symbol_index();

    let mut placed: Vec<(u64, u64, StringId)> = Vec::new();
    let cover = writer.add_string(COVER.as_bytes());
    writer.reserve_symbol_index(Some(text));
    for (address, name) in symbols.chain([(end, END)]) {
        if let Some((start, size, _)) = placed.last_mut() {
            *size = address - *start;
        }
        placed.push((address, 0, writer.add_string(name.as_bytes())));
        writer.reserve_symbol_index(Some(functions));
    }
    writer.reserve_symtab_section_index();
    writer.reserve_symtab();
    writer.reserve_strtab_section_index();
    writer.reserve_strtab()?;
    writer.reserve_shstrtab_section_index();
    writer.reserve_shstrtab()?;
    writer.reserve_section_headers();

    writer.write_file_header(&FileHeader {
        os_abi: elf::ELFOSABI_NONE,
        abi_version: 0,
        e_type: elf::ET_EXEC,
        e_machine: elf::EM_X86_64,
        e_entry: 0,
        e_flags: elf::FileFlags(0),
    })?;
    writer.write_null_symbol();
    let start = placed.first().map_or(end, |(address, ..)| *address).saturating_sub(BEFORE);
    // The symbol at the end is within the sections, too.
    let len = end + BEFORE - start;
    let whole = (text, (start, len, cover));
    let all = [whole].into_iter().chain(placed.into_iter().map(|symbol| (functions, symbol)));
    for (section, (address, size, name)) in all {
        let st_name = writer.string_offset(Some(name));
        writer.write_symbol(&Sym {
            section: Some(section.0),
            st_name,
            st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
            st_other: elf::SymbolOther(0),
            st_shndx: elf::SymbolSection(0),
            st_value: address,
            st_size: size,
        });
    }
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    for name in [text_name, functions_name] {
        let sh_name = writer.section_name_offset(Some(name));
        writer.write_section_header(&SectionHeader {
            sh_name,
            sh_type: elf::SHT_NOBITS,
            sh_flags: elf::SectionFlags(elf::SHF_ALLOC.0 | elf::SHF_EXECINSTR.0),
            sh_addr: start,
            sh_offset: 0,
            sh_size: len,
            sh_link: 0,
            sh_info: 0,
            sh_addralign: 16,
            sh_entsize: 0,
        });
    }
    writer.write_symtab_section_header(1);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    Ok(bytes)
}
