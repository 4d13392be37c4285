//! A trace that was made by hand, and what `gmon trace` says of it.

use std::process::{Command, Output};

use gmon_trace::value::{Encoded, Field, Parameter, Signature, ValueKind};
use gmon_trace::{
    Chunk, ClockKind, Event, FILE_HEADER, Function, Open, OpenKind, Process, State, Switch, SwitchKind,
};

use crate::support::Folder;

pub(crate) fn gmon(folder: &Folder, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
    command.args(args).current_dir(&folder.0).output().expect("gmon runs")
}

/// Returns what a command prints, which must succeed without a message.
pub(crate) fn text(folder: &Folder, args: &[&str]) -> String {
    text_and_message(folder, args, "")
}

/// Returns what a command prints, which must succeed with this message.
pub(crate) fn text_and_message(folder: &Folder, args: &[&str], message: &str) -> String {
    let output = gmon(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), message), "{args:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the message of a command that must fail.
pub(crate) fn message(folder: &Folder, args: &[&str]) -> String {
    let output = gmon(folder, args);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.strip_prefix("gmon: ").expect("gmon's message").trim_end().to_owned()
}

pub(crate) fn function(number: u32, name: &str, module: &str, signature: Option<Signature>) -> Function {
    let address = 0x1000 + 16 * u64::from(number);
    Function { number, name: name.into(), module: module.into(), address, size: 16, signature }
}

/// Two threads of a process, whose ticks are half a nanosecond. Measuring a call takes 2 ticks inside of its interval and 4 outside.
/// The second thread is in a call when the trace begins, and in another one when it ends.
pub(crate) fn chunks() -> Vec<Chunk> {
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
pub(crate) fn folder(name: &str) -> Folder {
    let folder = Folder::new(&format!("trace-{name}"));
    let mut bytes = FILE_HEADER.to_vec();
    chunks().iter().for_each(|chunk| bytes.extend(chunk.encode().expect("memory")));
    folder.write("run.trace", &bytes);
    folder
}
