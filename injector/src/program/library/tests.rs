use std::fs;
use std::process::Command;

use gprofinject_abi::plan::LIBRARY_ARENA;

use super::*;
use crate::options::{EngineArg, HooksArg};
use crate::os::say::{Level, Voice};
use crate::program::filters::Filters;
use crate::program::libs::Libs;
use crate::program::plan_cache::PlanCache;

fn with_planner<T>(work: impl FnOnce(&Planner) -> T) -> T {
    with_filters(&Filters::new(&[], &[], 0).expect("no patterns"), work)
}

/// Does something with a planner that hooks entries and exits, has no cache, and selects by these filters.
pub(crate) fn with_filters<T>(filters: &Filters, work: impl FnOnce(&Planner) -> T) -> T {
    let (libs, cache) = (&Libs::none(), &PlanCache::new(false, Voice(Level::Quiet)));
    let (hooks, engine) = (Some(HooksArg::Both), EngineArg::Builtin);
    work(&Planner {
        hooks,
        engine,
        measure: None,
        args: None,
        filters,
        libs,
        running: false,
        shadow_stacks: false,
        arena: None,
        cache,
    })
}

/// Returns a library with two functions, `leaf` and `work`, whose file is made in a folder.
pub(crate) fn library(place: &Path) -> &'static Library {
    let (source, file) = (place.join("library.c"), place.join("library.so"));
    fs::write(
        &source,
        "int leaf(int x) { return x * 3; }\nint work(int x) { return leaf(x) + leaf(x + 1); }\n",
    )
    .expect("written");
    let mut compiler = Command::new("gcc");
    let compiled = compiler.args(["-O1", "-fPIC", "-shared", "-o"]).args([&file, &source]).status();
    assert!(compiled.expect("gcc").success());
    let made = with_planner(|planner| Libraries::default().at(&file, &file, Purpose::Hooks, planner));
    made.unwrap_or_else(|why| panic!("{why}"))
}

const SOUND: Question = Question {
    kind: [0; 8],
    bias: 0x7000_0000_0000,
    start: 0x7000_0000_0000,
    arenas: 0x6fff_8000_0000,
    is_taken: 0,
    first_function: LIBRARIES,
    first_slot: 1 << 20,
    slots_end: 2 << 20,
    first_tail: 0,
    first_counter: 0,
    counters_end: 0,
    words: -128,
    name: 0,
};

/// A process can ask for any place. It gets a plan file for what it has asked for, or none.
#[test]
fn places_that_cannot_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = library(folder.path());
    let nothing = Vec::new;
    let there = placed(library, &SOUND, &BTreeSet::new(), nothing, None).expect("a sound question");
    let bytes = there.slot_bytes;
    assert!(bytes > 0 && there.arena == SOUND.bias.wrapping_add(LIBRARY_ARENA));
    // Another process with the same numbers gets the same file, wherever it has loaded the library.
    let (bias, arenas) = (SOUND.bias + PAGE, SOUND.arenas + 3 * PAGE);
    let elsewhere = Question { bias, arenas, ..SOUND };
    let same = placed(library, &elsewhere, &BTreeSet::new(), nothing, None).expect("a sound question");
    assert!(Arc::ptr_eq(&there.file, &same.file) && same.arena == there.arena + PAGE);
    let next = Question { first_slot: SOUND.first_slot + 16, ..SOUND };
    let other = placed(library, &next, &BTreeSet::new(), nothing, None).expect("a sound question");
    assert!(!Arc::ptr_eq(&there.file, &other.file));
    for (why, question) in [
        ("cannot be", Question { arenas: SOUND.arenas + 8, ..SOUND }),
        ("cannot be", Question { bias: SOUND.bias + 8, ..SOUND }),
        ("cannot be", Question { first_counter: 4, ..SOUND }),
        ("cannot be", Question { first_function: LIBRARIES - 1, ..SOUND }),
        ("no addresses", Question { is_taken: 1, ..SOUND }),
        ("no addresses", Question { arenas: !(PAGE - 1), ..SOUND }),
        // A jump cannot reach that far.
        ("no addresses", Question { bias: 0x1000_0000_0000, ..SOUND }),
        ("no addresses", Question { bias: !(PAGE - 1), ..SOUND }),
        ("counters", Question { slots_end: SOUND.first_slot + bytes - 1, ..SOUND }),
        ("counters", Question { first_slot: u32::MAX - 15, slots_end: u32::MAX, ..SOUND }),
    ] {
        let said = placed(library, &question, &BTreeSet::new(), nothing, None).expect_err(why);
        assert!(said.contains(why), "{said}: {question:?}");
    }
    // These numbers only have to cause no panic.
    let mut random = 88_172_645_463_325_252_u64;
    for _ in 0..2000 {
        let mut next = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            match random % 4 {
                0 => random & !(PAGE - 1),
                1 => !(PAGE - 1),
                2 => SOUND.arenas,
                _ => random % 100 * PAGE,
            }
        };
        let question = Question {
            bias: next(),
            start: next(),
            arenas: next(),
            is_taken: next() & 1,
            first_function: next() as u32 | LIBRARIES,
            first_slot: next() as u32,
            slots_end: next() as u32,
            first_tail: next() as u32,
            first_counter: next() as u32,
            counters_end: next() as u32,
            ..SOUND
        };
        let _ = placed(
            library,
            &question,
            &BTreeSet::new(),
            || {
                vec![Mapping {
                    lo: question.start,
                    hi: !0,
                    writable: false,
                    executable: true,
                    offset: 0,
                    inode: 1,
                    path: String::new(),
                }]
            },
            None,
        );
    }
}

/// A process can name any number of files.
#[test]
fn libraries_are_bounded_in_number() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |n: usize| folder.path().join(n.to_string());
    let paths: Vec<PathBuf> = (0..MOST + 10).map(path).collect();
    paths.iter().for_each(|path| fs::write(path, "no library").expect("written"));
    with_planner(|planner| {
        let mut libraries = Libraries::default();
        for path in &paths {
            assert!(libraries.at(path, path, Purpose::Hooks, planner).is_err());
        }
        assert_eq!((libraries.known.len(), libraries.all.next()), (MOST, 0));
        let files: Vec<_> = paths.iter().map(|path| (path.clone(), Purpose::Hooks)).collect();
        let again = Libraries::again(&files, planner);
        assert_eq!(again.all.next(), MOST);
        assert!(again.all.get(MOST as u32).is_none() && again.all.get(u32::MAX).is_none());
    });
}
