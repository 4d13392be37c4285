//! What the caller of a loader chooses, and what may go wrong.

use gmon::{BuildId, Format};

/// How much is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Everything that the files of the run themselves say, and the names of functions.
    #[default]
    Functions,
    /// Also source lines and inlined calls, from the debug information of the modules. Reading it takes long.
    Lines,
}

/// Why the files of a run cannot be made one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    #[error("not a program")]
    Program(#[from] gprofinject_image::ProgramError),
    #[error(
        "the profile is of the program with build-id {profile}.., but this one has {program}..: rebuilt since the run"
    )]
    Build { profile: BuildId, program: BuildId },
    #[error("the profile is {profile}, but the program is {program}")]
    Format { profile: Format, program: Format },
}
