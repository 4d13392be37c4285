//! The properties of a program other than its functions.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::file::imports::Profiling;
use crate::file::marks::TextMarks;

/// What is in [`Facts::runtime`] if the file contains the .NET runtime.
pub const NET: &str = ".NET";

/// The properties that matter for hooking.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Facts {
    /// The path in PT_INTERP; `None` for a static program.
    pub interpreter: Option<String>,
    /// Whether there is a .symtab with functions in it, in the program or in the debug file that was read
    /// with it.
    pub has_symtab: bool,
    /// Whether the unwinder is part of the program (libgcc or libunwind, linked statically).
    pub own_unwinder: bool,
    /// The name of a runtime that needs true return addresses, so that exits must not be hooked.
    pub runtime: Option<Cow<'static, str>>,
    pub go: bool,
    /// The name of a cryptographic module in the program that checks its own code, as FIPS 140 requires.
    pub checker: Option<Cow<'static, str>>,
    pub marks: TextMarks,
    /// Whether the program needs the shared AddressSanitizer, which insists on being the program's first
    /// library.
    pub address_sanitizer: bool,
    pub build_id: Option<Vec<u8>>,
    /// The addresses in code to which dynamic relocations write (DT_TEXTREL), sorted.
    pub text_relocations: Vec<u64>,
    /// Whether the code may find thread-local variables by TLS descriptors (`-mtls-dialect=gnu2`), which have a calling
    /// convention of their own.
    pub tls_descriptors: bool,
    /// Whether other files may bind to functions of this one.
    pub exports_functions: bool,
    /// Whether other files may bind to data that lies among the code.
    pub exports_code_as_data: bool,
    /// Whether the dynamic linker calls functions of the file when it loads it, or at its end.
    pub has_constructors: bool,
    pub profiling: Profiling,
    /// Whether calls of hooks are in [`crate::image::Image::removed`]. Then the hooks must be the C library's empty ones.
    pub hooks_removed: bool,
    /// Whether section headers say where the code is. Otherwise executable segments, which may also have data, count as code.
    pub has_code_sections: bool,
}
