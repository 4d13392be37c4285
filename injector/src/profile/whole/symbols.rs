//! Writes an ELF file that contains nothing but the symbols of functions.
//!
//! gprof accepts a file of type ET_EXEC with a section named `.text` that has no contents. It takes a function to extend
//! to the next symbol, and the last one to the end of that section. It leaves out local symbols with a `$` or a `.` in
//! their names, so all symbols are global.

use object::Endianness;
use object::elf;
use object::write::elf::{FileHeader, SectionHeader, Sym, Writer};
use object::write::{Result, StringId};

/// Returns the bytes of the file. The symbols are sorted by address; the last one ends at `end`.
///
/// # Errors
/// There are more bytes than a file of this format can have.
pub(super) fn encode<'n>(symbols: impl Iterator<Item = (u64, &'n str)> + Clone, end: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut writer = Writer::new(Endianness::Little, true, &mut bytes);
    writer.reserve_file_header();
    writer.reserve_null_section_index();
    let text_name = writer.add_section_name(b".text");
    let text = writer.reserve_section_index();
    writer.reserve_null_symbol_index();
    let mut placed: Vec<(u64, u64, StringId)> = Vec::new();
    for (address, name) in symbols.clone() {
        if let Some((start, size, _)) = placed.last_mut() {
            *size = address - *start;
        }
        placed.push((address, end.saturating_sub(address), writer.add_string(name.as_bytes())));
        writer.reserve_symbol_index(Some(text));
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
    for (address, size, name) in &placed {
        let st_name = writer.string_offset(Some(*name));
        writer.write_symbol(&Sym {
            section: Some(text.0),
            st_name,
            st_info: elf::SymbolInfo::new(elf::STB_GLOBAL, elf::STT_FUNC),
            st_other: elf::SymbolOther(0),
            st_shndx: elf::SymbolSection(0),
            st_value: *address,
            st_size: *size,
        });
    }
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    let start = placed.first().map_or(end, |(address, ..)| *address);
    let sh_name = writer.section_name_offset(Some(text_name));
    writer.write_section_header(&SectionHeader {
        sh_name,
        sh_type: elf::SHT_NOBITS,
        sh_flags: elf::SectionFlags(elf::SHF_ALLOC.0 | elf::SHF_EXECINSTR.0),
        sh_addr: start,
        sh_offset: 0,
        sh_size: end - start,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 16,
        sh_entsize: 0,
    });
    writer.write_symtab_section_header(1);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    Ok(bytes)
}
