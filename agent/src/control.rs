//! Orders to the agent in a running process: those of the injector, and the requests of Frida's library.
//!
//! This is the top layer: it uses the set-up and everything below, and no other code of the library uses it.

pub(crate) mod attach;
pub(crate) mod frida;
mod own;
