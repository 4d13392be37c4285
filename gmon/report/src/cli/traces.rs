//! What is printed or written of a trace.

pub(crate) mod calls;
pub(crate) mod chrome;
pub(crate) mod folded;
pub(crate) mod json;
pub(crate) mod load;
pub(crate) mod measured;
pub(crate) mod names;
pub(crate) mod perfetto;
pub(crate) mod text;
pub(crate) mod timeline;
pub(crate) mod tracks;
pub(crate) mod wire;
