//! Answers unwinders that look up the unwind information of an address: if the address lies in the arena,
//! they get the arena's own tables.
#![allow(unsafe_code, reason = "functions of the C library are defined, and called by their addresses")]

use crate::os::loaded::{self, Object};
use crate::os::lookup;
use crate::program::agent::Agent;
use crate::unwind::library;
use crate::unwind::unwinder::{ITERATE, dynamic_linker};
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{
    ArenaHeader, ENTRY_ONLY, EXIT_JUMPS, FRAMED, Frame, FunctionRecord, ISLAND, NOTE,
};
use linux_raw_sys::elf;

/// What the stack looks like at an address in the arena. Of a frame that waits in a call, unwinders ask for
/// the byte before its return address, here the last one of the thunk's `call`.
fn frame_at(agent: &Agent, pc: u64) -> Frame {
    if agent.in_copies(pc) {
        return Frame::Copied;
    }
    let at = pc.wrapping_sub(agent.arena_lo) as u32;
    if at >= agent.tail_code {
        return Frame::Called;
    }
    if at >= agent.stubs {
        let number = (at - agent.stubs).checked_div(agent.stub_len).unwrap_or(0);
        let entry_only =
            agent.functions.get(number as usize).is_some_and(|record| record.flags & ENTRY_ONLY != 0);
        return if entry_only { Frame::Called } else { Frame::Popped };
    }
    // The thunk before the first body behind the address, or what stands in front of that thunk: the body
    // before it, or what the arena begins with.
    let number = agent.functions.partition_point(|record| record.body <= at);
    let record = match agent.functions.get(number) {
        Some(record) if at >= record.thunk => record,
        _ => {
            let before = number.checked_sub(1).and_then(|before| agent.functions.get(before));
            if before.is_some_and(|record: &FunctionRecord| record.flags & FRAMED != 0) {
                return Frame::Moved;
            }
            // The first code is the jumps to the slow path of exits.
            let jumps_end = (size_of::<ArenaHeader>() + EXIT_JUMPS) as u32;
            return if at < jumps_end { Frame::Left } else { Frame::Called };
        }
    };
    if record.flags & ENTRY_ONLY != 0 {
        return Frame::Called;
    }
    if at >= record.exit - 1 {
        let before_body = record.body - at;
        return match before_body.saturating_sub(NOTE).div_ceil(ISLAND) {
            0..=1 => Frame::Left,
            2..=3 => Frame::Popped,
            _ if before_body <= u32::from(record.pushed) => Frame::Called,
            _ => Frame::Left,
        };
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

/// # Safety
/// As glibc's function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
unsafe extern "C" fn _dl_find_object(pc: u64, result: *mut Object) -> i32 {
    let agent = Agent::get();
    let frame = if agent.in_arena(pc) || agent.in_copies(pc) {
        Some(frame_at(agent, pc))
    } else {
        (agent.in_text(pc) && is_cave(agent, pc)).then_some(Frame::Moved)
    };
    if let Some(frame) = frame {
        let object = Object {
            flags: 0,
            start: agent.arena_lo,
            end: agent.copies_hi,
            link_map: 0,
            eh_frame: agent.frame_table(frame),
            reserved: [0; 7],
        };
        // SAFETY: the caller's result is writable, as glibc's function demands.
        unsafe { *result = object };
        return 0;
    }
    // SAFETY: the caller's result is writable, as glibc's function demands.
    unsafe { loaded::find_object(pc, result) }
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

/// The address in the arena that an unwinder looks for by `dl_iterate_phdr`. The call does not pass the
/// address, but the unwinder keeps it in the structure that it passes to its callback, which is in its stack
/// frame: the structures of libgcc and libunwind (`ip`) begin with it, and LLVM's has it as the third word.
/// Returns `None` if the caller is not an unwinder that looks for an address.
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
    (0..WORDS)
        .map(|n| unsafe { *(data as *const u64).add(n) })
        .find(|&word| agent.in_arena(word) || agent.in_copies(word))
}

/// Whether the callback is (nongnu) libunwind's. It takes a frame's CFA for its caller's stack pointer, and does
/// not need frames to be told apart by it.
fn is_libunwind(visitor: u64) -> bool {
    /// The last one that was found to be, which is likely the only one.
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

/// Calls `dl_iterate_phdr`'s callback, and after the agent's own library calls it once more for the arena.
unsafe extern "C" fn visit(info: *mut Info, size: usize, visit: *mut c_void) -> i32 {
    const PT_LOAD: u64 = elf::PT_LOAD as u64;
    const PT_GNU_EH_FRAME: u64 = 0x6474_e550;
    const READ_EXECUTE: u64 = ((elf::PF_R | elf::PF_X) as u64) << 32;
    // SAFETY: `dl_iterate_phdr` below has passed its `Visit`, which is still there. The C library passes a struct
    // dl_phdr_info that is `size` bytes long, and the visitor is the program's, which expects such structures.
    unsafe {
        let visit = &*visit.cast::<Visit>();
        let answer = (visit.visitor)(info, size, visit.data);
        let agent = Agent::get();
        if answer != 0 || agent.arena_lo == agent.copies_hi || (*info).bias != library::start() {
            return answer;
        }
        let len = agent.copies_hi - agent.arena_lo;
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
        // The size that is passed ends before the count of libraries, by which libgcc decides whether it may
        // cache the result. The result of the next look-up may differ.
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
        // SAFETY: the address is that of glibc's function, which has this type.
        real => unsafe { core::mem::transmute::<u64, Iterate>(real)(visit, (&raw mut pass).cast()) },
    }
}
