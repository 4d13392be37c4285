//! The values of arguments as messages of a file, and the other way round.

use crate::columns::{Columns, Texts, function, successor};
use crate::error::ReadError;
use crate::values::{INTERVALS, KEPT_MAX, KeptValue, OtherValues, ValueCounts, ValueKind, Values};
use crate::wire;

/// Returns the message of the table. `text` returns the index of a text.
pub(crate) fn written(all: &[Values], mut text: impl FnMut(&str) -> i64) -> wire::Values {
    let others = || all.iter().map(|of| &of.counts.others);
    let kept = || all.iter().flat_map(|of| &of.counts.kept);
    let low = |sum: i128| sum as u64;
    let mut named = |kept: &KeptValue| kept.text.as_deref().map_or(0, |known| text(known).saturating_add(1));
    let texts = kept().map(&mut named).collect();
    wire::Values {
        program: all.iter().map(|of| of.program).collect(),
        function: all.iter().map(|of| of.function).collect(),
        caller: all.iter().map(|of| successor(of.caller)).collect(),
        name: all.iter().map(|of| text(&of.name)).collect(),
        kind: all.iter().map(|of| of.counts.kind as u32).collect(),
        missing: all.iter().map(|of| of.counts.missing).collect(),
        others: others().map(|others| others.count).collect(),
        sum_low: others().map(|others| low(others.sum)).collect(),
        sum_high: others().map(|others| (others.sum >> 64) as i64).collect(),
        float_sum: others().map(|others| others.float_sum).collect(),
        least: others().map(|others| others.least).collect(),
        greatest: others().map(|others| others.greatest).collect(),
        histogram_len: others().map(|others| others.histogram.len() as u32).collect(),
        histogram: others().flat_map(|others| &others.histogram).copied().collect(),
        kept: all.iter().map(|of| of.counts.kept.len() as u32).collect(),
        value: kept().map(|kept| kept.value).collect(),
        count: kept().map(|kept| kept.count).collect(),
        error: kept().map(|kept| kept.error).collect(),
        text: texts,
        node: if all.iter().any(|of| of.node.is_some()) {
            all.iter().map(|of| successor(of.node)).collect()
        } else {
            Vec::new()
        },
    }
}

/// Returns what the message says. Indexes of the model are not checked.
pub(crate) fn read(all: &wire::Values, texts: &mut Texts) -> Result<Vec<Values>, ReadError> {
    const TABLE: &str = "values";
    let len = all.function.len();
    Columns { table: TABLE, len }.check(&[
        ("program", all.program.len()),
        ("caller", all.caller.len()),
        ("name", all.name.len()),
        ("kind", all.kind.len()),
        ("missing", all.missing.len()),
        ("others", all.others.len()),
        ("low half of the sum", all.sum_low.len()),
        ("high half of the sum", all.sum_high.len()),
        ("float sum", all.float_sum.len()),
        ("least", all.least.len()),
        ("greatest", all.greatest.len()),
        ("histogram length", all.histogram_len.len()),
        ("kept", all.kept.len()),
    ])?;
    if !all.node.is_empty() {
        Columns { table: TABLE, len }.check(&[("node", all.node.len())])?;
    }
    Columns { table: "kept values", len: all.value.len() }.check(&[
        ("count", all.count.len()),
        ("error", all.error.len()),
        ("text", all.text.len()),
    ])?;
    let (mut first, mut first_interval) = (0_usize, 0_usize);
    let mut values = Vec::new();
    for index in 0..len {
        let wrong = |what| ReadError::Entry { table: TABLE, index, what };
        let (kept, intervals) = (all.kept[index] as usize, all.histogram_len[index] as usize);
        if kept > KEPT_MAX || kept > all.value.len() - first {
            return Err(wrong("more kept values than there are"));
        }
        if intervals > INTERVALS || intervals > all.histogram.len() - first_interval {
            return Err(wrong("more intervals than there are"));
        }
        let histogram = all.histogram[first_interval..first_interval + intervals].to_vec();
        let kind = ValueKind::ALL.get(all.kind[index] as usize).copied();
        let mut value = |at: usize| {
            let text = match all.text[at] {
                0 => None,
                text => Some(texts.get(text - 1).map_err(|error| error.of(TABLE, index))?),
            };
            Ok(KeptValue { value: all.value[at], count: all.count[at], error: all.error[at], text })
        };
        let kept_values = (first..first + kept).map(&mut value).collect::<Result<_, ReadError>>()?;
        let sum = i128::from(all.sum_high[index]) << 64 | i128::from(all.sum_low[index]);
        values.push(Values {
            program: all.program[index],
            function: all.function[index],
            caller: function(TABLE, index, all.caller[index])?,
            node: function(TABLE, index, all.node.get(index).copied().unwrap_or(0))?,
            name: texts.get(all.name[index]).map_err(|error| error.of(TABLE, index))?,
            counts: ValueCounts {
                kind: kind.ok_or(wrong("an unknown kind"))?,
                kept: kept_values,
                others: OtherValues {
                    count: all.others[index],
                    sum,
                    float_sum: all.float_sum[index],
                    least: all.least[index],
                    greatest: all.greatest[index],
                    histogram,
                },
                missing: all.missing[index],
            },
        });
        (first, first_interval) = (first + kept, first_interval + intervals);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<Values> {
        let kept = |value, text: Option<&str>| KeptValue {
            value,
            count: 7,
            error: 2,
            text: text.map(str::to_owned),
        };
        let of = |name: &str, kind, kept: Vec<KeptValue>| Values {
            program: 1,
            function: 1,
            caller: Some(0),
            node: None,
            name: name.to_owned(),
            counts: ValueCounts { kind, kept, missing: 9, ..ValueCounts::default() },
        };
        let mut all = vec![
            of("size", ValueKind::Signed, vec![kept(u64::MAX, None), kept(3, None)]),
            of("text", ValueKind::Text, vec![kept(5, Some("a text")), kept(6, Some(""))]),
            of("retval", ValueKind::Double, vec![]),
        ];
        all[0].counts.others = OtherValues {
            count: 3,
            sum: -(1_i128 << 70),
            histogram: vec![1, 0, 2],
            ..OtherValues::default()
        };
        all[2].counts.others = OtherValues { count: 1, float_sum: -2.5, ..OtherValues::default() };
        all[2].caller = None;
        all[1].node = Some(4);
        all
    }

    #[test]
    fn read_as_written() {
        let mut strings = vec![String::new()];
        let written = written(&values(), |text| {
            strings.push(text.to_owned());
            strings.len() as i64 - 1
        });
        let mut texts = Texts { table: &strings, left: 1000 };
        assert_eq!(read(&written, &mut texts).expect("valid"), values());
        let wrong: [fn(&mut wire::Values); 7] = [
            |wire| wire.kind[0] = 7,
            |wire| wire.kept[1] = 3,
            |wire| wire.histogram_len[0] = 4,
            |wire| wire.text[0] = 99,
            |wire| wire.count.truncate(1),
            |wire| wire.caller[0] = u64::MAX,
            |wire| wire.node.truncate(2),
        ];
        for (number, change) in wrong.iter().enumerate() {
            let mut wire = written.clone();
            change(&mut wire);
            let mut texts = Texts { table: &strings, left: 1000 };
            assert!(read(&wire, &mut texts).is_err(), "{number}");
        }
    }
}
