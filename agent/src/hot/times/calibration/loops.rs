//! The loops that are timed for a calibration, and the memory that they use.
#![allow(unsafe_code, reason = "machine code is called that uses memory made for it")]

use crate::os::memory;
use crate::os::words::{self, thread_word, words_offset};
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{Cell, FREE, NUMBER_BELOW, ThreadWords, WINDOW, WINDOW_WORD};
use gprofinject_abi::region::{NO_FUNCTION, RECENT, Slot};
use gprofinject_abi::shared::{ArcTimesRef, BlockRef, OpenCallRef};
use gprofinject_abi::times::{CONTEXT, TABLE_TAIL, TableEntry, UNIT, table_key};
use gprofinject_abi::trace;

/// The work of the caller between two calls, in the unit of that of the called function.
const CALLER_WORK: u64 = 1;
/// The offsets of the loops' arc slot, ring and records in a temporary thread block.
const SLOT: u64 = RECENT;
const RING: u64 = RECENT + 2048;
const RECORDS: u64 = RECENT + 4096;
const BLOCK: u64 = RECORDS + 8192;
/// The size of the loops' stack, a power of two. A gate may take its slow path there.
const STACK: u64 = 1 << 15;

/// The addresses of the gates. The hooked loop calls them as thunks do.
static GATES: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The memory in which calls are calibrated: a thread block, and a stack with its shadow.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    block: u64,
    /// The lowest address of the stack, a multiple of its size.
    stack: u64,
    /// The stack's shadow, whose window is the stack alone.
    shadow: u64,
}

impl Scratch {
    const SHADOW: u64 = (BLOCK + WINDOW_WORD.unsigned_abs()).next_multiple_of(4096);
    const LEN: u64 = Self::SHADOW + 2 * STACK + 2 * STACK;

    /// Makes the memory for these gates, and the record of the arc whose calls are timed. Returns `None` if memory is short.
    pub(super) fn make(gates: [u64; 2], has_paths: bool) -> Option<(Scratch, ArcTimesRef)> {
        let at = memory::map_zeros(Self::LEN, memory::PROT_READ | memory::PROT_WRITE).ok()?;
        let scratch = Scratch::at(at);
        let window = scratch.shadow.wrapping_add_signed(WINDOW_WORD) as *mut u64;
        // SAFETY: the word lies between the block and the shadow, and no other code knows of the mapping yet.
        unsafe { *window = scratch.stack };
        for (gate, address) in GATES.iter().zip(gates) {
            gate.store(address, Ordering::Relaxed);
        }
        Some((scratch, prepare(at, has_paths)?))
    }

    /// Unmaps the memory, which is not used any more.
    pub(super) fn remove(self) {
        // SAFETY: only the loops have used the memory, and they have ended.
        let _ = unsafe { memory::munmap(self.block, Self::LEN) };
    }

    /// Returns the address of the thread block.
    pub(super) fn block(self) -> u64 {
        self.block
    }

    /// Returns the memory with this thread block.
    pub(super) fn at(block: u64) -> Scratch {
        let shadow = block + Self::SHADOW;
        Scratch { block, shadow, stack: (shadow + 2 * STACK).next_multiple_of(STACK) }
    }

    /// Has the calling thread use this memory in place of its own thread block and shadow stack, and does some work. Afterwards no call
    /// is known to be counted only.
    pub(super) fn used<T>(self, work: impl FnOnce() -> T) -> T {
        let words = words::get();
        let old = [words.block(), words.cells(), words.last()].map(|word| word.load(Ordering::Relaxed));
        words.block().store(self.block, Ordering::Relaxed);
        words.cells().store(self.shadow, Ordering::Relaxed);
        let done = work();
        for (word, old) in [words.block(), words.cells(), words.last()].into_iter().zip(old) {
            word.store(old, Ordering::Relaxed);
        }
        words.deep().store(0, Ordering::Relaxed);
        done
    }

    /// Calls a function so many times that consists of a thunk and some [`work`](super::WORK). Returns the duration in ticks.
    pub(super) fn hooked(self, calls: u64, work: u64) -> u64 {
        self.calls(calls, gpi_calibrate_hooked, work)
    }

    /// The same with the thunk of a run in which short calls are only counted, after calls that were measured.
    pub(super) fn short(self, calls: u64, work: u64) -> u64 {
        self.calls(calls, gpi_calibrate_short, work)
    }

    /// The same without the thunk.
    pub(super) fn plain(self, calls: u64, work: u64) -> u64 {
        self.calls(calls, gpi_calibrate_plain, work)
    }

    fn calls(self, calls: u64, function: unsafe extern "C" fn(), work: u64) -> u64 {
        // SAFETY: the thread's words point to the block and the shadow, which hold everything that the code accesses, and no signal
        // handler runs meanwhile: `super::run` is called before the program runs, and `super::again` blocks signals.
        unsafe {
            gpi_calibrate(calls, function as *const () as u64, CALLER_WORK, work, self.stack + STACK - 64)
        }
    }
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
    ".irp name, calibrate, calibrate_plain, calibrate_hooked, calibrate_short",
    ".globl gpi_\\name",
    ".hidden gpi_\\name",
    ".type gpi_\\name, @function",
    ".p2align 6",
    "gpi_\\name:",
    ".ifc \\name, calibrate",           // rdi = number of calls, rsi = function, rdx, rcx = work, r8 = stack; returns ticks
    "push rbx",
    "push rbp",
    "mov rbp, rsp",
    "mov rsp, r8",
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
    "mov rsp, rbp",
    "pop rbp",
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
    ".ifnc \\name, calibrate",
    ".ifnc \\name, calibrate_plain",
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
    ".ifc \\name, calibrate_short",
    words_offset!("r11"),
    thread_word!("cmp rsp, ", "[r11+{deep}]"),
    "ja 11f",
    thread_word!("cmp rsp, ", "[r11+{deep_from}]"),
    "jae 12f",
    "11:",
    ".endif",
    "call [rip+{gates}+8]",
    "12:",
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
    ".endif",
    ".size gpi_\\name, . - gpi_\\name",
    ".endr",
    block = const offset_of!(ThreadWords, block),
    cells = const offset_of!(ThreadWords, cells),
    last = const offset_of!(ThreadWords, last),
    deep = const offset_of!(ThreadWords, deep),
    deep_from = const offset_of!(ThreadWords, deep_from),
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
    /// Calls a function `calls` times on a stack that ends at `stack`, and returns the duration in ticks. Between calls, the caller does `work`
    /// steps of work; each call does `callee_work` steps.
    ///
    /// # Safety
    /// `function` must be one of the three functions below, and the thread's words must point to records that the gates can use.
    fn gpi_calibrate(calls: u64, function: u64, work: u64, callee_work: u64, stack: u64) -> u64;
    fn gpi_calibrate_plain();
    fn gpi_calibrate_hooked();
    fn gpi_calibrate_short();
}
