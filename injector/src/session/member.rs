//! What a family is made of: programs in processes, while they run and after their end.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::os::sys::Handle;
use crate::profile::baseline::Baseline;
use crate::profile::collect::Collected;
use crate::profile::placement::Placed;
use crate::program::profilee::Profilee;
use crate::target::grip::Grip;

/// One program in one process. A process that executes another program becomes another member.
pub(crate) struct Member {
    pub(crate) pid: i32,
    pub(crate) profilee: &'static Profilee,
    /// The name of its files in the run folder.
    pub(crate) name: String,
    /// How the program is reached while it runs.
    pub(crate) grip: Grip,
    /// What had been counted when its counts were last set to zero.
    pub(crate) baseline: Option<Baseline>,
    /// Whether counting is paused.
    pub(crate) is_paused: bool,
}

/// A process that has not ended, as far as is known.
pub(crate) struct Living {
    /// None: the first process, whose end its target reports.
    pub(crate) handle: Option<Handle>,
    /// The members that the process is, or was before it executed another program, in their order. Their profiles are not
    /// written yet.
    pub(crate) members: Vec<usize>,
}

impl Living {
    pub(crate) fn has_ended(&self) -> bool {
        self.handle.as_ref().is_some_and(Handle::has_ended)
    }
}

/// A member other than the first one, after its end.
pub(crate) struct Other {
    pub(crate) pid: i32,
    pub(crate) profilee: &'static Profilee,
    /// Its profile.
    pub(crate) file: PathBuf,
    /// The file in which gprof finds names.
    pub(crate) symbols: OsString,
    pub(crate) calls: u64,
    pub(crate) placed: Placed,
    pub(crate) collected: Collected,
}
