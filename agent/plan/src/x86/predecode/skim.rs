//! The quickest way over instructions: four lookups in tables for most of them.
//!
//! A *plain* instruction tells nothing but its length. It goes on to the next one, has no operand that is relative to RIP and
//! no immediate operand that may be an address, and names no register that the caller follows, except that it may
//! access memory at an address that is relative to the stack.

use crate::x86::predecode::fields::{
    CLASSES, Class, LEN, RSP, SHAPES, SIB, WINDOW, first_bytes, is_address, word,
};
use crate::x86::predecode::tables::{
    BYTES, CLASS, IMM, IMM_OF_TEST, IMM8, IMMZ, IMPLICIT, LEGACY, MODRM, ODD, OPCODE_REGISTER, OPCODES,
    PREFIXES, RAX,
};
use std::ops::Range;

/// Registers that the caller of [`skim`] follows: a bit for each, by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    /// They hold stack addresses.
    pub(crate) stack: u16,
    /// They hold other values that matter: every instruction that names one is of interest.
    pub(crate) others: u16,
}

impl Interest {
    /// Nothing is followed.
    pub(crate) const NONE: Interest = Interest { stack: 0, others: 0 };
}

/// What [`skim`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skimmed {
    /// A plain instruction of so many bytes.
    Plain(usize),
    /// A plain instruction but for an operand in memory that is relative to RIP, at a distance from the next instruction.
    Relative {
        len: u8,
        displacement: i32,
        /// It is a `lea` of 64 bits.
        is_lea: bool,
    },
    /// A direct call, jump or conditional jump without a prefix, or `ret`, which has no displacement.
    Branch {
        class: Class,
        len: u8,
        /// Bytes of the displacement, which are the last ones.
        width: u8,
        displacement: i32,
    },
    /// A `push` or `pop` of a register of 64 bits.
    Stack { class: Class, len: u8, register: u8 },
    /// It has to be looked at more closely.
    Other,
}

/// An opcode's entry in [`OPS`]. Bits 0 to 15: the forms of [`FORMS`] that a plain instruction may have. Bits 16 to 31: the
/// registers that no field names. Four bits: the bytes of the opcode's last byte and of the immediate operand.
const HIDDEN: u32 = 16;
const BASE_LEN: u32 = 32;
/// The last four bytes are an immediate operand.
const HAS_WORD: u32 = 1 << 0;
/// No plain instruction with a prefix for operands of 64 bits.
const NOT_WIDE: u32 = 1 << 1;
const FLAGS: u32 = 40;
/// Two bits: the part of [`FORMS`] that holds the instruction's forms.
const SHAPE: u32 = 44;
/// It is a `lea`.
const LEA: u64 = 1 << 46;
/// Three bits: the branch or stack operation that the opcode is, as a number of [`CLASSES`]; 0: another.
const KIND: u32 = 48;
/// The branch has a displacement of four bytes.
const FAR: u64 = 1 << 51;

/// By mandatory prefix, number of opcode bytes, and last opcode byte.
static OPS: [u64; 4 * 512] = {
    let mut table = [0; 4 * 512];
    let mut n = 0;
    while n < table.len() {
        table[n] = op(n / 512, n % 512);
        n += 1;
    }
    table
};

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
        // With a REX prefix behind a prefix 66 the operand has four bytes after all.
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

/// The parts of [`FORMS`]: usual opcodes; those on bytes, where register 4 may be ah, and so for the three behind it;
/// those without ModRM, of one and of two bytes.
const USUAL: u64 = 0;
const OF_BYTES: u64 = 1;
const SHORT: u64 = 2;
const LONG: u64 = 3;

/// An entry of [`FORMS`]. Bits 0 to 15: the registers that the fields of ModRM name, or the
/// opcode itself. Four bits: the bytes of ModRM, SIB and
/// displacement.
const FORM_LEN: u32 = 16;
/// Four bits: ModRM.reg, and 8 more where the other operand is a register.
const FORM: u32 = 20;
/// There is a SIB byte.
const HAS_SIB: u32 = 24;
/// The operand in memory is relative to RIP.
const RELATIVE: u32 = 1 << 25;
/// There is an operand in memory, or the address of one.
const HAS_MEMORY: u32 = 1 << 26;

/// By part, the bits R and B of the REX prefix, and ModRM, or the opcode's last byte where there is no ModRM.
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

/// By whether ModRM's mode is 0, the bits X and B of the REX prefix, and the SIB byte. Bits 0 to 15: the registers that it
/// names. From bit 16 on: the bytes of the displacement that stands in for a base register.
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

/// An entry of [`FIRST`]. Bits 8 and 9: the bits R and B of a REX prefix, where they stand in an index into [`FORMS`]. Bits
/// 16 and 17: X and B, 8 bits above where they stand in an index into [`SIBS`]. Bit 1, which is [`NOT_WIDE`]: W. Then there is
/// [`IS_REX`] as well. Bits 24 and 25: the mandatory prefix that it is instead.
///
/// As many as a REX prefix has bits.
const IS_REX: u32 = 8;
const MANDATORY: u32 = 24;

/// By first byte.
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

/// Looks at the instruction at the start of the window. Immediate operands in `addresses` may be addresses. `is_harmless` tells of an
/// access to memory that is relative to the stack, by its base register and displacement, whether it is plain.
///
/// Which instruction comes next is hard to foresee, for processors as well: most of what is done here is done for every
/// one of them.
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
        // A `lea` of 32 bits is left to the others.
        return if found == 0 && flags == 0 && (!is_lea || first & NOT_WIDE != 0) {
            Skimmed::Relative { len: len as u8, displacement: word(window, before + 2), is_lea }
        } else {
            Skimmed::Other
        };
    }
    if found == 0 {
        return Skimmed::Plain(len);
    }
    // Where nothing but an address is made up of what is followed, and that is a stack address. With ModRM's rm as in an
    // operand that is relative to RIP, only the other operand is left.
    let (stack, others) = (u32::from(interest.stack), u32::from(interest.others));
    let operand = FORMS[(forms | modrm & 0x38 | 5) % FORMS.len()] | hidden;
    if form & HAS_MEMORY == 0 || is_lea || found & others != 0 || operand & stack != 0 {
        return Skimmed::Other;
    }
    let is_sib = form >> HAS_SIB & 1 != 0;
    let index = if is_sib { sib >> 3 & 7 | (first >> 14 & 8) as usize } else { RSP.into() };
    // What is relative to another register as well may be anywhere.
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

/// What [`skim`] answers of an instruction without a mandatory prefix that is not plain, with `before` bytes in front of its
/// opcode's last one. `first` is the entry of its first byte.
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
