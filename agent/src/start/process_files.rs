//! The way in which the set-up gets at a process's files.

use crate::os::files;
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
            Files::Named(place) => opened(place, REGION_SUFFIX, true, work),
            Files::Open { region, .. } => work(*region),
        }
    }

    /// Calls `work` with a descriptor of the plan file.
    pub(crate) fn plan<T>(&self, work: impl FnOnce(i32) -> Result<T, i32>) -> Result<T, i32> {
        match self {
            Files::Named(place) => opened(place, PLAN_SUFFIX, false, work),
            Files::Open { plan, .. } => work(*plan),
        }
    }
}

/// Opens a file in the run folder. It may be a link through /proc, which the process cannot follow if it has fewer capabilities than
/// the injector, or another user or PID namespace; then the injector is asked for a descriptor.
fn opened<T>(
    place: &Place,
    suffix: &str,
    write: bool,
    work: impl FnOnce(i32) -> Result<T, i32>,
) -> Result<T, i32> {
    let fd = match files::open(place.file(suffix).path(), write) {
        // An injector that has stopped this process hears no questions.
        Err(errno) if !words::is_attached() => asking::file(place, suffix).map_err(|_| errno)?,
        opened => opened?,
    };
    let result = work(fd);
    files::close(fd);
    result
}
