//! Errors that end the command, and the exit status of each.

/// gprofinject itself has failed.
pub(crate) const OURS: u8 = 125;
/// The program was found and cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such program.
pub(crate) const NOT_FOUND: u8 = 127;

/// Why there was no run, or a run without a profile.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) status: u8,
    pub(crate) error: anyhow::Error,
}

impl Failure {
    /// Returns the failure of a program that could not be executed, with the exit status that timeout(1) and
    /// env(1) have.
    pub(crate) fn exec(errno: i32, error: anyhow::Error) -> Failure {
        let status = if errno == libc::ENOENT { NOT_FOUND } else { NOT_EXECUTABLE };
        Failure { status, error }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure { status: OURS, error }
    }
}

/// An error for which there is something to try.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Tipped {
    pub(crate) message: String,
    /// What to try, in one line.
    pub(crate) tip: String,
}
