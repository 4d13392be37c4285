//! What the agent knows of its program: filled by the set-up, read-only from the first hook on.
#![allow(unsafe_code)]

use crate::counters;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::plan::{CodeRange, Frame, FunctionRecord, LEAF, Original, TailRecord};
use gprofinject_abi::region::RegionHeader;

/// Addresses are runtime addresses unless said otherwise.
#[derive(Clone, Copy)]
pub(crate) struct Agent {
    pub(crate) functions: *const FunctionRecord,
    pub(crate) functions_count: u32,
    pub(crate) tails: *const TailRecord,
    /// Link addresses.
    pub(crate) hooked: *const CodeRange,
    pub(crate) hooked_count: u64,
    /// The shared mapping of the region file's header and histogram; in a child that is not followed a
    /// private copy.
    pub(crate) region: *mut RegionHeader,
    pub(crate) arena_lo: u64,
    /// Where the thunks end, and the copies of counted functions begin.
    pub(crate) arena_hi: u64,
    pub(crate) copies_hi: u64,
    pub(crate) originals: *const Original,
    pub(crate) originals_count: u64,
    /// Bytes of block counters in a block.
    pub(crate) counter_bytes: u64,
    /// `wrgsbase` may be used.
    pub(crate) fsgsbase: bool,
    /// Arena offsets; see [`gprofinject_abi::plan::PlanHeader`].
    pub(crate) frame_tables: [u32; 6],
    pub(crate) stubs: u32,
    pub(crate) stub_len: u32,
    pub(crate) tail_code: u32,
    pub(crate) text_lo: u64,
    pub(crate) text_hi: u64,
    pub(crate) bias: u64,
    /// Where the main thread's stack began, and how far down it may come.
    pub(crate) stack_end: u64,
    pub(crate) stack_lo: u64,
    /// Its thread control block.
    pub(crate) main_thread: u64,
    /// The C library's text.
    pub(crate) libc: (u64, u64),
    /// Shadow stacks are kept.
    pub(crate) both: bool,
    /// Frida's library is preloaded, here and in programs that are executed.
    pub(crate) frida: bool,
    /// The block of threads that have none yet: zeros, read-only.
    pub(crate) no_block: u64,
    /// The same for threads that cannot get one.
    pub(crate) lost_block: u64,
    pub(crate) block_len: u64,
    pub(crate) blocks_offset: u64,
    pub(crate) blocks_max: u64,
    pub(crate) slot_bytes: u64,
    pub(crate) slot_chunk: u64,
    pub(crate) timer_rate: u32,
    pub(crate) pid: u32,
    /// A forked child that is not followed: its hooks work, its counts reach nobody.
    pub(crate) counts_nowhere: bool,
    /// A forked child that counts in an ancestor's file: it could not make one.
    pub(crate) guest: bool,
}

/// Read by assembly as well.
#[repr(transparent)]
pub(crate) struct Global(UnsafeCell<Agent>);

// SAFETY: written by `install` before the first hook is in place, while the process has one thread, and
// by `children::begin`, which runs in a forked child that has one thread.
unsafe impl Sync for Global {}

pub(crate) static AGENT: Global = Global(UnsafeCell::new(Agent {
    functions: core::ptr::null(),
    functions_count: 0,
    tails: core::ptr::null(),
    hooked: core::ptr::null(),
    hooked_count: 0,
    region: core::ptr::null_mut(),
    arena_lo: 0,
    arena_hi: 0,
    copies_hi: 0,
    originals: core::ptr::null(),
    originals_count: 0,
    counter_bytes: 0,
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
    block_len: 0,
    blocks_offset: 0,
    blocks_max: 0,
    slot_bytes: 0,
    slot_chunk: 0,
    timer_rate: 0,
    pid: 0,
    counts_nowhere: false,
    guest: false,
}));

impl Agent {
    pub(crate) fn get() -> &'static Agent {
        // SAFETY: see Global.
        unsafe { &*AGENT.0.get() }
    }

    /// # Safety
    /// The process must have one thread, and no reference from [`Agent::get`] may be in use. All pointers
    /// must stay valid for ever.
    pub(crate) unsafe fn install(agent: Agent) {
        // SAFETY: passed on.
        unsafe { *AGENT.0.get() = agent };
    }

    pub(crate) fn function(&self, number: u32) -> &'static FunctionRecord {
        // SAFETY: thunks and frames hold numbers of the plan only, and the plan file is mapped for ever.
        unsafe { &*self.functions.add(number as usize) }
    }

    pub(crate) fn tail(&self, index: u32) -> &'static TailRecord {
        // SAFETY: as for functions: stubs hold indices of the plan only.
        unsafe { &*self.tails.add(index as usize) }
    }

    /// The unwind table for a place in the arena: an `.eh_frame_hdr`.
    pub(crate) fn frame_table(&self, frame: Frame) -> u64 {
        self.arena_lo + u64::from(self.frame_tables[frame as usize])
    }

    /// Also the mark of a frame that is alive: its return slot holds an exit label.
    pub(crate) fn in_arena(&self, address: u64) -> bool {
        (self.arena_lo..self.arena_hi).contains(&address)
    }

    /// Whether a return address is the one that glibc gives to signal handlers. Integer code only; see
    /// [`crate::gate`].
    pub(crate) fn is_restorer(&self, return_address: u64) -> bool {
        // __restore_rt: mov rax, 15; syscall.
        self.libc_reads(return_address, &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
    }

    /// Whether a return address is the one that glibc's makecontext gives to the first function of a context, which
    /// begins a stack of its own. Integer code only; see [`crate::gate`].
    pub(crate) fn is_start_of_context(&self, return_address: u64) -> bool {
        // __start_context (sysdeps/unix/sysv/linux/x86_64/__start_context.S): mov rsp, rbx; mov rdi, [rsp].
        self.libc_reads(return_address, &[0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24])
    }

    /// Whether these bytes stand at an address of the C library's text.
    fn libc_reads(&self, address: u64, bytes: &[u8]) -> bool {
        let (lo, hi) = self.libc;
        if address < lo || address >= hi || hi - address < bytes.len() as u64 {
            return false;
        }
        // Byte by byte: a comparison of slices may use vector registers.
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: the C library's text, which is readable and never unmapped.
            if unsafe { *(address as *const u8).add(i) } != *byte {
                return false;
            }
        }
        true
    }

    /// The leaf that runs where the program counter is: in its text, behind its patch, or in its body. Integer
    /// code only; see [`crate::gate`].
    pub(crate) fn leaf_at(&self, pc: u64) -> Option<u32> {
        let copied = self.in_copies(pc);
        let pc = counters::original(self, pc);
        let offset = pc.wrapping_sub(self.arena_lo);
        let moved = pc >= self.arena_lo && offset < u64::from(self.stubs);
        let address = pc.wrapping_sub(self.bias);
        // Functions are numbered by their addresses, and their thunks stand in the same order.
        let (mut lo, mut hi) = (0, self.functions_count);
        while lo < hi {
            let middle = lo + (hi - lo) / 2;
            let record = self.function(middle);
            let behind = if moved { u64::from(record.thunk) <= offset } else { record.entry <= address };
            if behind {
                lo = middle + 1;
            } else {
                hi = middle;
            }
        }
        let number = lo.checked_sub(1)?;
        let record = self.function(number);
        let inside = if moved {
            offset >= record.body.into()
        } else {
            let behind = address > record.entry || copied && address == record.entry;
            behind && address < record.entry + u64::from(record.size)
        };
        (inside && record.flags & LEAF != 0).then_some(number)
    }

    /// Whether an address lies in the copy of a counted function.
    pub(crate) fn in_copies(&self, address: u64) -> bool {
        (self.arena_hi..self.copies_hi).contains(&address)
    }

    /// Whether a return address is the program's own, or a copy's. It may lie one byte behind the text.
    pub(crate) fn in_text(&self, return_address: u64) -> bool {
        return_address > self.text_lo && return_address <= self.text_hi || self.in_copies(return_address)
    }

    /// Whether a return address lies in code of a hooked function.
    pub(crate) fn is_hooked(&self, return_address: u64) -> bool {
        let address = return_address.wrapping_sub(self.bias);
        let (mut lo, mut hi) = (0, self.hooked_count);
        while lo < hi {
            let middle = lo + (hi - lo) / 2;
            // SAFETY: middle < hooked_count; the table is part of the plan file, mapped for ever.
            let range = unsafe { *self.hooked.add(middle as usize) };
            if address >= range.hi {
                lo = middle + 1;
            } else if address < range.lo {
                hi = middle;
            } else {
                return true;
            }
        }
        false
    }

    pub(crate) fn header(&self) -> *mut RegionHeader {
        self.region
    }
}

/// Adds to a counter in the region header or a block header, which other threads may add to as well.
///
/// # Safety
/// `counter` must point to an aligned u64 in memory that stays mapped.
pub(crate) unsafe fn add(counter: *mut u64, value: u64) -> u64 {
    // SAFETY: passed on.
    unsafe { AtomicU64::from_ptr(counter) }.fetch_add(value, Ordering::Relaxed)
}
