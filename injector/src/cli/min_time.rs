//! The value of `--min-time`.

/// Which calls are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MinTime {
    /// Those that take at least as long as a limit that each thread raises for itself while its calls cost too much.
    Found,
    /// Those that take at least so many nanoseconds.
    Nanoseconds(u64),
}

impl MinTime {
    /// The value that stands for [`MinTime::Found`].
    pub(crate) const WORD: &'static str = "auto";
    /// The least limit that a thread has, and the greatest, in nanoseconds.
    const FOUND_NS: (u64, u64) = (200, 10_000);
    const MOST_NS: u64 = 1_000_000_000;

    /// Parses the value.
    ///
    /// # Errors
    /// Returns an error in the user's words if it is neither a number in the range nor [`MinTime::WORD`].
    pub(crate) fn of(value: &str) -> Result<MinTime, String> {
        if value == MinTime::WORD {
            return Ok(MinTime::Found);
        }
        match value.parse() {
            Ok(ns @ 1..=MinTime::MOST_NS) => Ok(MinTime::Nanoseconds(ns)),
            _ => Err(format!("a number of nanoseconds from 1 to {}, or auto, is needed", MinTime::MOST_NS)),
        }
    }

    /// Returns the limit of a thread at its beginning, and the greatest one that it may have later, in nanoseconds.
    pub(crate) fn limits(self) -> (u64, u64) {
        match self {
            MinTime::Found => MinTime::FOUND_NS,
            MinTime::Nanoseconds(ns) => (ns, ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MinTime;

    #[test]
    fn values() {
        assert_eq!(MinTime::of("auto"), Ok(MinTime::Found));
        assert_eq!(MinTime::of("1000000000").map(MinTime::limits), Ok((1_000_000_000, 1_000_000_000)));
        for wrong in ["", "0", "1000000001", "-1", "2us", "99999999999999999999"] {
            assert!(MinTime::of(wrong).is_err(), "{wrong}");
        }
    }
}
