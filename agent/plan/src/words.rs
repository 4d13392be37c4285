//! Where a thread's words of the agent will be.

use gprofinject_abi::plan::{WORDS_ALIGN, WORDS_BYTES};
use gprofinject_image::headers::Tls;

/// Returns the offset of the words from the thread pointer in a process in which glibc's dynamic linker loads the agent directly after
/// the program, which has these thread-local variables. The agent changes its thunks if they are elsewhere.
///
/// glibc gives each file that it loads at the start a place below those of the files before, or in a gap between them that alignment has
/// left (elf/dl-tls.c, `_dl_determine_tlsoffset`; "ELF Handling For Thread-Local Storage", variant II).
pub fn offset_of_words(program: Option<Tls>) -> i64 {
    let place = |start: i64, len: i64, align: i64, first: i64| {
        let least = start.checked_add(len)?.checked_sub(first)?.checked_add(align - 1)?;
        (least & -align).checked_add(first)
    };
    let (own_len, own_align) = (WORDS_BYTES as i64, WORDS_ALIGN as i64);
    let of_program = |tls: Tls| {
        let (len, align) = (i64::try_from(tls.len).ok()?, i64::try_from(tls.align).ok()?);
        if !tls.align.is_power_of_two() {
            return None;
        }
        let end = place(0, len, align, tls.address.wrapping_neg() as i64 & (align - 1))?;
        let in_gap = place(0, own_len, own_align, 0).filter(|own| *own <= end - len);
        in_gap.or_else(|| place(end, own_len, own_align, 0))
    };
    let alone = place(0, own_len, own_align, 0);
    -program.and_then(of_program).or(alone).unwrap_or(own_len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_follow_the_programs_variables() {
        let own = WORDS_BYTES.next_multiple_of(WORDS_ALIGN) as i64;
        assert_eq!(offset_of_words(None), -own);
        let tls = |address, len, align| Some(Tls { address, len, align });
        assert_eq!(
            offset_of_words(tls(0x1000, 8, 8)),
            -((8 + WORDS_BYTES).next_multiple_of(WORDS_ALIGN) as i64)
        );
        assert_eq!(offset_of_words(tls(0x1000, 0x100, 64)), -(0x100 + own));
        // The gap in front of variables that begin at a large multiple has room.
        assert_eq!(offset_of_words(tls(0x1000, 0x100, 4096)), -own);
        // The first byte is 8 bytes after a multiple of 64, and so are those of each thread: the variables end 56 bytes below the
        // thread pointer.
        assert_eq!(
            offset_of_words(tls(0x1008, 0x10, 64)),
            -((56 + WORDS_BYTES).next_multiple_of(WORDS_ALIGN) as i64)
        );
        assert_eq!(offset_of_words(tls(0, u64::MAX, 8)), -own);
    }
}
