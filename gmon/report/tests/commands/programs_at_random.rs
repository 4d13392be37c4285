//! Random basic-block counts: sums are exact however the files' records are split, and damaged programs cause
//! errors.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use gmon::{Block, Format, Merger, Profile};
use gmon_blocks::{Report, Tally};
use gprofinject_image::debug::Lines;
use gprofinject_image::instructions::Code;
use gprofinject_image::x86::goes_on;
use proptest::prelude::*;

use crate::support::truth::{Truth, is_own};
use crate::support::{self, Folder};

/// A program whose basic blocks are known, but not their counts.
struct Built {
    bytes: Vec<u8>,
    truth: Truth,
    lines: Lines,
}

static PROGRAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = Folder::new("at-random");
    let program = folder.build("loops.c", include_str!("programs/loops.c"), &["-O1"]);
    std::fs::read(program).expect("the program")
});

thread_local! {
    static LOOPS: &'static Built = {
        let bytes = PROGRAM.clone();
        let code = Code::parse(&bytes).expect("a program");
        let truth = Truth { code, instructions: BTreeMap::new(), calls: BTreeMap::new() };
        let lines = Lines::parse(&bytes).expect("line information");
        Box::leak(Box::new(Built { bytes, truth, lines }))
    };
}

fn loops() -> &'static Built {
    LOOPS.with(|built| *built)
}

/// Whether each function is counted, a count for each block, records at some more addresses, and perhaps a
/// crash at one of them.
#[derive(Clone, Debug)]
struct Run {
    counted: Vec<bool>,
    counts: Vec<u64>,
    at: Vec<prop::sample::Index>,
    crash: Option<prop::sample::Index>,
}

fn run() -> impl Strategy<Value = Run> {
    let index = any::<prop::sample::Index>;
    (
        prop::collection::vec(any::<bool>(), 30),
        prop::collection::vec(0..1_000_000_000u64, 200),
        prop::collection::vec(index(), 0..20),
        prop::option::of(index()),
    )
        .prop_map(|(counted, counts, at, crash)| Run { counted, counts, at, crash })
}

fn profile(run: &Run) -> Profile {
    let code = &loops().truth.code;
    let counted = |name: &str| {
        let index = code.functions().iter().position(|f| f.name == name).expect("a function");
        is_own(name) && run.counted[index % run.counted.len()]
    };
    let mut blocks = loops().truth.blocks(counted);
    for (index, block) in blocks.iter_mut().enumerate() {
        block.count = run.counts[index % run.counts.len()];
    }
    // Every instruction at which a record may be.
    let every: Vec<u64> = code.functions().iter().flat_map(|f| f.start..f.end()).collect();
    let possible = gmon_blocks::split(&blocks, code, &every);
    if !possible.is_empty() {
        let mut at: Vec<u64> = run.at.iter().map(|index| index.get(&possible).addr).collect();
        at.sort_unstable();
        blocks = gmon_blocks::split(&blocks, code, &at);
        if let Some(crash) = run.crash.map(|index| *index.get(&possible)).filter(|crash| crash.count > 0) {
            blocks.retain(|block| block.addr != crash.addr);
            blocks.push(Block { count: crash.count - 1, ..crash });
            blocks.sort_unstable();
        }
    }
    Profile { blocks, ..Profile::new(Format::LITTLE_64) }
}

/// Returns the counts of all instructions by a profile, found by walking on from each record.
fn counts(profile: &Profile) -> BTreeMap<u64, u64> {
    let code = &loops().truth.code;
    let mut counts = BTreeMap::new();
    for (index, block) in profile.blocks.iter().enumerate() {
        let next = profile.blocks.get(index + 1).map_or(u64::MAX, |next| next.addr);
        let end = code.function_at(block.addr).map_or(0, |index| code.functions()[index].end());
        for instruction in code.instructions(block.addr) {
            if instruction.ip() >= next.min(end) {
                break;
            }
            counts.insert(instruction.ip(), block.count);
            if !goes_on(&instruction) {
                break;
            }
        }
    }
    counts
}

fn reported(profile: &Profile) -> BTreeMap<u64, u64> {
    let report = Report::new(profile, &loops().truth.code, Some(&loops().lines));
    let steps = (0..report.functions.len()).flat_map(|index| report.steps(index));
    let counts: BTreeMap<u64, u64> =
        steps.filter_map(|step| Some((step.instruction.ip(), step.count?))).collect();
    // The blocks have the same counts.
    let blocks = report.functions.iter().flat_map(|function| function.blocks.iter().flatten());
    let ie: u128 = blocks.map(|block| u128::from(block.count) * u128::from(block.instructions)).sum();
    assert_eq!(ie, counts.values().map(|count| u128::from(*count)).sum::<u128>());
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn one_file(run in run()) {
        let profile = profile(&run);
        prop_assert_eq!(reported(&profile), counts(&profile));
    }

    #[test]
    fn records_at_lines_change_nothing(run in run()) {
        let profile = profile(&run);
        let blocks = gmon_blocks::at_lines(&profile.blocks, &loops().truth.code, &loops().lines);
        let split = Profile { blocks, ..profile.clone() };
        prop_assert_eq!(reported(&split), reported(&profile));
        let blocks = |profile: &Profile| {
            let report = Report::new(profile, &loops().truth.code, Some(&loops().lines));
            report.functions.iter().map(|function| function.blocks.clone()).collect::<Vec<_>>()
        };
        prop_assert_eq!(blocks(&split), blocks(&profile));
    }

    #[test]
    fn several_files(runs in prop::collection::vec(run(), 1..5)) {
        let mut profiles: Vec<_> = runs.iter().map(profile).collect();
        let mut expected = BTreeMap::new();
        for (address, count) in profiles.iter().flat_map(counts) {
            *expected.entry(address).or_insert(0) += count;
        }
        gmon_blocks::align(&mut profiles, &loops().truth.code);
        let mut merger = Merger::default();
        for profile in profiles {
            merger.add(profile).expect("one program's");
        }
        let sum = merger.finish();
        prop_assert_eq!(counts(&sum), expected.clone());
        prop_assert_eq!(reported(&sum), expected);
    }

    /// Records at any addresses: an address outside the program's code causes no crash.
    #[test]
    fn any_records(blocks in prop::collection::vec((0x1000..0x1800u64, 0..9u64), 0..40), far in any::<u64>()) {
        let mut profile = Profile::new(Format::LITTLE_64);
        profile.blocks = blocks.into_iter().map(|(addr, count)| Block { addr, count }).collect();
        profile.blocks.push(Block { addr: far, count: u64::MAX });
        profile.normalize().expect("small counts");
        exercise(&loops().bytes, &profile);
    }
}

/// Runs everything from which reports are made.
fn exercise(bytes: &[u8], profile: &Profile) -> bool {
    let Ok(code) = Code::parse(bytes) else { return Lines::parse(bytes).is_ok() };
    let lines = Lines::parse(bytes).ok();
    let mut profiles = [profile.clone(), profile.clone()];
    profiles[1].blocks.truncate(profile.blocks.len() / 2);
    gmon_blocks::align(&mut profiles, &code);
    let report = Report::new(&profiles[1], &code, lines.as_ref());
    for index in 0..report.functions.len() {
        let sums = report.sums(index);
        assert!(sums.ine <= sums.i && sums.bbne <= sums.bb);
    }
    for line in Tally::of(&report).lines.values() {
        for instance in &line.instances {
            let most = instance.blocks.iter().flatten().map(|block| block.1).max().unwrap_or(0);
            assert!(instance.count().is_none_or(|count| count >= most));
            lines.as_ref().expect("lines").frames(instance.address);
        }
    }
    lines.is_some()
}

#[test]
fn damaged_programs() {
    let run = Run { counted: vec![true], counts: (0..7).collect(), at: Vec::new(), crash: None };
    let profile = profile(&run);
    assert!(exercise(&loops().bytes, &profile));
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut below = |limit: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 20) as usize % limit
    };
    let (mut good, len) = (0, loops().bytes.len());
    for round in 0..400 {
        let mut bytes = loops().bytes.clone();
        match round % 4 {
            // The headers of the file and of sections.
            0 => (0..1 + below(3)).for_each(|_| bytes[below(64)] = below(256) as u8),
            1 => (0..1 + below(8)).for_each(|_| bytes[len - 1 - below(64 * 40)] = below(256) as u8),
            2 => bytes.truncate(below(len)),
            _ => (0..1 + below(200)).for_each(|_| bytes[below(len)] = below(256) as u8),
        }
        good += u32::from(exercise(&bytes, &profile));
    }
    assert!(good > 50, "{good} had line information: what is behind is tried as well");
}

/// The debug information alone, with changed bytes where a parser might trust them.
#[test]
fn damaged_debug_information() {
    use object::{Object, ObjectSection};
    let file = object::File::parse(&*loops().bytes).expect("the program");
    let run = Run { counted: vec![true], counts: (1..9).collect(), at: Vec::new(), crash: None };
    let profile = profile(&run);
    let mut random = 7u64;
    for name in
        [".debug_info", ".debug_abbrev", ".debug_line", ".debug_rnglists", ".debug_aranges", ".debug_str"]
    {
        let Some((start, size)) = file.section_by_name(name).and_then(|section| section.file_range()) else {
            continue;
        };
        for _ in 0..60 {
            let mut bytes = loops().bytes.clone();
            for _ in 0..3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                bytes[(start + (random >> 33) % size) as usize] = (random >> 25) as u8;
            }
            exercise(&bytes, &profile);
        }
    }
}

/// The command answers with the right exit status, too.
#[test]
fn the_command_on_damaged_programs() {
    let folder = Folder::new("damaged-command");
    let mut profile = Profile::new(Format::LITTLE_64);
    profile.blocks = vec![Block { addr: 0x1180, count: 3 }];
    let out = folder.write("gmon.out", &support::bytes(&profile));
    for len in (0..loops().bytes.len()).step_by(997) {
        let program = folder.write("cut", &loops().bytes[..len]);
        for report in [&["lines"][..], &["lines", "--by", "function"]] {
            let files: [&Path; 2] = [&program, &out];
            let output =
                std::process::Command::new(env!("CARGO_BIN_EXE_gmon")).args(report).args(files).output();
            let output = output.expect("gmon runs");
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(matches!(output.status.code(), Some(0 | 2)), "{len}: {stderr}");
            assert!(!stderr.contains("panicked"), "{len}: {stderr}");
        }
    }
}
