//! The first step of the analysis: this module notices which functions may use their return slot, with a
//! few operations for each instruction.

use crate::flow::return_slot::uses::{RBP, RSP, number};
use crate::x86::predecode::decode::{Base, Predecoded};
use crate::x86::predecode::effects::Moved;
use crate::x86::predecode::fields::Class;
use gprofinject_image::FunctionKind;
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// The registers that a called function preserves: rbx, rsp, rbp, r12 to r15.
const PRESERVED: u16 = 1 << 3 | 1 << RSP | 1 << RBP | 0xf000;
/// The most bytes that one instruction reads: a 64-byte vector. (Instructions that save whole register
/// sets access more.)
const WIDEST: i32 = 64;

/// The addresses in the stack pointer and the frame pointer, in bytes above the return slot; `None` for an
/// unknown address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stand {
    /// The stack pointer.
    rsp: Option<i32>,
    /// The frame pointer.
    rbp: Option<i32>,
}

/// Notices whether a function may use its return slot. In doubt, it reports that the function may.
pub(crate) struct Watch {
    /// Whether something may use the return slot.
    suspicious: bool,
    /// A bit for each register that holds a stack address.
    known: u16,
    /// Those stack addresses, in bytes above the return slot.
    offsets: [i32; 16],
    /// Whether rbp still holds the caller's frame pointer.
    entry_rbp: bool,
    /// The address to which the caller's frame pointer has been pushed, in bytes above the return slot.
    saved_rbp: Option<i32>,
    /// Whether control does not reach the current instruction from the one before it.
    stopped: bool,
    /// The stack and frame pointers at most branches, which follow the prologue.
    body: Stand,
    /// Targets of forward jumps at which the stack and frame pointers differ from `body`.
    pending: Vec<(u64, Stand)>,
}

impl Watch {
    /// Returns a watch for the start of a function of this kind.
    pub(crate) fn new(kind: FunctionKind) -> Watch {
        // A cold part begins inside a frame.
        let ordinary = !matches!(kind, FunctionKind::Cold(_));
        let stand = Stand { rsp: ordinary.then_some(0), rbp: None };
        let mut watch = Watch {
            suspicious: false,
            known: 0,
            offsets: [0; 16],
            entry_rbp: ordinary,
            saved_rbp: None,
            stopped: false,
            body: stand,
            pending: Vec::new(),
        };
        watch.adopt(stand);
        watch
    }

    /// Returns whether the function has to be examined.
    pub(crate) fn is_suspicious(&self) -> bool {
        self.suspicious
    }

    /// Returns the stack address in a register, or `None` if the register holds no known one.
    fn get(&self, register: usize) -> Option<i32> {
        (self.known & 1 << register != 0).then_some(self.offsets[register])
    }

    /// Records that a register holds this stack address, or an unknown value.
    fn set(&mut self, register: usize, offset: Option<i32>) {
        self.entry_rbp &= register != RBP;
        match offset {
            Some(offset) => {
                self.known |= 1 << register;
                self.offsets[register] = offset;
                // The function uses the slot if the stack pointer is above it, or another register holds its
                // address.
                self.suspicious |= match register {
                    RSP => offset > 0,
                    RBP => false,
                    _ => offset == 0,
                };
            }
            None => self.known &= !(1 << register),
        }
    }

    /// Returns the current stack and frame pointers.
    fn stand(&self) -> Stand {
        Stand { rsp: self.get(RSP), rbp: self.get(RBP) }
    }

    /// Sets the stack and frame pointers, and forgets the stack addresses in all other registers.
    fn adopt(&mut self, stand: Stand) {
        self.known = 0;
        for (register, offset) in [(RSP, stand.rsp), (RBP, stand.rbp)] {
            if let Some(offset) = offset {
                self.known |= 1 << register;
                self.offsets[register] = offset;
            }
        }
    }

    /// Processes the next instruction. `control` is its flow control.
    pub(crate) fn look(&mut self, i: &Instruction, control: FlowControl) {
        if self.suspicious {
            return;
        }
        self.begin(i.ip());
        if let Some(base) = number(i.memory_base()) {
            self.look_at_memory(i, base);
        }
        if control == FlowControl::Next {
            self.follow(i);
        } else {
            let target = (i.op0_kind() == OpKind::NearBranch64).then(|| i.near_branch_target());
            self.branch(control, i.ip(), i.next_ip(), target);
        }
    }

    /// Returns the registers that are followed, as bits by register number, or `None` if every instruction
    /// matters.
    #[inline(always)]
    pub(crate) fn interest(&self) -> Option<u16> {
        match (self.suspicious, self.stopped) {
            (true, _) => Some(0),
            (_, true) => None,
            _ => Some(self.followed()),
        }
    }

    #[inline(always)]
    /// Returns the registers that hold a stack address or the caller's frame pointer.
    fn followed(&self) -> u16 {
        self.known | if self.entry_rbp { 1 << RBP } else { 0 }
    }

    /// Returns whether [`Watch::pass`] can follow a predecoded instruction.
    #[inline(always)]
    pub(crate) fn passes(&self, i: &Predecoded) -> bool {
        if self.suspicious || i.has_effects() && !i.is_narrow_lea() || !self.names_followed(i) {
            return true;
        }
        if self.stopped || i.operands() & self.followed() != 0 {
            return false;
        }
        match i.base() {
            Base::Register(base) => self.is_harmless(base, i.displacement()),
            Base::None | Base::Rip => true,
        }
    }

    /// Returns whether an instruction names a register that is followed. After a jump, the followed
    /// registers are not known yet, so the answer is yes.
    #[inline(always)]
    fn names_followed(&self, i: &Predecoded) -> bool {
        self.stopped || i.registers() & self.followed() != 0
    }

    /// Returns whether an access to memory relative to a register is irrelevant: it touches neither the
    /// return slot nor the word in which the caller's frame pointer is saved.
    #[inline(always)]
    pub(crate) fn is_harmless(&self, base: u8, displacement: i32) -> bool {
        if usize::from(base) == RBP && self.entry_rbp && displacement == 8 {
            return false;
        }
        let at = self.get(base.into()).map(|offset| offset.wrapping_add(displacement));
        at.is_none_or(|at| !(1 - WIDEST..8).contains(&at))
    }

    /// Processes a predecoded instruction that [passes](Watch::passes). `target` is the target of a direct
    /// branch.
    #[inline(always)]
    pub(crate) fn pass(&mut self, i: &Predecoded, ip: u64, target: u64) {
        if self.suspicious {
            return;
        }
        self.begin(ip);
        match i.class {
            Class::Next | Class::Lea => {
                if self.names_followed(i) {
                    self.pass_named(i);
                }
            }
            Class::Push => self.push(i.opcode_register()),
            Class::Pop => self.pop(i.opcode_register()),
            Class::Call | Class::Jump | Class::Conditional | Class::Return => {
                self.pass_branch(i.class, ip, ip + u64::from(i.len), target);
            }
        }
    }

    /// Processes a direct branch or a return. Control must reach it from the instruction before it.
    #[inline(always)]
    pub(crate) fn pass_branch(&mut self, class: Class, ip: u64, next_ip: u64, target: u64) {
        match class {
            _ if self.suspicious => {}
            Class::Call if target == next_ip => self.move_rsp(-8),
            Class::Call => self.known &= PRESERVED,
            Class::Jump => {
                self.note_target(ip, Some(target));
                self.stopped = true;
                self.begin(next_ip);
            }
            Class::Return => {
                self.stopped = true;
                self.begin(next_ip);
            }
            _ => self.body = self.stand(),
        }
    }

    /// Processes a predecoded instruction that is not a branch and names a register that is followed.
    fn pass_named(&mut self, i: &Predecoded) {
        if let Base::Register(base) = i.base()
            && i.class != Class::Lea
            && !self.is_harmless(base, i.displacement())
        {
            let size = i.memory_len();
            let to = i.result().filter(|_| i.is_wide_load()).map(|result| result.register);
            self.touch(base.into(), i.displacement(), size, to);
        }
        if let Some(Moved { register, sum }) = i.result() {
            let value = sum.and_then(|(from, plus)| Some(self.get(from.into())?.wrapping_add(plus)));
            self.leave(register.into(), value);
        }
    }

    /// Prepares for the instruction at `ip`. After a jump, this finds the stack and frame pointers that
    /// hold there.
    #[inline(always)]
    fn begin(&mut self, ip: u64) {
        if self.stopped {
            self.stopped = false;
            let pending = self.pending.iter().find(|pending| pending.0 == ip);
            self.adopt(pending.map_or(self.body, |pending| pending.1));
        }
    }

    /// Processes an instruction after which control may continue elsewhere.
    fn branch(&mut self, control: FlowControl, ip: u64, next_ip: u64, target: Option<u64>) {
        match control {
            FlowControl::Call if target == Some(next_ip) => self.move_rsp(-8),
            FlowControl::Call | FlowControl::IndirectCall => self.known &= PRESERVED,
            FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend => {
                self.body = self.stand();
            }
            FlowControl::UnconditionalBranch => {
                self.note_target(ip, target);
                self.stopped = true;
            }
            FlowControl::IndirectBranch => {
                // An indirect jump is usually a `switch`, whose cases follow it.
                self.body = self.stand();
                self.stopped = true;
            }
            _ => self.stopped = true,
        }
    }

    /// Records the current stack and frame pointers for the target of a jump.
    fn note_target(&mut self, ip: u64, target: Option<u64>) {
        /// The number of targets that can be recorded.
        const MOST: usize = 32;
        let stand = self.stand();
        if let Some(target) = target.filter(|&target| target > ip)
            && stand != self.body
            && self.pending.len() < MOST
        {
            self.pending.push((target, stand));
        }
        // This is the end of a prologue without calls and conditional branches.
        let is_deeper = |stand: Stand, than: Stand| stand.rsp.zip(than.rsp).is_some_and(|(a, b)| a < b);
        if self.body.rsp == Some(0) && is_deeper(stand, self.body) {
            self.body = stand;
        }
    }

    /// Processes the memory operand of an instruction that iced has decoded.
    fn look_at_memory(&mut self, i: &Instruction, base: usize) {
        if i.memory_index() != Register::None || i.code() == Code::Lea_r64_m {
            return;
        }
        let is_wide_load = i.code() == Code::Mov_r64_rm64;
        let to = number(i.op0_register()).filter(|_| is_wide_load).map(|register| register as u8);
        self.touch(base, i.memory_displacement64() as i32, i.memory_size().size() as i32, to);
    }

    /// Processes an access to `size` bytes of memory relative to a register. `to` is the register into
    /// which a 64-bit `mov` loads the value.
    fn touch(&mut self, base: usize, displacement: i32, size: i32, to: Option<u8>) {
        if base == RBP && self.entry_rbp && displacement == 8 {
            self.suspicious = true;
        }
        let Some(offset) = self.get(base) else { return };
        let at = offset.wrapping_add(displacement);
        if (1 - WIDEST..8).contains(&at) {
            self.suspicious |= at + size > 0;
            // The function loads the caller's frame pointer for another purpose than to restore it.
            self.suspicious |= to.is_some_and(|to| usize::from(to) != RBP) && self.saved_rbp == Some(at);
        }
    }

    /// Processes a `push`. `register` is its operand, if that is a register.
    #[inline(always)]
    pub(crate) fn push(&mut self, register: Option<u8>) {
        self.move_rsp(-8);
        if register == Some(RBP as u8) && self.entry_rbp {
            self.saved_rbp = self.get(RSP);
        }
    }

    #[inline(always)]
    /// Processes a `pop`. `register` is its operand, if that is a register.
    pub(crate) fn pop(&mut self, register: Option<u8>) {
        self.move_rsp(8);
        if let Some(register) = register {
            self.set(register.into(), None);
        }
    }

    /// Adds `by` bytes to the stack pointer.
    fn move_rsp(&mut self, by: i32) {
        if let Some(offset) = self.get(RSP) {
            self.set(RSP, Some(offset.wrapping_add(by)));
        }
    }

    /// Follows stack addresses through an instruction that is not a branch.
    fn follow(&mut self, i: &Instruction) {
        match i.mnemonic() {
            Mnemonic::Push => {
                self.push(number(i.op0_register()).map(|register| register as u8));
            }
            Mnemonic::Pop => {
                self.pop(number(i.op0_register()).map(|register| register as u8));
            }
            Mnemonic::Pushfq => self.move_rsp(-8),
            Mnemonic::Popfq => self.move_rsp(8),
            Mnemonic::Leave => {
                self.set(RSP, self.get(RBP).map(|rbp| rbp.wrapping_add(8)));
                self.set(RBP, None);
            }
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop => {}
            Mnemonic::Xchg => {
                for register in [i.op0_register(), i.op1_register()] {
                    if let Some(register) = number(register.full_register()) {
                        self.set(register, None);
                    }
                }
            }
            _ => {
                let register = i.op0_register();
                // Most instructions name none of the registers that hold a stack address.
                let Some(to) = number(register).or_else(|| number(register.full_register())) else { return };
                let value = match number(register) {
                    Some(_) => self.value(i, to),
                    None => None,
                };
                self.leave(to, value);
            }
        }
    }

    /// Records the value that an instruction writes to a register: a stack address, or `None` for an
    /// unknown value.
    fn leave(&mut self, to: usize, value: Option<i32>) {
        if value.is_some() || self.known & 1 << to != 0 || to == RBP {
            self.set(to, value);
        }
    }

    /// Returns the stack address that an instruction writes to a register, or `None` if that is unknown.
    fn value(&self, i: &Instruction, to: usize) -> Option<i32> {
        match (i.mnemonic(), i.op1_kind()) {
            (Mnemonic::Mov, OpKind::Register) => self.get(number(i.op1_register())?),
            (Mnemonic::Lea, _) if i.memory_index() == Register::None => {
                Some(self.get(number(i.memory_base())?)?.wrapping_add(i.memory_displacement64() as i32))
            }
            (Mnemonic::Add, OpKind::Immediate8to64 | OpKind::Immediate32to64) => {
                Some(self.get(to)?.wrapping_add(i.immediate(1) as i32))
            }
            (Mnemonic::Sub, OpKind::Immediate8to64 | OpKind::Immediate32to64) => {
                Some(self.get(to)?.wrapping_sub(i.immediate(1) as i32))
            }
            _ => None,
        }
    }
}
