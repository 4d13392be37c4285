//! Relocated instructions have the same effect as the original ones: both run from the same random state, and
//! the resulting states are compared.
//!
//! `GPROFINJECT_FUZZ_SECONDS=600 cargo test --release -p gprofinject-tests --test system relocation::`
//! continues with other seeds for that long.

use std::time::{Duration, Instant};

use gprofinject_image::x86::{falls_through, has_branch, is_call};
use gprofinject_plan::x86::relocate::call::{self, CALL_R11, Call};
use gprofinject_plan::x86::relocate::instructions::{copied, relocate};
use gprofinject_tests::extent;
use gprofinject_tests::generate::{first_seed, random_numbers};
use gprofinject_tests::machine::state::{INT3, State, Stop};
use gprofinject_tests::machine::{AREA, COPY, DATA, Machine, ORIGINAL};
use gprofinject_tests::sequences::{Generator, Sequence, Surroundings};
use gprofinject_skip as skip;
use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};

gprofinject_tests::trials! {
    together:
        of_position_independent_code,
        of_code_at_low_addresses;
}

/// The addresses of position-independent programs, and of others.
const HIGH: u64 = 0x2345_6780_0000;
const LOW: u64 = 0x1200_0000;

/// The offset of the code in its area.
const CODE: usize = 0x800;
/// The offset of the stack pointer in the data.
const STACK: u64 = 0x3000;
const CASES: u64 = 4000;
/// The patience with the original, and with the copy if the original has ended: the copy may be interrupted
/// more often.
const SHORT: u32 = 2;
const LONG: u32 = 100;

#[derive(Default, Debug)]
struct Tally {
    compared: u64,
    refused: u64,
    faulted: u64,
    endless: u64,
    /// Branches into the middle of an instruction, which the planner refuses.
    crooked: u64,
    /// Of the compared cases: calls made in their places, and the same with the original text.
    in_place: u64,
    unpatched: u64,
}

fn of_position_independent_code() {
    fuzz("of_position_independent_code", HIGH);
}

fn of_code_at_low_addresses() {
    fuzz("of_code_at_low_addresses", LOW);
}

fn fuzz(test: &str, base: u64) {
    let mut machine = match Machine::new(base) {
        Ok(machine) => machine,
        Err(error) => return skip::skipped(test, &format!("no traced process: {error:#}")),
    };
    let seconds = Some(extent::times("GPROFINJECT_FUZZ_SECONDS", 0, 300)).filter(|&seconds| seconds > 0);
    let until = seconds.map(|s| Instant::now() + Duration::from_secs(s));
    let mut tally = Tally::default();
    let mut failures = Vec::new();
    let first = first_seed();
    for seed in first.. {
        if until.map_or(seed >= first + CASES, |until| Instant::now() >= until) || failures.len() > 20 {
            break;
        }
        if let Some(failure) = case(&mut machine, base ^ seed, &mut tally) {
            failures.push(format!("seed {seed}: {failure}"));
        }
    }
    println!("{tally:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    // Otherwise too little has been tested.
    assert!(tally.compared * 4 > tally.refused + tally.faulted + tally.endless + tally.crooked, "{tally:?}");
    assert!(tally.in_place.min(tally.unpatched) > 15, "{tally:?}");
}

/// Runs one sequence from one state. Returns what went wrong.
fn case(machine: &mut Machine, seed: u64, tally: &mut Tally) -> Option<String> {
    let mut generator = Generator::new(random_numbers(seed));
    let from = machine.base() + ORIGINAL + CODE as u64;
    let to = machine.base() + COPY + CODE as u64 + generator.below(32);
    let data = machine.base() + DATA;
    // A relocated call pushes before it reads its target, so both must not be in one place.
    let around = Surroundings { at: from, data: data..data + STACK - 0x200 };
    let least = generator.pick(&[2, 5, 5, 5, 8, 16]);
    let sequence = generator.sequence(&around, least);
    let instructions = decode(&sequence.bytes, from);
    // An `endbr64` stays in its place; branches to it lead to the first instruction after it.
    let marked = generator.below(2) == 0;
    let start = if marked { from - 4 } else { from };
    if crooked(&instructions, from, &sequence) {
        tally.crooked += 1;
        return None;
    }
    let (form, site) = form(&mut generator, &sequence);
    let Ok(moved) = relocate(&sequence.bytes, from, to, start, form, &|_| None) else {
        tally.refused += 1;
        return None;
    };
    let fixed =
        |i: &Instruction| has_branch(i) || i.is_ip_rel_memory_operand() || !falls_through(i) || is_call(i);
    if !instructions.iter().any(fixed)
        && copied(&sequence.bytes, from, to).is_ok_and(|copied| copied.bytes != moved.bytes)
    {
        return Some(format!("copied differs\n{}", listing(&sequence.bytes, from)));
    }
    let entry = sequence.starts[generator.below(sequence.starts.len() as u64) as usize];
    let entry = if generator.below(4) == 0 { entry } else { 0 };
    let Some(moved_entry) = moved.offset_of(entry as u32) else {
        tally.refused += 1;
        return None;
    };

    let mut state = machine.state().unwrap();
    randomise(&mut state, &mut generator, data);
    let mut memory = vec![0; AREA];
    for word in memory.chunks_exact_mut(8) {
        let value = interesting(&mut generator, data);
        word.copy_from_slice(&value.to_le_bytes());
    }

    let mut before = state.clone();
    before.general.rip = from + entry;
    lay_out(machine, ORIGINAL, CODE, &sequence.bytes);
    if marked {
        machine.area(ORIGINAL)[CODE - 4..CODE].copy_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa]);
    }
    machine.area(COPY).fill(INT3);
    machine.area(DATA).copy_from_slice(&memory);
    let expected_stop = machine.run(&mut before, SHORT).unwrap();
    let expected_memory = machine.area(DATA).to_vec();

    let mut after = state;
    after.general.rip = to + u64::from(moved_entry);
    machine.area(ORIGINAL).fill(INT3);
    lay_out(machine, COPY, (to - machine.base() - COPY) as usize, &moved.bytes);
    if let (Some(site), Some(jump)) = (site, moved.call_jump) {
        let end = to + u64::from(jump) + 4;
        let displacement = (from + site).wrapping_sub(end) as u32;
        let at = (end - 4 - machine.base() - COPY) as usize;
        machine.area(COPY)[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
        machine.area(ORIGINAL)[CODE + site as usize..][..CALL_R11.len()].copy_from_slice(&CALL_R11);
    }
    machine.area(DATA).copy_from_slice(&memory);
    let inside = from..from + sequence.bytes.len() as u64;
    match expected_stop {
        Stop::Endless => tally.endless += 1,
        Stop::Killed | Stop::SystemCall => tally.faulted += 1,
        Stop::Breakpoint(at) | Stop::Signal(_, at) if inside.contains(&at) => tally.faulted += 1,
        _ => {
            tally.compared += 1;
            tally.in_place += u64::from(site.is_some());
            tally.unpatched += u64::from(site.is_none() && form == Call::InPlace);
            let stop = machine.run(&mut after, LONG).unwrap();
            let memory = machine.area(DATA).to_vec();
            if form == Call::InPlace {
                // This register is meant to change.
                after.general.r11 = before.general.r11;
            }
            let mut wrong = differences(&before, &after);
            if stop != expected_stop {
                wrong.push(format!("ends with {stop:x?}, not {expected_stop:x?}"));
            }
            if let Some(at) = (0..AREA).find(|&i| memory[i] != expected_memory[i]) {
                wrong.push(format!("memory at {:#x}", data + at as u64));
            }
            if !wrong.is_empty() {
                let original = listing(&sequence.bytes, from);
                return Some(format!(
                    "{}\n{original}-- from +{entry:#x}, start {start:#x} --\n{}",
                    wrong.join(", "),
                    listing(&moved.bytes, to)
                ));
            }
        }
    }
    None
}

/// Returns how a call is made, and its place if it is made in its place and the patches are there.
fn form<R: FnMut() -> u64>(generator: &mut Generator<R>, sequence: &Sequence) -> (Call, Option<u64>) {
    match call::site(&sequence.bytes, generator.pick(&[2, 5])) {
        Some(site) if generator.below(4) > 0 => (Call::InPlace, (generator.below(2) == 0).then_some(site)),
        _ => (Call::Emulated, None),
    }
}

fn lay_out(machine: &mut Machine, area: u64, at: usize, code: &[u8]) {
    let area = machine.area(area);
    area.fill(INT3);
    area[at..at + code.len()].copy_from_slice(code);
}

fn decode(bytes: &[u8], at: u64) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).iter().collect()
}

/// Whether a branch leads to the inside of an instruction or of the `endbr64`, or is a call to the start,
/// where it would meet the patch.
fn crooked(instructions: &[Instruction], from: u64, sequence: &Sequence) -> bool {
    let end = from + sequence.bytes.len() as u64;
    instructions.iter().filter(|i| has_branch(i)).any(|i| {
        let target = i.near_branch_target();
        let between = (from..end).contains(&target) && !sequence.starts.contains(&(target - from));
        between || (from - 4..from).contains(&target) || target == from && is_call(i)
    })
}

/// Returns a pointer to data, a small number, or any number.
fn interesting<R: FnMut() -> u64>(generator: &mut Generator<R>, data: u64) -> u64 {
    match generator.below(8) {
        0 | 1 => generator.below(8),
        2 => generator.word(),
        _ => data + AREA as u64 / 2 + generator.below(64) * 8,
    }
}

fn randomise<R: FnMut() -> u64>(state: &mut State, generator: &mut Generator<R>, data: u64) {
    let g = &mut state.general;
    for register in [
        &mut g.rax, &mut g.rbx, &mut g.rcx, &mut g.rdx, &mut g.rsi, &mut g.rdi, &mut g.rbp, &mut g.r8,
        &mut g.r9, &mut g.r10, &mut g.r11, &mut g.r12, &mut g.r13, &mut g.r14, &mut g.r15,
    ] {
        *register = interesting(generator, data);
    }
    g.rsp = data + STACK;
    // The arithmetic flags, and sometimes the direction flag.
    const ARITHMETIC: u64 = 0x8d5;
    let direction = if generator.below(16) == 0 { 0x400 } else { 0 };
    g.eflags = 0x202 | generator.word() & ARITHMETIC | direction;
    // The sixteen xmm registers in the legacy area.
    if let Some(vectors) = state.extended.get_mut(160..416) {
        vectors.fill_with(|| generator.word() as u8);
        // XSTATE_BV: x87 and SSE are present.
        state.extended[512] |= 3;
    }
}

fn differences(a: &State, b: &State) -> Vec<String> {
    // The kernel sets this flag whenever a fault stops a process.
    const RESUME: u64 = 0x1_0000;
    let (x, y) = (&a.general, &b.general);
    let pairs = [
        ("rax", x.rax, y.rax),
        ("rbx", x.rbx, y.rbx),
        ("rcx", x.rcx, y.rcx),
        ("rdx", x.rdx, y.rdx),
        ("rsi", x.rsi, y.rsi),
        ("rdi", x.rdi, y.rdi),
        ("rbp", x.rbp, y.rbp),
        ("rsp", x.rsp, y.rsp),
        ("r8", x.r8, y.r8),
        ("r9", x.r9, y.r9),
        ("r10", x.r10, y.r10),
        ("r11", x.r11, y.r11),
        ("r12", x.r12, y.r12),
        ("r13", x.r13, y.r13),
        ("r14", x.r14, y.r14),
        ("r15", x.r15, y.r15),
        ("eflags", x.eflags & !RESUME, y.eflags & !RESUME),
        ("fs", x.fs_base, y.fs_base),
        ("gs", x.gs_base, y.gs_base),
    ];
    let mut wrong: Vec<String> = pairs
        .iter()
        .filter(|(_, a, b)| a != b)
        .map(|(name, a, b)| format!("{name} is {b:#x}, not {a:#x}"))
        .collect();
    // Bytes 8..24 are the address of the last x87 instruction.
    let same = |i: usize| (8..24).contains(&i) || a.extended[i] == b.extended[i];
    if let Some(i) = (0..a.extended.len()).find(|&i| !same(i)) {
        wrong.push(format!("extended state at {i:#x}"));
    }
    wrong
}

fn listing(bytes: &[u8], at: u64) -> String {
    let mut formatter = IntelFormatter::new();
    let mut text = String::new();
    for i in decode(bytes, at) {
        let offset = (i.ip() - at) as usize;
        let mut line = String::new();
        formatter.format(&i, &mut line);
        text += &format!("  {:x}  {:02x?}  {line}\n", i.ip(), &bytes[offset..offset + i.len()]);
    }
    text
}
