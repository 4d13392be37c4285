//! The open calls that a forked child inherits from its parent.
//!
//! The records of open calls are in the region file, which is shared memory, so the parent changes them while the child starts.
//! Therefore each way to fork first copies the open calls to a list in private memory, whose copy in the child keeps the state at
//! the fork.
#![allow(unsafe_code, reason = "lists are in memory that is mapped here")]

use crate::hot::thread_blocks;
use crate::hot::times::threads::prepare;
use crate::hot::times::values::Values;
use crate::hot::times::{area, calls, clock, nodes, open, snapshot, trace};
use crate::os::kernel;
use crate::os::memory;
use crate::program::agent::Agent;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use gprofinject_abi::shared::{BlockRef, TimesRef};
use gprofinject_abi::times::{ENDS_SLOWLY, INHERITED, TAIL};

/// The open calls of a thread at its last fork. This header is at the start of a mapping that is never removed; `room` entries follow.
#[repr(C)]
struct List {
    /// The list that was made before this one. Written before the list is published.
    next: AtomicPtr<List>,
    /// The address of the thread block, or 0 if the list is too short for its thread. Only that thread, its signal handlers and its
    /// forked children use the entries.
    owner: AtomicU64,
    /// The maximum number of entries.
    room: u64,
    /// The number of entries in use. Written after the entries.
    count: AtomicU64,
}

/// An open call in a [`List`].
#[repr(C)]
struct Entry {
    cfa: AtomicU64,
    /// The function's number; bit 32 is set for a tail call.
    number: AtomicU64,
}

const IS_TAIL: u64 = 1 << 32;

/// The newest list, the head of a linked list of all lists.
static LISTS: AtomicPtr<List> = AtomicPtr::new(core::ptr::null_mut());

impl List {
    /// Returns the lists of a thread.
    fn of(block: BlockRef) -> impl Iterator<Item = &'static List> {
        let mut next = LISTS.load(Ordering::Acquire);
        core::iter::from_fn(move || {
            // SAFETY: the pointer is null, or `make` has published it after writing the list, which stays mapped.
            let list = unsafe { next.as_ref() }?;
            next = list.next.load(Ordering::Relaxed);
            Some(list)
        })
        .filter(move |list| list.owner.load(Ordering::Relaxed) == block.address())
    }

    /// Makes a list for a thread. Returns `None` if there is no memory.
    fn make(block: BlockRef, count: u64) -> Option<&'static List> {
        let len = (size_of::<List>() as u64 + count * size_of::<Entry>() as u64).next_multiple_of(4096);
        let at = memory::map_zeros(len, memory::PROT_READ | memory::PROT_WRITE).ok()?;
        let room = (len - size_of::<List>() as u64) / size_of::<Entry>() as u64;
        let place = at as *mut MaybeUninit<List>;
        let mut newest = LISTS.load(Ordering::Acquire);
        // SAFETY: the mapping is long enough and aligned, and no other code has its address yet.
        let list = unsafe {
            (*place).write(List {
                next: AtomicPtr::new(newest),
                owner: AtomicU64::new(block.address()),
                room,
                count: AtomicU64::new(0),
            })
        };
        // SAFETY: the list is initialized and stays mapped.
        let list = unsafe { &*core::ptr::from_mut(list) };
        while let Err(other) = LISTS.compare_exchange_weak(
            newest,
            core::ptr::from_ref(list).cast_mut(),
            Ordering::AcqRel,
            Ordering::Acquire,
        ) {
            newest = other;
            list.next.store(newest, Ordering::Relaxed);
        }
        Some(list)
    }

    /// Returns all entries, used or not.
    fn entries(&self) -> &[Entry] {
        // SAFETY: the mapping has room for `room` entries after the header, and zeros are valid entries.
        unsafe { core::slice::from_raw_parts(core::ptr::from_ref(self).add(1).cast(), self.room as usize) }
    }
}

/// Copies the open calls of the current chain to the calling thread's list, from which a child reads them. Every way to fork calls this
/// before the fork ([`crate::process::children`]).
pub(crate) extern "C" fn list() {
    let agent = Agent::get();
    if !agent.is_set_up || agent.orders.times_bytes == 0 || kernel::is_frozen() {
        return;
    }
    let Some(block) = thread_blocks::current(agent) else { return };
    calls::leave_out(|| write(block));
}

fn write(block: BlockRef) {
    let count = snapshot::open_calls(block).count() as u64;
    // A signal handler that forks at this time writes the same entries and further ones, into this list or into a longer one.
    let found = List::of(block).find(|list| {
        let is_long_enough = list.room >= count;
        if !is_long_enough {
            list.owner.store(0, Ordering::Relaxed);
        }
        is_long_enough
    });
    let Some(list) = found.or_else(|| List::make(block, count)) else { return };
    for (entry, call) in list.entries().iter().take(count as usize).rev().zip(snapshot::open_calls(block)) {
        let number = nodes::arc(call.arc().load(Ordering::Relaxed))
            .map_or(0, |arc| arc.callee().load(Ordering::Relaxed));
        let tail = if call.flags().load(Ordering::Relaxed) & TAIL != 0 { IS_TAIL } else { 0 };
        entry.cfa.store(area::cfa(call), Ordering::Relaxed);
        entry.number.store(u64::from(number) | tail, Ordering::Relaxed);
    }
    list.count.store(count, Ordering::Relaxed);
}

/// Opens the inherited calls in a forked child, whose thread block is empty. Only the parent counts them.
pub(crate) fn begin_child(child: &Agent, block: BlockRef) {
    open::forget_depth();
    let Some(list) = List::of(block).next() else { return };
    let times = block.times();
    for entry in list.entries().iter().take(list.count.load(Ordering::Relaxed) as usize) {
        let [cfa, number] = [&entry.cfa, &entry.number].map(|word| word.load(Ordering::Relaxed));
        if reopen(child, block, times, cfa, number as u32, number & IS_TAIL != 0).is_none() {
            break;
        }
    }
}

fn reopen(
    child: &Agent,
    block: BlockRef,
    times: TimesRef,
    cfa: u64,
    number: u32,
    is_tail: bool,
) -> Option<()> {
    prepare(child, block, cfa, clock::now())?;
    let top = area::call(times.top().load(Ordering::Relaxed))?;
    let entry = nodes::of_call(child, block, top, number)?;
    let flags = INHERITED | ENDS_SLOWLY | if is_tail { TAIL } else { 0 };
    let call = open::push(child, block, top, entry, cfa, flags)?;
    call.start().store(times.first().load(Ordering::Relaxed), Ordering::Relaxed);
    trace::begun(child, block, call, &Values::NONE);
    Some(())
}
