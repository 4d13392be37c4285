//! The events of a thread as bytes: a tag, the time since the event before, and the function unless it follows from the calls
//! that are open.

use crate::codec::{Cursor, Error, put, put_signed};
use crate::event::{Event, Open, OpenKind, State};

/// The tags of events. [`SAME`] is added where the function is that of the innermost open call.
const ENTER: u8 = 1;
const JUMP: u8 = 2;
const INHERITED: u8 = 3;
const MARK: u8 = 4;
const EXIT: u8 = 5;
const LEFT: u8 = 6;
const CHAIN: u8 = 7;
const PAUSE: u8 = 8;
const LOST: u8 = 9;
const OPEN: u8 = 10;
const DATA: u8 = 11;
const THREAD: u8 = 12;
const SAME: u8 = 0x10;

/// The functions of the open calls, as far as the events so far tell of them.
#[derive(Default)]
struct Stack(Vec<u32>);

impl Stack {
    fn note(&mut self, event: &Event) {
        match event {
            Event::Enter { function, .. }
            | Event::Jump { function, .. }
            | Event::Inherited { function, .. }
            | Event::Open { function, .. } => self.0.push(*function),
            Event::Exit { .. } | Event::Left { .. } => drop(self.0.pop()),
            Event::Chain { .. } | Event::Lost { .. } | Event::Thread { .. } => self.0.clear(),
            Event::Mark { .. } | Event::Pause { .. } | Event::Data { .. } => {}
        }
    }
}

pub(crate) fn put_events(out: &mut Vec<u8>, events: &[Event]) {
    put(out, events.len() as u64);
    let (mut last, mut stack) = (0_u64, Stack::default());
    for event in events {
        put_event(out, event, &mut last, &stack);
        stack.note(event);
    }
}

fn put_event(out: &mut Vec<u8>, event: &Event, last: &mut u64, stack: &Stack) {
    let mut timed = |out: &mut Vec<u8>, tag: u8, time: u64| {
        out.push(tag);
        put_signed(out, time.wrapping_sub(*last) as i64);
        *last = time;
    };
    let mut call = |out: &mut Vec<u8>, tag: u8, time: u64, function: u32| {
        timed(out, tag, time);
        put(out, function.into());
    };
    match *event {
        Event::Enter { time, function } => call(out, ENTER, time, function),
        Event::Jump { time, function } => call(out, JUMP, time, function),
        Event::Inherited { time, function } => call(out, INHERITED, time, function),
        Event::Mark { time, function } => call(out, MARK, time, function),
        Event::Open { time, function } => call(out, OPEN, time, function),
        Event::Exit { time, function } if stack.0.last() == Some(&function) => timed(out, EXIT | SAME, time),
        Event::Left { time, function } if stack.0.last() == Some(&function) => timed(out, LEFT | SAME, time),
        Event::Exit { time, function } => call(out, EXIT, time, function),
        Event::Left { time, function } => call(out, LEFT, time, function),
        Event::Chain { time, chain } => call(out, CHAIN, time, chain),
        Event::Pause { ticks } => {
            out.push(PAUSE);
            put(out, ticks);
        }
        Event::Lost { count } => {
            out.push(LOST);
            put(out, count);
        }
        Event::Data { ref bytes } => {
            out.push(DATA);
            put(out, bytes.len() as u64);
            out.extend_from_slice(bytes);
        }
        Event::Thread { tid } => {
            out.push(THREAD);
            put(out, tid.into());
        }
    }
}

pub(crate) fn events(from: &mut Cursor) -> Result<Vec<Event>, Error> {
    let count = from.number()?;
    // Each event takes two bytes at least.
    let mut all = Vec::with_capacity((count as usize).min(from.left() / 2 + 1));
    let (mut last, mut stack) = (0_u64, Stack::default());
    for _ in 0..count {
        let event = event(from, &mut last, &stack)?;
        stack.note(&event);
        all.push(event);
    }
    Ok(all)
}

fn event(from: &mut Cursor, last: &mut u64, stack: &Stack) -> Result<Event, Error> {
    let at = from.at;
    let tag = from.byte()?;
    match tag {
        PAUSE => return Ok(Event::Pause { ticks: from.number()? }),
        LOST => return Ok(Event::Lost { count: from.number()? }),
        DATA => return Ok(Event::Data { bytes: from.take()?.to_vec() }),
        THREAD => return Ok(Event::Thread { tid: from.small()? }),
        _ => {}
    }
    *last = last.wrapping_add(from.signed()? as u64);
    let time = *last;
    let same = || stack.0.last().copied().ok_or(Error::Value(at));
    Ok(match tag {
        ENTER => Event::Enter { time, function: from.small()? },
        JUMP => Event::Jump { time, function: from.small()? },
        INHERITED => Event::Inherited { time, function: from.small()? },
        MARK => Event::Mark { time, function: from.small()? },
        OPEN => Event::Open { time, function: from.small()? },
        EXIT => Event::Exit { time, function: from.small()? },
        LEFT => Event::Left { time, function: from.small()? },
        CHAIN => Event::Chain { time, chain: from.small()? },
        tag if tag == EXIT | SAME => Event::Exit { time, function: same()? },
        tag if tag == LEFT | SAME => Event::Left { time, function: same()? },
        _ => return Err(Error::Value(at)),
    })
}

pub(crate) fn put_state(out: &mut Vec<u8>, state: &State) {
    put(out, state.tid.into());
    put(out, state.chain.into());
    put(out, state.pauses);
    put(out, state.chains.len() as u64);
    for (chain, omitted, open) in &state.chains {
        put(out, (*chain).into());
        put(out, *omitted);
        put(out, open.len() as u64);
        let mut last = 0_u64;
        for call in open {
            out.push(match call.kind {
                OpenKind::Call => ENTER,
                OpenKind::Jump => JUMP,
                OpenKind::Inherited => INHERITED,
            });
            put_signed(out, call.time.wrapping_sub(last) as i64);
            last = call.time;
            put(out, call.function.into());
        }
    }
}

pub(crate) fn state(from: &mut Cursor) -> Result<State, Error> {
    let (tid, chain, pauses) = (from.small()?, from.small()?, from.number()?);
    let mut chains = Vec::new();
    for _ in 0..from.number()? {
        let (number, omitted, count) = (from.small()?, from.number()?, from.number()?);
        let mut open = Vec::with_capacity((count as usize).min(from.left() / 3 + 1));
        let mut time = 0_u64;
        for _ in 0..count {
            let at = from.at;
            let kind = match from.byte()? {
                ENTER => OpenKind::Call,
                JUMP => OpenKind::Jump,
                INHERITED => OpenKind::Inherited,
                _ => return Err(Error::Value(at)),
            };
            time = time.wrapping_add(from.signed()? as u64);
            open.push(Open { function: from.small()?, time, kind });
        }
        chains.push((number, omitted, open));
    }
    Ok(State { tid, chain, pauses, chains })
}
