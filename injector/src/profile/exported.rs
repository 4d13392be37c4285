//! From a profile to the model that exports take.
//!
//! There is one way there for each of the files that a run leaves, and it is that of the reader of these files: what is exported
//! at the end of a run is what `gmon export` would make of them.

use std::path::Path;

use anyhow::Result;
use gmon_export::Run;
use gmon_export::load::{self, Detail};
use gmon_measured::Measured;

use crate::profile::model::Profile;
use crate::profile::whole;

/// Returns what a profile says. `own` are the bytes of its gmon.out, and `measured` are its durations, if there are any.
///
/// # Errors
/// A format cannot represent the profile.
pub(crate) fn run(profile: &Profile, own: &[u8], measured: Option<&Measured>) -> Result<Run> {
    if let Some(measured) = measured {
        return Ok(load::measured(measured));
    }
    let program = profile.modules.first();
    if let Some(program) = program.filter(|program| !program.blocks().0.is_empty()) {
        // The view of the whole process has no counts of basic blocks.
        let bytes = program.program.subject.bytes;
        return Ok(load::program(Path::new(&profile.path), bytes, &gmon::read(own)?, Detail::Lines)?);
    }
    let whole = whole::encode(profile)?;
    Ok(load::process(&whole.symbols, &gmon::read(&whole.gmon)?, Detail::Lines)?)
}
