//! The profiled program, if it was named.

use std::path::Path;

use gprofinject_image::instructions::Code;

/// The program of which all profiles are.
pub(super) struct Program<'a> {
    pub(super) path: &'a Path,
    pub(super) code: Code,
}
