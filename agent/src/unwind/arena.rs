//! Answers unwinders that ask for the unwind information of an address: with the arena's own, if the address lies in
//! it.
#![allow(unsafe_code, reason = "functions of the C library are defined, and called by their addresses")]

use crate::os::frame_table;
use crate::os::loaded::{self, Object};
use crate::os::lookup;
use crate::os::own_image;
use crate::program::agent::Agent;
use crate::program::interned;
use crate::program::libraries;
use crate::program::module::Module;
use crate::unwind::library;
use crate::unwind::unwinder::{ITERATE, dynamic_linker};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{
    ArenaHeader, CALL_LEN, CALLBACK_JUMP, CALLBACK_STUB, ENTRY_ONLY, EXIT_JUMPS, FRAMED, Frame,
    FunctionRecord, ISLAND, NOTE, SKIPS,
};
use linux_raw_sys::elf;

/// Returns the state of the stack at an address in the arena. For a frame that is suspended in a call, unwinders ask
/// for the byte before its return address, here the last one of the thunk's `call`.
fn frame_at(module: &Module, pc: u64) -> Frame {
    if module.in_copies(pc) {
        return Frame::Copied;
    }
    // The byte before the first label is asked for as well.
    if interned::at(pc).or_else(|| interned::at(pc + 1)).is_some() {
        return Frame::Interned;
    }
    let at = pc.wrapping_sub(module.arena_lo) as u32;
    if at >= module.tail_code {
        return if module.fills_cell_at(pc) { Frame::Popped } else { Frame::Called };
    }
    if at >= module.stubs {
        let number = (at - module.stubs).checked_div(module.stub_len).unwrap_or(0);
        let inside = (at - module.stubs).checked_rem(module.stub_len).unwrap_or(0);
        let is_called = module.functions.get(number as usize).is_some_and(|record| {
            record.flags & ENTRY_ONLY != 0 || record.is_for_callbacks() && inside < CALLBACK_STUB
        });
        return if is_called { Frame::Called } else { Frame::Popped };
    }
    if u64::from(at) < (size_of::<ArenaHeader>() + EXIT_JUMPS) as u64 {
        // The arena's first code is the jumps to the slow path of exits.
        return Frame::Left;
    }
    let at = pc.wrapping_sub(module.base) as u32;
    // The address is in the thunk before the first body that follows the address, or in the code before that thunk:
    // the body before it, or the start of the arena.
    let number = module.functions.partition_point(|record| record.body <= at);
    let record = match module.functions.get(number) {
        Some(record) if at >= record.thunk => record,
        _ => {
            let before = number.checked_sub(1).and_then(|before| module.functions.get(before));
            if before.is_some_and(|record: &FunctionRecord| record.flags & FRAMED != 0) {
                return Frame::Moved;
            }
            return Frame::Called;
        }
    };
    if record.flags & ENTRY_ONLY != 0 {
        return Frame::Called;
    }
    if at >= record.exit - 1 {
        let before_body = record.body - at;
        return match before_body.saturating_sub(NOTE).div_ceil(ISLAND) {
            0..=1 => Frame::Left,
            // The first island: such a thunk has not popped the return address yet.
            3 if record.is_for_callbacks() => Frame::Called,
            2..=3 => Frame::Popped,
            _ if before_body <= u32::from(record.pushed) => Frame::Called,
            _ => Frame::Left,
        };
    }
    let jumps = record.exit - CALL_LEN - CALLBACK_JUMP..record.exit - CALL_LEN;
    let is_popped = at >= record.thunk + u32::from(record.popped);
    let is_pushed =
        record.is_for_callbacks() && jumps.contains(&at) || record.flags & SKIPS != 0 && skips_at(pc);
    if is_popped && !is_pushed { Frame::Popped } else { Frame::Called }
}

/// Returns whether the instruction at an address in a thunk, behind its `pop`, is the jump with which it leads a call to the body that
/// gets no cell: `jmp rel32`, directly after `lea rsp, [rsp-8]`.
fn skips_at(pc: u64) -> bool {
    const CODE: [u8; 6] = [0x48, 0x8d, 0x64, 0x24, 0xf8, 0xe9];
    let jump = pc.wrapping_sub(CODE.len() as u64 - 1) as *const [u8; CODE.len()];
    // SAFETY: the thunk is in the arena, which is readable, and its `pop` with the code before it is longer.
    unsafe { jump.read() == CODE }
}

/// Returns whether the table of caves describes an address: a jump that has replaced instructions of another function.
fn is_cave(module: &Module, pc: u64) -> bool {
    let table = module.frame_table(Frame::Cave);
    // SAFETY: the plan has made the table, which is in the arena.
    let Some((start, description)) = (unsafe { frame_table::find(table, pc) }) else { return false };
    // SAFETY: the fourth word of a description is the length of the code that it describes.
    let len = unsafe { *((description + 12) as *const u32) };
    pc.wrapping_sub(start) < u64::from(len)
}

/// Returns the module in whose arena an address is.
fn with_arena(program: &'static Module, pc: u64) -> Option<&'static Module> {
    let is_own = program.in_arena(pc) || program.in_copies(pc);
    if is_own { Some(program) } else { libraries::with_arena(pc) }
}

/// # Safety
/// As glibc's function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn _dl_find_object(pc: u64, result: *mut Object) -> i32 {
    let program = &Agent::get().program;
    let arena = with_arena(program, pc).map(|module| (module, frame_at(module, pc)));
    let cave = || {
        let module =
            Some(program).filter(|program| program.in_text(pc)).or_else(|| libraries::with_return(pc));
        module.filter(|module| is_cave(module, pc)).map(|module| (module, Frame::Cave))
    };
    if let Some((module, frame)) = arena.or_else(cave) {
        let object = Object {
            flags: 0,
            start: module.arena_lo,
            end: module.copies_hi,
            link_map: 0,
            eh_frame: module.frame_table(frame),
            reserved: [0; 7],
        };
        // SAFETY: the caller's result is writable, as glibc's function demands.
        unsafe { *result = object };
        return 0;
    }
    if let Some((start, end, eh_frame)) = library::unlisted(pc) {
        let object = Object { flags: 0, start, end, link_map: 0, eh_frame, reserved: [0; 7] };
        // SAFETY: the caller's result is writable, as glibc's function demands.
        unsafe { *result = object };
        return 0;
    }
    // SAFETY: the caller's result is writable, as glibc's function demands.
    unsafe { loaded::find_object(pc, result) }
}

/// struct dl_phdr_info (link.h). Later versions of glibc have more fields.
#[repr(C)]
struct Info {
    bias: u64,
    name: *const u8,
    headers: *const [u64; 7],
    count: u16,
}

type Visitor = unsafe extern "C" fn(*mut Info, usize, *mut c_void) -> i32;

/// Bytes of the structure that are copied. This is more than any version of it has.
const INFO_BYTES: usize = 128;

struct Visit {
    visitor: Visitor,
    data: *mut c_void,
    /// The structure of the agent's own library, or of a standalone program, and its size in bytes, once it was there.
    own: [u64; INFO_BYTES / 8],
    own_size: usize,
}

/// Returns what `is_wanted` returns for the address that an unwinder looks for with `dl_iterate_phdr`. The unwinder does not pass it
/// to that function, but keeps it in the structure that it passes to its callback, which is in its frame: libgcc's
/// and libunwind's (`ip`) have it first, LLVM's has it third. Returns `None` if the caller is not such an unwinder.
fn asked<T>(data: *const c_void, is_wanted: impl Fn(u64) -> Option<T>) -> Option<T> {
    const WORDS: usize = 4;
    const NEAR: u64 = 4096;
    let here = 0_u64;
    let (here, data) = (&raw const here as u64, data as u64);
    if data < here || data - here > NEAR || !data.is_multiple_of(8) {
        return None;
    }
    // SAFETY: the words are on the stack between this frame and the oldest one, which is further up than that: the
    // library's dl_iterate_phdr and its caller are in between, and the structure is in the caller's frame.
    (0..WORDS).map(|n| unsafe { *(data as *const u64).add(n) }).find_map(is_wanted)
}

/// Returns whether the callback is that of nongnu.org's libunwind. It uses a frame's CFA as its caller's stack
/// pointer, and does not need the CFA to distinguish frames.
fn is_libunwind(visitor: u64) -> bool {
    /// The last callback of libunwind that was found, which is probably the only one.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    if KNOWN.load(Ordering::Relaxed) == visitor {
        return true;
    }
    let dynamic_linker = dynamic_linker();
    let step = lookup::function(dynamic_linker, b"_ULx86_64_step");
    let (lo, hi) = lookup::text_around(dynamic_linker, step);
    let is = step != 0 && (lo..hi).contains(&visitor);
    if is {
        KNOWN.store(visitor, Ordering::Relaxed);
    }
    is
}

/// Returns the length in bytes of an .eh_frame_hdr: a version and three encodings, the address of .eh_frame, the number of
/// pairs, and the pairs of words.
///
/// # Safety
/// One with encodings of four bytes must be there, as the plan and the linker make it.
unsafe fn table_len(table: u64) -> u64 {
    const BEFORE_PAIRS: u64 = 12;
    // SAFETY: see above; the number of pairs is the third word.
    BEFORE_PAIRS + 8 * u64::from(unsafe { *((table + 8) as *const u32) })
}

/// Calls the callback of `dl_iterate_phdr`, but not for the agent's own library. That comes after all others: a program may
/// demand that a certain library is the first one (AddressSanitizer does).
unsafe extern "C" fn visit(info: *mut Info, size: usize, visit: *mut c_void) -> i32 {
    // SAFETY: `dl_iterate_phdr` below has passed its `Visit`, which still exists. The C library passes a struct
    // dl_phdr_info that is `size` bytes long, and the visitor is the program's, which expects such structures.
    unsafe {
        let visit = &mut *visit.cast::<Visit>();
        // A standalone program's list does not contain the agent's library.
        let is_standalone = cfg!(feature = "standalone");
        let last = if is_standalone { Agent::get().program.load_bias } else { own_image::start() };
        if (*info).bias == last {
            visit.own_size = size.min(INFO_BYTES);
            core::ptr::copy_nonoverlapping(info.cast::<u8>(), visit.own.as_mut_ptr().cast(), visit.own_size);
            if !is_standalone {
                return 0;
            }
        }
        (visit.visitor)(info, size, visit.data)
    }
}

/// Calls the callback of `dl_iterate_phdr` for the agent's own library, and then for the arena.
///
/// # Safety
/// The visit must be that of a call of `dl_iterate_phdr`, which has come to the library unless that is not listed.
unsafe fn visit_own(visit: &mut Visit) -> i32 {
    const PT_LOAD: u64 = elf::PT_LOAD as u64;
    const PT_GNU_EH_FRAME: u64 = 0x6474_e550;
    const READ_EXECUTE: u64 = ((elf::PF_R | elf::PF_X) as u64) << 32;
    // SAFETY: the visitor is the program's, which expects such structures. The tables are the plan's.
    unsafe {
        let info = visit.own.as_mut_ptr().cast::<Info>();
        if !library::is_unlisted() {
            let answer = (visit.visitor)(info, visit.own_size, visit.data);
            if answer != 0 {
                return answer;
            }
        }
        let program = &Agent::get().program;
        let module = asked(visit.data, |pc| Some((pc, with_arena(program, pc)?)));
        let (start, end, table) = match asked(visit.data, library::unlisted).filter(|_| module.is_none()) {
            Some(library) => library,
            None => {
                let frame = match module.map_or(Frame::Left, |(pc, module)| frame_at(module, pc)) {
                    Frame::Left if is_libunwind(visit.visitor as usize as u64) => Frame::LeftPlain,
                    Frame::Interned if is_libunwind(visit.visitor as usize as u64) => Frame::InternedPlain,
                    frame => frame,
                };
                let module = module.map_or(program, |(_, module)| module);
                (module.arena_lo, module.copies_hi, module.frame_table(frame))
            }
        };
        if start == end {
            return 0;
        }
        // LLVM's unwinder, since version 22, reads nothing of a table that is said to be empty.
        let table_len = table_len(table);
        let (len, table) = (end - start, table - start);
        // struct Elf64_Phdr: type and flags, offset, vaddr, paddr, filesz, memsz, align.
        let headers = [
            [PT_LOAD | READ_EXECUTE, 0, 0, 0, len, len, 4096],
            [PT_GNU_EH_FRAME | READ_EXECUTE, table, table, table, table_len, table_len, 4],
        ];
        ((*info).bias, (*info).headers, (*info).count) = (start, headers.as_ptr(), 2);
        // The structure is declared to end before the counts of libraries, by which libgcc finds out whether it may
        // keep the result: the next request may have another answer.
        const BEFORE_COUNTS: usize = 32;
        (visit.visitor)(info, visit.own_size.min(BEFORE_COUNTS), visit.data)
    }
}

/// # Safety
/// As glibc's function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn dl_iterate_phdr(visitor: Visitor, data: *mut c_void) -> i32 {
    type Iterate = unsafe extern "C" fn(Visitor, *mut c_void) -> i32;
    let mut pass = Visit { visitor, data, own: [0; INFO_BYTES / 8], own_size: 0 };
    let answer = match ITERATE.load(Ordering::Relaxed) {
        0 => 0,
        // SAFETY: the address is that of glibc's function, which has this type.
        real => unsafe { core::mem::transmute::<u64, Iterate>(real)(visit, (&raw mut pass).cast()) },
    };
    if answer != 0 {
        return answer;
    }
    if pass.own_size == 0 {
        if !library::is_unlisted() {
            return answer;
        }
        // The library has no entry; that of the arena begins with what is there: no name, and four words.
        const NAME: usize = 1;
        pass.own[NAME] = c"".as_ptr() as u64;
        pass.own_size = size_of::<Info>();
    }
    // SAFETY: the iteration has come to the library, or there is no entry of it.
    unsafe { visit_own(&mut pass) }
}
