//! The region file: made before the program starts, read after its end.
//!
//! The profiled process can write anything to it at any time, its header included, and a process that we have attached
//! to may change its length, too: it may be another user's, and it is handed the file open for writing. So nothing that is
//! read from it decides where we read or write, how much, or how long that takes. Offsets come from our own layout; what
//! lies behind the end of a file that was cut off reads as zeros; numbers are added with saturation.

pub(crate) mod file;
pub(crate) mod layout;
pub(crate) mod read;
