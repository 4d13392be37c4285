//! The messages of Perfetto's format, with those fields that are written
//! (<https://perfetto.dev/docs/reference/trace-packet-proto>).

use prost::Message;

/// `TracePacket`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Packet {
    #[prost(message, optional, tag = "6")]
    pub(crate) clocks: Option<ClockSnapshot>,
    #[prost(uint64, optional, tag = "8")]
    pub(crate) timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub(crate) sequence: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub(crate) event: Option<TrackEvent>,
    #[prost(message, optional, tag = "12")]
    pub(crate) interned: Option<InternedData>,
    #[prost(uint32, optional, tag = "13")]
    pub(crate) flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    pub(crate) track: Option<TrackDescriptor>,
}

/// `ClockSnapshot`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub(crate) clocks: Vec<ClockValue>,
    #[prost(uint32, optional, tag = "2")]
    pub(crate) primary: Option<u32>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct ClockValue {
    #[prost(uint32, optional, tag = "1")]
    pub(crate) clock: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub(crate) timestamp: Option<u64>,
}

/// `TrackDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub(crate) uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) name: Option<String>,
    #[prost(message, optional, tag = "3")]
    pub(crate) process: Option<ProcessDescriptor>,
    #[prost(message, optional, tag = "4")]
    pub(crate) thread: Option<ThreadDescriptor>,
    #[prost(uint64, optional, tag = "5")]
    pub(crate) parent: Option<u64>,
}

/// `ProcessDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(crate) pid: Option<i32>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) command: Vec<String>,
    #[prost(string, optional, tag = "6")]
    pub(crate) name: Option<String>,
}

/// `ThreadDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ThreadDescriptor {
    #[prost(int32, optional, tag = "1")]
    pub(crate) pid: Option<i32>,
    #[prost(int32, optional, tag = "2")]
    pub(crate) tid: Option<i32>,
    #[prost(string, optional, tag = "5")]
    pub(crate) name: Option<String>,
}

/// `TrackEvent.Type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    Begin = 1,
    End = 2,
    Instant = 3,
}

/// `TrackEvent`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub(crate) annotations: Vec<DebugAnnotation>,
    /// An [`EventKind`].
    #[prost(int32, optional, tag = "9")]
    pub(crate) kind: Option<i32>,
    #[prost(uint64, optional, tag = "10")]
    pub(crate) name_number: Option<u64>,
    #[prost(uint64, optional, tag = "11")]
    pub(crate) track: Option<u64>,
    #[prost(string, optional, tag = "23")]
    pub(crate) name: Option<String>,
}

/// `DebugAnnotation`. One of the values is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DebugAnnotation {
    /// The number of its name.
    #[prost(uint64, optional, tag = "1")]
    pub(crate) name: Option<u64>,
    #[prost(bool, optional, tag = "2")]
    pub(crate) truth: Option<bool>,
    #[prost(int64, optional, tag = "4")]
    pub(crate) integer: Option<i64>,
    #[prost(double, optional, tag = "5")]
    pub(crate) float: Option<f64>,
    #[prost(string, optional, tag = "6")]
    pub(crate) text: Option<String>,
    #[prost(uint64, optional, tag = "7")]
    pub(crate) address: Option<u64>,
}

/// `InternedData`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InternedData {
    /// Names of events: `EventName`.
    #[prost(message, repeated, tag = "2")]
    pub(crate) names: Vec<Interned>,
    /// Names of annotations: `DebugAnnotationName`.
    #[prost(message, repeated, tag = "3")]
    pub(crate) annotations: Vec<Interned>,
}

/// `EventName` and `DebugAnnotationName`, which have the same fields.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Interned {
    #[prost(uint64, optional, tag = "1")]
    pub(crate) number: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub(crate) text: Option<String>,
}
