//! Durations and counts as text.

use gmon_export::Time;

/// Returns a duration with four digits and a unit that takes two columns, so that texts aligned to the right have
/// their units below each other.
pub(crate) fn duration(ns: u64) -> String {
    if ns < 1000 {
        return format!("{ns} ns");
    }
    // A value that would be rounded to 1000 has the larger unit.
    let (value, unit) = scaled(ns as f64, "ns", &["us", "ms", "s "], 999.95);
    four_digits(value, unit)
}

/// Returns a time of a run, or a number of instructions if these take the place of times: all digits of up to seven, or four
/// and a unit that takes two columns.
pub(crate) fn amount(time: Time, value: u64) -> String {
    match time {
        Time::Executed if value < 10_000_000 => format!("{value}  "),
        Time::Executed => {
            let (value, unit) = scaled(value as f64 / 1e6, "M", &["G", "T", "P", "E"], 9999.5);
            four_digits(value, unit)
        }
        _ => duration(value),
    }
}

/// Returns the same for a column of times. A function without samples has taken a time that nobody has seen, which is blank: it may
/// have run between them. Of measured times, 0 is one.
pub(crate) fn amount_if_seen(time: Time, value: u64) -> String {
    match is_seen(time, value) {
        true => amount(time, value),
        false => String::new(),
    }
}

/// Whether the time of a function says something: all that was measured, and what samples have seen.
pub(crate) fn is_seen(time: Time, value: u64) -> bool {
    value > 0 || !matches!(time, Time::Sampled | Time::Estimated)
}

/// Returns a count, or its first digits and a unit if it is wider than `width`.
pub(crate) fn count(count: u64, width: usize) -> String {
    let text = count.to_string();
    if text.len() <= width {
        return text;
    }
    let (value, unit) = scaled(count as f64, "", &["k", "M", "G", "T", "P", "E"], 9999.5);
    format!("{value:.0}{unit}")
}

/// Returns a value in the first of some units, each a thousand times as large as the one before, in which it is less than `limit`, or in the
/// last one.
fn scaled(
    mut value: f64,
    mut unit: &'static str,
    larger: &[&'static str],
    limit: f64,
) -> (f64, &'static str) {
    for larger in larger {
        if value < limit {
            break;
        }
        (value, unit) = (value / 1000.0, larger);
    }
    (value, unit)
}

/// Returns a value with four digits, or with all before the point if these are more, and its unit.
fn four_digits(value: f64, unit: &str) -> String {
    let decimals = match value {
        ..9.9995 => 3,
        ..99.995 => 2,
        ..999.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions() {
        for (value, text) in [
            (0, "0  "),
            (9_999_999, "9999999  "),
            (10_000_000, "10.00 M"),
            (1_234_567_890, "1235 M"),
            (9_999_500_000, "10.00 G"),
            (u64::MAX, "18.45 E"),
        ] {
            assert_eq!(amount(Time::Executed, value), text);
        }
        assert_eq!(amount(Time::Sampled, 1000), "1.000 us");
        assert_eq!(amount_if_seen(Time::Sampled, 1000), "1.000 us");
        assert_eq!(amount_if_seen(Time::Sampled, 0), "");
        assert_eq!(amount_if_seen(Time::Estimated, 0), "");
        assert_eq!(amount_if_seen(Time::Executed, 0), "0  ");
    }

    #[test]
    fn four_digits() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1000, "1.000 us"),
            (12_345, "12.35 us"),
            (999_940, "999.9 us"),
            (999_950, "1.000 ms"),
            (999_999_999, "1.000 s "),
            (9_999_900_000, "10.00 s "),
            (61_234_567_890, "61.23 s "),
            (1_234_567_890_123, "1235 s "),
            (123_456_789_012_345, "123457 s "),
            (u64::MAX, "18446744074 s "),
        ] {
            assert_eq!(duration(ns), text);
        }
    }
}
