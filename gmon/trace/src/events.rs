//! The encoding of a thread's events as bytes: a tag, the time since the preceding event, and the function, which is omitted if it is
//! that of the innermost open call.

use crate::codec::{Cursor, Error, Short, put, put_signed, zigzag};
use crate::event::{Event, Open, OpenKind, State};

/// The tags of events. The bit [`SAME`] is added if the function is that of the innermost open call.
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

/// The maximum number of stacks and open calls in a [`State`]. Recorders write far fewer.
const OPEN_MOST: u64 = 1 << 21;

/// The functions of the open calls, as far as the preceding events determine them.
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

/// An encoder of consecutive events of a thread.
#[derive(Default)]
pub struct Events {
    bytes: Vec<u8>,
    count: u64,
    last: u64,
    stack: Stack,
}

impl Events {
    /// The number of events.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Returns whether there are no events.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Removes all events, but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.stack.0.clear();
        (self.count, self.last) = (0, 0);
    }

    /// Adds the event of a call that begins: [`Event::Enter`].
    #[inline]
    pub fn enter(&mut self, time: u64, function: u32) {
        self.call(ENTER, time, function);
    }

    /// Adds the event of a call that returns: [`Event::Exit`].
    #[inline]
    pub fn exit(&mut self, time: u64, function: u32) {
        self.end(EXIT, time, function);
    }

    /// Adds an event.
    pub fn push(&mut self, event: &Event) {
        match *event {
            Event::Enter { time, function } => self.enter(time, function),
            Event::Jump { time, function } => self.call(JUMP, time, function),
            Event::Inherited { time, function } => self.call(INHERITED, time, function),
            Event::Open { time, function } => self.call(OPEN, time, function),
            Event::Mark { time, function } => self.with_number(MARK, time, function),
            Event::Exit { time, function } => self.end(EXIT, time, function),
            Event::Left { time, function } => self.end(LEFT, time, function),
            Event::Chain { time, chain } => {
                self.with_number(CHAIN, time, chain);
                self.stack.0.clear();
            }
            Event::Pause { ticks } => self.plain(PAUSE, ticks),
            Event::Lost { count } => {
                self.plain(LOST, count);
                self.stack.0.clear();
            }
            Event::Thread { tid } => {
                self.plain(THREAD, tid.into());
                self.stack.0.clear();
            }
            Event::Data { ref bytes } => {
                self.plain(DATA, bytes.len() as u64);
                self.bytes.extend_from_slice(bytes);
            }
        }
    }

    /// Returns the difference of this time and that of the preceding event.
    #[inline]
    fn since(&mut self, time: u64) -> u64 {
        self.count += 1;
        let last = std::mem::replace(&mut self.last, time);
        zigzag(time.wrapping_sub(last) as i64)
    }

    fn plain(&mut self, tag: u8, value: u64) {
        self.count += 1;
        self.bytes.push(tag);
        put(&mut self.bytes, value);
    }

    #[inline]
    fn call(&mut self, tag: u8, time: u64, function: u32) {
        self.with_number(tag, time, function);
        self.stack.0.push(function);
    }

    #[inline]
    fn with_number(&mut self, tag: u8, time: u64, number: u32) {
        let (since, number) = (self.since(time), u64::from(number));
        if since < Short::FIRST && number < Short::SECOND {
            return Short::new(tag).put(since).put(number).end(&mut self.bytes);
        }
        self.bytes.push(tag);
        put(&mut self.bytes, since);
        put(&mut self.bytes, number);
    }

    #[inline]
    fn end(&mut self, tag: u8, time: u64, function: u32) {
        if self.stack.0.pop() != Some(function) {
            return self.with_number(tag, time, function);
        }
        let since = self.since(time);
        if since < Short::FIRST {
            return Short::new(tag | SAME).put(since).end(&mut self.bytes);
        }
        self.bytes.push(tag | SAME);
        put(&mut self.bytes, since);
    }
}

impl From<&[Event]> for Events {
    fn from(list: &[Event]) -> Events {
        let mut events = Events::default();
        list.iter().for_each(|event| events.push(event));
        events
    }
}

pub(crate) fn put_events(out: &mut Vec<u8>, events: &Events) {
    put(out, events.count);
    out.extend_from_slice(&events.bytes);
}

/// A decoder of consecutive events.
pub(crate) struct Decoder {
    /// The number of events that are left.
    left: u64,
    last: u64,
    stack: Stack,
}

impl Decoder {
    /// Returns a decoder whose input begins with the number of events.
    pub(crate) fn new(from: &mut Cursor) -> Result<Decoder, Error> {
        Ok(Decoder { left: from.number()?, last: 0, stack: Stack::default() })
    }

    /// The number of events that are left.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Reads the next event, if there is one.
    pub(crate) fn next(&mut self, from: &mut Cursor) -> Result<Option<Event>, Error> {
        let Some(left) = self.left.checked_sub(1) else { return Ok(None) };
        let event = event(from, &mut self.last, &self.stack)?;
        self.stack.note(&event);
        self.left = left;
        Ok(Some(event))
    }
}

pub(crate) fn events(from: &mut Cursor) -> Result<Vec<Event>, Error> {
    let mut decoder = Decoder::new(from)?;
    // The count is not trusted: each event takes at least two bytes.
    let mut all = Vec::with_capacity((decoder.left as usize).min(from.left() / 2 + 1));
    while let Some(event) = decoder.next(from)? {
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
    let (mut chains, mut room) = (Vec::new(), OPEN_MOST);
    for _ in 0..from.number()? {
        let start = from.at;
        let (number, omitted, count) = (from.small()?, from.number()?, from.number()?);
        room = room.checked_sub(count.saturating_add(1)).ok_or(Error::Value(start))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_with_numbers_of_any_length() {
        let mut list = Vec::new();
        let mut time = 0_u64;
        for bits in 0..64 {
            for step in [(1_u64 << bits) - 1, 1 << bits, (1 << bits) + 1] {
                // Forwards, and backwards.
                for step in [step, step.wrapping_neg()] {
                    time = time.wrapping_add(step);
                    let function = (1_u64 << (bits % 33)).wrapping_sub(step & 1) as u32;
                    list.push(Event::Enter { time, function });
                    time = time.wrapping_add(step);
                    list.push(Event::Mark { time, function: function.wrapping_add(1) });
                    list.push(if bits % 2 == 0 {
                        Event::Exit { time, function }
                    } else {
                        Event::Left { time: time.wrapping_add(step), function: function ^ 1 }
                    });
                }
            }
        }
        let mut bytes = Vec::new();
        put_events(&mut bytes, &Events::from(list.as_slice()));
        let mut cursor = Cursor::new(&bytes);
        assert_eq!(events(&mut cursor).expect("events"), list);
        assert!(cursor.is_at_end());
    }
}
