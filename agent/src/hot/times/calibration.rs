//! Measures the overhead of a measured call, before the first hook is in place.
//!
//! One loop calls a function that consists of a thunk's code and a small body; another loop calls a function that has only the
//! body. The difference of their durations is the overhead of a call. The part inside the measured interval is the duration that
//! the gates record, less that of the body; the rest is outside of the interval, in the caller's time. The result is the median
//! of several rounds. A round is so short that few rounds are disturbed. The minimum, which is used elsewhere (Malony and Shende,
//! Overhead Compensation in Performance Profiling, 2004), is smaller than the overhead in real programs.
#![allow(unsafe_code, reason = "machine code is called that uses memory made for it")]

use crate::hot::cells;
use crate::hot::times::clock;
use crate::hot::times::gates::{self, Form};
use crate::os::memory;
use crate::os::words::{self, thread_word, words_offset};
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{Cell, FREE, NUMBER_BELOW, ThreadWords, WINDOW, WINDOW_WORD};
use gprofinject_abi::region::{NO_FUNCTION, RECENT, Slot};
use gprofinject_abi::shared::{ArcTimesRef, BlockRef, OpenCallRef, RegionRef};
use gprofinject_abi::times::{CONTEXT, PROBE, TABLE_TAIL, TableEntry, UNIT, table_key};
use gprofinject_abi::trace;

/// The number of calls in a round.
const CALLS: u64 = 256;
/// The number of rounds.
const ROUNDS: usize = 24;
/// The work of the called function in each of two calibrations, as the length of a chain of dependent multiplications.
///
/// The processor overlaps a function's first instructions with the read of the clock at the beginning of the call. So the
/// overhead inside the interval is largest for a function that does nothing, and up to 9 ns smaller for one that is bound by the
/// latency of its own results. The agent does not know which kind a function is: it subtracts the mean of the two, and reports
/// half of their difference as the error. (In-order execution, and functions that wait for half as long, lie between the two.)
const WORK: [u64; 2] = [1, 40];
/// The work of the caller between two calls, in the same unit.
const CALLER_WORK: u64 = 1;
/// The offsets of the loops' arc slot, ring and records in a temporary thread block.
const SLOT: u64 = RECENT;
const RING: u64 = RECENT + 2048;
const RECORDS: u64 = RECENT + 4096;
const BLOCK: u64 = RECORDS + 8192;

/// The addresses of the gates. The hooked loop calls them as thunks do.
static GATES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Measures the overhead of a call and stores it in the region header. If memory is short, the stored overhead remains 0, and
/// nothing is subtracted from durations.
pub(crate) fn run(region: RegionRef, paths: bool, form: Form) {
    if !clock::is_tsc() {
        of_the_clock(region);
        return;
    }
    let here = 0_u64;
    let Ok(at) = memory::map_zeros(BLOCK, memory::PROT_READ | memory::PROT_WRITE) else { return };
    // The thunk's code in the loop handles only a stack within one window of the shadow stack.
    let Some(shadow) = cells::made_shadow(&raw const here as u64) else { return };
    let words = words::get();
    let old = [words.block(), words.cells(), words.last()].map(|word| word.load(Ordering::Relaxed));
    if let Some(arc) = prepare(at, paths) {
        for (gate, address) in GATES.iter().zip(gates::gates(true, paths, form)) {
            gate.store(address, Ordering::Relaxed);
        }
        words.block().store(at, Ordering::Relaxed);
        words.cells().store(shadow, Ordering::Relaxed);
        measure(region, arc);
        if form == Form::Short {
            measure_short(region, arc);
        }
    }
    for (word, old) in [words.block(), words.cells(), words.last()].into_iter().zip(old) {
        word.store(old, Ordering::Relaxed);
    }
    // SAFETY: only the loops have used the block, and they have ended.
    let _ = unsafe { memory::munmap(at, BLOCK) };
}

/// The overhead of a call, in 256ths of a tick.
#[derive(Clone, Copy, Default)]
struct Overhead {
    all: u64,
    inside: u64,
}

/// Runs both calibrations. Stores the mean overhead and the distance of either calibration from that mean.
fn measure(region: RegionRef, arc: ArcTimesRef) {
    let [first, second] = WORK.map(|work| of_loop(arc, work));
    region.inside_256().store((first.inside + second.inside) / 2, Ordering::Relaxed);
    // This part is the same in both calibrations: at the end gate, all of the function's work is complete.
    region.outside_256().store(first.all - first.inside, Ordering::Relaxed);
    region.spread_256().store(first.inside.abs_diff(second.inside) / 2, Ordering::Relaxed);
}

/// Measures what a call costs that is only counted, of a function that does next to nothing, as those do that are only counted.
fn measure_short(region: RegionRef, arc: ArcTimesRef) {
    // None of the calls is one that is measured nevertheless.
    const { assert!(CALLS < PROBE) };
    let [work, _] = WORK;
    arc.short().store(1, Ordering::Relaxed);
    let (mut hooked, mut plain) = ([0_u64; ROUNDS], [0_u64; ROUNDS]);
    for (hooked, plain) in hooked.iter_mut().zip(&mut plain) {
        arc.begun_short().store(0, Ordering::Relaxed);
        // SAFETY: as in `of_loop`.
        unsafe {
            *hooked = gpi_calibrate(CALLS, gpi_calibrate_hooked as *const () as u64, CALLER_WORK, work);
            *plain = gpi_calibrate(CALLS, gpi_calibrate_plain as *const () as u64, CALLER_WORK, work);
        }
    }
    hooked.sort_unstable();
    plain.sort_unstable();
    let cost = hooked[ROUNDS / 2].saturating_sub(plain[ROUNDS / 2]);
    region.short_256().store((cost << 8) / CALLS, Ordering::Relaxed);
}

/// Runs the rounds of one calibration.
fn of_loop(arc: ArcTimesRef, work: u64) -> Overhead {
    // For each round: the duration with the thunk, and the sum of the durations that the gates recorded in it; the duration
    // without the thunk; and the duration when the called function does minimal work.
    let mut hooked = [(0_u64, 0_u64); ROUNDS];
    let (mut plain, mut empty) = ([0_u64; ROUNDS], [0_u64; ROUNDS]);
    for ((hooked, plain), empty) in hooked.iter_mut().zip(&mut plain).zip(&mut empty) {
        let inside = arc.inclusive().load(Ordering::Relaxed);
        // SAFETY: the thread's words point to the block and the shadow stack, which hold everything that the code accesses.
        unsafe {
            hooked.0 = gpi_calibrate(CALLS, gpi_calibrate_hooked as *const () as u64, CALLER_WORK, work);
            *plain = gpi_calibrate(CALLS, gpi_calibrate_plain as *const () as u64, CALLER_WORK, work);
            *empty = gpi_calibrate(CALLS, gpi_calibrate_plain as *const () as u64, CALLER_WORK, 1);
        }
        hooked.1 = arc.inclusive().load(Ordering::Relaxed) - inside;
    }
    hooked.sort_unstable();
    plain.sort_unstable();
    empty.sort_unstable();
    let (took, inside) = hooked[ROUNDS / 2];
    let (plain, empty) = (plain[ROUNDS / 2], empty[ROUNDS / 2]);
    let all = took.saturating_sub(plain);
    let inside = inside.saturating_sub(plain.saturating_sub(empty)).min(all);
    let part_256 = |ticks: u64| (ticks << 8) / CALLS;
    Overhead { all: part_256(all), inside: part_256(inside) }
}

/// Stores the duration of one read of the clock as the overhead inside and outside of the interval. This is for clocks other than
/// the time stamp counter, with which every call takes the slow path.
fn of_the_clock(region: RegionRef) {
    const TIMES: u64 = 64;
    let mut least = u64::MAX;
    for _ in 0..ROUNDS {
        let before = clock::now();
        for _ in 0..TIMES {
            clock::now();
        }
        least = least.min(clock::now() - before);
    }
    region.inside_256().store((least << 8) / TIMES, Ordering::Relaxed);
    region.outside_256().store((least << 8) / TIMES, Ordering::Relaxed);
    region.spread_256().store((least << 8) / TIMES, Ordering::Relaxed);
}

/// Writes the records that the gates use, and returns the arc's record.
fn prepare(at: u64, paths: bool) -> Option<ArcTimesRef> {
    let place = |n: u64| at + RECORDS + n * UNIT;
    let [root, free, arc, function, node, spare, table] = [0, 1, 2, 5, 28, 29, 30].map(place);
    // SAFETY: the block is mapped, zeros are valid records, and only these types and the gates access them.
    let (block, root, free, record) =
        unsafe { (BlockRef::at(at)?, OpenCallRef::at(root)?, OpenCallRef::at(free)?, ArcTimesRef::at(arc)?) };
    let times = block.times();
    times.top().store(root.address(), Ordering::Relaxed);
    times.free().store(free.address(), Ordering::Relaxed);
    times.table().store(table, Ordering::Relaxed);
    // The gates take an open call only if another one remains free.
    free.outer().store(spare, Ordering::Relaxed);
    root.cfa().store(u64::MAX, Ordering::Relaxed);
    root.context().store(NO_FUNCTION | CONTEXT, Ordering::Relaxed);
    record.function().store(function, Ordering::Relaxed);
    record.min().store(u64::MAX, Ordering::Relaxed);
    // With `--trace`, the gates write events to a small ring, which wraps around.
    let trace = block.trace();
    trace.ring().store(at + RING, Ordering::Relaxed);
    trace.limit().store(u64::MAX, Ordering::Relaxed);
    trace.deepest().store(u64::MAX, Ordering::Relaxed);
    trace.least().store(u64::MAX, Ordering::Relaxed);
    trace.mask().store((RECORDS - RING) / size_of::<trace::Slot>() as u64 - 1, Ordering::Relaxed);
    const { assert!(BLOCK - RECORDS >= 30 * UNIT + (1 + TABLE_TAIL) * size_of::<TableEntry>() as u64) };
    let entry = TableEntry {
        key: table_key(NO_FUNCTION | CONTEXT, 0),
        arc,
        node: if paths { node } else { 0 },
        reserved: 0,
    };
    // SAFETY: the entry lies in the block, as asserted above.
    unsafe { (table as *mut TableEntry).write(entry) };
    Some(record)
}

global_asm!(
    ".text",
    ".irp name, calibrate, calibrate_plain, calibrate_hooked",
    ".globl gpi_\\name",
    ".hidden gpi_\\name",
    ".type gpi_\\name, @function",
    ".p2align 6",
    "gpi_\\name:",
    ".ifc \\name, calibrate",           // rdi = number of calls, rsi = function, rdx, rcx = work; returns ticks
    "push rbx",
    "mov r9, rdx",
    "mov r10, rcx",
    "mov rcx, rdi",
    "rdtsc",
    "shl rdx, 32",
    "lea rbx, [rax+rdx]",
    "2:",
    "call rsi",
    "mov rdi, r9",
    "3:",
    "imul r8, r8",
    "dec rdi",
    "jnz 3b",
    "dec rcx",
    "jnz 2b",
    "rdtsc",
    "shl rdx, 32",
    "add rax, rdx",
    "sub rax, rbx",
    "pop rbx",
    "ret",
    ".endif",
    ".ifc \\name, calibrate_plain",
    "mov rdi, r10",
    "2:",
    "imul r8, r8",
    "dec rdi",
    "jnz 2b",
    "ret",
    ".endif",
    // The code of a thunk with an exit (`gprofinject_plan`, x86/template/thunk.rs). The jumps to slow paths lead to the next instruction.
    ".ifc \\name, calibrate_hooked",
    "jmp 3f",
    ".p2align 6",
    "3:",
    "mov [rsp-8], rax",
    "mov [rsp-16], r11",
    words_offset!("r11"),
    thread_word!("mov rax, ", "[r11+{block}]"),
    "pop r11",
    "cmp [rax+{slot_key}], r11",
    "jne 4f",
    "4:",
    "inc qword ptr [rax+{slot_count}]",
    words_offset!("r11"),
    "mov rax, rsp",
    thread_word!("mov r11, ", "[r11+{cells}]"),
    "xor rax, [r11+{window_word}]",
    "cmp rax, {window}",
    "jae 5f",
    "5:",
    "lea rax, [r11+rax*2]",
    "cmp byte ptr [rax+{link}+3], {free}",
    "jne 10f",
    "10:",
    "mov r11, [rsp-8]",
    "mov [rax+{return_address}], r11",
    "mov qword ptr [rax+{function}], 0",
    words_offset!("r11"),
    thread_word!("mov ", "[r11+{last}], rsp"),
    "mov r11, [rsp-24]",
    "mov rax, [rsp-16]",
    "call 9f",
    "call [rip+{gates}+8]",
    "mov [rsp-16], r11",
    "mov [rsp-24], rax",
    "mov rax, rsp",
    words_offset!("r11"),
    thread_word!("mov r11, ", "[r11+{cells}]"),
    "xor rax, [r11+{window_word}]",
    "cmp rax, {window}",
    "jae 6f",
    "6:",
    "lea rax, [r11+rax*2]",
    "cmp dword ptr [rax+{link}], 1",
    "ja 7f",
    "7:",
    "push qword ptr [rax+{return_address}]",
    "mov byte ptr [rax+{link}+3], {free}",
    "mov r11, [rsp-8]",
    "mov rax, [rsp-16]",
    "ret",
    ".p2align 4",
    "9:",
    "mov dword ptr [rsp-{number}], 0",
    "call [rip+{gates}]",
    "jmp 8f",
    "8:",
    "mov rdi, r10",
    "2:",
    "imul r8, r8",
    "dec rdi",
    "jnz 2b",
    "ret",
    ".endif",
    ".size gpi_\\name, . - gpi_\\name",
    ".endr",
    block = const offset_of!(ThreadWords, block),
    cells = const offset_of!(ThreadWords, cells),
    last = const offset_of!(ThreadWords, last),
    slot_key = const SLOT as usize + offset_of!(Slot, key),
    slot_count = const SLOT as usize + offset_of!(Slot, count),
    window_word = const WINDOW_WORD,
    window = const WINDOW,
    return_address = const offset_of!(Cell, return_address),
    function = const offset_of!(Cell, function),
    link = const offset_of!(Cell, link),
    free = const FREE >> 24,
    number = const NUMBER_BELOW,
    gates = sym GATES,
);

unsafe extern "C" {
    /// Calls a function `calls` times and returns the duration in ticks. Between calls, the caller does `work` steps of work; each
    /// call does `callee_work` steps.
    ///
    /// # Safety
    /// `function` must be one of the two functions below, and the thread's words must point to records that the gates can use.
    fn gpi_calibrate(calls: u64, function: u64, work: u64, callee_work: u64) -> u64;
    fn gpi_calibrate_plain();
    fn gpi_calibrate_hooked();
}
