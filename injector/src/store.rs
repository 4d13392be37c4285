//! Files: the private folder of a run and its contents, and the profiles that are written.
//!
//! This layer reads everything to which a profiled process or another user can write, and checks it. The
//! layers above know what the contents mean.

pub(crate) mod exports;
pub(crate) mod libraries;
pub(crate) mod listener;
pub(crate) mod logbook;
pub(crate) mod output;
pub(crate) mod private_folder;
pub(crate) mod purpose;
pub(crate) mod rank;
pub(crate) mod region;
pub(crate) mod run_folder;
pub(crate) mod shape;
pub(crate) mod survivors;
pub(crate) mod trouble;
