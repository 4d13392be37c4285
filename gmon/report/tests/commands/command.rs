//! The `gmon` command: its output, its exit status, and the files that it writes.

use std::path::Path;
use std::process::{Command, Output};

use gmon::{Arc, BuildId, Format, HistogramBuilder, Profile};

use crate::support::{Folder, bytes};

fn gmon(args: &[&str], files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
    command.args(args).args(files).output().expect("gmon runs")
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn profile(rate: u32) -> Profile {
    let mut samples = HistogramBuilder::new(0x1000..0x2000, rate);
    samples.add(0x1234, 60_000);
    let arcs = vec![Arc { from: 0x1100, to: 0x1234, count: 4_000_000_000 }];
    Profile { histograms: samples.build().histograms, arcs, ..Profile::new(Format::LITTLE_64) }
}

fn names(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(&folder.0).expect("the folder");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn records() {
    let folder = Folder::new("records");
    let file = folder.write("a.out", &bytes(&profile(250)));
    let output = gmon(&["check", "--records"], &[&file]);
    assert_eq!(
        stdout(&output),
        "format 64-bit little-endian, 2 records\n\
         histogram 0x1000..0x2000, 2048 bins of 2 bytes, 250 per second in seconds (s), 60000 hits\n  \
         0x1234 60000\n\
         arc 0x1100 -> 0x1234 4000000000\n"
    );
    let output = gmon(&["check", "--records", "--json"], &[&file]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["histograms"][0]["hits"][0]["hits"], 60_000);
    assert_eq!(value["arcs"][0]["count"], 4_000_000_000u64);
    assert_eq!(value["width"], 64);
}

#[test]
fn records_with_names() {
    let folder = Folder::new("names");
    let prog = folder.compile(&[]);
    let mut profile = Profile::new(Format::LITTLE_64);
    profile.arcs = vec![Arc { from: prog.address("main") + 4, to: prog.address("far"), count: 3 }];
    let file = folder.write("a.out", &bytes(&profile));
    let prog = prog.path.to_str().expect("UTF-8");
    let text = stdout(&gmon(&["check", "--records", "--program", prog], &[&file]));
    assert!(text.contains(" main+0x4 -> ") && text.contains(" far 3\n"), "{text}");
    let output = gmon(&["check", "--records", "--json", "--program", prog], &[&file]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["arcs"][0]["caller"], "main");
}

/// A file of another build of the program is recognised wherever both builds are known.
#[test]
fn builds_are_told_apart() {
    let folder = Folder::new("builds");
    let prog = folder.compile(&["-Wl,--build-id=0xfedcba98765432100123456789abcdef01234567"]);
    let with = |id: &[u8]| bytes(&Profile { build_id: BuildId::new(id), ..profile(250) });
    let good = folder.write("good.out", &with(&prog.program.build_id.bytes()));
    let stale = folder.write("stale.out", &with(b"another"));
    let unknown = folder.write("unknown.out", &bytes(&profile(250)));
    assert!(
        stdout(&gmon(&["check", "--records"], &[&good])).contains("\nbuild-id fedcba987654321001234567..\n")
    );
    let value: serde_json::Value =
        serde_json::from_slice(&gmon(&["check", "--records", "--json"], &[&good]).stdout).expect("JSON");
    assert_eq!(value["build_id"], "fedcba987654321001234567");

    let sum = folder.file("sum.out");
    let merge = |files: &[&Path]| gmon(&["merge", "-o", sum.to_str().expect("UTF-8")], files);
    assert_eq!(code(&merge(&[&unknown, &good])), Some(0));
    let read = gmon::read(&std::fs::read(&sum).expect("the sum")).expect("our own file");
    assert_eq!(read.build_id, prog.program.build_id);
    let output = merge(&[&good, &stale]);
    assert_eq!(code(&output), Some(2));
    assert!(
        stderr(&output).contains("build-id 616e6f746865720000000000.. after fedc"),
        "{}",
        stderr(&output)
    );

    let check = |file: &Path| gmon(&["check", "--program", prog.path.to_str().expect("UTF-8")], &[file]);
    assert!(
        stdout(&check(&stale)).contains("error: the program has build-id fedc"),
        "{}",
        stdout(&check(&stale))
    );
    assert!(!stdout(&check(&unknown)).contains("build-id"));
}

#[test]
fn merge_keeps_what_was_there_when_it_fails() {
    let folder = Folder::new("merge");
    let a = folder.write("a.out", &bytes(&profile(250)));
    let b = folder.write("b.out", &bytes(&profile(100)));
    let sum = folder.write("sum.out", b"precious");
    let out = ["merge", "-o", sum.to_str().expect("UTF-8")];

    let output = gmon(&out, &[&a, &b]);
    assert_eq!(code(&output), Some(2));
    let expected = format!("gmon: {}: a rate of 100 per second after 250, expected one rate\n", b.display());
    assert_eq!(stderr(&output), expected);
    assert_eq!(std::fs::read(&sum).expect("the old file"), b"precious");
    assert_eq!(names(&folder), ["a.out", "b.out", "sum.out"]);

    // The output may be one of the inputs.
    std::fs::copy(&a, &sum).expect("a copy");
    let output = gmon(&out, &[&a, &sum, &a]);
    assert_eq!((code(&output), stderr(&output)), (Some(0), String::new()));
    let read = gmon::read(&std::fs::read(&sum).expect("the sum")).expect("our own file");
    assert_eq!(read.arcs[0].count, 12_000_000_000);
    assert_eq!(read.histograms[0].hits(), 180_000);
    assert_eq!(names(&folder), ["a.out", "b.out", "sum.out"]);
}

#[test]
fn merge_into_odd_places() {
    let folder = Folder::new("places");
    let a = folder.write("a.out", &bytes(&profile(250)));
    let link = folder.file("link.out");
    std::os::unix::fs::symlink("a.out", &link).expect("a link");
    let merge = |out: &Path| gmon(&["merge", "-o", out.to_str().expect("UTF-8")], &[&a]);
    assert_eq!(code(&merge(&link)), Some(0));
    assert!(link.is_symlink());
    assert_eq!(code(&merge(Path::new("/dev/null"))), Some(0));
    assert!(!Path::new("/dev/null").is_file());
    assert!(merge(Path::new("/dev/stdout")).stdout == bytes(&profile(250)));
    let output = merge(&folder.0);
    assert_eq!(code(&output), Some(2));
    assert!(stderr(&output).contains("Is a directory"), "{}", stderr(&output));
    assert_eq!(code(&merge(&folder.file("missing/sum.out"))), Some(2));
    assert_eq!(names(&folder), ["a.out", "link.out"]);
}

#[test]
fn check_exits_with_what_it_found() {
    let folder = Folder::new("check");
    let good = folder.write("good.out", &bytes(&profile(250)));
    let cut = folder.write("cut.out", &bytes(&profile(250))[..4170]);
    assert_eq!(code(&gmon(&["check"], &[&good])), Some(0));
    let output = gmon(&["check"], &[&good, &cut]);
    assert_eq!(code(&output), Some(1));
    assert!(stdout(&output).contains("cut.out: error: "), "{}", stdout(&output));
    let output = gmon(&["check"], &[&good, &folder.file("missing.out")]);
    assert_eq!(code(&output), Some(2));
    assert!(stderr(&output).contains("missing.out: No such file"), "{}", stderr(&output));
}

#[test]
fn what_is_no_profile() {
    let folder = Folder::new("no-profile");
    let empty = folder.write("empty", b"");
    let cut = folder.write("cut", &bytes(&profile(250))[..4170]);
    let says = |path: &Path, words: &str| {
        let output = gmon(&["check", "--records"], &[path]);
        assert_eq!(code(&output), Some(2), "{words}");
        assert_eq!(stderr(&output), format!("gmon: {}: {words}\n", path.display()));
    };
    says(&empty, "header cut off, at offset 0, expected 20 bytes, found 0");
    says(&folder.0, "is a folder, expected a file or a pipe");
    let zeros = folder.write("zeros", &[0; 100]);
    says(&zeros, "not a gmon.out file: begins with \"\\x00\\x00\\x00\\x00\", at offset 0, expected \"gmon\"");
    says(&cut, "arc's function cut off, at offset 4166, expected 8 bytes, found 4");
}

#[test]
fn the_form_can_be_forced() {
    let folder = Folder::new("forced");
    let ambiguous = [&b"gmon\x01\0\0\0"[..], &[0; 12], &[1; 13 * 21]].concat();
    let file = folder.write("a.out", &ambiguous);
    assert!(stdout(&gmon(&["check", "--records"], &[&file])).contains("makes sense as 32-bit too"));
    let text = stdout(&gmon(&["check", "--records", "--width", "32"], &[&file]));
    assert!(text.starts_with("format 32-bit little-endian, 21 records\narc "), "{text}");
    let output = gmon(&["check", "--records", "--endian", "big"], &[&file]);
    assert!(stderr(&output).contains("the file is little-endian"), "{}", stderr(&output));
}

#[test]
fn the_reader_goes_away() {
    let folder = Folder::new("pipe");
    let mut profile = profile(250);
    profile.arcs = (0..100_000).map(|n| Arc { from: n, to: n, count: 1 }).collect();
    let file = folder.write("a.out", &bytes(&profile));
    let script = format!(
        "{{ {} check --records {}; echo $? >&2; }} | head -n 1",
        env!("CARGO_BIN_EXE_gmon"),
        file.display()
    );
    let output = Command::new("sh").args(["-c", &script]).output().expect("sh");
    assert_eq!(stderr(&output), "0\n");
}

/// Files that may have no end or no beginning are refused. A pipe to which a process writes is read like a
/// file.
#[test]
fn pipes_are_read_and_devices_refused() {
    let folder = Folder::new("pipes");
    let file = folder.write("a.out", &bytes(&profile(250)));
    let expected = stdout(&gmon(&["check", "--records"], &[&file]));
    assert!(!expected.is_empty());
    // The shell's own pipe, one whose writer takes some time, and one that is written to later.
    let later = folder.0.join("later");
    assert!(Command::new("mkfifo").arg(&later).status().expect("mkfifo runs").success());
    for script in [
        "exec $GMON check --records <(cat $FILE)",
        "exec $GMON check --records <(sleep 6; cat $FILE)",
        "(sleep 1; cat $FILE > $LATER) & $GMON check --records $LATER",
        "$GMON check --records /dev/stdin < $FILE",
        "cat $FILE | $GMON check --records /dev/stdin",
    ] {
        let mut command = Command::new("bash");
        command.args(["-c", script]).env("GMON", env!("CARGO_BIN_EXE_gmon"));
        let output = command.env("FILE", &file).env("LATER", &later).output().expect("bash runs");
        assert_eq!(stdout(&output), expected, "{script}: {}", stderr(&output));
    }
    for (path, message) in [
        (later.as_path(), "is a pipe to which no process writes"),
        (Path::new("/dev/zero"), "is a device, expected a file or a pipe"),
        (Path::new("/dev/tty"), "/dev/tty: "),
        (folder.0.as_path(), "is a folder, expected a file or a pipe"),
    ] {
        let output = gmon(&["check", "--records"], &[path]);
        assert_eq!(code(&output), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
    // Of an endless pipe that does not begin as a profile does, only the beginning is read.
    let output = Command::new("bash")
        .args(["-c", "$GMON check --records <(yes)"])
        .env("GMON", env!("CARGO_BIN_EXE_gmon"))
        .output()
        .expect("bash runs");
    assert!(stderr(&output).contains("gmon: "), "{}", stderr(&output));
}

/// A mistake is one line and a tip, without a block of usage.
#[test]
fn mistakes_are_one_line_and_a_tip() {
    let say = |line: &str| {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let output = gmon(&words, &[]);
        assert_eq!((code(&output), stdout(&output)), (Some(2), String::new()), "{line}");
        let said = stderr(&output);
        assert!(matches!(said.lines().count(), 1 | 2) && !said.contains("Usage"), "{line}: {said}");
        assert!(said.lines().all(|line| line.starts_with("gmon: ")), "{line}: {said}");
        said.replace("gmon: ", "")
    };
    for (line, expected) in [
        ("export", "missing: --to <FORMAT>\ntip: gmon export --to <FORMAT> [RUN]...\n"),
        ("diff", "missing: <OLD> <NEW>...\ntip: gmon diff [OPTIONS] [PROG] OLD [PROG] NEW\n"),
        ("merge", "missing: --output <OUT> <FILE>...\ntip: gmon merge --output <OUT> <FILE>...\n"),
        ("foo", "unrecognized subcommand 'foo'\ntip: gmon --help lists the commands\n"),
        ("flta", "unrecognized subcommand 'flta'\ntip: a similar subcommand exists: 'flat'\n"),
        ("flat --foo", "unexpected argument '--foo' found\ntip: gmon flat --help shows all options\n"),
        ("flat --srot", "unexpected argument '--srot' found\ntip: a similar argument exists: '--sort'\n"),
        (
            "flat --n 3",
            "unexpected argument '--n' found\ntip: options of one letter have one dash; gmon flat --help shows all options\n",
        ),
        ("flat -n x", "invalid value 'x' for '--limit <ROWS>': invalid digit found in string\n"),
    ] {
        assert_eq!(say(line), expected, "{line}");
    }
    assert!(say("flat --sort foo").contains("[possible values: self, inclusive,"));
    assert!(say("diff a").contains("tip: gmon diff [OPTIONS] [PROG] OLD [PROG] NEW"));
    for line in
        ["--foo", "help foo", "check --json", "trace --folded --json t", "export --to xx", "--generate"]
    {
        say(line);
    }
    // What was asked for is no mistake.
    let output = gmon(&["flat", "--help"], &[]);
    assert_eq!((code(&output), stderr(&output)), (Some(0), String::new()));
    assert!(stdout(&output).contains("Usage: gmon flat"));
}

/// Without the name of a file, the files of the newest run are checked, of both kinds.
#[test]
fn check_without_a_name() {
    let folder = Folder::new("check-here");
    let check = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
        command.arg("check").current_dir(&folder.0).output().expect("gmon runs")
    };
    assert_eq!(
        stderr(&check()),
        "gmon: no gmon.out or gmon.pb.gz in this folder; `gprofinject PROG` writes it\n"
    );
    folder.write("gmon.out", &bytes(&profile(250)));
    let run = gmon_run::Recording::default().write();
    folder.write("gmon.pb.gz", &run);
    let output = check();
    assert_eq!((code(&output), stderr(&output)), (Some(0), String::new()), "{}", stdout(&output));
    assert!(stdout(&output).contains("gmon.out: "), "{}", stdout(&output));
    folder.write("gmon.pb.gz", &run[..run.len() / 2]);
    let output = check();
    assert_eq!(code(&output), Some(1));
    assert!(stdout(&output).contains("gmon.pb.gz: error: "), "{}", stdout(&output));
}
