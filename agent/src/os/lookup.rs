//! Finds functions in the program's libraries without the C library's help: before glibc 2.34, dlsym is in
//! another library, and it cannot be called before the C library is ready.
//!
//! Source: System V gABI, chapter 5 (dynamic section); the DT_GNU_HASH format as in glibc, elf/dl-lookup.c.
#![allow(
    unsafe_code,
    reason = "it reads the tables of loaded libraries at addresses that the dynamic linker keeps"
)]

use crate::os::memory;
use crate::os::own_image;
use crate::os::task;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::attach::DETOURS_MAX;

/// struct link_map, as <link.h> has it.
#[repr(C)]
pub(crate) struct LinkMap {
    /// Runtime address minus link address.
    pub(crate) bias: u64,
    /// The path by which it was loaded, NUL-terminated.
    pub(crate) name: *const u8,
    dynamic: *const [u64; 2],
    next: *const LinkMap,
}

impl LinkMap {
    /// Describes an object that is not in the lists yet.
    #[cfg(feature = "standalone")]
    pub(crate) fn named(bias: u64, name: *const u8) -> LinkMap {
        LinkMap { bias, name, dynamic: core::ptr::null(), next: core::ptr::null() }
    }
}

/// struct r_debug, and what `struct r_debug_extended` adds, as <link.h> has them.
#[repr(C)]
struct Debug {
    version: u32,
    map: *const LinkMap,
    changed: u64,
    state: u32,
    base: u64,
    /// The next namespace's structure, if the version is at least 2.
    next: *const Debug,
}

/// Functions whose start is redirected to the agent, in a process that was attached to: each with the address
/// at which its own code can still be called.
static DETOURS: [[AtomicU64; 2]; DETOURS_MAX] = [const { [const { AtomicU64::new(0) }; 2] }; DETOURS_MAX];

/// Sets the addresses at which these functions are found from now on.
pub(crate) fn set_detours(detours: &[[u64; 2]]) {
    for (place, detour) in DETOURS.iter().zip(detours) {
        for (to, from) in place.iter().zip(detour) {
            to.store(*from, Ordering::Relaxed);
        }
    }
}

/// Returns the address of a function in the first loaded object that defines it, except the agent's library,
/// or 0 if none does. `dynamic_linker` is the address of ld.so's ELF header (AT_BASE).
pub(crate) fn function(dynamic_linker: u64, name: &[u8]) -> u64 {
    let found = start_of(dynamic_linker, name);
    let detour = DETOURS.iter().find(|[at, _]| found != 0 && at.load(Ordering::Relaxed) == found);
    detour.map_or(found, |[_, copy]| copy.load(Ordering::Relaxed))
}

/// Stores the addresses of functions, as [`function`] returns them, in the places where none is stored yet.
pub(crate) fn store(dynamic_linker: u64, functions: &[(&AtomicU64, &[u8])]) {
    for (place, name) in functions.iter().filter(|(place, _)| place.load(Ordering::Relaxed) == 0) {
        place.store(function(dynamic_linker, name), Ordering::Relaxed);
    }
}

/// Returns the start of a function like [`function`], even if that start is redirected to the agent.
pub(crate) fn start_of(dynamic_linker: u64, name: &[u8]) -> u64 {
    // SAFETY: the map is one of ld.so's list.
    each_object(dynamic_linker, |map| unsafe { find_in(map, name) }).unwrap_or(0)
}

/// Returns whether a library defines a function, not only the program itself.
pub(crate) fn is_in_library(dynamic_linker: u64, name: &[u8]) -> bool {
    let defines = |map: &LinkMap| {
        // SAFETY: the map is one of ld.so's list, whose names end with a NUL; the program's name is empty.
        let is_library = !map.name.is_null() && unsafe { *map.name } != 0;
        // SAFETY: as above.
        if is_library { unsafe { find_in(map, name) } } else { None }
    };
    each_object(dynamic_linker, defines).is_some()
}

/// Returns the extent of the executable segment that contains an address, of whichever object, or (0, 0) if
/// there is none.
pub(crate) fn text_around(dynamic_linker: u64, address: u64) -> (u64, u64) {
    if address == 0 {
        return (0, 0);
    }
    // The list is not there before musl's dynamic linker has begun, and then begins with the program.
    // SAFETY: AT_BASE is the address of the dynamic linker's ELF header.
    let own = (dynamic_linker != 0).then(|| unsafe { segments_of(dynamic_linker) }).flatten();
    if let Some(Segments { code, .. }) = own
        && (code.0..code.1).contains(&address)
    {
        return code;
    }
    let found = each_object(dynamic_linker, |map| {
        const PT_LOAD: u32 = 1;
        // An object whose first link address is not 0, as some linkers make programs, has its header elsewhere. It is not the C library.
        if !is_header(map.bias) {
            return None;
        }
        // SAFETY: an ELF header is there, with the object it is of.
        unsafe {
            let headers = map.bias + *((map.bias + 0x20) as *const u64);
            let (size, count) = (*((map.bias + 0x36) as *const u16), *((map.bias + 0x38) as *const u16));
            for i in 0..u64::from(count) {
                let at = headers + i * u64::from(size);
                let (kind, flags) = (*(at as *const u32), *((at + 4) as *const u32));
                let lo = map.bias + *((at + 0x10) as *const u64);
                let hi = lo + *((at + 0x28) as *const u64);
                if kind == PT_LOAD && flags & 1 != 0 && address >= lo && address < hi {
                    return Some((lo, hi));
                }
            }
        }
        None
    });
    found.unwrap_or((0, 0))
}

/// Returns the extent of the C library's text, or (0, 0) if it was not found. The function by which it is found is one that
/// other libraries (sanitizers, which define many of the C library's functions) do not define.
pub(crate) fn libc_text(dynamic_linker: u64) -> (u64, u64) {
    // It is looked for several times while the agent is set up. The C library is never unloaded.
    static KNOWN: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    let [lo, hi] = &KNOWN;
    if hi.load(Ordering::Relaxed) == 0 {
        let found = text_around(dynamic_linker, start_of(dynamic_linker, b"__libc_start_main"));
        lo.store(found.0, Ordering::Relaxed);
        hi.store(found.1, Ordering::Relaxed);
    }
    (lo.load(Ordering::Relaxed), hi.load(Ordering::Relaxed))
}

/// Returns the address of the C library's own function, which a library that was preloaded may define as well, or 0.
pub(crate) fn of_libc(dynamic_linker: u64, name: &[u8]) -> u64 {
    let (lo, hi) = libc_text(dynamic_linker);
    // SAFETY: the map is one of ld.so's list.
    let inside = |map: &LinkMap| unsafe { find_in(map, name) }.filter(|at| (lo..hi).contains(at));
    each_object(dynamic_linker, inside).unwrap_or(0)
}

/// Returns whether an ELF header is mapped at an address.
pub(crate) fn is_header(address: u64) -> bool {
    const ELF: [u8; 4] = *b"\x7fELF";
    // SAFETY: the bytes are in one page, which can be read.
    let is = |address: u64| unsafe { *(address as *const [u8; 4]) == ELF };
    address != 0
        && address.is_multiple_of(4096)
        && !memory::is_unreadable(task::getpid(), address)
        && is(address)
}

/// The segments of a loaded object.
pub(crate) struct Segments {
    /// The program headers: address, size of one in bytes, number.
    pub(crate) headers: (u64, u64, u64),
    /// The runtime addresses at which the executable segments begin and end.
    pub(crate) code: (u64, u64),
}

/// Returns the segments of an object whose ELF header is mapped at an address, or `None` if none is executable.
///
/// # Safety
/// An ELF header must be mapped there, with the object it is of, whose load bias is the address.
pub(crate) unsafe fn segments_of(header: u64) -> Option<Segments> {
    const PT_LOAD: u32 = 1;
    // SAFETY: e_phoff, e_phentsize, e_phnum, and the program headers they name.
    unsafe {
        let headers = header + *((header + 0x20) as *const u64);
        let (size, count) = (*((header + 0x36) as *const u16), *((header + 0x38) as *const u16));
        let mut extent = (u64::MAX, 0);
        for i in 0..u64::from(count) {
            let at = headers + i * u64::from(size);
            let (kind, flags) = (*(at as *const u32), *((at + 4) as *const u32));
            if kind == PT_LOAD && flags & 1 != 0 {
                let lo = header + *((at + 0x10) as *const u64);
                let hi = lo + *((at + 0x28) as *const u64);
                extent = (lo.min(extent.0), hi.max(extent.1));
            }
        }
        let headers = (headers, size.into(), count.into());
        (extent.0 < extent.1).then_some(Segments { headers, code: extent })
    }
}

/// Calls `ask` with each loaded object except the agent's library, in the dynamic linker's order, until it
/// returns a value.
#[cfg_attr(test, allow(unused_mut, unused_variables))]
fn each_object<T>(dynamic_linker: u64, mut ask: impl FnMut(&LinkMap) -> Option<T>) -> Option<T> {
    #[cfg(not(test))]
    if dynamic_linker != 0 {
        let own: *const [u64; 2];
        // SAFETY: AT_BASE is ld.so's header, and its struct r_debug leads to the list of link maps. The linker defines
        // _DYNAMIC.
        unsafe {
            core::arch::asm!("lea {}, [rip + _DYNAMIC]", out(reg) own, options(nostack, pure, nomem));
            let mut map = (*debug_of(dynamic_linker)?).map;
            while !map.is_null() {
                if (*map).dynamic != own
                    && let Some(answer) = ask(&*map)
                {
                    return Some(answer);
                }
                map = (*map).next;
            }
        }
    }
    None
}

/// Returns the path by which the agent's library was loaded, NUL-terminated.
#[cfg_attr(any(test, feature = "standalone"), allow(dead_code))]
pub(crate) fn own_name(dynamic_linker: u64) -> Option<*const u8> {
    let own = own_image::start();
    #[cfg(not(test))]
    if dynamic_linker != 0 {
        // SAFETY: as in `each_object`.
        unsafe {
            let mut map = (*debug_of(dynamic_linker)?).map;
            while !map.is_null() {
                if (*map).bias == own {
                    return Some((*map).name);
                }
                map = (*map).next;
            }
        }
    }
    let _ = (own, dynamic_linker);
    None
}

/// Calls `visit` with each loaded object of all namespaces, except the agent's library. Returns whether the lists are
/// complete: while the dynamic linker changes them, they are not.
#[cfg_attr(test, allow(unused_mut, unused_variables))]
pub(crate) fn all_objects(dynamic_linker: u64, mut visit: impl FnMut(&LinkMap)) -> bool {
    #[cfg(not(test))]
    // SAFETY: as in `each_object`. Only the thread that changes the lists calls this, or no other thread runs yet.
    unsafe {
        let own: *const [u64; 2];
        core::arch::asm!("lea {}, [rip + _DYNAMIC]", out(reg) own, options(nostack, pure, nomem));
        let Some(mut debug) = debug_of(dynamic_linker) else { return false };
        let mut is_complete = true;
        while !debug.is_null() {
            is_complete &= (*debug).state == 0;
            let mut map = (*debug).map;
            while !map.is_null() {
                if (*map).dynamic != own {
                    visit(&*map);
                }
                map = (*map).next;
            }
            debug = if (*debug).version >= 2 { (*debug).next } else { core::ptr::null() };
        }
        is_complete
    }
    #[cfg(test)]
    true
}

/// Returns the dynamic linker's struct r_debug. It is found in the dynamic linker itself, because the program may have a copy
/// of it that is empty yet. musl has a pointer to it instead of the symbol, and none before it has relocated itself.
///
/// # Safety
/// It must be the address of the dynamic linker's ELF header.
#[cfg(not(test))]
unsafe fn debug_of(dynamic_linker: u64) -> Option<*const Debug> {
    // SAFETY: see above; the symbols are of these types.
    unsafe {
        let map = of_header(dynamic_linker)?;
        if let Some(debug) = find_in(&map, b"_r_debug") {
            return Some(debug as *const Debug);
        }
        let debug = *(find_in(&map, b"_dl_debug_addr")? as *const u64);
        (debug > dynamic_linker).then_some(debug as *const Debug)
    }
}

/// Returns the path of the dynamic linker that a program names, NUL-terminated: the contents of the segment PT_INTERP.
/// `headers` are the program headers: address, size of one in bytes, number.
///
/// # Safety
/// They must be those of the running program, which is mapped with this load bias.
#[cfg(feature = "standalone")]
pub(crate) unsafe fn interpreter((at, size, count): (u64, u64, u64), bias: u64) -> Option<*const u8> {
    const PT_INTERP: u32 = 3;
    let header = |n: u64| at + n * size;
    // SAFETY: the kernel has read these headers as well, and has mapped the segment.
    unsafe {
        let found = (0..count).map(header).find(|&header| *(header as *const u32) == PT_INTERP)?;
        Some(bias.wrapping_add(*((found + 0x10) as *const u64)) as *const u8)
    }
}

/// Returns the address of the function that the dynamic linker calls when the lists of objects have changed (r_brk), or
/// 0 if it is not known.
#[cfg_attr(test, allow(unused_variables))]
pub(crate) fn change_notice(dynamic_linker: u64) -> u64 {
    #[cfg(not(test))]
    // SAFETY: as in `each_object`.
    unsafe {
        match debug_of(dynamic_linker) {
            Some(debug) if (*debug).changed != 0 => (*debug).changed,
            // musl's dynamic linker has not begun yet, or has not got that far.
            _ => of_header(dynamic_linker).and_then(|map| find_in(&map, b"_dl_debug_state")).unwrap_or(0),
        }
    }
    #[cfg(test)]
    0
}

/// # Safety
/// An ELF header must be mapped there, with the object it is of.
#[cfg_attr(test, allow(dead_code))]
unsafe fn of_header(header: u64) -> Option<LinkMap> {
    const PT_DYNAMIC: u32 = 2;
    // SAFETY: e_phoff, e_phentsize, e_phnum, and the program headers they name.
    unsafe {
        let headers = header + *((header + 0x20) as *const u64);
        let (size, count) = (*((header + 0x36) as *const u16), *((header + 0x38) as *const u16));
        for i in 0..u64::from(count) {
            let at = headers + i * u64::from(size);
            if *(at as *const u32) == PT_DYNAMIC {
                let dynamic = (header + *((at + 0x10) as *const u64)) as *const [u64; 2];
                return Some(LinkMap {
                    bias: header,
                    name: core::ptr::null(),
                    dynamic,
                    next: core::ptr::null(),
                });
            }
        }
    }
    None
}

#[cfg(not(test))]
core::arch::global_asm!(".hidden _DYNAMIC");

/// # Safety
/// The map must be one of ld.so's.
#[cfg_attr(test, allow(dead_code))]
unsafe fn find_in(map: &LinkMap, name: &[u8]) -> Option<u64> {
    const DT_STRTAB: u64 = 5;
    const DT_SYMTAB: u64 = 6;
    const DT_GNU_HASH: u64 = 0x6fff_fef5;
    /// The size of a symbol in bytes.
    const SYMBOL: u64 = 24;
    let (mut strings, mut symbols, mut hash) = (0, 0, 0);
    // SAFETY: the dynamic section is terminated by type 0, and its tables are mapped and consistent.
    unsafe {
        let mut at = map.dynamic;
        while !at.is_null() && (*at)[0] != 0 {
            // ld.so has added the bias to these values, except in read-only objects (the vDSO).
            let value = (*at)[1];
            let address = if value < map.bias { value + map.bias } else { value };
            match (*at)[0] {
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => hash = address,
                _ => {}
            }
            at = at.add(1);
        }
        if strings == 0 || symbols == 0 || hash == 0 {
            return None;
        }
        let words = hash as *const u32;
        let (buckets, first, bloom, shift) = (*words, *words.add(1), *words.add(2), *words.add(3));
        let wanted = gnu_hash(name);
        // As in the dynamic linker, the filter comes before the table: a file whose table is damaged works for the names that the filter
        // keeps away from it.
        let filter = words.add(4).cast::<u64>().add(((wanted / 64) & bloom.wrapping_sub(1)) as usize);
        let bits = 1 << (wanted % 64) | 1 << (wanted.wrapping_shr(shift) % 64);
        if buckets == 0 || bloom == 0 || *filter & bits != bits {
            return None;
        }
        let bucket_table = words.add(4 + 2 * bloom as usize);
        let chains = bucket_table.add(buckets as usize);
        let mut index = *bucket_table.add((wanted % buckets) as usize);
        // Linkers put the names behind the symbols.
        let end = if symbols < strings { (strings - symbols) / SYMBOL } else { u64::MAX };
        if index < first {
            return None;
        }
        while u64::from(index) < end {
            let hash = *chains.add((index - first) as usize);
            // struct Elf64_Sym: name, info, other, section index, value, size.
            let symbol = (symbols + u64::from(index) * SYMBOL) as *const u8;
            let text = (strings + u64::from(*symbol.cast::<u32>())) as *const u8;
            let defined = *symbol.add(6).cast::<u16>() != 0;
            if hash | 1 == wanted | 1 && defined && is(text, name) {
                return Some(map.bias + *symbol.add(8).cast::<u64>());
            }
            if hash & 1 != 0 {
                return None;
            }
            index += 1;
        }
        None
    }
}

/// # Safety
/// `text` must be NUL-terminated.
unsafe fn is(text: *const u8, name: &[u8]) -> bool {
    // SAFETY: the comparison ends at the first difference, so at the NUL at the latest.
    unsafe { name.iter().enumerate().all(|(i, b)| *text.add(i) == *b) && *text.add(name.len()) == 0 }
}

fn gnu_hash(name: &[u8]) -> u32 {
    name.iter().fold(5381_u32, |hash, &b| hash.wrapping_mul(33).wrapping_add(b.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_values_are_those_of_the_format() {
        // From "GNU Hash ELF Sections" (Oracle).
        assert_eq!(gnu_hash(b""), 0x0000_1505);
        assert_eq!(gnu_hash(b"printf"), 0x156b_2bb8);
        assert_eq!(gnu_hash(b"exit"), 0x7c96_7e3f);
    }
}
