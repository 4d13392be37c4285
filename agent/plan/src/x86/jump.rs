//! The two jumps that patches consist of.

/// Bytes of `jmp rel32`.
pub(crate) const JUMP: u64 = 5;

/// Bytes of `jmp rel8`.
pub(crate) const SHORT_JUMP: u64 = 2;

/// Returns the `jmp rel32` at `from` that leads to `to`.
pub(crate) fn near_jump(from: u64, to: u64) -> [u8; 5] {
    let [a, b, c, d] = (to.wrapping_sub(from.wrapping_add(5)) as u32).to_le_bytes();
    [0xe9, a, b, c, d]
}

/// Returns the displacement of a short branch that ends at `end` and leads to `target`. Returns `None` if the
/// target is out of reach.
pub(crate) fn short(end: u64, target: u64) -> Option<u8> {
    i8::try_from(target.wrapping_sub(end) as i64).ok().map(|d| d as u8)
}
