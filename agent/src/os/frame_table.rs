//! Looks up a program counter in an `.eh_frame_hdr`, the sorted index of unwind descriptions that the linker or the plan has made
//! (LSB core 10.6.2).
#![allow(unsafe_code, reason = "words of a table are read by its address")]

/// Bytes before the pairs; the last four of them are the number of pairs.
const BEFORE_PAIRS: u64 = 12;

/// Returns the start address of the code that the last description at or before an address covers, and the address of that
/// description (FDE), or `None` if the address comes before all code. Integer code only; see [`crate::hot::gate`].
///
/// # Safety
/// A whole `.eh_frame_hdr` must be at `table`, with words relative to the table, sorted.
pub(crate) unsafe fn find(table: u64, pc: u64) -> Option<(u64, u64)> {
    // SAFETY: the caller has promised that the table is there, and only words within it are read.
    let word = |at: u64| unsafe { *((table + at) as *const i32) };
    let wanted = pc.wrapping_sub(table) as i64;
    let (mut lo, mut hi) = (0, u64::from(word(BEFORE_PAIRS - 4) as u32));
    while lo < hi {
        let middle = lo + (hi - lo) / 2;
        if i64::from(word(BEFORE_PAIRS + 8 * middle)) <= wanted {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    if lo == 0 {
        return None;
    }
    let pair = BEFORE_PAIRS + 8 * (lo - 1);
    Some((table.wrapping_add(word(pair) as u64), table.wrapping_add(word(pair + 4) as u64)))
}
