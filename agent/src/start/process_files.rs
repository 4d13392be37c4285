//! The way in which the set-up gets at a process's files.

use crate::os::files::{self, Descriptor};
use crate::os::place::Place;
use crate::os::words;
use crate::start::asking;
use gprofinject_abi::{PLAN_SUFFIX, REGION_SUFFIX};

pub(crate) enum Files<'a> {
    Named(&'a Place),
    /// The files are already open, and the code that has opened them closes them.
    Open {
        region: i32,
        plan: i32,
    },
}

impl Files<'_> {
    /// Calls `work` with a descriptor of the region file.
    pub(crate) fn region<T>(&self, work: impl FnOnce(i32) -> Result<T, i32>) -> Result<T, i32> {
        match self {
            Files::Named(place) => work(opened(place, REGION_SUFFIX, true)?.number),
            Files::Open { region, .. } => work(*region),
        }
    }

    /// Returns a descriptor of the plan file.
    pub(crate) fn plan(&self) -> Result<Descriptor, i32> {
        match self {
            Files::Named(place) => opened(place, PLAN_SUFFIX, false),
            Files::Open { plan, .. } => Ok(Descriptor { number: *plan, is_own: false }),
        }
    }
}

/// Opens a file in the run folder. It may be a link through /proc, which the process cannot follow if it has fewer capabilities than
/// the injector, or another user or PID namespace; then the injector is asked for a descriptor.
fn opened(place: &Place, suffix: &str, write: bool) -> Result<Descriptor, i32> {
    let number = match files::open(place.file(suffix).path(), write) {
        // An injector that has stopped this process hears no questions.
        Err(errno) if !words::is_attached() => asking::file(place, suffix).map_err(|_| errno)?,
        opened => opened?,
    };
    Ok(Descriptor { number, is_own: true })
}
