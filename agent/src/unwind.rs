//! Unwinders on their way through thunks.
//!
//! The return slot of a hooked frame holds an exit label. An unwinder that comes by it looks for a
//! description of that code; the names that it asks by, `_dl_find_object` (since glibc 2.35) and
//! `dl_iterate_phdr`, are defined here, and the program and its libraries, the unwinder's among them, find
//! these definitions first. So nothing has to be taken back before somebody unwinds, nor put in place
//! again behind the catch: the tables of the arena (`agent/plan/src/cfi.rs`) lead from the thunk to the
//! caller. That holds for every way to unwind: exceptions, panics, pthread_exit, cancellation.
//!
//! Two things remain: a backtrace must not show thunks, so `_Unwind_Backtrace` and `backtrace` are passed on
//! with a filter; `_Unwind_GetCFA` without what sets thunks apart; and where an exception lands, the frames that it has left are marked, as a longjmp's are
//! (`_Unwind_SetIP`). A program that has the unwinder inside itself calls its own functions of these names:
//! the plan leads them here (`gpi_backtrace`, `gpi_land`).
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::cells;
use crate::lookup;
use crate::sys;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{ArenaHeader, ENTRY_ONLY, EXIT_JUMPS, FRAMED, Frame};

/// AT_BASE, for look-ups in libraries that are loaded late.
static DYNAMIC_LINKER: AtomicU64 = AtomicU64::new(0);

/// The functions that are passed on to; 0: not found (yet).
static FIND_OBJECT: AtomicU64 = AtomicU64::new(0);
static ITERATE: AtomicU64 = AtomicU64::new(0);
static BACKTRACE: AtomicU64 = AtomicU64::new(0);
static UNWIND_BACKTRACE: AtomicU64 = AtomicU64::new(0);
static GET_IP: AtomicU64 = AtomicU64::new(0);
static SET_IP: AtomicU64 = AtomicU64::new(0);
static GET_CFA: AtomicU64 = AtomicU64::new(0);
/// The code of the library that these are in.
static UNWINDER_LO: AtomicU64 = AtomicU64::new(0);
static UNWINDER_HI: AtomicU64 = AtomicU64::new(0);

/// Finds what is loaded already.
pub(crate) fn prepare(dynamic_linker: u64) {
    DYNAMIC_LINKER.store(dynamic_linker, Ordering::Relaxed);
    for (place, name) in
        [(&FIND_OBJECT, &b"_dl_find_object"[..]), (&ITERATE, b"dl_iterate_phdr"), (&BACKTRACE, b"backtrace")]
    {
        place.store(lookup::function(dynamic_linker, name), Ordering::Relaxed);
    }
    find_unwinder();
}

/// The unwinder's library may be loaded late; who calls it has it loaded.
extern "C" fn find_unwinder() {
    let dynamic_linker = DYNAMIC_LINKER.load(Ordering::Relaxed);
    for (place, name) in [
        (&GET_IP, &b"_Unwind_GetIP"[..]),
        (&GET_CFA, b"_Unwind_GetCFA"),
        (&UNWIND_BACKTRACE, b"_Unwind_Backtrace"),
        (&SET_IP, b"_Unwind_SetIP"),
    ] {
        if place.load(Ordering::Relaxed) == 0 {
            place.store(lookup::function(dynamic_linker, name), Ordering::Relaxed);
        }
    }
    let (lo, hi) = lookup::text_around(dynamic_linker, GET_CFA.load(Ordering::Relaxed));
    UNWINDER_LO.store(lo, Ordering::Relaxed);
    UNWINDER_HI.store(hi, Ordering::Relaxed);
}

/// What the stack looks like at an address in the arena. Of a frame that waits in a call, unwinders ask for
/// the byte before its return address, here the last one of the thunk's `call`.
fn frame_at(agent: &Agent, pc: u64) -> Frame {
    let at = pc.wrapping_sub(agent.arena_lo) as u32;
    if at >= agent.tail_code {
        return Frame::Called;
    }
    if at >= agent.stubs {
        let entry_only = agent.function((at - agent.stubs) / agent.stub_len).flags & ENTRY_ONLY != 0;
        return if entry_only { Frame::Called } else { Frame::Popped };
    }
    let (mut lo, mut hi) = (0, agent.functions_count);
    while lo < hi {
        let middle = lo + (hi - lo) / 2;
        if agent.function(middle).body <= at {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    // The thunk before the first body behind the address, or what stands in front of that thunk: the body
    // before it, or what the arena begins with.
    let header = size_of::<ArenaHeader>() as u32;
    if lo == agent.functions_count || at < agent.function(lo).thunk {
        if lo > 0 && agent.function(lo - 1).flags & FRAMED != 0 {
            return Frame::Moved;
        }
        // The first code is the jumps to the slow path of exits.
        return if at < header + EXIT_JUMPS as u32 { Frame::Left } else { Frame::Called };
    }
    let record = agent.function(lo);
    if record.flags & ENTRY_ONLY != 0 {
        return Frame::Called;
    }
    if at >= record.exit - 1 {
        return if at >= record.body - u32::from(record.pushed) { Frame::Called } else { Frame::Left };
    }
    if at >= record.thunk + u32::from(record.popped) { Frame::Popped } else { Frame::Called }
}

/// Whether an address outside of the arena is described by the table of bodies: a jump that stands where
/// another function's instructions were.
fn is_cave(agent: &Agent, pc: u64) -> bool {
    let table = agent.frame_table(Frame::Moved);
    // SAFETY: an .eh_frame_hdr of the plan's making: twelve bytes, then pairs of words.
    let word = |at: u64| unsafe { *((table + at) as *const i32) };
    let wanted = pc.wrapping_sub(table) as i64;
    let (mut lo, mut hi) = (0, u64::from(word(8) as u32));
    while lo < hi {
        let middle = lo + (hi - lo) / 2;
        if i64::from(word(12 + 8 * middle)) <= wanted {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    if lo == 0 {
        return false;
    }
    let entry = 12 + 8 * (lo - 1);
    // The description's fourth word is the length of what it describes.
    let len = word(word(entry + 4) as u64 + 12);
    wanted < i64::from(word(entry)) + i64::from(len)
}

/// glibc's struct dl_find_object (bits/dl_find_object.h).
#[repr(C)]
struct Object {
    flags: u64,
    start: u64,
    end: u64,
    link_map: u64,
    eh_frame: u64,
    reserved: [u64; 7],
}

/// # Safety
/// As glibc's function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn _dl_find_object(pc: u64, result: *mut Object) -> i32 {
    let agent = Agent::get();
    let frame = if agent.in_arena(pc) {
        Some(frame_at(agent, pc))
    } else {
        (agent.in_text(pc) && is_cave(agent, pc)).then_some(Frame::Moved)
    };
    if let Some(frame) = frame {
        let object = Object {
            flags: 0,
            start: agent.arena_lo,
            end: agent.arena_hi,
            link_map: 0,
            eh_frame: agent.frame_table(frame),
            reserved: [0; 7],
        };
        // SAFETY: the caller's result.
        unsafe { *result = object };
        return 0;
    }
    type FindObject = unsafe extern "C" fn(u64, *mut Object) -> i32;
    match FIND_OBJECT.load(Ordering::Relaxed) {
        0 => -1,
        // SAFETY: glibc's function; the arguments are passed on.
        real => unsafe { core::mem::transmute::<u64, FindObject>(real)(pc, result) },
    }
}

/// Whether an address lies in a loaded object. Where nobody can be asked (glibc before 2.35), it is said to.
pub(crate) fn is_in_object(address: u64) -> bool {
    type FindObject = unsafe extern "C" fn(u64, *mut Object) -> i32;
    let mut object = Object { flags: 0, start: 0, end: 0, link_map: 0, eh_frame: 0, reserved: [0; 7] };
    match FIND_OBJECT.load(Ordering::Relaxed) {
        0 => true,
        // SAFETY: glibc's function, which takes no lock; the result is ours.
        real => unsafe { core::mem::transmute::<u64, FindObject>(real)(address, &raw mut object) == 0 },
    }
}

/// struct dl_phdr_info (link.h), of which there are longer ones.
#[repr(C)]
struct Info {
    bias: u64,
    name: *const u8,
    headers: *const [u64; 7],
    count: u16,
}

type Visitor = unsafe extern "C" fn(*mut Info, usize, *mut c_void) -> i32;

struct Visit {
    visitor: Visitor,
    data: *mut c_void,
}

/// The address in the arena that an unwinder looks for by `dl_iterate_phdr`. It has no way to tell us, but
/// keeps it in the structure that it passes to its callback, which is in its frame: libgcc's and libunwind's
/// (`ip`) begin with it, LLVM's has it third. None: it is somebody else, who wants no place in particular.
fn asked(agent: &Agent, data: *const c_void) -> Option<u64> {
    const WORDS: usize = 4;
    const NEAR: u64 = 4096;
    let here = 0_u64;
    let (here, data) = (&raw const here as u64, data as u64);
    if data < here || data - here > NEAR || !data.is_multiple_of(8) {
        return None;
    }
    // SAFETY: the stack between here and the oldest frame, which is further up than that: the library's
    // dl_iterate_phdr and its caller are in between, and the structure is in the caller's.
    (0..WORDS).map(|n| unsafe { *(data as *const u64).add(n) }).find(|&word| agent.in_arena(word))
}

/// Whether the callback is (nongnu) libunwind's. It takes a frame's CFA for its caller's stack pointer, and does
/// not need frames to be told apart by it.
fn is_libunwind(visitor: u64) -> bool {
    /// The last one that was found to be, which is likely the only one.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    if KNOWN.load(Ordering::Relaxed) == visitor {
        return true;
    }
    let dynamic_linker = DYNAMIC_LINKER.load(Ordering::Relaxed);
    let step = lookup::function(dynamic_linker, b"_ULx86_64_step");
    let (lo, hi) = lookup::text_around(dynamic_linker, step);
    let is = step != 0 && (lo..hi).contains(&visitor);
    if is {
        KNOWN.store(visitor, Ordering::Relaxed);
    }
    is
}

/// Calls `dl_iterate_phdr`'s callback, and once more for the arena behind our own library.
unsafe extern "C" fn visit(info: *mut Info, size: usize, visit: *mut c_void) -> i32 {
    const PT_LOAD: u64 = 1;
    const PT_GNU_EH_FRAME: u64 = 0x6474_e550;
    const READ_EXECUTE: u64 = 5 << 32;
    // SAFETY: `dl_iterate_phdr` below passed its own; the rest is passed on.
    unsafe {
        let visit = &*visit.cast::<Visit>();
        let answer = (visit.visitor)(info, size, visit.data);
        let agent = Agent::get();
        if answer != 0 || agent.arena_lo == agent.arena_hi || (*info).bias != own_start() {
            return answer;
        }
        let len = agent.arena_hi - agent.arena_lo;
        let asked = asked(agent, visit.data);
        let frame = match asked.map_or(Frame::Left, |pc| frame_at(agent, pc)) {
            Frame::Left if is_libunwind(visit.visitor as usize as u64) => Frame::LeftPlain,
            frame => frame,
        };
        let table = agent.frame_table(frame) - agent.arena_lo;
        // struct Elf64_Phdr: type and flags, offset, vaddr, paddr, filesz, memsz, align.
        let headers = [
            [PT_LOAD | READ_EXECUTE, 0, 0, 0, len, len, 4096],
            [PT_GNU_EH_FRAME | READ_EXECUTE, table, table, table, 0, 0, 4],
        ];
        let mut arena = [0_u64; 16];
        let size = size.min(size_of_val(&arena));
        core::ptr::copy_nonoverlapping(info.cast::<u8>(), arena.as_mut_ptr().cast(), size);
        let arena = arena.as_mut_ptr().cast::<Info>();
        ((*arena).bias, (*arena).headers, (*arena).count) = (agent.arena_lo, headers.as_ptr(), 2);
        // Said to end before the count of libraries, by which libgcc finds out that it may keep what it has
        // found: the next question may have another answer.
        const BEFORE_COUNTS: usize = 32;
        (visit.visitor)(arena, size.min(BEFORE_COUNTS), visit.data)
    }
}

/// # Safety
/// As glibc's function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn dl_iterate_phdr(visitor: Visitor, data: *mut c_void) -> i32 {
    type Iterate = unsafe extern "C" fn(Visitor, *mut c_void) -> i32;
    let mut pass = Visit { visitor, data };
    match ITERATE.load(Ordering::Relaxed) {
        0 => 0,
        // SAFETY: glibc's function.
        real => unsafe { core::mem::transmute::<u64, Iterate>(real)(visit, (&raw mut pass).cast()) },
    }
}

/// Our own library's extent.
fn own_start() -> u64 {
    let start: u64;
    #[cfg(not(test))]
    // SAFETY: the linker defines it.
    unsafe {
        core::arch::asm!("lea {}, [rip + __ehdr_start]", out(reg) start, options(nostack, pure, nomem));
    }
    #[cfg(test)]
    {
        start = 0;
    }
    start
}

fn own_end() -> u64 {
    let end: u64;
    #[cfg(not(test))]
    // SAFETY: the linker defines it.
    unsafe {
        core::arch::asm!("lea {}, [rip + _end]", out(reg) end, options(nostack, pure, nomem));
    }
    #[cfg(test)]
    {
        end = 0;
    }
    end
}

/// Whether a frame is there on our account: a backtrace does not show it.
fn is_ours(agent: &Agent, pc: u64) -> bool {
    agent.in_arena(pc) || (own_start()..own_end()).contains(&pc)
}

/// What `gpi_backtrace` keeps while the real function runs.
#[repr(C)]
struct Request {
    trace: unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32,
    argument: *mut c_void,
    get_ip: unsafe extern "C" fn(*mut c_void) -> u64,
}

/// `_Unwind_Backtrace`'s callback: passes on the program's own frames.
unsafe extern "C" fn filter(context: *mut c_void, request: *mut c_void) -> i32 {
    const URC_NO_REASON: i32 = 0;
    // SAFETY: `gpi_backtrace` passed its request; the context is the unwinder's.
    unsafe {
        let request = &*request.cast::<Request>();
        if is_ours(Agent::get(), (request.get_ip)(context)) {
            return URC_NO_REASON;
        }
        (request.trace)(context, request.argument)
    }
}

/// Marks the frames that an exception leaves for the one whose landing pad has been chosen: its callee's
/// CFA, its own stack pointer, is the context's.
unsafe extern "C" fn land(context: *mut c_void, get_cfa: unsafe extern "C" fn(*mut c_void) -> u64) {
    let here = 0_u8;
    // SAFETY: the unwinder's own function and context.
    cells::forget(&raw const here as u64, unsafe { get_cfa(context) });
}

macro_rules! offer {
    ($name:ident, $to:ident) => {
        /// # Safety
        /// As libgcc's function of that name.
        #[cfg(not(test))]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            core::arch::naked_asm!(concat!("jmp ", stringify!($to)));
        }
    };
}

offer!(_Unwind_Backtrace, gpi_unwind_backtrace);
offer!(_Unwind_GetCFA, gpi_get_cfa);
offer!(_Unwind_SetIP, gpi_set_ip);

/// glibc's, without our frames.
///
/// # Safety
/// As glibc's function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn backtrace(buffer: *mut u64, size: i32) -> i32 {
    type Backtrace = unsafe extern "C" fn(*mut u64, i32) -> i32;
    let agent = Agent::get();
    let room = if size < 1 << 20 { 2 * size + 2 } else { size };
    let bytes = (room.max(0) as u64 * 8).next_multiple_of(4096);
    let real = BACKTRACE.load(Ordering::Relaxed);
    if real == 0 {
        return 0;
    }
    // SAFETY: glibc's function. The program's buffer has room for `size` addresses, ours for `room`.
    unsafe {
        let real = core::mem::transmute::<u64, Backtrace>(real);
        let own = if size > 0 { sys::map_zeros(bytes, sys::PROT_READ | sys::PROT_WRITE).ok() } else { None };
        let all = own.map_or(buffer, |own| own as *mut u64);
        let found = real(all, if own.is_some() { room } else { size });
        let (mut from, mut to) = (0, 0);
        while from < found && to < size {
            let pc = *all.add(from as usize);
            if !is_ours(agent, pc) {
                *buffer.add(to as usize) = pc;
                to += 1;
            }
            from += 1;
        }
        if let Some(own) = own {
            let _ = sys::munmap(own, bytes);
        }
        to
    }
}

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden _end",
    ".hidden gpi_backtrace, gpi_land",
    ".globl gpi_backtrace, gpi_land",
    ".hidden gpi_unwind_backtrace, gpi_set_ip, gpi_get_cfa",
    ".globl gpi_unwind_backtrace, gpi_set_ip, gpi_get_cfa",
    //
    ".p2align 4",
    ".type gpi_unwind_backtrace, @function",
    "gpi_unwind_backtrace:",
    ".cfi_startproc",
    "mov r11, [rip + {unwind_backtrace}]",
    "test r11, r11",
    "jz 3f",
    "2:",
    "mov r10, [rip + {get_ip}]",
    "test r10, r10",
    "jnz gpi_backtrace",
    "jmp r11",
    "3:",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {find}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "mov r11, [rip + {unwind_backtrace}]",
    "test r11, r11",
    "jnz 2b",
    "mov eax, 5", // _URC_END_OF_STACK: there is no unwinder
    "ret",
    ".cfi_endproc",
    ".size gpi_unwind_backtrace, . - gpi_unwind_backtrace",
    //
    // In: r11 = the real function, r10 = its _Unwind_GetIP.
    ".p2align 4",
    ".type gpi_backtrace, @function",
    "gpi_backtrace:",
    ".cfi_startproc",
    "sub rsp, 24",
    ".cfi_adjust_cfa_offset 24",
    "mov [rsp], rdi",
    "mov [rsp+8], rsi",
    "mov [rsp+16], r10",
    "lea rdi, [rip + {filter}]",
    "mov rsi, rsp",
    "call r11",
    "add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "ret",
    ".cfi_endproc",
    ".size gpi_backtrace, . - gpi_backtrace",
    //
    ".p2align 4",
    ".type gpi_set_ip, @function",
    "gpi_set_ip:",
    ".cfi_startproc",
    "mov r11, [rip + {set_ip}]",
    "test r11, r11",
    "jz 3f",
    "2:",
    "mov r10, [rip + {get_cfa}]",
    "test r10, r10",
    "jnz gpi_land",
    "jmp r11",
    "3:",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call {find}",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "mov r11, [rip + {set_ip}]",
    "jmp 2b",
    ".cfi_endproc",
    ".size gpi_set_ip, . - gpi_set_ip",
    //
    // In: r11 = the real function, r10 = its _Unwind_GetCFA.
    ".p2align 4",
    ".type gpi_land, @function",
    "gpi_land:",
    ".cfi_startproc",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    "mov rsi, r10",
    "call {land}",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "jmp r11",
    ".cfi_endproc",
    ".size gpi_land, . - gpi_land",
    //
    // The CFA without what sets thunks apart: see agent/plan/src/cfi.rs. (LuaJIT's personality takes it for
    // the address of its frame.)
    ".p2align 4",
    ".type gpi_get_cfa, @function",
    "gpi_get_cfa:",
    ".cfi_startproc",
    "mov r11, [rip + {get_cfa}]",
    "test r11, r11",
    "jnz 4f",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "call {find}",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "mov r11, [rip + {get_cfa}]",
    "4:",
    // The unwinder itself tells frames apart by it.
    "mov rax, [rsp]",
    "cmp rax, [rip + {unwinder_lo}]",
    "jb 5f",
    "cmp rax, [rip + {unwinder_hi}]",
    "jae 5f",
    "jmp r11",
    "5:",
    "sub rsp, 8",
    ".cfi_adjust_cfa_offset 8",
    "call r11",
    "add rsp, 8",
    ".cfi_adjust_cfa_offset -8",
    "and rax, -8",
    "ret",
    ".cfi_endproc",
    ".size gpi_get_cfa, . - gpi_get_cfa",
    find = sym find_unwinder,
    filter = sym filter,
    land = sym land,
    unwind_backtrace = sym UNWIND_BACKTRACE,
    get_ip = sym GET_IP,
    set_ip = sym SET_IP,
    get_cfa = sym GET_CFA,
    unwinder_lo = sym UNWINDER_LO,
    unwinder_hi = sym UNWINDER_HI,
);

#[cfg(not(test))]
unsafe extern "C" {
    pub(crate) fn gpi_backtrace();
    pub(crate) fn gpi_land();
}

#[cfg(test)]
pub(crate) fn gpi_backtrace() {}
#[cfg(test)]
pub(crate) fn gpi_land() {}
