//! Binds the library's calls of C library functions to the C library, even if the program defines functions
//! of the same names.
//!
//! gum calls some two hundred functions of libc. A program may have functions of its own under such names
//! (`access`, `time`, `remove`, or a malloc that is to be hooked): libc's internal calls do not use them, so
//! such a program works, but the dynamic linker binds the calls of a preloaded library to the program's
//! functions. So the first constructor here looks up each function by name and version in the library with
//! which the import was linked, and replaces the address that the dynamic linker has stored. It calls nothing
//! except IFUNC resolvers of libc.
//!
//! Source: System V gABI, chapter 5 (dynamic section); LSB core, 10.7 (symbol versioning); the DT_GNU_HASH format as
//! in glibc, elf/dl-lookup.c.
#![allow(unsafe_code, reason = "it reads the tables of loaded libraries, and stores into its own")]

use core::ffi::c_char;

/// struct link_map, as <link.h> has it.
#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const c_char,
    dynamic: *const [u64; 2],
    next: *const LinkMap,
    previous: *const LinkMap,
}

/// struct r_debug, its beginning.
#[repr(C)]
struct Debug {
    version: u64,
    objects: *const LinkMap,
}

unsafe extern "C" {
    safe static _r_debug: Debug;
}
core::arch::global_asm!(".hidden _DYNAMIC");

#[used]
// SAFETY: as `CONSTRUCTOR`'s. The priority number makes it run before all constructors without one, such as
// glib's.
#[unsafe(link_section = ".init_array.00000")]
static FIRST: extern "C" fn() = bind;

extern "C" fn bind() {
    let own: *const [u64; 2];
    // SAFETY: the address of a symbol that the linker defines.
    unsafe { core::arch::asm!("lea {}, [rip + _DYNAMIC]", out(reg) own, options(nostack, pure, nomem)) };
    let Some(us) = objects().find(|map| map.dynamic == own) else { return };
    let tables = Tables::of(us);
    // SAFETY: the tables are those of a loaded object, this one, which is linked so that all words with a relocation
    // stay writable; one thread.
    unsafe { tables.bind(us.bias) }
}

fn objects() -> impl Iterator<Item = &'static LinkMap> {
    // SAFETY: the dynamic linker's list, which does not change while constructors of the start run.
    let next = |map: &&'static LinkMap| unsafe { map.next.as_ref() };
    // SAFETY: the same list; its head is the dynamic linker's own variable.
    core::iter::successors(unsafe { _r_debug.objects.as_ref() }, next)
}

/// The addresses of the tables that an object's dynamic section names, or 0 for a table that the object does
/// not have.
#[derive(Default)]
struct Tables {
    strings: u64,
    symbols: u64,
    hash: u64,
    versions: u64,
    needed: u64,
    defined: u64,
    relocations: [(u64, u64); 2],
    soname: u64,
}

/// struct Elf64_Sym.
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// struct Elf64_Rela.
#[repr(C)]
struct Relocation {
    at: u64,
    kind: u32,
    symbol: u32,
    addend: u64,
}

impl Tables {
    fn of(map: &LinkMap) -> Tables {
        let mut tables = Tables::default();
        let mut at = map.dynamic;
        // SAFETY: a dynamic section, which ends with type 0.
        while let Some(&[tag, value]) = unsafe { at.as_ref() }.filter(|entry| entry[0] != 0) {
            // The dynamic linker has added the bias to some of these.
            let address = if value < map.bias { value + map.bias } else { value };
            match tag {
                5 => tables.strings = address,
                6 => tables.symbols = address,
                0x6fff_fef5 => tables.hash = address,
                0x6fff_fff0 => tables.versions = address,
                0x6fff_fffe => tables.needed = address,
                0x6fff_fffc => tables.defined = address,
                7 => tables.relocations[0].0 = address,
                8 => tables.relocations[0].1 = value,
                23 => tables.relocations[1].0 = address,
                2 => tables.relocations[1].1 = value,
                14 => tables.soname = value,
                _ => {}
            }
            // SAFETY: this entry was not the last one, so another follows in the section.
            at = unsafe { at.add(1) };
        }
        tables
    }

    /// # Safety
    /// These must be the tables of a loaded object, and all its relocated words writable.
    unsafe fn bind(&self, bias: u64) {
        const R_64: u32 = 1;
        const R_GLOB_DAT: u32 = 6;
        const R_JUMP_SLOT: u32 = 7;
        for (table, len) in self.relocations {
            for n in 0..len / size_of::<Relocation>() as u64 {
                // SAFETY: the caller of `bind` has promised that the tables are those of a loaded object, and `n` counts the entries
                // in the table's length.
                let relocation = unsafe { &*(table as *const Relocation).add(n as usize) };
                if !matches!(relocation.kind, R_64 | R_GLOB_DAT | R_JUMP_SLOT) {
                    continue;
                }
                // SAFETY: the caller of `bind` has promised that these are the tables of a loaded object, so the symbol is one of
                // its symbols, and that the relocation's word is writable.
                unsafe {
                    if let Some(function) = self.import(relocation.symbol) {
                        let addend = if relocation.kind == R_64 { relocation.addend } else { 0 };
                        *((bias + relocation.at) as *mut u64) = function + addend;
                    }
                }
            }
        }
    }

    /// Returns the function with which an import was linked, or `None` if the import is not a function or the
    /// function does not exist any more.
    ///
    /// # Safety
    /// As `bind`.
    unsafe fn import(&self, index: u32) -> Option<u64> {
        // SAFETY: each table holds what the format says, as in `bind`.
        unsafe {
            let symbol = &*(self.symbols as *const Symbol).add(index as usize);
            if index == 0 || symbol.section != 0 {
                return None;
            }
            let (library, version) = self.wanted(index)?;
            objects().find_map(|map| {
                let tables = Tables::of(map);
                let is_it = tables.soname != 0 && same(tables.strings + tables.soname, library);
                if is_it {
                    tables.function(map.bias, self.strings + u64::from(symbol.name), version)
                } else {
                    None
                }
            })
        }
    }

    /// Returns the name of the library with which an import was linked, and the hash of the version.
    ///
    /// # Safety
    /// As `bind`.
    unsafe fn wanted(&self, index: u32) -> Option<(u64, u32)> {
        if self.versions == 0 || self.needed == 0 {
            return None;
        }
        // SAFETY: as in `import`. struct Elf64_Verneed: version, count, file, first aux, next; struct Elf64_Vernaux:
        // hash, flags, number, name, next. The last of each has no next.
        unsafe {
            let number = *(self.versions as *const u16).add(index as usize) & 0x7fff;
            let mut need = self.needed;
            loop {
                let mut aux = need + u64::from(word(need, 8));
                loop {
                    if (word(aux, 4) >> 16) as u16 & 0x7fff == number {
                        return Some((self.strings + u64::from(word(need, 4)), word(aux, 0)));
                    }
                    match word(aux, 12) {
                        0 => break,
                        next => aux += u64::from(next),
                    }
                }
                match word(need, 12) {
                    0 => return None,
                    next => need += u64::from(next),
                }
            }
        }
    }

    /// Returns the address of the function with this name and version, or `None` if there is none.
    ///
    /// # Safety
    /// As `bind`, and a name must be there.
    unsafe fn function(&self, bias: u64, name: u64, version: u32) -> Option<u64> {
        const FUNC: u8 = 2;
        const GNU_IFUNC: u8 = 10;
        if self.hash == 0 || self.versions == 0 {
            return None;
        }
        let hash = gnu_hash(name);
        // SAFETY: as in `import`; an IFUNC resolver of libc's takes nothing, and libc is ready.
        unsafe {
            let header = self.hash as *const u32;
            let (buckets, first, bloom) = (*header, *header.add(1), *header.add(2));
            let table = header.add(4 + 2 * bloom as usize);
            let chains = table.add(buckets as usize);
            let mut index = *table.add(hash.checked_rem(buckets)? as usize);
            while index >= first {
                let this = *chains.add((index - first) as usize);
                let symbol = &*(self.symbols as *const Symbol).add(index as usize);
                let found = this | 1 == hash | 1
                    && symbol.section != 0
                    && same(self.strings + u64::from(symbol.name), name)
                    && self.version(index) == Some(version);
                match symbol.info & 0xf {
                    FUNC if found => return Some(bias + symbol.value),
                    GNU_IFUNC if found => {
                        let resolver = (bias + symbol.value) as *const ();
                        return Some(core::mem::transmute::<*const (), extern "C" fn() -> u64>(resolver)());
                    }
                    _ if found || this & 1 != 0 => return None,
                    _ => index += 1,
                }
            }
        }
        None
    }

    /// Returns the hash of a definition's version.
    ///
    /// # Safety
    /// As `bind`.
    unsafe fn version(&self, index: u32) -> Option<u32> {
        if self.defined == 0 {
            return None;
        }
        // SAFETY: as in `import`. struct Elf64_Verdef: version, flags, number, count, hash, first aux, next.
        unsafe {
            let number = *(self.versions as *const u16).add(index as usize) & 0x7fff;
            let mut definition = self.defined;
            loop {
                if word(definition, 4) as u16 == number {
                    return Some(word(definition, 8));
                }
                match word(definition, 16) {
                    0 => return None,
                    next => definition += u64::from(next),
                }
            }
        }
    }
}

/// # Safety
/// A word must be there.
unsafe fn word(at: u64, offset: u64) -> u32 {
    // SAFETY: the caller has promised that a word is there; it may be unaligned.
    unsafe { ((at + offset) as *const u32).read_unaligned() }
}

/// Returns the bytes of a name up to its NUL.
fn bytes(name: u64) -> impl Iterator<Item = u8> {
    // SAFETY: names come from string tables; the iterator ends with the NUL.
    (name..).map(|at| unsafe { *(at as *const u8) }).take_while(|&byte| byte != 0)
}

fn same(one: u64, other: u64) -> bool {
    bytes(one).eq(bytes(other))
}

fn gnu_hash(name: u64) -> u32 {
    bytes(name).fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}
