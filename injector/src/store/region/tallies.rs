//! Reads the counts of values of one thread, whatever its process has written there.

use std::collections::HashMap;
use std::io;

use gmon_run::{KeptValue, OtherValues, ValueCounts, ValueKind};
use gprofinject_abi::args::CUT;
use gprofinject_abi::region::NO_FUNCTION;
use gprofinject_abi::tally::{
    AREA_MAX, CallTally, CallerKind, GROUP, GROUP_BYTES, GROUPS_MAX, NOT_READ, RESULT, TALLIES, TallyHeader,
    Text, ValueClass, ValueSlot, ValueTally, slots_units,
};
use gprofinject_abi::times::{Kind, Record, TIMES, TimesHeader, UNIT};

use crate::options::Measure;
use crate::store::region::area::{Found, records, value};
use crate::store::region::layout::{read_at, read_value};
use crate::store::region::read::{Head, Region};
use crate::store::region::times::node_indices;

/// What a thread has counted of one value of a function, in the calls by one caller.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// The number of the function.
    pub(crate) function: u32,
    pub(crate) caller: Caller,
    pub(crate) is_result: bool,
    /// The index of the value among the arguments, or among the results.
    pub(crate) index: u32,
    pub(crate) counts: ValueCounts,
}

/// What is known of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Site {
        return_address: u64,
        /// The lower half of the exit label that was in the return slot; 0 if the function has no exit, and of results.
        label: u32,
    },
    /// The calls were measured.
    Measured {
        /// The number of the function.
        function: Option<u32>,
        /// The path of the calls: the index of the thread among those with [times](Region::times), and that of the node among its nodes.
        path: Option<(u32, u32)>,
    },
    /// Nothing: there was no room.
    Rest {
        /// The index of the thread, as in a path.
        thread: Option<u32>,
    },
}

impl Region {
    /// Reads what the threads of the process have counted of the values of arguments and results. Returns it with the number of calls whose values
    /// were not kept.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn tallies(&self) -> io::Result<(Vec<Tally>, u64)> {
        let (mut all, mut lost) = (Vec::new(), 0_u64);
        if !self.layout.measure.is_some_and(|measure| measure.values) {
            return Ok((all, lost));
        }
        let start = self.layout.times_area();
        let measures = self.layout.measure.is_some_and(Measure::measures);
        let mut measured = 0;
        for Head { offset: block, .. } in self.own_blocks()? {
            let header: TallyHeader = read_value(&self.file, block + TALLIES)?;
            let times: TimesHeader = read_value(&self.file, block + TIMES)?;
            lost = lost.saturating_add(header.lost);
            let most = match measures {
                true => u64::MAX,
                false => AREA_MAX + (slots_units(GROUPS_MAX) + 1) * UNIT,
            };
            let len = times.used.min(times.committed).min(self.layout.times_bytes()).min(most);
            let mut area = vec![0; len as usize];
            read_at(&self.file, &mut area, block + start)?;
            let thread = (measures && times.base != 0).then_some(measured);
            measured += u32::from(thread.is_some());
            all.extend(read(&header, start, thread, &area));
        }
        Ok((all, lost))
    }
}

/// Reads what a thread has counted. `area` are its records, and `start` is the offset of the area in the thread block. `thread` is the
/// thread's index among those with times, if its calls were measured.
fn read(header: &TallyHeader, start: u64, thread: Option<u32>, area: &[u8]) -> Vec<Tally> {
    let nodes = thread.map(|_| node_indices(area)).unwrap_or_default();
    let mut texts: HashMap<u64, String> = HashMap::new();
    for Found { at, .. } in records(area).filter(|found| found.kind == Kind::Text) {
        if let Some(text) = value::<Text>(area, at) {
            texts.insert(text.hash, shown(&text));
        }
    }
    let mut all = Vec::new();
    for Found { at, len, .. } in records(area).filter(|found| found.kind == Kind::Tally) {
        let Some(call) = value::<CallTally>(area, at) else { continue };
        let Some(function) = (call.key as u32 & !(RESULT as u32)).checked_sub(1) else { continue };
        let caller = match call.caller_kind.get() {
            Some(CallerKind::Site) => {
                Caller::Site { return_address: call.return_address, label: (call.key >> 32) as u32 }
            }
            Some(CallerKind::Measured) => Caller::Measured {
                function: (call.caller != NO_FUNCTION).then_some(call.caller),
                path: thread.zip(nodes.get(&call.node).copied()),
            },
            Some(CallerKind::Rest) => Caller::Rest { thread },
            None => continue,
        };
        let room = (len - UNIT as usize) / size_of::<ValueTally>();
        for n in 0..room.min(call.values as usize) {
            let tally = value::<ValueTally>(area, at + UNIT as usize + n * size_of::<ValueTally>());
            let counts = tally.and_then(|tally| {
                let offset = tally.slots.wrapping_sub(header.base).wrapping_sub(start);
                let start = usize::try_from(offset.checked_sub(UNIT)?).ok()?;
                let Record { kind, units } = value(area, start)?;
                let end = start.checked_add(units as usize * UNIT as usize)?;
                let is_table = kind.get() == Some(Kind::Slots);
                let table = area.get(start + UNIT as usize..end).filter(|_| is_table)?;
                Some((tally.index, counts(&tally, table, &texts)?))
            });
            all.extend(counts.map(|(index, counts)| Tally {
                function,
                caller,
                is_result: call.key & RESULT != 0,
                index,
                counts,
            }));
        }
    }
    all
}

/// Returns a text as it is shown.
fn shown(text: &Text) -> String {
    if text.flags & NOT_READ != 0 {
        return "(not readable)".to_owned();
    }
    let bytes = text.bytes.get(..text.len as usize).unwrap_or(&text.bytes);
    let more = if text.flags & u32::from(CUT) != 0 { "..." } else { "" };
    format!("{}{more}", String::from_utf8_lossy(bytes))
}

/// Returns the counts of a value. `table` are its slots, and the errors of these.
fn counts(tally: &ValueTally, table: &[u8], texts: &HashMap<u64, String>) -> Option<ValueCounts> {
    let class = tally.class.get()?;
    let kind = match class {
        ValueClass::Unsigned => ValueKind::Unsigned,
        ValueClass::Signed => ValueKind::Signed,
        ValueClass::Double => ValueKind::Double,
        ValueClass::Single => ValueKind::Single,
        ValueClass::Text => ValueKind::Text,
    };
    let groups = table.len() / (GROUP_BYTES + GROUP * 8) as usize;
    let errors = groups * GROUP_BYTES as usize;
    let is_float = matches!(class, ValueClass::Double | ValueClass::Single);
    let mut kept = Vec::new();
    for n in 0..groups * GROUP as usize {
        let slot: ValueSlot = value(table, n * size_of::<ValueSlot>())?;
        if slot.count != 0 {
            let error: u64 = value(table, errors + n * size_of::<u64>()).unwrap_or(0);
            let text = if class == ValueClass::Text { texts.get(&slot.value).cloned() } else { None };
            let error = error.saturating_add(tally.nested);
            kept.push(KeptValue { value: slot.value, count: slot.count, error, text });
        }
    }
    let [low, high] = tally.sum;
    let mut histogram = tally.histogram.to_vec();
    while histogram.last() == Some(&0) {
        histogram.pop();
    }
    let others = OtherValues {
        count: tally.others,
        sum: if is_float { 0 } else { i128::from(high as i64) << 64 | i128::from(low) },
        float_sum: if is_float { f64::from_bits(low) } else { 0.0 },
        least: class.value_of(tally.least),
        greatest: class.value_of(tally.greatest),
        histogram,
    };
    let mut counts = ValueCounts { kind, kept, others, missing: tally.most.saturating_add(tally.nested) };
    counts.settle();
    Some(counts)
}

const _: () = assert!(gmon_run::INTERVALS == gprofinject_abi::tally::INTERVALS);

#[cfg(test)]
mod tests {
    use super::*;
    use gprofinject_abi::tally::{Slots, slots_units};
    use zerocopy::{FromZeros, IntoBytes};

    /// An area with one table of slots and one value, and a header.
    fn area() -> (TallyHeader, Vec<u8>) {
        let header = TallyHeader { base: 0x10000, ..TallyHeader::default() };
        let units = slots_units(4);
        let mut slots = vec![0; (units * UNIT) as usize];
        let record = |kind: Kind, units: u64| Record { kind: kind.code(), units: units as u32 };
        slots[..8].copy_from_slice(Slots { record: record(Kind::Slots, units) }.as_bytes());
        let slot = ValueSlot { value: 5, count: 3 };
        slots[64 + 32..64 + 48].copy_from_slice(slot.as_bytes());
        slots[64 + 256 + 16..64 + 256 + 24].copy_from_slice(&2_u64.to_le_bytes());
        let call = CallTally {
            record: record(Kind::Tally, 12),
            return_address: 0x1234,
            key: 8 | RESULT | 7 << 32,
            values: 1,
            ..CallTally::default()
        };
        let mut tally = ValueTally::new_zeroed();
        tally.slots = 0x10000 + 100 + UNIT;
        tally.class = ValueClass::Signed.code();
        (tally.others, tally.sum, tally.nested) = (2, [u64::MAX - 6, u64::MAX], 1);
        (tally.least, tally.greatest) =
            (ValueClass::Signed.ordered(-4_i64 as u64), ValueClass::Signed.ordered(-3_i64 as u64));
        tally.histogram[65] = 2;
        (header, [slots.as_slice(), call.as_bytes(), tally.as_bytes()].concat())
    }

    #[test]
    fn what_an_agent_has_written() {
        let (header, area) = area();
        let all = read(&header, 100, None, &area);
        let [tally] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!((tally.function, tally.caller), (7, Caller::Site { return_address: 0x1234, label: 7 }));
        assert!(tally.is_result);
        let kept = KeptValue { value: 5, count: 3, error: 3, text: None };
        assert_eq!(tally.counts.kept, [kept]);
        let summary = tally.counts.summary();
        assert_eq!((summary.calls, summary.sum, summary.least as i64, summary.greatest), (5, 8.0, -4, 5));
    }

    #[test]
    fn hostile_areas() {
        let (header, good) = area();
        for at in 0..good.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = byte;
                read(&header, 100, Some(0), &bad);
            }
            read(&header, 100, Some(0), &good[..at]);
        }
    }
}
