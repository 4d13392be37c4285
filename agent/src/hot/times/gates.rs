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
#![allow(unsafe_code, reason = "the way from machine code to Rust and back")]

use crate::hot::times::calls;
use crate::hot::times::clock;
use crate::os::vectors::{restore_vectors, save_vectors};
use crate::os::words::{thread_word, words_offset};
use core::arch::global_asm;
use core::mem::offset_of;
use gprofinject_abi::plan::{NUMBER_BELOW, ThreadWords};
use gprofinject_abi::times::{
    ArcTimes, BUCKET_BITS, BUCKETS, CALLEE_HASH, CONTEXT, FunctionTimes, OpenCall, PathNode, TABLE_HASH,
    TAIL, TIMES, TableEntry, TimesHeader,
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
    "imul edi, edi, {callee_hash}",
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
    "mov [rsi+{context}], rax",       // and flags
    "mov qword ptr [rsi+{children}], 0",
    "inc qword ptr [rcx+{begun}]",
    "inc dword ptr [rdi+{arc_open}]",
    "inc dword ptr [r8+{function_open}]",
    "mov rax, [rsp-72]",
    "mov rdi, [rsp-64]",
    "sub rdi, [rcx+{paused}]",
    "mov [rsi+{call_begun}], rax",
    "mov [rsi+{start}], rdi",
    "mov [rcx+{top}], rsi",           // it is complete
    "13:",
    "cmp [rcx+{begun}], rax",
    "jne 16f",
    "mov r8, [rsp-48]",
    "mov rcx, [rsp-16]",
    "mov rdi, [rsp-40]",
    "mov rsi, [rsp-32]",
    "mov rdx, [rsp-24]",
    "mov rax, [rsp-8]",
    "ret",
    "16:",                            // a signal handler has made calls since the clock was read: they are the caller's
    "mov rax, [rsi+{outer}]",
    "mov rdx, [rsi+{children}]",
    "add [rax+{children}], rdx",
    "mov qword ptr [rsi+{children}], 0",
    "mov rdi, [rcx+{begun}]",
    "mov [rsi+{call_begun}], rdi",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "sub rax, [rcx+{paused}]",
    "mov [rsi+{start}], rax",
    "mov rax, rdi",
    "jmp 13b",
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
    // The hooks are paused, or the process has forbidden the counter to itself.
    "cmp dword ptr [rip+{stopped_at}], 0",
    "jne gpi_call_begin_slowly",
    "mov [rsp-16], rcx",
    words_offset!("rcx"),
    thread_word!("mov rcx, ", "[rcx+{block}]"),
    "mov [rsp-8], rax",
    "mov [rsp-24], rdx",
    "mov rax, [rcx+{begun}]",
    "inc rax",
    "mov [rsp-72], rax",              // the number of this call, if no other one comes in between
    "rdtsc",
    "mov [rsp-32], rsi",
    "mov [rsp-40], rdi",
    "shl rdx, 32",
    "or rax, rdx",
    "mov [rsp-64], rax",
    "mov rax, [rcx+{top}]",
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
    "jmp gpi_call_begin_slowly",
    ".endm",
    ".macro gpi_times_end paths",
    "mov [rsp-8], rax",
    // The hooks are paused, or the process has forbidden the counter to itself.
    "cmp dword ptr [rip+{stopped_at}], 0",
    "jne 18f",
    "mov [rsp-16], rdx",
    "lfence",                         // until the function's results are there
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
    "11:",                            // r8 = function
    "imul rdx, [rcx+{overhead}]",
    "mov r9, [rcx+{outside}]",
    "add rdx, [rcx+{inside}]",
    "add r9, rax",
    "sub rax, rdx",
    "mov edx, 0",
    "cmovs rax, rdx",                 // the duration without the overhead
    "mov rdx, [rsi+{outer}]",
    "add [rdx+{children}], r9",
    "mov [rcx+{top}], rdx",           // a signal handler's calls are the outer one's from here on
    "cmp rax, [rdi+{arc_min}]",
    "jb 6f",
    "7:",
    "cmp rax, [rdi+{arc_max}]",
    "ja 8f",
    "9:",
    // Both counts change together, since a thread that is cancelled may end here.
    "inc qword ptr [rdi+{arc_calls}]",
    ".if \\paths",
    "mov rdx, [rsi+{node}]",
    "inc qword ptr [rdx+{node_calls}]",
    ".endif",
    // The call before is counted in the histogram; see `FunctionTimes::pending`. If a signal handler's call of the same function
    // comes in between, the one before is counted twice and the handler's is not.
    "mov r9, [r8+{pending}]",
    "or rax, 1",
    "mov [r8+{pending}], rax",
    "mov rdx, rcx",
    "mov rcx, r9",
    "or rcx, {bucket_least}",
    "bsr rcx, rcx",
    "sub ecx, {bucket_bits}",
    "shr r9, cl",
    "lea r9, [r9+rcx*{bucket_least}]",
    "cmp r9, {last_bucket}",
    "ja 13f",
    "14:",
    "inc qword ptr [r8+r9*8+{histogram}]",
    "mov eax, [rsi+{flags}]",
    "mov r9, [rdx+{free}]",
    "mov [rsi+{outer}], r9",
    // From here on a signal handler may use the record.
    "mov [rdx+{free}], rsi",
    "test eax, eax",
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
    "13:",
    "mov r9d, {last_bucket}",
    "jmp 14b",
    "10:",                            // the call that has jumped to this function ends as well
    "mov rcx, rdx",
    "mov rax, [rdx+{last}]",
    "mov rsi, [rdx+{top}]",
    "jmp 2b",
    "3:",
    "mov r9, [rsp-56]",
    "mov r8, [rsp-48]",
    "mov rdi, [rsp-40]",
    "mov rsi, [rsp-32]",
    "mov rcx, [rsp-24]",
    "mov rdx, [rsp-16]",
    "jmp gpi_call_end_slowly",
    "18:",
    "mov qword ptr [rsp-64], 0",
    "jmp gpi_call_end_slowly",
    ".endm",
    //
    ".text",
    ".irp name, begin, end, begin_path, end_path, begin_slowly, end_by_call, end_slowly",
    ".globl gpi_call_\\name",
    ".hidden gpi_call_\\name",
    ".type gpi_call_\\name, @function",
    ".p2align 6",
    "gpi_call_\\name:",
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
    ".ifc \\name, end_by_call",        // in place of gpi_call_end, if the counter does not measure
    "mov [rsp-8], rax",
    "mov qword ptr [rsp-64], 0",
    "jmp gpi_call_end_slowly",
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
    ".size gpi_call_\\name, . - gpi_call_\\name",
    ".endr",
    stopped_at = sym clock::STOPPED_AT,
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
    flags = const offset_of!(OpenCall, flags),
    outer = const offset_of!(OpenCall, outer),
    arc = const offset_of!(OpenCall, arc),
    node = const offset_of!(OpenCall, node),
    children = const offset_of!(OpenCall, children),
    call_begun = const offset_of!(OpenCall, begun),
    start = const offset_of!(OpenCall, start),
    hash = const TABLE_HASH as i32,
    callee_hash = const CALLEE_HASH as i32,
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
    arc_calls = const offset_of!(ArcTimes, calls),
    arc_min = const offset_of!(ArcTimes, min),
    arc_max = const offset_of!(ArcTimes, max),
    pending = const offset_of!(FunctionTimes, pending),
    histogram = const offset_of!(FunctionTimes, histogram),
    bucket_bits = const BUCKET_BITS,
    bucket_least = const 1 << BUCKET_BITS,
    last_bucket = const BUCKETS - 1,
    function_open = const offset_of!(FunctionTimes, open),
    function_inclusive = const offset_of!(FunctionTimes, nested_inclusive),
    function_within = const offset_of!(FunctionTimes, nested_within),
    function_nested = const offset_of!(FunctionTimes, nested),
    node_number = const offset_of!(PathNode, number),
    node_calls = const offset_of!(PathNode, calls),
    node_own = const offset_of!(PathNode, own),
);

const _: () = assert!(offset_of!(OpenCall, flags) == offset_of!(OpenCall, context) + 4);
// The gates set it by the number of its bit, and know no other flag.
const _: () = assert!(TAIL == 1);

unsafe extern "C" {
    pub(crate) fn gpi_call_begin();
    pub(crate) fn gpi_call_end();
    pub(crate) fn gpi_call_begin_path();
    pub(crate) fn gpi_call_end_path();
    pub(crate) fn gpi_call_begin_slowly();
    pub(crate) fn gpi_call_end_by_call();
}

/// Returns the addresses of the gates for the beginning and the end of a call.
pub(crate) fn gates(is_tsc: bool, paths: bool) -> [u64; 2] {
    match (is_tsc, paths) {
        (false, _) => [gpi_call_begin_slowly as *const () as u64, gpi_call_end_by_call as *const () as u64],
        (true, false) => [gpi_call_begin as *const () as u64, gpi_call_end as *const () as u64],
        (true, true) => [gpi_call_begin_path as *const () as u64, gpi_call_end_path as *const () as u64],
    }
}
