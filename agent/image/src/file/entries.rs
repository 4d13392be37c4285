//! The addresses to which the kernel and the dynamic linker give control, other than by a call of a symbol's function: nothing
//! in the code refers to them, and they need not be the start of a function. (IFUNC resolvers are not among them, because
//! relocations contain their addresses.)

use crate::file::elf::{Elf, Word, records};
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
    entries
}
