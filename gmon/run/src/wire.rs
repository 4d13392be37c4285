//! The messages of a file. Exports in pprof's format use those of `profile.proto` too.
//!
//! Those here are of pprof's `profile.proto` (<https://github.com/google/pprof/blob/main/proto/profile.proto>), and `extension` has
//! gprofinject's own. Indexes into the string table are `i64`, as in the former.

mod extension;

use prost::Message;

pub use crate::wire::extension::{
    Arcs, Blocks, Calls, Clock, Extension, Hits, Lines, Nodes, Processes, Programs, Rows, Runs, SlowCalls,
    SlowNodes, Stacks, Threads, TypicalCalls, VERSION, Values,
};
pub(crate) use crate::wire::extension::{EXITED, KILLED};

/// The field of pprof's `Profile` message with what that format has no place for, the message [`Extension`].
/// pprof's fields end at 15, and its readers ignore others.
pub const EXTENSION: u32 = 1000;

/// A profile without its samples, which are written and skipped one at a time.
#[derive(Clone, PartialEq, Message)]
pub struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub period: i64,
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
    #[prost(message, optional, tag = "1000")]
    pub extension: Option<Extension>,
}

/// The samples of a profile: field 2 of the message of which [`Profile`] has the other fields.
#[derive(Clone, PartialEq, Message)]
pub struct Samples {
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct ValueType {
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    /// The function that was running first, then its callers.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Label {
    #[prost(int64, tag = "1")]
    pub key: i64,
    #[prost(int64, tag = "2")]
    pub str: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Mapping {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    #[prost(int64, tag = "5")]
    pub filename: i64,
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Location {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub address: u64,
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Line {
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    #[prost(int64, tag = "2")]
    pub line: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub struct Function {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The name that is shown.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// The name in the symbol table.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    #[prost(int64, tag = "4")]
    pub filename: i64,
    #[prost(int64, tag = "5")]
    pub start_line: i64,
}
