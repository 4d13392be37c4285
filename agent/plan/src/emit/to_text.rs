//! Finds the displacements by which code in the arena leads to a library's own text and data. They depend on how far apart
//! the library and its arena are in a process.
//!
//! Which operands the encoder has written how is not known. So the code is made twice, the second time for an address that
//! differs in every byte, with the whole arena moved by as much: exactly these displacements differ then.

/// How far the arena is moved for the second time.
pub(crate) const SHIFT: u64 = 0x0101_0101;

/// Returns the offsets of the displacements in `code`, of which `again` is the form in an arena that is moved by
/// [`SHIFT`]. Returns `None` if they cannot be told.
pub(crate) fn displacements(code: &[u8], again: &[u8]) -> Option<Vec<u32>> {
    if again.len() != code.len() {
        return None;
    }
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        if again[at] == code[at] {
            at += 1;
            continue;
        }
        let word = |bytes: &[u8]| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let moved = word(code)?.wrapping_sub(word(again)?);
        if u64::from(moved) != SHIFT {
            return None;
        }
        found.push(at as u32);
        at += 4;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_by_the_shift_is_found() {
        let code = |to: u32| [&[0xe9][..], &to.to_le_bytes(), &[0x90, 0xe9], &to.to_le_bytes()].concat();
        let far = 0x2000_0000_u32;
        assert_eq!(displacements(&code(far), &code(far - SHIFT as u32)), Some(vec![1, 7]));
        assert_eq!(displacements(&code(far), &code(far)), Some(Vec::new()));
        assert_eq!(displacements(&code(far), &code(far - 1)), None);
        assert_eq!(displacements(&code(far), &code(far)[..3]), None);
    }
}
