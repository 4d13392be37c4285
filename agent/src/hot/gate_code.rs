//! Where the code of the gates is, which `gate.rs` defines: [`crate::hot::interrupted`] recognises them by the program
//! counter.
#![allow(unsafe_code, reason = "the labels of assembly are declared")]

unsafe extern "C" {
    fn gpi_miss();
    fn gpi_tail();
    fn gpi_tail_called();
    fn gpi_exit();
    fn gpi_end();
    fn gpi_library_miss();
    fn gpi_library_tail();
    fn gpi_library_tail_called();
    fn gpi_library_exit();
    fn gpi_library_end();
}

/// Returns whether an address lies between two labels.
fn is_in(pc: u64, first: unsafe extern "C" fn(), end: unsafe extern "C" fn()) -> bool {
    pc >= first as usize as u64 && pc < end as usize as u64
}

/// Returns whether an address lies in a gate.
pub(crate) fn contains(pc: u64) -> bool {
    is_in(pc, gpi_miss, gpi_end) || is_library(pc)
}

/// Returns whether an address lies in a gate for functions of libraries.
pub(crate) fn is_library(pc: u64) -> bool {
    is_in(pc, gpi_library_miss, gpi_library_end)
}

/// Returns whether an address lies in a gate for tail calls.
pub(crate) fn is_tail(pc: u64) -> bool {
    is_in(pc, gpi_tail, gpi_exit) || is_in(pc, gpi_library_tail, gpi_library_exit)
}

/// Returns whether an address in a gate for tail calls lies after the call of the code that assigns the slot.
pub(crate) fn is_tail_called(pc: u64) -> bool {
    is_in(pc, gpi_tail_called, gpi_exit) || is_in(pc, gpi_library_tail_called, gpi_library_exit)
}
