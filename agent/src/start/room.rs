//! Whether the limits of memory (RLIMIT_AS, RLIMIT_DATA) leave room for the hooks. What the agent maps, the program has no longer, where the
//! limits cannot be raised ([`crate::os::limits`]). So there has to be twice as much as the hooks take: nothing is hooked in a program that
//! would get less than the agent.
#![allow(unsafe_code, reason = "mappings are made, to see whether that is possible")]

use crate::hot::cells;
use crate::os::limits;
use crate::os::memory;
use crate::program::libraries::TABLES_LEN;
use gprofinject_abi::plan::PlanHeader;
use gprofinject_abi::region::RegionOrders;

/// Bytes that the agent maps.
#[derive(Clone, Copy)]
pub(crate) struct Need {
    /// Private and writable ones, to which both limits apply.
    data: u64,
    /// Others, to which only that of address space applies.
    other: u64,
}

impl Need {
    /// Returns what the hooks of the program take, up to those of its first thread.
    pub(crate) fn of_program(orders: &RegionOrders, plan: &PlanHeader) -> Need {
        // The zeros of threads that have no block yet, those of threads that get none, and the first thread's block.
        let blocks = 3 * orders.block_len;
        Need { data: blocks + cells::FIRST + plan.arena_len, other: orders.blocks_offset + orders.block_len }
    }

    /// Returns whether there is room for libraries besides.
    pub(crate) fn with_libraries(self) -> bool {
        /// What their arenas and plans may take.
        const ARENAS: u64 = 64 << 20;
        Need { data: self.data + TABLES_LEN, other: self.other + ARENAS }.is_met()
    }

    /// Returns whether the limits leave room for twice as much.
    pub(crate) fn is_met(self) -> bool {
        if !limits::are_there() {
            return true;
        }
        let map = |len, access| {
            let flags = memory::MAP_PRIVATE | memory::MAP_ANONYMOUS | memory::MAP_NORESERVE;
            // SAFETY: the kernel chooses the address, so the mapping replaces nothing.
            unsafe { memory::mmap(0, len, access, flags, -1, 0) }
        };
        let (data, other) = (2 * self.data, 2 * self.other);
        let Ok(first) = map(data, memory::PROT_READ | memory::PROT_WRITE) else { return false };
        let second = map(other, 0);
        // SAFETY: these are new mappings, of which no other code knows.
        unsafe {
            let _ = memory::munmap(first, data);
            limits::unmap(0, data);
            if let Ok(second) = second {
                let _ = memory::munmap(second, other);
            }
        }
        second.is_ok()
    }
}
