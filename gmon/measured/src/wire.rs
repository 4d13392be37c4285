//! The messages of a file.
//!
//! Those without a note are of pprof's `profile.proto`
//! (<https://github.com/google/pprof/blob/main/proto/profile.proto>). Indexes into the string table are `i64`, as
//! there.

use prost::Message;

/// The field of pprof's `Profile` message with what that format has no place for, the message [`Extension`].
/// pprof's fields end at 15, and its readers ignore others.
pub(crate) const EXTENSION: u32 = 1000;

/// The version of [`Extension`]. A change that older readers would misunderstand raises it.
pub(crate) const VERSION: u32 = 2;

/// A profile without its samples, which are written and skipped one at a time.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Profile {
    #[prost(message, repeated, tag = "1")]
    pub(crate) sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    pub(crate) string_table: Vec<String>,
    #[prost(int64, tag = "9")]
    pub(crate) time_nanos: i64,
    #[prost(int64, tag = "10")]
    pub(crate) duration_nanos: i64,
    #[prost(message, optional, tag = "11")]
    pub(crate) period_type: Option<ValueType>,
    #[prost(int64, tag = "12")]
    pub(crate) period: i64,
    #[prost(int64, tag = "14")]
    pub(crate) default_sample_type: i64,
    #[prost(message, optional, tag = "1000")]
    pub(crate) extension: Option<Extension>,
}

/// The samples of a profile: field 2 of the message of which [`Profile`] has the other fields.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Samples {
    #[prost(message, repeated, tag = "2")]
    pub(crate) sample: Vec<Sample>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(crate) struct ValueType {
    #[prost(int64, tag = "1")]
    pub(crate) r#type: i64,
    #[prost(int64, tag = "2")]
    pub(crate) unit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Sample {
    /// The function that was running first, then its callers.
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    pub(crate) value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) label: Vec<Label>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(crate) struct Label {
    #[prost(int64, tag = "1")]
    pub(crate) key: i64,
    #[prost(int64, tag = "2")]
    pub(crate) str: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(crate) struct Mapping {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) memory_start: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) memory_limit: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) file_offset: u64,
    #[prost(int64, tag = "5")]
    pub(crate) filename: i64,
    #[prost(int64, tag = "6")]
    pub(crate) build_id: i64,
    #[prost(bool, tag = "7")]
    pub(crate) has_functions: bool,
    #[prost(bool, tag = "8")]
    pub(crate) has_filenames: bool,
    #[prost(bool, tag = "9")]
    pub(crate) has_line_numbers: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Location {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) mapping_id: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) address: u64,
    #[prost(message, repeated, tag = "4")]
    pub(crate) line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(crate) struct Line {
    #[prost(uint64, tag = "1")]
    pub(crate) function_id: u64,
    #[prost(int64, tag = "2")]
    pub(crate) line: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(crate) struct Function {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    /// The name that is shown.
    #[prost(int64, tag = "2")]
    pub(crate) name: i64,
    /// The name in the symbol table.
    #[prost(int64, tag = "3")]
    pub(crate) system_name: i64,
    #[prost(int64, tag = "4")]
    pub(crate) filename: i64,
    #[prost(int64, tag = "5")]
    pub(crate) start_line: i64,
}

/// What pprof's format has no place for. This message and those below are gprofinject's own.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Extension {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    /// An index into the string table.
    #[prost(int64, tag = "2")]
    pub(crate) program: i64,
    #[prost(message, optional, tag = "3")]
    pub(crate) clock: Option<Clock>,
    /// The samples of each function. The profile's functions after these are not functions of the program.
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) function_samples: Vec<u64>,
    #[prost(message, optional, tag = "5")]
    pub(crate) threads: Option<Threads>,
    #[prost(message, optional, tag = "6")]
    pub(crate) rows: Option<Rows>,
    #[prost(message, optional, tag = "7")]
    pub(crate) arcs: Option<Arcs>,
    #[prost(message, optional, tag = "8")]
    pub(crate) nodes: Option<Nodes>,
    #[prost(uint64, tag = "9")]
    pub(crate) nodes_lost: u64,
    /// Where the intervals of histograms begin, in nanoseconds.
    #[prost(double, repeated, tag = "10")]
    pub(crate) intervals: Vec<f64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Clock {
    /// 0: the time-stamp counter; 1: `clock_gettime`.
    #[prost(uint32, tag = "1")]
    pub(crate) source: u32,
    #[prost(double, tag = "2")]
    pub(crate) ticks_per_second: f64,
    #[prost(double, tag = "3")]
    pub(crate) inside_ns: f64,
    #[prost(double, tag = "4")]
    pub(crate) outside_ns: f64,
    #[prost(double, tag = "5")]
    pub(crate) error_ns: f64,
}

/// The threads by column, each with an element for a thread: numbers of one kind compress better than rows do, and
/// an element in memory is at most eight times as large as in the file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Threads {
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) pid: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) tid: Vec<u32>,
    /// An index into the string table.
    #[prost(int64, repeated, tag = "3")]
    pub(crate) name: Vec<i64>,
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) life_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) outside_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub(crate) overhead_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    pub(crate) samples: Vec<u64>,
}

/// The times of functions by column.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Rows {
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) function: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) thread: Vec<u32>,
    #[prost(uint64, repeated, tag = "3")]
    pub(crate) calls: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) primitive: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) open: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub(crate) self_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    pub(crate) self_raw_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "8")]
    pub(crate) inclusive_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "9")]
    pub(crate) inclusive_raw_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "10")]
    pub(crate) min_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "11")]
    pub(crate) max_ns: Vec<u64>,
    /// The number of elements of each row's histogram.
    #[prost(uint32, repeated, tag = "12")]
    pub(crate) histogram_len: Vec<u32>,
    /// The elements of all histograms, one after the other.
    #[prost(uint64, repeated, tag = "13")]
    pub(crate) histogram: Vec<u64>,
    #[prost(uint64, repeated, tag = "14")]
    pub(crate) samples: Vec<u64>,
}

/// The times of arcs by column.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Arcs {
    /// The index of the caller plus 1, or 0 if there is none.
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) caller: Vec<u64>,
    #[prost(uint32, repeated, tag = "2")]
    pub(crate) callee: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub(crate) thread: Vec<u32>,
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) calls: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) open: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub(crate) self_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    pub(crate) inclusive_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "8")]
    pub(crate) min_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "9")]
    pub(crate) max_ns: Vec<u64>,
}

/// The nodes of the calling-context trees by column.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Nodes {
    /// How far before the node its parent is, or 0 if it has none.
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) parent: Vec<u64>,
    /// The index of the function plus 1, or 0 for the rest.
    #[prost(uint64, repeated, tag = "2")]
    pub(crate) function: Vec<u64>,
    #[prost(uint32, repeated, tag = "3")]
    pub(crate) thread: Vec<u32>,
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) calls: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub(crate) self_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub(crate) samples: Vec<u64>,
}
