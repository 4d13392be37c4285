//! Decodes enough of x86-64 to distinguish a call from a jump, and to find the end of a call.

/// The effect of the instruction at a call site, as far as call graphs are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Branch {
    /// A call with this number of bytes; the return address is immediately after it.
    Call { length: u64 },
    /// A jump, conditional or not. A jump to another function's entry is a tail call.
    Jump,
    /// Anything else. Callgrind names the last instruction before control came to another function. It need
    /// not be a branch, because code may run on into the next function.
    Other,
}

/// Decodes the instruction at the start of `code`.
pub fn branch(code: &[u8]) -> Branch {
    let is_prefix = |b: &u8| {
        matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2 | 0xf3) || matches!(b, 0x40..=0x4f)
    };
    let prefixes = code.iter().take_while(|b| is_prefix(b)).count();
    let at = |i: usize| code.get(prefixes + i).copied().unwrap_or(0);
    match (at(0), at(1)) {
        (0xe8, _) => Branch::Call { length: prefixes as u64 + 5 },
        (0xff, modrm) if (modrm >> 3) & 7 == 2 => {
            Branch::Call { length: prefixes as u64 + 1 + operand_length(modrm, at(2)) }
        }
        (0xff, modrm) if (modrm >> 3) & 7 == 4 => Branch::Jump,
        (0xe9 | 0xeb | 0x70..=0x7f | 0xe0..=0xe3, _) => Branch::Jump,
        (0x0f, 0x80..=0x8f) => Branch::Jump,
        _ => Branch::Other,
    }
}

/// Returns the number of bytes of ModRM, SIB and displacement.
fn operand_length(modrm: u8, sib: u8) -> u64 {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    let has_sib = mode != 3 && rm == 4;
    let displacement = match mode {
        0 if rm == 5 => 4,                 // RIP-relative
        0 if has_sib && sib & 7 == 5 => 4, // no base register
        1 => 1,
        2 => 4,
        _ => 0,
    };
    1 + u64::from(has_sib) + displacement
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_their_lengths() {
        let cases: &[(&[u8], u64)] = &[
            (&[0xe8, 0, 0, 0, 0], 5),
            (&[0x67, 0xe8, 0, 0, 0, 0], 6), // addr32 call: a relaxed call *f@GOTPCREL
            (&[0xff, 0xd0], 2),             // call *%rax
            (&[0x41, 0xff, 0xd3], 3),       // call *%r11
            (&[0x3e, 0xff, 0xd0], 3),       // notrack call *%rax
            (&[0xff, 0x15, 0, 0, 0, 0], 6), // call *x(%rip)
            (&[0xff, 0x50, 0x18], 3),       // call *0x18(%rax)
            (&[0xff, 0x54, 0x24, 0x08], 4), // call *8(%rsp)
            (&[0xff, 0x14, 0xc5, 0, 0, 0, 0], 7), // call *x(,%rax,8)
            (&[0xff, 0x14, 0xc8], 3),       // call *(%rax,%rcx,8)
            (&[0x41, 0xff, 0x92, 0, 1, 0, 0], 7), // call *0x100(%r10)
        ];
        for (code, length) in cases {
            assert_eq!(branch(code), Branch::Call { length: *length }, "{code:02x?}");
        }
    }

    #[test]
    fn jumps() {
        let cases: &[&[u8]] = &[
            &[0xe9, 0, 0, 0, 0],
            &[0xeb, 0xfe],
            &[0x74, 0xfe],
            &[0x0f, 0x85, 0, 0, 0, 0],
            &[0xff, 0xe0],
            &[0x3e, 0xff, 0xe2],
            &[0xff, 0x25, 0, 0, 0, 0],
            &[0xf2, 0xe9, 0, 0, 0, 0],
            &[0xe2, 0xfe],
        ];
        for code in cases {
            assert_eq!(branch(code), Branch::Jump, "{code:02x?}");
        }
        assert_eq!(branch(&[0xc3]), Branch::Other);
        assert_eq!(branch(&[]), Branch::Other);
    }
}
