//! Accessors to what a thread measures of its calls. Its thread writes it, with its signal handlers.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};

use crate::times::{ArcTimes, Chain, FunctionTimes, OpenCall, PathNode, TimesHeader};

shared! {
    /// The state of a thread's measured calls.
    ///
    /// The thread that owns the thread block and its signal handlers write it. The injector reads it when the process has
    /// ended, or for a dump, which may or may not include a call that ends at the same time.
    pub struct TimesRef(TimesHeader) {
        /// Stored after the open call to which it leads is complete, but for its `start`.
        top: AtomicU64,
        /// Written with `top` where the chain changes.
        stack_lo: AtomicU64,
        /// Written by thunks and slow paths. A signal handler that interrupts a change leaves it as it was.
        free: AtomicU64,
        /// Incremented at each beginning of a call.
        begun: AtomicU64,
        /// Stored before `mask`, which is smaller than the table at any time.
        table: AtomicU64,
        /// See `table`.
        mask: AtomicU64,
        /// Written once, when the thread begins.
        outside: AtomicU64,
        /// See `outside`.
        inside: AtomicU64,
        /// See `outside`.
        overhead: AtomicU64,
        /// Incremented by the bytes of a record before the record is written.
        used: AtomicU64,
        /// Increased when more of the area is committed.
        committed: AtomicU64,
        /// Incremented with each new entry of the table.
        arcs: AtomicU64,
        /// Incremented by the owner.
        unmeasured: AtomicU64,
        /// Written once, when the thread begins.
        first: AtomicU64,
        /// Written at the end of each call.
        last: AtomicU64,
        /// Written with `top` where the chain changes.
        chain: AtomicU64,
        /// Written when there is another chain, which is complete.
        chains: AtomicU64,
        /// Written once, when the thread begins.
        base: AtomicU64,
        /// Incremented by the owner.
        paused: AtomicU64,
        /// Incremented with each new node.
        nodes: AtomicU64,
        /// Increased when the thread block gets another owner.
        earlier: AtomicU64,
        /// Increased by the owner.
        ready: AtomicU64,
        /// Written by the owner; so are the fields below.
        seen: AtomicU64,
        /// See `seen`.
        seen_wall_ns: AtomicU64,
        /// See `seen`.
        seen_cpu_ns: AtomicU64,
        /// See `seen`.
        seen_system_ns: AtomicU64,
        /// See `seen`.
        seen_waits: AtomicU64,
        /// See `seen`.
        seen_ready_ns: AtomicU64,
        /// See `seen`.
        seen_ready_at_ns: AtomicU64,
        /// Written once, when the thread begins.
        short_cost: AtomicU64,
        /// See `short_cost`.
        short_taken: AtomicU64,
        /// Written when the thread begins, and where it decides about its arcs; so are the next three.
        short_below: AtomicU64,
        /// See `short_below`.
        judged: AtomicU64,
        /// See `short_below`.
        judged_begun: AtomicU64,
        /// See `short_below`.
        judged_paused: AtomicU64,
        /// Written by the thread in its slow paths; so are the fields below.
        calibrated_at: AtomicU64,
        /// See `calibrated_at`.
        calibrations: AtomicU64,
        /// See `calibrated_at`.
        calibrated_inside_256: AtomicU64,
        /// See `calibrated_at`.
        calibrated_outside_256: AtomicU64,
        /// See `calibrated_at`.
        calibrated_short_256: AtomicU64,
        /// See `calibrated_at`.
        calibrated_square_256: AtomicU64,
        executed: AtomicU64,
    }
}

shared! {
    /// An open call. Its writers are those of a [`TimesRef`].
    pub struct OpenCallRef(OpenCall) {
        /// Written last.
        start: AtomicU64,
        /// Increased at the end of each call that it has made.
        children: AtomicU64,
        /// Written before `top` leads here; so are the fields below.
        cfa: AtomicU64,
        /// See `cfa`.
        arc: AtomicU64,
        /// See `cfa`.
        outer: AtomicU64,
        /// See `cfa`.
        begun: AtomicU64,
        /// See `cfa`.
        node: AtomicU64,
        /// See `cfa`.
        context: AtomicU32,
        /// See `cfa`.
        flags: AtomicU32,
    }
}

shared! {
    /// What was measured of an arc. Its writers are those of a [`TimesRef`]; each field changes by one instruction.
    pub struct ArcTimesRef(ArcTimes) {
        /// Changed at the beginning and end of a call.
        open: AtomicU32,
        /// Written once, when the record is made.
        function: AtomicU64,
        /// Changed at the end of a call; so are the fields below.
        own: AtomicU64,
        /// See `own`.
        inclusive: AtomicU64,
        /// See `own`.
        within: AtomicU64,
        /// See `own`.
        calls: AtomicU64,
        /// See `own`.
        nested: AtomicU64,
        /// See `own`.
        min: AtomicU64,
        /// See `own`.
        max: AtomicU64,
        /// Written once, when the record is made.
        caller: AtomicU32,
        /// See `caller`.
        callee: AtomicU32,
        /// Increased when the thread runs again.
        waited: AtomicU64,
        /// Written when the thread decides; so are the four `seen` fields.
        short: AtomicU32,
        /// Incremented at the beginning of a call.
        begun_short: AtomicU64,
        /// See `short`.
        seen_own: AtomicU64,
        /// See `short`.
        seen_calls: AtomicU64,
        /// See `short`.
        seen_inclusive: AtomicU64,
        /// See `short`.
        seen_within: AtomicU64,
    }
}

shared! {
    /// What was measured of a function. Its writers are those of an [`ArcTimesRef`].
    pub struct FunctionTimesRef(FunctionTimes) {
        /// Written once, when the record is made.
        number: AtomicU32,
        /// Changed at the beginning and end of a call.
        open: AtomicU32,
        /// Increased at the end of a call; so are the fields below.
        nested_inclusive: AtomicU64,
        /// See `nested_inclusive`.
        nested_within: AtomicU64,
        /// See `nested_inclusive`.
        nested: AtomicU64,
        /// See `nested_inclusive`.
        pending: AtomicU64,
    }
}

shared! {
    /// A node of the calling-context tree. Its writers are those of an [`ArcTimesRef`].
    pub struct PathNodeRef(PathNode) {
        /// Written once, when the record is made; so are the four fields below.
        function: AtomicU32,
        /// See `function`.
        number: AtomicU32,
        /// See `function`.
        parent: AtomicU32,
        /// See `function`.
        parent_address: AtomicU64,
        /// Incremented at the end of a call; so is the field below.
        calls: AtomicU64,
        /// See `calls`.
        own: AtomicU64,
        /// Increased after the thread has waited.
        waited: AtomicU64,
        /// Incremented at the beginning of a call.
        counted: AtomicU64,
    }
}

shared! {
    /// A stack with open calls. Its writers are those of a [`TimesRef`].
    pub struct ChainRef(Chain) {
        /// Written once, when the record is made.
        next: AtomicU64,
        /// Written when the chain ceases to be the current one.
        top: AtomicU64,
        /// Written once, when the record is made.
        root: AtomicU64,
        /// Written when more of the stack becomes known.
        lo: AtomicU64,
        /// See `lo`.
        hi: AtomicU64,
        /// Written when the chain ceases to be the current one, and when it becomes it.
        since: AtomicU64,
        /// Written when the chain ceases to be the current one.
        begun: AtomicU64,
    }
}
