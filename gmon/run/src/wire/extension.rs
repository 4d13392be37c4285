//! The messages that are gprofinject's own: what pprof's format has no place for.

use prost::Message;

/// The version of [`Extension`]. A change that older readers would misunderstand raises it.
pub const VERSION: u32 = 5;

/// What is added to the status and to the signal with which a process has ended.
pub(crate) const EXITED: u32 = 256;
pub(crate) const KILLED: u32 = 512;

/// What pprof's format has no place for.
#[derive(Clone, PartialEq, Message)]
pub struct Extension {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    #[prost(message, optional, tag = "2")]
    pub programs: Option<Programs>,
    #[prost(message, optional, tag = "3")]
    pub clock: Option<Clock>,
    /// The size of each function in bytes. The profile's functions after these are none of a module.
    #[prost(uint64, repeated, tag = "4")]
    pub function_sizes: Vec<u64>,
    #[prost(message, optional, tag = "5")]
    pub threads: Option<Threads>,
    #[prost(message, optional, tag = "6")]
    pub rows: Option<Rows>,
    #[prost(message, optional, tag = "7")]
    pub arcs: Option<Arcs>,
    #[prost(message, optional, tag = "8")]
    pub nodes: Option<Nodes>,
    #[prost(uint64, tag = "9")]
    pub nodes_lost: u64,
    /// Where the intervals of histograms begin, in nanoseconds.
    #[prost(double, repeated, tag = "10")]
    pub intervals: Vec<f64>,
    #[prost(message, optional, tag = "11")]
    pub calls: Option<Calls>,
    #[prost(message, optional, tag = "12")]
    pub hits: Option<Hits>,
    #[prost(message, optional, tag = "13")]
    pub blocks: Option<Blocks>,
    /// The digest of each module, or 0. Digests of another kind had the tag 14.
    #[prost(fixed64, repeated, tag = "24")]
    pub digests: Vec<u64>,
    #[prost(message, optional, tag = "15")]
    pub runs: Option<Runs>,
    #[prost(message, optional, tag = "16")]
    pub processes: Option<Processes>,
    #[prost(uint64, tag = "17")]
    pub processes_left_out: u64,
    #[prost(message, optional, tag = "18")]
    pub stacks: Option<Stacks>,
    #[prost(message, optional, tag = "19")]
    pub typical_calls: Option<TypicalCalls>,
    #[prost(message, optional, tag = "20")]
    pub slow_calls: Option<SlowCalls>,
    #[prost(message, optional, tag = "21")]
    pub slow_nodes: Option<SlowNodes>,
    #[prost(message, optional, tag = "22")]
    pub values: Option<Values>,
    /// Readers that do not know this field have no lines.
    #[prost(message, optional, tag = "23")]
    pub lines: Option<Lines>,
}

/// The runs of a sum by column.
#[derive(Clone, PartialEq, Message)]
pub struct Runs {
    #[prost(fixed64, repeated, tag = "1")]
    pub id: Vec<u64>,
    /// An index into the string table.
    #[prost(int64, repeated, tag = "2")]
    pub host: Vec<i64>,
    /// The rank plus 1, or 0 if there is none.
    #[prost(uint64, repeated, tag = "3")]
    pub rank: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    pub start_unix_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub duration_ns: Vec<u64>,
}

/// The programs by column, each with an element for a program: numbers of one kind compress better than rows do, and an element in
/// memory is at most eight times as large as in the file.
#[derive(Clone, PartialEq, Message)]
pub struct Programs {
    /// An index into the string table.
    #[prost(int64, repeated, tag = "1")]
    pub name: Vec<i64>,
    #[prost(uint32, repeated, tag = "2")]
    pub module: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub processes: Vec<u32>,
    #[prost(uint32, repeated, tag = "4")]
    pub pid: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub elsewhere: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub overhead: Vec<u64>,
    /// An index into the string table. Empty if no program has a label.
    #[prost(int64, repeated, tag = "7")]
    pub label: Vec<i64>,
}

/// The processes by column.
#[derive(Clone, PartialEq, Message)]
pub struct Processes {
    #[prost(uint32, repeated, tag = "1")]
    pub program: Vec<u32>,
    /// The number, less that of the process before.
    #[prost(sint64, repeated, tag = "2")]
    pub pid: Vec<i64>,
    /// The number of the parent, less that of the process before.
    #[prost(sint64, repeated, tag = "3")]
    pub parent: Vec<i64>,
    /// The index of the run plus 1, or 0 if it is not known.
    #[prost(uint32, repeated, tag = "4")]
    pub run: Vec<u32>,
    /// The beginning in microseconds, less that of the process before.
    #[prost(sint64, repeated, tag = "5")]
    pub begin_us: Vec<i64>,
    /// From the beginning to the end.
    #[prost(uint64, repeated, tag = "6")]
    pub life_us: Vec<u64>,
    /// 0: not known; 256 plus a status; 512 plus a signal.
    #[prost(uint32, repeated, tag = "7")]
    pub ending: Vec<u32>,
    #[prost(uint64, repeated, tag = "8")]
    pub calls: Vec<u64>,
    #[prost(uint64, repeated, tag = "9")]
    pub samples: Vec<u64>,
    #[prost(uint64, repeated, tag = "10")]
    pub self_ns: Vec<u64>,
}

/// The counted calls by column.
#[derive(Clone, PartialEq, Message)]
pub struct Calls {
    #[prost(uint32, repeated, tag = "1")]
    pub program: Vec<u32>,
    /// The index of the caller plus 1, or 0 if there is none.
    #[prost(uint64, repeated, tag = "2")]
    pub caller: Vec<u64>,
    /// The call site, less the address of the caller.
    #[prost(sint64, repeated, tag = "3")]
    pub site: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub callee: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub calls: Vec<u64>,
}

/// The samples of CPU time by column.
#[derive(Clone, PartialEq, Message)]
pub struct Hits {
    #[prost(uint32, repeated, tag = "1")]
    pub program: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub function: Vec<u32>,
    /// The address, less that of the function.
    #[prost(sint64, repeated, tag = "3")]
    pub address: Vec<i64>,
    #[prost(uint64, repeated, tag = "4")]
    pub samples: Vec<u64>,
}

/// The sampled stacks by column.
#[derive(Clone, PartialEq, Message)]
pub struct Stacks {
    #[prost(uint32, repeated, tag = "1")]
    pub program: Vec<u32>,
    /// How far before the node its parent is, or 0 if it has none.
    #[prost(uint64, repeated, tag = "2")]
    pub parent: Vec<u64>,
    /// The index of the function plus 1, or 0 for callers that are not known.
    #[prost(uint64, repeated, tag = "3")]
    pub function: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    pub samples: Vec<u64>,
}

/// The samples of lines by column.
#[derive(Clone, PartialEq, Message)]
pub struct Lines {
    #[prost(uint32, repeated, tag = "1")]
    pub program: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub function: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub line: Vec<u32>,
    #[prost(uint64, repeated, tag = "4")]
    pub own: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub inclusive: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub nested: Vec<u64>,
}

/// The executions of basic blocks by column.
#[derive(Clone, PartialEq, Message)]
pub struct Blocks {
    #[prost(uint32, repeated, tag = "1")]
    pub program: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub module: Vec<u32>,
    /// The address, less that of the block before.
    #[prost(sint64, repeated, tag = "3")]
    pub address: Vec<i64>,
    #[prost(uint64, repeated, tag = "4")]
    pub executions: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Clock {
    /// 0: the time-stamp counter; 1: `clock_gettime`.
    #[prost(uint32, tag = "1")]
    pub source: u32,
    #[prost(double, tag = "2")]
    pub ticks_per_second: f64,
    #[prost(double, tag = "3")]
    pub inside_ns: f64,
    #[prost(double, tag = "4")]
    pub outside_ns: f64,
    #[prost(double, tag = "5")]
    pub error_ns: f64,
    #[prost(double, tag = "6")]
    pub counted_below_ns: f64,
}

/// The threads by column.
#[derive(Clone, PartialEq, Message)]
pub struct Threads {
    #[prost(uint32, repeated, tag = "1")]
    pub pid: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub tid: Vec<u32>,
    /// An index into the string table.
    #[prost(int64, repeated, tag = "3")]
    pub name: Vec<i64>,
    #[prost(uint64, repeated, tag = "4")]
    pub life_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub outside_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub overhead_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    pub samples: Vec<u64>,
    #[prost(uint32, repeated, tag = "8")]
    pub program: Vec<u32>,
    /// The time for which others had the processor, plus 1; 0: not known.
    #[prost(uint64, repeated, tag = "9")]
    pub ready_ns: Vec<u64>,
}

/// The times of functions by column.
#[derive(Clone, PartialEq, Message)]
pub struct Rows {
    #[prost(uint32, repeated, tag = "1")]
    pub function: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub thread: Vec<u32>,
    #[prost(uint64, repeated, tag = "3")]
    pub calls: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    pub primitive: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub open: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub self_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    pub self_raw_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "8")]
    pub inclusive_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "9")]
    pub inclusive_raw_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "10")]
    pub min_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "11")]
    pub max_ns: Vec<u64>,
    /// The number of elements of each row's histogram.
    #[prost(uint32, repeated, tag = "12")]
    pub histogram_len: Vec<u32>,
    /// The elements of all histograms, one after the other.
    #[prost(uint64, repeated, tag = "13")]
    pub histogram: Vec<u64>,
    #[prost(uint64, repeated, tag = "14")]
    pub samples: Vec<u64>,
    #[prost(uint64, repeated, tag = "15")]
    pub waiting_ns: Vec<u64>,
    /// Empty if all calls were measured.
    #[prost(uint64, repeated, tag = "16")]
    pub counted: Vec<u64>,
}

/// The times of arcs by column.
#[derive(Clone, PartialEq, Message)]
pub struct Arcs {
    /// The index of the caller plus 1, or 0 if there is none.
    #[prost(uint64, repeated, tag = "1")]
    pub caller: Vec<u64>,
    #[prost(uint32, repeated, tag = "2")]
    pub callee: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub thread: Vec<u32>,
    #[prost(uint64, repeated, tag = "4")]
    pub calls: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub open: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub self_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    pub inclusive_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "8")]
    pub min_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "9")]
    pub max_ns: Vec<u64>,
    /// Empty if all calls were measured.
    #[prost(uint64, repeated, tag = "10")]
    pub counted: Vec<u64>,
}

/// The nodes of the calling-context trees by column.
#[derive(Clone, PartialEq, Message)]
pub struct Nodes {
    /// How far before the node its parent is, or 0 if it has none.
    #[prost(uint64, repeated, tag = "1")]
    pub parent: Vec<u64>,
    /// The index of the function plus 1, or 0 for the rest.
    #[prost(uint64, repeated, tag = "2")]
    pub function: Vec<u64>,
    #[prost(uint32, repeated, tag = "3")]
    pub thread: Vec<u32>,
    #[prost(uint64, repeated, tag = "4")]
    pub calls: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub self_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub samples: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    pub waiting_ns: Vec<u64>,
}

/// The functions whose slowest calls were kept, by column.
#[derive(Clone, PartialEq, Message)]
pub struct TypicalCalls {
    #[prost(uint32, repeated, tag = "1")]
    pub program: Vec<u32>,
    /// The index of the first node of the tree.
    #[prost(uint32, repeated, tag = "2")]
    pub node: Vec<u32>,
    #[prost(uint64, repeated, tag = "3")]
    pub calls: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    pub others: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub min_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub max_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    pub p99_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "8")]
    pub left_out: Vec<u64>,
}

/// The slowest calls by column.
#[derive(Clone, PartialEq, Message)]
pub struct SlowCalls {
    /// The index of the function in [`TypicalCalls`].
    #[prost(uint32, repeated, tag = "1")]
    pub typical: Vec<u32>,
    /// The index of the first node of the tree.
    #[prost(uint32, repeated, tag = "2")]
    pub node: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub pid: Vec<u32>,
    #[prost(uint32, repeated, tag = "4")]
    pub tid: Vec<u32>,
    /// An index into the string table.
    #[prost(int64, repeated, tag = "5")]
    pub thread: Vec<i64>,
    /// An index into the string table.
    #[prost(int64, repeated, tag = "6")]
    pub arguments: Vec<i64>,
    #[prost(uint64, repeated, tag = "7")]
    pub start_unix_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "8")]
    pub duration_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "9")]
    pub overhead_ns: Vec<u64>,
    /// The time plus 1, or 0 if it is not known.
    #[prost(uint64, repeated, tag = "10")]
    pub waiting_ns: Vec<u64>,
    /// The time plus 1, or 0 if it is not known.
    #[prost(uint64, repeated, tag = "11")]
    pub ready_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "12")]
    pub lost_ns: Vec<u64>,
    /// 0: returned, 1: left, 2: open; plus 4 if events were lost.
    #[prost(uint32, repeated, tag = "13")]
    pub end: Vec<u32>,
}

/// The nodes of the trees of slow and of typical calls, by column.
#[derive(Clone, PartialEq, Message)]
pub struct SlowNodes {
    /// How many nodes before this one its parent is, or 0 if it begins a tree.
    #[prost(uint64, repeated, tag = "1")]
    pub parent: Vec<u64>,
    /// The index of the function plus 1, or 0 for calls without a node of their own.
    #[prost(uint64, repeated, tag = "2")]
    pub function: Vec<u64>,
    #[prost(uint64, repeated, tag = "3")]
    pub calls: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    pub self_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "5")]
    pub longest_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "6")]
    pub waiting_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    pub ready_ns: Vec<u64>,
    #[prost(uint64, repeated, tag = "8")]
    pub present: Vec<u64>,
    #[prost(uint64, repeated, tag = "9")]
    pub median_ns: Vec<u64>,
}

/// The values of arguments and results, by column.
#[derive(Clone, PartialEq, Message)]
pub struct Values {
    #[prost(uint32, repeated, tag = "1")]
    pub program: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub function: Vec<u32>,
    /// The index of the calling function plus 1, or 0 if none is known.
    #[prost(uint64, repeated, tag = "3")]
    pub caller: Vec<u64>,
    /// An index into the string table.
    #[prost(int64, repeated, tag = "4")]
    pub name: Vec<i64>,
    #[prost(uint32, repeated, tag = "5")]
    pub kind: Vec<u32>,
    #[prost(uint64, repeated, tag = "6")]
    pub missing: Vec<u64>,
    #[prost(uint64, repeated, tag = "7")]
    pub others: Vec<u64>,
    #[prost(uint64, repeated, tag = "8")]
    pub sum_low: Vec<u64>,
    #[prost(sint64, repeated, tag = "9")]
    pub sum_high: Vec<i64>,
    #[prost(double, repeated, tag = "10")]
    pub float_sum: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub least: Vec<u64>,
    #[prost(uint64, repeated, tag = "12")]
    pub greatest: Vec<u64>,
    #[prost(uint32, repeated, tag = "13")]
    pub histogram_len: Vec<u32>,
    /// The numbers of others in the intervals of all rows, one row after the other.
    #[prost(uint64, repeated, tag = "14")]
    pub histogram: Vec<u64>,
    /// The number of kept values of each row. The next four columns have an element for each kept value of all rows.
    #[prost(uint32, repeated, tag = "15")]
    pub kept: Vec<u32>,
    #[prost(uint64, repeated, tag = "16")]
    pub value: Vec<u64>,
    #[prost(uint64, repeated, tag = "17")]
    pub count: Vec<u64>,
    #[prost(uint64, repeated, tag = "18")]
    pub error: Vec<u64>,
    /// An index into the string table plus 1, or 0 if no text is known.
    #[prost(int64, repeated, tag = "19")]
    pub text: Vec<i64>,
    /// The index of the node of each row plus 1, or 0 if no path is known. Empty if none is known of any row.
    #[prost(uint64, repeated, tag = "20")]
    pub node: Vec<u64>,
}
