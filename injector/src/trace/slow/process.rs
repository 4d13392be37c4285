//! A process whose wanted calls are followed: its rings, its threads, and when these were off the processor.

use std::collections::HashMap;
use std::io;

use gmon_trace::value::Signature;

use crate::os::clock::Moment;
use crate::profile::ends::Ends;
use crate::program::filters::Filters;
use crate::sampling::sampler::Switched;
use crate::store::region::ring::{self, LoadTable, Piece, Rings, Source};
use crate::store::region::times::{ProcessEnd, Reached};
use crate::trace::clocks::by_clock;
use crate::trace::messages::Begun;
use crate::trace::names::{Known, Libraries, Numbers};
use crate::trace::slow::call::Call;
use crate::trace::slow::keeper::{Keeper, Place};
use crate::trace::slow::off::Offs;
use crate::trace::slow::results::Names;
use crate::trace::slow::thread::{Ended, Thread};
use crate::trace::slow::tree::Budget;

/// The greatest number of threads of a process, with those of guests. Further events of guests are those of the process itself.
const THREADS: usize = 1 << 15;
/// The number of functions that are looked up without a search.
const RECENT: usize = 1 << 12;

/// What all processes use.
pub(crate) struct Shared {
    pub(crate) libraries: Libraries,
    /// The functions whose calls are wanted.
    pub(crate) wanted: Filters,
    pub(crate) budget: Budget,
    pub(crate) names: Names,
    pub(crate) keeper: Keeper,
    /// The ticks of the time stamp counter in a nanosecond, as far as they are known.
    pub(crate) rate: f64,
}

/// A process.
pub(crate) struct Process {
    /// Its number in the run.
    pub(crate) number: u32,
    pub(crate) pid: u32,
    program: u32,
    is_tsc: bool,
    rings: Rings,
    functions: Functions,
    threads: HashMap<Source, Thread>,
    /// Where the thread of a number is.
    by_tid: HashMap<u32, Source>,
    offs: Offs,
    /// The overhead of a call inside and outside of its interval, in ticks, once it is known.
    overhead: Option<(u64, u64)>,
}

/// The functions of a process by their numbers in its events.
struct Functions {
    numbers: Numbers,
    loads: LoadTable,
    /// The number of each in the results, and whether its calls are wanted.
    known: HashMap<u32, (u32, bool)>,
    /// The same whether calls are wanted, each at the index of its lower bits.
    recent: Vec<(u32, bool)>,
    /// What is known of the arguments of wanted functions.
    signatures: HashMap<u32, Signature>,
}

impl Functions {
    /// Returns the number of a function in the results, and whether its calls are wanted; `None` if there is no such function.
    fn look_up(
        &mut self,
        number: u32,
        libraries: &Libraries,
        wanted: &Filters,
        names: &mut Names,
    ) -> Option<(u32, bool)> {
        if let Some(&known) = self.known.get(&number) {
            return Some(known);
        }
        let Functions { numbers, loads, .. } = self;
        let triggers = std::slice::from_ref(wanted);
        let name = numbers.learn(number, &Known { libraries, triggers, loads: &|| loads.read() })?;
        let known = (names.function(&name), numbers.is_trigger(number));
        self.known.insert(number, known);
        if let Some(signature) = name.signature.filter(|_| known.1) {
            self.signatures.insert(number, signature);
        }
        Some(known)
    }

    /// Returns whether calls of a function are wanted.
    fn is_wanted(&mut self, number: u32, libraries: &Libraries, wanted: &Filters, names: &mut Names) -> bool {
        let place = number as usize % RECENT;
        if let Some(&(known, is_wanted)) = self.recent.get(place)
            && known == number
        {
            return is_wanted;
        }
        let is_wanted =
            self.look_up(number, libraries, wanted, names).is_some_and(|(_, is_wanted)| is_wanted);
        if let Some(place) = self.recent.get_mut(place) {
            *place = (number, is_wanted);
        }
        is_wanted
    }

    /// Returns the arguments of a call as text.
    fn arguments(&self, call: &Call) -> String {
        let signature = self.signatures.get(&call.tree.function()).filter(|_| !call.arguments.is_empty());
        signature.map_or_else(String::new, |signature| signature.arguments(&call.arguments).to_string())
    }
}

impl Process {
    pub(crate) fn new(begun: Begun, names: &mut Names) -> Process {
        let Begun { process, pid, binary, planned, is_tsc, rings, loads, .. } = begun;
        Process {
            number: process,
            pid,
            program: names.program(&binary),
            is_tsc,
            rings,
            functions: Functions {
                numbers: Numbers::new(binary, planned),
                loads,
                known: HashMap::new(),
                recent: vec![(u32::MAX, false); RECENT],
                signatures: HashMap::new(),
            },
            threads: HashMap::new(),
            by_tid: HashMap::new(),
            offs: Offs::default(),
            overhead: None,
        }
    }

    /// Reads the events that were written since the last time. Returns the fill level of the fullest ring, and the number of events.
    ///
    /// # Errors
    /// The rings cannot be read.
    pub(crate) fn drain(&mut self, is_over: bool, shared: &mut Shared) -> io::Result<(f64, u64)> {
        let overhead = self.overhead();
        let Process { number, pid, program, is_tsc, rings, functions, threads, by_tid, offs, .. } = self;
        let Shared { libraries, wanted, budget, names, keeper, rate } = shared;
        let mut events = 0;
        let ticks_per_ns = if *is_tsc { *rate } else { 1.0 };
        let fullest = rings.drain(is_over, |source, piece| {
            // A process can write any number of guests to its file.
            let is_new = threads.len() >= THREADS && !threads.contains_key(&source);
            let source = if is_new { Source { guest: 0, ..source } } else { source };
            let thread = threads.entry(source).or_insert_with(|| Thread::new(budget));
            let slots = match piece {
                Piece::Events(slots) => slots,
                Piece::Lost(count) => return thread.lose(count),
            };
            events += (slots.len() / size_of::<gprofinject_abi::trace::Slot>()) as u64;
            for (kind, function, time) in ring::events(slots) {
                let is_wanted = &mut |number| functions.is_wanted(number, libraries, wanted, names);
                let Some(mut ended) = thread.add(kind, function, time, is_wanted) else { continue };
                let place = Place {
                    program: *program,
                    process: *number,
                    pid: if source.guest == 0 { *pid } else { source.guest },
                    tid: thread.tid,
                    ticks_per_ns,
                    inside: overhead.0,
                    outside: overhead.1,
                };
                let by = (&*libraries, &*wanted, &mut *names);
                end(&mut ended, place, (functions, offs, *is_tsc), by, keeper);
                thread.reuse(ended.call);
            }
            by_tid.insert(thread.tid, source);
            for (function, calls) in thread.take_unknown() {
                if let Some((function, _)) = functions.look_up(function, libraries, wanted, names) {
                    keeper.unknown(*program, function, calls);
                }
            }
        })?;
        Ok((fullest, events))
    }

    /// Returns the overhead of a call inside and outside of its interval, in ticks.
    fn overhead(&mut self) -> (u64, u64) {
        let rings = &self.rings;
        let read = || {
            let report = rings.report().ok().filter(|report| report.inside_256 > 0)?;
            let whole = |part_256: u64| part_256.saturating_add(128) >> 8;
            Some((whole(report.inside_256), whole(report.outside_256)))
        };
        if self.overhead.is_none() {
            self.overhead = read();
        }
        self.overhead.unwrap_or_default()
    }

    /// Takes note of a decision of the scheduler about a thread.
    pub(crate) fn switch(&mut self, switched: &Switched, moment: Moment, keeper: &mut Keeper) {
        let time = by_clock(self.is_tsc, moment.back_to(switched.time));
        let Some(off) = self.offs.switch(switched.tid, time, switched.off) else { return };
        let thread = self.by_tid.get(&switched.tid).and_then(|source| self.threads.get_mut(source));
        let mut is_read = false;
        if let Some(thread) = thread {
            is_read = off.to <= thread.last();
            if let Some(call) = thread.current() {
                self.offs.take_until(switched.tid, call.last).into_iter().for_each(|off| {
                    call.charge(off);
                });
                is_read = call.charge(off);
            }
        }
        keeper.charge(self.number, switched.tid, off);
        if !is_read {
            self.offs.keep(switched.tid, off);
        }
    }

    /// Ends the process at a moment, and its threads at these moments. What they have written must have been read. Returns the number of lost
    /// events.
    pub(crate) fn end(&mut self, ends: &Ends, shared: &mut Shared) -> u64 {
        let executed = self.rings.report().map_or(0, |report| report.clock_at_end);
        let end_of = ends.process.map(|end| by_clock(self.is_tsc, end));
        let process_end = ProcessEnd { process: end_of, executed };
        let mut lost = 0_u64;
        for (block, count) in self.rings.unreported().unwrap_or_default() {
            match self.threads.iter_mut().find(|(source, _)| source.block == block) {
                Some((_, thread)) => thread.lose(count),
                None => lost = lost.saturating_add(count),
            }
        }
        let (inside, outside) = self.overhead();
        let Shared { libraries, wanted, names, keeper, rate, .. } = shared;
        let ticks_per_ns = if self.is_tsc { *rate } else { 1.0 };
        for (source, thread) in &mut self.threads {
            let own = ends.threads.get(&thread.tid).into_iter().flatten();
            let own = own.map(|&end| by_clock(self.is_tsc, end));
            let reached = Reached { last: thread.last().wrapping_sub(thread.pauses), paused: thread.pauses };
            let at = process_end.of_thread(reached, own).wrapping_add(thread.pauses);
            let pid = if source.guest == 0 { self.pid } else { source.guest };
            let (program, process, tid) = (self.program, self.number, thread.tid);
            let place = Place { program, process, pid, tid, ticks_per_ns, inside, outside };
            for mut ended in thread.close(at) {
                let by = (&*libraries, &*wanted, &mut *names);
                end(&mut ended, place, (&mut self.functions, &mut self.offs, self.is_tsc), by, keeper);
            }
            for (function, calls) in thread.take_unknown() {
                if let Some((function, _)) = self.functions.look_up(function, libraries, wanted, names) {
                    keeper.unknown(program, function, calls);
                }
            }
            lost = lost.saturating_add(thread.lost);
        }
        lost
    }

    /// Forgets what typical calls were, which begin anew.
    pub(crate) fn forget_typical(&mut self) {
        self.threads.values_mut().for_each(Thread::forget_typical);
    }
}

/// Hands a call that has ended to the keeper.
fn end(
    ended: &mut Ended,
    place: Place,
    (functions, offs, is_tsc): (&mut Functions, &mut Offs, bool),
    (libraries, wanted, names): (&Libraries, &Filters, &mut Names),
    keeper: &mut Keeper,
) {
    let arguments = functions.arguments(&ended.call);
    let mut name = |number| functions.look_up(number, libraries, wanted, names).map(|(number, _)| number);
    let settle = |call: &mut Call| {
        let known = offs.take_until(place.tid, call.last);
        known.into_iter().chain(offs.present(place.tid, call.last)).for_each(|off| {
            call.charge(off);
        });
    };
    let tell = |call: &Call| (arguments, unix_ns(call.begin, is_tsc, place.ticks_per_ns));
    keeper.end(&mut ended.call, ended.end, place, &mut name, settle, tell);
}

/// Returns the time of day at a time of a process's clock, in nanoseconds since 1970.
fn unix_ns(time: u64, is_tsc: bool, ticks_per_ns: f64) -> u64 {
    let now = Moment::now();
    let passed = by_clock(is_tsc, now).saturating_sub(time) as f64 / ticks_per_ns;
    let date = now.date.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (date.as_nanos() as u64).saturating_sub(passed as u64)
}
