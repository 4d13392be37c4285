//! From the bytes of a program to a decision for each of its functions. Pure: no I/O, no unsafe.
//!
//! [`image`] reads the ELF file; [`flow`] decodes the code; [`tactic`] decides; [`thunk`] writes the
//! machine code; [`encode`] makes the plan file of [`gprofinject_abi::plan`].
#![forbid(unsafe_code)]

pub mod image;
