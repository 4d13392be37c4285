//! Plans for programs that no compiler makes: random functions, damaged files. There is no panic and no hang,
//! and the plan overwrites only what it may overwrite.
//!
//! `GPROFINJECT_FUZZ_CASES=50000 cargo test --release -p gprofinject-tests --test system planner::` tries
//! that many.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gprofinject_abi::plan::{Patch, PlanHeader};
use gprofinject_image::{FunctionKind, Image};
use gprofinject_image::x86::has_branch;
use gprofinject_plan::x86::relocate::call::CALL_R11;
use gprofinject_plan::{Engine, Hooks, Measured, Options, Plan, Verdict};
use gprofinject_tests::sequences::{Generator, Surroundings};
use gprofinject_tests::synthetic::{Piece, Program};
use gprofinject_tests::{build, directives::Test, extent, flags, generate, tool};
use iced_x86::{Decoder, DecoderOptions};
use zerocopy::FromBytes;

gprofinject_tests::trials! {
    together:
        random_functions,
        damaged_programs;
}

/// A hundred times as long as any of them takes.
const HANGS: Duration = Duration::from_secs(60);
/// No tactic relocates more bytes; branches among them may be dead.
const NEAR: u64 = 96;

fn cases() -> u64 {
    extent::times("GPROFINJECT_FUZZ_CASES", 1500, 50_000)
}

/// Runs `case` with many seeds. If one never ends, the test aborts and names the seed.
fn try_all(test: &str, case: impl Fn(u64) -> Result<(), String>) {
    static ENDED: u64 = u64::MAX;
    let running = AtomicU64::new(0);
    let failures = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = (ENDED, 0);
            while running.load(Ordering::Relaxed) != ENDED {
                std::thread::sleep(Duration::from_millis(20));
                let seed = running.load(Ordering::Relaxed);
                last = if last.0 == seed { (seed, last.1 + 1) } else { (seed, 0) };
                if last.1 * 20 > HANGS.as_millis() {
                    eprintln!("{test}: seed {seed} hangs");
                    std::process::abort();
                }
            }
        });
        let mut failures = Vec::new();
        let first = generate::first_seed();
        for seed in first..first + cases() {
            running.store(seed, Ordering::Relaxed);
            match catch_unwind(AssertUnwindSafe(|| case(seed))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => failures.push(format!("seed {seed}: {error}")),
                Err(_) => failures.push(format!("seed {seed}: panics")),
            }
            if failures.len() > 10 {
                break;
            }
        }
        running.store(ENDED, Ordering::Relaxed);
        failures
    });
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn random_functions() {
    try_all("random_functions", |seed| {
        let mut generator = Generator::new(generate::random_numbers(seed));
        let program = random_program(&mut generator);
        let file = program.file();
        let image = Image::read(&file).map_err(|error| format!("not read: {error}"))?;
        judge(&image, seed)
    });
}

fn damaged_programs() {
    let mut samples = Vec::new();
    for (name, set) in [
        ("virtual.cc", "O2"),
        ("switch.c", "O2-nopie"),
        ("cold.c", "Os-cf"),
        ("tiny-packed.c", "O2"),
        ("exc-catch.cc", "O2-pg"),
        ("tail-c.c", "O2-instrument"),
        ("fib.c", "O2-fentry-nopie"),
    ] {
        let test = Test::read(&tool::folder().join("programs").join(name)).unwrap();
        samples
            .push(std::fs::read(build::build(&test, flags::flag_set(set)).unwrap()).unwrap());
    }
    try_all("damaged_programs", |seed| {
        let mut generator = Generator::new(generate::random_numbers(seed));
        let mut file = samples[generator.below(samples.len() as u64) as usize].clone();
        damage(&mut file, &mut generator);
        match Image::read(&file) {
            Ok(mut image) => {
                image.remove_profiling(true);
                judge(&image, seed)
            }
            Err(_) => Ok(()),
        }
    });
}

/// Damages single bytes, or the words of one section, which is mostly one with tables.
fn damage<R: FnMut() -> u64>(file: &mut [u8], generator: &mut Generator<R>) {
    let (len, sections) = (file.len() as u64, sections(file));
    for _ in 0..1 + generator.below(6) {
        let (at, size) = match generator.below(4) {
            0 => (0, 0x400),
            1 => (0, len),
            _ => generator.pick(&sections),
        };
        let at = (at + generator.below(size.max(1))).min(len - 8) as usize;
        let extreme = generator.pick(&[0, 1, 7, 0x7fff_ffff, 0xffff_ffff, 1 << 47, u64::MAX, u64::MAX - 7]);
        match generator.below(4) {
            0 => file[at] = generator.word() as u8,
            1 => file[at] ^= 1 << generator.below(8),
            2 => file[at & !3..][..4].copy_from_slice(&(extreme as u32).to_le_bytes()),
            _ => file[at & !7..][..8].copy_from_slice(&extreme.to_le_bytes()),
        }
    }
}

/// Returns the offset and size of each section that the file contains.
fn sections(file: &[u8]) -> Vec<(u64, u64)> {
    let word = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let headers = (0..usize::from(file[60])).map(|n| word(40) as usize + 64 * n);
    let in_file = headers.filter(|&at| file[at + 4] != 8).map(|at| (word(at + 24), word(at + 32)));
    in_file.filter(|(at, size)| *size > 0 && at + size <= file.len() as u64).collect()
}

fn random_program<R: FnMut() -> u64>(generator: &mut Generator<R>) -> Program {
    let count = 2 + generator.below(30) as usize;
    let position_independent = generator.below(2) == 0;
    let mut program = Program { position_independent, pieces: Vec::new(), pointers: Vec::new() };
    let mut at = program.text();
    for _ in 0..count {
        let piece = random_piece(generator, at);
        at += (piece.code.len() + piece.padding.len()) as u64;
        program.pieces.push(piece);
    }
    for n in 0..count {
        let inside = if generator.below(8) == 0 { generator.below(16) } else { 0 };
        if generator.below(2) == 0 {
            program.pointers.push((n, inside));
        }
    }
    aim_calls(generator, &mut program);
    program
}

fn random_piece<R: FnMut() -> u64>(generator: &mut Generator<R>, at: u64) -> Piece {
    let mut code = match generator.below(8) {
        0 => (0..1 + generator.below(40)).map(|_| generator.word() as u8).collect(),
        1 => vec![0xc3],
        2 => generator.pick(&[&[0x31, 0xc0, 0xc3][..], &[0xf3, 0xc3], &[0x90, 0xc3], &[0xeb, 0xfe]]).to_vec(),
        _ => Vec::new(),
    };
    if code.is_empty() {
        if generator.below(3) == 0 {
            code = vec![0xf3, 0x0f, 0x1e, 0xfa];
        }
        for _ in 0..1 + generator.below(4) {
            let here = at + code.len() as u64;
            let around = Surroundings { at: here, data: at..at + 0x1000 };
            let least = 1 + generator.below(20) as usize;
            code.extend(generator.sequence(&around, least).bytes);
        }
        if generator.below(4) > 0 {
            code.push(0xc3);
        }
    }
    let end = at + code.len() as u64;
    let filler = generator.pick(&[0x90, 0xcc, 0]);
    let padding = match generator.below(4) {
        0 => vec![filler; (end.next_multiple_of(16) - end) as usize],
        1 => vec![filler; generator.below(8) as usize],
        _ => Vec::new(),
    };
    let size = match generator.below(12) {
        0 => None,
        1 => Some(0),
        2 => Some(generator.below(64)),
        _ => Some(code.len() as u64),
    };
    Piece { code, padding, size }
}

/// Makes some near calls and jumps lead to functions, or into them.
fn aim_calls<R: FnMut() -> u64>(generator: &mut Generator<R>, program: &mut Program) {
    let addresses = program.addresses();
    for (n, &at) in addresses.iter().enumerate() {
        let code = &mut program.pieces[n].code;
        let decoder = Decoder::with_ip(64, code, at, DecoderOptions::NONE);
        let near: Vec<_> = decoder.into_iter().filter(|i| has_branch(i) && i.len() >= 5).collect();
        for i in near {
            let inside = if generator.below(4) == 0 { generator.below(8) } else { 0 };
            let target = generator.pick(&addresses) + inside;
            let end = (i.next_ip() - at) as usize;
            code[end - 4..end].copy_from_slice(&(target.wrapping_sub(i.next_ip()) as u32).to_le_bytes());
        }
    }
}

/// Returns what is wrong with the plans for a program.
fn judge(image: &Image, seed: u64) -> Result<(), String> {
    let engines = [Engine::Builtin, Engine::Frida, Engine::FridaOrBuiltin];
    let ways = engines.into_iter().flat_map(|e| [(e, Hooks::Both, false), (e, Hooks::Entry, false)]);
    for (engine, hooks, count) in ways.chain([(Engine::Builtin, Hooks::Both, true)]) {
        let selected =
            |f: &gprofinject_image::Function| !seed.is_multiple_of(3) || !f.address.is_multiple_of(5);
        let options = Options {
            hooks,
            engine,
            selected: &selected,
            min_size: 0,
            insist: false,
            shadow_stack: false,
            counted: count.then_some(&|_| true),
            clock: false,
            outermost: false,
            role: gprofinject_plan::Role::Program,
            measured: Measured::None,
            told: None,
            arena: None,
            words: 0,
        };
        let plan = Plan::new(image, &options);
        let patches = patches(&plan);
        let which = |error| format!("{engine:?}, {hooks:?}, counted {count}: {error}");
        check_bytes(image, &plan, &patches).map_err(which)?;
        // For a counted function, the copy runs, so branches in the original do not matter.
        if !count {
            check_ways(image, &patches).map_err(which)?;
        }
    }
    Ok(())
}

/// Checks that no two patches overlap, that each expects the bytes that are there, and that none is in a
/// function that must not be hooked.
fn check_bytes(image: &Image, plan: &Plan, patches: &[Patch]) -> Result<(), String> {
    let mut behind = 0;
    for patch in patches {
        let (lo, hi) = (patch.address, patch.address + u64::from(patch.len));
        if lo < behind {
            return Err(format!("patches overlap at {lo:#x}"));
        }
        behind = hi;
        let original = image.data_at(lo, hi - lo).ok_or_else(|| format!("no code at {lo:#x}"))?;
        if patch.original[..original.len()] != *original {
            return Err(format!("{lo:#x} does not hold what is expected"));
        }
        let starts = |i: usize| (lo..hi).contains(&image.functions[i].address);
        // If a counted function has this part, the part's copy runs, and jumps in the original lead to it.
        let is_counted_part = |i: usize| match image.functions[i].kind {
            FunctionKind::Cold(Some(parent)) => plan.counting(image.functions[parent].address).is_ok(),
            _ => false,
        };
        let refused = |i: usize| matches!(plan.verdicts[i], Verdict::Refused(_)) && !is_counted_part(i);
        // Counters are also removed from functions that are not hooked.
        let removed = is_removed(image, patch);
        if let Some(i) = (0..image.functions.len()).find(|&i| !removed && starts(i) && refused(i)) {
            return Err(format!("{lo:#x} overwrites the start of function {i}: {:?}", plan.verdicts[i]));
        }
        let mapped = image.code_ranges.iter().any(|r| r.start <= lo && hi <= r.end);
        if !mapped && image.functions.iter().any(|f| f.address < hi && lo < f.address + f.size) {
            return Err(format!("{lo:#x} is no section of code"));
        }
    }
    let end = plan.arena.wrapping_add(plan.arena_len);
    if !patches.is_empty() && plan.arena < image.hi && end > image.lo && plan.arena < end {
        return Err("the arena lies in the program".into());
    }
    Ok(())
}

fn is_removed(image: &Image, patch: &Patch) -> bool {
    let end = patch.address + u64::from(patch.len);
    image.removed.iter().any(|r| (r.address, r.end()) == (patch.address, end))
}

/// Checks that no branch of one function leads into the middle of what was written over another one.
fn check_ways(image: &Image, patches: &[Patch]) -> Result<(), String> {
    let around = |at: u64| {
        let after = patches.partition_point(|p| p.address <= at);
        after.checked_sub(1).map(|n| &patches[n]).filter(|p| at < p.address + u64::from(p.len))
    };
    for f in &image.functions {
        let Some(bytes) = image.code_at(f.address, f.size) else { continue };
        for i in &mut Decoder::with_ip(64, bytes, f.address, DecoderOptions::NONE) {
            if i.is_invalid() {
                break;
            }
            // An instruction that is itself patched leads elsewhere.
            let patched = (i.ip()..i.next_ip()).any(|at| around(at).is_some());
            if !has_branch(&i) || patched {
                continue;
            }
            let target = i.near_branch_target();
            // A hook begins at the start of a patch, except for a call in its place, which is inside its
            // hook's range.
            let begins = |p: &Patch| p.address == target && p.replacement[..p.len as usize] != CALL_R11;
            let Some(patch) = around(target).filter(|p| !begins(p) && !is_removed(image, p)) else {
                continue;
            };
            // A patched displacement is not an instruction, and after a patched start the branch may have
            // been moved.
            let displacement = matches!(patch.len, 1 | 4);
            let start = around(f.address).or_else(|| around(f.address + 4));
            let moved = start.is_some() && i.ip() < f.address + 4 + NEAR;
            if !displacement && !moved {
                return Err(format!("{:#x} leads to {target:#x} inside a patch", i.ip()));
            }
        }
    }
    Ok(())
}

/// Returns the patches in the plan file, as the agent reads them.
fn patches(plan: &Plan) -> Vec<Patch> {
    let file = plan.encode(&[]).concat();
    let (header, _) = PlanHeader::read_from_prefix(&file).unwrap();
    let table = &file[header.patches.offset as usize..][..header.patches.count as usize * size_of::<Patch>()];
    table.chunks_exact(size_of::<Patch>()).map(|patch| Patch::read_from_bytes(patch).unwrap()).collect()
}
