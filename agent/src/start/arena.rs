//! Maps the arena, the memory near the program's text, from the plan file, which has the plan's thunks and tables.
#![allow(unsafe_code, reason = "the arena is mapped and changed")]

use crate::os::memory;
use crate::os::words;
use crate::start::plan::PlanFile;
use crate::start::refusal::Refusal;
use core::ptr;
use gprofinject_abi::plan::{ArenaHeader, PlanHeader};
use gprofinject_abi::region::Trouble;
use zerocopy::IntoBytes;

/// An arena that is mapped and writable, and whose code no thread runs yet.
struct Arena {
    at: u64,
    len: u64,
}

/// What is where an arena will be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// Nothing, unless another thread has mapped something.
    Free,
    /// A reservation of the agent, of which the arena becomes a part.
    Reserved,
}

/// Maps the arena, changes what depends on the process, and makes it executable.
pub(crate) fn fill(
    file: &PlanFile,
    plan: &PlanHeader,
    bias: u64,
    gates: &ArenaHeader,
    room: Room,
) -> Result<(), Refusal> {
    let damaged = || Refusal::new(Trouble::Version);
    let failed = |e| Refusal::errno(Trouble::Arena, e);
    let arena = Arena::map(file, plan, plan.arena.wrapping_add(bias), room).map_err(failed)?;
    // The pages that nothing is added to are those of the file, which other processes use too.
    let distance = words::offset().wrapping_sub(plan.words);
    if distance != 0 {
        for &at in file.table::<u32>(plan.tls_fixups)? {
            arena.add(at, distance as i32, i32::wrapping_add);
        }
    }
    if bias != 0 {
        for &at in file.table::<u32>(plan.bias_fixups)? {
            arena.add(at, bias, u64::wrapping_add);
        }
        for &at in file.table::<u32>(plan.half_bias_fixups)? {
            arena.add(at, bias as u32, u32::wrapping_add);
        }
    }
    let gates = inside(plan, bias, *gates);
    arena.write(plan.arena_header, gates.as_bytes()).ok_or_else(damaged)?;
    // SAFETY: this function has mapped the arena, and from now on only `program/text.rs` writes to it.
    unsafe { memory::mprotect(arena.at, arena.len, memory::PROT_READ | memory::PROT_EXEC) }
        .map_err(|e| Refusal::errno(Trouble::NoNewCode, e))?;
    Ok(())
}

/// Adds where the return addresses of calls from inside of the module lie. The last one may be the first address after the text.
fn inside(plan: &PlanHeader, bias: u64, gates: ArenaHeader) -> ArenaHeader {
    ArenaHeader {
        text_lo: plan.code_lo.wrapping_add(bias).wrapping_add(1),
        text_len: plan.code_hi.wrapping_sub(plan.code_lo),
        ..gates
    }
}

impl Arena {
    fn map(file: &PlanFile, plan: &PlanHeader, at: u64, room: Room) -> Result<Arena, i32> {
        let len = plan.arena_len;
        if room == Room::Free {
            memory::reserve_at(at, len)?;
        }
        // SAFETY: the addresses are reserved, and in nobody's use.
        let mapped = unsafe { file.map_at(plan.arena_file, len, at, memory::MAP_FIXED) };
        if let (Err(_), Room::Free) = (mapped, room) {
            // SAFETY: the reservation is this function's own.
            let _ = unsafe { memory::munmap(at, len) };
        }
        mapped?;
        // The table has the whole reservation.
        if room == Room::Free {
            memory::note(at, len);
        }
        Ok(Arena { at, len })
    }

    /// Returns whether `len` bytes from an offset on lie in the arena.
    fn holds(&self, offset: u64, len: u64) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Writes bytes. Returns `None` if they do not fit.
    fn write(&self, offset: u64, bytes: &[u8]) -> Option<()> {
        if !self.holds(offset, bytes.len() as u64) {
            return None;
        }
        // SAFETY: the bytes fit into the arena, which is writable, and which no other code knows of yet.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), (self.at + offset) as *mut u8, bytes.len()) };
        Some(())
    }

    /// Adds a value to a word, if the word lies in the arena.
    fn add<T: Copy>(&self, offset: u32, value: T, add: impl FnOnce(T, T) -> T) {
        if self.holds(offset.into(), size_of::<T>() as u64) {
            let word = (self.at + u64::from(offset)) as *mut T;
            // SAFETY: the word lies in the arena, which is writable, and which no other code knows of yet; any bytes
            // are a number.
            unsafe { word.write_unaligned(add(word.read_unaligned(), value)) };
        }
    }
}
