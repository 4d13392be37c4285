//! Sums of calls and times for each function and each arc of a trace: the numbers that `gprofinject --times` measures in the same run.
//!
//! The agent adds a call to its sums when the call ends. This module does the same with the calls of a trace, thread by thread, so
//! that both agree to the tick. Sums are in ticks.

use std::collections::HashMap;

use gmon_run::overhead::{Factors, Recorded, RecordedArc, RecordedFunction};
use gmon_run::ticks::Thread;

use crate::event::OpenKind;
use crate::hash::Quick;
use crate::step::{Begun, Ended, How, Overhead, Step, What};
use crate::trace::{Callee, Trace};

/// The number of intervals in a histogram of durations.
pub const BUCKETS: usize = 176;
/// The logarithm of the number of equally wide intervals for each power of two.
const BUCKET_BITS: u32 = 2;

/// Returns the interval of a duration.
fn bucket(duration: u64) -> usize {
    let exponent = (duration | 1 << BUCKET_BITS).ilog2() - BUCKET_BITS;
    let bucket = (u64::from(exponent) << BUCKET_BITS) + (duration >> exponent);
    (bucket as usize).min(BUCKETS - 1)
}

/// Returns the least duration in an interval. An interval ends where the next one begins; the last one has no upper bound.
pub fn bucket_start(bucket: usize) -> u64 {
    let steps = 1 << BUCKET_BITS;
    match (bucket as u64 / steps).checked_sub(1) {
        None => bucket as u64,
        Some(exponent) => (steps + bucket as u64 % steps) << exponent,
    }
}

/// The sums of a trace, thread by thread.
#[derive(Debug, Default)]
pub struct Statistics {
    /// The sums by the number of the buffer.
    buffers: HashMap<u32, Buffer, Quick>,
    /// The number of events that are not in the trace.
    pub lost: u64,
    /// Whether calls are omitted because too many calls were open.
    pub is_too_deep: bool,
    /// The number of calls.
    pub calls: u64,
}

/// The sums of the threads that have used one buffer.
#[derive(Clone, Debug)]
pub struct ThreadTimes {
    /// The index of the process.
    pub process: u32,
    /// The number of the buffer.
    pub buffer: u32,
    /// Their sums. The thread ID is that of the last of these threads, and the lifetime the sum of those of all, each from its first
    /// call to the end of its last one.
    pub thread: Thread<Callee>,
}

/// The numbers of open calls by stack. Most threads have one stack.
#[derive(Debug, Default)]
struct OpenCounts(Vec<(u32, u32)>);

impl OpenCounts {
    /// Adds a call on a stack.
    fn add(&mut self, chain: u32) {
        match self.0.iter_mut().find(|(number, _)| *number == chain) {
            Some((_, count)) => *count += 1,
            None => self.0.push((chain, 1)),
        }
    }

    /// Removes a call. Returns whether the call was the only one on its stack.
    fn remove(&mut self, chain: u32) -> bool {
        let Some(place) = self.0.iter().position(|(number, _)| *number == chain) else { return true };
        let Some((_, count)) = self.0.get_mut(place) else { return true };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.0.swap_remove(place);
        }
        is_last
    }
}

#[derive(Debug)]
struct Arc {
    caller: Option<Callee>,
    callee: Callee,
    /// The index of the record of the called function.
    function: u32,
    calls: u64,
    open: u64,
    nested: u64,
    own: i64,
    inclusive: u64,
    within: u64,
    min: u64,
    max: u64,
    running: OpenCounts,
}

#[derive(Debug)]
struct Function {
    function: Callee,
    nested: u64,
    nested_inclusive: u64,
    nested_within: u64,
    histogram: Box<[u64; BUCKETS]>,
    running: OpenCounts,
}

#[derive(Debug, Default)]
struct Buffer {
    process: u32,
    tid: u32,
    overhead: Overhead,
    /// The time of the present thread's first and last step, without pauses.
    first: Option<u64>,
    last: u64,
    earlier: u64,
    arcs: Vec<Arc>,
    functions: Vec<Function>,
    arc_indices: HashMap<(Option<Callee>, Callee), u32, Quick>,
    function_indices: HashMap<Callee, u32, Quick>,
}

impl Statistics {
    /// Adds a step. All steps of a thread are needed, whether or not its functions are wanted.
    pub fn add(&mut self, trace: &Trace, step: &Step) {
        let buffer = self.buffers.entry(step.buffer).or_insert_with(|| {
            let recorded = trace.processes.get(step.process as usize);
            let overhead = recorded.map_or(Overhead::default(), |recorded| Overhead::of(&recorded.process));
            Buffer { process: step.process, overhead, ..Buffer::default() }
        });
        buffer.note(step);
        match &step.what {
            What::Begin(begun) => {
                self.calls += u64::from(is_counted(begun.kind, begun.earlier.is_some()));
                buffer.begin(begun, step.chain);
            }
            What::End(ended) => buffer.end(ended, step.chain),
            What::Leaf(begun, ended) => {
                self.calls += u64::from(is_counted(begun.kind, begun.earlier.is_some()));
                buffer.begin(begun, step.chain);
                buffer.end(ended, step.chain);
            }
            What::Lost(count) | What::Missing(count) => self.lost = self.lost.saturating_add(*count),
            What::TooDeep => self.is_too_deep = true,
            // Calls without an end have no duration.
            What::Mark(_) | What::Orphan { .. } | What::Stack => {}
        }
    }

    /// Returns the sums.
    pub fn finish(self) -> Vec<ThreadTimes> {
        let mut buffers: Vec<(u32, Buffer)> = self.buffers.into_iter().collect();
        buffers.sort_unstable_by_key(|(number, _)| *number);
        buffers.into_iter().map(|(number, buffer)| buffer.finish(number)).collect()
    }
}

/// Returns whether the process itself has made the call, and the call's beginning is known.
fn is_counted(kind: OpenKind, is_earlier: bool) -> bool {
    kind != OpenKind::Inherited && !is_earlier
}

impl Buffer {
    fn note(&mut self, step: &Step) {
        if self.tid != step.tid {
            self.earlier = self.earlier.saturating_add(self.life());
            (self.tid, self.first) = (step.tid, None);
        }
        let (end, pauses) = match &step.what {
            What::Leaf(_, ended) => (ended.ended, step.pauses.wrapping_add(ended.paused)),
            _ => (step.time, step.pauses),
        };
        self.first.get_or_insert(step.time.wrapping_sub(step.pauses));
        self.last = end.wrapping_sub(pauses);
    }

    fn life(&self) -> u64 {
        self.first.map_or(0, |first| self.last.saturating_sub(first))
    }

    /// Returns the index of an arc.
    fn index(&mut self, caller: Option<Callee>, callee: Callee) -> u32 {
        let Buffer { arcs, functions, arc_indices, function_indices, .. } = self;
        *arc_indices.entry((caller, callee)).or_insert_with(|| {
            let function = *function_indices.entry(callee).or_insert_with(|| {
                functions.push(Function {
                    function: callee,
                    nested: 0,
                    nested_inclusive: 0,
                    nested_within: 0,
                    histogram: Box::new([0; BUCKETS]),
                    running: OpenCounts::default(),
                });
                functions.len() as u32 - 1
            });
            arcs.push(Arc {
                caller,
                callee,
                function,
                calls: 0,
                open: 0,
                nested: 0,
                own: 0,
                inclusive: 0,
                within: 0,
                min: u64::MAX,
                max: 0,
                running: OpenCounts::default(),
            });
            arcs.len() as u32 - 1
        })
    }

    fn begin(&mut self, begun: &Begun, chain: u32) {
        let index = self.index(begun.caller, begun.function);
        let Some(arc) = self.arcs.get_mut(index as usize) else { return };
        arc.running.add(chain);
        if let Some(function) = self.functions.get_mut(arc.function as usize) {
            function.running.add(chain);
        }
    }

    fn end(&mut self, ended: &Ended, chain: u32) {
        let is_own = is_counted(ended.kind, ended.is_earlier);
        let index = self.index(ended.caller, ended.function);
        let Some(arc) = self.arcs.get_mut(index as usize) else { return };
        let Some(function) = self.functions.get_mut(arc.function as usize) else { return };
        arc.own = arc.own.saturating_add(ended.own);
        let is_outermost = arc.running.remove(chain);
        let is_nested = !function.running.remove(chain);
        if is_outermost {
            arc.inclusive = arc.inclusive.saturating_add(ended.lasted);
            arc.within = arc.within.saturating_add(ended.within);
        } else if is_own {
            arc.nested += 1;
        }
        if is_nested && is_outermost {
            function.nested_inclusive = function.nested_inclusive.saturating_add(ended.lasted);
            function.nested_within = function.nested_within.saturating_add(ended.within);
            function.nested += u64::from(is_own);
        }
        if !is_own {
            return;
        }
        arc.calls += 1;
        if ended.how == How::Open {
            arc.open += 1;
            return;
        }
        arc.min = arc.min.min(ended.duration);
        arc.max = arc.max.max(ended.duration);
        // The agent sets the lowest bit.
        if let Some(count) = function.histogram.get_mut(bucket(ended.duration | 1)) {
            *count += 1;
        }
    }

    fn finish(self, number: u32) -> ThreadTimes {
        let life = self.earlier.saturating_add(self.life());
        let Overhead { inside, outside } = self.overhead;
        let mut arcs = Vec::with_capacity(self.arcs.len());
        /// The sums of a function's arcs.
        #[derive(Default)]
        struct Sum {
            inclusive: u64,
            within: u64,
            primitive: u64,
        }
        let mut sums: HashMap<Callee, Sum> = HashMap::new();
        for arc in self.arcs {
            let outermost = arc.calls.saturating_sub(arc.nested);
            let sum = sums.entry(arc.callee).or_default();
            sum.inclusive = sum.inclusive.saturating_add(arc.inclusive);
            sum.within = sum.within.saturating_add(arc.within);
            sum.primitive = sum.primitive.saturating_add(outermost);
            arcs.push(RecordedArc {
                caller: arc.caller,
                callee: arc.callee,
                calls: arc.calls,
                open: arc.open,
                counted: 0,
                own: arc.own,
                // The events of a trace say nothing of it.
                waited: 0,
                inclusive: arc.inclusive,
                outermost,
                within: arc.within,
                min: arc.min,
                max: arc.max,
            });
        }
        arcs.retain(|arc| arc.calls > 0 || arc.own != 0);
        arcs.sort_unstable_by_key(|arc| (arc.callee, arc.caller));
        let mut functions = Vec::with_capacity(sums.len());
        for record in self.functions {
            let Some(sum) = sums.get(&record.function) else { continue };
            functions.push(RecordedFunction {
                function: record.function,
                inclusive: sum.inclusive.saturating_sub(record.nested_inclusive),
                primitive: sum.primitive.saturating_sub(record.nested),
                within: sum.within.saturating_sub(record.nested_within),
                histogram: record.histogram.to_vec(),
            });
        }
        functions.sort_unstable_by_key(|measured| measured.function);
        let recorded =
            Recorded { inside, outside, outside_taken: outside, arcs, functions, ..Recorded::default() };
        let thread = recorded.without_overhead(Factors::CALIBRATED);
        let thread = Thread { tid: self.tid, life, overhead: thread.overhead.min(life), ..thread };
        ThreadTimes { process: self.process, buffer: number, thread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each interval begins where the one before ends.
    #[test]
    fn intervals() {
        for at in 0..BUCKETS {
            let start = bucket_start(at);
            assert_eq!(bucket(start), at);
            assert!(at == 0 || bucket(start - 1) == at - 1);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
