//! Functions whose last instruction is neither a jump nor a return, so that control runs on into the next
//! function.
//!
//! This is not a call: no instruction has pushed a return address or jumped to the function's start. The thunk of the next
//! function recognises it by the exit label of the first one (`decide/uncalled.rs`). Without that label it counts, and the injector
//! subtracts the count again when it reads the counters. Both rely on the facts found here.

use crate::flow::facts::Flow;
use crate::flow::padding::is_padding;
use gprofinject_image::x86::{falls_through, has_branch, is_call, is_nop};
use gprofinject_image::{Function, FunctionKind, Image};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use serde::{Deserialize, Serialize};

/// Control may run on from one function into another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fall {
    /// Address of the function that control runs into.
    pub into: u64,
    /// Address of the function from which control comes. It ends directly before the other one.
    pub from: u64,
    /// Whether every run of the function in front reaches the next one, because there is no other way out
    /// of it.
    pub always: bool,
    /// Whether the function in front has indirect jumps, which may lead anywhere.
    pub jumps_anywhere: bool,
}

/// Returns the index of the function that runs on into function `index`, if there is one.
pub(crate) fn before(image: &Image, flow: &Flow, index: usize) -> Option<usize> {
    let before = index.checked_sub(1).filter(|&before| flow.functions[before].runs_on)?;
    let (f, next) = (&image.functions[before], &image.functions[index]);
    let end = f.address + f.size;
    let adjacent = end == next.address || is_padding(image, flow, end, next.address, next.address);
    let known = !matches!(f.kind, FunctionKind::Cold(_)) && !flow.functions[before].undecodable;
    (adjacent && known && comes_to_its_end(image, f)).then_some(before)
}

/// Returns whether control can reach the function's last instruction. In assembly without symbol sizes,
/// the padding counts as part of the function.
pub(crate) fn comes_to_its_end(image: &Image, f: &Function) -> bool {
    let Some(code) = image.code_at(f.address, f.size) else { return false };
    let mut furthest = f.address;
    // The address at which padding begins that no instruction before it runs into.
    let mut padding = None;
    for i in Decoder::with_ip(64, code, f.address, DecoderOptions::NONE).into_iter() {
        if has_branch(&i) && i.near_branch_target() < f.address + f.size {
            furthest = furthest.max(i.near_branch_target());
        }
        if !is_nop(&i) {
            padding = (!falls_through(&i)).then(|| i.next_ip());
        }
    }
    padding.is_none_or(|padding| furthest >= padding)
}

/// Returns whether control reaches the function only by running into it: nothing calls it, jumps to it or
/// contains its address.
pub(crate) fn is_no_start(image: &Image, flow: &Flow, index: usize) -> bool {
    let address = image.functions[index].address;
    // The last test decodes a function, so it comes last.
    !flow.is_taken(address)
        && flow.indirect_in(address, address + 1).is_empty()
        && flow.branches_into(index, address + 1).iter().all(|b| b.function as usize == index)
        && before(image, flow, index).is_some()
}

/// Returns all falls, sorted by the function that control runs into.
pub(crate) fn all(image: &Image, flow: &Flow) -> Vec<Fall> {
    let falls = (0..image.functions.len()).filter_map(|index| {
        let f = &image.functions[before(image, flow, index)?];
        let code = image.code_at(f.address, f.size)?;
        let instructions = || Decoder::with_ip(64, code, f.address, DecoderOptions::NONE).into_iter();
        let mut ways = instructions().filter(|i| leaves(image, i));
        Some(Fall {
            into: image.functions[index].address,
            from: f.address,
            always: ways.next().is_none(),
            jumps_anywhere: instructions().any(|i| i.flow_control() == FlowControl::IndirectBranch),
        })
    });
    falls.collect()
}

/// Returns whether control may leave the function by the instruction, other than by a call that returns.
fn leaves(image: &Image, i: &Instruction) -> bool {
    match i.flow_control() {
        FlowControl::Next => false,
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            i.op0_kind() != OpKind::NearBranch64
                || image.function_at(i.near_branch_target()) != image.function_at(i.ip())
        }
        _ => !is_call(i),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TEXT, image};
    use gprofinject_image::ElfType;

    #[test]
    fn running_on_and_leaving() {
        // After a return, there is only padding.
        // add edi, 1; nop | ret; nop | test edi, edi; je +1; nop | nop | je +2; jmp rax; nop | ret
        let parts: [&[u8]; 6] = [
            &[0x83, 0xc7, 1, 0x90],
            &[0xc3, 0x90],
            &[0x85, 0xff, 0x74, 1, 0x90],
            &[0x90],
            &[0x74, 2, 0xff, 0xe0, 0x90],
            &[0xc3],
        ];
        let code = parts.concat();
        let program = image(ElfType::Dyn, TEXT, &code, &parts.map(<[u8]>::len));
        let flow = Flow::of(&program, true);
        let falls: Vec<_> = all(&program, &flow)
            .iter()
            .map(|f| (f.from - TEXT, f.into - TEXT, f.always, f.jumps_anywhere))
            .collect();
        let expected =
            [(0, 4, true, false), (6, 11, false, false), (11, 12, true, false), (12, 17, false, true)];
        assert_eq!(falls, expected);
        assert!((0..6).all(|index| !is_no_start(&program, &flow, index)), "their addresses are taken");
    }
}
