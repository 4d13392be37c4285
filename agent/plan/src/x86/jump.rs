//! The two jumps that patches consist of.

/// Bytes of `jmp rel32`.
pub(crate) const JUMP: u64 = 5;

/// Bytes of `jmp rel8`.
pub(crate) const SHORT_JUMP: u64 = 2;

/// Returns the `jmp rel32` at `from` that leads to `to`. Returns `None` if the target is out of reach.
pub(crate) fn near_jump(from: u64, to: u64) -> Option<[u8; 5]> {
    let [a, b, c, d] = near(from.wrapping_add(JUMP), to)?;
    Some([0xe9, a, b, c, d])
}

/// Returns the displacement of four bytes with which an instruction that ends at `end` leads to `target`. Returns `None` if
/// the target is out of reach.
pub(crate) fn near(end: u64, target: u64) -> Option<[u8; 4]> {
    i32::try_from(target.wrapping_sub(end).cast_signed()).ok().map(i32::to_le_bytes)
}

/// Returns the displacement of a short branch that ends at `end` and leads to `target`. Returns `None` if the
/// target is out of reach.
pub(crate) fn short(end: u64, target: u64) -> Option<u8> {
    i8::try_from(target.wrapping_sub(end).cast_signed()).ok().map(i8::cast_unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_reach_has_no_displacement() {
        const AT: u64 = 0x1000;
        const FAR: u64 = 1 << 31;
        assert_eq!(near_jump(AT, AT), Some([0xe9, 0xfb, 0xff, 0xff, 0xff]));
        // In a position-independent program, addresses below 0 wrap around.
        assert_eq!(near(AT, AT.wrapping_sub(FAR)), Some([0, 0, 0, 0x80]));
        assert_eq!(near(AT, AT + FAR - 1), Some([0xff, 0xff, 0xff, 0x7f]));
        assert_eq!(near(AT, AT.wrapping_sub(FAR + 1)), None);
        assert_eq!(near(AT, AT + FAR), None);
        assert_eq!(near(AT, AT + (1 << 32)), None);
        assert_eq!(near_jump(AT, AT + JUMP + FAR), None);
        assert_eq!((short(AT, AT + 127), short(AT, AT - 128)), (Some(127), Some(0x80)));
        assert_eq!((short(AT, AT + 128), short(AT, AT - 129)), (None, None));
    }
}
