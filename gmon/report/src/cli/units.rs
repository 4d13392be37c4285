//! Durations and counts as text.

/// Returns a duration with four digits and a unit that takes two columns, so that texts aligned to the right have
/// their units below each other.
pub(crate) fn duration(ns: u64) -> String {
    if ns < 1000 {
        return format!("{ns} ns");
    }
    let mut value = ns as f64;
    let mut unit = "ns";
    for larger in ["us", "ms", "s "] {
        // A value that would be rounded to 1000 has the larger unit.
        if value < 999.95 {
            break;
        }
        (value, unit) = (value / 1000.0, larger);
    }
    let decimals = match value {
        ..9.9995 => 3,
        ..99.995 => 2,
        ..999.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// Returns a count, or its first digits and a unit if it is wider than `width`.
pub(crate) fn count(count: u64, width: usize) -> String {
    let text = count.to_string();
    if text.len() <= width {
        return text;
    }
    let mut scaled = count as f64;
    let mut unit = "";
    for larger in ["k", "M", "G", "T", "P", "E"] {
        if scaled < 9999.5 {
            break;
        }
        (scaled, unit) = (scaled / 1000.0, larger);
    }
    format!("{scaled:.0}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

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
