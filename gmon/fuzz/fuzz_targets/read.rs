//! Passes arbitrary bytes through read, check, merge and write. `report/tests/hostile.rs` runs the same
//! function.

#![no_main]

#[path = "../../tests/support/entry.rs"]
mod entry;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| entry::exercise(bytes));
