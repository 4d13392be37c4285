//! The machine code that runs at the beginning of each call whose arguments are kept, and at the end of calls.
//!
//! ```text
//! at the beginning (gpi_tally_begin, gpi_tally_mark)      at the end (gpi_tally_end)
//!
//! CFA-8      exit label, or return address            CFA-8   address in the thunk's exit
//! CFA-16     address in the body                      CFA-16  rdi   <- rsp - 8
//! CFA-24     rdi   <- rsp - 8                         CFA-24  rsi
//! CFA-32     rsi                                      CFA-32  rdx
//! CFA-40     rdx                                      CFA-40  rcx
//! CFA-48     rcx                                      CFA-48  r8
//! CFA-56     r8                                       CFA-56  r9
//! CFA-64     r9                                       CFA-64  rax
//! CFA-72     number of the function                   CFA-80  number of the function
//! CFA-80     rax
//! ```
//!
//! So an integer register is at `rsp - 8 - 8 * source` (`gprofinject_abi::args::Fetch::sources`), which is [`ValueTally::place`]. The gates use
//! the red zone and preserve all registers, as those that measure calls do.
//!
//! A gate at work stores its stack pointer in [`TallyHeader::busy`]. If that word is not 0, the gate has interrupted another one, in a signal
//! handler, or another one was left by a jump; the slow path finds out which.
//!
//! If calls are measured, all functions call gates, and those here come first: gpi_tally_open and gpi_tally_marked where a function begins, and
//! gpi_tally_close at its exit. They return at once, or continue with the gate that measures ([`NEXT`]), if the function's values are not kept. The picture of the
//! stack is the same, but at an exit nobody has stored the number of the function: it is that of the innermost open call.
#![allow(unsafe_code, reason = "the way from machine code to Rust and back")]

use crate::hot::tally::{
    ARGUMENTS, BEGIN, CLOSE, END, FRAME, HAVE_VALUES, MARK, NUMBERS, OPEN, RESULTS, miss, slowly,
};
use crate::hot::times::clock::SLOWLY;
use crate::os::vectors::saved_registers;
use crate::os::words::{thread_word, words_offset};
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{Cell, END_NUMBER_BELOW, NUMBER_BELOW, ThreadWords, WINDOW, WINDOW_WORD};
use gprofinject_abi::tally::{
    CallEntry, CallTally, ENTRY_HASH, ENTRY_MASK, ENTRY_SHIFT, RECENT_TALLIES, RESULT, RecentTally, TALLIES,
    TallyHeader, VALUE_HASH, VALUE_SHIFT, ValueSlot, ValueTally,
};
use gprofinject_abi::times::{ArcTimes, OpenCall, TAIL, TIMES, TimesHeader, UNIT};

global_asm!(
    saved_registers!("gpi_tally_save", "gpi_tally_restore"),
    // Counts the value in rax in its slot: rsi = what is kept of it. Jumps to 10 if the first slot of its group is another one's.
    ".macro gpi_tally_first",
    "mov rdx, rax",
    "shr rdx, 32",
    "xor rdx, rax",
    "imul rdx, r9",
    "shr rdx, {value_shift}",
    "and rdx, [rsi+{groups}]",
    "add rdx, [rsi+{slots}]",
    "cmp [rdx], rax",
    "jne 10f",
    "inc qword ptr [rdx+8]",
    ".endm",
    // Continues with the gate that measures, if one comes after this one: see `way` below.
    ".macro gpi_tally_next way",
    ".if \\way == 1",
    "jmp [rip+{next}]",
    ".elseif \\way == 2",
    "jmp [rip+{next}+8]",
    ".else",
    "ret",
    ".endif",
    ".endm",
    // `from`: which gate it is. `cfa`: how far the CFA is above rsp. `number`: where the function's number is, below rsp. `saved`: where
    // rax is saved.
    // `way`: 0 if calls are not measured, 1 where a measured one begins, 2 where it ends, 3 where one begins that is not measured.
    ".macro gpi_tally from, cfa, number, saved, way=0",
    "mov [rsp-8], rdi",
    "mov [rsp-16], rsi",
    ".if (\\way == 1) | (\\way == 3)",
    "mov edi, [rsp-\\number]",
    "mov rsi, [rip+{have_values}]",
    "test byte ptr [rsi+rdi], {arguments}",
    "jz 20f",
    ".endif",
    ".if \\way == 2",
    words_offset!("rdi"),
    thread_word!("mov rdi, ", "[rdi+{block}]"),
    "mov rsi, [rdi+{top}]",
    "test rsi, rsi",
    "jz 20f",
    "lea rdi, [rsp+\\cfa]",
    "cmp [rsi+{open_cfa}], rdi",
    "jne 40f",                        // frames that a jump has left, another stack, or a signal handler's
    "test dword ptr [rsi+{open_flags}], {tail}",
    "jnz 41f",
    "mov rdi, [rsi+{open_arc}]",
    "test rdi, rdi",
    "jz 20f",
    "mov edi, [rdi+{arc_callee}]",
    "cmp edi, {numbers}",
    "jae 20f",
    "mov rsi, [rip+{have_values}]",
    "test byte ptr [rsi+rdi], {results}",
    "jz 20f",
    ".endif",
    "mov [rsp-24], rdx",
    "mov [rsp-32], rcx",
    "mov [rsp-40], r8",
    "mov [rsp-48], r9",
    "mov [rsp-\\saved], rax",
    ".ifeq \\way",
    "mov edi, [rsp-\\number]",
    ".endif",
    ".if (\\way == 1) | (\\way == 2)",
    words_offset!("rax"),
    thread_word!("mov rcx, ", "[rax+{block}]"),
    "mov rsi, [rcx+{top}]",
    ".if \\way == 1",
    "test rsi, rsi",
    "jz 3f",
    "lea rdx, [rsp+\\cfa]",
    "cmp rdx, [rcx+{stack_lo}]",
    "jb 3f",
    "cmp rdx, [rsi+{open_cfa}]",
    "ja 3f",
    ".else",
    "mov rsi, [rsi+{open_outer}]",
    ".endif",
    // The place of the record among the recent ones follows from what is known at once, so the processor need not wait for the rest.
    "lea r9, [rsp+\\cfa]",
    "shr r9, 4",
    "add r9d, edi",
    "and r9d, {recent_mask}",
    "lea r9, [r9+r9*2]",
    "lea r9, [rcx+r9*8+{recent}]",
    "mov rdx, [rsi+{open_arc}]",
    "mov r8, rdx",
    "shl r8, 32",
    "add rdx, [rsi+{open_node}]",
    "inc edi",
    "or rdi, r8",
    ".if \\way == 2",
    "or rdi, [rip+gpi_tally_result]",
    ".endif",
    ".else",
    ".if \\from == {mark}",
    words_offset!("rax"),
    "mov rdx, [rsp+8]",               // the return address, or the exit label of a function that has jumped here
    "inc edi",
    ".else",
    words_offset!("rax"),
    thread_word!("mov rcx, ", "[rax+{cells}]"),
    "lea rdx, [rsp+\\cfa]",
    "xor rdx, [rcx+{window_word}]",
    "cmp rdx, {window}",
    "jae 3f",
    "lea rsi, [rcx+rdx*2]",           // the cell
    "mov rdx, [rsi+{return_address}]",
    ".if \\from == {begin}",
    "mov esi, [rsp+8]",               // the lower half of the exit label
    "inc edi",
    "shl rsi, 32",
    "or rdi, rsi",
    ".else",
    "mov r8d, [rsi+{function}]",
    "mov rcx, [rip+{have_values}]",
    "cmp edi, r8d",
    "jne 8f",
    "test byte ptr [rcx+rdi], {results}",
    "jz 9f",
    "inc edi",
    "or rdi, [rip+gpi_tally_result]",
    ".endif",
    ".endif",
    ".endif",
    thread_word!("mov rcx, ", "[rax+{block}]"),
    // The hooks are paused, or a thread forks.
    "cmp dword ptr [rip+{slowly}], 0",
    "jne 3f",
    "cmp qword ptr [rcx+{busy}], 0",
    "jne 3f",
    "mov r8, [rcx+{table}]",
    "test r8, r8",
    "jz 3f",
    ".if (\\way == 1) | (\\way == 2)",
    "cmp [r9+{recent_key}], rdi",
    "jne 14f",
    "cmp [r9+{recent_word}], rdx",
    "jne 14f",
    "mov rsi, [r9+{recent_record}]",
    "mov [rcx+{busy}], rsp",
    "jmp 15f",
    "14:",
    ".endif",
    "imul rsi, rdx, {hash}",
    "imul rax, rdi, {key_hash}",
    "add rsi, rax",
    "shr rsi, {entry_shift}",
    "and esi, {entry_mask}",
    "add rsi, r8",
    "1:",                             // rsi = entry
    "cmp [rsi+{entry_key}], rdi",
    "jne 2f",
    "cmp [rsi+{entry_return_address}], rdx",
    "jne 2f",
    "mov rsi, [rsi+{entry_record}]",
    "cmp dword ptr [rsi+{is_slow}], 0",
    "jne 3f",
    "mov [rcx+{busy}], rsp",
    ".if (\\way == 1) | (\\way == 2)",
    "mov [r9+{recent_key}], rdi",
    "mov [r9+{recent_word}], rdx",
    "mov [r9+{recent_record}], rsi",
    "15:",
    ".endif",
    "mov edi, [rsi+{values}]",
    "mov r9, [rip+gpi_tally_hash]",
    "add rsi, {unit}",
    "test edi, edi",
    "jz 7f",
    "4:",                             // rsi = what is kept of a value, edi = the number of values that are left
    "mov r8, [rsi+{place}]",
    "mov ecx, [rsi+{shift}]",
    "mov rax, [rsp+r8]",
    "test ecx, ecx",
    "jz 16f",                         // the shifts take longer than the branch
    "shl rax, cl",
    "cmp dword ptr [rsi+{is_signed}], 0",
    "jne 5f",
    "shr rax, cl",
    "16:",
    "gpi_tally_first",
    "6:",
    "add rsi, {value_len}",
    "dec edi",
    "jnz 4b",
    "7:",
    words_offset!("rax"),
    thread_word!("mov rcx, ", "[rax+{block}]"),
    "mov qword ptr [rcx+{busy}], 0",
    "9:",
    "mov rdi, [rsp-8]",
    "mov rsi, [rsp-16]",
    "mov rdx, [rsp-24]",
    "mov rcx, [rsp-32]",
    "mov r8, [rsp-40]",
    "mov r9, [rsp-48]",
    "mov rax, [rsp-\\saved]",
    "gpi_tally_next \\way",
    ".if \\way",
    "20:",                            // the function's values are not kept
    "mov rdi, [rsp-8]",
    "mov rsi, [rsp-16]",
    "gpi_tally_next \\way",
    ".endif",
    "5:",
    "sar rax, cl",
    "gpi_tally_first",
    "jmp 6b",
    "10:",
    "cmp [rdx+16], rax",
    "jne 11f",
    "inc qword ptr [rdx+24]",
    "jmp 6b",
    "11:",
    "cmp [rdx+32], rax",
    "jne 12f",
    "inc qword ptr [rdx+40]",
    "jmp 6b",
    "12:",
    "cmp [rdx+48], rax",
    "jne 13f",
    "inc qword ptr [rdx+56]",
    "jmp 6b",
    "13:",                            // rax = the value, which has no slot
    "lea rsp, [rsp-128]", ".cfi_adjust_cfa_offset 128",
    "gpi_tally_save",
    "mov rdi, rsi",
    "mov rsi, rax",
    "call {miss}",
    "gpi_tally_restore",
    "lea rsp, [rsp+128]", ".cfi_adjust_cfa_offset -128",
    "jmp 6b",
    "2:",
    "cmp qword ptr [rsi+{entry_key}], 0",
    "je 3f",
    "add rsi, {entry_len}",
    "jmp 1b",
    ".if \\from == {end}",
    "8:",                             // a function that was called has jumped to the one that returns
    "test byte ptr [rcx+rdi], {results}",
    "jnz 3f",
    "cmp r8d, {numbers}",
    "jae 9b",
    "test byte ptr [rcx+r8], {results}",
    "jz 9b",
    ".endif",
    ".if \\way == 2",
    "40:",                            // the slow path ends the calls of the frame
    "mov rdi, [rsp-8]",
    "mov rsi, [rsp-16]",
    "lea rsp, [rsp-128]", ".cfi_adjust_cfa_offset 128",
    "gpi_tally_save",
    "lea rsi, [rbp+208+\\cfa]",
    "mov rdx, rbp",
    "mov rcx, rsp",
    "mov r8d, {frame}",
    "call {by_rust}",
    "gpi_tally_restore",
    "lea rsp, [rsp+128]", ".cfi_adjust_cfa_offset -128",
    "ret",
    "41:",
    "mov rdi, [rsp-8]",
    "mov rsi, [rsp-16]",
    "jmp 42f",
    ".endif",
    "3:",
    "mov rdi, [rsp-8]",
    "mov rsi, [rsp-16]",
    "mov rdx, [rsp-24]",
    "mov rcx, [rsp-32]",
    "mov r8, [rsp-40]",
    "mov r9, [rsp-48]",
    "mov rax, [rsp-\\saved]",
    "42:",
    "lea rsp, [rsp-128]", ".cfi_adjust_cfa_offset 128",
    "gpi_tally_save",
    "mov edi, [rbp+208-\\number]",    // 10 pushes and 128 bytes
    "lea rsi, [rbp+208+\\cfa]",
    "mov rdx, rbp",
    "mov rcx, rsp",
    "mov r8d, \\from",
    "call {by_rust}",
    "gpi_tally_restore",
    "lea rsp, [rsp+128]", ".cfi_adjust_cfa_offset -128",
    ".if \\way == 2",
    "jmp [rip+{next}+8]",
    ".else",
    "ret",                            // where a measured call begins, the slow path has begun it
    ".endif",
    ".endm",
    ".section .rodata",
    ".p2align 3",
    "gpi_tally_hash:",
    ".quad {value_hash}",
    "gpi_tally_result:",
    ".quad {result}",
    ".text",
    ".irp name, begin, mark, end, open, close, marked",
    ".globl gpi_tally_\\name",
    ".hidden gpi_tally_\\name",
    ".type gpi_tally_\\name, @function",
    ".p2align 6",
    "gpi_tally_\\name:",
    ".cfi_startproc",
    ".ifc \\name, begin",
    "gpi_tally {begin}, 16, {begin_number}, 64",
    ".endif",
    ".ifc \\name, mark",
    "gpi_tally {mark}, 16, {begin_number}, 64",
    ".endif",
    ".ifc \\name, end",
    "gpi_tally {end}, 8, {end_number}, 56",
    ".endif",
    ".ifc \\name, open",
    "gpi_tally {open}, 16, {begin_number}, 64, 1",
    ".endif",
    ".ifc \\name, close",
    "gpi_tally {close}, 8, {end_number}, 56, 2",
    ".endif",
    ".ifc \\name, marked",
    "gpi_tally {mark}, 16, {begin_number}, 64, 3",
    ".endif",
    ".cfi_endproc",
    ".size gpi_tally_\\name, . - gpi_tally_\\name",
    ".endr",
    begin = const BEGIN,
    mark = const MARK,
    end = const END,
    open = const OPEN,
    close = const CLOSE,
    frame = const FRAME,
    next = sym NEXT,
    arguments = const ARGUMENTS,
    results = const RESULTS,
    top = const TIMES as usize + offset_of!(TimesHeader, top),
    stack_lo = const TIMES as usize + offset_of!(TimesHeader, stack_lo),
    open_cfa = const offset_of!(OpenCall, cfa),
    open_flags = const offset_of!(OpenCall, flags),
    open_arc = const offset_of!(OpenCall, arc),
    open_node = const offset_of!(OpenCall, node),
    open_outer = const offset_of!(OpenCall, outer),
    recent = const TALLIES as usize + offset_of!(TallyHeader, recent),
    recent_mask = const RECENT_TALLIES - 1,
    recent_key = const offset_of!(RecentTally, key),
    recent_word = const offset_of!(RecentTally, word),
    recent_record = const offset_of!(RecentTally, record),
    arc_callee = const offset_of!(ArcTimes, callee),
    tail = const TAIL,
    begin_number = const NUMBER_BELOW - 8,
    end_number = const END_NUMBER_BELOW - 8,
    slowly = sym SLOWLY,
    have_values = sym HAVE_VALUES,
    numbers = const NUMBERS,
    miss = sym miss,
    by_rust = sym slowly,
    block = const offset_of!(ThreadWords, block),
    cells = const offset_of!(ThreadWords, cells),
    window = const WINDOW,
    window_word = const WINDOW_WORD,
    return_address = const offset_of!(Cell, return_address),
    function = const offset_of!(Cell, function),
    busy = const TALLIES as usize + offset_of!(TallyHeader, busy),
    table = const TALLIES as usize + offset_of!(TallyHeader, table),
    hash = const ENTRY_HASH[0],
    key_hash = const ENTRY_HASH[1],
    entry_shift = const ENTRY_SHIFT,
    entry_mask = const ENTRY_MASK,
    entry_len = const size_of::<CallEntry>(),
    entry_key = const offset_of!(CallEntry, key),
    entry_return_address = const offset_of!(CallEntry, return_address),
    entry_record = const offset_of!(CallEntry, record),
    is_slow = const offset_of!(CallTally, is_slow),
    values = const offset_of!(CallTally, values),
    unit = const UNIT,
    place = const offset_of!(ValueTally, place),
    shift = const offset_of!(ValueTally, shift),
    is_signed = const offset_of!(ValueTally, is_signed),
    groups = const offset_of!(ValueTally, mask),
    slots = const offset_of!(ValueTally, slots),
    value_len = const size_of::<ValueTally>(),
    value_hash = const VALUE_HASH,
    value_shift = const VALUE_SHIFT,
    result = const RESULT,
);

const _: () = assert!(size_of::<ValueSlot>() == 16 && offset_of!(ValueSlot, count) == 8);

unsafe extern "C" {
    fn gpi_tally_begin();
    fn gpi_tally_mark();
    fn gpi_tally_end();
    fn gpi_tally_open();
    fn gpi_tally_close();
    fn gpi_tally_marked();
}

/// The gates that measure, with which those here continue. Written before the first hook is in place.
static NEXT: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// Returns the addresses of the gates for the beginning and the end of a call whose end is seen, and for the beginning of another one.
pub(crate) fn gates() -> [u64; 3] {
    let [begin, end, mark]: [unsafe extern "C" fn(); 3] = [gpi_tally_begin, gpi_tally_end, gpi_tally_mark];
    [begin, end, mark].map(|gate| gate as usize as u64)
}

/// Returns the same in a run whose calls are measured by the gates `next`, which know no calls whose ends are not seen. `has_results`: whether
/// any results are kept.
pub(crate) fn gates_before(next: [u64; 2], has_results: bool) -> [u64; 3] {
    for (place, next) in NEXT.iter().zip(next) {
        place.store(next, Ordering::Relaxed);
    }
    let [begin, end, mark]: [unsafe extern "C" fn(); 3] = [gpi_tally_open, gpi_tally_close, gpi_tally_marked];
    let [begin, end, mark] = [begin, end, mark].map(|gate| gate as usize as u64);
    [begin, if has_results { end } else { next[1] }, mark]
}
