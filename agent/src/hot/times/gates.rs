//! The machine code that runs at the beginning and the end of each measured call.
//!
//! ```text
//! at the beginning (gpi_begin)             at the end (gpi_end)
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
//! ```
//!
//! Nothing is live there: at a function's first instruction the caller's red zone is not in use, and after its return the
//! frame is gone. Signal handlers leave the 128 bytes below rsp alone, so the gates move rsp only to call compiled code, and
//! an unwinder that begins in them finds the return address in its place.
//!
//! The time is read as late as possible at the beginning and as early as possible at the end.
//!
//! A signal handler may interrupt a gate anywhere. Its calls end before it returns, so it leaves `top` and `free` as they
//! were; what it counts in between, it counts by single instructions. If it interrupts the beginning between `top` and
//! `start`, its duration is taken from the interrupted call without having been part of it; then the result may be negative.
#![allow(unsafe_code, reason = "the way from machine code to Rust and back")]

use crate::hot::times::calls;
use crate::os::vectors::{restore_vectors, save_vectors};
use crate::os::words::{thread_word, words_offset};
use core::arch::global_asm;
use core::mem::offset_of;
use gprofinject_abi::plan::{NUMBER_BELOW, ThreadWords};
use gprofinject_abi::times::{
    ArcTimes, BUCKETS, CONTEXT, FunctionTimes, OpenCall, PathNode, TABLE_HASH, TIMES, TableEntry, TimesHeader,
};

global_asm!(
    // Saves all integer registers that compiled code may change, and aligns the stack. rbp points to them.
    ".macro gpi_times_save",
    "push rax", ".cfi_adjust_cfa_offset 8",
    "push rcx", ".cfi_adjust_cfa_offset 8",
    "push rdx", ".cfi_adjust_cfa_offset 8",
    "push rsi", ".cfi_adjust_cfa_offset 8",
    "push rdi", ".cfi_adjust_cfa_offset 8",
    "push r8", ".cfi_adjust_cfa_offset 8",
    "push r9", ".cfi_adjust_cfa_offset 8",
    "push r10", ".cfi_adjust_cfa_offset 8",
    "push r11", ".cfi_adjust_cfa_offset 8",
    "push rbp", ".cfi_adjust_cfa_offset 8", ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp", ".cfi_def_cfa_register rbp",
    "and rsp, -16",
    save_vectors!(),
    ".endm",
    ".macro gpi_times_restore",
    restore_vectors!(),
    "mov rsp, rbp", ".cfi_def_cfa_register rsp",
    "pop rbp", ".cfi_adjust_cfa_offset -8", ".cfi_restore rbp",
    "pop r11", ".cfi_adjust_cfa_offset -8",
    "pop r10", ".cfi_adjust_cfa_offset -8",
    "pop r9", ".cfi_adjust_cfa_offset -8",
    "pop r8", ".cfi_adjust_cfa_offset -8",
    "pop rdi", ".cfi_adjust_cfa_offset -8",
    "pop rsi", ".cfi_adjust_cfa_offset -8",
    "pop rdx", ".cfi_adjust_cfa_offset -8",
    "pop rcx", ".cfi_adjust_cfa_offset -8",
    "pop rax", ".cfi_adjust_cfa_offset -8",
    ".endm",
    // Makes an open call below the one at rax. rcx = thread block. With `tail`, both have the same frame. Jumps to 3 if that
    // has to be done slowly.
    ".macro gpi_times_open paths, tail",
    // The entry of the arc in the table.
    "mov esi, [rax+{context}]",
    "mov edi, [rsp-{number}]",
    "mov rdx, rsi",
    "shl rdx, 32",
    "imul esi, esi, {hash}",
    "or rdx, rdi",                    // key
    "add esi, edi",
    "shl esi, {entry_bits}",
    "and rsi, [rcx+{mask}]",
    "add rsi, [rcx+{table}]",
    "12:",
    "cmp [rsi+{key}], rdx",
    "jne 14f",
    "mov rdi, [rsi+{entry_arc}]",
    ".if \\tail",
    "cmp dword ptr [rdi+{arc_open}], 0", // functions that jump to each other without end
    "jne 3f",
    ".endif",
    ".if \\paths",
    "mov rdx, [rsi+{entry_node}]",
    ".endif",
    "mov [rsp-48], r8",
    "mov rsi, [rcx+{free}]",
    "test rsi, rsi",
    "jz 15f",
    "mov r8, [rsi+{outer}]",
    "test r8, r8",                    // one always stays free
    "jz 15f",
    "mov [rcx+{free}], r8",
    "mov [rsi+{outer}], rax",
    "mov [rsi+{arc}], rdi",
    "lea rax, [rsp+16]",
    "mov [rsi+{cfa}], rax",
    ".if \\paths",
    "mov [rsi+{node}], rdx",
    "mov eax, [rdx+{node_number}]",
    ".else",
    "mov eax, [rsp-{number}]",
    ".endif",
    "or eax, {context_bit}",
    ".if \\tail",
    "bts rax, 32",
    ".endif",
    "mov r8, [rdi+{arc_function}]",
    "mov [rsi+{context}], rax",       // and is_tail
    "mov qword ptr [rsi+{children}], 0",
    "inc qword ptr [rcx+{begun}]",
    "inc dword ptr [rdi+{arc_open}]",
    "inc dword ptr [r8+{function_open}]",
    "mov rax, [rcx+{begun}]",
    "mov rdi, [rcx+{paused}]",
    "mov [rsi+{call_begun}], rax",
    "mov [rcx+{top}], rsi",
    "mov r8, [rsp-48]",
    "mov rcx, [rsp-16]",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "sub rax, rdi",
    "mov [rsi+{start}], rax",
    "mov rdi, [rsp-40]",
    "mov rsi, [rsp-32]",
    "mov rdx, [rsp-24]",
    "mov rax, [rsp-8]",
    "ret",
    "14:",
    "cmp qword ptr [rsi+{key}], 0",
    "je 3f",
    "add rsi, {entry}",
    "jmp 12b",
    "15:",
    "mov r8, [rsp-48]",
    "jmp 3f",
    ".endm",
    // The beginning of a call. `paths`: whether there are nodes.
    ".macro gpi_times_begin paths",
    "mov [rsp-16], rcx",
    words_offset!("rcx"),
    thread_word!("mov rcx, ", "[rcx+{block}]"),
    "mov [rsp-8], rax",
    "mov [rsp-32], rsi",
    "mov rax, [rcx+{top}]",
    "mov [rsp-24], rdx",
    "mov [rsp-40], rdi",
    "test rax, rax",
    "jz 3f",
    "lea rdx, [rsp+16]",              // CFA
    "cmp rdx, [rcx+{stack_lo}]",
    "jb 3f",
    "cmp rdx, [rax+{cfa}]",
    "jae 6f",
    "gpi_times_open \\paths, 0",
    "6:",                             // a jump to another function ends in the same frame
    "jne 3f",
    "gpi_times_open \\paths, 1",
    "3:",
    "mov rdi, [rsp-40]",
    "mov rdx, [rsp-24]",
    "mov rsi, [rsp-32]",
    "mov rcx, [rsp-16]",
    "mov rax, [rsp-8]",
    "jmp gpi_begin_slowly",
    ".endm",
    ".macro gpi_times_end paths",
    "mov [rsp-8], rax",
    "mov [rsp-16], rdx",
    "rdtsc",
    "mov [rsp-24], rcx",
    "mov [rsp-32], rsi",
    "mov [rsp-40], rdi",
    "mov [rsp-48], r8",
    "mov [rsp-56], r9",
    "shl rdx, 32",
    words_offset!("rcx"),
    "or rax, rdx",
    thread_word!("mov rcx, ", "[rcx+{block}]"),
    "mov [rsp-64], rax",
    "mov rsi, [rcx+{top}]",
    "test rsi, rsi",
    "jz 3f",
    "lea r9, [rsp+8]",                // CFA
    "cmp r9, [rsi+{cfa}]",
    "jne 3f",
    "sub rax, [rcx+{paused}]",
    "mov [rcx+{last}], rax",
    "2:",                             // rsi = call, rax = now without pauses
    "mov rdi, [rsi+{arc}]",
    "sub rax, [rsi+{start}]",
    "mov rdx, rax",
    "sub rdx, [rsi+{children}]",
    "mov r8, [rdi+{arc_function}]",
    "add [rdi+{arc_own}], rdx",
    ".if \\paths",
    "mov r9, [rsi+{node}]",
    "add [r9+{node_own}], rdx",
    ".endif",
    "mov rdx, [rcx+{begun}]",
    "sub rdx, [rsi+{call_begun}]",    // calls within
    "dec dword ptr [rdi+{arc_open}]",
    "jnz 4f",
    "add [rdi+{arc_inclusive}], rax",
    "add [rdi+{arc_within}], rdx",
    "dec dword ptr [r8+{function_open}]",
    "jnz 5f",
    "11:",
    "mov r8, [rsi+{outer}]",
    "mov r9, rax",
    "imul rdx, [rcx+{overhead}]",
    "add r9, [rcx+{outside}]",
    "add rdx, [rcx+{inside}]",
    "add [r8+{children}], r9",
    "mov [rcx+{top}], r8",            // a signal handler's calls are the outer one's from here on
    "sub rax, rdx",
    "mov edx, 0",
    "cmovs rax, rdx",                 // the duration without the overhead
    "cmp rax, [rdi+{arc_min}]",
    "jb 6f",
    "7:",
    "cmp rax, [rdi+{arc_max}]",
    "ja 8f",
    "9:",
    // The call before is counted in the histogram; see `ArcTimes::pending`. If a signal handler's call of the same arc comes
    // in between, the one before is counted twice and the handler's is not, so the sum is right.
    "mov r9, [rdi+{arc_pending}]",
    "or rax, 1",
    "mov [rdi+{arc_pending}], rax",
    "mov edx, {last_bucket}",
    "bsr r9, r9",
    "cmp r9, rdx",
    "cmova r9, rdx",
    // The sum of the histogram is the number of calls. It and the node's count change together, since a thread that is
    // cancelled may end here.
    ".if \\paths",
    "mov rdx, [rsi+{node}]",
    "inc qword ptr [rdx+{node_calls}]",
    ".endif",
    "inc qword ptr [rdi+r9*8+{histogram}]",
    "mov edx, [rsi+{is_tail}]",
    "mov r9, [rcx+{free}]",
    "mov [rsi+{outer}], r9",
    // From here on a signal handler may use the record.
    "mov [rcx+{free}], rsi",
    "test edx, edx",
    "jnz 10f",
    "mov r9, [rsp-56]",
    "mov r8, [rsp-48]",
    "mov rdi, [rsp-40]",
    "mov rsi, [rsp-32]",
    "mov rcx, [rsp-24]",
    "mov rdx, [rsp-16]",
    "mov rax, [rsp-8]",
    "ret",
    "4:",                             // another open call of the arc contains it
    "dec dword ptr [r8+{function_open}]",
    "inc qword ptr [rdi+{arc_nested}]",
    "jmp 11b",
    "5:",                             // an open call of another arc of the function contains it
    "add [r8+{function_inclusive}], rax",
    "add [r8+{function_within}], rdx",
    "inc qword ptr [r8+{function_nested}]",
    "jmp 11b",
    "6:",
    "mov [rdi+{arc_min}], rax",
    "jmp 7b",
    "8:",
    "mov [rdi+{arc_max}], rax",
    "jmp 9b",
    "10:",                            // the call that has jumped to this function ends as well
    "mov rax, [rcx+{last}]",
    "mov rsi, r8",
    "jmp 2b",
    "3:",
    "mov r9, [rsp-56]",
    "mov r8, [rsp-48]",
    "mov rdi, [rsp-40]",
    "mov rsi, [rsp-32]",
    "mov rcx, [rsp-24]",
    "mov rdx, [rsp-16]",
    "jmp gpi_end_slowly",
    ".endm",
    //
    ".text",
    ".irp name, begin, end, begin_path, end_path, begin_slowly, end_by_call, end_slowly",
    ".globl gpi_\\name",
    ".hidden gpi_\\name",
    ".type gpi_\\name, @function",
    ".p2align 6",
    "gpi_\\name:",
    ".cfi_startproc",
    ".ifc \\name, begin",
    "gpi_times_begin 0",
    ".endif",
    ".ifc \\name, begin_path",
    "gpi_times_begin 1",
    ".endif",
    ".ifc \\name, end",
    "gpi_times_end 0",
    ".endif",
    ".ifc \\name, end_path",
    "gpi_times_end 1",
    ".endif",
    ".ifc \\name, begin_slowly",       // rsp = CFA - 16
    "lea rsp, [rsp-128]",
    ".cfi_adjust_cfa_offset 128",
    "gpi_times_save",
    "mov edi, [rbp+208-{number}]",     // 10 pushes and 128 bytes
    "lea rsi, [rbp+224]",
    "call {begin}",
    "gpi_times_restore",
    "lea rsp, [rsp+128]",
    ".cfi_adjust_cfa_offset -128",
    "ret",
    ".endif",
    ".ifc \\name, end_by_call",        // in place of gpi_end, if the counter does not measure
    "mov [rsp-8], rax",
    "mov qword ptr [rsp-64], 0",
    "jmp gpi_end_slowly",
    ".endif",
    ".ifc \\name, end_slowly",         // rsp = CFA - 8; rax has been saved
    "mov rax, [rsp-8]",
    "lea rsp, [rsp-128]",
    ".cfi_adjust_cfa_offset 128",
    "gpi_times_save",
    "lea rdi, [rbp+216]",
    "mov rsi, [rbp+208-64]",
    "call {end}",
    "gpi_times_restore",
    "lea rsp, [rsp+128]",
    ".cfi_adjust_cfa_offset -128",
    "ret",
    ".endif",
    ".cfi_endproc",
    ".size gpi_\\name, . - gpi_\\name",
    ".endr",
    begin = sym calls::begin,
    end = sym calls::end,
    number = const NUMBER_BELOW - 8,
    block = const offset_of!(ThreadWords, block),
    top = const TIMES as usize + offset_of!(TimesHeader, top),
    stack_lo = const TIMES as usize + offset_of!(TimesHeader, stack_lo),
    free = const TIMES as usize + offset_of!(TimesHeader, free),
    begun = const TIMES as usize + offset_of!(TimesHeader, begun),
    table = const TIMES as usize + offset_of!(TimesHeader, table),
    mask = const TIMES as usize + offset_of!(TimesHeader, mask),
    paused = const TIMES as usize + offset_of!(TimesHeader, paused),
    last = const TIMES as usize + offset_of!(TimesHeader, last),
    outside = const TIMES as usize + offset_of!(TimesHeader, outside),
    inside = const TIMES as usize + offset_of!(TimesHeader, inside),
    overhead = const TIMES as usize + offset_of!(TimesHeader, overhead),
    cfa = const offset_of!(OpenCall, cfa),
    context = const offset_of!(OpenCall, context),
    is_tail = const offset_of!(OpenCall, is_tail),
    outer = const offset_of!(OpenCall, outer),
    arc = const offset_of!(OpenCall, arc),
    node = const offset_of!(OpenCall, node),
    children = const offset_of!(OpenCall, children),
    call_begun = const offset_of!(OpenCall, begun),
    start = const offset_of!(OpenCall, start),
    hash = const TABLE_HASH as i32,
    entry_bits = const size_of::<TableEntry>().trailing_zeros(),
    entry = const size_of::<TableEntry>(),
    key = const offset_of!(TableEntry, key),
    entry_arc = const offset_of!(TableEntry, arc),
    entry_node = const offset_of!(TableEntry, node),
    context_bit = const CONTEXT as i32,
    arc_function = const offset_of!(ArcTimes, function),
    arc_open = const offset_of!(ArcTimes, open),
    arc_own = const offset_of!(ArcTimes, own),
    arc_inclusive = const offset_of!(ArcTimes, inclusive),
    arc_within = const offset_of!(ArcTimes, within),
    arc_nested = const offset_of!(ArcTimes, nested),
    arc_pending = const offset_of!(ArcTimes, pending),
    arc_min = const offset_of!(ArcTimes, min),
    arc_max = const offset_of!(ArcTimes, max),
    histogram = const offset_of!(ArcTimes, histogram),
    last_bucket = const BUCKETS - 1,
    function_open = const offset_of!(FunctionTimes, open),
    function_inclusive = const offset_of!(FunctionTimes, nested_inclusive),
    function_within = const offset_of!(FunctionTimes, nested_within),
    function_nested = const offset_of!(FunctionTimes, nested),
    node_number = const offset_of!(PathNode, number),
    node_calls = const offset_of!(PathNode, calls),
    node_own = const offset_of!(PathNode, own),
);

const _: () = assert!(offset_of!(OpenCall, is_tail) == offset_of!(OpenCall, context) + 4);

unsafe extern "C" {
    pub(crate) fn gpi_begin();
    pub(crate) fn gpi_end();
    pub(crate) fn gpi_begin_path();
    pub(crate) fn gpi_end_path();
    pub(crate) fn gpi_begin_slowly();
    pub(crate) fn gpi_end_by_call();
}

/// Returns the addresses of the gates for the beginning and the end of a call.
pub(crate) fn gates(is_tsc: bool, paths: bool) -> [u64; 2] {
    match (is_tsc, paths) {
        (false, _) => [gpi_begin_slowly as *const () as u64, gpi_end_by_call as *const () as u64],
        (true, false) => [gpi_begin as *const () as u64, gpi_end as *const () as u64],
        (true, true) => [gpi_begin_path as *const () as u64, gpi_end_path as *const () as u64],
    }
}
