//! The hooked libraries of the process, and the tables of their functions.
//!
//! Function numbers, home slots and arenas of libraries are given out in the order in which libraries are loaded, and
//! never given to another library. The tables only grow. A library that has been unloaded keeps its entry, because its
//! counts and perhaps frames of it remain, and is found again if it is loaded at the same address.
#![allow(unsafe_code, reason = "the tables are mapped, and reached by their addresses")]

use crate::os::memory;
use crate::program::agent::{LIBRARY_GATE_FACTS, libraries_thunks};
use crate::program::module::Module;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::plan::{FunctionRecord, LIBRARIES, TailRecord};
use gprofinject_abi::region::{LOADS_MAX, Slot};

/// The greatest number of functions of all libraries together.
pub(crate) const FUNCTIONS_MAX: u64 = 1 << 21;
/// The greatest number of tail calls of all libraries together.
pub(crate) const TAILS_MAX: u64 = 1 << 20;
/// Bytes of address space for the arenas of libraries. A library further than 2 GiB from its arena cannot be hooked.
const ARENAS: u64 = 1 << 30;
/// The greatest distance from the start of the reservation at which a library is expected.
const REACH: u64 = 7 << 28;
const PAGE: u64 = 4096;

/// A library. The fields are written before the entry is published, except for the extent of its text.
#[repr(C)]
pub(crate) struct Library {
    /// The extent of its text while it is loaded; both are 0 when it is not. Written by the thread that handles a change of
    /// the loaded libraries.
    lo: AtomicU64,
    hi: AtomicU64,
    /// The runtime address of its first byte, by which the dynamic linker's list and this table are compared.
    pub(crate) start: u64,
    /// The same extent, which remains when the library is unloaded.
    extent: (u64, u64),
    /// Whether the keys of its calls are archived; see `hot/archive.rs`. Written like `lo`.
    archived: AtomicBool,
    pub(crate) module: Module,
}

/// The entries, in the order in which the libraries were loaded. Stored once, by `prepare`.
static TABLE: AtomicPtr<Library> = AtomicPtr::new(ptr::null_mut());
/// The number of entries that are in use. Stored with `Release` when a new entry is complete.
static USED: AtomicU32 = AtomicU32::new(0);
/// The start of the table of all tail calls.
static TAILS: AtomicU64 = AtomicU64::new(0);

/// Reserves the tables, and address space for arenas near `near`.
///
/// # Errors
/// Returns the errno of the failed system call.
pub(crate) fn prepare(near: u64, both: bool) -> Result<(), i32> {
    let access = memory::PROT_READ | memory::PROT_WRITE;
    let round = |len: u64| len.next_multiple_of(PAGE);
    let table = memory::map_zeros(round((LOADS_MAX * size_of::<Library>()) as u64), access)?;
    let functions = memory::map_zeros(round(FUNCTIONS_MAX * size_of::<FunctionRecord>() as u64), access)?;
    let tails = memory::map_zeros(round(TAILS_MAX * size_of::<TailRecord>() as u64), access)?;
    // The kernel places mappings of this kind next to each other, so libraries that are loaded later are near as well.
    let arenas = memory::map_zeros(ARENAS, 0)?;
    if arenas.abs_diff(near) > REACH {
        // SAFETY: this is a new mapping, of which no other code knows.
        let _ = unsafe { memory::munmap(arenas, ARENAS) };
        return Err(crate::os::kernel::EINVAL);
    }
    TABLE.store(table as *mut Library, Ordering::Relaxed);
    TAILS.store(tails, Ordering::Relaxed);
    let first = functions.wrapping_sub(u64::from(LIBRARIES) * size_of::<FunctionRecord>() as u64);
    LIBRARY_GATE_FACTS.functions.store(first, Ordering::Relaxed);
    LIBRARY_GATE_FACTS.both.store(both.into(), Ordering::Relaxed);
    LIBRARY_GATE_FACTS.arena_lo.store(arenas, Ordering::Relaxed);
    LIBRARY_GATE_FACTS.arena_hi.store(arenas + ARENAS, Ordering::Relaxed);
    Ok(())
}

/// Returns whether libraries can be hooked.
pub(crate) fn are_prepared() -> bool {
    !TABLE.load(Ordering::Relaxed).is_null()
}

/// Returns whether shadow stacks are kept for libraries' functions.
pub(crate) fn both() -> bool {
    LIBRARY_GATE_FACTS.both.load(Ordering::Relaxed) != 0
}

fn entry(index: u32) -> Option<NonNull<Library>> {
    let table = NonNull::new(TABLE.load(Ordering::Relaxed))?;
    // SAFETY: the callers pass indices below LOADS_MAX, the length of the table.
    Some(unsafe { table.add(index as usize) })
}

/// Returns the number of entries.
pub(crate) fn used() -> u32 {
    USED.load(Ordering::Acquire)
}

/// Returns the library with this index.
pub(crate) fn get(index: u32) -> Option<&'static Library> {
    if index >= used() {
        return None;
    }
    // SAFETY: the entry is in use, so it is complete, and it stays mapped.
    entry(index).map(|entry| unsafe { entry.as_ref() })
}

/// Returns the index and the library of the first entry of which `is` holds. Integer code only; see
/// [`crate::hot::gate`].
#[inline(always)]
fn find(is: impl Fn(&Library) -> bool) -> Option<(u32, &'static Library)> {
    let mut index = 0;
    while let Some(library) = get(index) {
        if is(library) {
            return Some((index, library));
        }
        index += 1;
    }
    None
}

/// Returns the loaded library in whose text a return address is. It may be the first byte after the text. Integer code
/// only; see [`crate::hot::gate`].
pub(crate) fn with_return(address: u64) -> Option<&'static Module> {
    let is = |library: &Library| {
        address > library.lo.load(Ordering::Relaxed) && address <= library.hi.load(Ordering::Relaxed)
    };
    find(is).map(|(_, library)| &library.module)
}

/// Returns the library in whose arena an address is. Integer code only; see [`crate::hot::gate`].
pub(crate) fn with_arena(address: u64) -> Option<&'static Module> {
    if !libraries_thunks().contains(&address) {
        return None;
    }
    let is = |library: &Library| address >= library.module.arena_lo && address < library.module.copies_hi;
    find(is).map(|(_, library)| &library.module)
}

/// Returns the library of which a function, by its number, is. Integer code only; see [`crate::hot::gate`].
pub(crate) fn of_function(number: u32) -> Option<&'static Module> {
    let is =
        |library: &Library| number.wrapping_sub(library.module.first) < library.module.functions.len() as u32;
    find(is).map(|(_, library)| &library.module)
}

/// Returns the record of a tail call by its index in the table of all libraries.
pub(crate) fn tail(index: u32) -> &'static TailRecord {
    let table = TAILS.load(Ordering::Relaxed) as *const TailRecord;
    // SAFETY: stubs of libraries hold indices of this table only.
    unsafe { &*table.add(index as usize) }
}

/// The first numbers and places that are not given out yet.
#[derive(Clone, Copy)]
pub(crate) struct Free {
    /// The first free page in the reservation for arenas.
    pub(crate) arena: u64,
    pub(crate) function: u32,
    pub(crate) tail: u32,
}

/// Returns what is free after the libraries that have an entry.
pub(crate) fn free() -> Free {
    let mut free = Free { arena: libraries_thunks().start, function: LIBRARIES, tail: 0 };
    let mut index = 0;
    while let Some(library) = get(index) {
        let module = &library.module;
        free.arena = free.arena.max(module.copies_hi);
        free.function = free.function.max(module.first + module.functions.len() as u32);
        free.tail += module.tails.len() as u32;
        index += 1;
    }
    free
}

/// Returns the offset in a thread block after the last home slot of a library, or 0 if there is none.
pub(crate) fn slots_end() -> u64 {
    let last = (0..used()).rev().filter_map(get).find_map(|library| library.module.functions.last());
    last.map_or(0, |record| u64::from(record.slots) + u64::from(record.slot_count) * size_of::<Slot>() as u64)
}

/// Copies the records of a new library to the tables of all libraries, and returns them there. `first` is the number
/// of its first function.
pub(crate) fn adopt(
    first: u32,
    functions: &[FunctionRecord],
    tails: &[TailRecord],
) -> Option<(&'static [FunctionRecord], &'static [TailRecord])> {
    let free = free();
    let number = u64::from(first.checked_sub(LIBRARIES)?);
    let fits = first == free.function
        && number + functions.len() as u64 <= FUNCTIONS_MAX
        && u64::from(free.tail) + tails.len() as u64 <= TAILS_MAX;
    if !fits {
        return None;
    }
    let table = LIBRARY_GATE_FACTS.functions.load(Ordering::Relaxed) as *mut FunctionRecord;
    let all_tails = TAILS.load(Ordering::Relaxed) as *mut TailRecord;
    // SAFETY: the check above has shown that the records fit into the tables. No thunk has these numbers yet, and only
    // the thread that handles the change of the loaded libraries writes here.
    unsafe {
        let own = table.wrapping_add(first as usize);
        ptr::copy_nonoverlapping(functions.as_ptr(), own, functions.len());
        let own_tails = all_tails.add(free.tail as usize);
        ptr::copy_nonoverlapping(tails.as_ptr(), own_tails, tails.len());
        Some((
            core::slice::from_raw_parts(own, functions.len()),
            core::slice::from_raw_parts(own_tails, tails.len()),
        ))
    }
}

/// Adds a library whose text lies in `extent`. The library does not count as loaded until [`set_loaded`] says so.
/// Returns its index, or `None` if the table is full.
pub(crate) fn add(start: u64, extent: (u64, u64), module: Module) -> Option<u32> {
    let index = used();
    if index as usize >= LOADS_MAX {
        return None;
    }
    let (lo, hi) = (AtomicU64::new(0), AtomicU64::new(0));
    // SAFETY: the entry is not in use, and only the thread that handles the change of the loaded libraries writes here.
    unsafe {
        entry(index)?.write(Library { lo, hi, start, extent, archived: AtomicBool::new(false), module })
    };
    USED.store(index + 1, Ordering::Release);
    Some(index)
}

/// Says whether a library is loaded.
pub(crate) fn set_loaded(library: &Library, loaded: bool) {
    let (lo, hi) = if loaded { library.extent } else { (0, 0) };
    library.hi.store(hi, Ordering::Relaxed);
    library.lo.store(lo, Ordering::Relaxed);
}

impl Library {
    pub(crate) fn is_loaded(&self) -> bool {
        self.hi.load(Ordering::Relaxed) != 0
    }

    /// Returns where its text is or was.
    pub(crate) fn extent(&self) -> (u64, u64) {
        self.extent
    }

    pub(crate) fn is_archived(&self) -> bool {
        self.archived.load(Ordering::Relaxed)
    }

    pub(crate) fn set_archived(&self, archived: bool) {
        self.archived.store(archived, Ordering::Relaxed);
    }

    /// Returns whether any byte from `lo` up to `hi` was in the text of this library.
    pub(crate) fn overlaps(&self, lo: u64, hi: u64) -> bool {
        self.extent.0 < hi && lo < self.extent.1
    }
}
