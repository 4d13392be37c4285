//! What a program is besides its functions.

use crate::file::imports::Profiling;
use crate::file::marks::TextMarks;

/// What else decides about hooking.
#[derive(Debug, Default)]
pub struct Facts {
    /// PT_INTERP, if any; none: a static program.
    pub interpreter: Option<String>,
    /// There is a .symtab with functions in it, in the program or in the debug file that was read with it.
    pub has_symtab: bool,
    /// The unwinder is part of the program (libgcc or libunwind, linked statically).
    pub own_unwinder: bool,
    /// A runtime that insists on true return addresses: exits must not be hooked.
    pub runtime: Option<&'static str>,
    pub go: bool,
    /// A cryptographic module in it checks its own code, by FIPS 140.
    pub checker: Option<&'static str>,
    pub marks: TextMarks,
    /// Wants the shared AddressSanitizer, which insists on being the first library of a program.
    pub address_sanitizer: bool,
    pub build_id: Option<Vec<u8>>,
    /// Sorted: addresses in code that dynamic relocations write to (DT_TEXTREL).
    pub text_relocations: Vec<u64>,
    pub profiling: Profiling,
    /// Calls of hooks are among what is [`Image::removed`]: they must be the C library's empty ones.
    pub hooks_removed: bool,
}
