//! From what the threads of a process have counted to the values of its functions.

use gmon_run::{KeptValue, ValueCounts, ValueKind};
use gmon_trace::value::ValueKind as Shown;

use crate::profile::space::Space;
use crate::profile::values::{Key, REST, Values, add};
use crate::program::arguments::Kept;
use crate::store::region::tallies::{Caller, Tally};

/// Returns what the threads of a process have counted. What names no function of the process, or no value of it, is left out.
pub(crate) fn of_process(tallies: Vec<Tally>, space: &Space) -> Vec<Values> {
    if tallies.is_empty() {
        // It takes milliseconds to sort the exit labels of a large program.
        return Vec::new();
    }
    let labels = space.exit_labels();
    let values = tallies.into_iter().filter_map(|tally| {
        let function = space.entry(tally.function)?;
        let kept = space.kept(tally.function, tally.is_result)?.get(tally.index as usize)?;
        let (caller, path) = match tally.caller {
            Caller::Site { return_address, label } => {
                // A label in the return slot that is not the function's own, or in place of a return address, is that of a function that
                // has jumped.
                let (low, is_whole) = match label {
                    0 => (return_address as u32, true),
                    label => (label, false),
                };
                let jumped = labels.get(labels.partition_point(|(address, _)| (*address as u32) < low));
                let jumped = jumped.filter(|(address, place)| match is_whole {
                    true => *address == return_address,
                    false => *address as u32 == low && *place != function,
                });
                let jumped = jumped.map(|&(_, place)| place);
                (jumped.or_else(|| space.caller(return_address)), None)
            }
            Caller::Measured { function, path } => (function.and_then(|number| space.entry(number)), path),
            Caller::Rest { thread } => (None, thread.map(|thread| (thread, REST))),
        };
        let index = (tally.is_result, tally.index);
        let key = Key { function, caller, path, index, name: kept.name.clone() };
        Some(Values { key, counts: named(tally.counts, kept) })
    });
    let mut all = Vec::new();
    add(&mut all, values);
    all
}

/// Returns counts as their values are shown.
fn named(mut counts: ValueCounts, kept: &Kept) -> ValueCounts {
    let is_integer = matches!(counts.kind, ValueKind::Unsigned | ValueKind::Signed);
    if !is_integer {
        return counts;
    }
    match &kept.kind {
        Shown::Hex | Shown::Octal | Shown::Pointer | Shown::FunctionPointer => counts.kind = ValueKind::Hex,
        Shown::Char => counts.kind = ValueKind::Char,
        Shown::Bool => {
            name(&mut counts.kept, |value| Some(if value == 0 { "false" } else { "true" }.to_owned()))
        }
        Shown::Enum { variants, .. } => name(&mut counts.kept, |value| {
            variants.iter().find(|(known, _)| *known == value as i64).map(|(_, name)| name.clone())
        }),
        _ => {}
    }
    counts
}

fn name(kept: &mut [KeptValue], of: impl Fn(u64) -> Option<String>) {
    for value in kept {
        value.text = of(value.value);
    }
}
