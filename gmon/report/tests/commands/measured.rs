//! `gmon flat`, `graph` and `paths`, on measured times that were made up by hand.

use gmon_run::{ArcTimes, FunctionTimes, Program};
use serde_json::Value;

use crate::example::example;
use crate::support::commands::{folder, json, message, text};

const HEAD: &str = "\
prog and its libraries: 55 calls
time: wall time, measured in each call in 5.000 s; error up to 1.5 ns a call, more right after a long chain of operations
cpu: CPU time, a sample for each 4.000 ms
";

/// Checks the lines of a text below the head. `expected` begins on a line of its own.
fn assert_text(text: &str, expected: &str) {
    let body = text.strip_prefix(HEAD).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(body, expected, "{text}");
}

#[test]
fn flat() {
    let folder = folder("flat", &example(true));
    // p50 and p99 are in the interval of the histogram, between min and max: work, 2^30 = 1.074 s to 2.000 s.
    assert_text(
        &text(&folder, &["flat"]),
        "
self %      self  inclusive  calls  primitive      mean       min       p50       p99       max       cpu   waiting  function   module
 92.57  4.000 s    4.000 s       4          2  2.000 s   1.000 s   1.537 s   1.991 s   2.000 s   3.600 s   400.0 ms  work       prog
  6.94  300.0 ms   300.0 ms     40         40  7.500 ms  7.000 ms  7.500 ms  7.990 ms  8.000 ms  4.000 ms  296.0 ms  libc_read  libc.so.6
  0.46  20.00 ms   320.0 ms     10         10  32.00 ms  30.00 ms  31.50 ms  32.97 ms  33.00 ms  20.00 ms      0 ns  parse      prog
  0.02  1.000 ms   321.0 ms      1          1  321.0 ms  321.0 ms  321.0 ms  321.0 ms  321.0 ms      0 ns  1.000 ms  main       prog
100.00  4.321 s                 55         53                                                    3.624 s   697.0 ms  total
",
    );
    assert_eq!(text(&folder, &[]), text(&folder, &["flat"]));
    assert_text(
        &text(&folder, &["flat", "--by", "module"]),
        "
self %      self  inclusive   between  calls  from outside  ~overhead       cpu   waiting  module
 93.06  4.021 s    4.321 s       0 ns     15             3     673 ns  3.620 s   401.0 ms  prog
  6.94  300.0 ms   300.0 ms  4.021 s      40            40   1.794 us  4.000 ms  296.0 ms  libc.so.6
100.00  4.321 s                           55                           3.624 s   697.0 ms  total
inclusive: while the module or what it had called was running; between: the other time; from outside: calls by other modules
",
    );
    // All samples of a thread, also of what is not hooked, unless functions are chosen.
    assert_text(
        &text(&folder, &["flat", "--by", "thread", "--sort", "calls", "--raw"]),
        "
self %      self  calls      life   outside  overhead       cpu   waiting  raw self  thread
  7.43  321.0 ms     51  5.000 s   7.000 ms  1.234 us  28.00 ms  300.0 ms  321.0 ms  prog 100
 92.57  4.000 s       4  5.000 s   7.000 ms  1.234 us  3.620 s   387.0 ms  4.000 s   worker 101
100.00  4.321 s      55                                3.648 s   687.0 ms  4.321 s   total
",
    );
    assert_text(
        &text(&folder, &["flat", "--by", "thread", "-f", "parse", "-f", "work", "--sort", "cpu"]),
        "
self %      self  calls      life   outside  overhead       cpu   waiting  thread
 92.57  4.000 s       4  5.000 s   7.000 ms  1.234 us  3.600 s   400.0 ms  worker 101
  0.46  20.00 ms     10  5.000 s   7.000 ms  1.234 us  20.00 ms      0 ns  prog 100
 93.03  4.020 s      14                                3.620 s   400.0 ms  total
",
    );
    assert_text(
        &text(&folder, &["flat", "--no-demangle", "-f", "parse", "-f", "main", "-n1", "--sort", "inclusive"]),
        "
self %      self  inclusive  calls      mean       min       p50       p99       max       cpu   waiting  function  module
  0.02  1.000 ms   321.0 ms      1  321.0 ms  321.0 ms  321.0 ms  321.0 ms  321.0 ms      0 ns  1.000 ms  main      prog
  0.49  21.00 ms                11                                                    20.00 ms  1.000 ms  total
1 function more; -n 0 shows all
",
    );
}

/// Two programs, the second of which runs in two processes: each row has what that one has done, with its libraries.
#[test]
fn by_program() {
    let mut measured = example(true);
    measured.programs.push(Program { name: "child".to_owned(), processes: 2, ..Program::default() });
    measured.threads[1].program = 1;
    measured.hits.iter_mut().filter(|hits| hits.function == 3).for_each(|hits| hits.program = 1);
    measured.calls.iter_mut().filter(|calls| calls.callee == 3).for_each(|calls| calls.program = 1);
    // 5 samples in code that is not hooked, for which the threads have 7 ms each.
    measured.programs[1].elsewhere = 5;
    let folder = folder("programs", &measured);
    let body = |args: &[&str]| {
        let shown = text(&folder, args);
        shown.split_once("\n\n").expect("a head").1.to_owned()
    };
    assert_eq!(
        body(&["flat", "--by", "program"]),
        "\
self %      self  calls       cpu   waiting  program
 92.57  4.000 s       4  3.620 s   387.0 ms  child (2 processes)
  7.43  321.0 ms     51  24.00 ms  304.0 ms  prog (process 100)
100.00  4.321 s      55  3.644 s   691.0 ms  total
"
    );
    assert_eq!(
        body(&["flat", "--by", "program", "--sort", "calls", "--program", "prog"]),
        "\
self %      self  calls       cpu   waiting  program
100.00  321.0 ms     51  24.00 ms  304.0 ms  prog (process 100)
100.00  321.0 ms     51  24.00 ms  304.0 ms  total
"
    );
    let rows = json(&folder, &["flat", "--by", "program", "--json"])["rows"].clone();
    assert_eq!(
        rows[0],
        serde_json::json!({
            "program": "child", "label": null, "processes": 2, "pid": null, "samples": 905, "calls": 4, "self_ns": 4_000_000_000_u64,
            "cpu_ns": 3_620_000_000_u64, "waiting_ns": 387_000_000,
        })
    );
    assert_eq!(rows[1]["pid"], 100);
    for (args, expected) in [
        (&["--raw"][..], "--raw: --by program does not have these times"),
        (&["--sort", "open"], "--sort open: there is no such column here"),
        (&["-f", "main"], "--by program: shows all functions of a program"),
    ] {
        let said = message(&folder, &[&["flat", "--by", "program"], args].concat());
        assert!(said.starts_with(expected), "{said}");
    }
    // Without measured times, it is the samples.
    let mut estimated = measured.clone();
    (estimated.clock, estimated.threads, estimated.rows, estimated.arcs) = Default::default();
    estimated.nodes.clear();
    folder.write("gmon.pb.gz", &estimated.write());
    assert_eq!(
        body(&["flat", "--by", "program"]),
        "\
self %      self  calls  program
 99.34  3.620 s       4  child (2 processes)
  0.66  24.00 ms     51  prog (process 100)
100.00  3.644 s      55  total
"
    );
}

/// Names are short. Those that would be the same have what tells them apart, and the last component finds each.
#[test]
fn names_in_short() {
    let mut measured = example(true);
    let names = [
        "main",
        "_ZN4json6Parser5parseEi",
        "_ZNSt6vectorIiSaIiEE9push_backERKi",
        "_ZN4json6Parser5parseESt6vectorIcSaIcEE",
    ];
    measured.functions.iter_mut().zip(names).for_each(|(function, name)| function.name = name.to_owned());
    let folder = folder("short", &measured);
    let functions = |args: &[&str]| -> Vec<String> {
        let rows = json(&folder, &[&["flat", "--json"], args].concat())["rows"].clone();
        let rows = rows.as_array().expect("rows").clone();
        rows.iter().map(|row| row["demangled"].as_str().expect("a name").to_owned()).collect()
    };
    let shown = text(&folder, &["flat"]);
    for name in [
        "  json::Parser::parse(vector<...>)  prog\n",
        "  std::vector<...>::push_back  ",
        "  json::Parser::parse(int)  ",
    ] {
        assert!(
            shown.replace("    ", "").replace("   ", "  ").contains(name.trim_start()),
            "{name}: {shown}"
        );
    }
    // With one of the two, nothing has to be told apart.
    for args in [&["flat", "-f", "json::Parser::parse(int)"][..], &["flat", "-n", "1"]] {
        let shown = text(&folder, args);
        assert!(shown.contains("  json::Parser::parse  prog\n"), "{shown}");
    }
    for (report, name) in
        [("graph", "json::Parser::parse(int) [3]"), ("paths", "  json::Parser::parse(int)\n")]
    {
        let shown = text(&folder, &[report]);
        assert!(shown.contains(name) && shown.contains("std::vector<...>::push_back"), "{shown}");
    }
    for (option, name) in [
        ("--full-names", "json::Parser::parse(std::vector<char, std::allocator<char> >)"),
        ("--no-demangle", "_ZN4json6Parser5parseESt6vectorIcSaIcEE"),
    ] {
        for report in ["flat", "graph", "paths"] {
            let shown = text(&folder, &[report, option]);
            assert!(shown.contains(name), "{report}: {shown}");
        }
    }
    assert_eq!(functions(&["-f", "push_back"]).len(), 1);
    assert_eq!(functions(&["-f", "parse"]).len(), 2);
    assert_eq!(functions(&["-f", "Parser::parse"]).len(), 2);
    assert_eq!(
        functions(&["-f", "libc.so.6!*"]),
        ["std::vector<int, std::allocator<int> >::push_back(int const&)"]
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
    for report in
        [&["flat"][..], &["paths"], &["graph"], &["flat", "--no-demangle"], &["flat", "--full-names"]]
    {
        let shown = text(&folder, report);
        assert!(shown.contains(&name), "{report:?}: {shown}");
    }
    let json = json(&folder, &["flat", "--json"]);
    let row = &json["rows"][0];
    assert_eq!(
        (&row["name"], &row["demangled"], &row["address"]),
        (&"".into(), &"prog+0x1200".into(), &address.into())
    );
}

/// The times of a function of which nearly all calls were only counted say nothing, unless the few others took long.
#[test]
fn calls_that_were_only_counted() {
    let mut measured = example(false);
    measured.clock.counted_below_ns = 200.0;
    for row in &mut measured.rows[1..3] {
        (row.calls, row.primitive, row.counted) =
            (row.calls + 1_000_000, row.primitive + 1_000_000, 1_000_000);
    }
    measured.rows[2].self_ns = 40 * 199;
    measured.rows[2].inclusive_ns = 40 * 199;
    for arc in &mut measured.arcs[1..3] {
        (arc.calls, arc.counted) = (arc.calls + 1_000_000, 1_000_000);
    }
    measured.arcs[2].inclusive_ns = 40 * 199;
    let folder = folder("counted-only", &measured);
    let shown = text(&folder, &["flat", "--sort", "name", "-f", "parse", "-f", "libc_read"]);
    let (head, body) = shown.split_once("\n\n").expect("a head");
    let said = "short: 2000000 calls of 2 functions took less than 200 ns a call: they were only counted";
    assert!(head.contains(said), "{head}");
    let rows: Vec<Vec<&str>> = body.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["1000040", "libc_read", "libc.so.6"], "{body}");
    // The mean is of the measured calls.
    assert_eq!(rows[1][1..9], ["20.00", "ms", "320.0", "ms", "1000010", "32.00", "ms", "30.00"], "{body}");
    let graph = text(&folder, &["graph", "-f", "libc_read"]);
    let of_read = graph.lines().find(|line| line.trim_start().starts_with("[1]")).expect("a row");
    assert_eq!(of_read.split_whitespace().nth(1), Some("1000040"), "{graph}");
    let json = json(&folder, &["flat", "--json", "-f", "libc_read"]);
    assert_eq!(json["clock"]["counted_below_ns"], 200.0);
    assert_eq!((&json["rows"][0]["counted"], &json["rows"][0]["self_ns"]), (&1_000_000.into(), &7960.into()));
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
    let shown = text(&folder, &["flat", "--sort", "name", "-f", "main", "-f", "w*", "--raw"]);
    let body = shown.split_once("\n\n").expect("a head").1;
    assert_eq!(
        body,
        "\
self %      self  inclusive  calls  primitive      mean       min       p50       p99       max  open  raw self  raw inclusive  function  module
  0.02  1.000 ms   321.0 ms      1          1  321.0 ms                                             1  1.000 ms       321.0 ms  main      prog
 92.57  4.000 s    4.000 s       4          2  2.000 s   1.000 s   1.537 s   1.991 s   2.000 s      0  4.000 s        4.000 s   work      prog
 92.59  4.001 s                  5          3                                                       1  4.001 s                  total
"
    );
    let graph = text(&folder, &["graph", "-f", "main"]);
    assert!(
        graph.ends_with(
            "\n\n\
index  inclusive %      self  children  calls       min       max  open  function
                    1.000 ms  320.0 ms    1/1                         1      [not hooked]
  [1]         7.43  1.000 ms  320.0 ms      1                         1  main [1]
                    20.00 ms  300.0 ms  10/10  30.00 ms  33.00 ms            parse
"
        ),
        "{graph}"
    );
    let arc = &json(&folder, &["graph", "-f", "main", "--json"])["functions"][0]["callers"][0];
    assert_eq!((&arc["open"], &arc["min_ns"], &arc["max_ns"]), (&1.into(), &Value::Null, &Value::Null));
    assert!(text(&folder, &["flat", "--by", "thread"]).contains("  worker 101\n"));
    assert!(message(&folder, &["flat", "--sort", "cpu"]).ends_with("; CPU time was not sampled"));
    let row = &json(&folder, &["flat", "--json", "-f", "main"])["rows"][0];
    for key in ["min_ns", "max_ns", "p50_ns", "p99_ns", "cpu_ns", "waiting_ns"] {
        assert_eq!(row[key], Value::Null, "{key}");
    }
    let missing = message(&folder, &["paths"]);
    assert_eq!(
        missing,
        "no call paths and no sampled stacks in the run of prog; `gprofinject --paths PROG` records paths, and `gmon graph` shows who called \
         whom"
    );
}

#[test]
fn flat_as_json() {
    let folder = folder("json", &example(false));
    let all = json(&folder, &["flat", "--json"]);
    assert_eq!(all["program"], "prog");
    assert_eq!(
        all["modules"],
        serde_json::json!([
            {"path": "/usr/bin/prog", "build_id": "ab01ff"}, {"path": "/usr/lib/libc.so.6", "build_id": "c0de"}
        ])
    );
    assert_eq!(
        (&all["time"], &all["error_ns"], &all["samples"]),
        (&"measured".into(), &1.5.into(), &906.into())
    );
    assert_eq!(
        (&all["duration_ns"], &all["sample_period_ns"]),
        (&5_000_000_000_u64.into(), &4_000_000.into())
    );
    assert_eq!(
        all["clock"],
        serde_json::json!({
            "source": "tsc", "ticks_per_second": 2.5e9, "inside_ns": 10.5, "outside_ns": 4.25, "counted_below_ns": null,
        })
    );
    assert_eq!(
        all["total"],
        serde_json::json!({
            "samples": 906, "calls": 55, "primitive": 53, "open": 0, "self_ns": 4_321_000_000_u64,
            "self_raw_ns": 4_321_000_040_u64, "cpu_ns": 3_624_000_000_u64, "waiting_ns": 697_000_000,
        })
    );
    let row = all["rows"].as_array().expect("rows").iter().find(|row| row["name"] == "_Z5parsei");
    let mut row = row.expect("parse").clone();
    assert_eq!(row["histogram"].as_array_mut().expect("a histogram").pop(), Some(10.into()));
    row["histogram"] = Value::Null;
    let expected = serde_json::json!({
        "name": "_Z5parsei", "demangled": "parse(int)", "module": "/usr/bin/prog", "address": 0x1100,
        "file": "/src/prog.c", "line": 20, "calls": 10, "primitive": 10, "open": 0,
        "self_ns": 20_000_000, "self_raw_ns": 20_000_010, "inclusive_ns": 320_000_000,
        "inclusive_raw_ns": 320_000_100, "min_ns": 30_000_000, "max_ns": 33_000_000, "mean_ns": 32_000_000,
        "p50_ns": 31_500_000, "p99_ns": 32_970_000, "samples": 5, "cpu_ns": 20_000_000, "waiting_ns": 0,
        "histogram": null, "cycle": null,
    });
    assert_eq!(row, expected);
    let rows = json(&folder, &["flat", "--json", "--by", "thread"])["rows"].clone();
    assert_eq!((&rows[0]["tid"], &rows[0]["life_ns"]), (&101.into(), &5_000_000_000_u64.into()));
    assert!(rows[0]["cpu_ns"] == 3_620_000_000_u64 && rows[0].get("inclusive_ns").is_none());
    assert_eq!(all["histogram_starts_ns"][3], 8.0);
    // Samples of timers inside the program do not know their thread.
    let mut timer = example(false);
    timer.threads.iter_mut().for_each(|thread| thread.samples = 0);
    let rows = json(
        &crate::support::commands::folder("timer", &timer),
        &["flat", "--json", "--by", "thread"],
    )["rows"]
        .clone();
    assert!(rows[0].get("cpu_ns").is_none() && rows[0].get("waiting_ns").is_none());
}

#[test]
fn graph() {
    let folder = folder("arcs", &example(true));
    assert_text(
        &text(&folder, &["graph"]),
        "\
callers of a function are above it, what it calls is below

index  inclusive %      self  children  calls       min       max  function
                    2.000 s       0 ns    2/4  1.000 s   1.000 s       work [1]
                    2.000 s   2.000 s     2/4  2.000 s   2.000 s       [not hooked]
  [1]        92.57  4.000 s       0 ns    2+2  1.000 s   2.000 s   work [1]
                    2.000 s       0 ns    2/4  1.000 s   1.000 s       work [1]

                    1.000 ms  320.0 ms    1/1  321.0 ms  321.0 ms      [not hooked]
  [2]         7.43  1.000 ms  320.0 ms      1  321.0 ms  321.0 ms  main [2]
                    20.00 ms  300.0 ms  10/10  30.00 ms  33.00 ms      parse [3]

                    20.00 ms  300.0 ms  10/10  30.00 ms  33.00 ms      main [2]
  [3]         7.41  20.00 ms  300.0 ms     10  30.00 ms  33.00 ms  parse [3]
                    300.0 ms      0 ns  40/40  7.000 ms  8.000 ms      libc_read (libc.so.6) [4]

                    300.0 ms      0 ns  40/40  7.000 ms  8.000 ms      parse [3]
  [4]         6.94  300.0 ms      0 ns     40  7.000 ms  8.000 ms  libc_read (libc.so.6) [4]
",
    );
    // Mangled, demangled, without the parameters, or by a pattern.
    for name in ["_Z5parsei", "parse(int)", "parse", "pars*"] {
        assert_text(
            &text(&folder, &["graph", "-f", name]),
            "\
callers of a function are above it, what it calls is below

index  inclusive %      self  children  calls       min       max  function
                    20.00 ms  300.0 ms  10/10  30.00 ms  33.00 ms      main
  [1]         7.41  20.00 ms  300.0 ms     10  30.00 ms  33.00 ms  parse [1]
                    300.0 ms      0 ns  40/40  7.000 ms  8.000 ms      libc_read (libc.so.6)
",
        );
    }
    let two = text(&folder, &["graph", "-n", "2", "--sort", "self"]);
    assert!(two.contains("[1]        92.57") && two.contains("[2]         6.94"), "{two}");
    assert!(two.ends_with("\n2 entries more; -n 0 shows all\n"), "{two}");
    let found = json(&folder, &["graph", "-f", "libc_read", "--json"]);
    let caller = &found["functions"][0]["callers"][0];
    assert_eq!((&caller["demangled"], &caller["inclusive_ns"]), (&"parse(int)".into(), &300_000_000.into()));
    assert_eq!((&caller["calls"], &caller["self_ns"]), (&40.into(), &300_000_000.into()));
    assert_eq!((&caller["min_ns"], &caller["max_ns"]), (&7_000_000.into(), &8_000_000.into()));
    assert_eq!(found["functions"][0]["callees"], serde_json::json!([]));

    let wrong = message(&folder, &["graph", "-f", "pares"]);
    assert_eq!(wrong, "no function is called pares; similar names: parse(int)");
    let wrong = message(&folder, &["flat", "-f", "READ"]);
    assert_eq!(wrong, "no function is called READ; similar names: libc_read");
    assert_eq!(message(&folder, &["paths", "-f", "qqqqqq"]), "no function is called qqqqqq");
}

#[test]
fn slow_calls() {
    let folder = folder("slow", &example(true));
    let shown = text(&folder, &["paths", "--slow"]);
    for line in [
        "parse: 8 calls, half of them up to 40.00 us, 99 % up to 31.00 ms, all up to 32.00 ms; 2 more that are incomplete or had not ended; \
         for 3 that were as slow there was no room",
        "1. 32.00 ms  parse(text=\"ab\")",
        "   running 2.499 ms, waiting 29.50 ms, ready 1.000 us, prog 100, began after 1.000 s",
        "difference       slow    typical       self    waiting    calls  function",
        " +31.96 ms   32.00 ms   40.00 us   2.000 ms       0 ns        1  parse",
        " +29.56 ms   29.60 ms   36.00 us   29.60 ms   29.50 ms        4    libc_read",
        "2. 500.0 us  parse",
        "   waiting not known, prog 100, began after 1.000 s, had not ended, INCOMPLETE: events of 100.0 us or more are lost",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line}:\n{shown}");
    }
    let all = json(&folder, &["paths", "--slow", "--json", "-n", "1"]);
    assert_eq!((&all["not_shown"], &all["calls"][0]["running_ns"]), (&1.into(), &2_499_000.into()));
    let read =
        all["calls"][0]["paths"].as_array().expect("paths").iter().find(|path| path["name"] == "libc_read");
    assert_eq!(read.expect("libc_read")["difference_ns"], 29_564_000);
    assert_eq!(all["functions"][0]["median_ns"], 40_000);
    let missing = self::folder("no-slow", &example(false));
    assert!(
        message(&missing, &["paths", "--slow"])
            .starts_with("no slow calls in the run of prog; `gprofinject --slow")
    );
}

/// A function without a name is called by its module and its address, and its module is not said again.
#[test]
fn modules_are_said_once() {
    let mut recording = example(true);
    let nameless =
        recording.functions.iter_mut().find(|function| function.name == "libc_read").expect("libc_read");
    nameless.name.clear();
    let name = format!("libc.so.6+{:#x}", nameless.address);
    let shown = text(&folder("nameless", &recording), &["graph"]);
    assert!(shown.contains(&format!("      {name} [4]\n")) && !shown.contains("(libc.so.6)"), "{shown}");
}

#[test]
fn paths() {
    let folder = folder("paths", &example(true));
    assert_text(
        &text(&folder, &["paths"]),
        "
       calls       self  inclusive    share  function
           2   2.000 s    4.000 s    92.57%  work
           2   2.000 s    2.000 s    46.29%    work
           1   1.000 ms   321.0 ms    7.43%  main
          10   20.00 ms   320.0 ms    7.41%    parse
          40   300.0 ms   300.0 ms    6.94%      libc_read
1 path more; --min-percent, --depth and -n select
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
       calls       self  inclusive    share  function
          10   20.00 ms   320.0 ms  100.00%  parse
1 path more; --min-percent, --depth and -n select
[other calls]: 7 calls for whose paths there was no room
",
    );
    assert_eq!(
        text(&folder, &["paths", "--folded"]),
        "work 2000000000\nwork;work 2000000000\nmain 1000000\nmain;parse 20000000\nmain;parse;libc_read 300000000\n"
    );
    // What is below the last depth is not lost.
    assert_eq!(
        text(&folder, &["paths", "--folded", "--threads", "--depth", "2", "-f", "main"]),
        "prog 100;main 1000000\nprog 100;main;parse 320000000\n"
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

/// Numbers that cannot be true, and names that would control the terminal.
#[test]
fn hostile() {
    let mut measured = example(true);
    measured.functions[0].name = "a\x1b[31m;\n".to_owned();
    measured.modules[0].path = "/\x1b]0;".to_owned();
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
    for node in &mut measured.slow.nodes {
        (node.calls, node.self_ns, node.median_ns, node.waiting_ns) =
            (u64::MAX, u64::MAX, u64::MAX, u64::MAX);
    }
    for call in &mut measured.slow.calls {
        (call.duration_ns, call.waiting_ns, call.ready_ns) = (u64::MAX, Some(u64::MAX), Some(u64::MAX));
        (call.thread, call.arguments) = ("a\u{1b}[31m".to_owned(), "\u{202e}b\n".to_owned());
        (call.lost_ns, call.start_unix_ns) = (u64::MAX, u64::MAX);
    }
    let folder = folder("hostile", &measured);
    for args in [
        &["flat"][..],
        &["flat", "--by", "module", "--raw"],
        &["flat", "--by", "thread"],
        &["flat", "--by", "program"],
        &["graph"],
        &["paths"],
        &["paths", "--threads"],
        &["paths", "--slow"],
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
