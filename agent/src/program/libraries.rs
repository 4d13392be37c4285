//! The hooked libraries of the process, and the tables of their functions.
//!
//! Function numbers and home slots of libraries are given out in the order in which libraries are loaded. None is
//! given to another library later. The tables only grow. A library that has been unloaded keeps its entry, because its
//! counts and perhaps frames of it remain, and is found again if it is loaded at the same address.
#![allow(unsafe_code, reason = "the tables are mapped, and reached by their addresses")]

use crate::os::files::Identity;
use crate::os::memory;
use crate::program::agent::{Agent, LABELS, LIBRARY_GATE_FACTS, in_library_thunks, libraries_arenas};
use crate::program::extents::{Extent, Extents, Found, partition_point};
use crate::program::module::Module;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::ask::ARENAS_SPAN;
use gprofinject_abi::plan::{FunctionRecord, LIBRARIES, LONG_LIBRARY_ARENA, TailRecord};
use gprofinject_abi::region::{LOADS_MAX, PAGE, Slot};

/// The greatest number of functions of all libraries together.
pub(crate) const FUNCTIONS_MAX: u64 = 1 << 21;
/// The greatest number of tail calls of all libraries together.
pub(crate) const TAILS_MAX: u64 = 1 << 20;

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
    /// The file from which it was loaded. Another library at the same address may have the same bytes where patches are.
    pub(crate) file: Identity,
    /// Whether the keys of its calls are archived; see `hot/archive.rs`. Written like `lo`.
    archived: AtomicBool,
    pub(crate) module: Module,
}

/// The entries, in the order in which the libraries were loaded. Stored once, by `prepare`.
static TABLE: AtomicPtr<Library> = AtomicPtr::new(ptr::null_mut());
/// The number of entries that are in use. Stored with `Release` when a new entry is complete.
static USED: AtomicU32 = AtomicU32::new(0);
/// The texts of the loaded libraries.
static TEXTS: Extents = Extents::new();
/// The arenas of the libraries, also of those that have been unloaded.
static ARENAS: Extents = Extents::new();
/// The start of the table of all tail calls.
static TAILS: AtomicU64 = AtomicU64::new(0);

/// Whether a thread is hooking a library or noting that one is gone, so that texts and tables may not agree.
static BUSY: AtomicBool = AtomicBool::new(false);

/// Does what must not be seen half done by an order of the injector.
pub(crate) fn busy<T>(work: impl FnOnce() -> T) -> T {
    BUSY.store(true, Ordering::SeqCst);
    let result = work();
    BUSY.store(false, Ordering::SeqCst);
    result
}

/// Returns whether a thread does such work. All other threads are stopped.
pub(crate) fn is_busy() -> bool {
    BUSY.load(Ordering::SeqCst)
}

/// Notes that no thread does such work, because it has panicked or is not in this forked child.
pub(crate) fn nobody_is_busy() {
    BUSY.store(false, Ordering::SeqCst);
}

/// The lengths of the tables in bytes: libraries, extents of texts and those of arenas, functions, tail calls.
const TABLES: [u64; 5] = [
    ((LOADS_MAX * size_of::<Library>()) as u64).next_multiple_of(PAGE),
    ((LOADS_MAX * size_of::<Extent>()) as u64).next_multiple_of(PAGE),
    ((LOADS_MAX * size_of::<Extent>()) as u64).next_multiple_of(PAGE),
    (FUNCTIONS_MAX * size_of::<FunctionRecord>() as u64).next_multiple_of(PAGE),
    (TAILS_MAX * size_of::<TailRecord>() as u64).next_multiple_of(PAGE),
];

/// The length of all of them.
pub(crate) const TABLES_LEN: u64 = TABLES[0] + TABLES[1] + TABLES[2] + TABLES[3] + TABLES[4];

/// Reserves the tables. `near` is an address in one of the first libraries.
///
/// # Errors
/// Returns the errno of the failed system call.
pub(crate) fn prepare(near: u64, both: bool) -> Result<(), i32> {
    // The arenas are as far below the libraries as the plans have them.
    memory::leave_room_below(near.saturating_sub(LONG_LIBRARY_ARENA.wrapping_neg()));
    let map = |len| memory::map_zeros(len, memory::PROT_READ | memory::PROT_WRITE);
    let [table, texts, arenas, functions, tails] = TABLES;
    let (table, texts, arenas) = (map(table)?, map(texts)?, map(arenas)?);
    let (functions, tails) = (map(functions)?, map(tails)?);
    // SAFETY: each table has just been mapped, is long enough, and stays.
    unsafe {
        TEXTS.begin(texts, LOADS_MAX as u32);
        ARENAS.begin(arenas, LOADS_MAX as u32);
    }
    TABLE.store(table as *mut Library, Ordering::Relaxed);
    TAILS.store(tails, Ordering::Relaxed);
    let first = functions.wrapping_sub(u64::from(LIBRARIES) * size_of::<FunctionRecord>() as u64);
    LIBRARY_GATE_FACTS.functions.store(first, Ordering::Relaxed);
    LIBRARY_GATE_FACTS.both.store(both.into(), Ordering::Relaxed);
    LIBRARY_GATE_FACTS.base.store(base(near), Ordering::Relaxed);
    LIBRARY_GATE_FACTS.pages.store((&raw const LABELS).addr() as u64, Ordering::Relaxed);
    Ok(())
}

/// Returns the lowest address at which an arena may lie, a multiple of the page size. The kernel places later mappings, and so
/// the libraries that are loaded later, below the ones that are there; in the older layout, which a process can ask for, above them.
fn base(near: u64) -> u64 {
    /// The mappings grow upwards from a third of the address space in that layout (`TASK_UNMAPPED_BASE`).
    const UPWARDS: u64 = (1 << 47) / 3 + (1 << 40);
    const MARGIN: u64 = 512 << 20;
    let before = match near < UPWARDS {
        true => LONG_LIBRARY_ARENA.wrapping_neg() + MARGIN,
        false => ARENAS_SPAN - MARGIN,
    };
    near.saturating_sub(before).next_multiple_of(PAGE)
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

/// Returns the last library for which `is_before` holds. Numbers grow with the index, so it holds for no library after
/// that one. Integer code only; see [`crate::hot::gate`].
#[inline(always)]
fn last_before(is_before: impl Fn(&Library) -> bool) -> Option<&'static Module> {
    let after = partition_point(used(), |index| match get(index) {
        Some(library) => is_before(library),
        None => false,
    });
    if after == 0 {
        return None;
    }
    match get(after - 1) {
        Some(library) => Some(&library.module),
        None => None,
    }
}

/// Returns the loaded library in whose text a return address is, or in whose copies of counted functions. It may be the
/// first byte after the text. Integer code only; see [`crate::hot::gate`].
pub(crate) fn with_return(address: u64) -> Option<&'static Module> {
    if in_library_copies(address) {
        return with_arena(address);
    }
    match TEXTS.with_return(address) {
        Found::Library(index) => module(index),
        Found::Nothing => None,
        Found::Changing => search(|library| {
            address > library.lo.load(Ordering::Relaxed) && address <= library.hi.load(Ordering::Relaxed)
        }),
    }
}

/// Returns a library by its index. Integer code only; see [`crate::hot::gate`].
fn module(index: u32) -> Option<&'static Module> {
    match get(index) {
        Some(library) => Some(&library.module),
        None => None,
    }
}

/// Returns the first library for which `is_it` holds. Integer code only; see [`crate::hot::gate`].
fn search(is_it: impl Fn(&Library) -> bool) -> Option<&'static Module> {
    let mut index = 0;
    while let Some(library) = get(index) {
        if is_it(library) {
            return Some(&library.module);
        }
        index += 1;
    }
    None
}

/// Returns the library in whose arena an address is. Integer code only; see [`crate::hot::gate`].
pub(crate) fn with_arena(address: u64) -> Option<&'static Module> {
    if !libraries_arenas().contains(&address) {
        return None;
    }
    // An arena contains its first address, and not the first one after it.
    match ARENAS.with_return(address.wrapping_add(1)) {
        Found::Library(index) => module(index),
        Found::Nothing => None,
        Found::Changing => {
            search(|library| library.module.arena_lo <= address && address < library.module.copies_hi)
        }
    }
}

/// Returns whether an address lies in the copy of a counted function of a library. Integer code only; see
/// [`crate::hot::gate`].
fn in_library_copies(address: u64) -> bool {
    libraries_arenas().contains(&address) && !in_library_thunks(address) && with_arena(address).is_some()
}

/// Returns whether an address lies in the copy of a counted function of the program or of a library. Integer code only;
/// see [`crate::hot::gate`].
pub(crate) fn in_copies(agent: &Agent, address: u64) -> bool {
    agent.program.in_copies(address) || in_library_copies(address)
}

/// Returns the library of which a function, by its number, is. Integer code only; see [`crate::hot::gate`].
pub(crate) fn of_function(number: u32) -> Option<&'static Module> {
    let module = last_before(|library| library.module.first <= number)?;
    if number - module.first < module.functions.len() as u32 { Some(module) } else { None }
}

/// Returns the record of a tail call by its index in the table of all libraries.
pub(crate) fn tail(index: u32) -> &'static TailRecord {
    let table = TAILS.load(Ordering::Relaxed) as *const TailRecord;
    // SAFETY: stubs of libraries hold indices of this table only.
    unsafe { &*table.add(index as usize) }
}

/// Returns the index of a library's first tail call in the table of all libraries.
pub(crate) fn first_tail(module: &Module) -> usize {
    let table = TAILS.load(Ordering::Relaxed);
    (module.tails.as_ptr() as u64).saturating_sub(table) as usize / size_of::<TailRecord>()
}

/// The first numbers that are not given out yet.
#[derive(Clone)]
pub(crate) struct Free {
    pub(crate) function: u32,
    pub(crate) tail: u32,
}

/// Returns what is free after the libraries that have an entry.
pub(crate) fn free() -> Free {
    let mut free = Free { function: LIBRARIES, tail: 0 };
    let mut index = 0;
    while let Some(library) = get(index) {
        let module = &library.module;
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

/// Returns the offset in a thread block after the last basic block counter of a library, or 0 if there is none.
pub(crate) fn counters_end() -> u64 {
    (0..used()).filter_map(get).map(|library| library.module.counters_end).max().unwrap_or(0)
}

/// Copies the records of a new library to the tables of all libraries, and returns them there. `first` is the number
/// of its first function. The offsets in the records of the plan are relative to the library's arena, which is `offset` bytes after the
/// address to which they are relative in the tables.
pub(crate) fn adopt(
    first: u32,
    functions: &[FunctionRecord],
    tails: &[TailRecord],
    offset: u32,
) -> Option<(&'static [FunctionRecord], &'static [TailRecord])> {
    let free = free();
    let number = u64::from(first.checked_sub(LIBRARIES)?);
    let fits = first == free.function
        && number + functions.len() as u64 <= FUNCTIONS_MAX
        && u64::from(free.tail) + tails.len() as u64 <= TAILS_MAX;
    if !fits {
        return None;
    }
    let placed = |at: u32| at.wrapping_add(offset);
    let placed_if_any = |at: u32| if at == 0 { 0 } else { placed(at) };
    let table = LIBRARY_GATE_FACTS.functions.load(Ordering::Relaxed) as *mut FunctionRecord;
    let all_tails = TAILS.load(Ordering::Relaxed) as *mut TailRecord;
    // SAFETY: the check above has shown that the records fit into the tables. No thunk has these numbers yet, and only
    // the thread that handles the change of the loaded libraries writes here.
    unsafe {
        let own = table.wrapping_add(first as usize);
        for (number, record) in functions.iter().enumerate() {
            own.add(number).write(FunctionRecord {
                resume: placed(record.resume),
                body: placed(record.body),
                thunk: placed(record.thunk),
                exit: placed_if_any(record.exit),
                ..*record
            });
        }
        let own_tails = all_tails.add(free.tail as usize);
        for (number, tail) in tails.iter().enumerate() {
            own_tails.add(number).write(TailRecord {
                again: placed(tail.again),
                thunk: placed(tail.thunk),
                stub: placed(tail.stub),
                fills: placed_if_any(tail.fills),
                ..*tail
            });
        }
        Some((
            core::slice::from_raw_parts(own, functions.len()),
            core::slice::from_raw_parts(own_tails, tails.len()),
        ))
    }
}

/// Adds a library whose text lies in `extent`. The library does not count as loaded until [`set_loaded`] says so.
/// Returns its index, or `None` if the table is full.
pub(crate) fn add(start: u64, extent: (u64, u64), file: Identity, module: Module) -> Option<u32> {
    let index = used();
    if index as usize >= LOADS_MAX {
        return None;
    }
    let (lo, hi) = (AtomicU64::new(0), AtomicU64::new(0));
    // SAFETY: the entry is not in use, and only the thread that handles the change of the loaded libraries writes here.
    unsafe {
        let archived = AtomicBool::new(false);
        entry(index)?.write(Library { lo, hi, start, extent, file, archived, module })
    };
    USED.store(index + 1, Ordering::Release);
    ARENAS.add(module.arena_lo, module.copies_hi, index);
    Some(index)
}

/// Says whether the library with this index is loaded.
pub(crate) fn set_loaded(index: u32, loaded: bool) {
    let Some(library) = get(index) else { return };
    if library.is_loaded() {
        TEXTS.remove(index);
    }
    let (lo, hi) = if loaded { library.extent } else { (0, 0) };
    library.hi.store(hi, Ordering::Relaxed);
    library.lo.store(lo, Ordering::Relaxed);
    if loaded {
        TEXTS.add(lo, hi, index);
    }
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
