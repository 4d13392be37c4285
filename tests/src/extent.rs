//! How much of a test that could go on for ever is run.
//!
//! `cargo test` runs a part of the matrix, short storms and a few random programs; `tests/full.sh` sets `GPROFINJECT_FULL=1` and
//! runs all of it. docs/testing.md says what that is.

/// Whether everything is to be run.
pub fn is_full() -> bool {
    std::env::var_os("GPROFINJECT_FULL").is_some_and(|value| !value.is_empty() && value != "0")
}

/// `few`, or `many` if everything is to be run.
pub fn few_or<T>(few: T, many: T) -> T {
    if is_full() { many } else { few }
}

/// How often: the number in the environment variable, or else as [`few_or`].
///
/// # Panics
/// If the variable holds no number.
pub fn times(variable: &str, few: u64, many: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")),
        Err(_) => few_or(few, many),
    }
}
