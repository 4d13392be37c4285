//! Reads the events of one buffer, chunk by chunk.

use crate::codec::Error;
use crate::event::{Event, State};
use crate::part::Part;
use crate::scan::{Damage, damage_of, read_contents};
use crate::trace::{Place, Stream, Trace};

/// A piece of a buffer.
#[derive(Debug)]
pub(crate) enum Piece {
    Event(Event),
    /// The state before the next event, which is the first one that is read or follows missing events. The time of the state is at most
    /// `time`.
    Begin {
        /// The number of events that are missing.
        missing: u64,
        state: State,
        time: u64,
    },
    /// A chunk, or the rest of a chunk, cannot be read.
    Damage(Damage),
}

/// The maximum memory in bytes of all parts that are read at the same time.
const ROOM: usize = 1 << 29;
/// The memory in bytes of a part besides its contents, including the other data of a thread.
const BESIDE: usize = 1 << 11;

/// The memory that is left for parts.
#[derive(Debug)]
pub(crate) struct Room(usize);

impl Room {
    pub(crate) fn new() -> Room {
        Room(ROOM)
    }
}

/// A place in a buffer's events.
pub(crate) struct Cursor {
    /// The index of the next chunk.
    next: usize,
    part: Option<(Part, Place, usize)>,
    /// The number of the next event, if one was read.
    number: Option<u64>,
    contents: Vec<u8>,
}

impl Cursor {
    /// Returns a cursor at the last chunk that cannot begin after the time `from`.
    pub(crate) fn new(stream: &Stream, from: u64) -> Cursor {
        let after = stream.chunks.partition_point(|place| place.time <= from);
        Cursor { next: after.saturating_sub(1), part: None, number: None, contents: Vec::new() }
    }

    /// Returns the next piece, or `None` at the end of the buffer.
    pub(crate) fn next(&mut self, trace: &Trace, stream: &Stream, room: &mut Room) -> Option<Piece> {
        loop {
            if let Some((part, place, taken)) = &mut self.part {
                match part.next() {
                    Ok(Some(event)) => {
                        self.number = self.number.map(|number| number.saturating_add(1));
                        return Some(Piece::Event(event));
                    }
                    Ok(None) => {
                        room.0 += *taken;
                        self.part = None;
                    }
                    Err(why) => {
                        let damage = damage_of(place.offset, &place.raw, why);
                        room.0 += *taken;
                        self.part = None;
                        return Some(Piece::Damage(damage));
                    }
                }
                continue;
            }
            let place = *stream.chunks.get(self.next)?;
            let is_first = self.next == 0;
            self.next += 1;
            match self.load(trace, &place, room) {
                Err(damage) => return Some(Piece::Damage(damage)),
                Ok(state) => {
                    let missing = match self.number {
                        None if !is_first => 0,
                        number => place.first.saturating_sub(number.unwrap_or(0)),
                    };
                    let goes_on = self.number == Some(place.first);
                    self.number = Some(place.first);
                    if !goes_on {
                        return Some(Piece::Begin { missing, state, time: place.time });
                    }
                }
            }
        }
    }

    /// Ends reading, and releases the current part's memory.
    pub(crate) fn leave(&mut self, room: &mut Room) {
        if let Some((_, _, taken)) = self.part.take() {
            room.0 += taken;
        }
        self.next = usize::MAX;
    }

    /// Makes a chunk the current one. Returns the state before its first event.
    fn load(&mut self, trace: &Trace, place: &Place, room: &mut Room) -> Result<State, Damage> {
        let damage = |why| damage_of(place.offset, &place.raw, why);
        // The decoder keeps a list of functions, which takes up to four bytes for each three of the contents.
        let taken = (place.raw.raw as usize).saturating_mul(7) / 3 + BESIDE;
        let left = room.0.checked_sub(taken).ok_or(damage(Error::TooLarge))?;
        read_contents(&trace.input, place.offset, &place.raw, &mut self.contents).map_err(damage)?;
        let plain = place.raw.decompress(&self.contents).map_err(damage)?;
        let mut part = Part::new(plain).map_err(damage)?;
        let state = std::mem::take(&mut part.before);
        room.0 = left;
        self.part = Some((part, *place, taken));
        // Release the memory of large compressed contents.
        self.contents.shrink_to(1 << 16);
        Ok(state)
    }
}
