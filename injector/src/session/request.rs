//! What is asked of a run through its socket by `--dump`, `--reset`, `--pause` and `--resume`, and how the answer begins.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::options::Verb;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) pid: i32,
    pub(crate) verb: Verb,
    /// The absolute path of a dump; None: it goes where the profile will go.
    pub(crate) output: Option<PathBuf>,
}

/// The first byte of an answer if what was asked for was done. Text follows.
pub(crate) const DONE: u8 = b'+';
/// The first byte of an answer if it could not be done. The reason follows.
pub(crate) const FAILED: u8 = b'-';
