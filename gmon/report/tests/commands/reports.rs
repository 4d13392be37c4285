//! The reports against callgrind's count of each instruction, and the messages if they cannot be made.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gmon::{Arc, Block, BuildId, Format, Profile};
use gprofinject_image::x86::goes_on;
use serde_json::Value;

use crate::support::truth::{Truth, have, is_own};
use crate::support::{Folder, bytes, run};

const LOOPS: &str = include_str!("programs/loops.c");
const SHAPES: &str = include_str!("programs/shapes.c");
const TEMPLATES: &str = include_str!("programs/templates.cc");

fn gmon(args: &[&str], files: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gmon")).args(args).args(files).output().expect("gmon runs")
}

fn text(args: &[&str], files: &[&Path]) -> String {
    let output = gmon(args, files);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    assert_eq!(output.status.code(), Some(0), "{args:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns what a report, of which `report` are the words, says of the one module in JSON.
fn json(report: &str, args: &[&str], files: &[&Path]) -> Value {
    let words: Vec<&str> = report.split(' ').chain(["--json"]).chain(args.iter().copied()).collect();
    let text = text(&words, files);
    let mut value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let schema = match report {
        "lines" => "gmon-lines",
        "lines --by function" => "gmon-lines-by-function",
        "lines --by file" => "gmon-lines-by-file",
        "lines --coverage" => "gmon-coverage",
        "asm" => "gmon-asm",
        _ => "gmon-blocks",
    };
    assert_eq!((&value["schema"], &value["version"]), (&schema.into(), &1.into()), "{report}");
    assert_eq!(items(&value, "modules").len(), 1, "{report}");
    value["modules"][0].take()
}

fn items<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().unwrap_or_else(|| panic!("no {key} in {value}"))
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// A program, callgrind's counts, and the profile with these counts.
struct Case {
    folder: Folder,
    program: PathBuf,
    truth: Truth,
    profile: PathBuf,
}

impl Case {
    fn new(name: &str, source_name: &str, source: &str, options: &[&str]) -> Option<Case> {
        if !have("valgrind") {
            return None;
        }
        let folder = Folder::new(name);
        let program = folder.build(source_name, source, options);
        let truth = Truth::of(&folder, &program, &[]);
        let profile = folder.write("gmon.out", &bytes(&truth.profile(is_own)));
        Some(Case { folder, program, truth, profile })
    }

    fn loops(name: &str) -> Option<Case> {
        Case::new(name, "loops.c", LOOPS, &["-O0"])
    }

    fn files(&self) -> [&Path; 2] {
        [&self.program, &self.profile]
    }

    /// Returns the counts of a function's instructions, without padding after its end.
    fn counts(&self, name: &str) -> Vec<u64> {
        let functions = self.truth.code.functions();
        let function = functions.iter().find(|f| f.name == name).expect("a function");
        let inside = self.truth.code.instructions(function.start).take_while(|i| i.ip() < function.end());
        inside.map(|instruction| self.truth.count(instruction.ip())).collect()
    }
}

/// Returns the counts of `gmon asm`, by address. Those not counted are left out.
fn instructions(files: &[&Path]) -> BTreeMap<u64, u64> {
    let report = json("asm", &[], files);
    let all = items(&report, "functions").iter().flat_map(|function| items(function, "instructions"));
    all.filter_map(|i| Some((number(i, "address"), i["count"].as_u64()?))).collect()
}

#[test]
fn each_instruction_has_callgrinds_count() {
    for (source_name, source) in [("loops.c", LOOPS), ("shapes.c", SHAPES), ("templates.cc", TEMPLATES)] {
        for level in ["-O0", "-O1", "-O2", "-O3"] {
            let name = format!("instructions-{source_name}{level}");
            let Some(case) = Case::new(&name, source_name, source, &[level]) else { return };
            let report = instructions(&case.files());
            assert!(report.len() > 50, "{name}: {}", report.len());
            let mut ran = 0;
            for (address, count) in &report {
                assert_eq!(*count, case.truth.count(*address), "{name}: {address:#x}");
                ran += u64::from(*count > 0);
            }
            let own = case.truth.code.functions().iter().filter(|function| is_own(&function.name));
            let expected: usize = own.map(|f| case.truth.instructions.range(f.start..f.end()).count()).sum();
            assert_eq!(ran, expected as u64, "{name}: an instruction that ran is missing");

            // The other reports have the same sums.
            let executed: u64 = report.values().sum();
            let never = report.values().filter(|count| **count == 0).count() as u64;
            let total = json("lines --by function", &[], &case.files())["total"].clone();
            let sums = ["ie", "i", "ine"].map(|column| number(&total, column));
            assert_eq!(sums, [executed, report.len() as u64, never], "{name}");
            let blocks = json("asm --blocks", &[], &case.files());
            let blocks = items(&blocks, "blocks");
            let ie = blocks.iter().map(|block| number(block, "count") * number(block, "instructions"));
            assert_eq!(ie.sum::<u64>(), executed, "{name}");
            let files = json("lines --by file", &[], &case.files())["total"].clone();
            let lines = json("lines", &[], &case.files());
            let lines = items(&lines, "files").iter().flat_map(|file| items(file, "lines"));
            let by_line: u64 = lines.map(|line| number(line, "ie")).sum();
            // Some instructions have no line; constructors' calls at unrelated lines are left out.
            assert!(number(&files, "bb") <= blocks.len() as u64, "{name}");
            assert!(by_line <= executed && by_line * 100 > executed * 97, "{name}: {by_line} {executed}");
        }
    }
}

#[test]
fn the_columns_of_a_function() {
    let Some(case) = Case::loops("columns") else { return };
    let report = json("lines --by function", &[], &case.files());
    for name in ["main", "collatz", "never", "fib", "choose", "compare", "check"] {
        let row = items(&report, "functions").iter().find(|row| row["name"] == name).expect(name);
        let counts = case.counts(name);
        let never = counts.iter().filter(|count| **count == 0).count() as u64;
        let expected = [counts.iter().sum(), counts[0], counts.len() as u64, never];
        assert_eq!(["ie", "calls", "i", "ine"].map(|column| number(row, column)), expected, "{name}");
    }
    let start = items(&report, "functions").iter().find(|row| row["name"] == "_start").expect("_start");
    assert_eq!((&start["counted"], &start["ie"]), (&Value::Bool(false), &Value::Null));
    let table = text(&["lines", "--by", "function", "--sort", "calls", "-n", "1"], &case.files());
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0].join(" "), "instructions run calls instructions never run name");
    assert_eq!((rows[1][1], rows[1][4]), ("209", "compare"));
    assert_eq!(rows[2][4], "total");
    assert_eq!(rows.len(), 4, "{table}");
    let table = text(&["lines", "--by", "function"], &case.files());
    assert!(
        table.contains("  _start\n") && table.ends_with("not counted: 7 functions\n") && !table.contains('?'),
        "{table}"
    );
    let table = text(&["lines", "--by", "file"], &case.files());
    assert!(
        table.lines().next().expect("a heading").ends_with("blocks run  blocks  never run  name"),
        "{table}"
    );
}

#[test]
fn the_listing_has_counts_in_the_margin() {
    let Some(case) = Case::loops("listing") else { return };
    let listing = text(&["lines"], &case.files());
    let line = |number: usize| {
        // The heading is the first row.
        let row = listing.lines().nth(number).expect("a row");
        let (margin, rest) = row.split_at(21);
        (margin.split_whitespace().next().expect("a number").to_owned(), rest.trim_start().to_owned())
    };
    assert_eq!(line(8), ("1066".into(), "n = n % 2 ? 3 * n + 1 : n / 2;".into()));
    assert_eq!(line(17), ("#####".into(), "return x + 1;".into()));
    assert_eq!(line(71), ("51".into(), "for (int i = 0; i < 50; i++) {".into()));
    // Without code there is only the line's number.
    assert_eq!(line(66), ("66".into(), String::new()));
    // Some of its basic blocks never ran.
    assert!(line(95).0.ends_with('*'), "{listing}");
    assert!(listing.ends_with("89.39% of 66 lines executed\n\n"), "{listing}");
    let all = text(&["lines", "--all-counts"], &case.files());
    assert!(all.lines().nth(71).is_some_and(|row| row.trim_start().starts_with("1,50,51 ")), "{all}");
    let only = text(&["lines", "-f", "fib", "-i"], &case.files());
    assert!(only.ends_with("100.00% of 5 lines executed\n\n"), "{only}");
}

/// Instances of a template, and of an inlined function, are summed and shown separately.
#[test]
fn templates_and_inlined_code_apart() {
    let Some(case) = Case::new("apart", "templates.cc", TEMPLATES, &["-O0"]) else { return };
    let listing = text(&["lines", "--apart", "--file", "templates.cc"], &case.files());
    let rows: Vec<_> = listing.lines().map(str::trim).collect();
    let at = rows.iter().position(|row| row.ends_with("T sum = a + b;")).expect("the line");
    assert!(rows[at].starts_with("4 "), "{listing}");
    let expected = ["2      |  add<...>(int, int)", "1      |  add<...>(double, double)"];
    assert_eq!(rows[at + 1..at + 3], expected);

    let source = "__attribute__((always_inline)) static inline int twice(int x)\n{\n    int y = x + x;\n    \
                  return y;\n}\nint main(int argc, char **argv)\n{\n    int sum = 0;\n    \
                  for (int i = 0; i < 10; i++)\n        sum += twice(i);\n    return twice(sum) == 0;\n}\n";
    let Some(case) = Case::new("inlined", "inlined.c", source, &["-O0"]) else { return };
    let listing = text(&["lines", "--apart"], &case.files());
    let rows: Vec<_> = listing.lines().map(str::trim).collect();
    let at = rows.iter().position(|row| row.ends_with("int y = x + x;")).expect("the line");
    assert!(rows[at].starts_with("11 "), "{listing}");
    let expected = ["10      |  twice inlined into main", "1      |  twice inlined into main"];
    assert_eq!(rows[at + 1..at + 3], expected);
    // A function that was only inlined is found by its name.
    let only = text(&["lines", "-f", "twice"], &case.files());
    assert!(only.ends_with("of 2 lines executed\n\n"), "{only}");
}

/// Two runs that took different paths, one of which ended within a basic block.
#[test]
fn several_files_add_up() {
    let Some(case) = Case::loops("several") else { return };
    let other = Truth::of(&case.folder, &case.program, &["1", "2", "3", "4", "5"]);
    let lines = gprofinject_image::debug::Lines::parse(&std::fs::read(&case.program).expect("the program"))
        .expect("lines");
    let mut second = other.profile(is_own);
    // This run was made with line information,
    second.blocks = gmon_blocks::at_lines(&second.blocks, &other.code, &lines);
    // and this one crashed at the second instruction of main's last call.
    let mut third = other.profile(|name| name == "main" || name == "never");
    let place = third.blocks.iter().position(|block| {
        let next = other.code.instructions(block.addr).nth(1);
        block.count > 0 && next.is_some_and(|i| third.blocks.iter().all(|b| b.addr != i.ip()))
    });
    let block = third.blocks[place.expect("a block of two instructions")];
    let crash = other.code.instructions(block.addr).nth(1).expect("an instruction").ip();
    third.blocks.insert(place.unwrap_or(0) + 1, Block { addr: crash, count: block.count - 1 });
    let within = other.code.instructions(crash).take_while(|i| goes_on(i) && i.ip() < crash + 64);
    let behind = third.blocks.iter().map(|b| b.addr).filter(|a| *a > crash).min().unwrap_or(u64::MAX);
    let shortened: Vec<u64> = within.map(|i| i.ip()).take_while(|ip| *ip < behind).collect();

    let files = [
        case.profile.clone(),
        case.folder.write("second.out", &bytes(&second)),
        case.folder.write("third.out", &bytes(&third)),
    ];
    let all: Vec<&Path> = std::iter::once(&case.program).chain(&files).map(PathBuf::as_path).collect();
    let report = instructions(&all);
    let in_third = |address: u64| {
        let index = other.code.function_at(address).expect("a function");
        matches!(other.code.functions()[index].name.as_str(), "main" | "never")
    };
    for (address, count) in &report {
        let third = if in_third(*address) { other.count(*address) } else { 0 };
        let lost = u64::from(shortened.contains(address) || *address == crash);
        let expected = case.truth.count(*address) + other.count(*address) + third - lost;
        assert_eq!(*count, expected, "{address:#x}");
    }

    // gmon merge does the same with the program, and asks for it.
    let sum = case.folder.file("sum.out");
    let merge = ["merge", "-o", sum.to_str().expect("UTF-8")];
    let paths: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let output = gmon(&merge, &paths);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("second.out: block counts at other addresses") && stderr.contains("--program"));
    assert!(!sum.exists());
    let program = case.program.to_str().expect("UTF-8");
    text(&[&merge[..], &["--program", program]].concat(), &paths);
    assert_eq!(instructions(&[&case.program, &sum]), report);
    // So it does part by part: on any number of threads, the sum is that of all files at once.
    let many: Vec<&Path> = [2, 0, 1, 0, 2, 2, 1, 0, 1].map(|index: usize| paths[index]).to_vec();
    let at_once: Vec<&Path> = std::iter::once(case.program.as_path()).chain(many.iter().copied()).collect();
    let mut sums = Vec::new();
    for threads in ["1", "2", "3", "9"] {
        text(&[&merge[..], &["--program", program, "-j", threads]].concat(), &many);
        assert_eq!(instructions(&[&case.program, &sum]), instructions(&at_once), "{threads} threads");
        sums.push(std::fs::read(&sum).expect("the sum"));
    }
    assert!(sums.iter().all(|bytes| *bytes == sums[0]));
    // Files with the same records need no program.
    text(&merge, &[&case.profile, &case.profile]);
    let twice: BTreeMap<_, _> =
        instructions(&case.files()).into_iter().map(|(address, count)| (address, 2 * count)).collect();
    assert_eq!(instructions(&[&case.program, &sum]), twice);
}

/// The tracefile contains only what callgrind confirms, and lcov accepts it.
#[test]
fn coverage_in_percent_and_for_lcov() {
    let Some(case) = Case::loops("coverage") else { return };
    let table = text(&["lines", "--coverage"], &case.files());
    let row: Vec<_> = table.lines().nth(1).expect("a file").split_whitespace().collect();
    assert_eq!(row[..2], ["89.39%", "59/66"], "{table}");
    assert_eq!(row[4..6], ["85.71%", "6/7"], "{table}");
    let total = json("lines --coverage", &[], &case.files())["total"].clone();
    assert_eq!(number(&total["functions"], "executed"), 6);

    let trace = case.folder.file("trace.info");
    let option = format!("--lcov={}", trace.display());
    assert_eq!(text(&["lines", "--coverage", &option], &case.files()), table);
    let text = std::fs::read_to_string(&trace).expect("a tracefile");
    assert_eq!(text, self::text(&["lines", "--lcov=-"], &case.files()));
    let lines = json("lines", &[], &case.files());
    let (mut found, mut functions) = (0, 0);
    for row in text.lines() {
        if let Some((line, count)) = row.strip_prefix("DA:").and_then(|row| row.split_once(',')) {
            let line: u64 = line.parse().expect("a number");
            let expected =
                items(&items(&lines, "files")[0], "lines").iter().find(|l| number(l, "line") == line);
            assert_eq!(expected.expect("a line")["count"].to_string(), count, "{row}");
            found += 1;
        } else if let Some((count, name)) = row.strip_prefix("FNDA:").and_then(|row| row.split_once(',')) {
            assert_eq!(count, case.counts(name)[0].to_string(), "{row}");
            functions += 1;
        }
    }
    assert_eq!((found, functions), (66, 7));
    assert!(text.starts_with("TN:\nSF:/") && text.ends_with("LF:66\nLH:59\nend_of_record\n"), "{text}");
    if have("lcov") {
        let output = run(Command::new("lcov").arg("--summary").arg(&trace));
        let summary = [output.stdout, output.stderr].concat();
        let summary = String::from_utf8_lossy(&summary).into_owned();
        assert!(summary.contains("89.4% (59 of 66 lines)") && summary.contains("85.7% (6 of 7 functions)"));
    }
    if have("genhtml") {
        let html = case.folder.file("html");
        run(Command::new("genhtml").arg("-q").arg("-o").arg(&html).arg(&trace));
        assert!(html.join("index.html").is_file());
    }
}

/// Errors whose messages say what helps.
#[test]
fn errors() {
    let folder = Folder::new("report-errors");
    let build = |name: &str, options: &[&str]| folder.build(name, "int main(void) { return 0; }\n", options);
    let program = build("program.c", &[]);
    let code = gprofinject_image::instructions::Code::parse(&std::fs::read(&program).expect("the program"))
        .expect("a program");
    let main = code.functions().iter().find(|function| function.name == "main").expect("main").start;
    let mut profile = Profile::new(Format::LITTLE_64);
    profile.arcs = vec![Arc { from: main, to: main, count: 1 }];
    let none = folder.write("none.out", &bytes(&profile));
    profile.blocks = vec![Block { addr: main, count: 1 }];
    let good = folder.write("good.out", &bytes(&profile));
    let stale =
        folder.write("stale.out", &bytes(&Profile { build_id: BuildId::new(b"x"), ..profile.clone() }));
    let other = Profile { blocks: vec![Block { addr: 1 << 40, count: 1 }], ..profile };
    let other = folder.write("other.out", &bytes(&other));
    let junk = folder.write("junk", b"junk");
    let bare = build("bare.c", &["-g0"]);
    let says = |args: &[&str], files: &[&Path], words: &str| {
        let output = gmon(args, files);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.starts_with("gmon: ") && stderr.contains(words), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    };
    let says_of = |report: &str, more: &[&str], files: &[&Path], words: &str| {
        says(&report.split(' ').chain(more.iter().copied()).collect::<Vec<_>>(), files, words);
    };
    let shows = |report: &str, files: &[&Path]| {
        let output = gmon(&report.split(' ').collect::<Vec<_>>(), files);
        assert_eq!(output.status.code(), Some(0), "{report}");
    };
    let with_lines = ["lines", "lines --by file", "lines --coverage", "lines --lcov=-"];
    let without = ["asm", "asm --blocks", "lines --by function"];
    for report in with_lines.into_iter().chain(without) {
        shows(report, &[&program, &good]);
        says_of(
            report,
            &[],
            &[&program, &none],
            "none.out: no counts of basic blocks in it; `gprofinject --count lines",
        );
        says_of(report, &[], &[&program, &stale], "rebuilt since the run");
        says_of(report, &[], &[&program, &other], "1 basic block lies outside the code of");
        says_of(report, &[], &[&program, &junk], "junk: neither a program nor a profile");
        says_of(report, &[], &[&junk, &good], "junk: neither a program nor a profile");
        says_of(report, &[], &[&program, &folder.file("missing")], "missing: No such file");
        says_of(report, &["-f", "nobody"], &[&program, &good], "no function is called nobody");
    }
    for report in with_lines {
        says_of(report, &[], &[&bare, &good], "no line information");
    }
    for report in without {
        shows(report, &[&bare, &good]);
        says_of(report, &["-F", "x.c"], &[&bare, &good], "no line information");
    }
    says(&["lines", "-F", "x.c"], &[&program, &good], "no source file is called x.c");
    says(&["lines", "--substitute-path", "x"], &[&program, &good], "expected OLD=NEW");
    let wrong = format!("--debug-file={}", bare.display());
    says(&["lines", &wrong], &[&program, &good], "no line information");
}

/// A 32-bit program, and profiles of the other width.
#[test]
fn a_32_bit_program() {
    let folder = Folder::new("report-i386");
    let source = "static int f(int x)\n{\n    return x + 1;\n}\nvoid _start(void)\n{\n    f(1);\n}\n";
    let options = ["-m32", "-O0", "-fno-pic", "-no-pie", "-nostdlib", "-static"];
    let program = folder.build("narrow.c", source, &options);
    let code = gprofinject_image::instructions::Code::parse(&std::fs::read(&program).expect("the program"))
        .expect("a program");
    let blocks = code.functions().iter().map(|function| Block { addr: function.start, count: 7 });
    let narrow = Profile { blocks: blocks.collect(), ..Profile::new(Format::LITTLE_32) };
    let wide = folder.write("wide.out", &bytes(&Profile { format: Format::LITTLE_64, ..narrow.clone() }));
    let narrow = folder.write("narrow.out", &bytes(&narrow));
    let report = json("lines", &[], &[&program, &narrow]);
    let line = items(&items(&report, "files")[0], "lines").iter().find(|line| number(line, "line") == 3);
    assert_eq!(number(line.expect("the line"), "count"), 7);
    let output = gmon(&["lines"], &[&program, &wide]);
    assert_eq!(output.status.code(), Some(2));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("wide.out: a 64-bit little-endian profile, but"), "{stderr}");
}

/// Debug information in a separate file, compressed, or both.
#[test]
fn separate_debug_files() {
    let Some(case) = Case::loops("separate") else { return };
    let expected = json("lines", &[], &case.files())["files"].clone();
    let (debug, bare) = (case.folder.file("loops.debug"), case.folder.file("bare"));
    run(Command::new("objcopy").arg("--only-keep-debug").arg(&case.program).arg(&debug));
    run(Command::new("strip").arg("-o").arg(&bare).arg(&case.program));
    let option = format!("--debug-file={}", debug.display());
    assert_eq!(json("lines", &[&option], &[&bare, &case.profile])["files"], expected);
    assert_eq!(gmon(&["lines"], &[&bare, &case.profile]).status.code(), Some(2));
    run(Command::new("objcopy")
        .arg("--add-gnu-debuglink=loops.debug")
        .arg(&bare)
        .current_dir(&case.folder.0));
    assert_eq!(json("lines", &[], &[&bare, &case.profile])["files"], expected);
    let packed = case.folder.file("packed");
    run(Command::new("objcopy").arg("--compress-debug-sections").arg(&case.program).arg(&packed));
    assert_eq!(json("lines", &[], &[&packed, &case.profile])["files"], expected);
    // The debug file of another program is not used.
    let other = case.folder.build("other.c", "int main(void) { return 0; }\n", &[]);
    let option = format!("--debug-file={}", other.display());
    let output = gmon(&["lines", &option], &[&bare, &case.profile]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("its build-id is not that of"));
    // Functions of a program without any names still have counts.
    run(Command::new("objcopy").args(["--remove-section=.gnu_debuglink"]).arg(&bare));
    let functions = json("lines --by function", &[], &[&bare, &case.profile]);
    let named = json("lines --by function", &[], &case.files());
    assert_eq!(functions["total"]["ie"], named["total"]["ie"]);
    let main = items(&named, "functions").iter().find(|function| function["name"] == "main").expect("main");
    let same = items(&functions, "functions").iter().find(|function| function["address"] == main["address"]);
    assert_eq!(same.expect("main without a name")["ie"], main["ie"]);
}

#[test]
fn sources_that_have_moved() {
    let Some(case) = Case::loops("moved") else { return };
    let moved = case.folder.file("elsewhere");
    std::fs::create_dir_all(&moved).expect("a folder");
    std::fs::rename(case.folder.file("loops.c"), moved.join("loops.c")).expect("a move");
    let output = gmon(&["lines"], &case.files());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr.contains("loops.c not found; --source-dir DIR or --substitute-path"), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        stdout.contains("(source not found)") && stdout.contains("\n          1066      8\n"),
        "{stdout}"
    );
    let here = text(&["lines", "--source-dir", moved.to_str().expect("UTF-8")], &case.files());
    assert!(here.contains("n = n % 2 ?"), "{here}");
    let substitute = format!("{}={}", case.folder.0.display(), moved.display());
    assert_eq!(text(&["lines", "--substitute-path", &substitute], &case.files()), here);
}

#[test]
fn sources_that_have_changed() {
    let Some(case) = Case::loops("changed") else { return };
    let source = std::fs::File::options().write(true).open(case.folder.file("loops.c")).expect("the source");
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    source.set_modified(later).expect("a time");
    let output = gmon(&["lines"], &case.files());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr.contains("loops.c: newer than the program"), "{stderr}");
}

/// A function that was not counted is shown differently from one that never ran.
#[test]
fn not_counted_and_never_executed() {
    let Some(case) = Case::loops("chosen") else { return };
    let chosen = case.truth.profile(|name| matches!(name, "main" | "never"));
    let file = case.folder.write("chosen.out", &bytes(&chosen));
    let files: [&Path; 2] = [&case.program, &file];
    let listing = text(&["lines"], &files);
    let margin = |number: usize| listing.lines().nth(number).and_then(|row| row.split_whitespace().next());
    // The functions collatz, never and main.
    assert_eq!([6, 16, 70].map(margin), [Some("6"), Some("#####"), Some("1")], "{listing}");
    assert!(listing.contains(" lines executed, 37 not counted\n"), "{listing}");
    let table = text(&["lines", "--coverage"], &files);
    assert!(table.contains("  1/2  ") && table.ends_with("not counted: 5 functions, 37 lines\n"), "{table}");
    let trace = text(&["lines", "--lcov=-"], &files);
    assert!(trace.contains("FNF:2\n") && !trace.contains("DA:6,") && trace.contains("DA:16,0\n"), "{trace}");
    let report = text(&["asm", "-f", "fib"], &files);
    assert!(report.starts_with("fib: not counted"), "{report}");
    let lines = json("lines", &[], &files);
    let line = items(&items(&lines, "files")[0], "lines").iter().find(|line| number(line, "line") == 6);
    assert_eq!(line.expect("a line")["count"], Value::Null);
}

#[test]
fn colours_and_closed_pipes() {
    let Some(case) = Case::loops("colours") else { return };
    let plain = text(&["lines"], &case.files());
    assert!(!plain.contains('\x1b'));
    let coloured = text(&["lines", "--color", "always"], &case.files());
    assert!(coloured.contains("\x1b[31m") && !coloured.contains("\x1b[0m\x1b"), "{coloured}");
    let stripped = ["\x1b[31m", "\x1b[1m", "\x1b[2m", "\x1b[0m"];
    assert_eq!(stripped.iter().fold(coloured, |text, code| text.replace(code, "")), plain);
    for report in ["lines", "asm", "asm --blocks", "lines --by function", "lines --lcov=-"] {
        let script = format!(
            "{{ {} {report} {} {}; echo $? >&2; }} | true",
            env!("CARGO_BIN_EXE_gmon"),
            case.program.display(),
            case.profile.display()
        );
        let output = Command::new("sh").args(["-c", &script]).output().expect("sh");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "0\n", "{report}");
    }
}
