//! The way from a thunk to the slow paths and back, which preserves every register.
//!
//! ```text
//! at a thunk's stub                        on the slow path
//!
//! CFA        the caller's frame                     CFA
//! CFA-8      return address                         CFA-8    return address
//! CFA-16     rax        (saved by the thunk)        CFA-16   rax
//! CFA-24     r11        (saved by the thunk)        CFA-24   r11
//!                                                   CFA-32   where to go on
//!                                                   ...      128 bytes left alone
//!                                                   CFA-192  rcx rdx rsi rdi r8 r9 r10 rbp
//!                                                            xmm0-15, only for the rare paths
//! ```
//!
//! Each entry point here is a *gate*. Before a gate saves anything else, it searches the thread block's table of
//! recent arcs, and meanwhile keeps three or four registers at CFA-40 and below. That is sufficient for arcs that
//! share a home slot with others and for indirect tail calls, except the first time. A call out of unhooked code, or
//! out of a hooked library to the program, whose return address is a known *site* ([`crate::hot::sites`]) is finished
//! here as well, if its caller is easily found: `gpi_again` recognises a frame like one that was found before, `gpi_caller` does
//! the first steps of [`crate::hot::callers::nearest`] and [`crate::hot::callers::newest`], and the rest is that of
//! [`cells::fill`], in the same order; all other cases are left to them.
//!
//! `arcs::known` is compiled Rust that must not use a vector register (a test reads its machine code); the rarer
//! functions may use them, and the gate saves them. Nothing here uses x87, MMX, AVX or the direction flag. At most 1
//! KiB of the program's stack is used below CFA, most of it on the rare paths.
//!
//! The paths on entry have unwind information, because a signal handler may unwind there. The path of exits has none:
//! the return address is in a cell that only the arena's tables describe, so a backtrace ends there.
#![allow(unsafe_code, reason = "the way from machine code to Rust and back")]

use crate::hot::entered::entered;
use crate::hot::newest_frame::newest_frame;
use crate::hot::next::BODY;
use crate::hot::recent_arcs::recent_arcs;
use crate::hot::saved::{load_arguments, restore_registers, save_registers};
use crate::hot::search::NEAR;
use crate::hot::{arcs, cells, clear, sites};
use crate::os::vectors::{restore_vectors, save_vectors};
use crate::os::words::{thread_word, words_offset};
use crate::program::agent::{GATE_FACTS, GateFacts, LABELS, LIBRARY_GATE_FACTS};
use core::arch::global_asm;
use core::mem::offset_of;
use gprofinject_abi::plan::{
    BEGINS, CALL_LEN, Cell, DISTANCE, FREE, FunctionRecord, INTERNED, INTERNED_LABELS, LABEL_LEN, LABELS_AT,
    LEFT, LIBRARIES, ThreadWords, WINDOW, WINDOW_WORD,
};
use gprofinject_abi::region::{
    BlockHeader, CALLER, NEWEST, NO_FUNCTION, Newest, OWN, PAGE, RECENT, RECENT_HASH, RECENT_SHIFT,
    RECENT_WAYS, ROOT, Slot, TAIL, TWICE,
};

/// Defines the gates of one set of functions. `$prefix` is part of their names, `$facts` is the [`GateFacts`] of the set,
/// `$other_facts` is that of the other set. `$is_libraries` is 1 for the functions of libraries and 0 for those of the
/// program. `$last` and `$other` are the thread words for the last events of this set and of the other one, `$foreign` and
/// `$native` are the jumps that are taken if a number that was compared with [`LIBRARIES`] belongs to the other set and to
/// this one, and `$tail` is the function that assigns slots to tail calls.
macro_rules! gates {
    (
        $prefix:literal, $facts:ident, $other_facts:ident, $is_libraries:literal, $last:ident, $other:ident,
        $foreign:literal, $native:literal, $tail:ident
    ) => {
global_asm!(
    recent_arcs!(),
    entered!(),
    newest_frame!($foreign, $native),
    ".macro gpi_save",
    save_registers!(),
    ".endm",
    ".macro gpi_arguments",
    load_arguments!(),
    ".endm",
    ".macro gpi_restore",
    restore_registers!(),
    ".endm",
    ".macro gpi_save_vectors",
    save_vectors!(),
    ".endm",
    ".macro gpi_restore_vectors",
    restore_vectors!(),
    ".endm",
    //
    ".text",
    ".irp name, miss, miss_entry, window, exit, tail",
    concat!(".globl gpi_", $prefix, "\\name"),
    concat!(".hidden gpi_", $prefix, "\\name"),
    concat!(".type gpi_", $prefix, "\\name, @function"),
    ".endr",
    ".p2align 4",
    concat!("gpi_", $prefix, "miss:"),                    // rsp = CFA
    ".cfi_startproc",
    ".cfi_def_cfa_offset 0",
    "gpi_look 0",
    "gpi_label 8f",
    "gpi_set",
    "gpi_way 0, 15f",
    "10:",
    "inc qword ptr [rcx+rdx+{count}]",
    "gpi_next {resume}, 0",
    "gpi_looked 0",
    "mov r11, [rsp-24]",
    "jmp [rsp-32]",
    "15:",
    "gpi_site 0",
    "ja 21f",
    "jb 17f",
    // A call out of code that was made at run time, with a caller like that of an earlier one: it gets no cell.
    "gpi_again 0, 18f, 22f, 23f",
    "23:",
    "gpi_set",
    "gpi_way 0, 24f",
    "25:",
    "imul edi, eax, {record}",
    "add rdi, [rip+{agent}+{functions}]",
    "test byte ptr [rdi+{flags}], {begins}",
    "jnz 18f",
    "inc qword ptr [rcx+rdx+{count}]",
    "mov eax, [rdi+{body}]",
    "add rax, [rip+{agent}+{base}]",
    "mov [rsp-32], rax",
    "mov rsi, [rsp-64]",
    "gpi_looked 0",
    "lea rsp, [rsp-8]",
    ".cfi_def_cfa_offset 8",
    "mov r11, [rsp-16]",
    "mov rax, [rsp-8]",
    "jmp [rsp-24]",
    ".cfi_def_cfa_offset 0",
    "21:",
    "mov rsi, [rsp-64]",
    "gpi_way 8, 12f",
    "jmp 10b",
    "24:",
    "gpi_way 8, 18f",
    "jmp 25b",
    "22:",
    "gpi_gone 0, 18f",
    "jmp 23b",
    "26:",
    "gpi_gone 0, 18f",
    "jmp 27f",
    // A call out of other code, with a caller like that of an earlier one.
    "17:",
    "gpi_again 0, 18f, 26b, 27f",
    "27:",
    "mov [rsp-72], r8",
    "mov [rsp-80], r9",
    "mov [rsp-88], r10",
    "mov qword ptr [rsp-96], 0",    // the frame need not be noted
    words_offset!("rdx"),
    thread_word!("mov rdi, ", "[rdx+{cells}]"),
    "mov r8, rsp",
    "xor r10d, r10d",
    "jmp 19f",
    "18:",
    "mov rsi, [rsp-64]",
    "mov r11, [rsp-8]",
    // A call out of unhooked code, as in `cells::fill`.
    "12:",
    "gpi_caller 0, 7f",
    "bt qword ptr [rsp-96], {made_bit}",
    "jc 14f",
    "19:",
    "sub rsi, r8",
    "shr rsi, 3",
    "inc rsi",                      // the link
    "xor r8, [rdi+{window_word}]",
    "cmp r8, {window}",
    "jae 13f",
    "lea r8, [rdi+r8*2]",           // the frame's cell
    "cmp byte ptr [r8+{state}], {free}",
    "jne 13f",
    "cmp rsi, {distance}",
    "ja 13f",
    "gpi_both 13f",
    "cmp qword ptr [rsp-96], 0",
    "je 20f",
    "lea r9, [rsp+rsi*8-8]",        // the caller's CFA
    "gpi_note",
    "20:",
    "shl rsi, 32",
    "mov edx, eax",
    "or rsi, rdx",
    "mov [r8+{function}], rsi",
    "mov r11, [rsp-8]",
    "mov [r8+{return_address}], r11",
    words_offset!("rdx"),
    thread_word!("mov ", "[rdx+{last}], rsp"),
    "gpi_next {exit_label}, 0, {call_len}",
    "gpi_looked 0",
    "gpi_called 0",
    "mov r11, [rsp-24]",
    "mov rax, [rsp-16]",
    "jmp [rsp-32]",
    "13:",
    "gpi_called 0",
    "mov r11, [rsp-8]",
    "jmp 7f",
    // A call out of code that was made at run time: it gets no cell.
    "14:",
    "imul edi, eax, {record}",
    "add rdi, [rip+{agent}+{functions}]",
    "test byte ptr [rdi+{flags}], {begins}",
    "jnz 13b",
    "gpi_both 13b",
    "mov r9, rsi",
    "gpi_note",
    words_offset!("rdx"),
    thread_word!("mov ", "[rdx+{last}], rsi"),
    "gpi_next {body}, 0",
    "gpi_looked 0",
    "gpi_called 0",
    "lea rsp, [rsp-8]",
    ".cfi_def_cfa_offset 8",
    "mov r11, [rsp-16]",
    "mov rax, [rsp-8]",
    "jmp [rsp-24]",
    ".cfi_def_cfa_offset 0",
    // The return address is an exit label.
    "8:",
    "gpi_tail 0, 9f",
    "gpi_next {body}, 0",
    "gpi_looked 0",
    "mov rsi, [rsp-64]",
    "lea rsp, [rsp-8]",
    ".cfi_def_cfa_offset 8",
    "mov r11, [rsp-16]",
    "mov rax, [rsp-8]",
    "jmp [rsp-24]",
    ".cfi_def_cfa_offset 0",
    "9:",
    "mov rsi, [rsp-64]",
    "mov r11, [rsp-8]",
    "7:",
    "gpi_looked 0",
    "lea rsp, [rsp-128]",
    ".cfi_def_cfa_offset 128",
    "gpi_save",
    "gpi_arguments",
    "call {known}",
    "test rax, rax",
    "jz 3f",
    "2:",                           // rax = target, rdx = way
    "mov [rbp+160], rax",           // CFA-32
    "cmp rdx, {as_body}",
    ".cfi_remember_state",
    "gpi_restore",                  // pops keep the flags
    "lea rsp, [rsp+128]",
    ".cfi_def_cfa_offset 0",
    "mov r11, [rsp-24]",
    "je 4f",
    "jb 5f",
    "mov rax, [rsp-16]",
    "5:",
    "jmp [rsp-32]",
    "4:",                           // as at the function's entry
    "lea rsp, [rsp-8]",
    ".cfi_def_cfa_offset 8",
    "mov rax, [rsp-8]",
    "jmp [rsp-24]",
    ".cfi_restore_state",
    "3:",
    "gpi_save_vectors",
    "gpi_arguments",
    "call {rare}",
    "gpi_restore_vectors",
    "jmp 2b",
    ".cfi_endproc",
    concat!(".size gpi_", $prefix, "miss, . - gpi_", $prefix, "miss"),
    //
    ".p2align 4",
    concat!("gpi_", $prefix, "window:"),                    // rsp = CFA
    ".cfi_startproc",
    ".cfi_def_cfa_offset 0",
    "lea rsp, [rsp-128]",
    ".cfi_def_cfa_offset 128",
    "mov r11, [rsp+120]",           // the thunk may have lost it
    "gpi_save",
    "gpi_arguments",
    "call {occupied}",
    "test rax, rax",
    "jnz 2b",
    "gpi_save_vectors",
    "gpi_arguments",
    "call {enter}",
    "gpi_restore_vectors",
    "jmp 2b",
    ".cfi_endproc",
    concat!(".size gpi_", $prefix, "window, . - gpi_", $prefix, "window"),
    //
    ".p2align 4",
    concat!("gpi_", $prefix, "miss_entry:"),              // rsp = CFA - 8
    ".cfi_startproc",
    "gpi_look 8",
    "gpi_label 8f",
    "gpi_set",
    "gpi_way 0, 15f",
    "10:",
    "inc qword ptr [rcx+rdx+{count}]",
    "2:",
    "gpi_next {resume}, 8",
    "gpi_looked 8",
    "mov r11, [rsp-16]",
    "jmp [rsp-24]",
    "15:",
    "gpi_site 8",
    "ja 21f",
    // A call out of unhooked code, of a function that gets no cell, with a caller like that of an earlier one.
    "gpi_again 8, 18f, 22f, 23f",
    "23:",
    "gpi_set",
    "gpi_way 0, 24f",
    "25:",
    "inc qword ptr [rcx+rdx+{count}]",
    "gpi_next {resume}, 8",
    "mov rsi, [rsp-56]",
    "gpi_looked 8",
    "mov r11, [rsp-16]",
    "jmp [rsp-24]",
    "21:",
    "mov rsi, [rsp-56]",
    "gpi_way 8, 12f",
    "jmp 10b",
    "24:",
    "gpi_way 8, 18f",
    "jmp 25b",
    "22:",
    "gpi_gone 8, 18f",
    "jmp 23b",
    "18:",
    "mov rsi, [rsp-56]",
    "mov r11, [rsp]",
    // The same with another caller.
    "12:",
    "gpi_caller 8, 7f",
    thread_word!("mov ", "[rdx+{last}], rsi"),
    "gpi_both 13f",
    "cmp byte ptr [rip+{agent}+{both}], 0",
    "je 20f",
    "mov r9, rsi",
    "gpi_note",
    "20:",
    "gpi_called 8",
    "jmp 2b",
    "13:",
    "gpi_called 8",
    "mov r11, [rsp]",
    "jmp 7f",
    // As above. The frame is not moved: where the thunk continues, the caller's exit label is in its slot.
    "8:",
    "gpi_tail 8, 9f",
    "mov rsi, [rsp-56]",
    "jmp 2b",
    "9:",
    "mov rsi, [rsp-56]",
    "mov r11, [rsp]",
    "7:",
    "gpi_looked 8",
    "lea rsp, [rsp-120]",
    ".cfi_def_cfa_offset 128",
    "gpi_save",
    "gpi_arguments",
    "call {known}",
    "test rax, rax",
    "jnz 5f",
    "gpi_save_vectors",
    "gpi_arguments",
    "call {rare}",
    "gpi_restore_vectors",
    "5:",
    "mov [rbp+160], rax",           // CFA-32
    "gpi_restore",
    "lea rsp, [rsp+120]",
    ".cfi_def_cfa_offset 8",
    "mov r11, [rsp-16]",
    "jmp [rsp-24]",
    ".cfi_endproc",
    concat!(".size gpi_", $prefix, "miss_entry, . - gpi_", $prefix, "miss_entry"),
    //
    // Assigns a tail call's slot.
    ".p2align 4",
    concat!("gpi_", $prefix, "tail:"),                    // rsp = CFA - 8, eax = index
    ".cfi_startproc",
    "lea rsp, [rsp-120]",
    ".cfi_def_cfa_offset 128",
    "gpi_save",
    "gpi_save_vectors",
    "mov edi, [rbp-8]",
    "call {tail}",
    concat!(".globl gpi_", $prefix, "tail_called"),
    concat!(".hidden gpi_", $prefix, "tail_called"),
    concat!("gpi_", $prefix, "tail_called:"),
    "gpi_restore_vectors",
    "mov [rbp+160], rax",           // CFA-32
    "gpi_restore",
    "lea rsp, [rsp+120]",
    ".cfi_def_cfa_offset 8",
    "mov r11, [rsp-16]",
    "mov rax, [rsp-8]",
    "jmp [rsp-24]",
    ".cfi_endproc",
    concat!(".size gpi_", $prefix, "tail, . - gpi_", $prefix, "tail"),
    //
    // The function's results may be in any register except r11, whose old value is at CFA-16.
    ".p2align 4",
    concat!("gpi_", $prefix, "exit:"),                    // rsp = CFA
    ".cfi_startproc",
    ".cfi_def_cfa_offset 0",
    ".cfi_undefined rip",
    "lea rsp, [rsp-128]",
    ".cfi_def_cfa_offset 128",
    "gpi_save",
    "gpi_arguments",
    "mov rdi, rdx",
    "call {exit}",
    "mov [rbp+184], rax",           // CFA-8: the return slot
    "gpi_restore",
    "lea rsp, [rsp+120]",           // rsp = CFA - 8
    ".cfi_def_cfa_offset 8",
    "mov r11, [rsp-8]",             // CFA-16
    "mov rax, [rsp-16]",            // CFA-24
    "ret",
    ".cfi_endproc",
    concat!(".size gpi_", $prefix, "exit, . - gpi_", $prefix, "exit"),
    ".if {is_libraries} == 0",
    // An interned frame returns. In: rsp = CFA - 8, where the address behind the label's call is. Results may be in any register.
    ".p2align 4",
    ".globl gpi_interned",
    ".hidden gpi_interned",
    ".type gpi_interned, @function",
    "gpi_interned:",
    ".cfi_startproc",
    ".cfi_undefined rip",
    "mov [rsp-8], r11",
    "mov [rsp-16], rax",
    "lea rsp, [rsp-120]",
    ".cfi_def_cfa_offset 128",
    "gpi_save",
    "gpi_arguments",
    "mov rdi, [rdx-8]",
    "and rdi, -{label_len}",
    "mov [rdx-8], rdi",
    "mov rsi, rdx",
    "call {returns}",
    "mov [rbp+160], rax",           // CFA-32
    "gpi_restore",
    "lea rsp, [rsp+128]",           // rsp = CFA
    ".cfi_def_cfa_offset 0",
    "mov r11, [rsp-16]",
    "mov rax, [rsp-24]",
    "jmp [rsp-32]",
    ".cfi_endproc",
    ".size gpi_interned, . - gpi_interned",
    ".endif",
    concat!(".globl gpi_", $prefix, "end"),
    concat!(".hidden gpi_", $prefix, "end"),
    concat!("gpi_", $prefix, "end:"),
    // The other set of gates defines these macros again.
    ".irp name, set, way, find, recent, both, look, looked, tail, next, frame, exists, alive, bare, vain, site, noted, again, gone, note, caller, called, label, save, arguments, restore, save_vectors, restore_vectors",
    ".purgem gpi_\\name",
    ".endr",
    agent = sym $facts,
    other_agent = sym $other_facts,
    is_libraries = const $is_libraries,
    has_own = const 1 - $is_libraries,
    libraries = const LIBRARIES,
    no_caller = const (CALLER | NO_FUNCTION as u64) as i64,
    twice_bit = const TWICE.trailing_zeros(),
    own_bit = const OWN.trailing_zeros(),
    near = const NEAR,
    cell = const size_of::<Cell>(),
    other = const offset_of!(ThreadWords, $other),
    arena_lo = const offset_of!(GateFacts, arena_lo),
    arena_hi = const offset_of!(GateFacts, arena_hi),
    base = const offset_of!(GateFacts, base),
    labels = sym LABELS,
    page_shift = const PAGE.trailing_zeros(),
    functions = const offset_of!(GateFacts, functions),
    record = const size_of::<FunctionRecord>(),
    resume = const offset_of!(FunctionRecord, resume),
    body = const offset_of!(FunctionRecord, body),
    flags = const offset_of!(FunctionRecord, flags),
    begins = const BEGINS,
    block = const offset_of!(ThreadWords, block),
    cells = const offset_of!(ThreadWords, cells),
    window_word = const WINDOW_WORD,
    window = const WINDOW,
    function = const offset_of!(Cell, function),
    tail_bit = const TAIL.trailing_zeros(),
    hash = const RECENT_HASH,
    shift = const RECENT_SHIFT,
    ways_bits = const RECENT_WAYS.trailing_zeros(),
    recent = const RECENT,
    key = const offset_of!(Slot, key),
    count = const offset_of!(Slot, count),
    exit_label = const offset_of!(FunctionRecord, exit),
    call_len = const CALL_LEN,
    both = const offset_of!(GateFacts, both),
    last = const offset_of!(ThreadWords, $last),
    stack_lo = const offset_of!(ThreadWords, stack_lo),
    stack_hi = const offset_of!(ThreadWords, stack_hi),
    clear_from = const offset_of!(ThreadWords, clear_from),
    clear_to = const offset_of!(ThreadWords, clear_to),
    vain = const offset_of!(ThreadWords, vain),
    bare = const offset_of!(ThreadWords, bare),
    much = const clear::MUCH,
    contents = const offset_of!(BlockHeader, newest) + $is_libraries * size_of::<Newest>() + offset_of!(Newest, contents),
    slots = const offset_of!(BlockHeader, newest) + $is_libraries * size_of::<Newest>() + offset_of!(Newest, slots),
    newest_mask = const NEWEST - 1,
    flags_bits = const u64::BITS - sites::MADE.trailing_zeros(),
    made_bit = const sites::MADE.trailing_zeros(),
    return_address = const offset_of!(Cell, return_address),
    link = const offset_of!(Cell, link),
    left = const LEFT,
    state = const offset_of!(Cell, link) + 3,
    free = const FREE >> 24,
    interned = const INTERNED >> 24,
    distance = const DISTANCE,
    caller_bit = const CALLER.trailing_zeros(),
    root = const ROOT as i64,
    sites = sym sites::SITES,
    sites_mask = const sites::SITES_LEN - 1,
    as_body = const BODY,
    known = sym arcs::known,
    rare = sym arcs::rare,
    tail = sym arcs::$tail,
    occupied = sym cells::occupied,
    enter = sym cells::enter,
    exit = sym cells::exit,
    returns = sym cells::returns,
    label_len = const LABEL_LEN,
    labels_end = const LABELS_AT + INTERNED_LABELS as usize * LABEL_LEN,
);
    };
}

gates!("", GATE_FACTS, LIBRARY_GATE_FACTS, 0, last, library_last, "jae", "jb", tail);
gates!("library_", LIBRARY_GATE_FACTS, GATE_FACTS, 1, library_last, last, "jb", "jae", library_tail);

unsafe extern "C" {
    pub(crate) fn gpi_miss();
    pub(crate) fn gpi_miss_entry();
    pub(crate) fn gpi_window();
    pub(crate) fn gpi_exit();
    pub(crate) fn gpi_interned();
    pub(crate) fn gpi_tail();
    pub(crate) fn gpi_library_miss();
    pub(crate) fn gpi_library_miss_entry();
    pub(crate) fn gpi_library_window();
    pub(crate) fn gpi_library_exit();
    pub(crate) fn gpi_library_tail();
}
