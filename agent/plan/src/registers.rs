//! Which of a thunk's two registers nobody needs when a function is entered.
//!
//! A thunk uses rax and r11, and must leave both as they were: a caller that knows the function's code may
//! keep a value in any register that the function leaves alone (gcc -fipa-ra), and rax carries the number
//! of vector arguments of a variadic call. Two proofs spare the saving:
//!
//! * rax is overwritten, unread, in the straight line that the function begins with. Then it is no
//!   input, and the function is known to change it.
//! * r11 is changed somewhere in the function, or the function calls code that is not known, which may
//!   change it, or calls a function for which that holds. Then no caller keeps a value in it. And the
//!   function does not read it before it writes it, which only helpers of compilers do.

use crate::flow::{BranchKind, Flow};
use crate::image::Image;
use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register};

/// What one pass over a function's instructions finds out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// rax need not be kept on entry.
    pub rax_dead: bool,
    /// The function changes r11, itself or through what it calls.
    pub changes_r11: bool,
    /// r11 is read before it is written.
    pub takes_r11: bool,
}

impl Registers {
    /// r11 need be kept neither on entry nor on exit.
    pub fn r11_dead(self) -> bool {
        self.changes_r11 && !self.takes_r11
    }
}

/// Looks at the instructions of one function, in the order of their addresses.
#[derive(Default)]
pub struct Scan {
    pub found: Registers,
    /// Something has branched, or rax has been read or written.
    decided: bool,
    r11_seen: bool,
}

impl Scan {
    pub fn look(&mut self, i: &Instruction, factory: &mut InstructionInfoFactory) {
        let flow = i.flow_control();
        if !self.decided {
            if flow != FlowControl::Next {
                self.decided = true;
            } else if !names_all(i) || mentions(i, Register::RAX) {
                let uses = Uses::of(i, Register::RAX, factory);
                self.found.rax_dead |= uses.writes && !uses.reads;
                self.decided = uses.writes || uses.reads;
            }
        }
        // An indirect jump may be a switch, and proves nothing.
        self.found.changes_r11 |= flow == FlowControl::IndirectCall;
        if mentions(i, Register::R11) {
            let uses = Uses::of(i, Register::R11, factory);
            self.found.takes_r11 |= uses.reads && !self.r11_seen;
            self.found.changes_r11 |= uses.writes;
            self.r11_seen = true;
        }
    }
}

/// What most functions begin with: instructions that use no register but the stack pointer and those that
/// they name. To ask iced for all registers takes longer than to decode.
fn names_all(i: &Instruction) -> bool {
    use Mnemonic::{Add, And, Cmp, Endbr64, Lea, Mov, Movsx, Movsxd, Movzx, Or, Push, Sub, Test, Xor};
    matches!(
        i.mnemonic(),
        Add | And | Cmp | Endbr64 | Lea | Mov | Movsx | Movsxd | Movzx | Or | Push | Sub | Test | Xor
    )
}

fn mentions(i: &Instruction, register: Register) -> bool {
    let is = |r: Register| r.full_register() == register;
    is(i.op0_register())
        || is(i.op1_register())
        || is(i.op2_register())
        || is(i.memory_base())
        || is(i.memory_index())
}

struct Uses {
    reads: bool,
    /// All of it, on every path.
    writes: bool,
}

impl Uses {
    fn of(i: &Instruction, register: Register, factory: &mut InstructionInfoFactory) -> Uses {
        let mut uses = Uses { reads: false, writes: false };
        for used in factory.info(i).used_registers() {
            if used.register().full_register() != register {
                continue;
            }
            // A 32-bit write clears the upper half.
            let whole = used.register().size() >= 4;
            match used.access() {
                OpAccess::Write if whole => uses.writes = true,
                OpAccess::None | OpAccess::NoMemAccess => {}
                _ => uses.reads = true,
            }
        }
        uses
    }
}

/// Carries changes of r11 from called functions to their callers.
pub fn spread(image: &Image, flow: &mut Flow) {
    let mut changes: Vec<bool> = flow.functions.iter().map(|f| f.registers.changes_r11).collect();
    // What is called outside of all functions (a PLT stub) is not known.
    for b in flow.to_no_start(image).filter(|b| b.kind == BranchKind::Call) {
        changes[b.function as usize] = true;
    }
    let mut work: Vec<usize> = (0..changes.len()).filter(|&i| changes[i]).collect();
    while let Some(callee) = work.pop() {
        for b in flow.branches_into(callee, image.functions[callee].address + 1) {
            let caller = b.function as usize;
            if !std::mem::replace(&mut changes[caller], true) {
                work.push(caller);
            }
        }
    }
    for (f, changes) in flow.functions.iter_mut().zip(changes) {
        f.registers.changes_r11 = changes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn scan(bytes: &[u8]) -> Registers {
        let mut scan = Scan::default();
        let mut factory = InstructionInfoFactory::new();
        for i in &mut Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE) {
            scan.look(&i, &mut factory);
        }
        scan.found
    }

    #[test]
    fn rax_is_dead_where_it_is_overwritten_first() {
        assert!(scan(&[0x53, 0x89, 0xf8, 0xc3]).rax_dead); // push rbx; mov eax,edi
        assert!(scan(&[0x31, 0xc0, 0xc3]).rax_dead); // xor eax,eax
        assert!(!scan(&[0x84, 0xc0, 0x31, 0xc0]).rax_dead); // test al,al; xor eax,eax
        assert!(!scan(&[0xb0, 1, 0x31, 0xc0]).rax_dead); // mov al,1: the rest stays
        assert!(!scan(&[0x74, 2, 0x31, 0xc0]).rax_dead); // je; xor eax,eax
        assert!(!scan(&[0x0f, 0x44, 0xc7, 0xc3]).rax_dead); // cmove eax,edi
        assert!(!scan(&[0x48, 0x8b, 0x00, 0xc3]).rax_dead); // mov rax,[rax]
    }

    #[test]
    fn r11_is_dead_where_it_is_changed_and_not_taken() {
        assert!(scan(&[0x41, 0x89, 0xfb, 0xc3]).r11_dead()); // mov r11d,edi
        assert!(scan(&[0xff, 0xd7, 0xc3]).r11_dead()); // call rdi
        assert!(!scan(&[0x4c, 0x89, 0xd8, 0x41, 0x89, 0xfb]).r11_dead()); // mov rax,r11; mov r11d,edi
        assert!(!scan(&[0xff, 0xe7]).r11_dead()); // jmp rdi
        assert!(!scan(&[0x89, 0xf8, 0xc3]).r11_dead()); // mov eax,edi: a caller may keep a value in r11
    }
}
