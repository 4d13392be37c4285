//! The quickest way over instructions: three table lookups for most of them.

use super::plain::{
    BASE_LEN, FORM, HIDDEN, Interest, NAMED, NOT_WIDE, PLAIN, PLAIN_SHAPES, RELATIVE, SHAPE, WORD,
};
use super::tables::{CLASS, IMM, IMM8, OPCODES};
use super::{B, CLASSES, Class, LEN, RBP, RSP, SIB, WINDOW, X, first_bytes, word};

/// What [`skim`] answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skimmed {
    /// A plain instruction, as [`super::plain_len`] has it, of so many bytes.
    Plain(usize),
    /// A plain instruction but for an access to memory relative to rsp or rbp.
    Frame { len: u8, base: u8, displacement: i32 },
    /// A plain instruction but for an operand in memory that is relative to RIP, at a distance from the next instruction.
    Relative { len: u8, displacement: i32 },
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

/// Reasons to look more closely, as bits of [`Reasons`]: an instruction names rsp; rbp; rax; with a REX prefix that extends
/// register numbers, what may be r10 or r11; it has an immediate operand of four bytes; one that a REX prefix makes longer;
/// an operand that is relative to RIP. And, no reason: it has a SIB byte.
const ON_RSP: u16 = 1 << 8;
const ON_RBP: u16 = 1 << 9;
const ON_RAX: u16 = 1 << 10;
const ON_HIGH: u16 = 1 << 11;
const ON_WORD: u16 = 1 << 12;
const ON_WIDE: u16 = 1 << 13;
const ON_RIP: u16 = 1 << 14;
const HAS_SIB: u16 = 1 << 15;

/// What makes an instruction more than plain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reasons(u16);

impl Reasons {
    /// With what is followed. `has_addresses`: immediate operands may be addresses.
    pub(crate) fn new(interest: Interest, has_addresses: bool) -> Reasons {
        /// rax, rsp, rbp, r10 and r11 have reasons of their own.
        const OWN: u16 = 1 | 1 << 4 | 1 << 5 | 1 << 10 | 1 << 11;
        let followed = interest.stack | interest.others;
        if followed & !OWN != 0 {
            return Reasons(u16::MAX);
        }
        Reasons(of_registers(followed) | ON_RIP | ON_WIDE | if has_addresses { ON_WORD } else { 0 })
    }
}

/// The reasons that the named registers are; of the last two, also those without what a REX prefix adds.
const fn of_registers(named: u16) -> u16 {
    let mut reasons = 0;
    let pairs = [
        (1 << 4, ON_RSP),
        (1 << 5, ON_RBP),
        (1 << 0, ON_RAX),
        (1 << 2 | 1 << 3 | 1 << 10 | 1 << 11, ON_HIGH),
    ];
    let mut n = 0;
    while n < pairs.len() {
        if named & pairs[n].0 != 0 {
            reasons |= pairs[n].1;
        }
        n += 1;
    }
    reasons
}

/// By number of opcode bytes and last opcode byte, where there is no mandatory prefix. Bits 0 to 15: forms, as in
/// [`PLAIN`]. Bits 16 to 31: bytes of opcode and immediate operand, and reasons. From bit 32 on: where its shapes begin.
static OPS: [u64; 512] = {
    let mut table = [0; 512];
    let mut opcode = 0;
    while opcode < 512 {
        let plain = PLAIN[opcode];
        let named = (plain >> NAMED & 0xff) as u16 | (plain >> HIDDEN & 0xff) as u16;
        let mut reasons = of_registers(named);
        if plain & WORD != 0 {
            reasons |= ON_WORD;
        }
        if plain & NOT_WIDE != 0 {
            reasons |= ON_WIDE;
        }
        let len = plain >> BASE_LEN & 0xf;
        table[opcode] = (plain & 0xffff) | ((len | reasons as u64) << 16) | ((plain >> SHAPE) << 32);
        opcode += 1;
    }
    table
};

/// Like [`PLAIN_SHAPES`]: bytes of ModRM, SIB and displacement; from bit 4 on the form; reasons.
static FORMS: [u16; 4 * 256] = {
    let mut table = [0; 4 * 256];
    let mut n = 0;
    while n < table.len() {
        let shape = PLAIN_SHAPES[n];
        let named = (shape & 0xff) as u16 | (shape >> 8 & 0xff) as u16;
        let mut entry = (shape >> LEN & 0xf) as u16 | ((shape >> FORM & 0xf) as u16) << 4;
        if n < 0x200 {
            entry |= of_registers(named);
            entry |= if shape & RELATIVE != 0 { ON_RIP } else { 0 };
            entry |= if shape & SIB != 0 { HAS_SIB } else { 0 };
        }
        table[n] = entry;
        n += 1;
    }
    table
};

/// By SIB byte.
static SIBS: [u16; 256] = {
    let mut table = [0; 256];
    let mut sib = 0;
    while sib < 256 {
        let (index, base) = ((sib >> 3 & 7) as u8, sib & 7);
        table[sib] = of_registers(1 << base | if index == RSP { 0 } else { 1 << index });
        sib += 1;
    }
    table
};

/// By the lower half of a REX prefix, or 0 if there is none: the reasons that count.
static REX: [u16; 16] = {
    let mut table = [0; 16];
    let mut rex = 0;
    while rex < 16 {
        let without = if rex & 7 == 0 { ON_HIGH } else { 0 } | if rex & 8 == 0 { ON_WIDE } else { 0 };
        table[rex] = !(HAS_SIB | without);
        rex += 1;
    }
    table
};

/// The branch or stack operation that an opcode is, as a number of [`CLASSES`]; 0: another. Bit 7: its operand has
/// four bytes.
static KINDS: [u8; 512] = {
    let mut table = [0; 512];
    let mut opcode = 0;
    while opcode < 512 {
        let class = (OPCODES[opcode] >> CLASS & 7) as u8;
        let is_branch = class == Class::Call as u8
            || class == Class::Jump as u8
            || class == Class::Conditional as u8
            || class == Class::Return as u8;
        let is_stack = opcode >= 0x50 && opcode < 0x60;
        if is_branch || is_stack {
            let has_byte = OPCODES[opcode] >> IMM & 5 == IMM8 >> IMM;
            table[opcode] = class | if has_byte || is_stack { 0 } else { 0x80 };
        }
        opcode += 1;
    }
    table
};

/// Looks at the instruction at the start of the window.
#[inline(always)]
pub(crate) fn skim(window: &[u8; WINDOW], reasons: Reasons) -> Skimmed {
    let mut bytes = first_bytes(window);
    let is_rex = bytes as u8 & 0xf0 == 0x40;
    let rex = if is_rex { bytes as u8 } else { 0 };
    bytes >>= u32::from(is_rex) * 8;
    let is_long = bytes as u8 == 0x0f;
    bytes >>= u32::from(is_long) * 8;
    let before = usize::from(is_rex) + usize::from(is_long);
    let opcode = usize::from(is_long) << 8 | usize::from(bytes as u8);
    let op = OPS[opcode];
    let modrm = (bytes >> 8) as u8;
    let form = FORMS[((op >> 32) as usize + usize::from(modrm)) % FORMS.len()];
    let more = (op >> 16) as u16;
    let counted = reasons.0 & REX[usize::from(rex & 15)];
    let mut found = (form | more) & counted;
    if found & !ON_RBP == 0 && op >> (form >> 4 & 15) & 1 != 0 {
        let mut len = before + usize::from(more & 15) + usize::from(form & 15);
        let is_sib = form & HAS_SIB != 0;
        let sib = (bytes >> 16) as u8;
        if is_sib {
            found |= SIBS[usize::from(sib)] & counted;
            len += if modrm < 0x40 && sib & 7 == 5 { 4 } else { 0 };
        }
        if found == 0 {
            return Skimmed::Plain(len);
        }
        // Nothing but rsp or rbp as the base register.
        let on_rsp = is_sib && sib & 0x3f == 0x24 && found == ON_RSP && modrm >> 3 & 7 != RSP;
        let on_rbp =
            modrm & 7 == RBP && modrm >> 3 & 7 != RBP && matches!(modrm >> 6, 1 | 2) && more & counted == 0;
        if rex & (X | B) == 0 && (on_rsp || on_rbp) {
            let at = before + 2 + usize::from(is_sib);
            let displacement = match modrm >> 6 {
                0 => 0,
                1 => i32::from(window[at % WINDOW] as i8),
                _ => word(window, at),
            };
            let base = if on_rsp { RSP } else { RBP };
            return Skimmed::Frame { len: len as u8, base, displacement };
        }
        return Skimmed::Other;
    }
    if found == ON_RIP && op >> (form >> 4 & 15) & 1 != 0 {
        let len = before + usize::from(more & 15) + usize::from(form & 15);
        return Skimmed::Relative { len: len as u8, displacement: word(window, before + 2) };
    }
    let kind = KINDS[opcode];
    let class = CLASSES[usize::from(kind & 7)];
    match class {
        Class::Push | Class::Pop => {
            let register = opcode as u8 & 7 | (rex & B) << 3;
            Skimmed::Stack { class, len: before as u8 + 1, register }
        }
        Class::Call | Class::Jump | Class::Conditional if rex == 0 => {
            let at = before + 1;
            let (width, displacement) = match kind & 0x80 {
                0 => (1, i32::from(modrm as i8)),
                _ => (4, word(window, at)),
            };
            Skimmed::Branch { class, len: at as u8 + width, width, displacement }
        }
        Class::Return if rex == 0 => Skimmed::Branch { class, len: 1, width: 0, displacement: 0 },
        _ => Skimmed::Other,
    }
}
