//! Where the arena of a module is.
//!
//! A jump reaches 2 GiB, and so do the operands of relocated instructions. Nearly all programs are smaller than that, and
//! have their arena directly below them, or above their heap if they are loaded at a fixed address that leaves no room. The arena of
//! a library is a gigabyte below it, or one and a half ([`LIBRARY_ARENA`]). If
//! that place is not near all of the hooked functions, because a program has code that is farther apart or data of
//! gigabytes around it, the arena is at the place that is near most of them. The other functions are refused
//! ([`Reason::Far`](crate::decide::verdict::Reason::Far)).

use crate::decide::hook::Hook;
use crate::x86::template::kind::Role;
use gprofinject_abi::plan::{LIBRARY_ARENA, LONG_LIBRARY_ARENA};
use gprofinject_abi::region::{PAGE, round_up};
use gprofinject_image::{ElfType, Image};

/// Bytes left free between the arena and the program.
pub(super) const GUARD: u64 = 0x1_0000;
/// The lowest address at which a process may map memory (vm.mmap_min_addr).
const LOWEST: u64 = 0x2_0000;
/// If an ET_EXEC has no room for the arena below it, the arena is placed above it and leaves this many
/// bytes to the heap.
const HEAP: u64 = 1 << 29;
/// The distance that a displacement reaches in either direction, less than a page for the lengths of instructions and for
/// the bytes beside a function that its hook uses.
const REACH: u64 = (1 << 31) - PAGE;
/// The length that no arena has. All offsets in an arena therefore fit into 31 bits.
pub(super) const MOST: u64 = REACH;

/// Returns the address of an arena of `len` bytes for these hooks.
pub(super) fn place(image: &Image, role: Role, hooks: &[Hook], len: u64) -> u64 {
    let usual = match role.is_library() {
        false => usual(image, len),
        true if len > image.hi.saturating_sub(image.lo) => LONG_LIBRARY_ARENA,
        true => LIBRARY_ARENA,
    };
    let reached = |at: u64| hooks.iter().filter(|hook| reaches(at, len, image, hook)).count();
    let mut best = (reached(usual), usual);
    if best.0 < hooks.len() {
        // The dynamic linker maps a library as a whole. The process has to say where there is room for the arena of a library of more
        // than a gigabyte.
        let others = match role.is_library() {
            false => gaps(image, len),
            true => vec![LIBRARY_ARENA, self::usual(image, len)],
        };
        for at in others {
            let reached = reached(at);
            if reached > best.0 {
                best = (reached, at);
            }
        }
    }
    best.1
}

/// Returns the place that is used unless the program is too large for it.
fn usual(image: &Image, len: u64) -> u64 {
    let below = image.lo.wrapping_sub(GUARD + len);
    match image.elf_type {
        ElfType::Dyn => below,
        ElfType::Exec if image.lo > LOWEST + GUARD + len => below,
        ElfType::Exec => round_up(image.hi, PAGE) + HEAP,
    }
}

/// Returns the places between segments at which an arena has room: at the start and at the end of each gap. Nothing is mapped
/// there when the program begins.
fn gaps(image: &Image, len: u64) -> Vec<u64> {
    let mut places = Vec::new();
    for pair in image.segments.windows(2) {
        let lo = round_up(pair[0].address + pair[0].memory, PAGE) + GUARD;
        let hi = (pair[1].address & !(PAGE - 1)).saturating_sub(GUARD);
        if hi.checked_sub(lo).is_some_and(|room| room >= len) {
            places.extend([lo, hi - len]);
        }
    }
    places
}

/// Returns whether the code of a function, and every byte of an arena of `len` bytes, reach each other.
pub(super) fn reaches(arena: u64, len: u64, image: &Image, hook: &Hook) -> bool {
    let f = &image.functions[hook.function];
    // The arena of a position-independent program may lie below address 0, where addresses wrap around.
    let apart = |one: u64, other: u64| one.wrapping_sub(other).cast_signed().unsigned_abs();
    let near = |at: u64, text: u64| apart(at, text) < REACH;
    let (end, f_end) = (arena.wrapping_add(len), f.address.wrapping_add(f.size));
    len < MOST && [arena, end].into_iter().all(|at| near(at, f.address) && near(at, f_end))
}

#[cfg(test)]
mod tests;
