//! The machine code in a copy that is added to the instructions of the original, or that replaces some of
//! them.

use crate::x86::jump::JUMP;
use crate::x86::nops::NOPS;
use crate::x86::template::kind::Role;
use gprofinject_abi::times::{OWN_CLOCK, TIMES, TimesHeader};
use iced_x86::{Code, Decoder, DecoderOptions, Encoder, OpKind, Register};
use std::mem::offset_of;

/// Bytes of a counter.
pub(crate) const COUNTER: u64 = 8;

/// `inc qword gs:[disp32]`, without the displacement.
const INC: [u8; 5] = [0x65, 0x48, 0xff, 0x04, 0x25];

/// `lea rsp, [rsp-128]`, which protects the red zone.
const LEAVE_RED_ZONE: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x80];

/// `lea rsp, [rsp+128]`.
const BACK_TO_RED_ZONE: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];

/// `pushfq`.
const PUSH_FLAGS: u8 = 0x9c;

/// `popfq`.
const POP_FLAGS: u8 = 0x9d;

/// `add qword gs:[disp32], imm8`, without displacement and number.
const ADD_SHORT: [u8; 5] = [0x65, 0x48, 0x83, 0x04, 0x25];

/// The same with imm32.
const ADD: [u8; 5] = [0x65, 0x48, 0x81, 0x04, 0x25];

/// Returns the offset in bytes of the clock of executed instructions from the base of the gs segment.
pub(crate) fn clock(role: Role) -> u32 {
    let own = if role.is_standalone() { OWN_CLOCK as u32 } else { 0 };
    own + TIMES as u32 + offset_of!(TimesHeader, executed) as u32
}

/// The code of a counter, of an addition to the clock, or of both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Added {
    /// Whether there is a counter.
    pub(crate) counts: bool,
    /// What is added to the clock.
    pub(crate) ticks: i32,
    /// Whether the code preserves the flags.
    pub(crate) keeps_flags: bool,
}

impl Added {
    /// Returns its length in bytes, or 0 if there is no code.
    pub(crate) fn len(self) -> u32 {
        let count = if self.counts { INC.len() as u32 + 4 } else { 0 };
        let clock = match self.ticks {
            0 => 0,
            ticks if i8::try_from(ticks).is_ok() => ADD_SHORT.len() as u32 + 5,
            _ => ADD.len() as u32 + 8,
        };
        match (count + clock, self.keeps_flags) {
            (0, _) => 0,
            (len, false) => len,
            (len, true) => len + (LEAVE_RED_ZONE.len() + 2 + BACK_TO_RED_ZONE.len()) as u32,
        }
    }
}

/// For code of `len` bytes that preserves the flags: the offset after each instruction that moves the stack
/// pointer, and the distance in bytes by which the stack pointer is then below its original value.
pub(crate) fn keep_frames(len: u32) -> [(u32, i64); 4] {
    [(5, 128), (6, 136), (len - 8, 128), (len, 0)]
}

/// Bytes of a near jump.
pub(crate) const NEAR_JUMP: u32 = JUMP as u32;

/// `call next; next: lea rsp, [rsp+8]; push qword [rip+...]`, without the displacement.
pub(crate) const PUSH_ORIGINAL: [u8; 12] = [0xe8, 0, 0, 0, 0, 0x48, 0x8d, 0x64, 0x24, 8, 0xff, 0x35];

/// Bytes of that code with the displacement.
pub(crate) const PUSH_ORIGINAL_LEN: u32 = PUSH_ORIGINAL.len() as u32 + 4;

/// Bytes of the word that it pushes.
pub(crate) const WORD: u32 = 8;

/// Bytes of the comparison of a target. Nops after the `cmp` pad it to the longest form: two prefixes, REX,
/// opcode, ModRM, SIB, displacement.
pub(crate) const COMPARE: u32 = COMPARE_FRAMES[3].0 + 6;

/// Bytes of the longest `cmp`.
const LONGEST_CMP: u32 = 10;

/// The same as [`keep_frames`], for a comparison.
pub(crate) const COMPARE_FRAMES: [(u32, i64); 4] =
    [(5, 128), (6, 136), (6 + LEA_LEN + LONGEST_CMP + 1, 128), (6 + LEA_LEN + LONGEST_CMP + 1 + 8, 0)];

/// Bytes of `lea reg, [rip+disp32]`.
const LEA_LEN: u32 = 7;

/// The same as [`keep_frames`], for a call that pushes the original's return address.
pub(crate) const PUSH_ORIGINAL_FRAMES: [(u32, i64); 4] =
    [(5, 8), (10, 0), (PUSH_ORIGINAL_LEN, 8), (PUSH_ORIGINAL_LEN + NEAR_JUMP, 0)];

/// Where the copies are, and what they refer to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Site {
    /// Address of the copies.
    pub(crate) base: u64,
    /// Offset in bytes of the first counter from the base of the gs segment.
    pub(crate) counters: u64,
    /// That of the clock of executed instructions.
    pub(crate) clock: u32,
    /// Address of the arena that contains the copies. In a PIE it may wrap below zero.
    pub(crate) arena: u64,
    /// Bytes of the arena.
    pub(crate) arena_len: u64,
}

impl Site {
    /// Returns whether an address is in the arena, so that its distance from the copies never changes.
    pub(crate) fn is_in_arena(&self, address: u64) -> bool {
        address.wrapping_sub(self.arena) < self.arena_len
    }
}

/// The offsets, in the copies, of what depends on where the module and its counters are.
#[derive(Debug, Default)]
pub(crate) struct Words {
    /// Words of eight bytes that hold link addresses.
    pub(crate) addresses: Vec<u32>,
    /// Displacements that lead to the module itself.
    pub(crate) text: Vec<u32>,
    /// Displacements of counters.
    pub(crate) counters: Vec<u32>,
}

/// Writes code into the copies.
pub(crate) struct Writer<'a> {
    /// The copies.
    pub(crate) bytes: &'a mut [u8],
    /// Where they are.
    pub(crate) site: Site,
    /// Offset at which the next code is written.
    pub(crate) at: u32,
    /// What was written so far that depends on places.
    pub(crate) words: Words,
}

impl Writer<'_> {
    /// Writes bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let at = self.at as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len() as u32;
    }

    /// Writes nops.
    pub(crate) fn pad(&mut self, mut len: u32) {
        while len > 0 {
            let nop = NOPS[(len as usize).min(NOPS.len()) - 1];
            self.put(nop);
            len -= nop.len() as u32;
        }
    }

    /// Writes a counter, or advances the clock, or both. `place` is the counter's offset in bytes from the base of the gs segment.
    /// Returns `None` if the offset does not fit into a displacement.
    pub(crate) fn add(&mut self, added: Added, place: u64) -> Option<()> {
        let place = i32::try_from(place).ok()?.to_le_bytes();
        if added.len() == 0 {
            return Some(());
        }
        if added.keeps_flags {
            self.put(&LEAVE_RED_ZONE);
            self.put(&[PUSH_FLAGS]);
        }
        if added.counts {
            self.put(&INC);
            self.words.counters.push(self.at);
            self.put(&place);
        }
        match i8::try_from(added.ticks) {
            Ok(0) => {}
            Ok(ticks) => {
                self.put(&ADD_SHORT);
                self.put(&self.site.clock.to_le_bytes());
                self.put(&ticks.to_le_bytes());
            }
            Err(_) => {
                self.put(&ADD);
                self.put(&self.site.clock.to_le_bytes());
                self.put(&added.ticks.to_le_bytes());
            }
        }
        if added.keeps_flags {
            self.put(&[POP_FLAGS]);
            self.put(&BACK_TO_RED_ZONE);
        }
        Some(())
    }

    /// Writes a comparison that branches to `goal` if the indirect jump `code`, which is at `ip` in the
    /// original, would lead to `target`. Returns `None` if an address is out of reach.
    pub(crate) fn compare(&mut self, ip: u64, code: &[u8], target: u64, goal: u64) -> Option<()> {
        let start = self.at;
        let jump = Decoder::with_ip(64, code, ip, DecoderOptions::NONE).decode();
        let used =
            [jump.op0_register(), jump.memory_base(), jump.memory_index()].map(Register::full_register);
        let (scratch, number) =
            [(Register::RAX, 0), (Register::RCX, 1), (Register::RDX, 2), (Register::RBX, 3)]
                .into_iter()
                .find(|(register, _)| !used.contains(register))?;
        self.put(&LEAVE_RED_ZONE);
        self.put(&[0x50 | number, 0x48, 0x8d, number << 3 | 5]);
        self.displacement(target)?;
        let mut cmp = jump;
        cmp.set_code(Code::Cmp_r64_rm64);
        cmp.set_op0_kind(OpKind::Register);
        cmp.set_op0_register(scratch);
        cmp.set_op1_kind(jump.op0_kind());
        if jump.op0_kind() == OpKind::Register {
            cmp.set_op1_register(jump.op0_register());
        }
        cmp.set_has_repne_prefix(false);
        if jump.segment_prefix() != Register::FS {
            cmp.set_segment_prefix(Register::None);
        }
        if jump.memory_base() == Register::RSP {
            let displacement = jump.memory_displacement64().wrapping_add(COMPARE_FRAMES[1].1 as u64);
            cmp.set_memory_displ_size(8);
            cmp.set_memory_displacement64(displacement);
        }
        let mut encoder = Encoder::new(64);
        let len = encoder.encode(&cmp, self.site.base.wrapping_add(self.at.into())).ok()? as u32;
        if cmp.is_ip_rel_memory_operand() {
            let offsets = encoder.get_constant_offsets();
            self.words.text.push(self.at + offsets.displacement_offset() as u32);
        }
        self.put(&encoder.take_buffer());
        self.pad(LONGEST_CMP.checked_sub(len)?);
        self.put(&[0x58 | number]);
        self.put(&BACK_TO_RED_ZONE);
        self.put(&[0x0f, 0x84]);
        debug_assert_eq!(self.at + 4 - start, COMPARE);
        self.displacement(goal)
    }

    /// Returns the distance to `to` from the end of a displacement of `len` bytes.
    fn distance(&self, len: u32, to: u64) -> i64 {
        to.wrapping_sub(self.site.base.wrapping_add((self.at + len).into())) as i64
    }

    /// Writes a displacement of four bytes. Returns `None` if `to` is out of reach.
    pub(crate) fn displacement(&mut self, to: u64) -> Option<()> {
        let distance = i32::try_from(self.distance(4, to)).ok()?;
        if !self.site.is_in_arena(to) {
            self.words.text.push(self.at);
        }
        self.put(&distance.to_le_bytes());
        Some(())
    }

    /// Writes a displacement of one byte. Returns `None` if `to` is out of reach.
    pub(crate) fn short(&mut self, to: u64) -> Option<()> {
        let distance = i8::try_from(self.distance(1, to)).ok()?;
        self.put(&distance.to_le_bytes());
        Some(())
    }
}
