//! TODO

pub(crate) mod part;
pub(crate) mod seen;
pub(crate) mod unread;
