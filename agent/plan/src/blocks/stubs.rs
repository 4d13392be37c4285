//! Stubs of the procedure linkage table, which lead from a function to one in another module.

use crate::blocks::steps::{Steps, Way};
use gprofinject_image::Image;
use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic};

/// Returns the number of instructions of the stub to which a step leads, or 0 if it leads to no stub:
/// `[endbr64] [bnd] jmp [rip+word]` in no function (System V ABI, 5.2; with -z ibtplt, binutils/bfd/elfxx-x86.c). Before the word is
/// resolved, the jump leads to further instructions, which are not counted.
pub(super) fn instructions(image: &Image, steps: &Steps, step: usize) -> u32 {
    let target = match steps.list[step].way {
        Way::Call(to) | Way::CallWithOriginalReturn(Some(to)) | Way::Jump(to) => to,
        _ => return 0,
    };
    if steps.holds(target) || image.function_at(target).is_some() {
        return 0;
    }
    let bytes = image.code_at(target, 16).unwrap_or_default();
    let stub = Decoder::with_ip(64, bytes, target, DecoderOptions::NONE).into_iter();
    for (instruction, number) in stub.zip(1..3) {
        if instruction.code() == Code::Jmp_rm64 && instruction.is_ip_rel_memory_operand() {
            return number;
        }
        if instruction.mnemonic() != Mnemonic::Endbr64 {
            break;
        }
    }
    0
}
