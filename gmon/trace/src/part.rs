//! Decodes the events of a chunk one at a time.

use crate::codec::{Cursor, Error};
use crate::event::{Event, State};
use crate::events::{self, Decoder};

/// The decompressed contents of a chunk with events.
pub(crate) struct Part {
    plain: Vec<u8>,
    at: usize,
    decoder: Decoder,
    pub(crate) process: u32,
    pub(crate) block: u32,
    /// The number of the first event.
    pub(crate) first: u64,
    /// The state before it.
    pub(crate) before: State,
}

impl Part {
    pub(crate) fn new(plain: Vec<u8>) -> Result<Part, Error> {
        let mut from = Cursor::new(&plain);
        let (process, block, first) = (from.small()?, from.small()?, from.number()?);
        let before = events::state(&mut from)?;
        let decoder = Decoder::new(&mut from)?;
        let at = from.at;
        Ok(Part { plain, at, decoder, process, block, first, before })
    }

    /// Returns the number of events that are left.
    pub(crate) fn count(&self) -> u64 {
        // The chunk's own count is not trusted: each event takes at least two bytes.
        self.decoder.left().min(self.plain.len() as u64 / 2)
    }

    /// Returns the next event.
    ///
    /// # Errors
    /// Returns an error if the bytes are not those of an event.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, Error> {
        let mut from = Cursor::at(&self.plain, self.at);
        let event = self.decoder.next(&mut from)?;
        self.at = from.at;
        Ok(event)
    }
}
