//! The fastest way to skip instructions: most of them take four table lookups.
//!
//! The caller only needs the length of a *plain* instruction. After such an instruction, control continues
//! with the next one. It has no RIP-relative operand and no immediate operand that may be an address, and it
//! names no register that the caller follows, with one exception: it may access memory relative to a stack
//! address.

use crate::x86::predecode::fields::{
    CLASSES, Class, LEN, RSP, SHAPES, SIB, WINDOW, first_bytes, is_address, word,
};
use crate::x86::predecode::tables::{
    BYTES, CLASS, IMM, IMM_OF_TEST, IMM8, IMMZ, IMPLICIT, LEGACY, MODRM, ODD, OPCODE_REGISTER, OPCODES,
    PREFIXES, RAX,
};
use std::ops::Range;

/// The registers that the caller of [`skim`] follows, as bits by their numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    /// Registers that hold stack addresses.
    pub(crate) stack: u16,
    /// Registers that hold other values that matter. No plain instruction names one.
    pub(crate) others: u16,
}

impl Interest {
    /// No register is followed.
    pub(crate) const NONE: Interest = Interest { stack: 0, others: 0 };
}

/// What [`skim`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skimmed {
    /// A plain instruction, with its length in bytes.
    Plain(usize),
    /// An instruction that would be plain if it had no RIP-relative memory operand.
    Relative {
        /// Its bytes.
        len: u8,
        /// The distance to the operand from the next instruction.
        displacement: i32,
        /// Whether it is a 64-bit `lea`.
        is_lea: bool,
    },
    /// A direct call, jump or conditional jump without a prefix, or a `ret`, which has no displacement.
    Branch {
        /// Which of them it is.
        class: Class,
        /// Its bytes.
        len: u8,
        /// The size of the displacement in bytes. The displacement is at the end of the instruction.
        width: u8,
        /// The distance to the target from the next instruction.
        displacement: i32,
    },
    /// A `push` or `pop` of a 64-bit register: which of them it is, its length in bytes, and the register's
    /// number.
    Stack { class: Class, len: u8, register: u8 },
    /// An instruction that has to be examined more closely.
    Other,
}

/// Bits 0 to 15 of an entry in [`OPS`] are the values of [`FORM`] that a plain instruction may have. The 16
/// bits from here on are the registers that no field names.
const HIDDEN: u32 = 16;
/// Four bits: the bytes of the opcode's last byte and of the immediate operand.
const BASE_LEN: u32 = 32;
/// A flag: the last four bytes are an immediate operand.
const HAS_WORD: u32 = 1 << 0;
/// A flag: an instruction with a prefix for 64-bit operands is not plain.
const NOT_WIDE: u32 = 1 << 1;
/// Two bits: the flags.
const FLAGS: u32 = 40;
/// Two bits: the part of [`FORMS`] that has the instruction's entry.
const SHAPE: u32 = 44;
/// The instruction is a `lea`.
const LEA: u64 = 1 << 46;
/// Three bits: the number in [`CLASSES`] of the branch or stack operation that the opcode is. 0 means that it
/// is neither.
const KIND: u32 = 48;
/// The branch has a displacement of four bytes.
const FAR: u64 = 1 << 51;

/// The entries of opcodes, by mandatory prefix, number of opcode bytes, and last opcode byte.
static OPS: [u64; 4 * 512] = {
    let mut table = [0; 4 * 512];
    let mut n = 0;
    while n < table.len() {
        table[n] = op(n / 512, n % 512);
        n += 1;
    }
    table
};

/// Returns the entry in [`OPS`] of an opcode with a mandatory prefix.
const fn op(mandatory: usize, opcode: usize) -> u64 {
    let entry = OPCODES[opcode];
    let class = (entry >> CLASS & 7) as usize;
    if entry & LEGACY != 0 || entry >> PREFIXES >> mandatory & 1 == 0 {
        return 0;
    }
    if class != Class::Next as usize && class != Class::Lea as usize {
        let is_stack = opcode >= 0x50 && opcode < 0x60;
        let is_branch = class != Class::Push as usize && class != Class::Pop as usize;
        let has_byte = entry >> IMM & 5 == IMM8 >> IMM;
        let far = if is_branch && !has_byte { FAR } else { 0 };
        return if mandatory == 0 && (is_branch || is_stack) { (class as u64) << KIND | far } else { 0 };
    }
    let is_word = entry & IMMZ != 0;
    let mut immediate = entry >> IMM & 5;
    if is_word && mandatory == 1 {
        immediate -= 2;
    }
    let (mut forms, mut flags) = (entry & 0xffff, 0);
    if entry & ODD != 0 {
        if entry & IMM_OF_TEST != 0 {
            forms &= !0x101;
        } else {
            flags |= NOT_WIDE;
        }
    }
    if is_word {
        // After the prefix 66, a REX.W prefix may still make the operand four bytes long.
        flags |= if mandatory == 1 { NOT_WIDE } else { HAS_WORD };
    }
    let has_modrm = entry >> MODRM & 1 != 0;
    let shape = match (has_modrm, entry & BYTES != 0) {
        (true, false) => USUAL,
        (true, true) => OF_BYTES,
        (false, _) if opcode < 256 => SHORT,
        (false, _) => LONG,
    };
    let lea = if class == Class::Lea as usize { LEA } else { 0 };
    let hidden = (entry & IMPLICIT) >> RAX;
    let len = 1 + immediate;
    forms | hidden << HIDDEN | len << BASE_LEN | (flags as u64) << FLAGS | shape << SHAPE | lea
}

/// The part of [`FORMS`] for most opcodes.
const USUAL: u64 = 0;
/// The part for opcodes on bytes, where registers 4 to 7 may be ah, ch, dh and bh.
const OF_BYTES: u64 = 1;
/// The part for opcodes of one byte without ModRM.
const SHORT: u64 = 2;
/// The part for opcodes of two bytes without ModRM.
const LONG: u64 = 3;

/// Bits 0 to 15 of an entry in [`FORMS`] are the registers that the fields of ModRM, or the opcode itself,
/// name. The four bits from here on are the bytes of ModRM, SIB and displacement.
const FORM_LEN: u32 = 16;
/// Four bits: ModRM.reg, plus 8 if the other operand is a register.
const FORM: u32 = 20;
/// One bit: there is a SIB byte.
const HAS_SIB: u32 = 24;
/// The operand in memory is relative to RIP.
const RELATIVE: u32 = 1 << 25;
/// There is an operand in memory, or the address of one.
const HAS_MEMORY: u32 = 1 << 26;

/// By part, the bits R and B of the REX prefix, and ModRM, or the opcode's last byte if there is no ModRM.
static FORMS: [u32; 4 * 4 * 256] = {
    let mut table = [0; 4 * 4 * 256];
    let mut n = 0;
    while n < 2 * 4 * 256 {
        let (is_byte, has_r, has_b, modrm) = (n >> 10 != 0, n >> 9 & 1 != 0, n >> 8 & 1 != 0, n & 0xff);
        let shape = SHAPES[modrm];
        let (mut reg, mut rm) = (shape & 0xff, shape >> 8 & 0xff);
        if is_byte {
            reg |= reg >> 4;
            rm |= if modrm >= 0xc0 { rm >> 4 } else { 0 };
        }
        let registers = reg << if has_r { 8 } else { 0 } | rm << if has_b { 8 } else { 0 };
        let form = (modrm as u32 >> 3 & 7) | ((modrm >= 0xc0) as u32) << 3;
        table[n] = registers
            | (shape >> LEN & 0xf) << FORM_LEN
            | form << FORM
            | ((shape & SIB != 0) as u32) << HAS_SIB
            | if modrm & 0xc7 == 5 { RELATIVE } else { 0 }
            | if modrm < 0xc0 { HAS_MEMORY } else { 0 };
        n += 1;
    }
    while n < table.len() {
        let (is_long, has_b, opcode) = (n >> 10 & 1, n >> 8 & 1 != 0, n & 0xff);
        let entry = OPCODES[is_long << 8 | opcode];
        let mut named = (entry >> OPCODE_REGISTER & 1) << (opcode & 7);
        if entry & BYTES != 0 {
            named |= named >> 4;
        }
        table[n] = (named as u32) << if has_b { 8 } else { 0 };
        n += 1;
    }
    table
};

/// By whether ModRM's mode is 0, the bits X and B of the REX prefix, and the SIB byte. Bits 0 to 15 are the
/// registers that it names. The bits from 16 on are the size in bytes of the displacement that replaces a
/// base register.
static SIBS: [u32; 2 * 4 * 256] = {
    let mut table = [0; 2 * 4 * 256];
    let mut n = 0;
    while n < table.len() {
        let (index, base) = ((n >> 3 & 7 | n >> 6 & 8) as u32, (n & 7 | n >> 5 & 8) as u32);
        let is_left_out = n >> 10 != 0 && base & 7 == 5;
        table[n] =
            if index == RSP as u32 { 0 } else { 1 << index } | if is_left_out { 4 << 16 } else { 1 << base };
        n += 1;
    }
    table
};

/// A flag in an entry of [`FIRST`]: the byte is a REX prefix. The flag's value is the number of bits in such
/// a prefix. Bits 8 and 9 are then R and B, at their places in an index into [`FORMS`]; bits 16 and 17 are X
/// and B, 8 bits above their places in an index into [`SIBS`]; and bit 1, which is [`NOT_WIDE`], is W.
const IS_REX: u32 = 8;
/// Two bits: the mandatory prefix that the byte is, if it is one.
const MANDATORY: u32 = 24;

/// The entries of first bytes.
static FIRST: [u32; 256] = {
    let mut table = [0; 256];
    let mut rex = 0x40;
    while rex < 0x50 {
        let (w, r, x, b) = (rex as u32 >> 3 & 1, rex as u32 >> 2 & 1, rex as u32 >> 1 & 1, rex as u32 & 1);
        table[rex] = IS_REX | w << 1 | (r << 1 | b) << 8 | (x << 1 | b) << 16;
        rex += 1;
    }
    (table[0x66], table[0xf3], table[0xf2]) = (1 << MANDATORY, 2 << MANDATORY, 3 << MANDATORY);
    table
};

/// Decodes the instruction at the start of the window. Immediate operands in `addresses` may be addresses.
/// `is_harmless` returns, for an access to memory relative to a stack address (its base register and
/// displacement), whether the instruction is plain.
///
/// Processors cannot predict which instruction comes next, so most of this function works without branches
/// that depend on the instruction.
#[inline(always)]
pub(crate) fn skim(
    window: &[u8; WINDOW],
    interest: Interest,
    addresses: &Range<u64>,
    is_harmless: impl Fn(u8, i32) -> bool,
) -> Skimmed {
    let mut bytes = first_bytes(window);
    let (mut before, mut table) = (0, 0);
    let mut first = FIRST[bytes as usize & 0xff];
    if first >> MANDATORY != 0 {
        (bytes, before, table) = (bytes >> 8, 1, (first >> MANDATORY) as usize * 512);
        first = FIRST[bytes as usize & 0xff];
        if first >> MANDATORY != 0 {
            return Skimmed::Other;
        }
    }
    bytes >>= first & IS_REX;
    let is_long = bytes as u8 == 0x0f;
    bytes >>= u32::from(is_long) * 8;
    before += (first & IS_REX) as usize / 8 + usize::from(is_long);
    let opcode = bytes as usize & 0xff;
    let op = OPS[(table + usize::from(is_long) * 256 + opcode) % OPS.len()];
    let modrm = bytes as usize >> 8 & 0xff;
    let shape = (op >> SHAPE & 3) as usize;
    let forms = shape << 10 | (first & 0x300) as usize;
    let form = FORMS[(forms | if shape as u64 & SHORT == 0 { modrm } else { opcode }) % FORMS.len()];
    if op >> (form >> FORM & 15) & 1 == 0 {
        return if table == 0 { branch_or_stack(window, op, first, opcode, before) } else { Skimmed::Other };
    }
    let sib = bytes as usize >> 16 & 0xff;
    let sib_at = usize::from(modrm < 0x40) << 10 | (first >> 8 & 0x300) as usize | sib;
    let by_sib = SIBS[sib_at % SIBS.len()] & 0u32.wrapping_sub(form >> HAS_SIB & 1);
    let len = before
        + (op >> BASE_LEN & 0xf) as usize
        + (form >> FORM_LEN & 0xf) as usize
        + (by_sib >> 16) as usize;
    let hidden = (op >> HIDDEN) as u32;
    let found = (form | by_sib | hidden) & u32::from(interest.stack | interest.others);
    let flags = (op >> FLAGS) as u32 & (first & NOT_WIDE | u32::from(!addresses.is_empty()));
    if found | flags << 16 | form & RELATIVE == 0 {
        return Skimmed::Plain(len);
    }
    let is_address = || is_address(window, len, addresses);
    if flags & NOT_WIDE != 0 || flags & HAS_WORD != 0 && is_address() {
        return Skimmed::Other;
    }
    let is_lea = op & LEA != 0;
    if form & RELATIVE != 0 {
        // `skim` does not handle a 32-bit `lea`; the full predecoder does.
        return if found == 0 && flags == 0 && (!is_lea || first & NOT_WIDE != 0) {
            Skimmed::Relative { len: len as u8, displacement: word(window, before + 2), is_lea }
        } else {
            Skimmed::Other
        };
    }
    if found == 0 {
        return Skimmed::Plain(len);
    }
    // A followed register may only form an address, and must hold a stack address. With the rm field of a
    // RIP-relative operand in ModRM, only the other operand is left.
    let (stack, others) = (u32::from(interest.stack), u32::from(interest.others));
    let operand = FORMS[(forms | modrm & 0x38 | 5) % FORMS.len()] | hidden;
    if form & HAS_MEMORY == 0 || is_lea || found & others != 0 || operand & stack != 0 {
        return Skimmed::Other;
    }
    let is_sib = form >> HAS_SIB & 1 != 0;
    let index = if is_sib { sib >> 3 & 7 | (first >> 14 & 8) as usize } else { RSP.into() };
    // A memory operand that is also relative to another register may be at any address.
    if index == usize::from(RSP) {
        let base = if is_sib { sib & 7 } else { modrm & 7 } | (first >> 5 & 8) as usize;
        let at = before + 2 + usize::from(is_sib);
        let displacement = match modrm >> 6 {
            0 => 0,
            1 => i32::from(window[at % WINDOW] as i8),
            _ => word(window, at),
        };
        if !is_harmless(base as u8, displacement) {
            return Skimmed::Other;
        }
    }
    Skimmed::Plain(len)
}

/// Returns the result of [`skim`] for an instruction that is not plain and has no mandatory prefix. `before`
/// is the number of bytes before the last byte of its opcode; `first` is the entry of its first byte.
#[inline(always)]
fn branch_or_stack(window: &[u8; WINDOW], op: u64, first: u32, opcode: usize, before: usize) -> Skimmed {
    let is_rex = first & IS_REX != 0;
    let class = CLASSES[(op >> KIND & 7) as usize];
    match class {
        Class::Push | Class::Pop => {
            let register = (opcode & 7) as u8 | (first >> 5 & 8) as u8;
            Skimmed::Stack { class, len: before as u8 + 1, register }
        }
        Class::Call | Class::Jump | Class::Conditional if !is_rex => {
            let at = before + 1;
            let (width, displacement) = match op & FAR {
                0 => (1, i32::from(window[at % WINDOW] as i8)),
                _ => (4, word(window, at)),
            };
            Skimmed::Branch { class, len: at as u8 + width, width, displacement }
        }
        Class::Return if !is_rex => Skimmed::Branch { class, len: 1, width: 0, displacement: 0 },
        _ => Skimmed::Other,
    }
}
