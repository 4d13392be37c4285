//! Compares the predecoder with iced.

use crate::x86::predecode::decode::{Base, Predecoded, predecode};
use crate::x86::predecode::effects::Effects;
use crate::x86::predecode::fields::{Class, RSP, WINDOW};
use crate::x86::predecode::skim::{Interest, Skimmed, skim};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register,
};
use std::ops::Range;

const IP: u64 = 0x40_0000;
/// The addresses of a program with a fixed load address.
const FIXED: Range<u64> = 0x40_0000..0x50_0000;

/// Compares the result of predecoding the instruction at the start of the window, if there is one, with that
/// of iced.
fn compare(
    window: &[u8; WINDOW],
    addresses: &Range<u64>,
    factory: &mut InstructionInfoFactory,
) -> Option<()> {
    let Some(quick) = predecode(window) else {
        assert_eq!(skim(window, Interest::NONE, addresses, |_, _| true), Skimmed::Other, "{window:02x?}");
        return None;
    };
    let mut decoder = Decoder::with_ip(64, window, IP, DecoderOptions::NONE);
    let i = decoder.decode();
    let what = format!("{window:02x?}: {:?} of {} bytes, {:?}", quick.class, quick.len, i.code());
    assert!(!i.is_invalid(), "{what}");
    assert_eq!(usize::from(quick.len), i.len(), "{what}");
    let flow = match quick.class {
        Class::Next | Class::Lea | Class::Push | Class::Pop => FlowControl::Next,
        Class::Call => FlowControl::Call,
        Class::Jump => FlowControl::UnconditionalBranch,
        Class::Conditional => FlowControl::ConditionalBranch,
        Class::Return => FlowControl::Return,
    };
    assert_eq!(flow, i.flow_control(), "{what}");
    compare_skimmed(window, &quick, addresses, &what);
    if matches!(quick.class, Class::Call | Class::Jump | Class::Conditional) {
        assert_eq!(i.op0_kind(), OpKind::NearBranch64, "{what}");
        assert_eq!(quick.target(IP), i.near_branch_target(), "{what}");
        let offsets = decoder.get_constant_offsets(&i);
        assert_eq!(usize::from(quick.width()), offsets.immediate_size(), "{what}");
        return Some(());
    }
    if quick.class == Class::Return {
        assert_eq!(i.code(), Code::Retnq, "{what}");
        return Some(());
    }
    assert_eq!(quick.class == Class::Lea, i.code() == Code::Lea_r64_m, "{what}");
    assert!(i.code() != Code::Syscall, "{what}");
    let no_index = i.memory_index() == Register::None;
    let base = match i.memory_base() {
        Register::RIP => Base::Rip,
        base if base.is_gpr64() && no_index => Base::Register(base.number() as u8),
        _ => Base::None,
    };
    assert_eq!(quick.base(), base, "{what}");
    match base {
        Base::None => {}
        Base::Rip => assert_eq!(quick.target(IP), i.ip_rel_memory_address(), "{what}"),
        Base::Register(_) => assert_eq!(quick.displacement() as u64, i.memory_displacement64(), "{what}"),
    }
    assert_eq!(quick.class == Class::Push, i.mnemonic() == Mnemonic::Push, "{what}");
    assert_eq!(quick.class == Class::Pop, i.mnemonic() == Mnemonic::Pop, "{what}");
    if matches!(quick.class, Class::Push | Class::Pop) {
        let pushed = Some(i.op0_register()).filter(|&register| register != Register::None);
        let number = pushed.map(|register| register.full_register().number() as u8);
        assert_eq!(quick.opcode_register(), number, "{what}");
    }
    let mut registers = 0;
    for used in factory.info(&i).used_registers() {
        let register = used.register().full_register();
        if register.is_gpr64() {
            registers |= 1 << register.number();
            assert!(quick.registers() >> register.number() & 1 != 0, "{what}: {used:?}");
            assert!(quick.operands() & !quick.registers() == 0, "{what}: {used:?}");
        }
    }
    for operand in (0..i.op_count()).filter(|&operand| i.op_kind(operand) == OpKind::Register) {
        let register = i.op_register(operand).full_register();
        let is_operand = quick.operands() >> (register.number() & 15) & 1 != 0;
        assert!(!register.is_gpr64() || is_operand, "{what}: {register:?}");
    }
    for wide in [false, true] {
        let immediate = match i.op1_kind() {
            _ if i.op_count() != 2 => None,
            OpKind::Immediate32 if !wide => Some(u64::from(i.immediate32())),
            OpKind::Immediate32to64 if !wide => Some(i.immediate32to64() as u64),
            OpKind::Immediate64 => Some(i.immediate64()),
            _ => None,
        };
        assert_eq!(quick.immediate(wide), immediate, "{what}");
    }
    compare_effects(&quick, &i, factory, &what);
    compare_plain(window, &quick, addresses, registers, &what);
    Some(())
}

/// Compares the effects of an instruction on registers.
fn compare_effects(quick: &Predecoded, i: &Instruction, factory: &mut InstructionInfoFactory, what: &str) {
    if !quick.has_effects() {
        return;
    }
    let mut effects = Effects::default();
    for used in factory.info(i).used_registers() {
        let register = used.register().full_register();
        // No field of `push` and `pop` names the stack pointer.
        if !register.is_gpr64() || i.is_stack_instruction() && register == Register::RSP {
            continue;
        }
        let bit = 1 << register.number();
        match used.access() {
            OpAccess::None | OpAccess::NoMemAccess => {}
            OpAccess::Write if used.register().size() >= 4 => {
                effects.overwrites |= bit;
                effects.changes |= bit;
            }
            OpAccess::Read | OpAccess::CondRead => effects.reads |= bit,
            _ => {
                effects.reads |= bit;
                effects.changes |= bit;
            }
        }
    }
    let mut found = quick.effects();
    if i.is_stack_instruction() {
        let all = |bits: u16| bits & !(1 << RSP);
        let Effects { reads, overwrites, changes } = found;
        found = Effects { reads: all(reads), overwrites: all(overwrites), changes: all(changes) };
    }
    assert_eq!(found, effects, "{what}");
    if matches!(quick.class, Class::Push | Class::Pop) {
        return;
    }
    let is_changed = !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test);
    let result = (i.op0_kind() == OpKind::Register && is_changed).then(|| i.op0_register().full_register());
    let number = result.map(|register| register.number() as u8);
    assert_eq!(quick.result().map(|result| result.register), number, "{what}");
    let is_wide = i.op0_register().is_gpr64();
    let sum = match i.mnemonic() {
        _ if !is_wide => None,
        Mnemonic::Mov if i.op1_kind() == OpKind::Register => Some((i.op1_register(), 0)),
        Mnemonic::Lea if i.memory_index() == Register::None && i.memory_base().is_gpr64() => {
            Some((i.memory_base(), i.memory_displacement64() as i32))
        }
        Mnemonic::Add if i.op1_kind() != OpKind::Register && i.op1_kind() != OpKind::Memory => {
            Some((i.op0_register(), i.immediate(1) as i32))
        }
        Mnemonic::Sub if i.op1_kind() != OpKind::Register && i.op1_kind() != OpKind::Memory => {
            Some((i.op0_register(), (i.immediate(1) as i32).wrapping_neg()))
        }
        _ => None,
    };
    let sum = sum.map(|(register, number)| (register.number() as u8, number));
    assert_eq!(quick.result().and_then(|result| result.sum), sum, "{what}");
    if i.op_count() > 0 && i.memory_base() != Register::None && i.mnemonic() != Mnemonic::Lea {
        assert_eq!(quick.memory_len(), i.memory_size().size() as i32, "{what}");
    }
    assert_eq!(quick.is_wide_load(), i.code() == Code::Mov_r64_rm64, "{what}");
    assert_eq!(quick.is_narrow_lea(), i.code() == Code::Lea_r32_m, "{what}");
}

/// Returns the length of a plain instruction, or 0 if the instruction is not plain.
fn plain_len(
    window: &[u8; WINDOW],
    interest: Interest,
    addresses: &Range<u64>,
    is_harmless: impl Fn(u8, i32) -> bool,
) -> usize {
    match skim(window, interest, addresses, is_harmless) {
        Skimmed::Plain(len) => len,
        _ => 0,
    }
}

/// Checks that skimming yields the same facts as predecoding, whichever registers are followed.
fn compare_skimmed(window: &[u8; WINDOW], quick: &Predecoded, addresses: &Range<u64>, what: &str) {
    let sets = [0, 1, 1 << 4, 1 << 5, 1 << 4 | 1 << 5, 0xc00, 0xc11, 1 << 7, 0xff];
    for (stack, others) in sets.into_iter().flat_map(|stack| sets.map(|others| (stack, others))) {
        match skim(window, Interest { stack, others }, addresses, |_, _| false) {
            // See `compare_plain`.
            Skimmed::Plain(_) | Skimmed::Other => {}
            Skimmed::Relative { len, displacement, is_lea } => {
                let target = (IP + u64::from(len)).wrapping_add_signed(displacement.into());
                let class = if is_lea { Class::Lea } else { Class::Next };
                let found = (quick.class, quick.base(), quick.len, quick.target(IP));
                assert_eq!((class, Base::Rip, len, target), found, "{what}");
                assert_eq!(quick.registers() & (stack | others), 0, "{what}");
            }
            Skimmed::Branch { class, len, width, displacement } => {
                assert_eq!((class, len), (quick.class, quick.len), "{what}");
                let target = (IP + u64::from(len)).wrapping_add_signed(displacement.into());
                if class != Class::Return {
                    assert_eq!((width, target), (quick.width(), quick.target(IP)), "{what}");
                }
            }
            Skimmed::Stack { class, len, register } => {
                let found = (quick.class, quick.len, quick.opcode_register());
                assert_eq!((class, len, Some(register)), found, "{what}");
            }
        }
    }
}

/// Checks that a plain instruction has the right length, and names no register that it must not name.
fn compare_plain(
    window: &[u8; WINDOW],
    quick: &Predecoded,
    addresses: &Range<u64>,
    registers: u16,
    what: &str,
) {
    let nothing = Interest::NONE;
    let len = plain_len(window, nothing, addresses, |_, _| false);
    if len != 0 {
        assert_eq!(len, usize::from(quick.len), "{what}");
        assert!(matches!(quick.class, Class::Next | Class::Lea), "{what}");
        assert!(!quick.is_relative(), "{what}");
        assert!(quick.immediate(false).is_none_or(|address| !addresses.contains(&address)), "{what}");
    }
    for register in 0..16 {
        let bit = 1 << register;
        let others = Interest { others: bit, ..nothing };
        let is_named = registers & bit != 0;
        assert!(!is_named || plain_len(window, others, addresses, |_, _| true) == 0, "{what}");
        let stack = Interest { stack: bit, ..nothing };
        if plain_len(window, stack, addresses, |_, _| false) != 0 {
            assert!(!is_named || quick.base() == Base::None && quick.operands() & bit == 0, "{what}");
        }
        let is_given =
            |base, displacement| (Base::Register(base), displacement) == (quick.base(), quick.displacement());
        let harmless = |base, displacement| {
            assert!(is_given(base, displacement), "{what}: {base} {displacement}");
            true
        };
        if plain_len(window, stack, addresses, harmless) != 0 {
            assert!(quick.operands() & bit == 0, "{what}");
        }
    }
}

/// Pseudorandom numbers, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 ^ self.0 >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd) ^ self.0 >> 29
    }

    /// Returns random bytes, some of which are addresses.
    fn window(&mut self) -> [u8; WINDOW] {
        let mut window = [0; WINDOW];
        window[..8].copy_from_slice(&self.next().to_le_bytes());
        window[8..].copy_from_slice(&self.next().to_le_bytes());
        let at = self.next() as usize % 32;
        if at <= WINDOW - 4 {
            window[at..at + 4].copy_from_slice(&(IP as u32 + self.next() as u32 % 0x20_0000).to_le_bytes());
        }
        window
    }
}

/// The prefixes that are tried with every opcode.
const PREFIXES_TRIED: [&[u8]; 14] = [
    &[],
    &[0x66],
    &[0xf3],
    &[0xf2],
    &[0x2e],
    &[0x64],
    &[0x66, 0x66],
    &[0x66, 0x2e],
    &[0x66, 0xf2],
    &[0xf3, 0x66],
    &[0xf0],
    &[0x67],
    &[0x66, 0x66, 0x66, 0x2e],
    &[0x65, 0xf2, 0x3e, 0xf2, 0x66],
];

#[test]
fn every_opcode_with_every_operand() {
    let mut numbers = Numbers(1);
    let mut factory = InstructionInfoFactory::new();
    let mut recognised = 0;
    for prefixes in PREFIXES_TRIED {
        for rex in (0x3f..0x50).map(|rex| Some(rex).filter(|&rex| rex > 0x3f)) {
            for opcode in 0..512_u32 {
                // Tries every ModRM byte with the prefixes and REX prefixes that compilers use, and a few
                // with the others.
                let usual = prefixes.len() < 2 && matches!(rex, None | Some(0x41 | 0x44 | 0x48 | 0x4f));
                for modrm in (0..=255_u8).step_by(if usual { 1 } else { 7 }) {
                    let mut window = numbers.window();
                    let escape = if opcode < 256 { None } else { Some(0x0f) };
                    let head = prefixes.iter().copied().chain(rex).chain(escape).chain([opcode as u8, modrm]);
                    for (place, byte) in window.iter_mut().zip(head) {
                        *place = byte;
                    }
                    recognised += u32::from(compare(&window, &FIXED, &mut factory).is_some());
                }
            }
        }
    }
    assert!(recognised > 200_000, "{recognised}");
}

#[test]
fn random_bytes() {
    let mut numbers = Numbers(2);
    let mut factory = InstructionInfoFactory::new();
    let recognised = (0..1_000_000).filter(|n| {
        let addresses = if n % 2 == 0 { 0..0 } else { FIXED };
        compare(&numbers.window(), &addresses, &mut factory).is_some()
    });
    assert!(recognised.count() > 300_000);
}

/// Compares this very program, and large programs that this machine may have.
#[test]
fn whole_programs() {
    let mut factory = InstructionInfoFactory::new();
    let own = std::env::current_exe().expect("the test's own path");
    let others =
        ["/usr/bin/python3", "/usr/bin/perl", "/usr/bin/bash", "/usr/bin/gdb"].map(std::path::PathBuf::from);
    for path in others.iter().chain([&own]) {
        let Ok(bytes) = std::fs::read(path) else { continue };
        let Ok(image) = gprofinject_image::Image::read(&bytes) else { continue };
        let (mut recognised, mut all) = (0, 0_u32);
        for function in &image.functions {
            let Some(code) = image.code_at(function.address, function.size) else { continue };
            let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
            for i in decoder.into_iter().take_while(|i| !i.is_invalid()) {
                let Some(window) = code[i.ip() as usize..].first_chunk() else { continue };
                all += 1;
                recognised += u32::from(compare(window, &FIXED, &mut factory).is_some());
            }
        }
        assert!(recognised > all / 10 * 8, "{}: {recognised} of {all}", path.display());
    }
}
