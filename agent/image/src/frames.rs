//! `.eh_frame` and the exception tables: where functions begin and end, what their frames look like, and
//! where an unwinder re-enters them.

pub mod caller;
pub mod encoded;
pub(crate) mod landing_pads;
pub mod lsda;
pub mod unwind;
