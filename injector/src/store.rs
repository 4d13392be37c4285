//! Files: the private folder of a run and what is in it, and the profiles that are written.
//!
//! Whatever a profiled process or another user can write to is read here, and checked here. What the contents mean is known above.

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
