//! The reports of a run whose samples have stacks, which was made up by hand.

use std::collections::BTreeMap;

use gmon_run::{Hits, Recording, Stack};
use serde_json::Value;

use crate::example::{counted, example, sampled};
use crate::support::commands::{folder, json, message, text};

const HEAD: &str = "\
prog and its libraries: 55 calls
time: CPU time, 906 samples, one for each 4.000 ms
inclusive time: by sampled stacks; not all callers are known of 99.45% of the samples
";

/// Checks the lines of a text below the head. `expected` begins on a line of its own.
fn assert_text(text: &str, expected: &str) {
    let body = text.strip_prefix(HEAD).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(body, expected, "{text}");
}

/// No time is marked as an estimate.
#[test]
fn tables() {
    let folder = folder("sampled-tables", &sampled());
    assert_text(
        &text(&folder, &["flat"]),
        "
self %      self  cumulative  inclusive  calls  primitive  self/call  inclusive/call  function   module
 99.34  3.600 s     3.600 s    3.600 s       4          2   1.800 s         1.800 s   work       prog
  0.55  20.00 ms    3.620 s    24.00 ms     10         10   2.000 ms        2.400 ms  parse      prog
  0.11  4.000 ms    3.624 s    4.000 ms     40         40   100.0 us        100.0 us  libc_read  libc.so.6
                               20.00 ms      1          1                   20.00 ms  main       prog
100.00  3.624 s                             55         53                             total
",
    );
    assert_text(
        &text(&folder, &["graph", "-f", "work", "-f", "parse"]),
        "callers of a function are above it, what it calls is below

index  inclusive %      self  children  calls  function
                    360.0 ms              2/4      work [1]
                    3.240 s   360.0 ms    2/4      [not hooked]
  [1]        99.34  3.600 s               2+2  work [1]
                    360.0 ms              2/4      work [1]

                    4.000 ms                       [path not known]
                    16.00 ms  4.000 ms  10/10      main
  [2]         0.66  20.00 ms  4.000 ms     10  parse [2]
                    4.000 ms            40/40      libc_read (libc.so.6)
",
    );
    assert_text(
        &text(&folder, &["paths", "--min-percent", "0"]),
        "
       calls       self  inclusive    share  function
                          20.00 ms    0.55%  main
               16.00 ms   20.00 ms    0.55%    parse
               4.000 ms   4.000 ms    0.11%      libc_read
                          3.604 s    99.45%  [path not known]
               3.240 s    3.600 s    99.34%    work
               360.0 ms   360.0 ms    9.93%      work
               4.000 ms   4.000 ms    0.11%    parse
",
    );
    let said = message(&folder, &["paths", "--threads"]);
    assert!(said.starts_with("--threads: sampled stacks are not known by thread"), "{said}");
}

/// An arc that is on stacks and was not counted has no calls, and a caller that is not hooked has a row.
#[test]
fn what_was_not_counted() {
    let mut run = sampled();
    // `libc_read` calls `work` back.
    run.hits.push(Hits { function: 3, samples: 2, ..Hits::default() });
    run.stacks.push(Stack { parent: Some(3), function: Some(3), samples: 2, program: 0 });
    let folder = folder("sampled-arcs", &run);
    let graph = text(&folder, &["graph", "-f", "libc_read"]);
    assert!(graph.contains("8.000 ms                       work\n"), "{graph}");
    let functions = json(&folder, &["graph", "--json", "-f", "libc_read"])["functions"].clone();
    let callee = &functions[0]["callees"][0];
    assert_eq!((&callee["name"], &callee["calls"]), (&"work".into(), &0.into()));
    assert_eq!((&callee["self_ns"], &callee["inclusive_ns"]), (&8_000_000.into(), &8_000_000.into()));
    // One sample of its own and the two below.
    assert_eq!(functions[0]["inclusive_ns"], 12_000_000);
}

#[test]
fn as_json() {
    let folder = folder("sampled-json", &sampled());
    let flat = json(&folder, &["flat", "--json"]);
    assert_eq!(flat["time"], "sampled");
    let inclusive: BTreeMap<&str, u64> = flat["rows"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| (row["name"].as_str().unwrap_or(""), row["inclusive_ns"].as_u64().unwrap_or(0)))
        .collect();
    let ms = |samples: u64| samples * 4_000_000;
    let expected = [("main", ms(5)), ("_Z5parsei", ms(6)), ("libc_read", ms(1)), ("work", ms(900))];
    assert_eq!(inclusive, BTreeMap::from(expected));
    let paths = json(&folder, &["paths", "--json"]);
    assert_eq!((&paths["time"], &paths["total_ns"]), (&"sampled".into(), &ms(906).into()));
    let paths: Vec<_> = paths["paths"].as_array().into_iter().flatten().collect();
    assert!(paths.iter().all(|path| path.get("calls").is_none()));
    let unknown = paths.iter().find(|path| path["name"] == "[path not known]").expect("a path");
    assert_eq!((&unknown["inclusive_ns"], &unknown["module"]), (&ms(901).into(), &Value::Null));
}

/// Other tools get whole stacks, with the totals of the tables.
#[test]
fn exports() {
    let folder = folder("sampled-exports", &sampled());
    let folded = "\
[path not known];parse(int) 4000000
[path not known];work 3240000000
[path not known];work;work 360000000
main;parse(int) 16000000
main;parse(int);libc_read 4000000
";
    assert_eq!(text(&folder, &["export", "--to", "folded"]), folded);
    let mut lines: Vec<String> =
        text(&folder, &["paths", "--folded", "--no-demangle"]).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines.join("\n") + "\n", folded.replace("parse(int)", "_Z5parsei"));
    let speedscope = json(&folder, &["export", "--to", "speedscope"]);
    let profile = &speedscope["profiles"][0];
    assert_eq!((&profile["name"], &profile["endValue"]), (&"prog".into(), &3_624_000_000_u64.into()));
    assert!(speedscope["profiles"].as_array().is_some_and(|profiles| profiles.len() == 1));
    let firefox = json(&folder, &["export", "--to", "firefox"]);
    let weights = firefox["threads"][0]["samples"]["weight"].as_array().expect("weights").iter();
    assert_eq!(weights.filter_map(Value::as_f64).sum::<f64>(), 3624.0);
    let svg = text(&folder, &["export", "--to", "svg"]);
    assert!(svg.contains(">3.624 s of CPU time, by sampled stacks</text>") && !svg.contains("ESTIMATE"));
    assert!(svg.contains("<title>[path not known]\n"), "{svg}");
    let callgrind = text(&folder, &["export", "--to", "callgrind"]);
    // Readers take the cost of `calls=0` for the caller's own.
    assert!(callgrind.contains("calls=1 0x1100 20\n0x0 0 4000000\n") && !callgrind.contains("calls=0"));
    // Of five samples of the arc, four of ten calls are from one line and six from the other.
    for part in ["calls=4 0x1100 20\n0x1010 10 8000000\n", "calls=6 0x1100 20\n0x1020 10 12000000\n"] {
        assert!(callgrind.contains(part), "{part}: {callgrind}");
    }
}

/// The sum of runs, of which one has no stacks, says how many samples have none.
#[test]
fn sums() {
    let folder = folder("sampled-sums", &sampled());
    let mut without = counted();
    without.runs[0].id = 1;
    folder.write("without.pb.gz", &without.write());
    let mut with = sampled();
    with.runs[0].id = 2;
    folder.write("with.pb.gz", &with.write());
    let total = |args: &[&str]| json(&folder, &[args, &["--json"]].concat())["total_ns"].clone();
    assert_eq!(total(&["paths", "gmon.pb.gz", "with.pb.gz"]), 2 * 3_624_000_000_u64);
    let both = text(&folder, &["flat", "gmon.pb.gz", "without.pb.gz"]);
    // Of 1812 samples, the five in `main` have all their callers.
    assert!(both.contains("not all callers are known of 99.72% of the samples"), "{both}");
    let inclusive = |args: &[&str]| {
        let flat = json(&folder, &[&["flat", "--json", "-f", "main"], args].concat());
        (flat["time"].clone(), flat["rows"][0]["inclusive_ns"].clone())
    };
    assert_eq!(inclusive(&["gmon.pb.gz", "without.pb.gz"]), ("sampled".into(), 20_000_000.into()));
    assert_eq!(inclusive(&["without.pb.gz"]), ("estimated".into(), 24_000_000.into()));
    // Inclusive times of different kinds cannot be compared, and self times can.
    let said = message(&folder, &["diff", "gmon.pb.gz", "without.pb.gz", "--sort", "inclusive"]);
    assert!(said.starts_with("inclusive times cannot be compared"), "{said}");
    text(&folder, &["diff", "gmon.pb.gz", "without.pb.gz", "--sort", "self"]);
    text(&folder, &["diff", "gmon.pb.gz", "with.pb.gz", "--sort", "inclusive"]);
}

/// Measured times are better: all reports are the same with and without stacks.
#[test]
fn measured_times_win() {
    let with = folder("sampled-measured", &example(true));
    let without = folder("sampled-measured-without", &Recording { stacks: Vec::new(), ..example(true) });
    for args in
        ["flat", "graph", "paths --threads", "flat --json", "export --to folded", "export --to callgrind"]
    {
        let args: Vec<&str> = args.split(' ').collect();
        assert_eq!(text(&with, &args), text(&without, &args), "{args:?}");
    }
}
