//! The stubs of a program's procedure linkage table (PLT), through which it calls functions of libraries.
//!
//! No symbol names a stub. Its jump goes through a word that the dynamic linker fills in, and the relocation of that word
//! names the function: the stub of `f` is `f@plt`, as in objdump and perf.

use std::collections::HashMap;

use ::object::{
    File, Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, RelocationFlags, RelocationTarget, elf,
};

use crate::file::elf::is_plt;
use crate::file::object::{self, is_code};
use crate::names::text;
use crate::x86::ENDBR64;

/// A stub, or code between stubs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stub {
    pub address: u64,
    pub size: u64,
    /// `f@plt`, or [`UNKNOWN`].
    pub name: String,
}

/// The name of the code before the first stub, which calls the dynamic linker, and of stubs whose functions are not known.
const UNKNOWN: &str = "[plt]";

/// Returns the stubs of a file, sorted by address, without overlap. There are none if the file is damaged or has no sections.
pub fn stubs(bytes: &[u8]) -> Vec<Stub> {
    let Ok(file) = object::open(bytes) else { return Vec::new() };
    let mut stubs = Vec::new();
    let mut words = None;
    for section in file.sections().filter(is_code).filter(|s| s.name_bytes().is_ok_and(is_plt)) {
        let Ok(code) = section.data() else { continue };
        let words = words.get_or_insert_with(|| words_of(&file));
        add(section.address(), code, file.is_64(), words, &mut stubs);
    }
    stubs.sort_unstable_by_key(|stub| stub.address);
    // Only in a damaged file do sections overlap.
    let mut end = 0;
    stubs.retain(|stub| {
        let is_apart = stub.address >= end;
        end = end.max(stub.address.saturating_add(stub.size));
        is_apart
    });
    stubs
}

/// Returns the stub that contains an address.
pub fn at(stubs: &[Stub], address: u64) -> Option<&Stub> {
    let stub = stubs.get(stubs.partition_point(|stub| stub.address <= address).checked_sub(1)?)?;
    (address - stub.address < stub.size).then_some(stub)
}

/// Returns the words that the dynamic linker fills with addresses of functions, and the names of these.
fn words_of(file: &File<'_>) -> HashMap<u64, String> {
    let symbols = file.dynamic_symbol_table();
    let relocations = file.dynamic_relocations().into_iter().flatten();
    let named = relocations.filter_map(|(at, relocation)| {
        let RelocationFlags::Elf { r_type } = relocation.flags() else { return None };
        let name = match (r_type, relocation.target()) {
            // The numbers are the same for 32-bit programs.
            (elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT, RelocationTarget::Symbol(index)) => {
                text::of(symbols.as_ref()?.symbol_by_index(index).ok()?.name_bytes().ok()?).to_owned()
            }
            (elf::R_X86_64_IRELATIVE, _) => format!("*ABS*+{:#x}", relocation.addend()),
            _ => return None,
        };
        (!name.is_empty()).then_some((at, name))
    });
    named.collect()
}

/// Adds the stubs of a section.
fn add(address: u64, code: &[u8], is_64: bool, words: &HashMap<u64, String>, stubs: &mut Vec<Stub>) {
    let mut push = |from: usize, to: usize, name: Option<&String>| {
        if from < to {
            let name = name.map_or_else(|| UNKNOWN.to_owned(), |name| format!("{name}@plt"));
            stubs.push(Stub { address: address + from as u64, size: (to - from) as u64, name });
        }
    };
    let (mut start, mut name) = (0, None);
    for at in 0..code.len() {
        // jmp [rip + distance]; without a base in 32-bit code.
        let Some(&[0xff, 0x25, a, b, c, d]) = code.get(at..at + 6) else { continue };
        let distance = i32::from_le_bytes([a, b, c, d]);
        let word = match is_64 {
            true => (address + at as u64 + 6).wrapping_add_signed(distance.into()),
            false => u64::from(distance.cast_unsigned()),
        };
        let Some(found) = words.get(&word) else { continue };
        let bare = code[..at].strip_suffix(&[0xf2]).unwrap_or(&code[..at]);
        let begin = bare.strip_suffix(&ENDBR64).unwrap_or(bare).len();
        push(start, begin, name);
        (start, name) = (begin, Some(found));
    }
    push(start, code.len(), name);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use gprofinject_skip::{have, skipped};

    use super::*;

    /// The names and addresses that objdump prints are the truth.
    #[test]
    fn the_names_of_objdump() {
        let test = "the_names_of_objdump";
        if !have("gcc") || !have("objdump") {
            return skipped(test, "no gcc or objdump");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
                      int main(int c, char **v) { printf(\"%d %zu\\n\", atoi(v[0]), strlen(v[c - 1])); exit(c); }\n";
        std::fs::write(folder.path().join("p.c"), source).expect("a file");
        for options in
            ["-Wl,-z,lazy", "-Wl,-z,now", "-fcf-protection=full -Wl,-z,ibtplt", "-no-pie", "-fno-plt"]
        {
            let line = format!(
                "gcc -O1 -fno-builtin {options} -o p p.c && objdump -d -j .plt -j .plt.sec -j .plt.got p"
            );
            let run =
                Command::new("sh").args(["-ec", &line]).current_dir(folder.path()).output().expect("a shell");
            let text = String::from_utf8_lossy(&run.stdout).into_owned();
            let expected: Vec<(u64, &str)> = text
                .lines()
                .filter_map(|line| line.split_once(" <")?.1.strip_suffix("@plt>:").map(|name| (line, name)))
                .filter_map(|(line, name)| {
                    Some((u64::from_str_radix(line.split(' ').next()?, 16).ok()?, name))
                })
                // The stubs of .plt that only call the dynamic linker have no jump of their own.
                .filter(|(_, name)| !name.starts_with('.'))
                .collect();
            let found = stubs(&std::fs::read(folder.path().join("p")).expect("a program"));
            assert!(!expected.is_empty(), "{options}: {text}");
            for (address, name) in expected {
                let stub = at(&found, address).unwrap_or_else(|| panic!("{options}: no {name} in {found:?}"));
                assert_eq!(
                    (stub.name.as_str(), stub.address),
                    (format!("{name}@plt").as_str(), address),
                    "{options}"
                );
                assert_eq!(at(&found, address + stub.size - 1), Some(stub));
            }
            assert!(found.windows(2).all(|pair| pair[0].address + pair[0].size <= pair[1].address));
        }
    }
}
