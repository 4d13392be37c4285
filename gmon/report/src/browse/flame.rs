//! The flame graph: frames with their weights, from the recorded call paths or estimated from the call graph, and where they are
//! in a width.

pub(crate) mod estimate;
pub(crate) mod frame;
pub(crate) mod layout;
pub(crate) mod paths;
pub(crate) mod tree;
