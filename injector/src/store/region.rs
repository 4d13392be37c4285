//! The region file: created before the program starts, read after its end.
//!
//! The profiled process can write anything to it at any time, its header included. A process to which
//! gprofinject has attached can also change the file's length: it may run as another user, and it gets the
//! file open for writing. So nothing that is read from the file decides where the injector reads or writes,
//! how much, or for how long. Offsets come from the injector's own layout, bytes after the end of a truncated
//! file read as zeros, and additions saturate.

mod area;
pub(crate) mod file;
pub(crate) mod layout;
pub(crate) mod read;
pub(crate) mod ring;
pub(crate) mod tallies;
pub(crate) mod times;
pub(crate) mod window;
