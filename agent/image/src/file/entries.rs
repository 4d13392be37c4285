//! The addresses to which the kernel and the dynamic linker give control, other than by a call of a symbol's function: nothing
//! in the code refers to them, and they need not be the start of a function.

use crate::file::dynamic;
use crate::file::elf::{Elf, ElfType, Rela, Word, records};
use object::LittleEndian as LE;
use object::elf;

/// The entries of the dynamic section with the arrays of initialisers and finalisers, and with the arrays' sizes.
const ARRAYS: [(elf::DynamicTag, elf::DynamicTag); 3] = [
    (elf::DT_PREINIT_ARRAY, elf::DT_PREINIT_ARRAYSZ),
    (elf::DT_INIT_ARRAY, elf::DT_INIT_ARRAYSZ),
    (elf::DT_FINI_ARRAY, elf::DT_FINI_ARRAYSZ),
];

/// Returns the addresses, some of which may not be in code.
pub(crate) fn entries(elf: &Elf<'_>) -> Vec<u64> {
    let mut entries = vec![elf.entry];
    entries.extend([elf::DT_INIT, elf::DT_FINI].into_iter().filter_map(|tag| elf.dynamic_value(tag)));
    // In a position-independent file, relocations write these words.
    let arrays = ARRAYS
        .into_iter()
        .filter_map(|(address, size)| elf.at_address(elf.dynamic_value(address)?, elf.dynamic_value(size)?));
    entries.extend(arrays.flat_map(records::<Word>).map(|word| word.get(LE)));
    let is_resolved = |relocation: &&Rela| relocation.r_type(LE, false) == elf::R_X86_64_IRELATIVE;
    entries.extend(dynamic::relocations(elf).filter(is_resolved).map(|r| r.r_addend.get(LE) as u64));
    entries.extend(unlisted_resolvers(elf));
    entries
}

/// Returns the addresses of the IFUNC resolvers of a static program that is not position-independent. Only symbols say where the table of its
/// relocations is (`apply_irel` in glibc's csu/libc-start.c), so its entries are recognised by their contents.
fn unlisted_resolvers(elf: &Elf<'_>) -> Vec<u64> {
    if elf.elf_type == ElfType::Dyn || elf.interpreter.is_some() {
        return Vec::new();
    }
    let in_code = |address| elf.loads.iter().any(|load| load.executable && load.contains(address));
    let in_memory =
        |address: u64| elf.loads.iter().any(|load| address.wrapping_sub(load.address) < load.memory);
    let words = elf.loads.iter().flat_map(|load| records::<Word>(load.bytes).windows(3));
    let addends = words.filter_map(|words| {
        let [place, info, addend] = [0, 1, 2].map(|n| words[n].get(LE));
        let is_one = info == u64::from(elf::R_X86_64_IRELATIVE.0) && in_memory(place) && in_code(addend);
        is_one.then_some(addend)
    });
    addends.collect()
}
