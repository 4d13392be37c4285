//! Setting up: from the dynamic linker's first call to a hooked program.
//!
//! `early` runs before any code of the program, and `standalone` does in a standalone program; [`setup`] reads the plan file, carries it out, and installs an
//! [`crate::program::agent::Agent`]. The layer does not know about orders to a running process, which use it.

pub(crate) mod arena;
pub(crate) mod asking;
#[cfg(not(feature = "standalone"))]
pub(crate) mod early;
#[cfg(not(feature = "standalone"))]
pub(crate) mod environment;
pub(crate) mod functions;
pub(crate) mod library_plan;
pub(crate) mod load_table;
pub(crate) mod loads;
pub(crate) mod mcount;
pub(crate) mod notice;
pub(crate) mod own;
pub(crate) mod pauses;
pub(crate) mod plan;
pub(crate) mod process_files;
pub(crate) mod refusal;
pub(crate) mod room;
pub(crate) mod setup;
#[cfg(feature = "standalone")]
pub(crate) mod standalone;
