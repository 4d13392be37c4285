//! The slow paths for the program's own thunks, and what only a standalone program needs besides.

use crate::hot::gate;
use crate::hot::small_stacks::gpi_small_miss_entry;
use crate::hot::tally;
use crate::hot::times;
use crate::hot::times::gates::Form;
use crate::process::calls;
use crate::program::agent::{Agent, GATE_FACTS, LIBRARY_GATE_FACTS};
use crate::unwind::backtraces;
use crate::unwind::landings;
use crate::unwind::signals;
use crate::unwind::stack_copies;
use crate::unwind::stops;
use gprofinject_abi::clock::ClockKind;
use gprofinject_abi::plan::ArenaHeader;
use gprofinject_abi::region::RegionOrders;
use gprofinject_abi::tally::{ALONE, MEASURED_WITHOUT_RESULTS};

/// Returns the addresses of the slow paths.
pub(crate) fn gates(shadows: u64, small_stacks: bool, orders: &RegionOrders) -> ArenaHeader {
    ArenaHeader {
        miss: gate::gpi_miss as *const () as u64,
        miss_entry: match small_stacks {
            true => gpi_small_miss_entry as *const () as u64,
            false => gate::gpi_miss_entry as *const () as u64,
        },
        window: gate::gpi_window as *const () as u64,
        exit: gate::gpi_exit as *const () as u64,
        tail: gate::gpi_tail as *const () as u64,
        signal: signals::gpi_signal as *const () as u64,
        resume: signals::gpi_resume as *const () as u64,
        ..common_gates(shadows, orders)
    }
}

/// Returns the addresses that are the same for thunks of the program and of libraries.
pub(crate) fn common_gates(shadows: u64, orders: &RegionOrders) -> ArenaHeader {
    let [begin, end, mark] = times_gates(orders);
    let header = ArenaHeader {
        shadows,
        system_call: calls::gpi_system_call as *const () as u64,
        backtrace: backtraces::gpi_backtrace as *const () as u64,
        land: landings::gpi_land as *const () as u64,
        stop: stops::gpi_stop as *const () as u64,
        cfa: landings::gpi_cfa as *const () as u64,
        stack_copy: stack_copies::gate(),
        interned: gate::gpi_interned as *const () as u64,
        begin,
        end,
        mark,
        program_labels: GATE_FACTS.labels(),
        library_labels: LIBRARY_GATE_FACTS.labels(),
        ..ArenaHeader::default()
    };
    with_calls(header)
}

/// Returns the addresses of what is called at the beginning and the end of a measured call, and at the beginning of others.
fn times_gates(orders: &RegionOrders) -> [u64; 3] {
    if orders.tallies == ALONE {
        return tally::gates::gates();
    }
    let (clock, form) = (orders.clock.get().unwrap_or(ClockKind::None), Form::of(orders));
    let gates = times::gates::gates(clock, orders.nodes_max != 0, form);
    if orders.tallies != 0 {
        let has_results = orders.tallies != MEASURED_WITHOUT_RESULTS;
        return tally::gates::gates_before(gates, has_results);
    }
    let [begin, end] = if orders.trace_args == 0 { gates } else { times::gates::gates_with_arguments(gates) };
    [begin, end, times::gates::mark(clock == ClockKind::Tsc, form)]
}

/// Adds the addresses of what is called in place of some code of the C library, in a standalone program.
fn with_calls(header: ArenaHeader) -> ArenaHeader {
    #[cfg(feature = "standalone")]
    let header = {
        use crate::unwind::own;
        ArenaHeader {
            find_object: own::gpi_find_object as *const () as u64,
            iterate: own::gpi_iterate as *const () as u64,
            jump: own::gpi_jump as *const () as u64,
            ..header
        }
    };
    header
}

/// Reserves the records of threads of a standalone program.
///
/// # Errors
/// Returns the error number of mmap.
#[cfg_attr(not(feature = "standalone"), allow(clippy::unnecessary_wraps, unused_variables))]
pub(crate) fn reserve(orders: &RegionOrders) -> Result<(), i32> {
    #[cfg(feature = "standalone")]
    crate::os::records::reserve(crate::hot::counters::room(orders))?;
    Ok(())
}

/// Makes later threads begin with the same words as the calling one.
#[cfg_attr(not(feature = "standalone"), allow(unused_variables))]
pub(crate) fn prepare(agent: &Agent) {
    #[cfg(feature = "standalone")]
    {
        use crate::os::{records, words};
        use core::sync::atomic::Ordering;

        let words = words::get();
        let [block, cells, library_last] =
            [words.block(), words.cells(), words.library_last()].map(|word| word.load(Ordering::Relaxed));
        records::set_first_words(block, cells, library_last);
        calls::prepare(agent.fsgsbase);
    }
}
