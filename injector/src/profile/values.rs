//! The values of arguments and results that the calls of a process had.

use std::collections::HashMap;

use gmon_run::ValueCounts;

use crate::profile::place::Place;

/// The values of one argument of a function, or of its result, in the calls by one caller.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub(crate) key: Key,
    pub(crate) counts: ValueCounts,
}

/// Which values these are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// The entry of the function.
    pub(crate) function: Place,
    /// The address of the call, or the entry of the function that has jumped; `None` if no function is known there.
    pub(crate) caller: Option<Place>,
    /// The path of the calls, if it is known: the index of a thread with measured calls, and that of a node among its nodes.
    pub(crate) path: Option<(u32, u32)>,
    /// The index of the value: arguments come before results.
    pub(crate) index: (bool, u32),
    pub(crate) name: String,
}

/// In place of the index of a node: all paths together for which there was no room.
pub(crate) const REST: u32 = u32::MAX;

/// Adds values to a list, in which those of one key are one.
pub(crate) fn add(list: &mut Vec<Values>, others: impl IntoIterator<Item = Values>) {
    let mut places: HashMap<Key, usize> =
        list.iter().enumerate().map(|(at, of)| (of.key.clone(), at)).collect();
    for other in others {
        match places.get(&other.key).and_then(|&at| list.get_mut(at)) {
            Some(own) => own.counts.add(other.counts),
            None => {
                places.insert(other.key.clone(), list.len());
                list.push(other);
            }
        }
    }
}

/// Subtracts what the same process had counted at an earlier time.
pub(crate) fn subtract(list: &mut Vec<Values>, before: &[Values]) {
    let old: HashMap<&Key, &ValueCounts> = before.iter().map(|of| (&of.key, &of.counts)).collect();
    for own in list.iter_mut() {
        if let Some(old) = old.get(&own.key) {
            own.counts.subtract(old);
        }
    }
    list.retain(|own| !own.counts.kept.is_empty() || own.counts.others.count > 0);
}
