//! Function symbols of any ELF file: a 32-bit program, a library, a debug file.
//!
//! The bytes of a file enter; its functions leave, or facts that follow from their names. The functions of a program that is
//! patched are in its [`Image`](crate::image::Image), which has other witnesses than symbols too.

use std::collections::HashMap;

use ::object::{File, Object, ObjectSection, ObjectSymbol, SectionFlags, Symbol, SymbolKind, elf};

use crate::file::object;
use crate::function::{Function, FunctionKind};
use crate::names::suffixes::{Suffix, split};
use crate::names::text;

/// A function that a file offers to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export<'d> {
    pub name: &'d str,
    pub address: u64,
    pub size: u64,
}

/// Returns the functions of a symbol table, sorted by address, one for each address, without overlap. There are none if the
/// file is stripped or damaged.
pub fn functions(bytes: &[u8]) -> Vec<Function<'_>> {
    let Ok(file) = object::open(bytes) else { return Vec::new() };
    let mut functions: Vec<_> = file.symbols().filter_map(|symbol| function(&file, &symbol)).collect();
    functions.sort_by_key(|(function, local)| (function.address, *local, function.size == 0));
    let mut functions: Vec<_> = functions.into_iter().map(|(function, _)| function).collect();
    functions.dedup_by_key(|function| function.address);
    end_where_the_next_begins(&mut functions);
    find_parents(&mut functions);
    functions
}

/// Returns the functions that other files may bind to, in the order of the dynamic symbol table; none if the file is damaged.
pub fn exported_functions<'d>(bytes: &'d [u8]) -> Vec<Export<'d>> {
    let Ok(file) = object::open(bytes) else { return Vec::new() };
    let functions = file.dynamic_symbols().filter(|s| s.is_definition() && s.kind() == SymbolKind::Text);
    let export = |symbol: Symbol<'d, '_>| {
        Some(Export { name: symbol.name().ok()?, address: symbol.address(), size: symbol.size() })
    };
    functions.filter_map(export).collect()
}

/// Returns the address of the function or variable that the dynamic symbol table has under a name.
pub fn exported_address(bytes: &[u8], name: &str) -> Option<u64> {
    let file = object::open(bytes).ok()?;
    file.dynamic_symbols().find(|symbol| symbol.name() == Ok(name)).map(|symbol| symbol.address())
}

/// Whether a file has no names of functions except those to which other files may bind.
pub fn is_stripped(bytes: &[u8]) -> bool {
    object::open(bytes).is_ok_and(|file| !file.symbols().any(|symbol| symbol.kind() == SymbolKind::Text))
}

/// Whether the file is the dynamic linker of a C library: glibc's, recognised by the symbols that it offers
/// to debuggers and libraries, or musl's, which is the C library itself.
pub fn is_dynamic_linker(bytes: &[u8]) -> bool {
    is_musl(bytes) || offers(bytes, &["_rtld_global"])
}

/// Whether the file is musl's dynamic linker, which is its C library as well.
pub fn is_musl(bytes: &[u8]) -> bool {
    offers(bytes, &["__libc_start_main", "dlopen", "_dl_debug_addr"])
}

/// Whether the file exports all of these symbols.
fn offers(bytes: &[u8], names: &[&str]) -> bool {
    let Ok(file) = object::open(bytes) else { return false };
    let is_offered = |name: &&str| file.dynamic_symbols().any(|s| s.is_definition() && s.name() == Ok(name));
    names.iter().all(is_offered)
}

/// Returns a symbol's function, and whether the symbol is local.
fn function<'d>(file: &File<'d>, symbol: &Symbol<'d, '_>) -> Option<(Function<'d>, bool)> {
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let name = symbol.name_bytes().ok().map(text::of).filter(|name| !name.is_empty())?;
    if symbol.kind() != SymbolKind::Text || !is_executable(&section) {
        return None;
    }
    let function = Function {
        address: symbol.address(),
        size: symbol.size(),
        limit: section.address().saturating_add(section.size()),
        name,
        aliases: Vec::new(),
        kind: if parent_name(name).is_some() { FunctionKind::Cold(None) } else { FunctionKind::Ordinary },
        frame: None,
    };
    Some((function, symbol.is_local()))
}

/// Returns the name of the function whose cold part has this name. Code with a numbered name (`f.cold.3`) may
/// be a function of its own.
fn parent_name(name: &str) -> Option<&str> {
    let split = split(name).filter(|split| split.suffix == Suffix::Cold && !split.numbered)?;
    Some(split.base)
}

/// Whether the program executes a section. In a debug file the section is empty, but its flags are the
/// program's.
fn is_executable<'d>(section: &impl ObjectSection<'d>) -> bool {
    matches!(section.flags(), SectionFlags::Elf { sh_flags, .. } if sh_flags & elf::SHF_EXECINSTR == elf::SHF_EXECINSTR)
}

/// Gives functions without a size, which assembly may contain, the extent up to the next function, as gprof
/// does.
fn end_where_the_next_begins(functions: &mut [Function]) {
    let mut next = u64::MAX;
    for function in functions.iter_mut().rev() {
        function.limit = function.limit.min(next).max(function.address);
        let room = function.limit - function.address;
        function.size = if function.size == 0 { room } else { function.size.min(room) };
        next = function.address;
    }
}

/// Finds the parents of `.cold` parts: `f.cold` is a part of `f`.
fn find_parents(functions: &mut [Function]) {
    let places: HashMap<&str, usize> = functions.iter().zip(0..).map(|(f, index)| (f.name, index)).collect();
    for function in functions {
        if let FunctionKind::Cold(parent) = &mut function.kind {
            *parent = parent_name(function.name).and_then(|name| places.get(name).copied());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64, size: u64, name: &str) -> Function<'_> {
        let cold = name.ends_with(".cold");
        let kind = if cold { FunctionKind::Cold(None) } else { FunctionKind::Ordinary };
        Function { address, size, limit: 0x100, name, aliases: Vec::new(), kind, frame: None }
    }

    #[test]
    fn extents_and_cold_parts() {
        let mut functions = [at(0x10, 4, "f.cold"), at(0x20, 0, "s"), at(0x30, 0x50, "f"), at(0x40, 0, "e")];
        end_where_the_next_begins(&mut functions);
        find_parents(&mut functions);
        assert_eq!(functions.each_ref().map(|f| f.size), [4, 0x10, 0x10, 0xc0]);
        assert_eq!(functions[0].kind, FunctionKind::Cold(Some(2)));
    }

    #[test]
    fn what_a_library_offers() {
        let library = std::fs::read("/lib64/ld-linux-x86-64.so.2").expect("glibc's dynamic linker");
        let exports = exported_functions(&library);
        let tls = exports.iter().find(|export| export.name == "__tls_get_addr").expect("it offers this");
        assert_eq!(exported_address(&library, "__tls_get_addr"), Some(tls.address));
        // A variable is not among the functions.
        assert!(exported_address(&library, "_r_debug").is_some_and(|address| address != 0));
        assert!(exports.iter().all(|export| export.name != "_r_debug"));
        assert!(is_dynamic_linker(&library) && !is_dynamic_linker(&library[..64]));
        assert!(exported_functions(&library[..1000]).is_empty());
    }

    #[test]
    fn sorted_without_overlap() {
        let bytes = std::fs::read("/proc/self/exe").expect("our own program");
        let functions = functions(&bytes);
        assert!(functions.iter().any(|function| function.name == "main"));
        assert!(functions.windows(2).all(|pair| pair[0].address + pair[0].size <= pair[1].address));
        assert!(super::functions(&bytes[..1000]).is_empty());
    }
}
