//! Stored plans of real programs, whole and damaged.

use crate::decide::options::Options;
use crate::stored::*;
use crate::testing::{TEXT, image, plan_of};
use crate::x86::template::kind::{Measured, Role};
use gprofinject_image::ElfType;

/// A program that is always available: the one that runs these tests.
fn own_program() -> Vec<u8> {
    std::fs::read(std::env::current_exe().expect("its path")).expect("its bytes")
}

fn stored(plan: &Plan) -> (Vec<u8>, Vec<u8>) {
    (plan.to_stored().expect("no blocks are counted"), plan.encode(&[]).concat())
}

fn from_stored(image: &Image, decisions: &[u8], file: Vec<u8>) -> Option<Plan> {
    // A plan's tables stay in memory.
    Plan::from_stored(image, decisions.to_vec().leak(), StoredFile::new(file.leak())?)
}

/// Compares all results of the queries that the injector makes on a plan.
fn assert_same(image: &Image, fresh: &Plan, loaded: &Plan) {
    assert!(fresh.encode(&[]).concat() == loaded.encode(&[]).concat(), "the plan files differ");
    assert_eq!((fresh.hooks, fresh.engine), (loaded.hooks, loaded.engine));
    assert_eq!((&fresh.downgrade, &fresh.caution), (&loaded.downgrade, &loaded.caution));
    assert_eq!(fresh.verdicts, loaded.verdicts);
    assert_eq!(fresh.records, loaded.records);
    assert_eq!(fresh.function_of, loaded.function_of);
    assert_eq!((fresh.text, fresh.code, fresh.entry), (loaded.text, loaded.code, loaded.entry));
    assert_eq!((fresh.arena, fresh.arena_len), (loaded.arena, loaded.arena_len));
    assert_eq!(fresh.slot_bytes, loaded.slot_bytes);
    assert_eq!(fresh.arena_owners, loaded.arena_owners);
    assert_eq!(fresh.tail_sites, loaded.tail_sites);
    assert_eq!(fresh.falls, loaded.falls);
    assert_eq!(fresh.nameless_parts, loaded.nameless_parts);
    assert_eq!(fresh.hook_points, loaded.hook_points);
    assert_eq!(fresh.patches(), loaded.patches());
    assert_eq!((fresh.role, &fresh.redirected), (loaded.role, &loaded.redirected));
    assert_eq!(fresh.unredirected, loaded.unredirected);
    assert_eq!(fresh.moved, loaded.moved);
    assert_eq!((fresh.phdr(), fresh.counter_bytes()), (loaded.phdr(), loaded.counter_bytes()));
    assert_eq!(fresh.counted(), loaded.counted());
    for offset in (0..fresh.arena_len as u32).step_by(61) {
        assert_eq!(fresh.original(offset), loaded.original(offset));
        assert_eq!(fresh.stands_for(image, offset), loaded.stands_for(image, offset));
    }
}

#[test]
fn a_stored_plan_is_the_plan() {
    let mut programs = vec![own_program()];
    let others = ["/bin/bash", "/usr/bin/perl", "/usr/bin/openssl"];
    programs.extend(others.iter().filter_map(|path| std::fs::read(path).ok()));
    let mut hooked = 0;
    for bytes in &programs {
        let Ok(mut image) = Image::read(bytes) else { continue };
        image.remove_profiling(true);
        for hooks in [Hooks::Both, Hooks::Entry] {
            for engine in [Engine::Builtin, Engine::Frida, Engine::FridaOrBuiltin] {
                for insist in [false, true] {
                    let options = Options {
                        hooks,
                        engine,
                        selected: &|f| f.size != 48,
                        min_size: 0,
                        insist,
                        shadow_stack: false,
                        counted: None,
                        clock: false,
                        outermost: false,
                        role: Role::Program,
                        measured: Measured::None,
                        told: None,
                        arena: None,
                        words: 0,
                    };
                    let fresh = Plan::new(&image, &options);
                    let (decisions, file) = stored(&fresh);
                    let loaded = from_stored(&image, &decisions, file).expect("undamaged");
                    assert_same(&image, &fresh, &loaded);
                    // The loaded plan is stored once more.
                    let (decisions, file) = stored(&loaded);
                    assert_same(&image, &fresh, &from_stored(&image, &decisions, file).expect("undamaged"));
                    hooked += fresh.records.len();
                }
            }
        }
    }
    assert!(hooked > 10_000, "{hooked} functions");
}

#[test]
fn plans_with_counted_blocks_are_not_stored() {
    let bytes = own_program();
    let image = Image::read(&bytes).expect("a program");
    let selected = |f: &gprofinject_image::Function| f.size < 64;
    let counted: &dyn Fn(&gprofinject_image::Function) -> bool = &|_| true;
    let options = Options {
        hooks: Hooks::Entry,
        engine: Engine::Builtin,
        selected: &selected,
        min_size: 0,
        insist: true,
        shadow_stack: false,
        role: Role::Program,
        measured: Measured::None,
        told: None,
        counted: Some(counted),
        clock: false,
        outermost: false,
        arena: None,
        words: 0,
    };
    let plan = Plan::new(&image, &options);
    assert!(plan.counted().0 > 0 && plan.to_stored().is_none());
}

#[test]
fn another_programs_plan_is_refused() {
    let code = [0x55, 0x48, 0x89, 0xe5, 0x31, 0xc0, 0x5d, 0xc3];
    let twice = code.repeat(2);
    let (one, two) = ([8].as_slice(), [8, 8].as_slice());
    let own = image(ElfType::Dyn, TEXT, &twice, two);
    let (decisions, file) = stored(&plan_of(&own, None));
    assert!(from_stored(&own, &decisions, file.clone()).is_some());
    let shorter = image(ElfType::Dyn, TEXT, &code, one);
    let elsewhere = image(ElfType::Dyn, 2 * TEXT, &twice, two);
    let otherwise = image(ElfType::Dyn, TEXT, &twice, &[12, 4]);
    for other in [shorter, elsewhere, otherwise] {
        assert!(from_stored(&other, &decisions, file.clone()).is_none());
    }
}

#[test]
fn parts_that_the_image_does_not_have_are_refused() {
    let code = [0x55, 0x48, 0x89, 0xe5, 0x31, 0xc0, 0x5d, 0xc3].repeat(3);
    let mut own = image(ElfType::Dyn, TEXT, &code, &[8, 8, 8]);
    own.functions[1].kind = gprofinject_image::FunctionKind::Cold(None);
    let mut plan = plan_of(&own, None);
    for (parts, fits) in [
        (vec![], true),
        (vec![(1, 0)], true),
        // No part, no function, neither, and twice the same part.
        (vec![(0, 2)], false),
        (vec![(1, 1)], false),
        (vec![(1, 3)], false),
        (vec![(3, 0)], false),
        (vec![(1, 0), (1, 2)], false),
    ] {
        plan.nameless_parts = parts.iter().map(|&(part, function)| [part, function]).collect();
        let (decisions, file) = stored(&plan);
        own.nameless_parts.take();
        assert_eq!(from_stored(&own, &decisions, file).is_some(), fits, "{:?}", plan.nameless_parts);
        assert_eq!(
            own.parent(1),
            plan.nameless_parts.first().map(|&[_, parent]| parent as usize).filter(|_| fits)
        );
    }
}

/// Makes all queries that the injector makes on a plan. The results do not matter.
fn use_up(plan: &Plan, image: &Image) {
    let slots: u64 = plan.records.iter().map(|record| u64::from(record.slot_count)).sum();
    let hooked =
        plan.function_of.iter().map(|&function| image.functions[function as usize].size).sum::<u64>();
    let patched: usize = plan.patches().iter().map(|patch| patch.original[..patch.len as usize].len()).sum();
    std::hint::black_box((slots, hooked, patched, plan.encode(&[]).len()));
    for at in [0, plan.text.0, plan.text.1, u64::MAX] {
        std::hint::black_box((plan.moved(at), plan.is_hook_point(at), plan.fall_into(at)));
        std::hint::black_box((plan.original(at as u32), plan.tail_site(at as u32, 0)));
    }
}

#[test]
fn damaged_bytes_are_refused_or_harmless() {
    let path = ["/bin/bash", "/usr/bin/gawk"].iter().find_map(|path| std::fs::read(path).ok());
    let bytes = path.unwrap_or_else(own_program);
    let image = Image::read(&bytes).expect("a program");
    let options = Options {
        hooks: Hooks::Both,
        engine: Engine::Builtin,
        selected: &|_| true,
        min_size: 0,
        insist: true,
        shadow_stack: false,
        counted: None,
        clock: false,
        outermost: false,
        role: Role::Program,
        measured: Measured::None,
        told: None,
        arena: None,
        words: 0,
    };
    let whole = stored(&Plan::new(&image, &options));
    // xorshift64, so that the corruptions are the same in each run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    let (mut refused, mut accepted) = (0, 0);
    for round in 0..3000 {
        let (mut decisions, mut file) = whole.clone();
        let header = round % 3 == 0;
        let piece = if round % 2 == 0 { &mut decisions } else { &mut file };
        match random(4) {
            0 => piece.truncate(random(piece.len())),
            1 => piece.extend_from_within(..),
            _ => {
                for _ in 0..=random(8) {
                    // Corrupted counts and offsets can do the most harm, and they come first.
                    let at = random(if header { piece.len().min(400) } else { piece.len() });
                    let extremes = [0, 0xff, 0x80, 0x7f, random(256) as u8];
                    piece[at] = extremes[random(extremes.len())];
                }
            }
        }
        match from_stored(&image, &decisions, file) {
            Some(plan) => {
                use_up(&plan, &image);
                accepted += 1;
            }
            None => refused += 1,
        }
    }
    assert!(refused > 500 && accepted > 100, "{refused} refused, {accepted} accepted");
}
