//! Files: the private folder of a run and what is in it, and the profiles that are written.
//!
//! This layer reads whatever a profiled process or another user can write to, and checks it. What the contents mean is known
//! to the layers above.

pub(crate) mod libraries;
pub(crate) mod listener;
pub(crate) mod logbook;
pub(crate) mod output;
pub(crate) mod private_folder;
pub(crate) mod region;
pub(crate) mod run_folder;
pub(crate) mod shape;
pub(crate) mod survivors;
pub(crate) mod trouble;
