//! Finds functions in the program's other libraries, without the C library's help: dlsym is in another
//! library before glibc 2.34, and cannot be called before the C library is ready.
//!
//! Source: System V gABI, chapter 5 (dynamic section); the DT_GNU_HASH format as in glibc, elf/dl-lookup.c.
#![allow(unsafe_code)]

/// struct link_map, as <link.h> has it.
#[repr(C)]
struct LinkMap {
    bias: u64,
    name: *const u8,
    dynamic: *const [u64; 2],
    next: *const LinkMap,
}

#[cfg(not(test))]
core::arch::global_asm!(".weak _r_debug");

/// The first loaded object's definition of a function, ours left out; 0: there is none.
pub(crate) fn function(name: &[u8]) -> u64 {
    #[cfg(not(test))]
    {
        let debug: *const u64;
        let own: *const [u64; 2];
        // SAFETY: the GOT entry is null or the address of ld.so's struct r_debug; the linker defines
        // _DYNAMIC.
        unsafe {
            core::arch::asm!("mov {}, [rip + _r_debug@GOTPCREL]", out(reg) debug, options(nostack, pure, readonly));
            core::arch::asm!("lea {}, [rip + _DYNAMIC]", out(reg) own, options(nostack, pure, nomem));
            if debug.is_null() {
                return 0;
            }
            // r_version (and padding), r_map.
            let mut map = *debug.add(1) as *const LinkMap;
            while !map.is_null() {
                if (*map).dynamic != own
                    && let Some(found) = find_in(&*map, name)
                {
                    return found;
                }
                map = (*map).next;
            }
        }
    }
    let _ = name;
    0
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
    let (mut strings, mut symbols, mut hash) = (0, 0, 0);
    // SAFETY: the dynamic section ends with type 0, and its tables are mapped and consistent.
    unsafe {
        let mut at = map.dynamic;
        while !at.is_null() && (*at)[0] != 0 {
            // ld.so has added the bias to these, but in read-only objects (the vDSO).
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
        let (buckets, first, bloom) = (*words, *words.add(1), *words.add(2));
        let bucket_table = words.add(4 + 2 * bloom as usize);
        let chains = bucket_table.add(buckets as usize);
        let wanted = gnu_hash(name);
        let mut index = *bucket_table.add((wanted % buckets.max(1)) as usize);
        if buckets == 0 || index < first {
            return None;
        }
        loop {
            let hash = *chains.add((index - first) as usize);
            // struct Elf64_Sym: name, info, other, section index, value, size.
            let symbol = (symbols + u64::from(index) * 24) as *const u8;
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
