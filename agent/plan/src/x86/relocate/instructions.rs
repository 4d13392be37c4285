//! Relocates whole instructions.

use crate::x86::frames::Frames;
use crate::x86::jump::near_jump;
use crate::x86::relocate::call;
use crate::x86::relocate::call::Call;
use crate::x86::relocate::relocated::{Relocated, Unmovable};
use gprofinject_image::x86::{falls_through, has_branch, is_call, is_nop};
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, FlowControl, Instruction,
    InstructionBlock, Register,
};

/// Relocates the instructions in `bytes` from the address `from` to the address `to`, and adds a jump to the
/// rest of the function.
///
/// A branch from one of the instructions to another leads to the copy of its target. A branch to `start`, the
/// address of the function's first byte, leads to the first copy; an `endbr64` may lie between `start` and
/// `from`. `elsewhere` returns the new target for a jump or call at a given address, or `None` if the target
/// does not change, and `form` says how a call is made.
///
/// # Errors
///
/// Returns an error if an operand cannot be reached from `to`, or if an instruction cannot be encoded at
/// another address.
pub fn relocate(
    bytes: &[u8],
    from: u64,
    to: u64,
    start: u64,
    form: Call,
    elsewhere: &dyn Fn(u64) -> Option<u64>,
) -> Result<Relocated, Unmovable> {
    let mut instructions: Vec<Instruction> = Vec::with_capacity(8);
    // The index of each instruction with a RIP-relative operand, and the offset of its displacement in
    // `bytes`.
    let mut displacements: Vec<(usize, usize)> = Vec::with_capacity(4);
    let mut decoder = Decoder::with_ip(64, bytes, from, DecoderOptions::NONE);
    while decoder.can_decode() {
        let mut i = decoder.decode();
        if i.is_invalid() {
            return Err(Unmovable("not an instruction"));
        }
        let at = (i.ip() - from) as usize;
        if i.flow_control() != FlowControl::Next && is_ambiguous(&bytes[at..at + i.len()]) {
            return Err(Unmovable("processors disagree about its width"));
        }
        if i.is_ip_rel_memory_operand() {
            let at = (i.ip() - from) as usize + decoder.get_constant_offsets(&i).displacement_offset();
            displacements.push((instructions.len(), at));
        }
        if has_branch(&i) && !is_call(&i) {
            let target = if i.near_branch_target() == start { Some(from) } else { elsewhere(i.ip()) };
            i.set_near_branch64(target.unwrap_or(i.near_branch_target()));
        }
        instructions.push(i);
    }
    let end = from + bytes.len() as u64;
    let last_falls_through = instructions.last().is_none_or(falls_through);
    let call = instructions.pop_if(|last| is_call(last));
    let mut out = Relocated::with_room(bytes.len());
    if instructions.iter().any(|i| has_branch(i) || i.is_ip_rel_memory_operand() && !fits_as_is(i)) {
        encode_block(&instructions, call.as_ref(), bytes, from, to, &mut out)?;
    } else {
        copy(&instructions, &displacements, bytes, from, to, &mut out)?;
    }
    let mut frames = Frames::new();
    for (n, i) in instructions.iter().enumerate() {
        let after = instructions.get(n + 1).and_then(|next| out.offset_of((next.ip() - from) as u32));
        frames.step(i, after.unwrap_or(out.bytes.len() as u32));
    }
    match call {
        // The call would lead to overwritten bytes. A call of the start is fine, because it leads to the
        // patch.
        Some(call) if has_branch(&call) && (from + 1..end).contains(&call.near_branch_target()) => {
            return Err(Unmovable("a call into the instructions"));
        }
        Some(call) => {
            let emulation = call::append(&call, form, elsewhere(call.ip()), from, to, &mut out)?;
            frames.emulated_call(emulation);
        }
        None if last_falls_through => jump(end, to, &mut out)?,
        None => {}
    }
    out.frames = frames.code;
    Ok(out)
}

/// Copies instructions that do not depend on their addresses, and adds a jump to the rest of the function.
/// See [`relocate`].
///
/// # Errors
///
/// Returns an error if the rest of the function cannot be reached from `to`.
pub fn copied(bytes: &[u8], from: u64, to: u64) -> Result<Relocated, Unmovable> {
    let mut out = Relocated::with_room(bytes.len());
    out.bytes.extend_from_slice(bytes);
    let mut frames = Frames::new();
    for i in &mut Decoder::with_ip(64, bytes, from, DecoderOptions::NONE) {
        frames.step(&i, (i.next_ip() - from) as u32);
    }
    out.frames = frames.code;
    let rest = from + bytes.len() as u64;
    out.rest = bytes.is_empty().then_some(rest);
    jump(rest, to, &mut out)?;
    Ok(out)
}

/// Returns the total size in bytes of the nops at the start of the code.
pub fn leading_nops(code: &[u8]) -> usize {
    // Most code does not begin with a nop.
    if !matches!(code.first(), Some(0x90 | 0x66 | 0x0f | 0x2e)) {
        return 0;
    }
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let mut end = 0;
    while decoder.can_decode() && is_nop(&decoder.decode()) {
        end = decoder.position();
    }
    end
}

/// Returns whether a branch has an operand size prefix that no REX.W overrides. AMD's processors then read a
/// displacement of 16 bits, which also makes the instruction shorter; Intel's processors ignore the prefix.
pub(crate) fn is_ambiguous(branch: &[u8]) -> bool {
    let is_prefix =
        |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    let prefixes = &branch[..branch.iter().take_while(|b| is_prefix(b)).count()];
    // A REX prefix has no effect unless it is the last prefix.
    let wide = prefixes.last().is_some_and(|rex| (0x48..=0x4f).contains(rex));
    prefixes.contains(&0x66) && !wide
}

/// Returns whether the displacement has four bytes that can be adjusted in place. Operands with an address
/// size of 32 bits are left to the block encoder.
fn fits_as_is(i: &Instruction) -> bool {
    i.memory_base() == Register::RIP
}

/// Copies instructions without branches, and adjusts their RIP-relative operands.
fn copy(
    instructions: &[Instruction],
    displacements: &[(usize, usize)],
    bytes: &[u8],
    from: u64,
    to: u64,
    out: &mut Relocated,
) -> Result<(), Unmovable> {
    let end = instructions.last().map_or(from, Instruction::next_ip);
    out.bytes.extend_from_slice(bytes.get(..(end - from) as usize).ok_or(Unmovable("truncated"))?);
    out.map.extend(instructions.iter().map(|i| ((i.ip() - from) as u32, (i.ip() - from) as u32)));
    for &(index, hole) in displacements {
        // The list no longer contains a call that was the last instruction.
        let Some(i) = instructions.get(index) else { continue };
        let next = to.wrapping_add(i.next_ip() - from);
        let displacement = i.ip_rel_memory_address().wrapping_sub(next) as i64;
        let displacement =
            i32::try_from(displacement).map_err(|_| Unmovable("RIP-relative operand out of reach"))?;
        out.bytes[hole..hole + 4].copy_from_slice(&displacement.to_le_bytes());
    }
    Ok(())
}

/// Encodes instructions with branches. `call` is the call that follows them: branches to it lead to the end
/// of the encoded code.
fn encode_block(
    instructions: &[Instruction],
    call: Option<&Instruction>,
    bytes: &[u8],
    from: u64,
    to: u64,
    out: &mut Relocated,
) -> Result<(), Unmovable> {
    let options =
        BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS | BlockEncoderOptions::RETURN_RELOC_INFOS;
    let mut block = Vec::with_capacity(instructions.len() + 1);
    for i in instructions {
        let at = (i.ip() - from) as usize;
        block.push(if has_branch(i) || i.is_ip_rel_memory_operand() {
            *i
        } else {
            // These are copied byte by byte, because the encoder would drop redundant prefixes.
            let mut plain = Instruction::with_declare_byte(&bytes[at..at + i.len()])?;
            plain.set_ip(i.ip());
            plain
        });
    }
    if let Some(call) = call {
        // One byte represents the call during the encoding, and is removed afterwards.
        let mut label = Instruction::with(Code::Nopd);
        label.set_ip(call.ip());
        block.push(label);
    }
    let mut result = BlockEncoder::encode(64, InstructionBlock::new(&block, to), options)?;
    // For a branch whose target is out of reach, the encoder makes a jump through a word with the target's link address,
    // which is another address where a position-independent program runs.
    if !result.reloc_infos.is_empty() {
        return Err(Unmovable("the target of a branch is out of reach"));
    }
    if call.is_some() {
        result.code_buffer.pop();
    }
    for (i, &offset) in instructions.iter().zip(&result.new_instruction_offsets) {
        // An instruction that the encoder replaced by several, such as a `jrcxz` whose target is out of
        // reach, cannot be the target of a branch.
        if offset != u32::MAX {
            out.map.push(((i.ip() - from) as u32, offset));
        }
    }
    out.bytes = result.code_buffer;
    Ok(())
}

/// Appends a jump.
/// # Errors
/// The target is out of reach.
fn jump(target: u64, to: u64, out: &mut Relocated) -> Result<(), Unmovable> {
    let from = to.wrapping_add(out.bytes.len() as u64);
    out.bytes.extend_from_slice(&near_jump(from, target).ok_or(Unmovable("the code is out of reach"))?);
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use iced_x86::{Formatter, IntelFormatter};

    pub(crate) fn listing(bytes: &[u8], ip: u64) -> Vec<String> {
        let mut formatter = IntelFormatter::new();
        formatter.options_mut().set_hex_prefix("0x");
        formatter.options_mut().set_hex_suffix("");
        formatter.options_mut().set_rip_relative_addresses(false);
        Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE)
            .iter()
            .map(|i| {
                let mut text = String::new();
                formatter.format(&i, &mut text);
                text
            })
            .collect()
    }

    pub(crate) fn moved_to(bytes: &[u8], from: u64, to: u64, start: u64) -> Result<Relocated, Unmovable> {
        relocate(bytes, from, to, start, Call::Emulated, &|_| None)
    }

    #[test]
    fn jumps_can_be_redirected() {
        // jmp 0x2000
        let moved =
            relocate(&[0xe9, 0xfb, 0x0f, 0, 0], 0x1000, 0x9000, 0x1000, Call::Emulated, &|_| Some(0x9100))
                .unwrap();
        assert_eq!(listing(&moved.bytes, 0x9000), ["jmp 0x0000000000009100"]);
    }

    #[test]
    fn plain_and_rip_relative() {
        // push rbx; lea rdi,[rip+0x10] (0x1018)
        let moved = moved_to(&[0x53, 0x48, 0x8d, 0x3d, 0x10, 0, 0, 0], 0x1000, 0x9000, 0x1000).unwrap();
        assert_eq!(listing(&moved.bytes, 0x9000), ["push rbx", "lea rdi,[0x1018]", "jmp 0x0000000000001008"]);
        assert_eq!(moved.map, [(0, 0), (1, 1)]);
    }

    #[test]
    fn branches_inside_stay_inside_and_others_grow() {
        // dec edi; jne 0x1000; je 0x1040
        let moved = moved_to(&[0xff, 0xcf, 0x75, 0xfc, 0x74, 0x3a], 0x1000, 0x20_0000, 0x1000).unwrap();
        assert_eq!(
            listing(&moved.bytes, 0x20_0000),
            ["dec edi", "jne short 0x0000000000200000", "je 0x0000000000001040", "jmp 0x0000000000001006"]
        );
    }

    #[test]
    fn a_short_only_branch_jumps_over_a_jump() {
        // mov rcx,rdi; jrcxz 0x1040
        let moved = moved_to(&[0x48, 0x89, 0xf9, 0xe3, 0x3b], 0x1000, 0x20_0000, 0x1000).unwrap();
        let code = listing(&moved.bytes, 0x20_0000);
        assert_eq!(code.len(), 5, "{code:?}");
        assert_eq!(
            (code[3].as_str(), code[4].as_str()),
            ("jmp 0x0000000000001040", "jmp 0x0000000000001005")
        );
        assert_eq!(moved.map, [(0, 0)]);
    }

    #[test]
    fn nops_are_distinguished_from_similar_instructions() {
        assert_eq!(leading_nops(&[0x66, 0x0f, 0x1f, 0x44, 0, 0, 0x90, 0x66, 0x90, 0x55]), 9);
        // The cases are: pause; xchg r8, rax; push rbp.
        for code in [&[0xf3, 0x90][..], &[0x49, 0x90], &[0x55, 0x90], &[]] {
            assert_eq!(leading_nops(code), 0, "{code:x?}");
        }
    }

    #[test]
    fn no_jump_behind_a_return() {
        let moved = moved_to(&[0x31, 0xc0, 0xc3], 0x1000, 0x9000, 0x1000).unwrap();
        assert_eq!(listing(&moved.bytes, 0x9000), ["xor eax,eax", "ret"]);
    }

    #[test]
    fn plain_instructions_keep_their_bytes() {
        // xchg r8, rax with a prefix that makes some decoders read it as `pause`; jmp 0x1040
        let moved = moved_to(&[0xf3, 0x49, 0x90, 0xeb, 0x3b], 0x1000, 0x20_0000, 0x1000).unwrap();
        assert_eq!(moved.bytes[..4], [0xf3, 0x49, 0x90, 0xe9]);
    }

    #[test]
    fn branches_of_sixteen_bits_stay() {
        let jump: &[u8] = &[0x66, 0xe9, 0, 0, 0, 0];
        for code in [
            jump,
            &[0x66, 0x74, 2],
            &[0x66, 0xe8, 0, 0, 0, 0],
            &[0x45, 0x66, 0x72, 0],
            &[0x31, 0xc0, 0x66, 0xc3],
        ] {
            assert!(moved_to(code, 0x1000, 0x9000, 0x1000).is_err(), "{code:x?}");
        }
        // data16 data16 rex.W call, of the general dynamic TLS model.
        assert!(moved_to(&[0x66, 0x66, 0x48, 0xe8, 0, 0, 0, 0], 0x1000, 0x9000, 0x1000).is_ok());
    }

    #[test]
    fn operands_out_of_reach_are_an_error() {
        assert!(moved_to(&[0x48, 0x8d, 0x3d, 0x10, 0, 0, 0], 0x1000, 0x7000_0000_0000, 0x1000).is_err());
    }

    #[test]
    fn code_out_of_reach_is_an_error() {
        // push rbx; ret. Nothing has to lead back from a return.
        assert!(moved_to(&[0x53], 0x1000, 0x1_0000_0000, 0x1000).is_err());
        assert!(moved_to(&[0x53, 0xc3], 0x1000, 0x1_0000_0000, 0x1000).is_ok());
        assert!(copied(&[0x53], 0x1000, 0x1_0000_0000).is_err());
        assert!(copied(&[0x53], 0x1000, 0x7000_0000).is_ok());
        // je 0x1040; ret
        assert!(moved_to(&[0x74, 0x3e, 0xc3], 0x1000, 0x1_0000_0000, 0x1000).is_err());
    }
}
