//! The files that say which run is shown, and words that name none, on measured times that were made up by hand.

use std::path::Path;
use std::process::Command;

use crate::example::example;
use crate::support::Folder;
use crate::support::commands::{folder, gmon, json, message, text};

/// The names of the program and of the file may be left out, and a file for another build is refused.
#[test]
fn files() {
    let folder = folder("files", &example(true));
    let program = folder.compile(&["-Wl,--build-id=0xfedcba98765432100123456789abcdef01234567"]).path;
    let program = program.to_str().expect("UTF-8");
    let default = text(&folder, &["flat"]);
    assert_eq!(text(&folder, &["flat", "gmon.pb.gz"]), default);
    let stale = message(&folder, &["flat", program]);
    let expected = format!(
        "gmon.pb.gz: of the program with build-id ab01ff000000000000000000.., but {program} has \
         fedcba987654321001234567..: rebuilt since the run"
    );
    assert_eq!(stale, expected);
    assert_eq!(message(&folder, &["graph", "-f", "main", program, "gmon.pb.gz"]), expected);
    let mut ours = example(true);
    ours.modules[0].build_id =
        [0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10, 1, 0x23, 0x45, 0x67, 0x89].to_vec();
    folder.write("ours.gz", &ours.write());
    assert_eq!(text(&folder, &["flat", program, "ours.gz"]), default);
    // A pipe can be read only once.
    let command = format!("{} flat <(cat gmon.pb.gz)", env!("CARGO_BIN_EXE_gmon"));
    let output =
        Command::new("bash").args(["-c", &command]).current_dir(&folder.0).output().expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), default);

    let wrong = message(&folder, &["flat", "gmon.pb.gz", program]);
    assert!(
        wrong.ends_with("/prog: a program after gmon.pb.gz; a program comes before its results"),
        "{wrong}"
    );
    folder.write("gmon.out", b"gmon\x01\0\0\0");
    assert_eq!(
        message(&folder, &["flat", "gmon.out"]),
        "gmon.out: it has addresses only, and the names are in the program: `gmon flat PROG gmon.out`"
    );
    assert_eq!(
        message(&folder, &["flat", program, "ours.gz", "gmon.out"]),
        "ours.gz and gmon.out are of different kinds, expected results of one kind"
    );
    folder.write("text", b"text");
    assert_eq!(
        message(&folder, &["flat", "text"]),
        "text: neither a program nor a profile (gmon.out) nor everything of a run (gmon.pb.gz)"
    );
    folder.write("short.gz", &ours.write()[..100]);
    assert!(message(&folder, &["flat", "short.gz"]).starts_with("short.gz: damaged, at offset "));
    std::fs::remove_file(folder.file("gmon.pb.gz")).expect("the file");
    let missing = message(&folder, &["flat"]);
    let expected = "gmon.pb.gz: No such file or directory (os error 2); gprofinject writes it in the folder where it runs";
    assert_eq!(missing, expected);
    assert!(Path::new(program).is_file());
}

/// Threads are appended; functions are the same if their module is, by its build-id.
#[test]
fn several_files() {
    let folder = folder("several", &example(true));
    let mut other = example(false);
    other.modules[1].build_id = vec![0xc1];
    other.runs[0].id += 1;
    folder.write("other.gz", &other.write());
    let rows = json(&folder, &["flat", "--json", "gmon.pb.gz", "other.gz"])["rows"].clone();
    let calls = |name: &str| -> Vec<u64> {
        let rows = rows.as_array().expect("rows").iter().filter(|row| row["name"] == name);
        rows.filter_map(|row| row["calls"].as_u64()).collect()
    };
    assert_eq!((calls("main"), calls("work"), calls("libc_read")), (vec![2], vec![8], vec![40, 40]));
    let threads =
        json(&folder, &["flat", "--json", "--by", "thread", "gmon.pb.gz", "other.gz"])["rows"].clone();
    assert_eq!(threads.as_array().map(Vec::len), Some(4));
    other.sample_period_ns = 5;
    folder.write("other.gz", &other.write());
    assert_eq!(
        message(&folder, &["flat", "gmon.pb.gz", "other.gz"]),
        "other.gz: a sample for each 5 ns of CPU time, and for each 4 ms in the runs before it; sum these apart, or record all at one \
         --rate: without it, --times and --paths have another one"
    );
}

/// A program that was built with -pg has written its gmon.out beside the recording of an earlier run.
#[test]
fn a_gmon_out_of_another_run() {
    let folder = folder("another", &example(true));
    folder.write("gmon.out", b"gmon\x01\0\0\0");
    let said = |later: u64| {
        let file = std::fs::File::options().write(true).open(folder.file("gmon.out")).expect("it is there");
        let written = folder.file("gmon.pb.gz").metadata().and_then(|file| file.modified()).expect("a time");
        file.set_modified(written + std::time::Duration::from_millis(later)).expect("it is ours");
        let output = gmon(&folder, &["flat", "-n", "1"]);
        assert!(output.status.success());
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    assert_eq!(said(900), "", "as copies may be");
    let expected = "gmon: this is gmon.pb.gz; gmon.out is newer and of another run: `gmon flat PROG gmon.out` shows that\n";
    assert_eq!(said(1100), expected);
    // Who names the file knows which one it is.
    let output = gmon(&folder, &["flat", "-n", "1", "gmon.pb.gz"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// The names that commands had before say what to type now, and a file in place of a command says what shows it.
#[test]
fn words_that_are_no_commands() {
    let folder = folder("words", &example(true));
    folder.write("gmon.out", b"gmon\x01\0\0\0");
    folder.compile(&[]);
    for (words, expected) in [
        (&["times", "--by", "thread"][..], "times: this is `gmon flat` now"),
        (&["callers", "main"], "callers: this is `gmon graph -f FUNCTION` now"),
        (&["callees", "main"], "callees: this is `gmon graph -f FUNCTION` now"),
        (&["ranks", "a", "b"], "ranks: this is `gmon flat --spread` now"),
        (&["dump", "gmon.out"], "dump: this is `gmon check --records` now"),
        (&["gmon.pb.gz"], "gmon.pb.gz is a file; `gmon flat gmon.pb.gz` shows it"),
        (
            &["gmon.out"],
            "gmon.out is a file; `gmon flat PROG gmon.out` shows it with the names of its program",
        ),
    ] {
        assert_eq!(message(&folder, words), expected);
    }
    let said = message(&folder, &["prog"]);
    assert!(said.starts_with("prog is a file; `gmon flat prog gmon.pb.gz` shows what it has done"), "{said}");
    // A word that is nothing at all is for the parser of the command line.
    let output = gmon(&folder, &["flot"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("'flot'") && said.contains("'flat'"), "{said}");
}

/// A function is not taken for a file, and a profile without its program says which command works.
#[test]
fn the_command_that_works_is_named() {
    let folder = Folder::new("hints");
    let program = folder.compile(&[]).path;
    let mut run = example(true);
    run.modules[0].path = program.to_str().expect("UTF-8").to_owned();
    folder.write("gmon.pb.gz", &run.write());
    folder.write("gmon.out", b"gmon");
    folder.write("other.out", b"gmon");
    for command in ["flat", "graph", "paths", "lines", "asm"] {
        let expected = format!("work: no file, but a function of gmon.pb.gz: `gmon {command} -f work`");
        assert_eq!(message(&folder, &[command, "work"]), expected);
    }
    assert_eq!(
        message(&folder, &["flat", "gmon.pb.gz", "parse(int)"]),
        "parse(int): no file, but a function of gmon.pb.gz: `gmon flat -f 'parse(int)' gmon.pb.gz`"
    );
    assert!(text(&folder, &["flat", "-f", "parse(int)", "gmon.pb.gz"]).contains("parse"));
    for words in [&["flat", "no_such_name"][..], &["html", "work"], &["flat", "work", "no_such_name"]] {
        assert!(message(&folder, words).contains("No such file"), "{words:?}");
    }
    let names = "it has addresses only, and the names are in the program";
    assert_eq!(
        message(&folder, &["graph", "gmon.out"]),
        format!("gmon.out: {names}: `gmon graph prog gmon.out`")
    );
    assert_eq!(
        message(&folder, &["flat", "other.out"]),
        format!("other.out: {names}: `gmon flat PROG other.out`")
    );
    assert_eq!(
        message(&folder, &["gmon.out"]),
        "gmon.out is a file; `gmon flat prog gmon.out` shows it with the names of its program"
    );
}
