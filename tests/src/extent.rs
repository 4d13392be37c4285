//! The extent to which tests run that could go on without limit.
//!
//! `cargo test` runs a part of the matrix, short loops and a few random programs; `tests/full.sh` sets
//! `GPROFINJECT_FULL=1` and runs all of it. docs/internals/testing.md describes both.

/// Whether each test runs to its full extent.
pub fn is_full() -> bool {
    std::env::var_os("GPROFINJECT_FULL").is_some_and(|value| !value.is_empty() && value != "0")
}

/// Returns `few`, or `many` if each test runs to its full extent.
pub fn few_or<T>(few: T, many: T) -> T {
    if is_full() { many } else { few }
}

/// Returns the number in the environment variable, or else the result of [`few_or`].
///
/// # Panics
/// If the value of the variable is not a number.
pub fn times(variable: &str, few: u64, many: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => few_or(few, many),
    }
}
