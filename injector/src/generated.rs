//! Code that a process has made at run time, by a JIT compiler for instance: what the process says of it in `/tmp/perf-PID.map` and in
//! jitdump files.
//!
//! Files that the process's user controls enter; functions by address and time leave. This layer does not know what they are used for.

#[cfg(test)]
mod hostile_tests;
mod jitdump;
mod map;
mod origin;
mod table;

pub(crate) use jitdump::is_dump;
pub(crate) use origin::Origin;
pub(crate) use table::{Replay, Table};
