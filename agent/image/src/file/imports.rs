//! Finds the profiling functions of the C library that the program calls, and the words through which it
//! calls them.
//!
//! The dynamic linker writes a function's address into a word of the program (in its GOT). Calls go through
//! that word, or through a stub in the PLT that jumps through it.

use crate::file::dynamic::{Symbols, relocations};
use crate::file::elf::{Elf, Symbol, slice, string};
use crate::file::ranges::CodeRanges;
use crate::x86::ENDBR64;
use object::LittleEndian as LE;
use object::elf;
use serde::{Deserialize, Serialize};

/// What a program that was built for profiling uses of the C library.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profiling {
    /// The words through which it calls `mcount`, `_mcount` or `__fentry__` (-pg), sorted.
    pub counters: Vec<u64>,
    /// The words through which it calls `__cyg_profile_func_enter` or `_exit` (-finstrument-functions),
    /// sorted. The C library's functions do nothing; other libraries may define their own.
    pub hooks: Vec<u64>,
    /// The words through which it calls `dlsym`, `dlvsym` or `_Unwind_GetCFA`, which examine their caller, the last one as the agent
    /// defines it. Sorted.
    pub lookups: Vec<u64>,
    /// Whether it calls `moncontrol` or `monstartup` itself.
    pub controls: bool,
    /// Whether the C library's profiler is part of it, or its start-up code starts the profiler.
    pub starts: bool,
}

impl Profiling {
    /// Whether the program would leave a profile that the C library has made.
    pub fn is_built_in(&self) -> bool {
        self.starts || !self.counters.is_empty()
    }
}

/// The length above which a name is none of these.
const NAME_MAX: usize = 32;

/// Finds the profiling functions that a program imports.
pub(crate) fn read(elf: &Elf<'_>) -> Profiling {
    let mut found = Profiling::default();
    let Symbols { entries: symbols, names } = Symbols::read(elf);
    let versions = Versions::read(elf, names);
    for relocation in relocations(elf) {
        let kind = relocation.r_type(LE, false);
        if !matches!(kind, elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_64) {
            continue;
        }
        let index = relocation.r_sym(LE, false);
        let Some(symbol) = symbols.get(index as usize) else { continue };
        let word = relocation.r_offset.get(LE);
        let name = string(names, symbol.st_name.get(LE), NAME_MAX);
        // The unwinder calls its own one in this way, too.
        if name == b"_Unwind_GetCFA" {
            found.lookups.push(word);
            continue;
        }
        if !is_undefined(symbol) {
            continue;
        }
        match name {
            b"__monstartup" | b"_mcleanup" => found.starts = true,
            b"dlsym" | b"dlvsym" => found.lookups.push(word),
            b"monstartup" | b"moncontrol" => found.controls = true,
            b"mcount" | b"_mcount" | b"__fentry__" if versions.is_libc(index) => found.counters.push(word),
            b"__cyg_profile_func_enter" | b"__cyg_profile_func_exit" if versions.is_libc(index) => {
                found.hooks.push(word);
            }
            _ => {}
        }
    }
    for words in [&mut found.counters, &mut found.hooks, &mut found.lookups] {
        words.sort_unstable();
        words.dedup();
    }
    found
}

fn is_undefined(symbol: &Symbol) -> bool {
    symbol.st_shndx.get(LE) == elf::SHN_UNDEF
}

/// The library from which the linker has taken each symbol. A function of such a name from another library is
/// that library's own.
struct Versions<'d> {
    /// One half word for each dynamic symbol.
    of_symbols: &'d [u8],
    /// The version numbers that belong to the C library.
    libc: Vec<u16>,
}

impl<'d> Versions<'d> {
    /// Reads the tables of versions. Source: LSB core, 10.7 (symbol versioning).
    fn read(elf: &Elf<'d>, names: &[u8]) -> Versions<'d> {
        let table = |tag| elf.dynamic_value(tag).and_then(|at| elf.rest_at(at)).unwrap_or_default();
        let mut versions = Versions { of_symbols: table(elf::DT_VERSYM), libc: Vec::new() };
        let needs = table(elf::DT_VERNEED);
        // A damaged table must not be read byte by byte.
        let (mut at, mut budget) = (0_u64, 1 << 16);
        // struct Elf64_Verneed: version, count, file, first aux, next; the last two are relative.
        while let Some(need) = slice(needs, at, 16).filter(|_| budget > 0) {
            budget -= 1;
            let file = string(names, word(need, 4), NAME_MAX);
            let mut aux_at = at + u64::from(word(need, 8));
            // struct Elf64_Vernaux: hash, flags, number, name, next.
            while let Some(aux) = slice(needs, aux_at, 16).filter(|_| budget > 0) {
                budget -= 1;
                if file == b"libc.so.6" {
                    versions.libc.push(half(aux, 6) & 0x7fff);
                }
                match word(aux, 12) {
                    0 => break,
                    next => aux_at += u64::from(next),
                }
            }
            match word(need, 12) {
                0 => break,
                next => at += u64::from(next),
            }
        }
        versions
    }

    fn is_libc(&self, symbol: u32) -> bool {
        let version = slice(self.of_symbols, u64::from(symbol) * 2, 2).map(|bytes| half(bytes, 0) & 0x7fff);
        version.is_some_and(|version| self.libc.contains(&version))
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |&bytes| u32::from_le_bytes(bytes))
}

fn half(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |&bytes| u16::from_le_bytes(bytes))
}

/// The stubs `[endbr64] [bnd] jmp [word]`, each with its word, sorted.
pub type Stubs = Vec<(u64, u64)>;

/// Returns the stubs of counters and hooks.
pub(crate) fn stubs(elf: &Elf<'_>, code: &CodeRanges, profiling: &Profiling) -> Stubs {
    let Profiling { counters, hooks, .. } = profiling;
    if counters.is_empty() && hooks.is_empty() {
        return Stubs::new();
    }
    let is_wanted = |word: u64| counters.binary_search(&word).is_ok() || hooks.binary_search(&word).is_ok();
    stubs_of(elf, code, is_wanted)
}

/// Returns the functions of the file that it calls through stubs, because another file may define them instead. Each comes with its stub,
/// sorted.
pub(crate) fn own(elf: &Elf<'_>, code: &CodeRanges) -> Vec<(u64, u64)> {
    let symbols = Symbols::read(elf).entries;
    let defined = relocations(elf).filter_map(|relocation| {
        let kind = relocation.r_type(LE, false);
        let symbol = symbols.get(relocation.r_sym(LE, false) as usize)?;
        let is_own = matches!(kind, elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT)
            && !is_undefined(symbol)
            && symbol.st_type() == elf::STT_FUNC;
        is_own.then(|| (relocation.r_offset.get(LE), symbol.st_value.get(LE)))
    });
    let mut words: Vec<(u64, u64)> = defined.collect();
    if words.is_empty() {
        return words;
    }
    words.sort_unstable();
    let find = |word| Some(words[words.binary_search_by_key(&word, |&(word, _)| word).ok()?].1);
    let stubs = stubs_of(elf, code, |word| find(word).is_some());
    let mut own: Vec<(u64, u64)> =
        stubs.into_iter().filter_map(|(stub, word)| Some((find(word)?, stub))).collect();
    own.sort_unstable();
    own
}

/// Returns the stubs that jump through wanted words.
fn stubs_of(elf: &Elf<'_>, code: &CodeRanges, is_wanted: impl Fn(u64) -> bool) -> Stubs {
    let mut stubs = Vec::new();
    // Without section headers, a stub may be anywhere.
    for range in code.iter().filter(|range| range.plt || !elf.has_code_sections()) {
        let Some(bytes) = elf.at_address(range.start, range.end - range.start) else { continue };
        for at in 0..bytes.len() {
            let Some(&[0xff, 0x25, a, b, c, d]) = bytes.get(at..at + 6) else { continue };
            let end = range.start + at as u64 + 6;
            let word = end.wrapping_add(i32::from_le_bytes([a, b, c, d]) as u64);
            if !is_wanted(word) {
                continue;
            }
            let bare = bytes[..at].strip_suffix(&[0xf2]).unwrap_or(&bytes[..at]);
            let start = bare.strip_suffix(&ENDBR64).unwrap_or(bare).len();
            stubs.push((range.start + start as u64, word));
        }
    }
    stubs.sort_unstable();
    stubs
}
