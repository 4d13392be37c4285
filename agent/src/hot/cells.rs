//! The shadow stack: a cell of 16 bytes for every 8 bytes of stack, at an address that depends only on the stack
//! address.
//!
//! The address space is divided into *regions* of 64 MiB. A region gets its shadow, 128 MiB of address space of which
//! only touched pages take memory, when the first hooked function runs on a stack in it. A thread's *window* is the
//! region in which it last ran; its thunks access that region's shadow by themselves, and call this module if the
//! stack pointer is elsewhere: on a first call, on a signal stack, in a coroutine.
//!
//! No order of frames has to be kept: the frames of a coroutine remain valid on any thread, and recursion may be as deep as
//! the stack.
//!
//! Coroutines may share a stack: the frames of one are copied away before another one runs there, in a way that the agent does
//! not see. A thunk that finds the cell of such a frame comes here ([`occupied`]). The contents of the cell are kept *aside*,
//! and the new frame gets an [interned label](crate::program::interned) in its return slot, by which it returns whatever its
//! cell contains by then ([`returns`]). So there is at most one frame for each CFA that depends on its cell: its contents are in
//! the cell if the state of that is not [`INTERNED`], and otherwise aside.
#![allow(unsafe_code, reason = "cells are places in a shadow, which addresses on the stack lead to")]

use crate::hot::bare;
use crate::hot::blocks;
use crate::hot::clear;
use crate::hot::next::Next;
use crate::os::memory;
use crate::os::shadow_stack;
use crate::os::task;
use crate::os::words;
use crate::program::agent::Agent;
use crate::program::domain::Domain;
use crate::program::interned;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering, compiler_fence};
use gprofinject_abi::plan::{
    ASIDE, Cell, DISTANCE, FREE, FunctionRecord, INTERNED, LEFT, RETURNING, SHADOWS as TABLE, STATE, WINDOW,
    WINDOW_WORD,
};
use gprofinject_abi::shared::CellRef;

pub(crate) const REGION: u64 = WINDOW;
const REGION_BITS: u32 = WINDOW.trailing_zeros();
/// User addresses have 47 bits.
const REGIONS: u64 = 1 << (47 - REGION_BITS);
pub(super) const PAGE: u64 = 4096;
/// Bytes of shadow for a region. A CFA at the region's end belongs to the next region.
pub(super) const SHADOW: u64 = 2 * REGION;
/// The offset, relative to a shadow, of the word that is not 0 if contents of cells can be kept aside.
const ASIDE_WORD: i64 = WINDOW_WORD - 8;

/// The bytes of the table of shadows, and of the shadow of the first stack.
pub(crate) const FIRST: u64 = REGIONS * size_of::<AtomicU64>() as u64 + PAGE + SHADOW;

/// The address of each region's shadow, or 0 if there is none yet. Each is written once, by compare-and-exchange.
static SHADOWS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Reserves the table of shadows and, directly after it, that of interned labels. Returns the address.
pub(crate) fn prepare() -> Result<u64, i32> {
    const { assert!(REGIONS * size_of::<AtomicU64>() as u64 == TABLE) };
    let table = memory::map_zeros(TABLE + interned::BYTES, memory::PROT_READ | memory::PROT_WRITE)?;
    SHADOWS.store(table as *mut AtomicU64, Ordering::Relaxed);
    // SAFETY: the zeros after the table of shadows are as long as the table of interned labels, and stay mapped.
    unsafe { interned::set_table(table + TABLE) };
    Ok(table)
}

/// Returns the address of the table of shadows.
pub(crate) fn table() -> u64 {
    SHADOWS.load(Ordering::Relaxed) as u64
}

fn region(address: u64) -> Option<&'static AtomicU64> {
    let index = address >> REGION_BITS;
    let table = SHADOWS.load(Ordering::Relaxed);
    if index >= REGIONS || table.is_null() {
        return None;
    }
    // SAFETY: `index` is less than REGIONS, the length of the table, which is never unmapped.
    Some(unsafe { &*table.add(index as usize) })
}

/// Returns the shadow of the region that contains `address`, if there is one.
pub(crate) fn shadow(address: u64) -> Option<u64> {
    let known = region(address)?.load(Ordering::Acquire);
    (known != 0).then_some(known)
}

/// Returns the shadow of the region that contains `address`. If there is none, this makes one.
#[cold]
pub(crate) fn made_shadow(address: u64) -> Option<u64> {
    let entry = region(address)?;
    let known = entry.load(Ordering::Acquire);
    if known != 0 {
        return Some(known);
    }
    // One more page in front holds the bits of blocks, the window's address, and whether contents can be kept aside. A limit of the
    // address space may leave no room for that.
    let protection = memory::PROT_READ | memory::PROT_WRITE;
    let twice = memory::map_zeros(PAGE + 2 * SHADOW, protection).map(|at| (at, 2 * SHADOW));
    let (at, len) =
        twice.or_else(|_| memory::map_zeros(PAGE + SHADOW, protection).map(|at| (at, SHADOW))).ok()?;
    let fresh = at + PAGE;
    // SAFETY: the words are the last two of that page, and no other code knows of the mapping.
    unsafe {
        *(fresh.wrapping_add_signed(WINDOW_WORD) as *mut u64) = address & !(REGION - 1);
        *(fresh.wrapping_add_signed(ASIDE_WORD) as *mut u64) = (len > SHADOW).into();
    }
    match entry.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(fresh),
        Err(other) => {
            // SAFETY: no other code knows of the mapping.
            let _ = unsafe { memory::munmap(at, PAGE + len) };
            Some(other)
        }
    }
}

/// Returns the cell of a frame, if the frame's region has a shadow. Every region in which a hooked function runs has
/// one. Integer code only; see [`crate::hot::gate`].
pub(crate) fn existing(cfa: u64) -> Option<CellRef> {
    shadow(cfa).map(|shadow| cell(shadow, cfa))
}

/// Returns the cell of a frame in the shadow of its region.
pub(crate) fn cell(shadow: u64, cfa: u64) -> CellRef {
    let at = (shadow + 2 * (cfa & (REGION - 1) & !7)) as *mut Cell;
    // SAFETY: a shadow is twice as long as a region, so the cell lies in it, and its address is a multiple of 16.
    // Shadows are never unmapped. Besides thunks, only `CellRef` accesses cells. An address within a mapping is not
    // 0.
    unsafe { CellRef::new(NonNull::new_unchecked(at)) }
}

/// Returns the place where the contents of a cell are kept aside, if they can be.
fn aside(shadow: u64, cfa: u64) -> Option<CellRef> {
    const { assert!(ASIDE == SHADOW && ASIDE_WORD < WINDOW_WORD) };
    // SAFETY: the word before the window's address is on the page in front of each shadow.
    let can_be = unsafe { *(shadow.wrapping_add_signed(ASIDE_WORD) as *const u64) } != 0;
    // The shadow is followed by one of the same length.
    can_be.then(|| cell(shadow + ASIDE, cfa))
}

/// The state of contents that were kept aside, for ever: there may be interned frames with this CFA, whatever the cell contains.
const TAKES_TURNS: u32 = RETURNING;

/// Returns whether there may be an interned frame with a CFA whose cell does not know of it.
pub(crate) fn takes_turns(shadow: u64, cfa: u64) -> bool {
    interned::take_turns()
        && aside(shadow, cfa).is_some_and(|aside| aside.link().load(Ordering::Relaxed) & STATE == TAKES_TURNS)
}

/// Returns whether a frame has used the cell and not returned: one that may return by it, or by its label.
pub(crate) fn is_in_use(cell: CellRef) -> bool {
    cell.link().load(Ordering::Relaxed) < FREE && cell.return_address().load(Ordering::Relaxed) != 0
}

/// Returns whether the cell's frame has neither returned nor been left by a jump.
pub(crate) fn is_alive(cell: CellRef) -> bool {
    is_in_use(cell) && distance(cell) != LEFT
}

/// Returns the distance in the cell's link: see [`Cell::link`].
pub(crate) fn distance(cell: CellRef) -> u32 {
    cell.link().load(Ordering::Relaxed) & DISTANCE
}

/// Returns the function that runs in the frame with this CFA, whose return slot contains `label`: an exit label, or an interned
/// one.
pub(crate) fn function(cell: CellRef, cfa: u64, label: u64) -> u32 {
    let own = match interned::at(label) {
        // The cell may be that of another frame, and does not know of this one.
        Some(entry) if !is_of(cell, entry.return_address().load(Ordering::Relaxed)) => {
            return entry.function().load(Ordering::Relaxed).wrapping_sub(1);
        }
        Some(_) => cell,
        None => shadow(cfa).and_then(|shadow| of_standard(shadow, cell, cfa)).unwrap_or(cell),
    };
    own.function().load(Ordering::Relaxed)
}

/// Copies the contents of a cell, with another state. A signal handler sees the old contents, or the new ones.
fn copy(from: CellRef, to: CellRef, state: u32) {
    let contents = from.function_and_link().load(Ordering::Relaxed) & !(u64::from(STATE) << 32);
    to.function_and_link().store(contents | u64::from(state) << 32, Ordering::Relaxed);
    compiler_fence(Ordering::Release);
    to.return_address().store(from.return_address().load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Marks a cell as free. The distance remains.
pub(super) fn free(cell: CellRef) {
    cell.link().store(cell.link().load(Ordering::Relaxed) | FREE, Ordering::Relaxed);
}

/// Gives a cell that an interned frame has used back: to the standard frame with the same CFA, if there is one.
pub(super) fn give_back(shadow: u64, cell: CellRef, cfa: u64) {
    match aside(shadow, cfa).filter(|aside| is_in_use(*aside)) {
        Some(aside) => {
            copy(aside, cell, 0);
            aside.return_address().store(0, Ordering::Relaxed);
            // The cell does not know from where unhooked code has called the standard frame.
            if distance(cell) != LEFT {
                cell.link().store(0, Ordering::Relaxed);
            }
        }
        None => free(cell),
    }
}

/// Notes that the cell with this CFA is about to be used.
fn open(shadow: u64, cfa: u64) {
    blocks::open(shadow, cfa);
    clear::shrink(cfa);
}

/// How a frame gets its cell.
enum Claim {
    /// The cell is free.
    Free,
    /// Another frame depends on the cell, or on what is aside, so the frame gets this interned label.
    Label(u64),
    /// The same, and there are no labels left.
    None,
}

/// Makes a cell ready for a new frame of a function.
fn claim(shadow: u64, cell: CellRef, cfa: u64, number: u32, return_address: u64) -> Claim {
    open(shadow, cfa);
    let link = cell.link().load(Ordering::Relaxed);
    if link >= FREE {
        return Claim::Free;
    }
    let is_standard = link & STATE == 0 && is_in_use(cell);
    let aside = aside(shadow, cfa);
    // An interned frame does not need its cell to return.
    if !is_standard && !aside.is_some_and(is_in_use) {
        return Claim::Free;
    }
    // The return of an interned frame is not that of the last call, which the processor's shadow stack would notice.
    let Some(aside) = aside.filter(|_| !shadow_stack::is_on()) else { return Claim::None };
    let Some(label) = interned::label(number, return_address) else { return Claim::None };
    if distance(cell) != LEFT {
        interned::note_turn();
    }
    if is_standard {
        copy(cell, aside, TAKES_TURNS);
    }
    Claim::Label(label)
}

/// Fills the cell of a frame that unhooked code has called, as the thunk would, and stores its caller in `link`. Returns where
/// the thunk continues. If the cell is not in the thread's window, that is [`Next::RARE`]: the thunk does it, or moves the
/// window. Integer code only; see [`crate::hot::gate`].
pub(crate) fn fill(
    agent: &Agent,
    record: &FunctionRecord,
    cfa: u64,
    number: u32,
    return_address: u64,
    link: u32,
) -> Next {
    let cells = words::get().cells().load(Ordering::Relaxed);
    if shadow(cfa) != Some(cells) {
        return Next::RARE;
    }
    let cell = cell(cells, cfa);
    match claim(cells, cell, cfa, number, return_address) {
        Claim::Free => {
            write(cell, cfa, number, return_address, link);
            Next::call(agent, number, record)
        }
        Claim::Label(label) => intern(agent, record, cell, cfa, number, return_address, link, label),
        Claim::None => bare(agent, record, number),
    }
}

/// Writes a cell. `link` includes the state.
fn write(cell: CellRef, cfa: u64, number: u32, return_address: u64, link: u32) {
    set(cell, number, link, return_address);
    // To a signal handler, the frame is there from now on.
    compiler_fence(Ordering::Release);
    Domain::of(number).last(words::get()).store(cfa, Ordering::Relaxed);
}

/// Begins an interned frame.
#[expect(clippy::too_many_arguments, reason = "a structure would be copied by a vector register")]
fn intern(
    agent: &Agent,
    record: &FunctionRecord,
    cell: CellRef,
    cfa: u64,
    number: u32,
    return_address: u64,
    link: u32,
    label: u64,
) -> Next {
    // SAFETY: the return slot is directly below the CFA, on the calling thread's stack, and its thunk has read it.
    unsafe { ((cfa - 8) as *mut u64).write_volatile(label) };
    write(cell, cfa, number, return_address, link | INTERNED);
    Next::handed_over(agent, number, record)
}

/// Continues with a call whose exit cannot be hooked, because its frame cannot have a cell.
fn bare(agent: &Agent, record: &FunctionRecord, number: u32) -> Next {
    agent.region.bare_calls().fetch_add(1, Ordering::Relaxed);
    Next::body(agent, number, record)
}

/// Handles a call whose thunk has not found a free cell in the thread's window: moves the window, and makes the cell ready. If
/// the shadow of the stack has to be made first, this returns [`Next::RARE`]. Integer code only; see [`crate::hot::gate`].
///
/// The thunk fills the cell then, unless it does so for no call: a call that leads here was made by unhooked code.
pub(crate) extern "C" fn occupied(number: u32, return_address: u64, cfa: u64) -> Next {
    let agent = Agent::get();
    let record = agent.function(number);
    let Some(shadow) = shadow(cfa) else { return Next::RARE };
    words::get().cells().store(shadow, Ordering::Relaxed);
    if record.is_for_callbacks() {
        return fill(agent, record, cfa, number, return_address, 0);
    }
    let cell = cell(shadow, cfa);
    if agent.in_thunks(return_address) && interned::at(return_address).is_some() {
        // A function without a cell that was called by a jump has jumped to this one. The frame keeps its label.
        hand_over(cfa, return_address, number);
        return Next::handed_over(agent, number, record);
    }
    match claim(shadow, cell, cfa, number, return_address) {
        Claim::Free => {
            cell.link().store(FREE, Ordering::Relaxed);
            Next::resume(agent, number, record)
        }
        Claim::Label(label) => intern(agent, record, cell, cfa, number, return_address, 0, label),
        Claim::None => bare(agent, record, number),
    }
}

/// Gives the frame with this CFA, whose return slot contains `label`, to the function with this number, which was tail-called in
/// it.
pub(crate) fn hand_over(cfa: u64, label: u64, number: u32) {
    bare::end_at(cfa);
    let Some(shadow) = shadow(cfa) else { return };
    let cell = cell(shadow, cfa);
    if let Some(entry) = interned::at(label) {
        let return_address = entry.return_address().load(Ordering::Relaxed);
        if !is_of(cell, return_address) {
            open(shadow, cfa);
            keep_aside(shadow, cell, cfa);
            set(cell, number, INTERNED, return_address);
        }
    }
    let own = if interned::at(label).is_some() { Some(cell) } else { of_standard(shadow, cell, cfa) };
    own.unwrap_or(cell).function().store(number, Ordering::Relaxed);
}

/// Returns whether the cell is that of an interned frame with this return address.
fn is_of(cell: CellRef, return_address: u64) -> bool {
    cell.link().load(Ordering::Relaxed) & STATE == INTERNED
        && cell.return_address().load(Ordering::Relaxed) == return_address
}

/// Keeps the contents of a cell aside if a standard frame depends on them.
fn keep_aside(shadow: u64, cell: CellRef, cfa: u64) {
    if cell.link().load(Ordering::Relaxed) & STATE == 0
        && is_in_use(cell)
        && let Some(aside) = aside(shadow, cfa)
    {
        copy(cell, aside, TAKES_TURNS);
    }
}

/// Sets the contents of a cell. A signal handler that interrupts this sees no frame, or a complete one: the return address is
/// written when the rest is there. A handler runs on the same thread, so the order of the instructions is sufficient.
pub(super) fn set(cell: CellRef, number: u32, link: u32, return_address: u64) {
    cell.function_and_link().store(u64::from(number) | u64::from(link) << 32, Ordering::Relaxed);
    compiler_fence(Ordering::Release);
    cell.return_address().store(return_address, Ordering::Relaxed);
}

/// Makes the shadow of a call's stack, if there is memory for it. Otherwise the call is counted, but its exit is not hooked.
pub(crate) extern "C" fn enter(number: u32, return_address: u64, cfa: u64) -> Next {
    let agent = Agent::get();
    if made_shadow(cfa).is_some() {
        return occupied(number, return_address, cfa);
    }
    bare(agent, agent.function(number), number)
}

/// Returns the return address of the frame with this CFA, whose return slot contains `label`, if it is alive.
pub(super) fn return_address(shadow: u64, cell: CellRef, cfa: u64, label: u64) -> Option<u64> {
    let address = match interned::at(label) {
        Some(entry) => entry.return_address().load(Ordering::Acquire),
        None => of_standard(shadow, cell, cfa)?.return_address().load(Ordering::Relaxed),
    };
    (address != 0).then_some(address)
}

/// Returns the place with the contents of the standard frame with this CFA, if there is one.
fn of_standard(shadow: u64, cell: CellRef, cfa: u64) -> Option<CellRef> {
    let is_interned = cell.link().load(Ordering::Relaxed) & STATE == INTERNED;
    let place = if is_interned { aside(shadow, cfa) } else { Some(cell) };
    place.filter(|place| is_in_use(*place))
}

/// Ends the use of the cell by the frame with this CFA, whose return slot has contained `label`.
pub(super) fn end(shadow: u64, cell: CellRef, cfa: u64, label: u64) {
    let is_interned = cell.link().load(Ordering::Relaxed) & STATE == INTERNED;
    match interned::at(label) {
        Some(entry) => {
            if is_of(cell, entry.return_address().load(Ordering::Relaxed)) {
                give_back(shadow, cell, cfa);
            }
        }
        None if is_interned => {
            if let Some(aside) = aside(shadow, cfa) {
                aside.return_address().store(0, Ordering::Relaxed);
            }
        }
        None => free(cell),
    }
}

/// Returns the return address of the frame with this CFA, whose return slot contains `label`, and ends its use of the cell.
/// Integer code only; see [`crate::hot::gate`].
pub(crate) fn take(cfa: u64, label: u64) -> u64 {
    let Some(shadow) = shadow(cfa) else { task::sleep_for_ever() };
    let cell = cell(shadow, cfa);
    let found = return_address(shadow, cell, cfa, label);
    end(shadow, cell, cfa, label);
    found.unwrap_or_else(|| cell.return_address().load(Ordering::Relaxed))
}

/// Makes the cell with this CFA that of an interned frame that returns. Its contents are kept aside if a standard frame depends
/// on them. `number` is that of the frame's function, if the cell does not know better.
fn prepare_return(return_address: u64, number: u32, cfa: u64) {
    let Some(shadow) = shadow(cfa) else { return };
    let cell = cell(shadow, cfa);
    if is_of(cell, return_address) {
        cell.link().store(distance(cell) | RETURNING, Ordering::Relaxed);
        return;
    }
    open(shadow, cfa);
    keep_aside(shadow, cell, cfa);
    set(cell, number, RETURNING, return_address);
}

/// Prepares the return of an interned frame. `slot` is what its return slot contains. Returns the exit label of its function,
/// which continues with the cell. Integer code only; see [`crate::hot::gate`].
pub(crate) extern "C" fn returns(slot: u64, cfa: u64) -> u64 {
    let Some(entry) = interned::at(slot) else { task::sleep_for_ever() };
    let agent = Agent::get();
    let number = entry.function().load(Ordering::Relaxed).wrapping_sub(1);
    prepare_return(entry.return_address().load(Ordering::Acquire), number, cfa);
    agent.base(number).wrapping_add(agent.function(number).exit.into())
}

/// Handles a return whose thunk has not found the cell of a standard frame in the thread's window. Returns the frame's return
/// address, and frees its cell, or what is aside. Integer code only; see [`crate::hot::gate`].
pub(crate) extern "C" fn exit(cfa: u64) -> u64 {
    let Some(shadow) = shadow(cfa) else {
        // This cannot happen: the frame's entry made the region's shadow, which is never removed. Without it, the
        // return address is unknown.
        task::sleep_for_ever()
    };
    words::get().cells().store(shadow, Ordering::Relaxed);
    let cell = cell(shadow, cfa);
    let state = cell.link().load(Ordering::Relaxed) & STATE;
    if state == INTERNED
        && let Some(aside) = aside(shadow, cfa).filter(|aside| is_in_use(*aside))
    {
        // The cell becomes that of the frame that returns. The interned frame whose cell it was can return without it.
        copy(aside, cell, 0);
        aside.return_address().store(0, Ordering::Relaxed);
    }
    if distance(cell) > LEFT {
        let domain = Domain::of(cell.function().load(Ordering::Relaxed));
        domain.last(words::get()).store(cfa + 8 * u64::from(distance(cell) - 1), Ordering::Relaxed);
    }
    let return_address = cell.return_address().load(Ordering::Relaxed);
    if state == RETURNING {
        give_back(shadow, cell, cfa);
    } else {
        free(cell);
    }
    return_address
}
