//! The machine code that runs at the beginning and the end of each measured call.
//!
//! ```text
//! at the beginning (gpi_call_begin)             at the end (gpi_call_end)
//!
//! CFA-8      exit label                    CFA-8   address in the thunk's exit
//! CFA-16     address in the body           CFA-16  rax   <- rsp - 8
//! CFA-24     rax                           CFA-24  rdx
//! CFA-32     rcx                           CFA-32  rcx
//! CFA-40     rdx                           CFA-40  rsi
//! CFA-48     rsi                           CFA-48  rdi
//! CFA-56     rdi                           CFA-56  r8
//! CFA-64     r8                            CFA-64  r9
//! CFA-72     number of the function        CFA-72  now
//! CFA-80     now
//! CFA-88     number of this call
//! ```
//!
//! Nothing is live there: at a function's first instruction the caller's red zone is not in use, and after its return the
//! frame is gone. Signal handlers leave the 128 bytes below rsp alone, so the gates move rsp only to call compiled code, and
//! an unwinder that begins in them finds the return address in its place.
//!
//! Both gates read the time as early as possible. `rdtsc` waits for nothing that is in flight, so at the end `lfence` first waits
//! for what the function has begun; otherwise a chain of 20 divisions would be in the caller's time. What follows `rdtsc` is
//! executed while the clock is read, at the beginning too: if the clock were read last there, the processor would execute up to
//! 13 ns of the function in that time, and they would be in no duration. The gate's other work, which takes about as long, is in
//! their place now, and in the duration of every call alike. (`lfence` at the beginning would be more exact, but a call costs
//! 9 ns more with it: docs/benchmarks.md, "Measured times".)
//!
//! A signal handler may interrupt a gate anywhere. Its calls end before it returns, so it leaves `top` and `free` as they
//! were; what it counts in between, it counts by single instructions. If it makes calls after the clock has been read and before
//! the call is complete, they are the caller's, in whose time they were: the number of calls shows that, and the clock is read
//! again.
//!
//! If the clock is that of executed instructions, it is a word in the thread block, which costs a load; nothing is in flight for it, and
//! it does not advance in the gates.
//!
//! If short calls are only counted, the gates find the entry of the arc before they read the clock, and return without reading it if
//! the arc's calls are short. Such a call is not open; its end is known by a frame below that of the innermost open call.
//!
//! The gates are pieces of one assembly: `begin` and `end` define its macros, and `code` has each gate. This file chooses
//! among them.

mod begin;
mod code;
mod end;
mod lines;
mod switched;

use crate::hot::times::calibration::Subject;
use crate::hot::times::gates::code::{
    OTHERS, gpi_call_begin, gpi_call_begin_args, gpi_call_begin_executed, gpi_call_begin_late,
    gpi_call_begin_path, gpi_call_begin_path_executed, gpi_call_begin_path_late, gpi_call_begin_path_short,
    gpi_call_begin_path_traced, gpi_call_begin_short, gpi_call_begin_slowly, gpi_call_begin_traced,
    gpi_call_end, gpi_call_end_args, gpi_call_end_by_call, gpi_call_end_executed, gpi_call_end_late,
    gpi_call_end_path, gpi_call_end_path_executed, gpi_call_end_path_late, gpi_call_end_path_short,
    gpi_call_end_path_traced, gpi_call_end_short, gpi_call_end_traced, gpi_call_mark, gpi_call_mark_by_call,
    gpi_call_mark_traced,
};
use core::sync::atomic::Ordering;
use gprofinject_abi::clock::ClockKind;
use gprofinject_abi::region::RegionOrders;

/// Which calls are measured, and which events of calls are written to the thread's ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// All calls are measured, and no events are written.
    All,
    /// The same, but calls that are found short are only counted ([`short`](crate::hot::times::short)).
    Short,
    /// All calls are measured. The beginning is written when the call begins, and the end when it ends.
    TracedAtOnce,
    /// All calls are measured. Both events are written when the call ends, if it has lasted long enough.
    TracedLate,
}

impl Form {
    /// Returns what the orders ask for.
    pub(crate) fn of(orders: &RegionOrders) -> Form {
        match (orders.trace_bytes, orders.trace_least, orders.short_below) {
            (0, _, 0) => Form::All,
            (0, _, _) => Form::Short,
            (_, 0, _) => Form::TracedAtOnce,
            _ => Form::TracedLate,
        }
    }
}

/// Returns the addresses of the gates for the beginning and the end of a call.
pub(crate) fn gates(clock: ClockKind, paths: bool, form: Form) -> [u64; 2] {
    let is_tsc = match clock {
        ClockKind::Tsc => true,
        ClockKind::None | ClockKind::Gettime => false,
        // Only the way of reading the clock differs, and nothing is traced by it.
        ClockKind::Instructions if form == Form::All => {
            let [begin, end]: [unsafe extern "C" fn(); 2] = match paths {
                false => [gpi_call_begin_executed, gpi_call_end_executed],
                true => [gpi_call_begin_path_executed, gpi_call_end_path_executed],
            };
            return [begin as usize as u64, end as usize as u64];
        }
        ClockKind::Instructions => false,
    };
    let [begin, end]: [unsafe extern "C" fn(); 2] = match (is_tsc, paths, form) {
        (false, _, _) => [gpi_call_begin_slowly, gpi_call_end_by_call],
        (true, false, Form::All) => [gpi_call_begin, gpi_call_end],
        (true, true, Form::All) => [gpi_call_begin_path, gpi_call_end_path],
        (true, false, Form::Short) => [gpi_call_begin_short, gpi_call_end_short],
        (true, true, Form::Short) => [gpi_call_begin_path_short, gpi_call_end_path_short],
        (true, false, Form::TracedAtOnce) => [gpi_call_begin_traced, gpi_call_end_traced],
        (true, true, Form::TracedAtOnce) => [gpi_call_begin_path_traced, gpi_call_end_path_traced],
        (true, false, Form::TracedLate) => [gpi_call_begin_late, gpi_call_end_late],
        (true, true, Form::TracedLate) => [gpi_call_begin_path_late, gpi_call_end_path_late],
    };
    [begin as usize as u64, end as usize as u64]
}

/// Returns what is calibrated: the gates that read the time stamp counter.
pub(crate) fn calibrated(orders: &RegionOrders) -> Subject {
    let (form, has_paths) = (Form::of(orders), orders.nodes_max != 0);
    Subject {
        gates: gates(ClockKind::Tsc, has_paths, form),
        has_paths,
        has_short: form == Form::Short,
        is_traced: matches!(form, Form::TracedAtOnce | Form::TracedLate),
    }
}

/// Returns the address of the gate for calls whose ends are not seen.
pub(crate) fn mark(is_tsc: bool, form: Form) -> u64 {
    let mark: unsafe extern "C" fn() = match (form, is_tsc) {
        (Form::All | Form::Short | Form::TracedLate, _) => gpi_call_mark,
        (Form::TracedAtOnce, true) => gpi_call_mark_traced,
        (Form::TracedAtOnce, false) => gpi_call_mark_by_call,
    };
    mark as usize as u64
}

/// Returns the addresses of the gates in a run that traces arguments, and in which other calls go to `others`.
pub(crate) fn gates_with_arguments(others: [u64; 2]) -> [u64; 2] {
    for (place, other) in OTHERS.iter().zip(others) {
        place.store(other, Ordering::Relaxed);
    }
    [gpi_call_begin_args as *const () as u64, gpi_call_end_args as *const () as u64]
}
