//! The layout of a region file: where everything is, what the header contains, and how records are read.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use gprofinject_abi::VERSION;
use gprofinject_abi::clock::ClockKind;
use gprofinject_abi::full::Full;
use gprofinject_abi::plan::{HookMode, HookModeCode};
use gprofinject_abi::region::{
    LEFT_OUT, LIBRARY_BYTES, LIBRARY_COUNTER_BYTES, LOADS_MAX, LOST_NAMED, LOST_WORDS, LeftOut, LoadRecord,
    MAGIC, PAGE, PANIC_FILE_WORDS, RegionHeader, RegionOrders, SAMPLES_MAX, SampleRecord, State, TroubleCode,
    library_counters_offset, round_up, slot_chunk, times_offset, trace_offset,
};
use gprofinject_abi::tally;
use gprofinject_abi::times::TIMES_BYTES;
use zerocopy::{FromBytes, IntoBytes};

use crate::options::{Clock, FullArg, Measure, Tracing};
use crate::os::clock;
use crate::store::shape::Shape;

/// Where everything is. The injector keeps this and does not rely on what the profiled process has left in
/// the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shape: Shape,
    pub(crate) slot_bytes: u64,
    pub(crate) counter_bytes: u64,
    /// The hooks of libraries; `None` if libraries are not hooked.
    pub(crate) libraries: Option<LibraryHooks>,
    /// What is measured of durations; `None` if nothing is.
    pub(crate) measure: Option<Measure>,
    pub(crate) blocks_offset: u64,
}

/// What is counted of the libraries of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LibraryHooks {
    pub(crate) mode: HookMode,
    /// Whether basic blocks are counted.
    pub(crate) counts: bool,
    /// Whether the user wants any library hooked. If not, the agent needs hooks in some all the same.
    pub(crate) wanted: bool,
}

/// The length in bytes of the table of samples outside of the program.
pub(crate) const ELSEWHERE_LEN: u64 = (SAMPLES_MAX * size_of::<SampleRecord>()) as u64;

/// The offset of the histogram.
pub(crate) const HISTOGRAM: u64 = PAGE;

impl Layout {
    /// Returns the layout for a program whose threads need `slot_bytes` bytes of home slots and
    /// `counter_bytes` bytes of basic-block counters each, and whose libraries have these hooks.
    pub(crate) fn new(
        shape: Shape,
        slot_bytes: u64,
        counter_bytes: u64,
        libraries: Option<LibraryHooks>,
        measure: Option<Measure>,
    ) -> Layout {
        let mut layout = Layout { shape, slot_bytes, counter_bytes, libraries, measure, blocks_offset: 0 };
        layout.blocks_offset = layout.elsewhere_offset() + round_up(ELSEWHERE_LEN, PAGE);
        layout
    }

    /// The length of a file for so many threads, in bytes. The file is sparse.
    pub(crate) fn len_for(&self, threads: u64) -> u64 {
        self.blocks_offset + threads * self.block_len()
    }

    /// The length of the counters of one thread, in bytes.
    pub(crate) fn block_len(&self) -> u64 {
        self.trace_ring() + self.trace_bytes()
    }

    /// The offset of the area for measured durations in the counters of one thread.
    pub(crate) fn times_area(&self) -> u64 {
        times_offset(self.slot_bytes, self.counter_bytes, self.library_bytes(), self.library_counter_bytes())
    }

    /// The offset of the ring of events in the counters of one thread.
    pub(crate) fn trace_ring(&self) -> u64 {
        trace_offset(self.times_area(), self.times_bytes())
    }

    /// The bytes of that ring, which is 0 if calls are not traced.
    pub(crate) fn trace_bytes(&self) -> u64 {
        if self.tracing().is_some() { RING_BYTES } else { 0 }
    }

    /// Whether a thread whose ring is full writes over the oldest events.
    pub(crate) fn drops_old(&self) -> bool {
        self.tracing().is_some_and(|tracing| tracing.full == FullArg::DropOld)
    }

    /// Whether the values of arguments and results are kept.
    fn keeps_values(&self) -> bool {
        self.measure.is_some_and(|measure| measure.values)
    }

    /// What the agent is told of that.
    fn tallies(&self) -> u32 {
        match self.measure {
            Some(measure) if !measure.values => 0,
            Some(measure) if !measure.measures() => tally::ALONE,
            Some(measure) if measure.results => tally::MEASURED,
            Some(_) => tally::MEASURED_WITHOUT_RESULTS,
            None => 0,
        }
    }

    fn tracing(&self) -> Option<Tracing> {
        self.measure.and_then(|measure| measure.trace)
    }

    /// The bytes of that area, which is 0 if durations are not measured.
    pub(crate) fn times_bytes(&self) -> u64 {
        if self.measure.is_some() { TIMES_BYTES } else { 0 }
    }

    /// The offset of the basic-block counters of libraries in the counters of one thread.
    pub(crate) fn library_counters(&self) -> u64 {
        library_counters_offset(self.slot_bytes, self.counter_bytes, self.library_bytes())
    }

    /// The bytes of these counters, which is 0 if the basic blocks of libraries are not counted.
    pub(crate) fn library_counter_bytes(&self) -> u64 {
        if self.libraries.is_some_and(|hooks| hooks.counts) { LIBRARY_COUNTER_BYTES } else { 0 }
    }

    /// The bytes of the slots of libraries in the counters of one thread.
    pub(crate) fn library_bytes(&self) -> u64 {
        if self.libraries.is_some() { LIBRARY_BYTES } else { 0 }
    }

    /// The offset of the table of loaded libraries.
    pub(crate) fn loads_offset(&self) -> u64 {
        round_up(HISTOGRAM + histogram_len(&self.shape), PAGE)
    }

    /// The length of that table in bytes, which is 0 if libraries are not hooked.
    fn loads_len(&self) -> u64 {
        let len = (LOADS_MAX * size_of::<LoadRecord>()) as u64;
        if self.libraries.is_some() { round_up(len, PAGE) } else { 0 }
    }

    /// The offset of the table of samples outside of the program.
    pub(crate) fn elsewhere_offset(&self) -> u64 {
        self.loads_offset() + self.loads_len()
    }

    /// The number of bytes to reserve. Only the agent's timers write to the histogram, so it is reserved only
    /// if they are used.
    pub(crate) fn reserved(&self, timer_rate: u32) -> u64 {
        if timer_rate == 0 { PAGE } else { self.blocks_offset }
    }

    /// Returns the header as it is before the process gets the file.
    pub(crate) fn header(&self, orders: Orders, blocks_max: u64) -> RegionHeader {
        let paths = self.measure.and_then(|measure| measure.paths);
        let orders = RegionOrders {
            magic: MAGIC,
            version: VERSION,
            timer_rate: orders.timer_rate,
            follow: orders.follow.into(),
            plan: orders.plan,
            histogram_offset: HISTOGRAM,
            text_bins: self.shape.text_bins(),
            arena_bins: self.shape.arena_bins(),
            text_shift: self.shape.text_shift,
            arena_shift: self.shape.arena_shift,
            blocks_offset: self.blocks_offset,
            block_len: self.block_len(),
            slot_bytes: self.slot_bytes,
            slot_chunk: slot_chunk(self.slot_bytes),
            counter_bytes: self.counter_bytes,
            blocks_max,
            loads_offset: if self.libraries.is_some() { self.loads_offset() } else { 0 },
            library_bytes: self.library_bytes(),
            elsewhere_offset: self.elsewhere_offset(),
            library_hooks: self.libraries.map_or(HookModeCode(0), |hooks| hooks.mode.code()),
            maps_whole: orders.maps_whole.into(),
            library_counter_bytes: self.library_counter_bytes(),
            times_bytes: self.times_bytes(),
            nodes_max: paths.map_or(0, |paths| paths.nodes_max),
            unfolded: paths.is_some_and(|paths| !paths.folds).into(),
            clock: self.clock().code(),
            trace_full: self.tracing().map_or(Full::Wait, |tracing| full(tracing.full)).code(),
            trace_bytes: self.trace_bytes(),
            trace_least: self.tracing().map_or(0, |tracing| self.ticks(tracing.least_ns)),
            short_below: self.measure.map_or(0, |measure| self.ticks(measure.min_ns)),
            short_most: self.measure.map_or(0, |measure| self.ticks(measure.most_ns)),
            trace_depth: self.tracing().map_or(0, |tracing| tracing.depth),
            trace_args: (self.keeps_values() || self.tracing().is_some_and(|tracing| tracing.args)).into(),
            tallies: self.tallies(),
            shadow_stacks: orders.shadow_stacks.into(),
            left_out: orders.left_out,
        };
        RegionHeader { orders, ..RegionHeader::default() }
    }

    /// Returns the clock that measures calls.
    pub(crate) fn clock(&self) -> ClockKind {
        self.measure.map_or(ClockKind::None, |measure| measure.clock.kind())
    }

    /// Returns a duration in ticks of the clock.
    fn ticks(&self, ns: u64) -> u64 {
        let is_tsc = ns > 0 && self.measure.is_some_and(|measure| measure.clock == Clock::Tsc);
        if is_tsc { (ns as f64 * clock::ticks_per_nanosecond()) as u64 } else { ns }
    }

    /// Whether the injector's part of a header is still as it was written.
    pub(crate) fn is_that_of(&self, header: &RegionHeader) -> bool {
        let (own, header) = (self.header(Orders::default(), 0).orders, header.orders);
        (header.magic, header.version) == (own.magic, own.version)
            && (header.histogram_offset, header.text_bins, header.arena_bins)
                == (own.histogram_offset, own.text_bins, own.arena_bins)
            && (header.blocks_offset, header.block_len, header.slot_bytes)
                == (own.blocks_offset, own.block_len, own.slot_bytes)
            && (header.counter_bytes, header.loads_offset, header.library_bytes, header.elsewhere_offset)
                == (own.counter_bytes, own.loads_offset, own.library_bytes, own.elsewhere_offset)
            && (header.library_counter_bytes, header.times_bytes, header.trace_bytes)
                == (own.library_counter_bytes, own.times_bytes, own.trace_bytes)
    }
}

fn full(choice: FullArg) -> Full {
    match choice {
        FullArg::Wait => Full::Wait,
        FullArg::DropNew => Full::DropNew,
        FullArg::DropOld => Full::DropOld,
    }
}

/// Bytes of the ring of events of a thread: 262,144 of them. A thread that writes few takes less memory.
const RING_BYTES: u64 = 4 << 20;

/// The length of the histogram in bytes. That of a damaged program may exceed any file; then creating the
/// file fails.
pub(crate) fn histogram_len(shape: &Shape) -> u64 {
    shape.bins().saturating_mul(4).min(1 << 60)
}

/// What the header asks the agent to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    /// The samples per second that the agent takes by timer, or 0.
    pub(crate) timer_rate: u32,
    /// Whether children and executed programs are profiled as well.
    pub(crate) follow: bool,
    /// The number of the plan.
    pub(crate) plan: u32,
    /// See [`RegionOrders::maps_whole`].
    pub(crate) maps_whole: bool,
    /// See [`RegionOrders::shadow_stacks`].
    pub(crate) shadow_stacks: bool,
    /// See [`RegionOrders::left_out`].
    pub(crate) left_out: [LeftOut; LEFT_OUT],
}

/// What the agent reports about its process, or whatever the process has written there instead. It is not
/// relied on: wrong values make counts and messages wrong, and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentReport {
    pub(crate) state: AgentState,
    pub(crate) trouble: TroubleCode,
    pub(crate) trouble_address: u64,
    pub(crate) errno: i32,
    pub(crate) panic_file: [u64; PANIC_FILE_WORDS],
    pub(crate) pid: u32,
    /// The number of the plan, which a forked child copies from its parent.
    pub(crate) plan: u32,
    /// Whether children count in this file.
    pub(crate) guests: bool,
    pub(crate) frozen: bool,
    pub(crate) dispatched: bool,
    /// See [`RegionHeader::unseen`].
    pub(crate) unseen: u64,
    pub(crate) bias: u64,
    /// The runtime addresses of the agent's library.
    pub(crate) agent: (u64, u64),
    pub(crate) setup_ns: u64,
    pub(crate) lost_calls: u64,
    pub(crate) lost_threads: u64,
    pub(crate) bare_calls: u64,
    pub(crate) samples_outside: u64,
    pub(crate) lost_timers: u64,
    pub(crate) lost_children: u64,
    pub(crate) lost_programs: u64,
    pub(crate) lost_libraries: u64,
    /// See [`RegionHeader::left_out_seen`].
    pub(crate) left_out_seen: u64,
    /// See [`RegionHeader::lost`].
    pub(crate) lost: [[u64; LOST_WORDS]; LOST_NAMED],
    pub(crate) frida_patched: u64,
    pub(crate) frida_ns: u64,
    /// Ticks, times 256: see [`RegionHeader::inside_256`].
    pub(crate) inside_256: u64,
    pub(crate) outside_256: u64,
    pub(crate) spread_256: u64,
    /// When the process was about to execute another program, by the clock of the measurements; 0 if it was not.
    pub(crate) clock_at_end: u64,
}

/// The agent's state; see [`State`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AgentState {
    #[default]
    New,
    SettingUp,
    Armed,
    /// The agent has given up, or the number is not one that it writes.
    Refused,
}

impl AgentReport {
    /// Returns the report in a header.
    pub(crate) fn of(header: &RegionHeader) -> AgentReport {
        AgentReport {
            state: match header.state.get() {
                Some(State::New) => AgentState::New,
                Some(State::SettingUp) => AgentState::SettingUp,
                Some(State::Armed) => AgentState::Armed,
                Some(State::Refused) | None => AgentState::Refused,
            },
            trouble: header.trouble,
            trouble_address: header.trouble_address,
            errno: header.errno,
            panic_file: header.panic_file,
            pid: header.pid,
            plan: header.orders.plan,
            guests: header.guests > 0,
            frozen: header.frozen != 0,
            dispatched: header.dispatched != 0,
            unseen: header.unseen,
            bias: header.bias,
            agent: (header.agent_lo, header.agent_hi),
            setup_ns: header.setup_ns,
            lost_calls: header.lost_calls,
            lost_threads: header.lost_threads,
            bare_calls: header.bare_calls,
            samples_outside: header.samples_outside,
            lost_timers: header.lost_timers,
            lost_children: header.lost_children,
            lost_programs: header.lost_programs,
            lost_libraries: header.lost_libraries,
            left_out_seen: header.left_out_seen,
            lost: header.lost,
            frida_patched: header.frida_patched,
            frida_ns: header.frida_ns,
            inside_256: header.inside_256,
            outside_256: header.outside_256,
            spread_256: header.spread_256,
            clock_at_end: header.clock_at_end,
        }
    }
}

/// The number of threads that can have counters at the same time.
pub(crate) const BLOCKS_MAX: u64 = 1 << 14;

/// Reads as many bytes as there are, and returns their number. The rest of the buffer is not changed.
///
/// # Errors
/// Reading fails.
pub(crate) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest @ [_, ..]) = buffer.get_mut(done..) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Reads a record. Bytes after the end of the file are zeros.
///
/// # Errors
/// Reading fails.
pub(crate) fn read_value<T: FromBytes + IntoBytes>(file: &File, offset: u64) -> io::Result<T> {
    let mut value = T::new_zeroed();
    read_at(file, value.as_mut_bytes(), offset)?;
    Ok(value)
}
