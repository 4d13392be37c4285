//! `gmon trace`, on a trace that was made by hand.

mod support;

use std::collections::HashMap;
use std::process::{Command, Output};

use gmon_trace::value::{Encoded, Field, Parameter, Signature, ValueKind};
use gmon_trace::{
    Chunk, ClockKind, Event, FILE_HEADER, Function, Open, OpenKind, Process, State, Switch, SwitchKind,
};
use serde_json::Value;
use support::Folder;

fn gmon(folder: &Folder, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
    command.args(args).current_dir(&folder.0).output().expect("gmon runs")
}

/// Returns what a command prints, which must succeed without a message.
fn text(folder: &Folder, args: &[&str]) -> String {
    text_and_message(folder, args, "")
}

/// Returns what a command prints, which must succeed with this message.
fn text_and_message(folder: &Folder, args: &[&str], message: &str) -> String {
    let output = gmon(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), message), "{args:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the message of a command that must fail.
fn message(folder: &Folder, args: &[&str]) -> String {
    let output = gmon(folder, args);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.strip_prefix("gmon: ").expect("gmon's message").trim_end().to_owned()
}

fn function(number: u32, name: &str, module: &str, signature: Option<Signature>) -> Function {
    let address = 0x1000 + 16 * u64::from(number);
    Function { number, name: name.into(), module: module.into(), address, size: 16, signature }
}

/// Two threads of a process, whose ticks are half a nanosecond. Measuring a call takes 2 ticks inside of its interval and 4 outside.
/// The second thread is in a call when the trace begins, and in another one when it ends.
fn chunks() -> Vec<Chunk> {
    let parameter = |name: Option<&str>, kind| Parameter { name: name.map(str::to_owned), kind };
    let point =
        |name: &str, offset| Field { name: name.into(), offset, kind: ValueKind::Signed { bytes: 4 } };
    let open = Signature {
        parameters: vec![
            parameter(Some("path"), ValueKind::CString),
            parameter(Some("flags"), ValueKind::Hex),
        ],
        result: Some(ValueKind::Signed { bytes: 4 }),
    };
    let turn = Signature {
        parameters: vec![
            parameter(
                None,
                ValueKind::Struct {
                    name: "point".into(),
                    fields: vec![point("x", 0), point("y", 4)],
                    bytes: 8,
                },
            ),
            parameter(None, ValueKind::Float { bytes: 8 }),
            parameter(None, ValueKind::Bool),
        ],
        result: Some(ValueKind::Pointer),
    };
    let data = |values: &[Encoded]| {
        let mut bytes = Vec::new();
        values.iter().for_each(|value| value.put(&mut bytes));
        Event::Data { bytes }
    };
    let enter = |time, function| Event::Enter { time, function };
    let exit = |time, function| Event::Exit { time, function };
    let path = Encoded::Text { bytes: b"/etc/passwd", is_cut: false };
    let corner = [0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0];
    let first = vec![
        Event::Thread { tid: 100 },
        Event::Chain { time: 2000, chain: 64 },
        enter(2000, 1),
        Event::Pause { ticks: 10 },
        enter(2100, 2),
        data(&[path, Encoded::Scalar(0x41)]),
        exit(2202, 2),
        data(&[Encoded::Scalar(3)]),
        enter(2300, 3),
        data(&[Encoded::Bytes(&corner), Encoded::Scalar(0.5_f64.to_bits()), Encoded::Scalar(1)]),
        Event::Jump { time: 2310, function: 4 },
        Event::Left { time: 2400, function: 4 },
        Event::Left { time: 2400, function: 3 },
        Event::Mark { time: 2410, function: 5 },
        Event::Lost { count: 3 },
        Event::Chain { time: 2500, chain: 64 },
        Event::Open { time: 2010, function: 1 },
        exit(4_002_000, 1),
    ];
    let second = vec![
        exit(2600, 3),
        enter(2700, 4),
        Event::Chain { time: 2800, chain: 128 },
        enter(2800, 5),
        exit(2850, 5),
    ];
    let before = State {
        tid: 101,
        chain: 64,
        pauses: 0,
        chains: vec![(64, 0, vec![Open { function: 3, time: 1800, kind: OpenKind::Call }])],
    };
    let switch = |time, cpu, kind| Switch { time, cpu, kind };
    vec![
        Chunk::Start { version: "0.1".into(), command: vec!["./prog".into(), "x".into()], unix_ns: 7 },
        Chunk::Process(Process {
            id: 0,
            parent: None,
            pid: 100,
            program: "/home/me/prog".into(),
            clock: ClockKind::Tsc,
            inside_256: 2 * 256,
            outside_256: 4 * 256,
            spread_256: 256,
        }),
        Chunk::Clock { process: 0, ticks: 1800, unix_ns: 1_000_000_000 },
        Chunk::Functions {
            process: 0,
            functions: vec![
                function(1, "main", "/home/me/prog", None),
                function(2, "open", "/lib/libc.so.6", Some(open)),
                function(3, "_ZN3geo4turnE5pointdb", "/home/me/prog", Some(turn)),
                function(4, "_ZN3geo4tailEv", "/home/me/prog", None),
                function(5, "setjmp", "/lib/libc.so.6", None),
            ],
        },
        Chunk::Thread { process: 0, tid: 101, name: "helper".into() },
        Chunk::Events { process: 0, block: 0, first: 0, before: State::default(), events: first },
        Chunk::Events { process: 0, block: 1, first: 5000, before, events: second },
        Chunk::Switches {
            process: 0,
            tid: 101,
            switches: vec![
                switch(2000, 1, SwitchKind::On),
                switch(2400, 1, SwitchKind::Off { preempted: false }),
                switch(2500, 3, SwitchKind::Migrated),
                switch(2600, 3, SwitchKind::On),
                switch(3000, 3, SwitchKind::Off { preempted: true }),
            ],
        },
        Chunk::Clock { process: 0, ticks: 4_001_800, unix_ns: 1_002_000_000 },
        Chunk::End { process: 0, ticks: 4_002_000 },
    ]
}

/// Returns a folder with `run.trace`.
fn folder(name: &str) -> Folder {
    let folder = Folder::new(&format!("trace-{name}"));
    let mut bytes = FILE_HEADER.to_vec();
    chunks().iter().for_each(|chunk| bytes.extend(chunk.encode().expect("memory")));
    folder.write("run.trace", &bytes);
    folder
}

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
   0.000000400                                       [101]  geo::turn() { /* ... open since 0.000000000 s */
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
    100      [101]  prog                      geo::turn() { /* ... open since 0.000000000 s */
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
   0.000000160    open() { /* ... open since 0.000000150 s */
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
prog: 2.000 ms, 2 threads
clock: time-stamp counter, 2.000 GHz; taken out of each call: 1.0 ns inside, 2.0 ns outside; error up to 1.5 ns a call, more right after a long chain of operations

calls  primitive      self   share  inclusive      mean       min       max       p50       p99  open  name                            module
    1          1  2.000 ms  99.99%   2.000 ms  2.000 ms  2.000 ms  2.000 ms  2.000 ms  2.000 ms     0  main                            prog
    2          2     93 ns   0.01%      93 ns     47 ns     44 ns     44 ns     44 ns     44 ns     1  geo::tail()                     prog
    1          1      2 ns   0.01%      46 ns     46 ns     46 ns     46 ns     46 ns     46 ns     0  geo::turn(point, double, bool)  prog
    4          4  2.000 ms  99.99%                                                                  1  total
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

/// Events of a thread nest, each thread has a name, and a coroutine's stack is a thread of its own.
#[test]
fn chrome() {
    let folder = folder("chrome");
    assert_eq!(text(&folder, &["trace", "--chrome", "run.json", "run.trace"]), "");
    let json: Value =
        serde_json::from_slice(&std::fs::read(folder.0.join("run.json")).expect("a file")).expect("JSON");
    let mut open: HashMap<(u64, u64), Vec<&Value>> = HashMap::new();
    let (mut names, mut calls, mut instants) = (Vec::new(), Vec::new(), Vec::new());
    let mut scheduled = Vec::new();
    for event in json["traceEvents"].as_array().expect("events") {
        let (pid, tid) = (event["pid"].as_u64().expect("a process"), event["tid"].as_u64());
        let stack = open.entry((pid, tid.unwrap_or(0))).or_default();
        let name = event["name"].as_str().unwrap_or_default();
        match event["ph"].as_str().expect("a phase") {
            "M" => names.push((name, event["args"]["name"].as_str().expect("a name"))),
            "B" => stack.push(event),
            "E" => {
                let begin = stack.pop().expect("a beginning");
                let (from, to) =
                    (begin["ts"].as_f64().expect("a time"), event["ts"].as_f64().expect("a time"));
                assert!(from <= to);
                calls.push((begin["name"].as_str().expect("a name"), from, to));
            }
            "X" => {
                let [at, dur] = ["ts", "dur"].map(|key| event[key].as_f64().expect("a time"));
                scheduled.push((tid.expect("a row"), name, at, dur));
            }
            "i" => instants.push(name),
            other => panic!("{other}"),
        }
        if name == "open" {
            assert_eq!(event["args"], serde_json::json!({"path": "\"/etc/passwd\"", "flags": "0x41"}));
        }
    }
    assert!(open.values().all(Vec::is_empty));
    assert_eq!(
        names,
        [
            ("process_name", "prog"),
            ("thread_name", "prog"),
            ("thread_name", "helper"),
            ("thread_name", "helper 101 stack 1"),
            ("thread_name", "helper 101 scheduling"),
        ]
    );
    assert_eq!(
        calls,
        [
            ("open", 0.15, 0.201),
            ("geo::tail", 0.255, 0.3),
            ("geo::turn", 0.25, 0.3),
            ("geo::turn", 0.4, 0.4),
            ("setjmp", 0.5, 0.525),
            ("geo::tail", 0.45, 2000.1),
            ("main", 0.1, 2000.1),
        ]
    );
    assert_eq!(instants, ["setjmp", "3 events lost", "5000 events missing", "is moved to cpu 3"]);
    // A row of its own, which has the number behind that of the coroutine's.
    let row = (1 << 30) + 1;
    assert_eq!(
        scheduled,
        [(row, "runs on cpu 1", 0.1, 0.2), (row, "waits", 0.3, 0.1), (row, "runs on cpu 3", 0.4, 0.2),]
    );
}

/// A part of the time has parts of what threads do, and chosen functions only what happens within them.
#[test]
fn scheduling_of_a_part() {
    let folder = folder("scheduling");
    let args = [
        "trace",
        "--fields",
        "elapsed,duration",
        "--tid",
        "101",
        "--from",
        "200ns",
        "--to",
        "320ns",
        "run.trace",
    ];
    assert_eq!(
        text(&folder, &args),
        "       elapsed   duration  calls
   0.000000200     100 ns  /* runs on cpu 1 */
   0.000000300      20 ns  /* waits */
"
    );
    // The helper is in no such call before 400 ns.
    let shown = text(&folder, &["trace", "--fields", "tid", "-f", "geo::t*", "run.trace"]);
    assert!(!shown.contains("waits") && !shown.contains("cpu"), "{shown}");
}

/// A field of a protobuf message: its number, and its value.
#[derive(Clone, Debug, PartialEq)]
enum Wire {
    Number(u64),
    Bytes(Vec<u8>),
}

/// Returns the fields of a message, by the rules of the wire format.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Wire)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (&byte, rest) = bytes.split_first().expect("a number");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => Wire::Number(varint(&mut bytes)),
            1 => {
                let (value, rest) = bytes.split_at(8);
                bytes = rest;
                Wire::Number(u64::from_le_bytes(value.try_into().expect("eight bytes")))
            }
            2 => {
                let len = varint(&mut bytes) as usize;
                let (value, rest) = bytes.split_at(len);
                bytes = rest;
                Wire::Bytes(value.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag >> 3, value));
    }
    fields
}

fn number(bytes: &[u8], field: u64) -> Option<u64> {
    fields(bytes).into_iter().find_map(|(number, value)| match value {
        Wire::Number(value) if number == field => Some(value),
        _ => None,
    })
}

fn message_of(bytes: &[u8], field: u64) -> Option<Vec<u8>> {
    all_of(bytes, field).into_iter().next()
}

fn all_of(bytes: &[u8], field: u64) -> Vec<Vec<u8>> {
    let found = fields(bytes).into_iter().filter_map(|(number, value)| match value {
        Wire::Bytes(value) if number == field => Some(value),
        _ => None,
    });
    found.collect()
}

fn string(bytes: &[u8], field: u64) -> Option<String> {
    message_of(bytes, field).map(|bytes| String::from_utf8(bytes).expect("text"))
}

/// The numbers of fields are those of Perfetto's `perfetto_trace.proto`.
#[test]
fn perfetto() {
    let folder = folder("perfetto");
    assert_eq!(text(&folder, &["trace", "--perfetto", "run.perfetto", "run.trace"]), "");
    let bytes = std::fs::read(folder.0.join("run.perfetto")).expect("a file");
    let packets = all_of(&bytes, 1);
    let mut tracks: Vec<(u64, Option<u64>, Option<u64>, String)> = Vec::new();
    let (mut names, mut annotations) = (HashMap::new(), HashMap::new());
    let mut open: HashMap<u64, Vec<(String, u64)>> = HashMap::new();
    let (mut slices, mut instants, mut arguments) = (Vec::new(), Vec::new(), Vec::new());
    for (index, packet) in packets.iter().enumerate() {
        // trusted_packet_sequence_id and sequence_flags: SEQ_INCREMENTAL_STATE_CLEARED only in the first one.
        assert_eq!((number(packet, 10), number(packet, 13)), (Some(1), Some(if index == 0 { 3 } else { 2 })));
        if let Some(track) = message_of(packet, 60) {
            let (process, thread) = (message_of(&track, 3), message_of(&track, 4));
            let name = string(&track, 2)
                .or_else(|| process.as_ref().and_then(|process| string(process, 6)))
                .or_else(|| thread.as_ref().and_then(|thread| string(thread, 5)));
            let tid = thread.and_then(|thread| number(&thread, 2));
            let parent = number(&track, 5);
            assert!(parent.is_none_or(|parent| tracks.iter().any(|(uuid, ..)| *uuid == parent)));
            tracks.push((number(&track, 1).expect("a number"), parent, tid, name.expect("a name")));
        }
        if let Some(interned) = message_of(packet, 12) {
            for (list, of) in [(2, &mut names), (3, &mut annotations)] {
                for entry in all_of(&interned, list) {
                    of.insert(number(&entry, 1).expect("a number"), string(&entry, 2).expect("a name"));
                }
            }
        }
        let Some(event) = message_of(packet, 11) else { continue };
        let (at, track) = (number(packet, 8).expect("a time"), number(&event, 11).expect("a track"));
        let name = string(&event, 23).or_else(|| number(&event, 10).map(|number| names[&number].clone()));
        let stack = open.entry(track).or_default();
        match number(&event, 9) {
            Some(1) => stack.push((name.clone().expect("a name"), at)),
            Some(2) => {
                let (name, from) = stack.pop().expect("a beginning");
                slices.push((track, name, from, at));
            }
            Some(3) => instants.push((track, name.clone().expect("a name"), at)),
            other => panic!("{other:?}"),
        }
        for annotation in all_of(&event, 4) {
            let key = annotations[&number(&annotation, 1).expect("a number")].clone();
            let value = fields(&annotation).pop().expect("a value");
            arguments.push((key, value));
        }
    }
    assert!(open.values().all(Vec::is_empty));
    let name = |text: &str| text.to_owned();
    assert_eq!(
        tracks,
        [
            (1, None, None, name("prog")),
            (2, Some(1), Some(100), name("prog")),
            (3, Some(1), Some(101), name("helper")),
            (4, Some(3), None, name("stack 1")),
            (5, Some(3), None, name("scheduling")),
        ]
    );
    assert_eq!(
        slices,
        [
            (2, name("open"), 150, 201),
            (2, name("geo::tail"), 255, 300),
            (2, name("geo::turn"), 250, 300),
            (3, name("geo::turn"), 400, 400),
            (4, name("setjmp"), 500, 525),
            (3, name("geo::tail"), 450, 2_000_100),
            (2, name("main"), 100, 2_000_100),
            (5, name("runs on cpu 1"), 100, 300),
            (5, name("waits"), 300, 400),
            (5, name("runs on cpu 3"), 400, 600),
        ]
    );
    assert_eq!(
        instants,
        [
            (2, name("setjmp"), 305),
            (2, name("3 events lost"), 305),
            (3, name("5000 events missing"), 400),
            (5, name("is moved to cpu 3"), 350),
        ]
    );
    let bytes_of = |text: &str| Wire::Bytes(text.as_bytes().to_vec());
    assert_eq!(
        arguments,
        [
            (name("path"), (6, bytes_of("/etc/passwd"))),
            (name("flags"), (6, bytes_of("0x41"))),
            (name("result"), (4, Wire::Number(3))),
            (name("argument 1"), (6, bytes_of("{x=-1, y=2}"))),
            (name("argument 2"), (5, Wire::Number(0.5_f64.to_bits()))),
            (name("argument 3"), (2, Wire::Number(1))),
            (name("begins"), (6, bytes_of("tail call"))),
            (name("ends"), (6, bytes_of("left by a jump or exception"))),
            (name("ends"), (6, bytes_of("left by a jump or exception"))),
            (name("began"), (6, bytes_of("at 0 ns"))),
            (name("ends"), (6, bytes_of("... open"))),
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
/// `gmon times --json` has of such functions.
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
    assert!(table.lines().any(|line| line.ends_with("20 ns  0x1010  prog")), "{table}");
    let json = |args: &[&str]| -> Value { serde_json::from_str(&text(&folder, args)).expect("JSON") };
    let row = &json(&["trace", "--stats", "--json", "run.trace"])["rows"][0];
    assert_eq!((&row["name"], &row["demangled"], &row["address"]), (&"".into(), &"".into(), &0x1010.into()));
    for step in json(&["trace", "--json", "run.trace"])["steps"].as_array().expect("steps") {
        assert_eq!((&step["function"], &step["address"]), (&"".into(), &0x1010.into()), "{step}");
    }
    text(&folder, &["trace", "--chrome", "run.json", "run.trace"]);
    let bytes = std::fs::read(folder.0.join("run.json")).expect("a file");
    assert!(String::from_utf8_lossy(&bytes).contains("\"name\":\"0x1010\""));
}
