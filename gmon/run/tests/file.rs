//! Files: what is written is read back, and nothing that a file contains makes the reader panic.

mod support;

use std::io::{Read, Write};
use std::time::Instant;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use gmon_run::{ArcTimes, Invalid, Node, ReadError, Recording, Stack, wire};
use prost::Message;
use support::{Numbers, example, sampled, synthetic};

fn unpacked(file: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).expect("our own file");
    bytes
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut file = GzEncoder::new(Vec::new(), Compression::best());
    file.write_all(bytes).expect("memory");
    file.finish().expect("memory")
}

#[test]
fn what_is_written_is_read_back() {
    for measured in [
        Recording::default(),
        example(false),
        example(true),
        sampled(),
        synthetic(100, 300, 1000),
        synthetic(1, 1, 20_000),
    ] {
        measured.check().expect("valid");
        assert!(Recording::read(&measured.write()).expect("our own file") == measured);
    }
    let mut odd = example(true);
    odd.rows[0].histogram = vec![u64::MAX; 64];
    odd.arcs[0].inclusive_ns = u64::MAX;
    odd.arcs[0].counted = u64::MAX;
    (odd.rows[1].counted, odd.clock.counted_below_ns) = (5, 200.0);
    odd.functions[0].name = "a\n\u{1b}[31m\u{1f600}".to_owned();
    odd.threads[1].name = String::new();
    assert!(Recording::read(&odd.write()).expect("our own file") == odd);
}

/// Other readers find demangled names beside those of the symbol table, which come back as they were.
#[test]
fn names_for_others() {
    let mut recording = example(true);
    let long = format!("_Z1f{}v", "St4pairIiiE".repeat(2000));
    for (name, shown) in [
        ("_ZN3foo3barEi", "foo::bar(int)"),
        ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
        ("_RNvC6_123foo3bar", "123foo::bar"),
        ("printf", "printf"),
        ("_Znot", "_Znot"),
        (&long, &long[..1000]),
    ] {
        recording.functions[0].name = name.to_owned();
        let file = recording.write();
        assert_eq!(Recording::read(&file).expect("our own file"), recording);
        let profile = wire::Profile::decode(unpacked(&file).as_slice()).expect("pprof's format");
        let text = |index: i64| profile.string_table[usize::try_from(index).expect("an index")].as_str();
        let function = &profile.function[0];
        assert_eq!(text(function.system_name), name);
        assert!(text(function.name).starts_with(shown), "{}", text(function.name));
        // A reader that demangles what it finds has nothing left to do.
        assert!(text(function.name).len() <= 2 * shown.len());
    }
}

#[test]
fn deep_paths() {
    let mut deep = example(true);
    deep.nodes = (0..100_000_u32)
        .map(|index| Node { parent: index.checked_sub(1), function: Some(0), self_ns: 1, ..Node::default() })
        .collect();
    let file = deep.write();
    assert!(unpacked(&file).len() < 200 << 20);
    assert!(Recording::read(&file).expect("our own file") == deep);
    let mut deep = sampled();
    deep.stacks = (0..100_000_u32)
        .map(|index| Stack {
            parent: index.checked_sub(1),
            function: Some(3),
            samples: u64::from(index >= 50_000 && index % 64 == 0),
            ..Stack::default()
        })
        .collect();
    let file = deep.write();
    assert!(unpacked(&file).len() < 200 << 20);
    assert!(Recording::read(&file).expect("our own file") == deep);
}

/// A file of before samples had stacks has no such table.
#[test]
fn files_without_stacks() {
    let mut profile = wire::Profile::decode(unpacked(&sampled().write()).as_slice()).expect("pprof's format");
    profile.extension.as_mut().expect("our own message").stacks = None;
    let read = Recording::read(&packed(&profile.encode_to_vec())).expect("an older file");
    assert_eq!(read, support::counted());
}

#[test]
fn no_file_of_ours() {
    let read = |bytes: &[u8]| Recording::read(bytes).expect_err("no file of ours").to_string();
    assert_eq!(read(b""), "begins with [], expected 1f 8b, as a file compressed with gzip begins");
    assert!(read(b"gmon\x01").starts_with("begins with [67, 6d]"));
    assert!(matches!(Recording::read(&packed(b"")), Err(ReadError::Foreign)));
    assert!(matches!(Recording::read(&packed(b"some text")), Err(ReadError::Field { .. })));
    // An empty message of another version: field 1000, in which field 1 is 9.
    let newer = packed(&[0xc2, 0x3e, 2, 8, 9]);
    assert!(matches!(Recording::read(&newer), Err(ReadError::Version(9))));
}

/// Each index that refers to nothing is found.
#[test]
fn indexes() {
    type Change = fn(&mut Recording);
    let changes: [(&str, Change); 18] = [
        ("process 1: program 1, expected less than 1", |m| m.processes[1].program = 1),
        ("function 1: module 2, expected less than 2", |m| m.functions[1].module = 2),
        ("row 0: function 4, expected less than 4", |m| m.rows[0].function = 4),
        ("row 3: thread 2, expected less than 2", |m| m.rows[3].thread = 2),
        ("row 1: a histogram of 65 elements, expected at most 64", |m| m.rows[1].histogram = vec![0; 65]),
        ("arc 1: callee 9, expected less than 4", |m| m.arcs[1].callee = 9),
        ("arc 2: caller 4, expected less than 4", |m| m.arcs[2].caller = Some(4)),
        ("arc 2: caller 4294967295, expected less than 4", |m| m.arcs[2].caller = Some(u32::MAX)),
        ("arc 4: thread 4294967295, expected less than 2", |m| m.arcs[4].thread = u32::MAX),
        ("node 2: function 4, expected less than 4", |m| m.nodes[2].function = Some(4)),
        ("node 2: thread 2, expected less than 2", |m| m.nodes[2].thread = 2),
        ("node 3: of thread 1, but its parent is of thread 0", |m| m.nodes[3].parent = Some(0)),
        ("stack 1: function 4, expected less than 4", |m| m.stacks[1].function = Some(4)),
        ("stack 0: program 1, expected less than 1", |m| m.stacks[0].program = 1),
        ("stack 4: of program 0, but its parent is of program 1", |m| {
            m.programs.push(m.programs[0].clone());
            m.stacks[2].program = 1;
        }),
        ("stack 3: callers that are not known, but not at the beginning of the path", |m| {
            m.stacks[3].function = None;
        }),
        ("clock: its error is negative or no number", |m| m.clock.error_ns = f64::NAN),
        ("clock: its frequency is negative or no number", |m| m.clock.ticks_per_second = -1.0),
    ];
    for (expected, change) in changes {
        let mut measured = example(true);
        change(&mut measured);
        assert_eq!(measured.check().expect_err("not valid").to_string(), expected);
        let error = Recording::read(&measured.write()).expect_err("not valid").to_string();
        assert_eq!(error, expected);
    }
    for parent in [2, 3, u32::MAX] {
        let mut measured = example(true);
        measured.nodes[2].parent = Some(parent);
        let invalid = measured.check().expect_err("not valid");
        assert!(matches!(invalid, Invalid::Index { table: "node", index: 2, field: "parent", .. }));
        assert!(Recording::read(&measured.write()).is_err());
        let mut measured = example(true);
        measured.stacks[2].parent = Some(parent);
        let invalid = measured.check().expect_err("not valid");
        assert!(matches!(invalid, Invalid::Index { table: "stack", index: 2, field: "parent", .. }));
        assert!(Recording::read(&measured.write()).is_err());
    }
    assert!(
        Recording::read(&Recording { arcs: vec![ArcTimes::default()], ..Recording::default() }.write())
            .is_err()
    );
}

/// A thousand bytes of gzip can be a million of a profile.
#[test]
fn bombs() {
    let varint = |mut number: u64| {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    };
    // Samples are skipped, but a file has an end.
    let size = 3_u64 << 30;
    let mut file = GzEncoder::new(Vec::new(), Compression::fast());
    file.write_all(&[&[2 << 3 | 2][..], &varint(size)].concat()).expect("memory");
    let zeros = vec![0; 1 << 20];
    for _ in 0..size >> 20 {
        file.write_all(&zeros).expect("memory");
    }
    let file = file.finish().expect("memory");
    assert!(matches!(Recording::read(&file), Err(ReadError::TooLarge)));

    // Empty functions take hardly a byte in the file.
    let mut empty: Vec<u8> = [5 << 3 | 2, 0].repeat(50 << 20);
    assert!(matches!(Recording::read(&packed(&empty)), Err(ReadError::TooLarge)));
    // With as many bytes that cannot be packed as a profile has, in a sample that is skipped, they are bounded by memory.
    let mut numbers = Numbers(42);
    let noise: Vec<u8> = (0..empty.len() / 100).map(|_| numbers.below(256) as u8).collect();
    empty.push(2 << 3 | 2);
    empty.extend(varint(noise.len() as u64));
    empty.extend(noise);
    assert!(matches!(Recording::read(&packed(&empty)), Err(ReadError::TooMuchMemory)));
    // A length that is a lie takes no memory.
    let lie = [&[0xc2, 0x3e][..], &varint(200 << 20), &[1, 2, 3]].concat();
    assert!(matches!(Recording::read(&packed(&lie)), Err(ReadError::Field { .. })));
    let lie = [&[0xc2, 0x3e][..], &varint(u64::MAX)].concat();
    assert!(matches!(Recording::read(&packed(&lie)), Err(ReadError::TooMuchMemory)));
}

/// Files with a few other bytes, cut off or longer, are read or refused.
#[test]
fn mutated() {
    let originals = [example(true), sampled()].map(|run| unpacked(&run.write()));
    let mut numbers = Numbers(42);
    let mut read = 0;
    for round in 0..40_000 {
        let mut bytes = originals[round % 2].clone();
        for _ in 0..1 + numbers.below(3) {
            let at = numbers.below(bytes.len() as u64) as usize;
            match numbers.below(5) {
                0 => bytes[at] = numbers.below(256) as u8,
                1 => bytes[at] ^= 1 << numbers.below(8),
                2 => bytes.truncate(at + 1),
                3 => bytes.insert(at, numbers.below(256) as u8),
                _ => {
                    let from = numbers.below(bytes.len() as u64) as usize;
                    let piece = bytes[from.min(at)..from.max(at)].to_vec();
                    bytes.extend(piece);
                }
            }
        }
        if let Ok(measured) = Recording::read(&packed(&bytes)) {
            read += 1;
            measured.check().expect("what is read is valid");
            for row in &measured.rows {
                row.quantile_ns(&measured.intervals, 0.5);
            }
            let mut sum = example(true);
            let _ = sum.merge(measured);
            sum.check().expect("a sum of valid ones");
            Recording::read(&sum.write()).expect("our own file");
        }
    }
    assert!(read > 100, "{read}");
    let file = example(true).write();
    for at in 0..file.len() {
        let mut bytes = file.clone();
        bytes[at] ^= 1 << numbers.below(8);
        let _ = Recording::read(&bytes);
        assert!(Recording::read(&file[..at]).is_err());
    }
}

/// Prints the size of a large file and how long it takes. Run it with `--ignored --nocapture`.
#[test]
#[ignore = "it measures"]
fn figures() {
    let measured = synthetic(50_000, 300_000, 1_000_000);
    let mut depths: Vec<u64> = Vec::new();
    for node in &measured.nodes {
        depths.push(1 + node.parent.map_or(0, |parent| depths[parent as usize]));
    }
    println!("{} frames in all paths, {:?} in the longest", depths.iter().sum::<u64>(), depths.iter().max());
    for (what, measured) in
        [("with paths", measured.clone()), ("without paths", Recording { nodes: Vec::new(), ..measured })]
    {
        let begun = Instant::now();
        let file = measured.write();
        let written = begun.elapsed();
        let begun = Instant::now();
        let read = Recording::read(&file).expect("our own file");
        let elapsed = begun.elapsed();
        println!(
            "{what}: {} bytes, {} decompressed, written in {written:.2?}, read in {elapsed:.2?}",
            file.len(),
            unpacked(&file).len()
        );
        assert!(read == measured);
        if let Some(folder) = std::env::var_os("FIGURES") {
            let name = format!("{}.pb.gz", what.replace(' ', "-"));
            std::fs::write(std::path::Path::new(&folder).join(name), &file).expect("a file");
        }
    }
}
