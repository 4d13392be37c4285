//! Numbers as text in columns.

pub(crate) use crate::cli::units::count;
use crate::cli::units::{amount_if_seen, is_seen};
use gmon_export::Time;

/// What stands before an estimate.
pub(crate) const ESTIMATE: &str = "~";

/// Returns one of a run's times, marked if it is an estimate, and blank if no sample has seen it.
pub(crate) fn time(of: Time, ns: u64, is_estimate: bool) -> String {
    let mark = if is_estimate && ns > 0 { ESTIMATE } else { "" };
    format!("{mark}{}", amount_if_seen(of, ns))
}

/// Returns a share of a whole, in percent; nothing if there is no whole, or no part that samples have seen.
pub(crate) fn share_if_seen(of: Time, part: u64, whole: u64) -> String {
    if is_seen(of, part) { share(part, whole) } else { String::new() }
}

/// Returns a share of a whole, in percent; nothing if there is no whole.
pub(crate) fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => String::new(),
        whole => format!("{:.2}", 100.0 * part as f64 / whole as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns() {
        assert_eq!(time(Time::Estimated, 1_500_000, true), "~1.500 ms");
        assert_eq!(time(Time::Estimated, 0, true), "");
        assert_eq!(time(Time::Executed, 0, false), "0  ");
        assert_eq!(share_if_seen(Time::Sampled, 0, 3), "");
        assert_eq!(share_if_seen(Time::Executed, 0, 3), "0.00");
        assert_eq!((count(123_456, 6), count(123_456, 5)), ("123456".into(), "123k".into()));
        assert_eq!((count(9_999_600, 5), count(u64::MAX, 6)), ("10M".into(), "18E".into()));
        assert_eq!((share(1, 3), share(1, 0)), ("33.33".into(), String::new()));
    }
}
