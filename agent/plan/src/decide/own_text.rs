//! Recognises programs that read their own code, and would find hooks in it.
//!
//! A program that computes a checksum of its code needs to know where the code begins and ends. Linkers
//! define `etext` and `__executable_start` only for programs that refer to them. So a program whose code
//! takes the addresses of both, or of the end and, close by, of some function, is assumed to check itself.
//! The end alone is not enough: garbage collectors take it for the beginning of data. Neither is the start,
//! which is the address of the ELF header. A program that finds its code in another way (by pointers to
//! functions, `dl_iterate_phdr`, `/proc/self/maps`) is not recognised.
//!
//! The dynamic linker takes both addresses too, and only to enter its own extent among those of the libraries.

use crate::decide::agents;
use crate::x86::template::kind::Role;
use gprofinject_image::{ElfType, Function, Image};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind};

/// The C library's function that starts a `-pg` program. It passes both addresses to the profiler, which
/// does not read the code.
const GMON_START: &str = "__gmon_start__";

/// Returns why the program seems to read its own code, as text for the user, or `None` if it does not.
pub(crate) fn reader(image: &Image, role: Role) -> Option<String> {
    if let Some(module) = &image.facts.checker {
        return Some(format!("{module}'s FIPS module in it checks its own code"));
    }
    if role.is_library() && agents::is_dynamic_linker(image) {
        return None;
    }
    // In a `-pg` program, monstartup takes both addresses for the histogram.
    if image.facts.profiling.controls {
        return None;
    }
    let end = image.facts.marks.end?;
    let start = image.facts.marks.start;
    let mut taken =
        Taken { start: image.facts.marks.start_in_data, end: image.facts.marks.end_in_data, both: false };
    for function in image.functions.iter().filter(|f| f.names().all(|name| name != GMON_START)) {
        taken.look(image, function, start, end);
    }
    (taken.both || taken.start && taken.end)
        .then(|| "it takes the addresses of its code's start and end, and may check that code".to_owned())
}

/// Which addresses the program's code takes.
struct Taken {
    /// Whether the code takes the address of the mark at the start.
    start: bool,
    /// Whether it takes the address of the mark at the end.
    end: bool,
    /// Whether it takes the address of the end mark and, close by, some address of code, which may be
    /// where a check begins.
    both: bool,
}

/// The largest number of instructions between two addresses that are used together, such as the arguments
/// of one call or the bounds of one loop. The start-up code of a garbage collector also takes the end of
/// the code and the addresses of many functions, but not that close together.
const CLOSE: u32 = 24;

impl Taken {
    /// Looks for the addresses in a function's instructions.
    fn look(&mut self, image: &Image, function: &Function, start: Option<u64>, end: u64) {
        let bytes = image.code_at(function.address, function.size).unwrap_or_default();
        let mut decoder = Decoder::with_ip(64, bytes, function.address, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut number = 0_u32;
        let (mut code_at, mut end_at) = (None, None);
        while decoder.can_decode() {
            decoder.decode_out(&mut instruction);
            number += 1;
            for address in addresses(&instruction, image.elf_type == ElfType::Exec) {
                self.start |= start == Some(address);
                if address == end {
                    (self.end, end_at) = (true, Some(number));
                } else if image.is_code(address) {
                    code_at = Some(number);
                } else {
                    continue;
                }
                let distance = code_at.zip(end_at).map(|(code, end): (u32, u32)| code.abs_diff(end));
                self.both |= distance.is_some_and(|distance| distance <= CLOSE);
            }
        }
    }
}

/// Returns the addresses that an instruction computes (`lea rax, [rip+etext]`) or, in code for a fixed place,
/// contains (`mov eax, etext`; `movzx eax, byte [rax+__executable_start]`).
fn addresses(instruction: &Instruction, fixed: bool) -> impl Iterator<Item = u64> + '_ {
    (0..instruction.op_count()).filter_map(move |operand| match instruction.op_kind(operand) {
        OpKind::Memory if instruction.is_ip_rel_memory_operand() => {
            (instruction.code() == Code::Lea_r64_m).then(|| instruction.ip_rel_memory_address())
        }
        OpKind::Memory if fixed => Some(instruction.memory_displacement64()),
        OpKind::Immediate32 if fixed => Some(u64::from(instruction.immediate32())),
        OpKind::Immediate32to64 if fixed => Some(instruction.immediate32to64() as u64),
        OpKind::Immediate64 if fixed => Some(instruction.immediate64()),
        _ => None,
    })
}
