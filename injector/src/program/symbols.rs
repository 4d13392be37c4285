//! The functions of a program that is only sampled and has no [`gprofinject_image::Image`], that is, of a
//! 32-bit program.

use std::collections::HashMap;

use gprofinject_image::{Function, FunctionKind};
use object::{Object, ObjectSection, ObjectSymbol, SectionFlags, SymbolKind, elf};

/// Returns the functions sorted by address, one for each address and without overlap. There are none if the
/// program is stripped or damaged.
pub(crate) fn functions(bytes: &[u8]) -> Vec<Function<'_>> {
    let Ok(file) = object::File::parse(bytes) else { return Vec::new() };
    let mut functions: Vec<_> = file.symbols().filter_map(|symbol| function(&file, &symbol)).collect();
    functions.sort_by_key(|(function, local)| (function.address, *local, function.size == 0));
    let mut functions: Vec<_> = functions.into_iter().map(|(function, _)| function).collect();
    functions.dedup_by_key(|function| function.address);
    end_where_the_next_begins(&mut functions);
    find_parents(&mut functions);
    functions
}

/// Whether a file has no names of functions except those to which other files may bind.
pub(crate) fn is_stripped(bytes: &[u8]) -> bool {
    object::File::parse(bytes)
        .is_ok_and(|file| !file.symbols().any(|symbol| symbol.kind() == SymbolKind::Text))
}

/// Whether the file is the dynamic linker of a C library: glibc's, recognised by the symbols that it offers
/// to debuggers and libraries, or musl's, which is the C library itself.
pub(crate) fn is_dynamic_linker(bytes: &[u8]) -> bool {
    let Ok(file) = object::File::parse(bytes) else { return false };
    let offers = |name: &str| file.dynamic_symbols().any(|s| s.is_definition() && s.name() == Ok(name));
    offers("_rtld_global") || offers("__libc_start_main") && offers("dlopen") && offers("_dlstart")
}

/// Returns a symbol's function, and whether the symbol is local.
fn function<'d>(file: &object::File<'d>, symbol: &object::Symbol<'d, '_>) -> Option<(Function<'d>, bool)> {
    let section = file.section_by_index(symbol.section_index()?).ok()?;
    let name = symbol.name().ok().filter(|name| !name.is_empty())?;
    if symbol.kind() != SymbolKind::Text || !is_code(&section) {
        return None;
    }
    let function = Function {
        address: symbol.address(),
        size: symbol.size(),
        limit: section.address().saturating_add(section.size()),
        name,
        aliases: Vec::new(),
        kind: if name.ends_with(".cold") { FunctionKind::Cold(None) } else { FunctionKind::Ordinary },
        frame: None,
    };
    Some((function, symbol.is_local()))
}

/// In a debug file such a section is empty, but its flags are the program's.
fn is_code<'d>(section: &impl ObjectSection<'d>) -> bool {
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
            *parent = function.name.strip_suffix(".cold").and_then(|name| places.get(name).copied());
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
    fn sorted_without_overlap() {
        let bytes = std::fs::read("/proc/self/exe").expect("our own program");
        let functions = functions(&bytes);
        assert!(functions.iter().any(|function| function.name == "main"));
        assert!(functions.windows(2).all(|pair| pair[0].address + pair[0].size <= pair[1].address));
        assert!(crate::program::symbols::functions(&bytes[..1000]).is_empty());
    }
}
