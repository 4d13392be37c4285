//! The flame graph: frames with their weights, from the call paths of a run, and where they are in a width.

pub(crate) mod frame;
pub(crate) mod layout;
pub(crate) mod paths;
