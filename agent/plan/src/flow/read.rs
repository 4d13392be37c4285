//! One pass over code: over the instructions of each function, and over the bytes that belong to no function.

mod jumps;
mod loops;
pub(crate) mod part;
pub(crate) mod seen;
mod switches;
pub(crate) mod unread;
