//! The slots of a value: which value has one, and what becomes of the others.
#![allow(unsafe_code, reason = "slots are places in a thread block")]

use crate::hot::times::area;
use crate::program::agent::Agent;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::shared::{BlockRef, TextRef, ValueSlotRef, ValueTallyRef};
use gprofinject_abi::tally::{
    GROUP, GROUP_BYTES, GROUPS_MAX, GROWTH, GROWTH_MAX, TEXT_MAX, TEXT_UNITS, TEXTS_MAX, ValueClass,
    ValueClassCode, ValueSlot, group_offset, slots_units,
};
use gprofinject_abi::times::{Kind, UNIT};

/// A value that a call has.
pub(super) struct Seen<'t> {
    /// The value, or the hash of the text.
    pub(super) value: u64,
    /// The text, and its flags.
    pub(super) text: Option<(&'t [u8], u32)>,
}

const SLOT: u64 = size_of::<ValueSlot>() as u64;

fn slot(address: u64) -> Option<ValueSlotRef> {
    // SAFETY: callers name a slot of a table, which stays mapped. Only `ValueSlotRef` and the gates access it.
    unsafe { ValueSlotRef::at(address) }
}

/// Returns the error of a slot.
fn error(table: Table, index: u64) -> &'static AtomicU64 {
    // SAFETY: the errors of all slots follow the slots, in the same record.
    unsafe { AtomicU64::from_ptr((table.slots + table.groups() * GROUP_BYTES + 8 * index) as *mut u64) }
}

/// A table of slots.
#[derive(Clone, Copy)]
struct Table {
    slots: u64,
    mask: u64,
}

impl Table {
    fn of(tally: ValueTallyRef) -> Table {
        Table { slots: tally.slots().load(Ordering::Relaxed), mask: tally.mask().load(Ordering::Relaxed) }
    }

    fn groups(self) -> u64 {
        self.mask / GROUP_BYTES + 1
    }

    /// Returns the slots in which a value may be, with their indexes.
    fn group(self, value: u64) -> impl Iterator<Item = (u64, ValueSlotRef)> {
        let offset = group_offset(value, self.mask);
        let at = self.slots + offset;
        (0..GROUP).filter_map(move |n| Some((offset / SLOT + n, slot(at + n * SLOT)?)))
    }
}

/// Allocates a record of values, and returns its address.
pub(super) fn take(agent: &Agent, block: BlockRef, kind: Kind, units: u64) -> Option<u64> {
    let record = area::take(agent, block, kind, units)?;
    block.tally().used().fetch_add(units * UNIT, Ordering::Relaxed);
    Some(record)
}

/// Counts a value. A signal handler's call that has interrupted a gate (`is_nested`) changes no slots.
#[inline(never)]
pub(super) fn add(agent: &Agent, block: BlockRef, tally: ValueTallyRef, seen: Seen<'_>, is_nested: bool) {
    let Some(class) = ValueClassCode(tally.class().load(Ordering::Relaxed)).get() else { return };
    if is_nested {
        add_to_others(tally, class, seen.value, 1);
        tally.nested().fetch_add(1, Ordering::Relaxed);
        return;
    }
    loop {
        let table = Table::of(tally);
        let used = |slot: ValueSlotRef| slot.count().load(Ordering::Relaxed);
        let has = |slot: ValueSlotRef| slot.value().load(Ordering::Relaxed) == seen.value;
        if let Some((_, slot)) = table.group(seen.value).find(|&(_, slot)| used(slot) != 0 && has(slot)) {
            slot.count().fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Some((_, slot)) = table.group(seen.value).find(|&(_, slot)| used(slot) == 0) {
            slot.value().store(seen.value, Ordering::Relaxed);
            slot.count().store(1, Ordering::Relaxed);
            keep_text(agent, block, tally, &seen);
            return;
        }
        if !grow(agent, block, tally, table) {
            replace(table, tally, class, seen.value);
            keep_text(agent, block, tally, &seen);
            return;
        }
    }
}

/// Gives the slot of the value that can have been seen the fewest times to another one.
fn replace(table: Table, tally: ValueTallyRef, class: ValueClass, value: u64) {
    let bound = |index: u64, slot: ValueSlotRef| {
        slot.count().load(Ordering::Relaxed).wrapping_add(error(table, index).load(Ordering::Relaxed))
    };
    let Some((index, slot)) = table.group(value).min_by_key(|&(index, slot)| bound(index, slot)) else {
        return;
    };
    let most = bound(index, slot);
    let count = slot.count().load(Ordering::Relaxed);
    add_to_others(tally, class, slot.value().load(Ordering::Relaxed), count);
    tally.most().fetch_max(most, Ordering::Relaxed);
    error(table, index).store(most, Ordering::Relaxed);
    slot.value().store(value, Ordering::Relaxed);
    slot.count().store(1, Ordering::Relaxed);
}

/// Adds a value that was seen `count` times and has no slot.
#[inline(never)]
fn add_to_others(tally: ValueTallyRef, class: ValueClass, value: u64, count: u64) {
    let [low, high] = tally.sum();
    let product = match class {
        ValueClass::Unsigned => Some(i128::from(value) * i128::from(count)),
        ValueClass::Signed => Some(i128::from(value as i64) * i128::from(count)),
        ValueClass::Double => {
            add_float(low, f64::from_bits(value) * count as f64);
            None
        }
        ValueClass::Single => {
            add_float(low, f64::from(f32::from_bits(value as u32)) * count as f64);
            None
        }
        ValueClass::Text => None,
    };
    if let Some(product) = product {
        let part = product as u64;
        let before = low.fetch_add(part, Ordering::Relaxed);
        let carry = u64::from(before.checked_add(part).is_none());
        high.fetch_add(((product >> 64) as u64).wrapping_add(carry), Ordering::Relaxed);
    }
    tally.least().fetch_min(class.ordered(value), Ordering::Relaxed);
    tally.greatest().fetch_max(class.ordered(value), Ordering::Relaxed);
    if let Some(interval) = tally.histogram().get(class.interval(value)) {
        interval.fetch_add(count, Ordering::Relaxed);
    }
    tally.others().fetch_add(count, Ordering::Relaxed);
}

/// Adds to a sum that is stored as the bits of a number.
fn add_float(sum: &AtomicU64, part: f64) {
    let mut before = sum.load(Ordering::Relaxed);
    loop {
        let after = (f64::from_bits(before) + part).to_bits();
        match sum.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(other) => before = other,
        }
    }
}

/// Replaces the table by a larger one. Returns `false` if it may not grow, or if there is no room.
#[inline(never)]
fn grow(agent: &Agent, block: BlockRef, tally: ValueTallyRef, old: Table) -> bool {
    let groups = old.groups() * GROWTH;
    if groups > GROUPS_MAX || block.tally().used().load(Ordering::Relaxed) >= GROWTH_MAX {
        return false;
    }
    let Some(record) = take(agent, block, Kind::Slots, slots_units(groups)) else { return false };
    let new = Table { slots: record + UNIT, mask: (groups - 1) * GROUP_BYTES };
    // The offset of a value in a smaller table is a part of that in a larger one, so all values of a group find room.
    for index in 0..old.groups() * GROUP {
        let Some(from) = slot(old.slots + index * SLOT) else { continue };
        let (value, count) = (from.value().load(Ordering::Relaxed), from.count().load(Ordering::Relaxed));
        let free = new.group(value).find(|(_, slot)| slot.count().load(Ordering::Relaxed) == 0);
        if let Some((at, to)) = free.filter(|_| count != 0) {
            to.value().store(value, Ordering::Relaxed);
            to.count().store(count, Ordering::Relaxed);
            error(new, at).store(error(old, index).load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
    tally.slots().store(new.slots, Ordering::Release);
    tally.mask().store(new.mask, Ordering::Relaxed);
    true
}

/// Keeps the text of a value that has got a slot, if there is room.
#[inline(never)]
fn keep_text(agent: &Agent, block: BlockRef, tally: ValueTallyRef, seen: &Seen<'_>) {
    let Some((bytes, flags)) = seen.text else { return };
    if tally.texts().load(Ordering::Relaxed) >= TEXTS_MAX
        || block.tally().used().load(Ordering::Relaxed) >= GROWTH_MAX
    {
        return;
    }
    // SAFETY: the record is a part of the thread block, which stays mapped, and no other code has it.
    let text = take(agent, block, Kind::Text, TEXT_UNITS).and_then(|at| unsafe { TextRef::at(at) });
    if let Some(text) = text {
        text.write(bytes);
        text.flags().store(flags, Ordering::Relaxed);
        text.len().store(bytes.len().min(TEXT_MAX) as u32, Ordering::Relaxed);
        text.hash().store(seen.value, Ordering::Release);
        tally.texts().fetch_add(1, Ordering::Relaxed);
    }
}
