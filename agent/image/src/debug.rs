//! Debug information: source lines, and the separate files that contain them.
//!
//! An ELF file enters; the lines of its addresses, or the bytes of its debug files, leave. This layer knows
//! nothing of profiles beyond the build-id that they carry.

mod authors;
mod embedded;
mod files;
mod lines;
mod names;
mod sections;
mod split;

pub use crate::debug::authors::Authors;
pub use crate::debug::files::{DebugFile, debug_files, module_file};
pub use crate::debug::lines::{FileIndex, Frame, Lines, LinesError, Location, Row};
pub use crate::debug::names::{file_with_names, names_alone};
pub use crate::debug::sections::SectionError;
pub use crate::debug::split::SplitFiles;
pub(crate) use crate::debug::{
    sections::contents,
    split::{section, split_units},
};
