//! The first instructions of a function: the address of a hook, and the instructions that it would
//! overwrite.

use crate::x86::jump::JUMP;
use crate::x86::predecode::fields::Class;
use gprofinject_image::x86::{ENDBR64, falls_through, has_branch, is_call};
use gprofinject_image::{Function, Image};
use iced_x86::Instruction;

/// Returns the address at which the function is hooked: the first byte after its `endbr64`, if it begins
/// with one and there is room for a jump after it; otherwise the function's first byte.
pub(crate) fn hook_point(image: &Image, f: &Function) -> u64 {
    let starts = image.code_at(f.address, 4).is_some_and(|b| b == ENDBR64);
    // A function of five bytes (`endbr64; ret`) loses its endbr64, because otherwise it could not be
    // counted. No kernel enforces indirect branch tracking in user space.
    let room = (f.limit - f.address).saturating_sub(4);
    if starts && f.size > 4 && (f.size >= 9 || room >= 5) { f.address + 4 } else { f.address }
}

/// The instructions that a [`JUMP`] at the hook point would overwrite, as found when the function was
/// decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The total size of these instructions in bytes, or 0 if the function is too short or a call is among
    /// them.
    pub len: u8,
    /// Whether the instructions can be copied anywhere: none depends on its own address, and control
    /// continues after the last one.
    pub movable: bool,
    /// Whether all of the instructions have been seen.
    seen: bool,
}

impl Head {
    /// Processes an instruction. The function's instructions must come in the order of their addresses;
    /// `hook` is the hook point.
    pub fn look(&mut self, i: &Instruction, hook: u64) {
        let fixed = has_branch(i) || i.is_ip_rel_memory_operand() || !falls_through(i);
        self.note(i.ip(), i.next_ip(), hook, fixed, is_call(i));
    }

    /// Processes an instruction of `len` bytes at `ip` of which only the class is known, and whether it
    /// has a RIP-relative operand.
    #[inline(always)]
    pub(crate) fn pass(&mut self, class: Class, ip: u64, len: u8, is_relative: bool, hook: u64) {
        if !self.seen {
            let is_branch = matches!(class, Class::Call | Class::Jump | Class::Conditional | Class::Return);
            self.note(ip, ip + u64::from(len), hook, is_branch || is_relative, class == Class::Call);
        }
    }

    fn note(&mut self, ip: u64, end: u64, hook: u64, fixed: bool, call: bool) {
        if self.seen || ip < hook {
            return;
        }
        self.movable = (self.movable || ip == hook) && !fixed;
        self.seen = call || end - hook >= JUMP;
        if self.seen && !call {
            self.len = (end - hook) as u8;
        }
    }
}
