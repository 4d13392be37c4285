//! The agent's facts about its program and the process: written once, as a whole, and never changed.
//!
//! A forked child does not change the [`Agent`] of its parent. It installs another one, and the old one stays valid
//! for the code that the fork has interrupted.
#![allow(
    unsafe_code,
    reason = "a header that nobody reads is a static; the plan's tables are indexed by its numbers"
)]

use crate::os::current::{Current, Reserved};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{CallJump, CodeRange, Frame, FunctionRecord, LEAF, Original, Patch, TailRecord};
use gprofinject_abi::region::{RegionHeader, RegionOrders};
use gprofinject_abi::shared::RegionRef;

/// Addresses are runtime addresses unless a field documents otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Agent {
    /// Whether the set-up has reached the point at which it installs this value.
    pub(crate) is_set_up: bool,
    pub(crate) functions: &'static [FunctionRecord],
    pub(crate) tails: &'static [TailRecord],
    /// The code of hooked functions, as link addresses.
    pub(crate) hooked: &'static [CodeRange],
    /// Maps each place in a copied function to the instruction of the program that it replaces.
    pub(crate) originals: &'static [Original],
    pub(crate) patches: &'static [Patch],
    pub(crate) call_jumps: &'static [CallJump],
    /// The program headers: address, size of one in bytes, number. They are separate from the auxiliary vector,
    /// because the program may overwrite that.
    pub(crate) headers: (u64, u64, u64),
    /// The header of the region file in which the process counts. In a child that is not followed, it is one that is
    /// never read.
    pub(crate) region: RegionRef,
    /// The injector's part of that header, as it was when the file was mapped.
    pub(crate) orders: RegionOrders,
    pub(crate) arena_lo: u64,
    /// The end of the thunks, and start of the copies of counted functions.
    pub(crate) arena_hi: u64,
    /// The end of the copies and of the arena.
    pub(crate) copies_hi: u64,
    /// Whether the `wrgsbase` instruction may be used.
    pub(crate) fsgsbase: bool,
    /// Arena offsets; see [`gprofinject_abi::plan::PlanHeader`], here and for the next three.
    pub(crate) frame_tables: [u32; 6],
    pub(crate) stubs: u32,
    pub(crate) stub_len: u32,
    pub(crate) tail_code: u32,
    pub(crate) text_lo: u64,
    pub(crate) text_hi: u64,
    pub(crate) bias: u64,
    /// The address at which the main thread's stack began.
    pub(crate) stack_end: u64,
    /// The lowest address that the main thread's stack may reach.
    pub(crate) stack_lo: u64,
    /// The main thread's control block.
    pub(crate) main_thread: u64,
    /// The C library's text.
    pub(crate) libc: (u64, u64),
    /// Whether shadow stacks are kept.
    pub(crate) both: bool,
    /// Whether Frida's library is preloaded, here and in programs that are executed.
    pub(crate) frida: bool,
    /// The thread block of threads that have none yet: zeros.
    pub(crate) no_block: u64,
    /// The thread block of threads that cannot get one: also zeros.
    pub(crate) lost_block: u64,
    /// Samples per second that each thread's timer takes, or 0 if the agent does not sample.
    pub(crate) timer_rate: u32,
    /// The process's number.
    pub(crate) pid: u32,
    /// Whether this is a forked child that is not followed: its hooks work, but its counts are discarded.
    pub(crate) counts_nowhere: bool,
    /// Whether this is a forked child that counts in an ancestor's file because it could not create its own.
    pub(crate) guest: bool,
}

/// A region header that is never read, for a process that counts nowhere.
#[repr(transparent)]
struct Unread(UnsafeCell<MaybeUninit<RegionHeader>>);
// SAFETY: the header is accessed only through the atomics of a `RegionRef`.
unsafe impl Sync for Unread {}
static UNREAD: Unread = Unread(UnsafeCell::new(MaybeUninit::zeroed()));

/// Returns the header for a process that counts nowhere.
pub(crate) const fn unread_region() -> RegionRef {
    // SAFETY: a static lives as long as the process, zeros are a valid header, and only the `RegionRef` accesses it.
    unsafe { RegionRef::new(ptr::NonNull::new_unchecked(UNREAD.0.get().cast())) }
}

static NOT_SET_UP: Agent = Agent {
    is_set_up: false,
    functions: &[],
    tails: &[],
    hooked: &[],
    originals: &[],
    patches: &[],
    call_jumps: &[],
    headers: (0, 0, 0),
    region: unread_region(),
    orders: RegionOrders {
        magic: [0; 8],
        version: 0,
        timer_rate: 0,
        histogram_offset: 0,
        text_bins: 0,
        arena_bins: 0,
        text_shift: 0,
        arena_shift: 0,
        blocks_offset: 0,
        block_len: 0,
        slot_bytes: 0,
        slot_chunk: 0,
        counter_bytes: 0,
        blocks_max: 0,
        follow: 0,
        plan: 0,
    },
    arena_lo: 0,
    arena_hi: 0,
    copies_hi: 0,
    fsgsbase: false,
    frame_tables: [0; 6],
    stubs: 0,
    stub_len: 0,
    tail_code: 0,
    text_lo: 0,
    text_hi: 0,
    bias: 0,
    stack_end: 0,
    stack_lo: 0,
    main_thread: 0,
    libc: (0, 0),
    both: false,
    frida: false,
    no_block: 0,
    lost_block: 0,
    timer_rate: 0,
    pid: 0,
    counts_nowhere: false,
    guest: false,
};

/// The current value. Eight generations of forked children replace it without a system call.
static AGENT: Current<Agent, 8> = Current::new(&NOT_SET_UP);

/// The facts of the [`Agent`] that the assembly of `hot/gate.rs` needs. They are the same in all forked children, so
/// they are written once, before the first hook is in place, and gates read them directly.
#[repr(C)]
pub(crate) struct GateFacts {
    pub(crate) functions: AtomicU64,
    pub(crate) arena_lo: AtomicU64,
    pub(crate) arena_hi: AtomicU64,
    pub(crate) both: AtomicU64,
}

pub(crate) static GATE_FACTS: GateFacts = GateFacts {
    functions: AtomicU64::new(0),
    arena_lo: AtomicU64::new(0),
    arena_hi: AtomicU64::new(0),
    both: AtomicU64::new(0),
};

/// Returns a place for a new value, or `None` if there is no memory for one.
pub(crate) fn reserve() -> Option<Reserved<Agent>> {
    AGENT.reserve()
}

impl Agent {
    /// Returns the current value.
    #[inline(always)]
    pub(crate) fn get() -> &'static Agent {
        AGENT.get()
    }

    /// Copies the facts that gates need to [`GATE_FACTS`].
    pub(crate) fn tell_gates(&self) {
        GATE_FACTS.functions.store(self.functions.as_ptr() as u64, Ordering::Relaxed);
        GATE_FACTS.arena_lo.store(self.arena_lo, Ordering::Relaxed);
        GATE_FACTS.arena_hi.store(self.arena_hi, Ordering::Relaxed);
        GATE_FACTS.both.store(self.both.into(), Ordering::Relaxed);
    }

    pub(crate) fn function(&self, number: u32) -> &'static FunctionRecord {
        // SAFETY: thunks and frames hold numbers of the plan's functions only, which index this table of the plan.
        unsafe { self.functions.get_unchecked(number as usize) }
    }

    pub(crate) fn tail(&self, index: u32) -> &'static TailRecord {
        // SAFETY: stubs hold indices of the plan's tail calls only, which index this table of the plan.
        unsafe { self.tails.get_unchecked(index as usize) }
    }

    /// Returns the address of the unwind table for a kind of place in the arena: an `.eh_frame_hdr`.
    pub(crate) fn frame_table(&self, frame: Frame) -> u64 {
        let [left, called, popped, moved, plain, copied] = self.frame_tables;
        let table = match frame {
            Frame::Left => left,
            Frame::Called => called,
            Frame::Popped => popped,
            Frame::Moved => moved,
            Frame::LeftPlain => plain,
            Frame::Copied => copied,
        };
        self.arena_lo + u64::from(table)
    }

    /// Returns whether an address lies in the thunks. A return slot that contains such an address is that of a live
    /// frame.
    pub(crate) fn in_arena(&self, address: u64) -> bool {
        (self.arena_lo..self.arena_hi).contains(&address)
    }

    /// Returns whether a return address is the one that glibc gives to signal handlers. Integer code only; see
    /// [`crate::hot::gate`].
    pub(crate) fn is_restorer(&self, return_address: u64) -> bool {
        // __restore_rt: mov rax, 15; syscall.
        self.libc_reads(return_address, &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
    }

    /// Returns whether a return address is the one that glibc's makecontext gives to the first function of a context,
    /// which begins a stack of its own. Integer code only; see [`crate::hot::gate`].
    pub(crate) fn is_start_of_context(&self, return_address: u64) -> bool {
        // __start_context (sysdeps/unix/sysv/linux/x86_64/__start_context.S): mov rsp, rbx; mov rdi, [rsp].
        self.libc_reads(return_address, &[0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24])
    }

    /// Returns whether the C library's text has these bytes at an address.
    fn libc_reads(&self, address: u64, bytes: &[u8]) -> bool {
        let (lo, hi) = self.libc;
        if address < lo || address >= hi || hi - address < bytes.len() as u64 {
            return false;
        }
        // The bytes are compared one by one, because a comparison of slices may use vector registers.
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: the address lies in the C library's text, which is readable and never unmapped.
            if unsafe { *(address as *const u8).add(i) } != *byte {
                return false;
            }
        }
        true
    }

    /// Returns the address in the program of the instruction that an address in a copied function replaces. Other
    /// addresses are returned unchanged. Integer code only; see [`crate::hot::gate`].
    pub(crate) fn original(&self, pc: u64) -> u64 {
        if !self.in_copies(pc) {
            return pc;
        }
        let offset = (pc - self.arena_lo) as u32;
        let after = self.originals.partition_point(|entry| entry.offset <= offset);
        let entry = after.checked_sub(1).and_then(|n| self.originals.get(n));
        entry.map_or(pc, |entry| self.text_lo.wrapping_add(entry.text.into()))
    }

    /// Returns the leaf function that runs if the program counter is at an address: in the function's text after its
    /// patch, or in its body. Integer code only; see [`crate::hot::gate`].
    pub(crate) fn leaf_at(&self, pc: u64) -> Option<u32> {
        let copied = self.in_copies(pc);
        let pc = self.original(pc);
        let offset = pc.wrapping_sub(self.arena_lo);
        let moved = pc >= self.arena_lo && offset < u64::from(self.stubs);
        let address = pc.wrapping_sub(self.bias);
        // Functions are numbered by their addresses, and their thunks are in the same order.
        let is_behind = |record: &FunctionRecord| {
            if moved { u64::from(record.thunk) <= offset } else { record.entry <= address }
        };
        let number = self.functions.partition_point(is_behind).checked_sub(1)?;
        let record = self.functions.get(number)?;
        let inside = if moved {
            offset >= record.body.into()
        } else {
            let behind = address > record.entry || copied && address == record.entry;
            behind && address < record.entry + u64::from(record.size)
        };
        (inside && record.flags & LEAF != 0).then_some(number as u32)
    }

    /// Returns the hooked function that contains a link address. Separate parts of a function do not count.
    pub(crate) fn function_at(&self, address: u64) -> Option<u32> {
        let number = self.functions.partition_point(|record| record.entry <= address).checked_sub(1)?;
        let record = self.functions.get(number)?;
        (address < record.entry + u64::from(record.size)).then_some(number as u32)
    }

    /// Returns whether an address lies in the copy of a counted function.
    pub(crate) fn in_copies(&self, address: u64) -> bool {
        (self.arena_hi..self.copies_hi).contains(&address)
    }

    /// Returns whether a return address is in the program's text or in a copy. It may be the first byte after the
    /// text.
    pub(crate) fn in_text(&self, return_address: u64) -> bool {
        return_address > self.text_lo && return_address <= self.text_hi || self.in_copies(return_address)
    }

    /// Returns whether a return address lies in code of a hooked function.
    pub(crate) fn is_hooked(&self, return_address: u64) -> bool {
        let address = return_address.wrapping_sub(self.bias);
        let after = self.hooked.partition_point(|range| range.hi <= address);
        self.hooked.get(after).is_some_and(|range| range.lo <= address)
    }
}
