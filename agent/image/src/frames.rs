//! What `.eh_frame` and the exception tables say: where functions begin and end, what their frames look like, and where an
//! unwinder enters them again.

pub mod encoded;
pub(crate) mod landing_pads;
pub mod lsda;
pub mod unwind;
