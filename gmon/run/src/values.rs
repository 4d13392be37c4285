//! The values of arguments and results (`gprofinject --values`), and how often each was seen.

use std::collections::{HashMap, HashSet};

/// The values of one argument, or of the result, of a function, in the calls by one caller.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Values {
    /// The index of the program.
    pub program: u32,
    /// The index of the called function.
    pub function: u32,
    /// The index of the calling function; `None` if no function is known.
    pub caller: Option<u32>,
    /// The index of the [node](crate::Node) of the path by which the function was called; `None` if the path is not known.
    pub node: Option<u32>,
    /// The name of the argument, or its number as in `arg1`; `retval` of a result.
    pub name: String,
    pub counts: ValueCounts,
}

/// What the bits of a value are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
pub enum ValueKind {
    #[default]
    Unsigned,
    /// An integer, extended with its sign.
    Signed,
    /// An address, or another integer that is shown in hexadecimal.
    Hex,
    /// The code of a character.
    Char,
    /// A floating-point number of 8 bytes.
    Double,
    /// A floating-point number of 4 bytes.
    Single,
    /// The hash of a text. Its numbers have no meaning.
    Text,
}

/// The number of intervals of a histogram: 0, one for each power of two, and one for numbers below 0.
pub const INTERVALS: usize = 66;
/// The index of the interval of numbers below 0.
const NEGATIVE: usize = 65;
/// The most values of which a count is kept.
pub const KEPT_MAX: usize = 4096;

impl ValueKind {
    /// All kinds, in the order of their numbers in a file.
    pub(crate) const ALL: [ValueKind; 7] = [
        ValueKind::Unsigned,
        ValueKind::Signed,
        ValueKind::Hex,
        ValueKind::Char,
        ValueKind::Double,
        ValueKind::Single,
        ValueKind::Text,
    ];

    /// Whether a value is a number of which sums and extremes say something.
    pub fn is_number(self) -> bool {
        self != ValueKind::Text
    }

    /// Returns the value as a number.
    pub fn number(self, value: u64) -> f64 {
        match self {
            ValueKind::Unsigned | ValueKind::Hex | ValueKind::Text => value as f64,
            ValueKind::Signed | ValueKind::Char => value as i64 as f64,
            ValueKind::Double => f64::from_bits(value),
            ValueKind::Single => f64::from(f32::from_bits(value as u32)),
        }
    }

    /// Returns the value as an integer, if it is one.
    fn integer(self, value: u64) -> Option<i128> {
        match self {
            ValueKind::Unsigned | ValueKind::Hex => Some(value.into()),
            ValueKind::Signed | ValueKind::Char => Some((value as i64).into()),
            ValueKind::Double | ValueKind::Single | ValueKind::Text => None,
        }
    }

    /// Returns the interval of a value: 0, or 1 + the exponent of the highest power of two in its integer part, or the last one if it is
    /// below 0.
    pub fn interval(self, value: u64) -> usize {
        let of = |value: u64| (u64::BITS - value.leading_zeros()) as usize;
        match self.integer(value) {
            Some(number) if number < 0 => NEGATIVE,
            Some(_) => of(value),
            None if self == ValueKind::Text => 0,
            None if self.number(value) < 0.0 => NEGATIVE,
            None => of(self.number(value) as u64),
        }
    }

    /// Returns whether a value is less than another.
    fn is_less(self, value: u64, other: u64) -> bool {
        match (self.integer(value), self.integer(other)) {
            (Some(value), Some(other)) => value < other,
            _ => self.number(value) < self.number(other),
        }
    }
}

/// How often each value was seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueCounts {
    pub kind: ValueKind,
    /// The values of which a count is kept, the most frequent first: at most [`KEPT_MAX`].
    pub kept: Vec<KeptValue>,
    /// The others together.
    pub others: OtherValues,
    /// The greatest number of times that a value that is not kept can have been seen.
    pub missing: u64,
}

/// A value, and the number of times that it was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptValue {
    /// Its bits.
    pub value: u64,
    pub count: u64,
    /// The count may be too low by so many.
    pub error: u64,
    /// The text, if it is known; of a number, its name in an enumeration.
    pub text: Option<String>,
}

/// Values of which no count is kept, and the counts that were given up for other values.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtherValues {
    pub count: u64,
    /// The sum of integers.
    pub sum: i128,
    /// The sum of floating-point numbers.
    pub float_sum: f64,
    /// The bits of the least and of the greatest one. They have no meaning if there is none.
    pub least: u64,
    pub greatest: u64,
    /// The numbers of values by [interval](ValueKind::interval), up to the last one that is not 0.
    pub histogram: Vec<u64>,
}

/// What all values have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueSummary {
    /// The number of calls.
    pub calls: u64,
    /// The sum of all values. It is exact as long as the sum of integers is less than 2^53.
    pub sum: f64,
    /// The same of integers, exact.
    pub integer_sum: Option<i128>,
    pub mean: f64,
    /// The bits of the least and of the greatest value.
    pub least: u64,
    pub greatest: u64,
    /// The numbers of values by interval.
    pub histogram: Vec<u64>,
}

impl OtherValues {
    /// Adds a value that was seen so many times.
    fn add(&mut self, kind: ValueKind, value: u64, count: u64) {
        let mut part = OtherValues { count, least: value, greatest: value, ..OtherValues::default() };
        match kind.integer(value) {
            Some(number) => part.sum = number.saturating_mul(count.into()),
            None if kind.is_number() => part.float_sum = kind.number(value) * count as f64,
            None => {}
        }
        part.histogram = vec![0; kind.interval(value) + 1];
        part.histogram[kind.interval(value)] = count;
        self.add_all(kind, &part);
    }

    fn add_all(&mut self, kind: ValueKind, other: &OtherValues) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 || kind.is_less(other.least, self.least) {
            self.least = other.least;
        }
        if self.count == 0 || kind.is_less(self.greatest, other.greatest) {
            self.greatest = other.greatest;
        }
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.float_sum += other.float_sum;
        let len = self.histogram.len().max(other.histogram.len()).min(INTERVALS);
        self.histogram.resize(len, 0);
        for (sum, count) in self.histogram.iter_mut().zip(&other.histogram) {
            *sum = sum.saturating_add(*count);
        }
    }
}

impl ValueCounts {
    /// Returns what all values have in common.
    pub fn summary(&self) -> ValueSummary {
        let mut all = self.others.clone();
        for kept in &self.kept {
            all.add(self.kind, kept.value, kept.count);
        }
        let sum = all.sum as f64 + all.float_sum;
        ValueSummary {
            calls: all.count,
            sum,
            integer_sum: self.kind.integer(0).map(|_| all.sum),
            mean: if all.count == 0 { 0.0 } else { sum / all.count as f64 },
            least: all.least,
            greatest: all.greatest,
            histogram: all.histogram,
        }
    }

    /// Returns the number of calls.
    pub fn calls(&self) -> u64 {
        self.kept.iter().fold(self.others.count, |sum, kept| sum.saturating_add(kept.count))
    }

    /// Adds the values of other calls, of the same kind. The count of a value that only one of both has kept may be too low by what the other one
    /// can have missed.
    pub fn add(&mut self, other: ValueCounts) {
        // Texts with equal hashes are one, and so are integers that one of two runs shows in another way.
        let mut places: HashMap<u64, usize> =
            self.kept.iter().enumerate().map(|(at, kept)| (kept.value, at)).collect();
        let mut is_in_both = vec![false; self.kept.len()];
        for mut kept in other.kept {
            match places.get(&kept.value) {
                Some(&at) => {
                    let own = &mut self.kept[at];
                    own.count = own.count.saturating_add(kept.count);
                    own.error = own.error.saturating_add(kept.error);
                    own.text = own.text.take().or(kept.text);
                    // A file may name a value twice.
                    if let Some(is_in_both) = is_in_both.get_mut(at) {
                        *is_in_both = true;
                    }
                }
                None => {
                    kept.error = kept.error.saturating_add(self.missing);
                    places.insert(kept.value, self.kept.len());
                    self.kept.push(kept);
                }
            }
        }
        for (own, _) in self.kept.iter_mut().zip(is_in_both).filter(|(_, is_in_both)| !is_in_both) {
            own.error = own.error.saturating_add(other.missing);
        }
        self.missing = self.missing.saturating_add(other.missing);
        self.others.add_all(self.kind, &other.others);
        self.settle();
    }

    /// Adds a value that gets no count of its own.
    pub(crate) fn add_other(&mut self, value: u64, count: u64) {
        self.others.add(self.kind, value, count);
    }

    /// Sorts the values, and gives up those for which there is no room.
    pub fn settle(&mut self) {
        self.kept.sort_by(|a, b| b.count.cmp(&a.count).then(a.value.cmp(&b.value)));
        for kept in self.kept.drain(KEPT_MAX.min(self.kept.len())..) {
            self.missing = self.missing.max(kept.count.saturating_add(kept.error));
            self.others.add(self.kind, kept.value, kept.count);
        }
    }

    /// Subtracts what was counted earlier. Extremes and errors stay.
    pub fn subtract(&mut self, before: &ValueCounts) {
        let old: HashMap<u64, u64> = before.kept.iter().map(|kept| (kept.value, kept.count)).collect();
        // A value that was kept then and is not any more is one of the others.
        let now: HashSet<u64> = self.kept.iter().map(|kept| kept.value).collect();
        let mut gone = before.others.clone();
        for kept in before.kept.iter().filter(|kept| !now.contains(&kept.value)) {
            gone.add(self.kind, kept.value, kept.count);
        }
        for kept in &mut self.kept {
            kept.count = kept.count.saturating_sub(old.get(&kept.value).copied().unwrap_or(0));
        }
        self.kept.retain(|kept| kept.count > 0);
        let others = &mut self.others;
        others.count = others.count.saturating_sub(gone.count);
        others.sum = others.sum.saturating_sub(gone.sum);
        others.float_sum -= gone.float_sum;
        for (count, old) in others.histogram.iter_mut().zip(&gone.histogram) {
            *count = count.saturating_sub(*old);
        }
        self.settle();
    }
}

/// Adds values to a list, in which those of the same function, caller, path and name are one.
pub(crate) fn merge(list: &mut Vec<Values>, others: impl Iterator<Item = Values>) {
    let key = |of: &Values| (of.program, of.function, of.caller, of.node, of.name.clone(), of.counts.kind);
    let mut places: HashMap<_, usize> = list.iter().enumerate().map(|(at, of)| (key(of), at)).collect();
    for other in others {
        match places.get(&key(&other)) {
            Some(&at) => list[at].counts.add(other.counts),
            None => {
                places.insert(key(&other), list.len());
                list.push(other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(kind: ValueKind, all: &[(u64, u64)], missing: u64) -> ValueCounts {
        let kept = all.iter().map(|&(value, count)| KeptValue { value, count, ..KeptValue::default() });
        ValueCounts { kind, kept: kept.collect(), missing, ..ValueCounts::default() }
    }

    #[test]
    fn a_sum_has_the_errors_of_both() {
        let mut sum = counts(ValueKind::Unsigned, &[(8, 10), (16, 4)], 3);
        sum.others.add(ValueKind::Unsigned, 100, 5);
        sum.add(counts(ValueKind::Unsigned, &[(8, 1), (24, 7)], 2));
        let all: Vec<_> = sum.kept.iter().map(|kept| (kept.value, kept.count, kept.error)).collect();
        assert_eq!(all, [(8, 11, 0), (24, 7, 3), (16, 4, 2)]);
        assert_eq!((sum.missing, sum.others.count), (5, 5));
        let summary = sum.summary();
        assert_eq!((summary.calls, summary.sum), (27, 88.0 + 168.0 + 64.0 + 500.0));
        assert_eq!((summary.least, summary.greatest), (8, 100));
        assert_eq!(summary.histogram, [0, 0, 0, 0, 11, 11, 0, 5]);
    }

    #[test]
    fn numbers_below_zero() {
        let signed = counts(ValueKind::Signed, &[(-3_i64 as u64, 2), (0, 1), (5, 1)], 0).summary();
        assert_eq!((signed.sum, signed.mean), (-1.0, -0.25));
        assert_eq!((signed.least as i64, signed.greatest), (-3, 5));
        assert_eq!(signed.histogram.len(), INTERVALS);
        assert_eq!((signed.histogram[0], signed.histogram[3], signed.histogram[NEGATIVE]), (1, 1, 2));
        let float =
            counts(ValueKind::Double, &[((-0.5_f64).to_bits(), 2), (2.5_f64.to_bits(), 2)], 0).summary();
        assert_eq!((float.sum, float.least), (4.0, (-0.5_f64).to_bits()));
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let all: Vec<_> = (0..KEPT_MAX as u64 + 10).map(|value| (value, 1 + u64::from(value < 5))).collect();
        let mut many = counts(ValueKind::Unsigned, &all, 0);
        many.settle();
        assert_eq!((many.kept.len(), many.others.count, many.missing), (KEPT_MAX, 10, 1));
        assert_eq!(many.summary().calls, KEPT_MAX as u64 + 15);
    }

    #[test]
    fn earlier_counts_are_subtracted() {
        let before = counts(ValueKind::Unsigned, &[(1, 5), (2, 5)], 0);
        let mut now = counts(ValueKind::Unsigned, &[(1, 5), (2, 8), (3, 1)], 0);
        now.subtract(&before);
        let all: Vec<_> = now.kept.iter().map(|kept| (kept.value, kept.count)).collect();
        assert_eq!(all, [(2, 3), (3, 1)]);
    }
}
