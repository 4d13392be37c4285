//! Labels inside functions whose addresses instructions compute.
//!
//! An instruction may compute the address of a label in order to jump there later (`lea rdx, [label]; jmp
//! rdx`), or in order to read the word there. The analysis does not follow which of the two happens, so
//! each such label counts as one that control may enter.
//!
//! One use is known not to enter the label. Position-independent code of the medium and large code models (`-mcmodel=large`)
//! computes the address of the global offset table as the sum of a label and a 64-bit constant (System V ABI for AMD64,
//! section "Position-Independent Function Prologue"):
//!
//! ```text
//! label: lea     rbx, [label]
//!        movabs  r11, _GLOBAL_OFFSET_TABLE_ - label
//!        add     rbx, r11
//! ```

use crate::flow::branch::NEAR;
use gprofinject_image::{Function, Image};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// The bytes of a function that are searched for computations of the global offset table's address. The
/// prologue contains the computation, and the label is among its first [`NEAR`] bytes.
const SEARCHED: u64 = 2 * NEAR;

/// Returns the labels that control may enter: those elements of `taken` that lie inside a function, near
/// its start. `taken` has the sorted addresses that instructions compute or read or that data contains,
/// each once per reference.
pub(crate) fn entered(image: &Image, taken: &[u64]) -> Vec<u64> {
    let mut functions = image.functions.iter().peekable();
    let mut entered = Vec::new();
    for references in taken.chunk_by(|a, b| a == b) {
        let label = references[0];
        while functions.next_if(|f| f.address + f.size.max(1) <= label).is_some() {}
        let Some(f) = functions.peek() else { break };
        let is_near = label > f.address && label - f.address < NEAR;
        if is_near && table_computations(image, f, label) < references.len() {
            entered.push(label);
        }
    }
    entered
}

/// Returns how many instructions near the start of the function compute the address of `label` only in
/// order to add a 64-bit constant to it. Any other instruction that names a register with the address
/// counts as another use of it.
fn table_computations(image: &Image, f: &Function, label: u64) -> usize {
    let Some(bytes) = image.code_at(f.address, f.size.min(SEARCHED)) else { return 0 };
    let (mut labels, mut constants) = (Registers::default(), Registers::default());
    // Registers that still hold the label after it has been added to a constant in another register.
    let mut left = Registers::default();
    let mut computations: usize = 0;
    for instruction in &mut Decoder::with_ip(64, bytes, f.address, DecoderOptions::NONE) {
        if instruction.is_invalid() {
            break;
        }
        let (first, second) = (instruction.op0_register(), instruction.op1_register());
        let named = named(&instruction);
        let overwritten = overwritten(&instruction);
        // A label that is still in a register and used once more may be a jump target.
        computations = computations.saturating_sub(left.and(named.without(overwritten)).len());
        let adds = matches!(instruction.code(), Code::Add_rm64_r64 | Code::Add_r64_rm64)
            && instruction.op_count() == 2
            && first.is_gpr64()
            && second.is_gpr64();
        if adds && labels.contains(first) && constants.contains(second) {
            computations += 1;
        } else if adds && constants.contains(first) && labels.contains(second) {
            computations += 1;
            left.insert(second);
            (labels, constants) = (labels.without(named), constants.without(named));
            continue;
        }
        for set in [&mut labels, &mut constants, &mut left] {
            *set = set.without(named);
        }
        match instruction.code() {
            Code::Mov_r64_imm64 => constants.insert(first),
            Code::Lea_r64_m
                if instruction.is_ip_rel_memory_operand() && instruction.ip_rel_memory_address() == label =>
            {
                labels.insert(first)
            }
            _ => {}
        }
        if instruction.flow_control() != FlowControl::Next {
            let kept = match instruction.flow_control() {
                FlowControl::Call | FlowControl::IndirectCall => left.without(CALLER_SAVED),
                FlowControl::Return => Registers::default(),
                _ => left,
            };
            computations = computations.saturating_sub(kept.len());
            (labels, constants, left) = Default::default();
        }
    }
    computations
}

/// Returns the registers that the instruction names, as operands or in an address.
fn named(instruction: &Instruction) -> Registers {
    let mut named = Registers::default();
    for n in (0..instruction.op_count()).filter(|&n| instruction.op_kind(n) == OpKind::Register) {
        named.insert(instruction.op_register(n));
    }
    named.insert(instruction.memory_base());
    named.insert(instruction.memory_index());
    named
}

/// Returns the register that the instruction writes as a whole without reading it.
fn overwritten(instruction: &Instruction) -> Registers {
    let mut written = Registers::default();
    let register = instruction.op0_register();
    let writes = matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Lea | Mnemonic::Pop);
    if writes && (register.is_gpr32() || register.is_gpr64()) {
        written.insert(register);
    }
    let mut read = Registers::default();
    read.insert(instruction.memory_base());
    read.insert(instruction.memory_index());
    if instruction.op1_kind() == OpKind::Register {
        read.insert(instruction.op1_register());
    }
    written.without(read)
}

/// The general purpose registers that a callee need not preserve (System V ABI for AMD64, figure "Register
/// Usage").
const CALLER_SAVED: Registers = Registers(0b0000_1111_1100_0111);

/// A set of general purpose registers. A partial register counts as the whole one.
#[derive(Clone, Copy, Default)]
struct Registers(u16);

impl Registers {
    fn bit(register: Register) -> u16 {
        if register.is_gpr() { 1 << register.full_register().number() } else { 0 }
    }

    fn insert(&mut self, register: Register) {
        self.0 |= Self::bit(register);
    }

    fn contains(self, register: Register) -> bool {
        self.0 & Self::bit(register) != 0
    }

    fn and(self, other: Registers) -> Registers {
        Registers(self.0 & other.0)
    }

    fn without(self, other: Registers) -> Registers {
        Registers(self.0 & !other.0)
    }

    fn len(self) -> usize {
        self.0.count_ones() as usize
    }
}
