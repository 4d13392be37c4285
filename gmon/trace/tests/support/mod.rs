//! Traces that are made by hand.
#![allow(dead_code, reason = "each test uses a part of it")]

use gmon_trace::{
    Choice, Chunk, ClockKind, Event, FILE_HEADER, Function, How, Input, OpenKind, Process, State, Step,
    Trace, What,
};

/// Returns process 0, whose ticks are nanoseconds, with this overhead per call.
pub(crate) fn process(inside: u64, outside: u64) -> Chunk {
    Chunk::Process(Process {
        id: 0,
        parent: None,
        pid: 10,
        program: "/bin/prog".into(),
        clock: ClockKind::Nanoseconds,
        inside_256: inside * 256,
        outside_256: outside * 256,
        spread_256: 0,
    })
}

/// Returns functions of process 0 with these numbers, which are named `f1`, `f2` and so on.
pub(crate) fn functions(numbers: impl IntoIterator<Item = u32>) -> Chunk {
    let functions = numbers.into_iter().map(|number| Function {
        number,
        name: format!("f{number}"),
        module: "/bin/prog".into(),
        address: 0x1000 + 16 * u64::from(number),
        size: 16,
        signature: None,
    });
    Chunk::Functions { process: 0, functions: functions.collect() }
}

/// Returns events of a buffer of process 0 that come first.
pub(crate) fn events(block: u32, events: &[Event]) -> Chunk {
    later(block, 0, State::default(), events)
}

/// Returns events of a buffer that come later.
pub(crate) fn later(block: u32, first: u64, before: State, events: &[Event]) -> Chunk {
    Chunk::Events { process: 0, block, first, before, events: events.to_vec() }
}

/// Returns a file with these chunks.
pub(crate) fn file(chunks: &[Chunk]) -> Vec<u8> {
    let mut bytes = FILE_HEADER.to_vec();
    chunks.iter().for_each(|chunk| bytes.extend(chunk.encode().expect("memory")));
    bytes
}

/// Returns the trace with these chunks.
pub(crate) fn trace(chunks: &[Chunk]) -> Trace {
    Trace::read(Input::Bytes(file(chunks))).expect("a trace")
}

/// Returns the steps of a trace as text, a line for each, indented by their depths: the time, and what happens. Durations are those
/// with and without overhead, and the own time with that of the callees taken out.
pub(crate) fn steps(trace: &Trace, choice: &Choice) -> Vec<String> {
    trace.steps(choice).map(|step| line(&step)).collect()
}

fn line(step: &Step) -> String {
    let how = |how: How| match how {
        How::Returned => "",
        How::Left => " left",
        How::Open => " open",
        How::Unknown => " unknown",
    };
    let kind = |kind: OpenKind| match kind {
        OpenKind::Call => "",
        OpenKind::Jump => " jump",
        OpenKind::Inherited => " inherited",
    };
    let data = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(String::new(), |bytes| format!(" {bytes:?}"));
    let earlier = |time: &Option<u64>| time.map_or(String::new(), |time| format!(" since {time}"));
    let spaces = |depth: u32| "  ".repeat(depth as usize);
    let (time, tid) = (step.time, step.tid);
    let what = match &step.what {
        What::Begin(begun) => {
            let number = begun.function.number;
            let rest = kind(begun.kind).to_owned() + &earlier(&begun.earlier) + &data(&begun.arguments);
            format!("{}{number} {{{rest}", spaces(begun.depth))
        }
        What::End(ended) => format!(
            "{}}} {}{} {}/{}{}",
            spaces(ended.depth),
            ended.function.number,
            how(ended.how),
            ended.lasted,
            ended.own,
            data(&ended.result)
        ),
        What::Leaf(begun, ended) => format!(
            "{}{}{}{}{}; {}/{}{}",
            spaces(begun.depth),
            begun.function.number,
            kind(begun.kind),
            data(&begun.arguments),
            how(ended.how),
            ended.lasted,
            ended.own,
            data(&ended.result)
        ),
        What::Mark(begun) => format!("{}{} mark", spaces(begun.depth), begun.function.number),
        What::Orphan { function, how: ended } => format!("orphan {}{}", function.number, how(*ended)),
        What::Lost(count) => format!("lost {count}"),
        What::Missing(count) => format!("missing {count}"),
        What::Stack => format!("stack {}", step.chain),
        What::TooDeep => "too deep".to_owned(),
    };
    format!("{tid} {time} {what}")
}

pub(crate) fn thread(tid: u32) -> Event {
    Event::Thread { tid }
}

pub(crate) fn enter(time: u64, function: u32) -> Event {
    Event::Enter { time, function }
}

pub(crate) fn jump(time: u64, function: u32) -> Event {
    Event::Jump { time, function }
}

pub(crate) fn exit(time: u64, function: u32) -> Event {
    Event::Exit { time, function }
}

pub(crate) fn left(time: u64, function: u32) -> Event {
    Event::Left { time, function }
}

pub(crate) fn chain(time: u64, chain: u32) -> Event {
    Event::Chain { time, chain }
}

pub(crate) fn pause(ticks: u64) -> Event {
    Event::Pause { ticks }
}
