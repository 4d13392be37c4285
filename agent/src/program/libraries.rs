//! The hooked libraries of the process, and the tables of their functions.
//!
//! Function numbers, home slots and arenas of libraries are given out in the order in which libraries are loaded, and
//! never given to another library. The tables only grow. A library that has been unloaded keeps its entry, because its
//! counts and perhaps frames of it remain, and is found again if it is loaded at the same address.
#![allow(unsafe_code, reason = "the tables are mapped, and reached by their addresses")]

use crate::os::files::Identity;
use crate::os::memory;
use crate::program::agent::{ARENAS, LIBRARY_GATE_FACTS, in_library_copies, libraries_thunks};
use crate::program::module::Module;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use gprofinject_abi::plan::{FunctionRecord, LIBRARIES, TailRecord};
use gprofinject_abi::region::{LOADS_MAX, PAGE, Slot};

/// The greatest number of functions of all libraries together.
pub(crate) const FUNCTIONS_MAX: u64 = 1 << 21;
/// The greatest number of tail calls of all libraries together.
pub(crate) const TAILS_MAX: u64 = 1 << 20;
/// The greatest distance from the start of the reservation at which a library is expected.
const REACH: u64 = 7 << 28;

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

/// Where the text of a loaded library is. Only the thread that handles a change of the loaded libraries writes here.
#[repr(C)]
struct Text {
    lo: AtomicU64,
    hi: AtomicU64,
    /// The library's index.
    index: AtomicU32,
}

/// The entries, in the order in which the libraries were loaded. Stored once, by `prepare`.
static TABLE: AtomicPtr<Library> = AtomicPtr::new(ptr::null_mut());
/// The number of entries that are in use. Stored with `Release` when a new entry is complete.
static USED: AtomicU32 = AtomicU32::new(0);
/// The texts of the loaded libraries, sorted by their addresses. Stored once, by `prepare`.
static TEXTS: AtomicPtr<Text> = AtomicPtr::new(ptr::null_mut());
/// The number of entries of [`TEXTS`].
static TEXTS_LEN: AtomicU32 = AtomicU32::new(0);
/// Counts the beginnings and the ends of changes of [`TEXTS`], so it is odd during a change.
static TEXTS_CHANGES: AtomicU32 = AtomicU32::new(0);
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

/// Reserves the tables, and address space for arenas near `near`.
///
/// # Errors
/// Returns the errno of the failed system call.
pub(crate) fn prepare(near: u64, both: bool) -> Result<(), i32> {
    let access = memory::PROT_READ | memory::PROT_WRITE;
    let round = |len: u64| len.next_multiple_of(PAGE);
    let table = memory::map_zeros(round((LOADS_MAX * size_of::<Library>()) as u64), access)?;
    let texts = memory::map_zeros(round((LOADS_MAX * size_of::<Text>()) as u64), access)?;
    let functions = memory::map_zeros(round(FUNCTIONS_MAX * size_of::<FunctionRecord>() as u64), access)?;
    let tails = memory::map_zeros(round(TAILS_MAX * size_of::<TailRecord>() as u64), access)?;
    // The kernel places mappings of this kind next to each other, so libraries that are loaded later are near as well.
    let (arenas, len) = reserve(near)?;
    memory::leave_room_below(arenas);
    TABLE.store(table as *mut Library, Ordering::Relaxed);
    TEXTS.store(texts as *mut Text, Ordering::Relaxed);
    TAILS.store(tails, Ordering::Relaxed);
    let first = functions.wrapping_sub(u64::from(LIBRARIES) * size_of::<FunctionRecord>() as u64);
    LIBRARY_GATE_FACTS.functions.store(first, Ordering::Relaxed);
    LIBRARY_GATE_FACTS.both.store(both.into(), Ordering::Relaxed);
    LIBRARY_GATE_FACTS.arena_lo.store(arenas, Ordering::Relaxed);
    LIBRARY_GATE_FACTS.arena_hi.store(arenas + len, Ordering::Relaxed);
    Ok(())
}

/// Reserves address space near `near` for arenas. Returns its address and length. Where [`ARENAS`] bytes are free near the
/// libraries, it is that long; an earlier reservation may have parted them, so that only less is free between them.
fn reserve(near: u64) -> Result<(u64, u64), i32> {
    const LEAST: u64 = ARENAS >> 4;
    let mut len = ARENAS;
    loop {
        let arenas = memory::map_zeros(len, 0)?;
        if arenas.abs_diff(near) <= REACH {
            return Ok((arenas, len));
        }
        // SAFETY: this is a new mapping, of which no other code knows.
        let _ = unsafe { memory::munmap(arenas, len) };
        if len <= LEAST {
            return Err(crate::os::kernel::EINVAL);
        }
        len /= 2;
    }
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

/// Returns the number of indices, from 0 up to `len`, for which `is_before` holds. It holds for none after the first for
/// which it does not. Integer code only; see [`crate::hot::gate`].
#[inline(always)]
fn partition_point(len: u32, is_before: impl Fn(u32) -> bool) -> u32 {
    let (mut lo, mut hi) = (0, len);
    while lo < hi {
        let middle = (lo + hi) / 2;
        if is_before(middle) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    lo
}

/// Returns the last library for which `is_before` holds. Numbers and arenas grow with the index, so it holds for no
/// library after that one. Integer code only; see [`crate::hot::gate`].
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
    let before = TEXTS_CHANGES.load(Ordering::Acquire);
    let index = text_with_return(address);
    fence(Ordering::Acquire);
    if before.is_multiple_of(2) && TEXTS_CHANGES.load(Ordering::Relaxed) == before {
        if index == u32::MAX {
            return None;
        }
        return match get(index) {
            Some(library) => Some(&library.module),
            None => None,
        };
    }
    // The table of texts is just being changed, perhaps by code that a signal handler of this thread has interrupted.
    let mut index = 0;
    while let Some(library) = get(index) {
        if address > library.lo.load(Ordering::Relaxed) && address <= library.hi.load(Ordering::Relaxed) {
            return Some(&library.module);
        }
        index += 1;
    }
    None
}

/// Looks a return address up in [`TEXTS`], which may be changing. Returns the library's index, or `u32::MAX`.
#[inline(always)]
fn text_with_return(address: u64) -> u32 {
    let len = TEXTS_LEN.load(Ordering::Relaxed);
    let after = partition_point(len, |at| match text(at) {
        Some(text) => text.lo.load(Ordering::Relaxed) < address,
        None => false,
    });
    if after == 0 {
        return u32::MAX;
    }
    match text(after - 1) {
        Some(text) if address <= text.hi.load(Ordering::Relaxed) => text.index.load(Ordering::Relaxed),
        _ => u32::MAX,
    }
}

/// Returns an entry of [`TEXTS`].
fn text(at: u32) -> Option<&'static Text> {
    let table = NonNull::new(TEXTS.load(Ordering::Relaxed)).filter(|_| (at as usize) < LOADS_MAX)?;
    // SAFETY: `prepare` has mapped a table of LOADS_MAX entries, which is never unmapped. Zeros are a valid `Text`.
    Some(unsafe { table.add(at as usize).as_ref() })
}

impl Text {
    fn set(&self, lo: u64, hi: u64, index: u32) {
        self.lo.store(lo, Ordering::Relaxed);
        self.hi.store(hi, Ordering::Relaxed);
        self.index.store(index, Ordering::Relaxed);
    }

    fn copy_from(&self, other: &Text) {
        let index = other.index.load(Ordering::Relaxed);
        self.set(other.lo.load(Ordering::Relaxed), other.hi.load(Ordering::Relaxed), index);
    }
}

/// Changes [`TEXTS`] by `change`, which gets the number of entries and returns the new one.
fn change_texts(change: impl FnOnce(u32) -> Option<u32>) {
    TEXTS_CHANGES.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::Release);
    if let Some(len) = change(TEXTS_LEN.load(Ordering::Relaxed)) {
        TEXTS_LEN.store(len, Ordering::Relaxed);
    }
    TEXTS_CHANGES.fetch_add(1, Ordering::Release);
}

/// Adds the text of the library with this index to [`TEXTS`].
fn add_text(lo: u64, hi: u64, index: u32) {
    change_texts(|len| {
        let mut at = len;
        while at > 0 && text(at - 1)?.lo.load(Ordering::Relaxed) > lo {
            text(at)?.copy_from(text(at - 1)?);
            at -= 1;
        }
        text(at)?.set(lo, hi, index);
        Some(len + 1)
    });
}

/// Removes the text of the library with this index from [`TEXTS`], if it is there.
fn remove_text(index: u32) {
    change_texts(|len| {
        let is_it = |at: &u32| text(*at).is_some_and(|text| text.index.load(Ordering::Relaxed) == index);
        let removed = (0..len).find(is_it)?;
        for at in removed + 1..len {
            text(at - 1)?.copy_from(text(at)?);
        }
        Some(len - 1)
    });
}

/// Returns the library in whose arena an address is. Integer code only; see [`crate::hot::gate`].
pub(crate) fn with_arena(address: u64) -> Option<&'static Module> {
    if !libraries_thunks().contains(&address) {
        return None;
    }
    let module = last_before(|library| library.module.arena_lo <= address)?;
    if address < module.copies_hi { Some(module) } else { None }
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

/// Returns the offset in a thread block after the last basic block counter of a library, or 0 if there is none.
pub(crate) fn counters_end() -> u64 {
    (0..used()).filter_map(get).map(|library| library.module.counters_end).max().unwrap_or(0)
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
    Some(index)
}

/// Says whether the library with this index is loaded.
pub(crate) fn set_loaded(index: u32, loaded: bool) {
    let Some(library) = get(index) else { return };
    if library.is_loaded() {
        remove_text(index);
    }
    let (lo, hi) = if loaded { library.extent } else { (0, 0) };
    library.hi.store(hi, Ordering::Relaxed);
    library.lo.store(lo, Ordering::Relaxed);
    if loaded {
        add_text(lo, hi, index);
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
