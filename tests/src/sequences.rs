//! Random beginnings of functions, which contain everything that matters for their relocation: operands
//! relative to the instruction, branches of all kinds within and out of them, calls, unusual prefixes.

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind};

/// The addresses to which the generated instructions may lead.
pub struct Surroundings {
    /// The address of the first instruction.
    pub at: u64,
    /// The data to which operands relative to the instruction point.
    pub data: std::ops::Range<u64>,
}

/// Generates instructions.
pub struct Generator<R: FnMut() -> u64> {
    random: R,
}

/// Consecutive instructions.
pub struct Sequence {
    pub bytes: Vec<u8>,
    /// The offsets of the instructions.
    pub starts: Vec<u64>,
}

/// The number of attempts at one instruction, since random bytes often are none.
const TRIES: usize = 1000;

impl<R: FnMut() -> u64> Generator<R> {
    pub fn new(random: R) -> Self {
        Generator { random }
    }

    /// Returns a number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        ((self.random)() >> 16) % limit
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    pub fn word(&mut self) -> u64 {
        (self.random)()
    }

    /// Returns instructions of `least` bytes or a few more. A call ends them.
    pub fn sequence(&mut self, around: &Surroundings, least: usize) -> Sequence {
        let mut bytes: Vec<u8> = Vec::new();
        let mut starts = Vec::new();
        let mut instructions = Vec::new();
        while bytes.len() < least {
            let ip = around.at + bytes.len() as u64;
            let Some((instruction, mut encoded)) = self.instruction(ip) else { continue };
            self.aim_operand(&instruction, &mut encoded, around);
            starts.push(bytes.len() as u64);
            bytes.extend(&encoded);
            instructions.push(instruction);
            if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
                break;
            }
        }
        for instruction in &instructions {
            self.aim_branch(instruction, &mut bytes, &starts, around);
        }
        Sequence { bytes, starts }
    }

    fn instruction(&mut self, ip: u64) -> Option<(Instruction, Vec<u8>)> {
        for _ in 0..TRIES {
            let mut bytes = self.prefixes();
            bytes.extend(self.opcode());
            bytes.extend((0..15).map(|_| self.word() as u8));
            if self.below(4) == 0 {
                bytes.truncate(15);
            }
            let mut decoder = Decoder::with_ip(64, &bytes, ip, DecoderOptions::NONE);
            let instruction = decoder.decode();
            if !instruction.is_invalid() && is_repeatable(&instruction) {
                bytes.truncate(instruction.len());
                return Some((instruction, bytes));
            }
        }
        None
    }

    fn prefixes(&mut self) -> Vec<u8> {
        let mut prefixes = Vec::new();
        while self.below(6) == 0 {
            prefixes
                .push(self.pick(&[0x66, 0x66, 0x66, 0x67, 0xf2, 0xf3, 0xf3, 0xf0, 0x2e, 0x3e, 0x64, 0x65]));
        }
        if self.below(2) == 0 {
            prefixes.push(0x40 + self.below(16) as u8);
        }
        prefixes
    }

    /// Returns the opcode and perhaps a ModRM byte, which random bytes follow.
    fn opcode(&mut self) -> Vec<u8> {
        let any = self.word() as u8;
        // No base register, and a displacement of 32 bits.
        let relative = any & 0x38 | 5;
        match self.below(22) {
            0 => vec![any],
            1 => vec![0x0f, any],
            2 | 3 => vec![
                self.pick(&[0x01, 0x03, 0x09, 0x0b, 0x21, 0x2b, 0x31, 0x33, 0x39, 0x3b, 0x63, 0x69]),
                any,
            ],
            4 | 5 => vec![
                self.pick(&[0x80, 0x81, 0x83, 0x84, 0x85, 0x86, 0x88, 0x89, 0x8a, 0x8b, 0x8d, 0xc7]),
                any,
            ],
            6 => {
                vec![self.pick(&[
                    0x50, 0x53, 0x55, 0x56, 0x58, 0x5d, 0x68, 0x6a, 0x90, 0x9c, 0xb8, 0xb9, 0xc9, 0xfc,
                ])]
            }
            7 => vec![self.pick(&[0xa4, 0xa5, 0xa6, 0xa7, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf, 0x99, 0xf9])],
            8 | 9 => vec![
                self.pick(&[0x01, 0x03, 0x3b, 0x63, 0x80, 0x81, 0x83, 0x89, 0x8b, 0x8d, 0x8d, 0xc7]),
                relative,
            ],
            10 => vec![self.pick(&[0xf6, 0xf7, 0xfe, 0xff, 0xc0, 0xd3]), relative],
            11 => vec![
                0x0f,
                self.pick(&[0x10, 0x11, 0x28, 0x2e, 0x44, 0x6f, 0x7f, 0xaf, 0xb6, 0xba, 0xbe, 0xc2]),
                relative,
            ],
            12 => vec![0xc5, any, self.word() as u8, relative],
            13 => vec![0xc4, any, self.word() as u8, self.word() as u8, relative],
            14 => vec![0x62, any, self.word() as u8, self.word() as u8, self.word() as u8, relative],
            15 => vec![0x70 | any & 15],
            16 => vec![0x0f, 0x80 | any & 15],
            17 => vec![self.pick(&[0xe0, 0xe1, 0xe2, 0xe3, 0xe3])],
            18 => vec![self.pick(&[0xeb, 0xe9])],
            19 => match self.below(4) {
                0 => vec![0xc3],
                1 => vec![0xf3, 0x0f, 0x1e, 0xfa],
                2 => vec![0xff, any & 0xc7 | 0x20],
                _ => vec![0xff, any & 0xc7 | 0x30],
            },
            20 => match self.below(4) {
                0 | 1 => vec![0xe8],
                2 => vec![0xff, any & 0xc7 | 0x10],
                _ => vec![0xff, 0x15],
            },
            _ => vec![0x0f, self.pick(&[0x38, 0x3a]), any],
        }
    }

    /// Makes most operands point to something.
    fn aim_operand(&mut self, instruction: &Instruction, bytes: &mut [u8], around: &Surroundings) {
        let mut decoder = Decoder::with_ip(64, bytes, instruction.ip(), DecoderOptions::NONE);
        let decoded = decoder.decode();
        let offsets = decoder.get_constant_offsets(&decoded);
        if !offsets.has_displacement() || offsets.displacement_size() < 4 {
            return;
        }
        let at = offsets.displacement_offset();
        let displacement = if instruction.is_ip_rel_memory_operand() {
            let target = around.data.start + self.below(around.data.end - around.data.start - 64);
            target.wrapping_sub(instruction.next_ip()) as u32
        } else if self.below(8) == 0 {
            return;
        } else {
            self.below(0x200) as u32
        };
        bytes[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
    }

    /// Makes branches lead to other instructions of the sequence, near it, or far away.
    fn aim_branch(&mut self, i: &Instruction, bytes: &mut [u8], starts: &[u64], around: &Surroundings) {
        if !matches!(i.op0_kind(), OpKind::NearBranch64) {
            return;
        }
        let end = (i.next_ip() - around.at) as usize;
        let target = match self.below(4) {
            0 | 1 => self.pick(starts),
            // Addresses at which only an `int3` is.
            2 => bytes.len() as u64 + self.below(40),
            _ => 0_u64.wrapping_sub(1 + self.below(60)),
        };
        let displacement = target.wrapping_sub(end as u64);
        let short = i8::try_from(displacement as i64);
        match i.code() {
            code if code.is_jcc_near()
                || code.is_jmp_near()
                || code.is_call_near()
                || i.mnemonic() == Mnemonic::Xbegin =>
            {
                bytes[end - 4..end].copy_from_slice(&(displacement as u32).to_le_bytes());
            }
            _ => bytes[end - 1] = short.unwrap_or(0) as u8,
        }
    }
}

/// Whether the same state leads to the same result each time, and without the kernel's help.
fn is_repeatable(i: &Instruction) -> bool {
    const FLEETING: [Mnemonic; 14] = [
        Mnemonic::Rdtsc,
        Mnemonic::Rdtscp,
        Mnemonic::Rdrand,
        Mnemonic::Rdseed,
        Mnemonic::Cpuid,
        Mnemonic::Rdpid,
        Mnemonic::Rdpru,
        Mnemonic::Rdpmc,
        Mnemonic::Umwait,
        Mnemonic::Tpause,
        Mnemonic::Mwaitx,
        Mnemonic::Monitorx,
        // The result contains their own address.
        Mnemonic::Fnstenv,
        Mnemonic::Fnsave,
    ];
    let calls_kernel = matches!(i.flow_control(), FlowControl::Interrupt | FlowControl::Exception)
        || matches!(i.code(), Code::Syscall | Code::Sysenter | Code::Vmcall | Code::Vmmcall);
    let saves = matches!(
        i.mnemonic(),
        Mnemonic::Fxsave
            | Mnemonic::Fxsave64
            | Mnemonic::Xsave
            | Mnemonic::Xsave64
            | Mnemonic::Xsaveopt
            | Mnemonic::Xsaveopt64
            | Mnemonic::Xsavec
            | Mnemonic::Xsavec64
    );
    // Another trap, or another code segment.
    let far = matches!(
        i.mnemonic(),
        Mnemonic::Retf
            | Mnemonic::Iretq
            | Mnemonic::Iretd
            | Mnemonic::Iret
            | Mnemonic::Popfq
            | Mnemonic::Popf
    ) || i.op_kinds().any(|k| matches!(k, OpKind::FarBranch16 | OpKind::FarBranch32));
    let segment =
        (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && i.op_register(n).is_segment_register());
    !FLEETING.contains(&i.mnemonic()) && !calls_kernel && !saves && !far && !segment
}
