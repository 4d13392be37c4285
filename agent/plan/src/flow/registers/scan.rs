//! One pass over the instructions of a function that follows rax, r10 and r11.

use crate::flow::registers::argument::may_call_by_descriptor;
use crate::flow::registers::facts::Registers;
use crate::flow::registers::targets::Targets;
use crate::flow::registers::uses::Uses;
use crate::x86::predecode::decode::Predecoded;
use crate::x86::predecode::fields;
use crate::x86::predecode::fields::Class;
use crate::x86::scratch::{BOTH, R10, R11, RAX, named};
use iced_x86::{Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register};

/// Follows the scratch registers through the instructions of one function, in the order of their addresses.
#[derive(Default)]
pub(crate) struct Scan {
    /// The facts found so far.
    pub found: Registers,
    /// Whether an instruction has branched or used rax, so that nothing later proves that rax is dead on
    /// entry.
    rax_decided: bool,
    /// Like `rax_decided`, for r10.
    r10_decided: bool,
    /// Whether r11 has been read or written.
    r11_seen: bool,
    /// Registers that have been written.
    written: u8,
    /// Registers that have been written and not read since.
    unused: u8,
    /// Whether r10 holds its value from entry on no path to the current instruction.
    r10_closed: bool,
    /// If r10 holds that value on some path: the address of the first instruction since which that has
    /// been so.
    r10_open_from: u64,
    /// Targets of forward branches at which r10 still held its value from entry.
    r10_open_at: Targets,
    /// If r10 holds it on no path: the first of those targets that lies ahead. Otherwise `u64::MAX`.
    reopens_at: u64,
    /// Whether r10 may hold its value from entry on paths that this pass does not follow.
    r10_lost: bool,
    /// Whether some instruction reads r10.
    r10_read: bool,
    /// Whether r10 may have held its value from entry before the last instruction.
    pub passes_r10: bool,
    /// Whether rax is read, as a whole or in part, before all of it is written.
    pub reads_rax: bool,
    /// Whether code of this program may call by TLS descriptors.
    tls_descriptors: bool,
    /// Where the last direct call has led, and those of r10 and r11 that no instruction has read or written since.
    called: (u64, u8),
    /// Where direct calls have led after which a register was read before any instruction wrote it: it holds a result.
    pub results: Vec<(u64, u8)>,
}

impl Scan {
    /// Returns a scan for the start of a function of `len` bytes at `start`. `tls_descriptors` is whether the program has
    /// any.
    pub(crate) fn new(start: u64, len: u64, tls_descriptors: bool) -> Scan {
        let r10_open_at = Targets::new(start, len);
        Scan { r10_open_at, reopens_at: u64::MAX, tls_descriptors, ..Scan::default() }
    }

    /// Returns the facts, after all instructions.
    pub(crate) fn finish(mut self) -> Registers {
        self.found.chain |= self.r10_read && self.r10_lost;
        self.found
    }

    /// Follows the value that r10 has on entry, through an instruction that may use r10 and may branch.
    fn follow_r10(&mut self, ip: u64, flow: FlowControl, target: Option<u64>, uses: Option<&Uses>) {
        self.arrive(ip);
        self.passes_r10 = !self.r10_closed;
        if let Some(uses) = uses {
            self.r10_read |= uses.reads;
            self.found.chain |= uses.reads && !self.r10_closed;
            if uses.overwrites && !self.r10_closed {
                self.close_r10(ip);
            }
        }
        if flow == FlowControl::Next || self.r10_closed {
            return;
        }
        match flow {
            FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch
            | FlowControl::XbeginXabortXend => match target {
                Some(target) if target > ip => self.r10_open_at.insert(target),
                Some(target) => self.r10_lost |= target < self.r10_open_from,
                None => {}
            },
            FlowControl::IndirectBranch => self.r10_lost = true,
            _ => {}
        }
        // Only a branch leads to the code after such an instruction.
        if matches!(
            flow,
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return
        ) {
            self.close_r10(ip);
        }
    }

    /// Records that r10 has lost its value from entry on this path.
    fn close_r10(&mut self, ip: u64) {
        (self.r10_closed, self.reopens_at) = (true, self.r10_open_at.first(ip + 1));
    }

    /// Processes the start of the instruction at `ip`, to which a branch may lead with r10 as it was on
    /// entry.
    #[inline(always)]
    fn arrive(&mut self, ip: u64) {
        if ip >= self.reopens_at {
            self.reopens_at = self.r10_open_at.first(ip);
            if self.reopens_at == ip {
                (self.r10_closed, self.r10_open_from, self.reopens_at) = (false, ip, u64::MAX);
            }
        }
    }

    /// Returns the registers that are followed, as bits by register number: r10, r11, and rax until an
    /// instruction has branched or both rax and r10 have been used.
    #[inline(always)]
    pub(crate) fn interest(&self) -> u16 {
        let rax = !self.is_decided();
        1 << 10 | 1 << 11 | if rax { 1 << fields::RAX } else { 0 }
    }

    /// Returns whether rax is no longer followed: see [`Scan::interest`].
    #[inline(always)]
    pub(crate) fn is_decided(&self) -> bool {
        self.rax_decided && self.r10_decided
    }

    /// Returns the first address that must not be skipped over.
    #[inline(always)]
    pub(crate) fn stop(&self) -> u64 {
        self.reopens_at
    }

    /// Returns whether [`Scan::pass`] can process a predecoded instruction.
    #[inline(always)]
    pub(crate) fn passes(&self, i: &Predecoded) -> bool {
        i.registers() & self.interest() == 0 || i.has_effects()
    }

    /// Processes a predecoded instruction that [passes](Scan::passes) and is not a branch.
    #[inline(always)]
    pub(crate) fn pass(&mut self, i: &Predecoded, ip: u64) {
        self.arrive(ip);
        if i.registers() & self.interest() != 0 {
            self.pass_named(i, ip);
        }
    }

    /// Processes a return.
    #[inline(always)]
    pub(crate) fn leave(&mut self, ip: u64) {
        self.found.leaves |= self.unused;
        self.branch(ip, FlowControl::Return, 0);
        self.called.1 = 0;
    }

    /// Processes a direct branch.
    #[inline(always)]
    pub(crate) fn branch(&mut self, ip: u64, flow: FlowControl, target: u64) {
        (self.rax_decided, self.r10_decided) = (true, true);
        // These are the most frequent cases of `follow_r10`.
        if self.r10_closed && ip < self.reopens_at {
            self.passes_r10 = false;
        } else if !self.r10_closed && flow == FlowControl::Call {
            self.passes_r10 = true;
        } else if !self.r10_closed && flow == FlowControl::ConditionalBranch && target > ip {
            self.passes_r10 = true;
            self.r10_open_at.insert(target);
        } else {
            self.follow_r10(ip, flow, Some(target), None);
        }
        self.follow_call(flow, Some(target));
    }

    /// Notes where a call leads, or that control does not go on behind an instruction, after the instruction itself was processed.
    fn follow_call(&mut self, flow: FlowControl, target: Option<u64>) {
        match (flow, target) {
            (FlowControl::Call, Some(target)) => self.called = (target, R10 | R11),
            (FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call, _) => {}
            _ => self.called.1 = 0,
        }
    }

    /// Processes a predecoded instruction that is not a branch and names a register that is followed.
    fn pass_named(&mut self, i: &Predecoded, ip: u64) {
        let effects = i.effects();
        let rax = Uses::from(&effects, 1 << fields::RAX);
        if !self.rax_decided || !self.r10_decided {
            let r10 = Uses::from(&effects, 1 << 10);
            self.reads_rax |= !self.rax_decided && rax.reads;
            self.found.rax_dead |= rax.decides(&mut self.rax_decided);
            self.found.r10_dead |= r10.decides(&mut self.r10_decided);
        }
        for (number, bit) in [(10, R10), (11, R11)] {
            let register = 1 << number;
            if (effects.reads | effects.changes) & register != 0 {
                let uses = Uses::from(&effects, register);
                self.note(bit, &uses, i.class == Class::Push, ip, FlowControl::Next, None);
            }
        }
    }

    /// Processes an instruction that iced has decoded. `flow` is its flow control.
    pub(crate) fn look(&mut self, i: &Instruction, flow: FlowControl, factory: &mut InstructionInfoFactory) {
        let named = named(i);
        if !(self.rax_decided && self.r10_decided) {
            let branches = flow != FlowControl::Next;
            let reads_rax = &mut self.reads_rax;
            let mut is_dead = |register, bit, decided: &mut bool| {
                if *decided || branches || names_all(i) && named & bit == 0 {
                    *decided |= branches;
                    return false;
                }
                let uses = Uses::of(i, register, factory);
                *reads_rax |= bit == RAX && uses.reads;
                uses.decides(decided)
            };
            self.found.rax_dead |= is_dead(Register::RAX, RAX, &mut self.rax_decided);
            self.found.r10_dead |= is_dead(Register::R10, R10, &mut self.r10_decided);
        }
        match flow {
            // An indirect jump may be a `switch`, and proves nothing.
            FlowControl::IndirectCall => {
                self.found.calls_unknown |= !(self.tls_descriptors && may_call_by_descriptor(i));
                self.found.follows_pointers = true;
            }
            FlowControl::IndirectBranch => {
                self.found.takes_r10 = true;
                self.found.follows_pointers = true;
            }
            FlowControl::Return => self.found.leaves |= self.unused,
            _ => {}
        }
        // r10 is the fourth argument of a system call.
        if i.code() == Code::Syscall {
            self.found.names |= R10;
            self.found.takes_r10 = true;
        }
        let target = (i.op0_kind() == OpKind::NearBranch64).then(|| i.near_branch_target());
        if named & R10 == 0 {
            self.follow_r10(i.ip(), flow, target, None);
        }
        for (register, bit) in BOTH {
            if named & bit != 0 {
                let uses = Uses::of(i, register, factory);
                self.note(bit, &uses, i.code() == Code::Push_r64, i.ip(), flow, target);
            }
        }
        self.follow_call(flow, target);
    }

    /// Processes the effects of an instruction on r10 or r11.
    fn note(&mut self, bit: u8, uses: &Uses, is_push: bool, ip: u64, flow: FlowControl, target: Option<u64>) {
        self.found.names |= bit;
        if self.called.1 & bit != 0 && (uses.reads || uses.overwrites) {
            self.called.1 &= !bit;
            if uses.reads {
                self.results.push((self.called.0, bit));
            }
        }
        if is_push && self.written & bit == 0 {
            self.found.saves |= bit;
        }
        if bit == R10 {
            self.found.takes_r10 |= uses.reads;
            self.follow_r10(ip, flow, target, Some(uses));
        }
        if bit == R11 {
            self.found.takes_r11 |= uses.reads && !self.r11_seen;
            self.r11_seen = true;
        }
        if uses.changes {
            self.written |= bit;
            self.found.changes |= bit;
            self.unused |= bit;
        } else {
            self.unused &= !bit;
        }
    }
}

/// Returns whether an instruction uses no register but the stack pointer and its operands. Most functions
/// begin with such instructions, and asking iced for all registers takes longer than decoding.
fn names_all(i: &Instruction) -> bool {
    use Mnemonic::{Add, And, Cmp, Endbr64, Lea, Mov, Movsx, Movsxd, Movzx, Or, Push, Sub, Test, Xor};
    matches!(
        i.mnemonic(),
        Add | And | Cmp | Endbr64 | Lea | Mov | Movsx | Movsxd | Movzx | Or | Push | Sub | Test | Xor
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn scan(bytes: &[u8]) -> Registers {
        let mut scan = Scan::new(0x1000, bytes.len() as u64, false);
        let mut factory = InstructionInfoFactory::new();
        for i in &mut Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE) {
            scan.look(&i, i.flow_control(), &mut factory);
        }
        // The test assumes that callers keep values wherever they can.
        let found = scan.finish();
        let unknown = if found.calls_unknown { R10 | R11 } else { 0 };
        Registers { kept: !(found.changes | unknown), ..found }
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
    fn r11_is_dead_on_entry_where_it_is_changed_and_not_taken() {
        let dead = |bytes: &[u8]| scan(bytes).dead_on_entry() & R11 != 0;
        assert!(dead(&[0x41, 0x89, 0xfb, 0xc3])); // mov r11d,edi
        assert!(dead(&[0xff, 0xd7, 0xc3])); // call rdi
        assert!(!dead(&[0x4c, 0x89, 0xd8, 0x41, 0x89, 0xfb])); // mov rax,r11; mov r11d,edi
        assert!(!dead(&[0xff, 0xe7])); // jmp rdi
        assert!(!dead(&[0x89, 0xf8, 0xc3])); // mov eax,edi: a caller may keep a value in r11
        assert_eq!(scan(&[0x41, 0x89, 0xfa, 0xc3]).dead_on_entry(), R10); // mov r10d,edi
        assert_eq!(scan(&[0x4d, 0x89, 0xd3, 0xc3]).dead_on_entry(), R11); // mov r11,r10: the static chain
        assert_eq!(scan(&[0x74, 3, 0x41, 0x89, 0xfa]).dead_on_entry(), R10); // je; mov r10d,edi
        let reads = [0x74, 3, 0x41, 0x89, 0xfa, 0x44, 0x89, 0xd0]; // je; mov r10d,edi; mov eax,r10d
        assert_eq!(scan(&reads).dead_on_entry(), 0);
        assert_eq!(scan(&[0x41, 0x89, 0xfb, 0xff, 0xe7]).dead_on_entry(), R11); // mov r11d,edi; jmp rdi
    }

    #[test]
    fn what_is_read_after_a_call_is_a_result() {
        let results = |bytes: &[u8]| {
            let mut scan = Scan::new(0x1000, bytes.len() as u64, false);
            let mut factory = InstructionInfoFactory::new();
            for i in &mut Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE) {
                scan.look(&i, i.flow_control(), &mut factory);
            }
            scan.results
        };
        const CALL: [u8; 5] = [0xe8, 0xfb, 0x0f, 0, 0]; // call 0x2000
        let after = |bytes: &[u8]| results(&[&CALL, bytes].concat());
        assert_eq!(after(&[0x4c, 0x89, 0x16, 0x4c, 0x89, 0x1e]), [(0x2000, R10), (0x2000, R11)]); // mov [rsi],r10; mov [rsi],r11
        assert_eq!(after(&[0x74, 0, 0x49, 0x01, 0xfb]), [(0x2000, R11)]); // je; add r11,rdi
        assert_eq!(after(&[0x41, 0x89, 0xfb, 0x4c, 0x89, 0x1e]), []); // mov r11d,edi; mov [rsi],r11
        assert_eq!(after(&[0xeb, 0, 0x4c, 0x89, 0x1e]), []); // jmp; mov [rsi],r11
        assert_eq!(after(&[0x0f, 0x0b, 0x4c, 0x89, 0x1e]), []); // ud2; mov [rsi],r11
        assert_eq!(after(&[0xff, 0xd7, 0x4c, 0x89, 0x1e]), []); // call rdi; mov [rsi],r11
        assert_eq!(results(&[0x41, 0xff, 0xd3, 0x4c, 0x89, 0x1e]), []); // call r11; mov [rsi],r11
    }

    #[test]
    fn r11_is_dead_on_exit_where_its_last_value_was_used() {
        let dead = |bytes: &[u8]| scan(bytes).dead_on_exit() & R11 != 0;
        assert!(dead(&[0x41, 0x89, 0xfb, 0x44, 0x89, 0xd8, 0xc3])); // mov r11d,edi; mov eax,r11d; ret
        assert!(!dead(&[0x41, 0x89, 0xfb, 0xc3])); // mov r11d,edi; ret: a result
        assert!(!dead(&[0x41, 0x89, 0xfb, 0x44, 0x89, 0xd8, 0x49, 0x01, 0xfb, 0xc3])); // ...; add r11,rdi; ret
        assert!(dead(&[0xff, 0xd7, 0xc3])); // call rdi
        assert!(!dead(&[0x89, 0xf8, 0xc3])); // mov eax,edi
        // add r11,rdi; mov [rsi],r11; ret: an argument, and a result that is stored as well
        let both = [0x49, 0x01, 0xfb, 0x4c, 0x89, 0x1e, 0xc3];
        assert!(!dead(&both));
        // The same with r10.
        assert_eq!(scan(&[0x49, 0x01, 0xfa, 0x4c, 0x89, 0x16, 0xc3]).dead_on_exit() & R10, 0);
    }
}
