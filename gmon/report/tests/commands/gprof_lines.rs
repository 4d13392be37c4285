//! gprof prints the right counts of lines from what [`gmon_blocks::at_lines`] makes of basic blocks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use gmon::Profile;
use gprofinject_image::debug::Lines;

use crate::support::truth::{Truth, have, is_own};
use crate::support::{Folder, bytes, run};

const LOOPS: &str = include_str!("programs/loops.c");

/// Returns the numbers that gprof prints before each line of a file.
fn annotated(program: &Path, file: &Path, options: &[&str], source: &str) -> BTreeMap<u32, String> {
    let output = run(Command::new("gprof").args(options).arg(program).arg(file));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let body = text.split_once(&format!("{source}:\n")).expect("the file's listing").1;
    let lines = body.lines().take_while(|line| *line != "Top 10 Lines:").enumerate();
    let counts = lines.filter_map(|(index, line)| {
        // Longer numbers are cut off after 16 columns, with the arrow.
        let margin = line.get(..16)?.trim_end_matches("-> ").trim();
        (!margin.is_empty()).then(|| (index as u32 + 1, margin.to_owned()))
    });
    counts.collect()
}

/// Returns the count of each line's lowest instruction, by callgrind and by the line table of objdump.
fn lowest(program: &Path, source: &str, truth: &Truth) -> BTreeMap<u32, (u64, u64)> {
    let output = run(Command::new("objdump").args(["--dwarf=decodedline"]).arg(program));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Of several lines of an address, the instruction belongs to the last one.
    let mut lines = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [file, number, address, ..] = words.as_slice()
            && *file == source
            && let (Ok(number), Some(address)) = (number.parse::<u32>(), address.strip_prefix("0x"))
            && let Ok(address) = u64::from_str_radix(address, 16)
        {
            lines.insert(address, number);
        }
    }
    let mut lowest = BTreeMap::new();
    for (address, number) in lines {
        lowest.entry(number).or_insert(address);
    }
    lowest.into_iter().map(|(line, address)| (line, (address, truth.count(address)))).collect()
}

/// Returns a program at an optimisation level, callgrind's counts of it, and its line table.
fn counted(name: &str, level: &str) -> (Folder, PathBuf, Truth, Lines) {
    let folder = Folder::new(&format!("{name}{level}"));
    let program = folder.build("loops.c", LOOPS, &[level]);
    let truth = Truth::of(&folder, &program, &[]);
    let lines = Lines::parse(&std::fs::read(&program).expect("the program")).expect("line information");
    (folder, program, truth, lines)
}

#[test]
fn each_line_begins_with_the_count_of_its_lowest_address() {
    if !have("valgrind") {
        return;
    }
    for level in ["-O0", "-O1", "-O2"] {
        let (folder, program, truth, lines) = counted("gprof-lines", level);
        let mut profile = truth.profile(is_own);
        profile.blocks = gmon_blocks::at_lines(&profile.blocks, &truth.code, &lines);
        let file = folder.write("gmon.out", &bytes(&profile));
        let expected = lowest(&program, "loops.c", &truth);
        assert!(expected.len() > 20, "{level}: {expected:?}");
        let plain = annotated(&program, &file, &["-l", "-A"], "loops.c");
        let all = annotated(&program, &file, &["-l", "-A", "-x"], "loops.c");
        for (line, (address, count)) in &expected {
            let says = |printed: &BTreeMap<u32, String>, place: usize| {
                let text =
                    printed.get(line).unwrap_or_else(|| panic!("{level}: line {line} is not annotated"));
                // gprof has a mark for lines whose counts are all 0.
                let number = text.split(',').nth(place).map(|number| number.replace("#####", "0"));
                number.is_some_and(|number| number.parse() == Ok(*count))
            };
            assert!(says(&plain, 0), "{level}: line {line} at {address:#x}, {count}: {plain:?}");
            // With -x, gprof prints the count of the previous line before a line with several ranges of code.
            // Equal counts in a row are printed once.
            assert!(says(&all, 0) || says(&all, 1), "{level}: line {line} at {address:#x}, {count}: {all:?}");
        }
        // -C lists each basic block; -J shows what -A does not.
        let output = run(Command::new("gprof").args(["-l", "-z", "-C"]).arg(&program).arg(&file));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for block in &profile.blocks {
            let words = format!(":{:#x}) {} executions", block.addr, block.count);
            assert!(text.contains(&words), "{level}: {words} is not in {text}");
        }
        let output = run(Command::new("gprof").args(["-l", "-J", "-p"]).arg(&program).arg(&file));
        assert!(!String::from_utf8_lossy(&output.stdout).contains("*** File"));
    }
}

/// Without records at the beginnings of lines, gprof prints other values, so the test above can fail.
#[test]
fn without_our_help_gprof_prints_other_counts() {
    if !have("valgrind") {
        return;
    }
    let folder = Folder::new("gprof-lines-plain");
    let program = folder.build("loops.c", LOOPS, &["-O2"]);
    let truth = Truth::of(&folder, &program, &[]);
    let profile = truth.profile(is_own);
    let file = folder.write("gmon.out", &bytes(&profile));
    let printed = annotated(&program, &file, &["-l", "-A", "-x"], "loops.c");
    let wrong = lowest(&program, "loops.c", &truth).into_iter().filter(|(line, (_, count))| {
        let first = printed.get(line).and_then(|text| text.split(',').next()).unwrap_or_default();
        first.parse() != Ok(*count) && !(first == "#####" && *count == 0)
    });
    assert!(wrong.count() > 0, "{printed:?}");
}

/// Additional records with the same counts do not change reports, and there are none where nothing leads.
#[test]
fn the_records_at_lines_say_what_callgrind_says() {
    if !have("valgrind") {
        return;
    }
    for level in ["-O0", "-O2", "-O3"] {
        let (_folder, _, truth, lines) = counted("records-lines", level);
        let plain = Profile { blocks: truth.blocks(is_own), ..truth.profile(is_own) };
        let split = gmon_blocks::at_lines(&plain.blocks, &truth.code, &lines);
        assert!(split.len() > plain.blocks.len());
        for block in &split {
            assert_eq!(block.count, truth.count(block.addr), "{level}: {:#x}", block.addr);
        }
        assert_eq!(gmon_blocks::at_lines(&split, &truth.code, &lines), split);
    }
}

/// gprof's limits, which the README names: ten blocks of a line, 16 columns, files without calls, warnings.
#[test]
fn limits_of_gprof() {
    if !have("valgrind") {
        return;
    }
    let folder = Folder::new("gprof-limits");
    let bits: Vec<String> = (0..15).map(|bit| format!("(x >> {bit} & 1 ? a++ : b++)")).collect();
    let source = format!(
        "int a, b;\nstatic int many(int x)\n{{\n    return {};\n}}\nint main(void)\n{{\n    int sum = 0;\n    \
         for (int i = 0; i < 100; i++)\n        sum += many(i);\n    return sum < 0;\n}}\n",
        bits.join(" + ")
    );
    let program = folder.build("many.c", &source, &["-O0"]);
    let truth = Truth::of(&folder, &program, &[]);
    let lines = Lines::parse(&std::fs::read(&program).expect("the program")).expect("line information");
    let mut profile = truth.profile(is_own);
    profile.blocks = gmon_blocks::at_lines(&profile.blocks, &truth.code, &lines);
    let file = folder.write("gmon.out", &bytes(&profile));
    let printed = annotated(&program, &file, &["-l", "-A"], "many.c");
    assert_eq!(printed[&4], "100,50,50,100,50");
    assert_eq!(printed[&10], "100,100");
    let output = run(Command::new("gprof").args(["-l", "-C"]).arg(&program).arg(&file));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(text.lines().filter(|line| line.contains("many.c:4: (many:")).count(), 10, "{text}");

    profile.arcs.clear();
    let file = folder.write("no-arcs.out", &bytes(&profile));
    let output = run(Command::new("gprof").args(["-l", "-A"]).arg(&program).arg(&file));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("*** File"));
    let printed = annotated(&program, &file, &["-l", "-z", "-A"], "many.c");
    assert_eq!(printed[&3], "0,100");
}
