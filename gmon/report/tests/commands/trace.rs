//! `gmon trace`, on a trace that was made by hand.

use gmon_trace::{Chunk, ClockKind, Event, FILE_HEADER, Process, State};
use serde_json::Value;

use crate::support::Folder;
use crate::support::traces::{folder, function, gmon, message, text, text_and_message};

/// Times are half of the ticks. `open` took 102 ticks, of which 2 are overhead: 50 ns. `turn` took 100 and is left, of which 2 are
/// its own overhead and 6 that of the call within it: 46 ns. Of these, 90 - 2 ticks are those of `tail`, which is 44 ns, and
/// (100 - 90 - 4 - 2) / 2 = 2 ns are its own. `main` took 4,000,000 ticks but for 10 in which the agent worked; it has made three
/// calls, one of which made another one: (3,999,990 - 3 * 6 - 2) / 2 ns. Its own are (3,999,990 - 102 - 4 - 100 - 4 - 2) / 2 = 1,999,889 ns.
#[test]
fn nested_text() {
    let folder = folder("text");
    assert_eq!(
        text(&folder, &["trace", "run.trace"]),
        "       elapsed   duration       self   overhead        tid  calls
   0.000000100     200 ns                            [101]  /* runs on cpu 1 */
   0.000000100                                       [100]  main() {
   0.000000150      50 ns      50 ns       1 ns      [100]    open(path=\"/etc/passwd\", flags=0x41) = 3;
   0.000000250                                       [100]    geo::turn({x=-1, y=2}, 0.5, true) {
   0.000000255      44 ns      44 ns       1 ns      [100]      geo::tail(); /* tail call, left by a jump or exception */
   0.000000300     100 ns                            [101]  /* waits */
   0.000000300      46 ns       2 ns       4 ns      [100]    } /* geo::turn: left by a jump or exception */
   0.000000305                                       [100]    setjmp(); /* its end is not seen */
   0.000000305                                       [100]  /* 3 events are lost: there was no room */
   0.000000350                                       [101]  /* is moved to cpu 3 */
   0.000000400                                       [101]  /* 5000 events are missing: too old to be kept, or damaged */
   0.000000400                                       [101]  geo::turn(?, ?, ?) { /* ... open since 0.000000000 s */
   0.000000400     400 ns                            [101]  } /* geo::turn */
   0.000000450                                       [101]  geo::tail() {
   0.000000500                                       [101]  /* on another stack */
   0.000000500      24 ns      24 ns       1 ns      [101]  setjmp();
   0.002000100      49 ns      49 ns       1 ns      [101]  } /* geo::tail ... open */
   0.002000100   2.000 ms   2.000 ms      15 ns      [100]  } /* main */
"
    );
    assert_eq!(
        text(&folder, &["trace", "--column", "--fields", "pid,tid,module", "-f", "geo::*", "run.trace"]),
        "    pid        tid  module            calls
    100      [100]  prog              geo::turn({x=-1, y=2}, 0.5, true) {
    100      [100]  prog                geo::tail(); /* tail call, left by a jump or exception */
    100      [100]  prog              } /* geo::turn: left by a jump or exception */
    100      [100]                    /* 3 events are lost: there was no room */
    100      [101]                            /* 5000 events are missing: too old to be kept, or damaged */
    100      [101]  prog                      geo::turn(?, ?, ?) { /* ... open since 0.000000000 s */
    100      [101]  prog                      } /* geo::turn */
    100      [101]  prog                      geo::tail() {
    100      [101]                            /* on another stack */
    100      [101]  prog                      } /* geo::tail ... open */
"
    );
    let part =
        ["trace", "--tid", "100", "--from", "160ns", "--to", "0.28us", "--fields", "elapsed", "run.trace"];
    assert_eq!(
        text(&folder, &part),
        "       elapsed  calls
   0.000000160  main() { /* ... open since 0.000000100 s */
   0.000000160    open(path=?, flags=?) { /* ... open since 0.000000150 s */
   0.000000201    } = 3 /* open */
   0.000000250    geo::turn({x=-1, y=2}, 0.5, true) {
   0.000000255      geo::tail() { /* tail call */
   0.000000280      } /* geo::tail ... open */
   0.000000280    } /* geo::turn ... open */
   0.000000280  } /* main ... open */
"
    );
}

#[test]
fn statistics() {
    let folder = folder("stats");
    let message = "gmon: run.trace: 5003 events are missing; the numbers and times are of the others\n";
    let shown = text_and_message(&folder, &["trace", "--stats", "-f", "prog!*", "run.trace"], message);
    assert_eq!(
        shown,
        "\
prog and its libraries: 6 calls
time: wall time, measured in each call in 2.000 ms; error up to 1.5 ns a call, more right after a long chain of operations

self %      self  inclusive  calls      mean       min       p50       p99       max  open  function   module
 99.99  2.000 ms   2.000 ms      1  2.000 ms  2.000 ms  2.000 ms  2.000 ms  2.000 ms     0  main       prog
  0.01     93 ns      93 ns      2     47 ns     44 ns     44 ns     44 ns     44 ns     1  geo::tail  prog
  0.01      2 ns      46 ns      1     46 ns     46 ns     46 ns     46 ns     46 ns     0  geo::turn  prog
 99.99  2.000 ms                 4                                                       1  total
"
    );
}

#[test]
fn folded() {
    assert_eq!(
        text(&folder("folded"), &["trace", "--folded", "run.trace"]),
        "\
main 1999889
main;open 50
main;geo::turn 2
main;geo::turn;geo::tail 44
geo::tail 49
setjmp 24
"
    );
}

#[test]
fn json() {
    let json: Value =
        serde_json::from_str(&text(&folder("json"), &["trace", "--json", "run.trace"])).expect("JSON");
    assert_eq!(json["command"], serde_json::json!(["./prog", "x"]));
    assert_eq!(json["processes"][0]["end_ns"], 2_000_100);
    let steps = json["steps"].as_array().expect("steps");
    let of = |name: &str, nth: usize| {
        steps.iter().filter(|step| step["demangled"] == name).nth(nth).expect("a call").clone()
    };
    let open = of("open", 0);
    for (key, value) in
        [("begin_ns", 150), ("end_ns", 201), ("duration_ns", 50), ("duration_raw_ns", 51), ("depth", 1)]
    {
        assert_eq!(open[key], value, "{key}");
    }
    assert_eq!(
        (&open["arguments"], &open["result"]),
        (&"path=\"/etc/passwd\", flags=0x41".into(), &"3".into())
    );
    let turn = of("geo::turn(point, double, bool)", 0);
    assert_eq!((&turn["how"], &turn["arguments"]), (&"left".into(), &"{x=-1, y=2}, 0.5, true".into()));
    assert_eq!(of("geo::turn(point, double, bool)", 1)["duration_ns"], Value::Null);
    assert_eq!(of("geo::tail()", 0)["kind"], "jump");
    assert_eq!(of("geo::tail()", 1)["how"], "open");
    let events: Vec<&Value> =
        steps.iter().map(|step| &step["event"]).filter(|event| *event != "call").collect();
    assert_eq!(events, ["runs", "waits", "mark", "lost", "moved", "runs", "missing"]);
    let mark = steps.iter().find(|step| step["event"] == "mark").expect("a mark");
    assert_eq!(mark["module"], open["module"]);
    assert!(mark["module"].is_string() && mark["address"].is_u64(), "{mark}");
    let scheduled: Vec<_> = steps
        .iter()
        .filter(|step| ["runs", "waits", "moved"].iter().any(|event| step["event"] == *event))
        .map(|step| ["tid", "begin_ns", "end_ns", "cpu"].map(|key| step[key].as_u64()))
        .collect();
    assert_eq!(
        scheduled,
        [
            [Some(101), Some(100), Some(300), Some(1)],
            [Some(101), Some(300), Some(400), None],
            [Some(101), Some(350), Some(350), Some(3)],
            [Some(101), Some(400), Some(600), Some(3)],
        ]
    );
}

#[test]
fn messages() {
    let folder = folder("messages");
    folder.write("other", b"not a trace");
    for (args, expected) in [
        (&["trace", "other"][..], "other: is no trace; `gprofinject --trace FILE PROG` writes one"),
        (
            &["trace", "-f", "trn", "run.trace"],
            "run.trace: no function is called trn; similar names: geo::turn(point, double, bool)",
        ),
        (&["trace", "-f", "libc*!main", "run.trace"], "run.trace: no function is called libc*!main"),
        (
            &["trace", "--pid", "7", "run.trace"],
            "run.trace: no process has the number that --pid asks for; there are 100",
        ),
        (&["trace", "--from", "2s", "--to", "1s", "run.trace"], "--from is after --to"),
        (
            &["trace", "--stats", "--sort", "cpu", "run.trace"],
            "--sort cpu: there is no such column here; CPU time was not sampled",
        ),
    ] {
        let found = message(&folder, args);
        assert!(found.starts_with(expected), "{args:?}: {found}");
    }
    let wrong = gmon(&folder, &["trace", "--from", "2", "run.trace"]);
    assert!(
        String::from_utf8_lossy(&wrong.stderr)
            .contains("expected a number with one of the units ns, us, ms, s")
    );
}

/// All that is whole is shown, and where the file is damaged.
#[test]
fn damaged_files() {
    let folder = folder("damaged");
    let whole = text(&folder, &["trace", "run.trace"]);
    let bytes = std::fs::read(folder.0.join("run.trace")).expect("a file");
    let mut wrong = bytes.clone();
    let last: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, four)| four == b"gpiC").map(|(at, _)| at).collect();
    // The chunk with the events of the second thread.
    let at = last[6];
    wrong[at + 40] ^= 1;
    folder.write("wrong.trace", &wrong);
    let output = gmon(&folder, &["trace", "wrong.trace"]);
    assert_eq!(output.status.code(), Some(0));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    // What the scheduler did is in another chunk.
    let is_scheduled = |line: &str| line.ends_with("/* waits */") || line.contains(" cpu ");
    let first: Vec<&str> =
        whole.lines().filter(|line| !line.contains("[101]") || is_scheduled(line)).collect();
    assert_eq!(shown.lines().collect::<Vec<_>>(), first);
    let said =
        format!("gmon: wrong.trace: damaged: {} bytes at offset {at}: its checksum is wrong\n", last[7] - at);
    assert_eq!(String::from_utf8_lossy(&output.stderr), said);
    // Without its end, the trace says no more how fast the clock is.
    folder.write("short.trace", &bytes[..last[8] + 5]);
    let output = gmon(&folder, &["trace", "short.trace"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&format!("damaged: 5 bytes at offset {}: it is cut off", last[8])), "{said}");
    assert!(said.contains("how fast the time stamp counter is"), "{said}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), whole.lines().count());
}

/// Functions of stripped programs: reports for people have their addresses, and JSON has an empty name beside the address, as
/// `gmon flat --json` has of such functions.
#[test]
fn functions_without_names() {
    let folder = Folder::new("trace-nameless");
    let chunks = [
        Chunk::Process(Process {
            id: 0,
            parent: None,
            pid: 100,
            program: "/bin/prog".into(),
            clock: ClockKind::Nanoseconds,
            inside_256: 0,
            outside_256: 0,
            spread_256: 0,
        }),
        Chunk::Functions { process: 0, functions: vec![function(1, "", "/bin/prog", None)] },
        Chunk::Events {
            process: 0,
            block: 0,
            first: 0,
            before: State::default(),
            events: vec![
                Event::Thread { tid: 100 },
                Event::Enter { time: 10, function: 1 },
                Event::Exit { time: 30, function: 1 },
                Event::Exit { time: 40, function: 1 },
            ],
        },
    ];
    let mut bytes = FILE_HEADER.to_vec();
    chunks.iter().for_each(|chunk| bytes.extend(chunk.encode().expect("memory")));
    folder.write("run.trace", &bytes);
    let shown = text(&folder, &["trace", "--fields", "tid", "run.trace"]);
    assert!(shown.contains("]  0x1010();\n") && shown.contains("/* 0x1010: its beginning"), "{shown}");
    let table = text(&folder, &["trace", "--stats", "run.trace"]);
    assert!(table.lines().any(|line| line.ends_with("20 ns  prog+0x1010")), "{table}");
    let json = |args: &[&str]| -> Value { serde_json::from_str(&text(&folder, args)).expect("JSON") };
    let row = &json(&["trace", "--stats", "--json", "run.trace"])["rows"][0];
    assert_eq!(
        (&row["name"], &row["demangled"], &row["address"]),
        (&"".into(), &"prog+0x1010".into(), &0x1010.into())
    );
    for step in json(&["trace", "--json", "run.trace"])["steps"].as_array().expect("steps") {
        assert_eq!((&step["function"], &step["address"]), (&"".into(), &0x1010.into()), "{step}");
    }
    text(&folder, &["trace", "--chrome", "run.json", "run.trace"]);
    let bytes = std::fs::read(folder.0.join("run.json")).expect("a file");
    assert!(String::from_utf8_lossy(&bytes).contains("\"name\":\"0x1010\""));
}
