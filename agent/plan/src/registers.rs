//! Which registers nobody needs when a function is entered, and when it returns.
//!
//! A thunk uses two registers on entry, rax and r11 or r10, and two on exit. It must leave all as they were:
//! a caller that knows the function's code may keep a value in any register that the function leaves alone
//! (gcc -fipa-ra), rax carries the number of vector arguments of a variadic call, and results may be in more
//! registers than rax and rdx. These proofs spare the saving:
//!
//! * rax or r10 is overwritten, unread, in the straight line that the function begins with. Then it is no
//!   input (r10 is that of nested functions), and the function is known to change it. Nor is r10 an input where
//!   neither the function reads it nor one to which it jumps, nor one that it calls, while r10 may still be as it
//!   was, reads it before it writes it: nested functions pass it on to each other.
//! * No caller keeps a value in r10 or r11. Either they cannot: it is changed somewhere in the function, or the
//!   function calls code that is not known, which may change it, or calls a function for which that holds. Or they
//!   do not: who calls the function directly, or may do so through a pointer, does not name the register anywhere (it may write it as
//!   the input of several calls), nor has r10 as an input, and no caller of such a one keeps a value in it through both
//!   calls. For the entry, the function does not read r11 before it writes
//!   it, which only helpers of compilers do. For the exit, the register is not left with a value that nobody has used
//!   when the function returns, which only hand-written code does, to hand over a result.

mod spread;

use crate::predecode::{self, Class, Effects, Predecoded};
use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

pub use spread::spread;

/// r10 and r11, in sets of the two.
pub const R10: u8 = 1;
pub const R11: u8 = 2;
const BOTH: [(Register, u8); 2] = [(Register::R10, R10), (Register::R11, R11)];

/// rax, beside the two.
const RAX: u8 = 4;

/// For each register: of which of the three it is all or a part.
const PART_OF: [u8; 256] = {
    let mut table = [0; 256];
    let parts = [
        (R10, [Register::R10, Register::R10D, Register::R10W, Register::R10L]),
        (R11, [Register::R11, Register::R11D, Register::R11W, Register::R11L]),
        (RAX, [Register::RAX, Register::EAX, Register::AX, Register::AL]),
        (RAX, [Register::AH; 4]),
    ];
    let mut n = 0;
    while n < 4 * parts.len() {
        table[parts[n / 4].1[n % 4] as usize] = parts[n / 4].0;
        n += 1;
    }
    table
};

/// What one pass over a function's instructions finds out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// rax need not be kept on entry.
    pub rax_dead: bool,
    /// The function changes it, itself or through what it calls.
    pub changes: u8,
    /// The function reads or writes it somewhere, by an instruction that says so.
    pub names: u8,
    /// The function calls or jumps through a pointer.
    pub follows_pointers: bool,
    /// The function calls code that is not known.
    pub calls_unknown: bool,
    /// A caller may keep a value in it that it needs behind the call.
    pub kept: u8,
    /// r11 is read before it is written.
    pub takes_r11: bool,
    /// r10, that of nested functions, may be an input: it is read somewhere, or the function goes on at an address
    /// that is not known, or in a function of which that holds.
    pub takes_r10: bool,
    /// r10 is read before it is written, on some way, or in a function to which it is passed on by a call or jump.
    pub chain: bool,
    /// r10 need not be kept on entry.
    pub r10_dead: bool,
    /// Pushed before it is written, and so given back (clang's `preserve_most`): what changes it is none of the callers'
    /// business.
    pub saves: u8,
    /// It has a value that was not used when the function returns, or goes on to one of which that holds.
    pub leaves: u8,
}

impl Registers {
    /// What need not be kept on entry.
    pub fn dead_on_entry(self) -> u8 {
        let r11 = if self.takes_r11 { 0 } else { !self.kept & R11 };
        let r10 = if self.takes_r10 { 0 } else { !self.kept & R10 };
        r11 | r10 | if self.r10_dead { R10 } else { 0 }
    }

    /// What need not be kept on exit.
    pub fn dead_on_exit(self) -> u8 {
        !self.kept & !self.leaves & (R10 | R11)
    }
}

/// Looks at the instructions of one function, in the order of their addresses.
#[derive(Default)]
pub struct Scan {
    pub found: Registers,
    /// Something has branched, or rax has been read or written; the same of r10.
    rax_decided: bool,
    r10_decided: bool,
    r11_seen: bool,
    /// Written before.
    written: u8,
    /// Written last, and not read since.
    unused: u8,
    /// On no way here r10 is still as it was on entry.
    r10_closed: bool,
    /// Else: the first instruction from which on that is so.
    r10_open_from: u64,
    /// Where forward branches lead with r10 as it was on entry.
    r10_open_at: Targets,
    /// While it is on no way as it was: the first such address behind. Else no address.
    reopens_at: u64,
    /// So do ways that this pass does not follow, or may.
    r10_lost: bool,
    r10_read: bool,
    /// Before the last instruction r10 may have been as it was on entry.
    pub passes_r10: bool,
}

/// Addresses in a function.
#[derive(Default)]
struct Targets {
    /// The function's first byte, and how many it has.
    start: u64,
    len: u64,
    /// A bit for each byte, up to the last of these addresses.
    bits: Vec<u64>,
}

impl Targets {
    /// Branches to other functions are of no interest.
    fn insert(&mut self, address: u64) {
        let offset = address - self.start;
        let word = (offset / 64) as usize;
        if offset < self.len {
            if word >= self.bits.len() {
                // At once for all where that is little.
                let least = (self.len / 64 + 1).min(64) as usize;
                self.bits.resize((word + 1).next_power_of_two().max(least), 0);
            }
            self.bits[word] |= 1 << (offset % 64);
        }
    }

    /// The first of these addresses that is not below `from`; none: `u64::MAX`.
    fn first(&self, from: u64) -> u64 {
        let offset = from - self.start;
        let mut word = (offset / 64) as usize;
        let mut bits = self.bits.get(word).map_or(0, |bits| bits & u64::MAX << (offset % 64));
        while bits == 0 {
            word += 1;
            match self.bits.get(word) {
                Some(&next) => bits = next,
                None => return u64::MAX,
            }
        }
        self.start + word as u64 * 64 + u64::from(bits.trailing_zeros())
    }
}

impl Scan {
    /// For the instructions of a function at `start`, with `len` bytes.
    pub fn new(start: u64, len: u64) -> Scan {
        let r10_open_at = Targets { start, len, bits: Vec::new() };
        Scan { r10_open_at, reopens_at: u64::MAX, ..Scan::default() }
    }

    /// When all instructions have been looked at.
    pub fn finish(mut self) -> Registers {
        self.found.chain |= self.r10_read && self.r10_lost;
        self.found
    }

    /// Follows the value that r10 has on entry, through the instructions in the order of their addresses.
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
        // What stands behind is come to by branches.
        if matches!(
            flow,
            FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return
        ) {
            self.close_r10(ip);
        }
    }

    fn close_r10(&mut self, ip: u64) {
        (self.r10_closed, self.reopens_at) = (true, self.r10_open_at.first(ip + 1));
    }

    /// Before the instruction at `ip`, to which a branch may lead with r10 as it was on entry, which it was not before.
    #[inline(always)]
    fn arrive(&mut self, ip: u64) {
        if ip >= self.reopens_at {
            self.reopens_at = self.r10_open_at.first(ip);
            if self.reopens_at == ip {
                (self.r10_closed, self.r10_open_from, self.reopens_at) = (false, ip, u64::MAX);
            }
        }
    }

    /// The registers that are followed: r10 and r11, and rax until something has branched or rax and r10 have both
    /// been used.
    #[inline(always)]
    pub(crate) fn interest(&self) -> u16 {
        let rax = !self.is_decided();
        1 << 10 | 1 << 11 | if rax { 1 << predecode::RAX } else { 0 }
    }

    /// Whether rax is not followed any more: see [`Scan::interest`].
    #[inline(always)]
    pub(crate) fn is_decided(&self) -> bool {
        self.rax_decided && self.r10_decided
    }

    /// No instruction may be passed over that is not below this address.
    #[inline(always)]
    pub(crate) fn stop(&self) -> u64 {
        self.reopens_at
    }

    /// Whether a predecoded instruction tells enough.
    #[inline(always)]
    pub(crate) fn passes(&self, i: &Predecoded) -> bool {
        i.registers() & self.interest() == 0 || i.has_effects()
    }

    /// Looks at a predecoded instruction that passes and is no branch.
    #[inline(always)]
    pub(crate) fn pass(&mut self, i: &Predecoded, ip: u64) {
        self.arrive(ip);
        if i.registers() & self.interest() != 0 {
            self.pass_named(i, ip);
        }
    }

    /// Looks at a return.
    #[inline(always)]
    pub(crate) fn leave(&mut self, ip: u64) {
        self.found.leaves |= self.unused;
        self.branch(ip, FlowControl::Return, 0);
    }

    /// Looks at a direct branch.
    #[inline(always)]
    pub(crate) fn branch(&mut self, ip: u64, flow: FlowControl, target: u64) {
        (self.rax_decided, self.r10_decided) = (true, true);
        // What most branches come to in `follow_r10`.
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
    }

    /// Looks at a predecoded instruction that is no branch and names a register that is followed.
    fn pass_named(&mut self, i: &Predecoded, ip: u64) {
        let effects = i.effects();
        let rax = Uses::from(&effects, 1 << predecode::RAX);
        if !self.rax_decided || !self.r10_decided {
            let r10 = Uses::from(&effects, 1 << 10);
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

    /// `flow` is the instruction's flow control.
    pub fn look(&mut self, i: &Instruction, flow: FlowControl, factory: &mut InstructionInfoFactory) {
        let named = named(i);
        if !(self.rax_decided && self.r10_decided) {
            let branches = flow != FlowControl::Next;
            let mut is_dead = |register, bit, decided: &mut bool| {
                if *decided || branches || names_all(i) && named & bit == 0 {
                    *decided |= branches;
                    return false;
                }
                Uses::of(i, register, factory).decides(decided)
            };
            self.found.rax_dead |= is_dead(Register::RAX, RAX, &mut self.rax_decided);
            self.found.r10_dead |= is_dead(Register::R10, R10, &mut self.r10_decided);
        }
        match flow {
            // An indirect jump may be a switch, and proves nothing.
            FlowControl::IndirectCall => {
                self.found.calls_unknown = true;
                self.found.follows_pointers = true;
            }
            FlowControl::IndirectBranch => {
                self.found.takes_r10 = true;
                self.found.follows_pointers = true;
            }
            FlowControl::Return => self.found.leaves |= self.unused,
            _ => {}
        }
        // Its fourth argument.
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
    }

    /// Notes what an instruction does with r10 or r11.
    fn note(&mut self, bit: u8, uses: &Uses, is_push: bool, ip: u64, flow: FlowControl, target: Option<u64>) {
        self.found.names |= bit;
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

/// What most functions begin with: instructions that use no register but the stack pointer and those that
/// they name. To ask iced for all registers takes longer than to decode.
fn names_all(i: &Instruction) -> bool {
    use Mnemonic::{Add, And, Cmp, Endbr64, Lea, Mov, Movsx, Movsxd, Movzx, Or, Push, Sub, Test, Xor};
    matches!(
        i.mnemonic(),
        Add | And | Cmp | Endbr64 | Lea | Mov | Movsx | Movsxd | Movzx | Or | Push | Sub | Test | Xor
    )
}

/// Which of r10, r11 and rax an instruction names.
fn named(i: &Instruction) -> u8 {
    let part_of = |register: Register| PART_OF[register as usize];
    part_of(i.op0_register())
        | part_of(i.op1_register())
        | part_of(i.op2_register())
        | part_of(i.memory_base())
        | part_of(i.memory_index())
}

/// Whether an instruction names r11.
pub(crate) fn names_r11(i: &Instruction) -> bool {
    named(i) & R11 != 0
}

struct Uses {
    /// Also where only a part is written, and the rest stays.
    reads: bool,
    /// All of it, in any case.
    overwrites: bool,
    /// Some of it, perhaps.
    changes: bool,
}

impl Uses {
    /// Whether this is the first use that decides whether a register need not be kept, and it need not.
    fn decides(&self, decided: &mut bool) -> bool {
        let is_dead = !*decided && self.overwrites && !self.reads;
        *decided |= self.overwrites || self.reads;
        is_dead
    }

    /// What becomes of the registers in a set of one.
    fn from(effects: &Effects, register: u16) -> Uses {
        Uses {
            reads: effects.reads & register != 0,
            overwrites: effects.overwrites & register != 0,
            changes: effects.changes & register != 0,
        }
    }

    fn of(i: &Instruction, register: Register, factory: &mut InstructionInfoFactory) -> Uses {
        let mut uses = Uses { reads: false, overwrites: false, changes: false };
        for used in factory.info(i).used_registers() {
            if used.register().full_register() != register {
                continue;
            }
            // A 32-bit write clears the upper half.
            let whole = used.register().size() >= 4;
            let access = used.access();
            uses.changes |= !matches!(
                access,
                OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read | OpAccess::CondRead
            );
            match access {
                OpAccess::Write if whole => uses.overwrites = true,
                OpAccess::None | OpAccess::NoMemAccess => {}
                _ => uses.reads = true,
            }
        }
        uses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn scan(bytes: &[u8]) -> Registers {
        let mut scan = Scan::new(0x1000, bytes.len() as u64);
        let mut factory = InstructionInfoFactory::new();
        for i in &mut Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE) {
            scan.look(&i, i.flow_control(), &mut factory);
        }
        // Callers keep values where they can.
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
    fn r11_is_dead_on_exit_where_its_last_value_was_used() {
        let dead = |bytes: &[u8]| scan(bytes).dead_on_exit() & R11 != 0;
        assert!(dead(&[0x41, 0x89, 0xfb, 0x44, 0x89, 0xd8, 0xc3])); // mov r11d,edi; mov eax,r11d; ret
        assert!(!dead(&[0x41, 0x89, 0xfb, 0xc3])); // mov r11d,edi; ret: a result
        assert!(!dead(&[0x41, 0x89, 0xfb, 0x44, 0x89, 0xd8, 0x49, 0x01, 0xfb, 0xc3])); // ...; add r11,rdi; ret
        assert!(dead(&[0xff, 0xd7, 0xc3])); // call rdi
        assert!(!dead(&[0x89, 0xf8, 0xc3])); // mov eax,edi
    }
}
