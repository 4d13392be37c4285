//! Finds addresses that are free in a process, by the list of its mappings.

use std::ops::Range;

use gprofinject_abi::region::PAGE;

use crate::os::proc::Mapping;

/// The lowest address that a process may map, by the kernel's usual setting, with a reserve.
const LOWEST: u64 = 1 << 20;
/// The end of the addresses that a process can map: they have 47 bits, and the last page cannot be mapped.
const TOP: u64 = (1 << 47) - PAGE;

/// The distance from a jump's end to where it leads is less than this, with a reserve for the lengths of what is at both ends.
pub(crate) const REACH: u64 = (2 << 30) - (64 << 20);

/// Returns the address of `len` free bytes within a range, as near to `near` as possible. `away` is the distance from the
/// mappings on the side of `near` if there is room for so much.
pub(crate) fn place(
    mappings: &[Mapping],
    within: &Range<u64>,
    len: u64,
    (near, away): (u64, u64),
) -> Option<u64> {
    let found = gaps(mappings).filter_map(|gap| {
        // One page stays free on either side.
        let lo = gap.start.saturating_add(PAGE).max(within.start).next_multiple_of(PAGE);
        let hi = gap.end.saturating_sub(PAGE).min(within.end) & !(PAGE - 1);
        let rest = hi.checked_sub(lo)?.checked_sub(len.next_multiple_of(PAGE))?;
        let away = (rest / 2).min(away) & !(PAGE - 1);
        Some(if hi <= near { lo + rest - away } else { lo + away })
    });
    found.min_by_key(|at| at.abs_diff(near))
}

/// Returns what is free between mappings, without the room into which the heap and the main thread's stack grow.
fn gaps(mappings: &[Mapping]) -> impl Iterator<Item = Range<u64>> {
    /// The kernel leaves at least twice as much to the stack.
    const STACK: u64 = 64 << 20;
    const HEAP: u64 = 1 << 30;
    let los = mappings.iter().map(|mapping| match mapping.path.as_str() {
        "[stack]" => mapping.lo.saturating_sub(STACK),
        _ => mapping.lo,
    });
    let his = mappings.iter().map(|mapping| match mapping.path.as_str() {
        "[heap]" => mapping.hi.saturating_add(HEAP),
        _ => mapping.hi,
    });
    let ends = los.map(|lo| lo.min(TOP)).chain([TOP]);
    [LOWEST].into_iter().chain(his).zip(ends).map(|(lo, hi)| lo..hi).filter(|gap| gap.start < gap.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn mapping(lo: u64, hi: u64, path: &str) -> Mapping {
        Mapping { lo, hi, writable: false, executable: false, offset: 0, inode: 0, path: path.into() }
    }

    /// Like a process with many threads: their stacks fill what is below the libraries.
    #[test]
    fn room_is_above_where_there_is_none_below() {
        let libraries = 0x7f00_0000_0000..0x7f00_0100_0000;
        let stacks = mapping(libraries.start - (5 << 30), libraries.start, "");
        let stack = mapping(0x7fff_f000_0000, 0x7fff_f002_1000, "[stack]");
        let all = [stacks.clone(), mapping(libraries.start, libraries.end, "/lib/libc.so.6"), stack.clone()];
        let within = libraries.end - REACH..libraries.start + REACH;
        let at = place(&all, &within, MIB, (libraries.start, 0)).expect("room");
        assert_eq!(at, libraries.end + PAGE);
        let at = place(&all, &within, MIB, (libraries.start, 256 * MIB)).expect("room");
        assert_eq!(at, libraries.end + PAGE + 256 * MIB);
        // Between two stacks there is just enough.
        let hole = libraries.start - 900 * MIB;
        let parted = [
            mapping(stacks.lo, hole, ""),
            mapping(hole + MIB + 2 * PAGE, libraries.start, ""),
            mapping(libraries.start, stack.lo, "/lib/libc.so.6"),
            stack,
        ];
        let found = |len| place(&parted, &within, len, (libraries.start, 256 * MIB));
        assert_eq!((found(MIB), found(MIB + 1)), (Some(hole + PAGE), None));
    }

    #[test]
    fn the_stack_and_the_heap_can_grow() {
        let heap = mapping(0x50_0000, 0x60_0000, "[heap]");
        let stack = mapping(0x1_0000_0000, 0x1_0010_0000, "[stack]");
        let mappings = [heap, stack.clone()];
        let near = |near| place(&mappings, &(0..1 << 33), MIB, (near, 0)).expect("room");
        assert_eq!(near(0x60_0000 + (1 << 30)), 0x60_0000 + (1 << 30) + PAGE);
        assert_eq!(near(stack.lo), stack.hi + PAGE);
        let below = place(&mappings, &(0..stack.lo), MIB, (stack.lo, 0));
        assert_eq!(below, Some(stack.lo - 64 * MIB - PAGE - MIB));
    }

    #[test]
    fn numbers_that_cannot_be_find_nothing() {
        let high = [mapping(0, u64::MAX, ""), mapping(u64::MAX - 1, u64::MAX, "[heap]")];
        assert_eq!(place(&high, &(0..u64::MAX), PAGE, (0, u64::MAX)), None);
        assert_eq!(place(&[], &(0..u64::MAX), u64::MAX - PAGE, (0, 0)), None);
        assert_eq!(place(&[], &Range { start: 0x5000, end: 0x4000 }, PAGE, (0, 0)), None);
    }
}
