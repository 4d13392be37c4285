//! `gmon trace --chrome` and `--perfetto`, of a trace that was made by hand.

use std::collections::HashMap;

use serde_json::Value;

use crate::support::traces::{folder, text};

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
            (name("argument 1"), (6, bytes_of("?"))),
            (name("argument 2"), (6, bytes_of("?"))),
            (name("argument 3"), (6, bytes_of("?"))),
            (name("began"), (6, bytes_of("at 0 ns"))),
            (name("ends"), (6, bytes_of("... open"))),
        ]
    );
}
