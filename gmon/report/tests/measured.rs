//! `gmon times`, `callers`, `callees` and `paths`, on measured times that were made up by hand.

#[path = "../../run/tests/support/mod.rs"]
mod example;
mod support;

use std::path::Path;
use std::process::{Command, Output};

use example::example;
use gmon_run::{ArcTimes, FunctionTimes, Recording};
use serde_json::Value;
use support::Folder;

fn gmon(folder: &Folder, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
    command.args(args).current_dir(&folder.0).output().expect("gmon runs")
}

/// Returns what a command prints, which must succeed without a message.
fn text(folder: &Folder, args: &[&str]) -> String {
    let output = gmon(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), ""), "{args:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(folder: &Folder, args: &[&str]) -> Value {
    serde_json::from_str(&text(folder, args)).expect("JSON")
}

/// Returns the message of a command that must fail.
fn message(folder: &Folder, args: &[&str]) -> String {
    let output = gmon(folder, args);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.strip_prefix("gmon: ").expect("gmon's message").trim_end().to_owned()
}

/// Returns a folder with `gmon.pb.gz`.
fn folder(name: &str, measured: &Recording) -> Folder {
    let folder = Folder::new(&format!("measured-{name}"));
    folder.write("gmon.pb.gz", &measured.write());
    folder
}

const HEAD: &str = "\
prog: 5.000 s, 2 threads
clock: time-stamp counter, 2.500 GHz; taken out of each call: 10.5 ns inside, 4.2 ns outside; error up to 1.5 ns a call, more right after a long chain of operations
cpu: a sample for each 4.000 ms of CPU time
";

/// Checks the lines of a text below the head. `expected` begins on a line of its own.
fn assert_text(text: &str, expected: &str) {
    let body = text.strip_prefix(HEAD).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(body, expected, "{text}");
}

#[test]
fn times() {
    let folder = folder("times", &example(true));
    // p50 and p99 are in the interval of the histogram, between min and max: work, 2^30 = 1.074 s to 2.000 s.
    assert_text(
        &text(&folder, &["times"]),
        "
calls  primitive      self    share  inclusive      mean       min       max       p50       p99       cpu   waiting  name        module
    4          2  4.000 s    92.57%   4.000 s   2.000 s   1.000 s   2.000 s   1.537 s   1.991 s   3.600 s   400.0 ms  work        prog
   40         40  300.0 ms    6.94%   300.0 ms  7.500 ms  7.000 ms  8.000 ms  7.500 ms  7.990 ms  4.000 ms  296.0 ms  libc_read   libc.so.6
   10         10  20.00 ms    0.46%   320.0 ms  32.00 ms  30.00 ms  33.00 ms  31.50 ms  32.97 ms  20.00 ms      0 ns  parse(int)  prog
    1          1  1.000 ms    0.02%   321.0 ms  321.0 ms  321.0 ms  321.0 ms  321.0 ms  321.0 ms      0 ns  1.000 ms  main        prog
   55         53  4.321 s   100.00%                                                               3.624 s   697.0 ms  total
",
    );
    assert_text(
        &text(&folder, &["times", "--by", "module"]),
        "
calls      self    share       cpu   waiting  module
   15  4.021 s    93.06%  3.620 s   401.0 ms  prog
   40  300.0 ms    6.94%  4.000 ms  296.0 ms  libc.so.6
   55  4.321 s   100.00%  3.624 s   697.0 ms  total
",
    );
    // All samples of a thread, also of what is not hooked, unless functions are chosen.
    assert_text(
        &text(&folder, &["times", "--by", "thread", "--sort", "calls", "--raw"]),
        "
calls      self    share      life   outside  overhead       cpu   waiting  raw self  thread
   51  321.0 ms    7.43%  5.000 s   7.000 ms  1.234 us  28.00 ms  300.0 ms  321.0 ms  prog 100
    4  4.000 s    92.57%  5.000 s   7.000 ms  1.234 us  3.620 s   387.0 ms  4.000 s   worker 101
   55  4.321 s   100.00%                                3.648 s   687.0 ms  4.321 s   total
",
    );
    assert_text(
        &text(&folder, &["times", "--by", "thread", "-f", "parse", "-f", "work", "--sort", "cpu"]),
        "
calls      self   share      life   outside  overhead       cpu   waiting  thread
    4  4.000 s   92.57%  5.000 s   7.000 ms  1.234 us  3.600 s   400.0 ms  worker 101
   10  20.00 ms   0.46%  5.000 s   7.000 ms  1.234 us  20.00 ms      0 ns  prog 100
   14  4.020 s   93.03%                                3.620 s   400.0 ms  total
",
    );
    assert_text(
        &text(&folder, &["times", "--no-demangle", "-f", "parse", "-f", "main", "-n1", "--sort", "inclusive"]),
        "
calls  primitive      self  share  inclusive      mean       min       max       p50       p99       cpu   waiting  name   module
    1          1  1.000 ms  0.02%   321.0 ms  321.0 ms  321.0 ms  321.0 ms  321.0 ms  321.0 ms      0 ns  1.000 ms  main   prog
   11         11  21.00 ms  0.49%                                                               20.00 ms  1.000 ms  total
",
    );
}

/// Functions of stripped programs are told apart by their addresses. JSON has these beside the name, which is empty.
#[test]
fn functions_without_names() {
    let mut measured = example(true);
    let function =
        measured.functions.iter_mut().find(|function| function.name == "work").expect("a function");
    function.name = String::new();
    let name = format!("{:#x}", function.address);
    let address = function.address;
    let folder = folder("nameless", &measured);
    for report in [&["times"][..], &["paths"], &["callees", "*"]] {
        let shown = text(&folder, report);
        assert!(shown.contains(&name), "{report:?}: {shown}");
    }
    let json = json(&folder, &["times", "--json"]);
    let row = &json["rows"][0];
    assert_eq!((&row["name"], &row["demangled"], &row["address"]), (&"".into(), &"".into(), &address.into()));
}

/// Nothing but what was measured is shown.
#[test]
fn open_calls_and_no_samples() {
    let mut measured = example(false);
    measured.sample_period_ns = 0;
    let main = &mut measured.rows[0];
    (main.open, main.min_ns, main.max_ns) = (1, 0, 0);
    main.histogram.clear();
    measured.arcs[0].open = 1;
    measured.threads.push(measured.threads[0].clone());
    let folder = folder("open", &measured);
    let shown = text(&folder, &["times", "--sort", "name", "-f", "main", "-f", "w*", "--raw"]);
    let body = shown.split_once("\n\n").expect("a head").1;
    assert_eq!(
        body,
        "\
calls  primitive      self   share  inclusive      mean       min       max       p50       p99  open  raw self  raw inclusive  name   module
    1          1  1.000 ms   0.02%   321.0 ms  321.0 ms         -         -         -         -     1  1.000 ms       321.0 ms  main   prog
    4          2  4.000 s   92.57%   4.000 s   2.000 s   1.000 s   2.000 s   1.537 s   1.991 s      0  4.000 s        4.000 s   work   prog
    5          3  4.001 s   92.59%                                                                  1  4.001 s                  total
"
    );
    let callers = text(&folder, &["callers", "main"]);
    assert!(
        callers.ends_with(
            "calls      self  inclusive    share  min  max  open  caller        module\n    \
             1  1.000 ms   321.0 ms  100.00%    -    -     1  [not hooked]\n"
        ),
        "{callers}"
    );
    assert!(text(&folder, &["times", "--by", "thread"]).contains("  worker 101\n"));
    assert!(message(&folder, &["times", "--sort", "cpu"]).ends_with("; CPU time was not sampled"));
    let row = &json(&folder, &["times", "--json", "-f", "main"])["rows"][0];
    for key in ["min_ns", "max_ns", "p50_ns", "p99_ns", "cpu_ns", "waiting_ns"] {
        assert_eq!(row[key], Value::Null, "{key}");
    }
    let missing = message(&folder, &["paths"]);
    assert_eq!(missing, "gmon.pb.gz: no call paths in it; `gprofinject --paths PROG` records them");
}

#[test]
fn times_as_json() {
    let folder = folder("json", &example(false));
    let all = json(&folder, &["times", "--json"]);
    assert_eq!(all["program"], "prog");
    assert_eq!(all["build_id"], "ab01ff");
    assert_eq!(all["profiles"], serde_json::json!(["gmon.pb.gz"]));
    assert_eq!(
        (&all["duration_ns"], &all["sample_period_ns"]),
        (&5_000_000_000_u64.into(), &4_000_000.into())
    );
    assert_eq!(
        all["clock"],
        serde_json::json!({"source": "tsc", "ticks_per_second": 2.5e9, "inside_ns": 10.5, "outside_ns": 4.25, "error_ns": 1.5})
    );
    assert_eq!(all["total"]["calls"], 55);
    let row = all["rows"].as_array().expect("rows").iter().find(|row| row["name"] == "_Z5parsei");
    let mut row = row.expect("parse").clone();
    assert_eq!(row["histogram"].as_array_mut().expect("a histogram").pop(), Some(10.into()));
    row["histogram"] = Value::Null;
    let expected = serde_json::json!({
        "name": "_Z5parsei", "demangled": "parse(int)", "module": "/usr/bin/prog", "address": 0x1100,
        "file": "/src/prog.c", "line": 20, "calls": 10, "primitive": 10, "open": 0,
        "self_ns": 20_000_000, "self_raw_ns": 20_000_010, "inclusive_ns": 320_000_000,
        "inclusive_raw_ns": 320_000_100, "min_ns": 30_000_000, "max_ns": 33_000_000, "mean_ns": 32e6,
        "p50_ns": 31_500_000, "p99_ns": 32_970_000, "samples": 5, "cpu_ns": 20_000_000, "waiting_ns": 0,
        "histogram": null,
    });
    assert_eq!(row, expected);
    let rows = json(&folder, &["times", "--json", "--by", "thread"])["rows"].clone();
    assert_eq!((&rows[0]["tid"], &rows[0]["life_ns"]), (&101.into(), &5_000_000_000_u64.into()));
    assert!(rows[0]["cpu_ns"] == 3_620_000_000_u64 && rows[0].get("inclusive_ns").is_none());
    assert_eq!(all["histogram_starts_ns"][3], 8.0);
    // Samples of timers inside the program do not know their thread.
    let mut timer = example(false);
    timer.threads.iter_mut().for_each(|thread| thread.samples = 0);
    let rows = json(&crate::folder("timer", &timer), &["times", "--json", "--by", "thread"])["rows"].clone();
    assert!(rows[0].get("cpu_ns").is_none() && rows[0].get("waiting_ns").is_none());
}

#[test]
fn callers_and_callees() {
    let folder = folder("arcs", &example(true));
    assert_text(
        &text(&folder, &["callers", "work"]),
        "
work in prog: 4 calls, self 4.000 s, inclusive 4.000 s
calls      self  inclusive    share       min       max  caller        module
    2  2.000 s    4.000 s   100.00%  2.000 s   2.000 s   [not hooked]
    2  2.000 s    2.000 s    50.00%  1.000 s   1.000 s   work          prog
",
    );
    // Mangled, demangled, without the parameters, or by a pattern.
    for name in ["_Z5parsei", "parse(int)", "parse", "pars*"] {
        assert_text(
            &text(&folder, &["callees", name]),
            "
parse(int) in prog: 10 calls, self 20.00 ms, inclusive 320.0 ms
calls      self  inclusive   share       min       max  callee     module
   40  300.0 ms   300.0 ms  93.75%  7.000 ms  8.000 ms  libc_read  libc.so.6
",
        );
    }
    let all = text(&folder, &["callees", "*"]);
    let order: Vec<_> = all.lines().filter(|line| line.contains(" in ")).collect();
    assert!(order[0].starts_with("work in prog") && order[3].starts_with("libc_read in libc.so.6"), "{all}");
    assert!(all.ends_with("calls no hooked function\n"), "{all}");
    let found = json(&folder, &["callers", "libc_read", "--json"]);
    let caller = &found["functions"][0]["callers"][0];
    assert_eq!((&caller["demangled"], &caller["inclusive_ns"]), (&"parse(int)".into(), &300_000_000.into()));

    let wrong = message(&folder, &["callers", "pares"]);
    assert_eq!(wrong, "gmon.pb.gz: no function is called pares; similar names: parse(int)");
    let wrong = message(&folder, &["times", "-f", "READ"]);
    assert_eq!(wrong, "gmon.pb.gz: no function is called READ; similar names: libc_read");
    assert_eq!(message(&folder, &["paths", "-f", "qqqqqq"]), "gmon.pb.gz: no function is called qqqqqq");
}

#[test]
fn paths() {
    let folder = folder("paths", &example(true));
    assert_text(
        &text(&folder, &["paths"]),
        "
       calls       self  inclusive    share  name
           2   2.000 s    4.000 s    92.57%  work
           2   2.000 s    2.000 s    46.29%    work
           1   1.000 ms   321.0 ms    7.43%  main
          10   20.00 ms   320.0 ms    7.41%    parse(int)
          40   300.0 ms   300.0 ms    6.94%      libc_read
not shown: 1 path (--min-percent, --depth and --limit select)
[other calls]: 7 calls for whose paths there was no room
",
    );
    let threads = text(&folder, &["paths", "--threads", "--depth", "1"]);
    assert!(
        threads.contains(
            "thread worker 101\n           2   2.000 s    4.000 s    92.57%  work\nthread prog 100\n"
        )
    );
    assert_text(
        &text(&folder, &["paths", "-f", "parse", "--min-percent", "95"]),
        "
       calls       self  inclusive    share  name
          10   20.00 ms   320.0 ms  100.00%  parse(int)
not shown: 1 path (--min-percent, --depth and --limit select)
[other calls]: 7 calls for whose paths there was no room
",
    );
    assert_eq!(
        text(&folder, &["paths", "--folded"]),
        "work 2000000000\nwork;work 2000000000\nmain 1000000\nmain;parse(int) 20000000\nmain;parse(int);libc_read 300000000\n"
    );
    // What is below the last depth is not lost.
    assert_eq!(
        text(&folder, &["paths", "--folded", "--threads", "--depth", "2", "-f", "main"]),
        "prog 100;main 1000000\nprog 100;main;parse(int) 320000000\n"
    );
    let all = json(&folder, &["paths", "--json", "--threads"]);
    assert_eq!(
        (&all["total_ns"], &all["nodes_lost"], &all["not_shown"]),
        (&4_321_000_000_u64.into(), &7.into(), &0.into())
    );
    let read = all["paths"].as_array().expect("paths").iter().find(|path| path["name"] == "libc_read");
    let read = read.expect("libc_read");
    assert_eq!((&read["id"], &read["parent"], &read["depth"]), (&5.into(), &4.into(), &3.into()));
    assert_eq!((&read["thread"]["tid"], &read["samples"]), (&100.into(), &1.into()));
    assert_eq!(
        message(&folder, &["paths", "--min-percent", "nan"]),
        "--min-percent NaN: expected a number from 0 to 100"
    );
}

/// The names of the program and of the file may be left out, and a file for another build is refused.
#[test]
fn files() {
    let folder = folder("files", &example(true));
    let program = folder.compile(&["-Wl,--build-id=0xfedcba98765432100123456789abcdef01234567"]).path;
    let program = program.to_str().expect("UTF-8");
    let default = text(&folder, &["times"]);
    assert_eq!(text(&folder, &["times", "gmon.pb.gz"]), default);
    let stale = message(&folder, &["times", program]);
    let expected = format!(
        "gmon.pb.gz: of the program with build-id ab01ff000000000000000000.., but {program} has \
         fedcba987654321001234567..: rebuilt since the run"
    );
    assert_eq!(stale, expected);
    assert_eq!(message(&folder, &["callers", "main", program, "gmon.pb.gz"]), expected);
    let mut ours = example(true);
    ours.modules[0].build_id =
        [0xfe, 0xdc, 0xba, 0x98, 0x76, 0x54, 0x32, 0x10, 1, 0x23, 0x45, 0x67, 0x89].to_vec();
    folder.write("ours.gz", &ours.write());
    assert_eq!(text(&folder, &["times", program, "ours.gz"]), default);
    // A pipe can be read only once.
    let command = format!("{} times <(cat gmon.pb.gz)", env!("CARGO_BIN_EXE_gmon"));
    let output =
        Command::new("bash").args(["-c", &command]).current_dir(&folder.0).output().expect("bash runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), default);

    let wrong = message(&folder, &["times", "gmon.pb.gz", program]);
    assert!(wrong.ends_with("/prog: a program, expected a gmon.pb.gz; the program comes before the files"));
    folder.write("gmon.out", b"gmon\x01\0\0\0");
    assert_eq!(
        message(&folder, &["times", "gmon.out"]),
        "gmon.out: a gmon.out file, expected a gmon.pb.gz, which gprofinject writes beside it"
    );
    folder.write("text", b"text");
    assert_eq!(message(&folder, &["times", "text"]), "text: neither a program nor a gmon.pb.gz");
    folder.write("short.gz", &ours.write()[..100]);
    assert!(message(&folder, &["times", "short.gz"]).starts_with("short.gz: damaged, at offset "));
    std::fs::remove_file(folder.file("gmon.pb.gz")).expect("the file");
    let missing = message(&folder, &["times"]);
    assert!(missing.starts_with("gmon.pb.gz: No such file") && missing.contains("gprofinject --times PROG"));
    assert!(Path::new(program).is_file());
}

/// Threads are appended; functions are the same if their module is, by its build-id.
#[test]
fn several_files() {
    let folder = folder("several", &example(true));
    let mut other = example(false);
    other.modules[1].build_id = vec![0xc1];
    folder.write("other.gz", &other.write());
    let rows = json(&folder, &["times", "--json", "gmon.pb.gz", "other.gz"])["rows"].clone();
    let calls = |name: &str| -> Vec<u64> {
        let rows = rows.as_array().expect("rows").iter().filter(|row| row["name"] == name);
        rows.filter_map(|row| row["calls"].as_u64()).collect()
    };
    assert_eq!((calls("main"), calls("work"), calls("libc_read")), (vec![2], vec![8], vec![40, 40]));
    let threads =
        json(&folder, &["times", "--json", "--by", "thread", "gmon.pb.gz", "other.gz"])["rows"].clone();
    assert_eq!(threads.as_array().map(Vec::len), Some(4));
    other.sample_period_ns = 5;
    folder.write("other.gz", &other.write());
    assert_eq!(
        message(&folder, &["times", "gmon.pb.gz", "other.gz"]),
        "other.gz: a sample for each 5 ns of CPU time after 4000000 ns, expected one period"
    );
}

/// Numbers that cannot be true, and names that would control the terminal.
#[test]
fn hostile() {
    let mut measured = example(true);
    measured.functions[0].name = "a\x1b[31m;\n".to_owned();
    measured.modules[0].name = "/\x1b]0;".to_owned();
    measured.threads[0].name = "\x07".to_owned();
    measured.programs[0].name = "\x1b".to_owned();
    measured.clock.ticks_per_second = f64::MAX;
    measured.sample_period_ns = i64::MAX as u64;
    for row in &mut measured.rows {
        *row = FunctionTimes {
            function: row.function,
            thread: row.thread,
            calls: u64::MAX,
            primitive: 1,
            self_ns: u64::MAX,
            inclusive_ns: u64::MAX,
            min_ns: 5,
            histogram: vec![u64::MAX; 64],
            ..FunctionTimes::default()
        };
    }
    measured.rows.extend(measured.rows.clone());
    for arc in &mut measured.arcs {
        *arc = ArcTimes { calls: u64::MAX, open: u64::MAX, inclusive_ns: u64::MAX, ..*arc };
    }
    measured.arcs.extend(measured.arcs.clone());
    for node in &mut measured.nodes {
        (node.calls, node.self_ns, node.samples) = (u64::MAX, u64::MAX, u64::MAX);
    }
    let folder = folder("hostile", &measured);
    for args in [
        &["times"][..],
        &["times", "--by", "module", "--raw"],
        &["times", "--by", "thread"],
        &["callers", "*"],
        &["callees", "*"],
        &["paths"],
        &["paths", "--threads"],
        &["paths", "--folded", "--threads"],
    ] {
        let shown = text(&folder, args);
        assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{args:?}: {shown:?}");
        assert!(shown.len() > 100);
        if !args.contains(&"--folded") {
            json(&folder, &[args, &["--json"]].concat());
        }
    }
}
