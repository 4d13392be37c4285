//! What was measured on a thread in ticks of its clock, and the times in nanoseconds that a [`Recording`] has of it.
//!
//! Those who measure know functions in a way of their own, `F`, and the times before they are rounded.

use std::collections::HashMap;
use std::hash::Hash;

use crate::model::{self, ArcTimes, FunctionTimes, Recording};

/// What was measured on one thread, in ticks.
#[derive(Clone, Debug)]
pub struct Thread<F> {
    pub pid: u32,
    pub tid: u32,
    pub name: String,
    pub life: u64,
    /// What gprofinject itself took, which is taken out of all times that are not raw.
    pub overhead: u64,
    /// The time for which other threads had the processor, which is in no other time; `None` if it is not known, nor when the thread
    /// waited.
    pub ready: Option<u64>,
    pub arcs: Vec<Arc<F>>,
    pub functions: Vec<Function<F>>,
    /// The calling-context tree, parents before their children.
    pub nodes: Vec<Node<F>>,
    /// The number of samples of CPU time, without those in gprofinject's own code; 0 if samples do not know their thread.
    pub samples: u64,
    /// The number of samples in each function itself.
    pub samples_by_function: HashMap<F, u64>,
}

impl<F> Default for Thread<F> {
    fn default() -> Self {
        Thread {
            pid: 0,
            tid: 0,
            name: String::new(),
            life: 0,
            overhead: 0,
            ready: None,
            arcs: Vec::new(),
            functions: Vec::new(),
            nodes: Vec::new(),
            samples: 0,
            samples_by_function: HashMap::new(),
        }
    }
}

/// The measured calls of a function by another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arc<F> {
    /// `None` if no measured function was running.
    pub caller: Option<F>,
    pub callee: F,
    /// The measured calls.
    pub calls: u64,
    /// The calls that had not returned at the end. They are among `calls`.
    pub open: u64,
    /// The calls that were only counted: they are not among `calls`, and their time is their callers'.
    pub counted: u64,
    /// The time in the callee itself. It may be negative: the overhead that is taken out is an average.
    pub own: i64,
    /// The part of `own` in which the thread waited for something.
    pub waited: u64,
    /// The time of the calls that were not made within another call of the arc.
    pub inclusive: u64,
    /// The shortest duration of a call that has returned; it says nothing if there is none.
    pub min: u64,
    /// The longest duration of a call that has returned; it says nothing if there is none.
    pub max: u64,
}

/// What was measured of a function beside its arcs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function<F> {
    pub function: F,
    /// The calls that were not made within another call of the function.
    pub primitive: u64,
    /// The time of these calls.
    pub inclusive: u64,
    pub inclusive_raw: u64,
    /// The time in the function itself, raw.
    pub own_raw: u64,
    /// The numbers of calls that have returned, by interval of durations.
    pub histogram: Vec<u64>,
}

/// A node of the calling-context tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node<F> {
    pub parent: Option<u32>,
    /// `None` stands for all calls for which there was no room for nodes of their own.
    pub function: Option<F>,
    pub calls: u64,
    pub own: u64,
    /// The part of `own` in which the thread waited for something.
    pub waited: u64,
}

impl<F: Copy + Eq + Hash> Thread<F> {
    /// Returns the same with functions as somebody else knows them. What is of unknown ones is left out; the nodes stand for calls of
    /// unknown functions.
    pub fn known_by<G: Copy + Eq + Hash>(self, known: impl Fn(F) -> Option<G>) -> Thread<G> {
        let arcs = self.arcs.into_iter().filter_map(|arc| {
            let (caller, callee) = (arc.caller.and_then(&known), known(arc.callee)?);
            Some(Arc {
                caller,
                callee,
                calls: arc.calls,
                open: arc.open,
                counted: arc.counted,
                own: arc.own,
                waited: arc.waited,
                inclusive: arc.inclusive,
                min: arc.min,
                max: arc.max,
            })
        });
        let functions = self.functions.into_iter().filter_map(|of| {
            let Function { primitive, inclusive, inclusive_raw, own_raw, histogram, .. } = of;
            let function = known(of.function)?;
            Some(Function { function, primitive, inclusive, inclusive_raw, own_raw, histogram })
        });
        let nodes = self.nodes.into_iter().map(|node| {
            let Node { parent, calls, own, waited, .. } = node;
            Node { parent, function: node.function.and_then(&known), calls, own, waited }
        });
        let samples = self.samples_by_function.into_iter();
        Thread {
            pid: self.pid,
            tid: self.tid,
            name: self.name,
            life: self.life,
            overhead: self.overhead,
            ready: self.ready,
            arcs: arcs.collect(),
            functions: functions.collect(),
            nodes: nodes.collect(),
            samples: self.samples,
            samples_by_function: samples.filter_map(|(of, samples)| Some((known(of)?, samples))).collect(),
        }
    }

    /// Returns the functions that occur, some of them several times.
    pub fn known(&self) -> impl Iterator<Item = F> {
        let arcs = self.arcs.iter().flat_map(|arc| arc.caller.into_iter().chain([arc.callee]));
        arcs.chain(self.nodes.iter().filter_map(|node| node.function))
    }

    /// Returns the own time of each function, which is the sum over its arcs.
    pub fn own(&self) -> HashMap<F, u64> {
        let mut sums: HashMap<F, i64> = HashMap::new();
        for arc in &self.arcs {
            let sum = sums.entry(arc.callee).or_default();
            *sum = sum.saturating_add(arc.own);
        }
        sums.into_iter().map(|(function, own)| (function, own.max(0) as u64)).collect()
    }
}

impl Recording {
    /// Adds what was measured on a thread of a program. `index` returns the index of each [known](Thread::known) function, and `ns`
    /// ticks in nanoseconds.
    pub fn add_thread<F: Copy + Eq + Hash>(
        &mut self,
        program: u32,
        thread: &Thread<F>,
        index: impl Fn(F) -> u32,
        ns: impl Fn(u64) -> u64,
    ) {
        let number = self.threads.len() as u32;
        let mut sums: HashMap<F, FunctionTimes> = HashMap::new();
        for arc in &thread.arcs {
            let has_ended = arc.calls > arc.open;
            let times = ArcTimes {
                caller: arc.caller.map(&index),
                callee: index(arc.callee),
                thread: number,
                calls: arc.calls.saturating_add(arc.counted),
                open: arc.open,
                counted: arc.counted,
                self_ns: ns(arc.own.max(0) as u64),
                inclusive_ns: ns(arc.inclusive),
                min_ns: if has_ended { ns(arc.min) } else { 0 },
                max_ns: if has_ended { ns(arc.max) } else { 0 },
            };
            self.arcs.push(times);
            let ArcTimes { callee: function, thread, calls, open, counted, min_ns, max_ns, .. } = times;
            let waiting_ns = ns(arc.waited);
            let part = FunctionTimes {
                function,
                thread,
                calls,
                // A counted call is taken to be within another one of its function if that has made it.
                primitive: if arc.caller == Some(arc.callee) { 0 } else { counted },
                open,
                counted,
                min_ns,
                max_ns,
                waiting_ns,
                ..Default::default()
            };
            sums.entry(arc.callee).and_modify(|sum| sum.add(&part)).or_insert(part);
        }
        let own = thread.own();
        let mut self_ticks = 0_u64;
        for measured in &thread.functions {
            // What is in no arc has never been entered.
            let Some(mut row) = sums.remove(&measured.function) else { continue };
            let own = own.get(&measured.function).copied().unwrap_or(0);
            self_ticks = self_ticks.saturating_add(own);
            row.primitive = row.primitive.saturating_add(measured.primitive).min(row.calls);
            row.samples = thread.samples_by_function.get(&measured.function).copied().unwrap_or(0);
            row.self_ns = ns(own);
            row.waiting_ns = row.waiting_ns.min(row.self_ns);
            row.self_raw_ns = ns(measured.own_raw);
            row.inclusive_ns = ns(measured.inclusive.max(own));
            row.inclusive_raw_ns = ns(measured.inclusive_raw);
            let len = measured.histogram.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
            row.histogram = measured.histogram.iter().take(len).copied().collect();
            self.rows.push(row);
        }
        let first = self.nodes.len() as u32;
        for node in &thread.nodes {
            if node.function.is_none() {
                self.nodes_lost = self.nodes_lost.saturating_add(node.calls);
            }
            self.nodes.push(model::Node {
                parent: node.parent.map(|parent| first + parent),
                function: node.function.map(&index),
                thread: number,
                calls: node.calls,
                self_ns: ns(node.own),
                waiting_ns: ns(node.waited).min(ns(node.own)),
                samples: 0,
            });
        }
        // Where more would have to be taken out than there is, as in functions of a few instructions, nothing is left, so less was
        // taken out. The parts of a thread's life are its sum in any case.
        let rest = thread.life.saturating_sub(self_ticks);
        let overhead = thread.overhead.min(rest);
        self.threads.push(model::Thread {
            program,
            pid: thread.pid,
            tid: thread.tid,
            name: thread.name.clone(),
            life_ns: ns(thread.life),
            outside_ns: ns(rest - overhead),
            overhead_ns: ns(overhead),
            samples: thread.samples,
            ready_ns: thread.ready.map(ns),
        });
    }
}
