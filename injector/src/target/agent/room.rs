//! Finds room for the agent and for the arenas of standalone programs in a process, and the C library.

use std::ops::Range;

use gprofinject_abi::region::PAGE;
use gprofinject_image::Image;

use crate::os::gaps;
use crate::os::proc::{self, Mapping};
use crate::target::process::Process;
use crate::target::threads::memory::Memory;

/// Returns the address of free room for `len` bytes from which the C library's code at `near` can be reached,
/// if there is any.
pub(super) fn gap(mappings: &[Mapping], near: u64, len: u64) -> Option<u64> {
    /// The process's next mappings are usually placed right below the existing ones.
    const AWAY: u64 = 256 << 20;
    let within = near.saturating_sub(gaps::REACH)..near.saturating_add(gaps::REACH);
    gaps::place(mappings, &within, len, (near, AWAY))
}

/// The distance between two places that are tried for the arena of a standalone program. Few places are different, so
/// that plans can be kept.
const STEP: u64 = 64 << 20;

/// Returns the link address of a place that is free in a process for the arena of its standalone program, or `None` if the
/// usual one has to do.
///
/// The kernel places a static position-independent program where it maps memory, so other mappings lie where the arena of a
/// program usually is, and the program's next ones will lie directly below those. Above a fixed program is the heap, at a
/// distance that differs.
pub(crate) fn arena(process: &Process, image: &Image) -> Option<u64> {
    let mappings = process.mappings().ok()?;
    let bias = process.program_headers().wrapping_sub(image.phdr);
    let code = image.code.iter().map(|code| code.address..code.address + code.bytes.len() as u64);
    let functions = |range: &Range<u64>| {
        let before = |at: u64| image.functions.partition_point(|function| function.address < at);
        before(range.end) - before(range.start)
    };
    let near = whole_or_code(image.lo..image.hi, code, functions);
    place(&mappings, bias.wrapping_add(near.start)..bias.wrapping_add(near.end), code_len_of(image))
        .map(|place| place.wrapping_sub(bias))
}

/// The farthest that a jump reaches, with a reserve.
const REACH: u64 = (2 << 30) - (64 << 20);

/// Returns the part of a program near which its arena has to be: the whole program, or if that is too large, the code with
/// most functions that is close together. `code` are the segments of code, sorted, and `functions` counts those in a range.
fn whole_or_code(
    whole: Range<u64>,
    code: impl Iterator<Item = Range<u64>>,
    functions: impl Fn(&Range<u64>) -> usize,
) -> Range<u64> {
    if whole.end - whole.start <= REACH / 2 {
        return whole;
    }
    let mut parts: Vec<Range<u64>> = Vec::new();
    for segment in code {
        match parts.last_mut() {
            Some(part) if segment.end - part.start <= REACH / 2 => part.end = segment.end,
            _ => parts.push(segment),
        }
    }
    parts.into_iter().max_by_key(functions).unwrap_or(whole)
}

fn code_len_of(image: &Image) -> u64 {
    image.code.iter().map(|code| code.bytes.len() as u64).sum()
}

/// Returns a runtime address for the arena of a program, or of the part of one that it has to reach, that is at `program` and
/// has so many bytes of code.
fn place(mappings: &[Mapping], program: Range<u64>, code: u64) -> Option<u64> {
    const LOWEST: u64 = 1 << 20;
    /// The number of bytes of thunks for one byte of code at most, and the least room.
    const FACTOR: u64 = 16;
    const LEAST: u64 = 32 << 20;
    let room = (FACTOR * code).next_multiple_of(PAGE).max(LEAST);
    let (lo, hi) = (program.start & !(PAGE - 1), program.end.next_multiple_of(PAGE));
    let is_free = |at: u64, before: u64, after: u64| {
        let (from, to) = (at.saturating_sub(before), at.saturating_add(room).saturating_add(after));
        mappings.iter().all(|mapping| mapping.hi <= from || mapping.lo >= to)
    };
    let is_near = |at: u64| at >= LOWEST && hi.max(at + room) - lo.min(at) <= REACH;
    let below =
        (1..).map_while(|n: u64| lo.checked_sub(room)?.checked_sub(n * STEP)).take_while(|&at| is_near(at));
    let above = (1..).map(|n: u64| hi + n * STEP).take_while(|&at| is_near(at));
    let places: Vec<u64> = below.chain(above).collect();
    // The heap grows upwards, and the kernel's mappings grow downwards: first those places that leave them some room.
    [(4 * STEP, 4 * STEP), (STEP, STEP), (0, 0)]
        .into_iter()
        .find_map(|(before, after)| places.iter().copied().find(|&at| is_free(at, before, after)))
}

/// Returns the mapping of the C library's code.
pub(super) fn libc_code(mappings: &[Mapping]) -> Option<&Mapping> {
    let is_libc = |path: &str| {
        let name = path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or_default();
        name.starts_with("libc.so.") || name.starts_with("libc-2.")
    };
    code_of(mappings, is_libc)
}

/// Returns the first mapping of the code of the library whose path is the one that is sought. The code may be that of an image, in place of
/// the library's own and between its other parts.
pub(super) fn code_of(mappings: &[Mapping], is_sought: impl Fn(&str) -> bool) -> Option<&Mapping> {
    let is_part = |mapping: &Mapping| is_sought(&mapping.path);
    let first = mappings.iter().position(is_part)?;
    let last = mappings.iter().rposition(is_part)?;
    mappings.get(first..=last)?.iter().find(|mapping| mapping.executable)
}

/// The number of bytes of the C library's code that are read. Another file may have the library's name, and
/// any length.
pub(super) fn code_len(libc: &Mapping) -> usize {
    const MOST: u64 = 64 << 20;
    (libc.hi - libc.lo).min(MOST) as usize
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Returns the offset of a `syscall` instruction in a piece of code.
pub(super) fn find_syscall(code: &[u8]) -> Option<u64> {
    syscalls(code).next()
}

fn syscalls(code: &[u8]) -> impl Iterator<Item = u64> {
    code.windows(SYSCALL.len()).zip(0..).filter(|(bytes, _)| *bytes == SYSCALL).map(|(_, at)| at)
}

/// Returns the address of a `syscall` instruction of a process without the C library's shared object: one in the vDSO, or
/// else one in the program that `may_be` accepts.
pub(crate) fn instruction(pid: i32, memory: &Memory, may_be: impl Fn(u64) -> bool) -> Option<u64> {
    /// The longest piece of code that is read.
    const MOST: u64 = 64 << 20;
    let mut mappings = proc::mappings(pid).ok()?;
    mappings.retain(|mapping| mapping.executable && !mapping.path.is_empty());
    mappings.sort_by_key(|mapping| mapping.path != "[vdso]");
    mappings.into_iter().find_map(|mapping| {
        let code = memory.bytes(mapping.lo, (mapping.hi - mapping.lo).min(MOST) as usize).ok()?;
        syscalls(&code).map(|at| mapping.lo + at).find(|&at| may_be(at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn mapping(lo: u64, hi: u64) -> Mapping {
        Mapping { lo, hi, writable: false, executable: false, offset: 0, inode: 0, path: String::new() }
    }

    /// Like a static position-independent program with a thread: the stack and the vDSO are directly below it.
    #[test]
    fn an_arena_is_apart_from_what_is_below_the_program() {
        let program = 0x7f3a_2ffd_3000..0x7f3a_3009_f000;
        let stack = mapping(program.start - 10 * MIB, program.start);
        let all = [stack.clone(), mapping(program.start, program.end)];
        let at = place(&all, program.clone(), MIB / 2).expect("a place");
        assert!(at + 32 * MIB <= stack.lo && program.end - at < 2 << 30, "{at:#x}");
        // The same distance in another process, so that its plan is the same.
        let by = 0x5000;
        let moved = all.map(|old| mapping(old.lo + by, old.hi + by));
        assert_eq!(place(&moved, program.start + by..program.end + by, MIB / 2), Some(at + by));
    }

    /// Like programs with gigabytes of data, and like those whose code is far apart.
    #[test]
    fn an_arena_is_near_most_of_the_code() {
        const GIB: u64 = 1 << 30;
        let code = [MIB..2 * MIB, 3 * MIB..4 * MIB, 5 * GIB..5 * GIB + MIB];
        let of = |whole, functions: [usize; 2]| {
            let functions = move |range: &Range<u64>| functions[usize::from(range.start > GIB)];
            whole_or_code(whole, code.clone().into_iter(), functions)
        };
        assert_eq!(of(0..GIB / 2, [1, 2]), 0..GIB / 2);
        assert_eq!(of(0..6 * GIB, [2, 1]), MIB..4 * MIB);
        assert_eq!(of(0..6 * GIB, [1, 2]), 5 * GIB..5 * GIB + MIB);
        let mapped = [mapping(0x40_0000, 0x40_0000 + 3 * GIB)];
        assert_eq!(place(&mapped, 0x40_0000..0x40_0000 + 3 * GIB, MIB), None);
        let apart = [mapping(MIB, 4 * MIB), mapping(5 * GIB, 5 * GIB + MIB)];
        let at = place(&apart, 5 * GIB..5 * GIB + MIB, MIB).expect("a place");
        assert!(at > 3 * GIB && at + 32 * MIB <= 5 * GIB, "{at:#x}");
    }

    /// Like a fixed program with a heap that grows.
    #[test]
    fn an_arena_is_not_directly_above_the_heap() {
        let program = 0x40_0000..0x4c_1000;
        let heap = mapping(0x0b8f_1000, 0x0b91_3000);
        let at = place(&[mapping(program.start, program.end), heap.clone()], program.clone(), MIB / 2);
        let at = at.expect("a place");
        assert!(at >= heap.hi + 64 * MIB || at >= program.end && at + 32 * MIB <= heap.lo, "{at:#x}");
        let full = mapping(program.end, 4 << 30);
        assert_eq!(place(&[mapping(program.start, program.end), full], program, MIB / 2), None);
    }
}
