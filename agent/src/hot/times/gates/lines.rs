//! Lines of assembly as one string, so that a piece of a `global_asm!` can be in a file of its own.

/// Joins lines of assembly.
macro_rules! lines {
    ($($line:expr),* $(,)?) => {
        concat!($($line, "\n"),*)
    };
}

pub(crate) use lines;
