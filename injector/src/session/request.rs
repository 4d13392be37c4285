//! The requests that `--dump`, `--reset`, `--pause` and `--resume` send to a run through its socket, and the
//! first byte of the answer.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::options::Verb;

/// A request.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) pid: i32,
    pub(crate) verb: Verb,
    /// The absolute path for a dump. `None` means the place where the profile will be written.
    pub(crate) output: Option<PathBuf>,
}

/// The first byte of the answer if the request was carried out. Text follows.
pub(crate) const DONE: u8 = b'+';
/// The first byte of the answer if the request failed. The reason follows.
pub(crate) const FAILED: u8 = b'-';
