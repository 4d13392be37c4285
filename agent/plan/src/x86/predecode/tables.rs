//! The format of each opcode that [`crate::x86::predecode::decode::predecode`] recognises. The entry of any
//! other opcode is 0, which means that the function gives no answer.

use crate::x86::predecode::fields::Class;

/// Bits 0 to 7 of an entry in [`OPCODES`]: the values that ModRM.reg may have if the other operand is in
/// memory.
const MEMORY: u64 = 0xff;
/// Bits 8 to 15: the values that ModRM.reg may have if the other operand is a register.
const REGISTER: u64 = 0xff00;
/// Any value, with any operand.
const ANY: u64 = MEMORY | REGISTER;
/// Bits 16 to 19: the mandatory prefixes that the opcode may have.
pub(crate) const PREFIXES: u32 = 16;
/// The mandatory prefix may be none.
const NONE: u64 = 1 << 16;
/// It may be 66.
const P66: u64 = 1 << 17;
/// It may be f3.
const PF3: u64 = 1 << 18;
/// It may be f2.
const PF2: u64 = 1 << 19;
/// Bit 20: a ModRM byte follows.
pub(crate) const MODRM: u32 = 20;
/// The bits from here on: twice the bytes of an immediate operand that follows.
pub(crate) const IMM: u32 = 21;
/// An immediate operand of one byte follows.
pub(crate) const IMM8: u64 = 1 << IMM;
/// An immediate operand of four bytes follows, or of two with a prefix 66.
pub(crate) const IMMZ: u64 = 4 << IMM;
/// An immediate operand follows if ModRM.reg is 0: of one byte if the opcode is even, otherwise of four
/// bytes, or two with a prefix 66.
pub(crate) const IMM_OF_TEST: u64 = 1 << 22;
/// Bit 24: the opcode's last three bits are a register.
pub(crate) const OPCODE_REGISTER: u32 = 24;
/// Operands are bytes, and register 4 may be ah.
pub(crate) const BYTES: u64 = 1 << 25;
/// The bits from here on, by register number: rax, rcx, rdx or rsp is, or may be, an operand that no field
/// names.
pub(crate) const RAX: u32 = 26;
/// All of these bits.
pub(crate) const IMPLICIT: u64 = (1 << 0 | 1 << 1 | 1 << 2 | 1 << 4) << RAX;
/// rax is such an operand.
const AX: u64 = 1 << RAX;
/// rcx is such an operand.
const CX: u64 = 2 << RAX;
/// rdx is such an operand.
const DX: u64 = 4 << RAX;
/// rsp is such an operand.
const SP: u64 = 16 << RAX;
/// This is not an opcode but a legacy prefix. The bits from [`PREFIXES`] on say which mandatory prefix it is,
/// if it is one.
pub(crate) const LEGACY: u64 = 1 << 31;
/// The bits from here on: the [`Class`], as a number.
pub(crate) const CLASS: u32 = 32;
/// Returns the bits for a class.
const fn class(class: Class) -> u64 {
    (class as u64) << CLASS
}
/// The instruction needs special treatment: the immediate operand of a `mov` may have eight bytes, or the
/// entry has [`IMM_OF_TEST`].
pub(crate) const ODD: u64 = 1 << 35;
/// The bits from here on: how the instruction accesses its operands, as the number of an [`Access`].
pub(crate) const ACCESS: u32 = 36;

/// How an instruction without a prefix 66 accesses the operands that ModRM.reg and ModRM.rm name. Each
/// operand has 32 or 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Access {
    /// The accesses are unknown.
    None,
    /// rm is written, reg is read.
    Store,
    /// reg is written, rm is read.
    Load,
    /// reg is written, rm is read and has 8 or 16 bits.
    LoadPart,
    /// reg is written; rm is an address.
    Address,
    /// rm is read and written, reg is read.
    Update,
    /// reg is read and written, rm is read.
    Combine,
    /// Both are read.
    Compare,
    /// rm is written.
    Set,
    /// rm is read and written. If reg, which is a part of the opcode, is 7, rm is only read.
    Arithmetic,
    /// rm is read and written, if reg is 4 or more.
    Shift,
    /// rm is read if reg is 0, and read and written if it is 2 or 3.
    Group3,
    /// rm is read and written.
    Step,
    /// The register that the opcode names is written.
    SetNamed,
}

/// Returns the bits for an access.
const fn access(access: Access) -> u64 {
    (access as u64) << ACCESS
}

/// The bit of [`MODRM`].
const HAS_MODRM: u64 = 1 << MODRM;
/// The bit of [`OPCODE_REGISTER`].
const HAS_REGISTER: u64 = 1 << OPCODE_REGISTER;
/// The mandatory prefix may be none or 66, as with most opcodes.
const INTEGER: u64 = NONE | P66;
/// An instruction on general registers, with ModRM.
const GENERAL: u64 = HAS_MODRM | ANY | INTEGER;
/// An instruction on packed values, with ModRM.
const PACKED: u64 = GENERAL;
/// An instruction with ModRM and any mandatory prefix.
const ALL: u64 = GENERAL | PF3 | PF2;

/// Sets the entries of the opcodes from `first` to `last`.
const fn set(mut table: [u64; 512], first: usize, last: usize, entry: u64) -> [u64; 512] {
    let mut opcode = first;
    // An instruction without ModRM may have any value there.
    let allowed = if entry & (HAS_MODRM | LEGACY) == 0 { ANY } else { 0 };
    while opcode <= last {
        table[opcode] = entry | allowed;
        opcode += 1;
    }
    table
}

/// The entries by opcode. An opcode of two bytes has the number 256 plus its second byte. Legacy prefixes
/// have entries too.
pub(crate) static OPCODES: [u64; 512] = {
    let mut t = [0; 512];
    // These are add, or, adc, sbb, and, sub, xor and cmp, with six forms each.
    let mut operation = 0;
    while operation < 0x40 {
        t = set(t, operation, operation, GENERAL | BYTES);
        let is_compare = operation == 0x38;
        let by_reg = access(if is_compare { Access::Compare } else { Access::Update });
        t = set(t, operation + 1, operation + 1, GENERAL | by_reg);
        t = set(t, operation + 2, operation + 2, GENERAL | BYTES);
        let by_rm = access(if is_compare { Access::Compare } else { Access::Combine });
        t = set(t, operation + 3, operation + 3, GENERAL | by_rm);
        t = set(t, operation + 4, operation + 4, NONE | IMM8 | AX);
        t = set(t, operation + 5, operation + 5, INTEGER | IMMZ | AX);
        operation += 8;
    }
    t = set(t, 0x26, 0x26, LEGACY);
    t = set(t, 0x2e, 0x2e, LEGACY);
    t = set(t, 0x36, 0x36, LEGACY);
    t = set(t, 0x3e, 0x3e, LEGACY);
    // The prefix for gs (65) is left to iced: `flow/read/part.rs` notes a program that uses gs.
    t = set(t, 0x64, 0x64, LEGACY);
    t = set(t, 0x66, 0x66, LEGACY | P66);
    t = set(t, 0xf3, 0xf3, LEGACY | PF3);
    t = set(t, 0xf2, 0xf2, LEGACY | PF2);
    t = set(t, 0x50, 0x57, INTEGER | HAS_REGISTER | SP | class(Class::Push));
    t = set(t, 0x58, 0x5f, INTEGER | HAS_REGISTER | SP | class(Class::Pop));
    t = set(t, 0x63, 0x63, GENERAL | access(Access::Load)); // movsxd
    t = set(t, 0x68, 0x68, NONE | IMMZ | SP | class(Class::Push));
    t = set(t, 0x69, 0x69, GENERAL | IMMZ | access(Access::Load)); // imul
    t = set(t, 0x6a, 0x6a, NONE | IMM8 | SP | class(Class::Push));
    t = set(t, 0x6b, 0x6b, GENERAL | IMM8 | access(Access::Load)); // imul
    t = set(t, 0x70, 0x7f, NONE | IMM8 | class(Class::Conditional));
    t = set(t, 0x80, 0x80, GENERAL | IMM8 | BYTES); // add ... cmp
    t = set(t, 0x81, 0x81, GENERAL | IMMZ | access(Access::Arithmetic));
    t = set(t, 0x83, 0x83, GENERAL | IMM8 | access(Access::Arithmetic));
    t = set(t, 0x84, 0x84, GENERAL | BYTES); // test
    t = set(t, 0x85, 0x85, GENERAL | access(Access::Compare));
    t = set(t, 0x86, 0x86, GENERAL | BYTES); // xchg
    t = set(t, 0x87, 0x87, GENERAL);
    t = set(t, 0x88, 0x88, GENERAL | BYTES); // mov
    t = set(t, 0x89, 0x89, GENERAL | access(Access::Store));
    t = set(t, 0x8a, 0x8a, GENERAL | BYTES);
    t = set(t, 0x8b, 0x8b, GENERAL | access(Access::Load));
    t = set(t, 0x8d, 0x8d, HAS_MODRM | MEMORY | INTEGER | class(Class::Lea) | access(Access::Address));
    t = set(t, 0x90, 0x97, INTEGER | HAS_REGISTER | AX); // xchg, nop
    t = set(t, 0x98, 0x99, INTEGER | AX | DX); // cwde, cdq
    t = set(t, 0xa8, 0xa8, NONE | IMM8 | AX); // test
    t = set(t, 0xa9, 0xa9, INTEGER | IMMZ | AX);
    t = set(t, 0xb0, 0xb7, NONE | IMM8 | HAS_REGISTER | BYTES); // mov
    t = set(t, 0xb8, 0xbf, INTEGER | IMMZ | HAS_REGISTER | ODD | access(Access::SetNamed));
    t = set(t, 0xc0, 0xc0, GENERAL | IMM8 | BYTES); // rol ... sar
    t = set(t, 0xc1, 0xc1, GENERAL | IMM8 | access(Access::Shift));
    t = set(t, 0xc3, 0xc3, NONE | class(Class::Return));
    t = set(t, 0xc6, 0xc6, HAS_MODRM | 0x101 | INTEGER | IMM8 | BYTES); // mov
    t = set(t, 0xc7, 0xc7, HAS_MODRM | 0x101 | INTEGER | IMMZ | access(Access::Set));
    t = set(t, 0xd0, 0xd0, GENERAL | BYTES); // rol ... sar
    t = set(t, 0xd1, 0xd1, GENERAL | access(Access::Shift));
    t = set(t, 0xd2, 0xd2, GENERAL | BYTES | CX);
    t = set(t, 0xd3, 0xd3, GENERAL | CX | access(Access::Shift));
    t = set(t, 0xe8, 0xe8, NONE | IMMZ | class(Class::Call));
    t = set(t, 0xe9, 0xe9, NONE | IMMZ | class(Class::Jump));
    t = set(t, 0xeb, 0xeb, NONE | IMM8 | class(Class::Jump));
    let test = HAS_MODRM | 0xfdfd | INTEGER | IMM_OF_TEST | ODD | AX | DX; // test, not, neg, mul ... idiv
    t = set(t, 0xf6, 0xf6, test | BYTES);
    t = set(t, 0xf7, 0xf7, test | access(Access::Group3));
    t = set(t, 0xfe, 0xfe, HAS_MODRM | 0x303 | INTEGER | BYTES);
    t = set(t, 0xff, 0xff, HAS_MODRM | 0x303 | INTEGER | access(Access::Step)); // inc, dec
    // From here on, opcodes have two bytes.
    t = set(t, 0x110, 0x111, ALL); // movups, movupd, movss, movsd
    t = set(t, 0x112, 0x112, HAS_MODRM | ANY | NONE); // movlps, movhlps
    t = set(t, 0x113, 0x113, HAS_MODRM | MEMORY | INTEGER);
    t = set(t, 0x114, 0x115, PACKED); // unpcklps ...
    t = set(t, 0x116, 0x116, HAS_MODRM | ANY | NONE); // movhps, movlhps
    t = set(t, 0x117, 0x117, HAS_MODRM | MEMORY | INTEGER);
    t = set(t, 0x11f, 0x11f, GENERAL); // nop
    t = set(t, 0x128, 0x129, PACKED); // movaps
    t = set(t, 0x12a, 0x12a, HAS_MODRM | ANY | PF3 | PF2); // cvtsi2ss, cvtsi2sd
    t = set(t, 0x12b, 0x12b, HAS_MODRM | MEMORY | INTEGER); // movntps
    t = set(t, 0x12c, 0x12d, HAS_MODRM | ANY | PF3 | PF2); // cvttss2si ...
    t = set(t, 0x12e, 0x12f, PACKED); // ucomiss, comiss
    t = set(t, 0x140, 0x14f, GENERAL); // cmov
    t = set(t, 0x150, 0x150, HAS_MODRM | REGISTER | INTEGER); // movmskps
    t = set(t, 0x151, 0x151, ALL); // sqrtps
    t = set(t, 0x152, 0x153, HAS_MODRM | ANY | NONE | PF3); // rsqrtps, rcpps
    t = set(t, 0x154, 0x157, PACKED); // andps ... xorps
    t = set(t, 0x158, 0x15a, ALL); // addps, mulps, cvtps2pd
    t = set(t, 0x15b, 0x15b, PACKED | PF3); // cvtdq2ps
    t = set(t, 0x15c, 0x15f, ALL); // subps, minps, divps, maxps
    t = set(t, 0x160, 0x16b, PACKED); // punpcklbw ... packssdw
    t = set(t, 0x16c, 0x16d, HAS_MODRM | ANY | P66); // punpcklqdq
    t = set(t, 0x16e, 0x16e, PACKED); // movd, movq
    t = set(t, 0x16f, 0x16f, PACKED | PF3); // movdqa, movdqu
    t = set(t, 0x170, 0x170, ALL | IMM8); // pshufd ...
    t = set(t, 0x171, 0x172, HAS_MODRM | 0x5400 | INTEGER | IMM8); // psrlw ...
    t = set(t, 0x173, 0x173, HAS_MODRM | 0xcc00 | P66 | IMM8); // psrlq ...
    t = set(t, 0x174, 0x176, PACKED); // pcmpeqb
    t = set(t, 0x17c, 0x17d, HAS_MODRM | ANY | P66 | PF2); // haddpd
    t = set(t, 0x17e, 0x17f, PACKED | PF3); // movd, movq, movdqa
    t = set(t, 0x180, 0x18f, NONE | IMMZ | class(Class::Conditional));
    t = set(t, 0x190, 0x19f, HAS_MODRM | ANY | NONE | BYTES); // setcc
    t = set(t, 0x1a3, 0x1a3, GENERAL); // bt
    t = set(t, 0x1a4, 0x1a4, GENERAL | IMM8); // shld
    t = set(t, 0x1a5, 0x1a5, GENERAL | CX);
    t = set(t, 0x1ab, 0x1ab, GENERAL); // bts
    t = set(t, 0x1ac, 0x1ac, GENERAL | IMM8); // shrd
    t = set(t, 0x1ad, 0x1ad, GENERAL | CX);
    t = set(t, 0x1af, 0x1af, GENERAL | access(Access::Combine)); // imul
    t = set(t, 0x1b0, 0x1b1, GENERAL | AX | BYTES); // cmpxchg
    t = set(t, 0x1b3, 0x1b3, GENERAL); // btr
    t = set(t, 0x1b6, 0x1b6, GENERAL | BYTES | access(Access::LoadPart)); // movzx
    t = set(t, 0x1b7, 0x1b7, GENERAL | access(Access::LoadPart));
    t = set(t, 0x1b8, 0x1b8, HAS_MODRM | ANY | PF3); // popcnt
    t = set(t, 0x1ba, 0x1ba, HAS_MODRM | 0xf0f0 | INTEGER | IMM8); // bt ... btc
    t = set(t, 0x1bb, 0x1bb, GENERAL); // btc
    t = set(t, 0x1bc, 0x1bd, GENERAL | PF3); // bsf, bsr, tzcnt, lzcnt
    t = set(t, 0x1be, 0x1be, GENERAL | BYTES | access(Access::LoadPart)); // movsx
    t = set(t, 0x1bf, 0x1bf, GENERAL | access(Access::LoadPart));
    t = set(t, 0x1c0, 0x1c1, GENERAL | BYTES); // xadd
    t = set(t, 0x1c2, 0x1c2, ALL | IMM8); // cmpps
    t = set(t, 0x1c3, 0x1c3, HAS_MODRM | MEMORY | NONE); // movnti
    t = set(t, 0x1c4, 0x1c4, PACKED | IMM8); // pinsrw
    t = set(t, 0x1c5, 0x1c5, HAS_MODRM | REGISTER | INTEGER | IMM8); // pextrw
    t = set(t, 0x1c6, 0x1c6, PACKED | IMM8); // shufps
    t = set(t, 0x1c8, 0x1cf, NONE | HAS_REGISTER); // bswap
    t = set(t, 0x1d0, 0x1d0, HAS_MODRM | ANY | P66 | PF2); // addsubpd
    t = set(t, 0x1d1, 0x1d5, PACKED); // psrlw ...
    t = set(t, 0x1d6, 0x1d6, HAS_MODRM | ANY | P66); // movq
    t = set(t, 0x1d7, 0x1d7, HAS_MODRM | REGISTER | INTEGER); // pmovmskb
    t = set(t, 0x1d8, 0x1e5, PACKED); // psubusb ...
    t = set(t, 0x1e6, 0x1e6, HAS_MODRM | ANY | P66 | PF3 | PF2); // cvtdq2pd
    t = set(t, 0x1e7, 0x1e7, HAS_MODRM | MEMORY | INTEGER); // movntdq
    t = set(t, 0x1e8, 0x1ef, PACKED); // psubsb ...
    t = set(t, 0x1f0, 0x1f0, HAS_MODRM | MEMORY | PF2); // lddqu
    t = set(t, 0x1f1, 0x1f6, PACKED); // psllw ...
    t = set(t, 0x1f8, 0x1fe, PACKED); // psubb ...
    t
};
