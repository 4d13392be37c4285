//! `gmon check --budget` on measured times that were made up by hand.

use gmon_run::{Clock, ClockSource, Recording};

use crate::example::{counted, example};
use crate::support::Folder;
use crate::support::commands::{folder, gmon, message, text};

/// The example as a run with `--clock instructions`: its times are numbers of instructions.
fn executed() -> Recording {
    let times = example(false);
    Recording { clock: Clock { source: ClockSource::Instructions, ..times.clock }, ..times }
}

/// Returns the lines that a command prints for bounds that do not hold.
fn exceeded(folder: &Folder, args: &[&str]) -> Vec<String> {
    let output = gmon(folder, args);
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(1), &b""[..]), "{args:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// The numbers are those that the example has by hand, and a bound is exceeded by one more.
#[test]
fn bounds_by_hand() {
    let folder = folder("budget", &executed());
    let budget = |less: u64| {
        format!(
            "[[budget]]\nfunction = 'parse'\ncalls = {}\ninstructions = {}\ninclusive_instructions = {}\n\
             [[budget]]\nfunction = 'libc*!*'\ncalls = {}\n\
             [[budget]]\nfunction = 'prog!*'\ninstructions = {}\ninclusive_instructions = {}\n",
            10 - less,
            20_000_000 - less,
            320_000_000 - less,
            40 - less,
            4_021_000_000 - less,
            4_000_000_000 - less,
        )
    };
    folder.write("kept.toml", budget(0).as_bytes());
    folder.write("exceeded.toml", budget(1).as_bytes());
    let kept = ["check", "--budget", "kept.toml"];
    assert_eq!(text(&folder, &kept), "3 budgets hold\n");
    assert_eq!(text(&folder, &[kept[0], kept[1], kept[2], "gmon.pb.gz"]), "3 budgets hold\n");
    let expected = [
        "exceeded.toml:3: parse: calls 10, allowed 9",
        "exceeded.toml:4: parse: instructions 20000000, allowed 19999999",
        "exceeded.toml:5: parse: inclusive_instructions 320000000, allowed 319999999",
        "exceeded.toml:8: libc*!*: calls 40, allowed 39",
        "exceeded.toml:11: prog!*: instructions 4021000000, allowed 4020999999, by 3 functions, most by work: 4000000000",
        "exceeded.toml:12: prog!*: inclusive_instructions 4000000000, allowed 3999999999, by work",
    ];
    assert_eq!(exceeded(&folder, &["check", "--budget", "exceeded.toml"]), expected);
    // Several runs are summed.
    let mut other = executed();
    other.runs[0].id += 1;
    folder.write("other.pb.gz", &other.write());
    folder.write("two.toml", b"[[budget]]\nfunction = 'parse'\ncalls = 19\n");
    assert_eq!(
        exceeded(&folder, &["check", "--budget", "two.toml", "gmon.pb.gz", "other.pb.gz"]),
        ["two.toml:3: parse: calls 20, allowed 19"]
    );
}

/// Shares are those of measured time, or of samples.
#[test]
fn shares_of_time() {
    let folder = folder("budget-shares", &example(false));
    let times = "[[budget]]\nfunction = 'work'\ntime_percent = 92.5\ninclusive_time_percent = 93\n";
    folder.write("times.toml", times.as_bytes());
    // 4,000 of 4,321 ms.
    assert_eq!(
        exceeded(&folder, &["check", "--budget", "times.toml"]),
        ["times.toml:3: work: time_percent 92.57 %, allowed 92.5 %"]
    );
    folder.write("counted.pb.gz", &counted().write());
    // 900 of 2 + 3 + 1 + 900 samples.
    folder.write("samples.toml", b"[[budget]]\nfunction = 'work'\ntime_percent = 90\n");
    let [line] = &exceeded(&folder, &["check", "--budget", "samples.toml", "counted.pb.gz"])[..] else {
        panic!("one line")
    };
    assert!(line.starts_with("samples.toml:3: work: time_percent 99.34 %, allowed 90 %"), "{line}");
    let refused = message(&folder, &["check", "--budget", "times.toml", "counted.pb.gz"]);
    assert!(
        refused.starts_with("times.toml:4: inclusive_time_percent: ") && refused.contains("--times"),
        "{refused}"
    );
}

/// Each mistake is one line that names the file and the line.
#[test]
fn mistakes() {
    let folder = folder("budget-mistakes", &executed());
    let said = |text: &[u8]| {
        folder.write("b.toml", text);
        let said = message(&folder, &["check", "--budget", "b.toml"]);
        assert!(!said.contains('\n'), "{said}");
        said
    };
    assert_eq!(said(b""), "b.toml:1: no [[budget]] in it");
    assert_eq!(
        said(b"[[budget]]\nfunction = 'prase'\ncalls = 1\n"),
        "b.toml:2: no function of the run is called prase; similar names: parse(int); with `optional = true` the run may have none"
    );
    assert_eq!(
        said(b"[[budget]]\nfunction = 'parse'\ntime_percent = 1\n"),
        "b.toml:3: time_percent: the run has counted instructions in place of time, of which instructions_percent is the share; \
         `gprofinject --times PROG` measures time"
    );
    assert_eq!(
        said(b"[[budget]]\nfunction = 'parse'\nbytes = 1\n"),
        "b.toml:3: bytes: runs do not record bytes, so that they cannot be bounded"
    );
    assert_eq!(
        said(b"[[budget]]\nfunction = 'parse'\ncalls = -1\n"),
        "b.toml:3: calls: expected a whole number, from 0 on"
    );
    assert!(said(b"[[budget]]\nfunction = \"\x1b[31m\"").starts_with("b.toml:2: "));
    assert_eq!(said(b"\xff"), "b.toml: not UTF-8, at offset 0");
    assert_eq!(said(&vec![b'#'; (1 << 20) + 1]), "b.toml: larger than 1048576 bytes");
    assert!(message(&folder, &["check", "--budget", "none.toml"]).starts_with("none.toml: No such file"));
    assert_eq!(message(&folder, &["check", "--budget", "."]), ".: is a folder, expected a file or a pipe");
    for args in [
        &["check", "--budget", "b.toml", "--records"][..],
        &["check", "--budget", "b.toml", "--program", "prog"],
        &["check", "--json"],
    ] {
        assert_eq!(gmon(&folder, args).status.code(), Some(2), "{args:?}");
    }
}

/// What a sum lacks is said, and decides nothing.
#[test]
fn what_was_not_counted_is_said() {
    let mut run = executed();
    for row in run.rows.iter_mut().filter(|row| row.function == 0) {
        (row.self_ns, row.samples) = (0, 0);
    }
    let folder = folder("budget-notes", &run);
    folder.write("b.toml", b"[[budget]]\nfunction = 'prog!*'\ninstructions = 5_000_000_000\n");
    let output = gmon(&folder, &["check", "--budget", "b.toml"]);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"1 budget holds\n"[..]));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "gmon: b.toml:3: instructions: not counted of 1 function, which ran: main; \
         `gprofinject --count blocks --list PROG` says why functions are not counted\n"
    );
    folder.write("b.toml", b"[[budget]]\nfunction = 'main'\ninstructions = 5\n");
    assert!(message(&folder, &["check", "--budget", "b.toml"]).contains("not counted of main, which ran"));
}
