//! Everything that is known after a run, and what follows from it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::os::child::Ending;
use crate::profile::collect::Account;
use crate::profile::model::{Module, Profile};
use crate::profile::placement::Placed;
use crate::profile::recorder::Processes;
use crate::program::library::Library;
use crate::program::plan_cache::PlanCache;
use crate::program::planned::Planned;
use crate::sampling::sampler::Tally;
use crate::session::member::{Other, Unhooked};
use crate::session::unfollowed::Unfollowed;
use crate::trace::messages::Summary;

/// Everything that is known after a run.
pub(crate) struct Run<'r> {
    pub(crate) planned: &'r Planned<'r, 'r>,
    pub(crate) engine: &'static str,
    pub(crate) binary: &'r Path,
    pub(crate) ending: Ending,
    pub(crate) profile: &'r Profile,
    pub(crate) account: &'r Account,
    pub(crate) placed: &'r Placed,
    pub(crate) sampler: &'static str,
    pub(crate) rate: u32,
    pub(crate) tally: Tally,
    pub(crate) sampler_bytes: u64,
    pub(crate) plan_bytes: u64,
    pub(crate) injector_ns: u64,
    pub(crate) notes: &'r [String],
    /// The value of `--libs`.
    pub(crate) libs: &'r str,
    /// The libraries that are not hooked, each with the number of the program that has loaded it.
    pub(crate) unhooked: &'r BTreeMap<(u32, PathBuf), Unhooked>,
    /// The processes that the profile is of.
    pub(crate) processes: &'r Processes,
    pub(crate) others: &'r [Other],
    /// The programs that were not followed.
    pub(crate) unfollowed: &'r Unfollowed,
    /// What was traced, if anything was.
    pub(crate) traced: Option<&'r Summary>,
    /// What was kept of the slowest calls, if these were asked for.
    pub(crate) watched: Option<&'r Summary>,
    /// The plans of earlier runs.
    pub(crate) cache: &'r PlanCache,
    /// How long the program ran, with all other processes of the run.
    pub(crate) duration: Duration,
}

impl Run<'_> {
    /// Returns how many functions of the program were hooked.
    pub(super) fn hooked(&self) -> usize {
        let patched = self.planned.hooked().saturating_sub(self.account.unpatched as usize);
        if self.account.trouble.is_some() { 0 } else { patched }
    }

    /// Returns the modules that are libraries and were to be hooked.
    pub(super) fn hooked_libraries(&self) -> impl Iterator<Item = (&'static Library, &Module)> {
        let libraries = self.profile.modules.iter().filter_map(|module| Some((module.library?, module)));
        libraries.filter(|(library, _)| library.purpose.is_wanted())
    }

    /// Returns the libraries of the first program that are not hooked.
    pub(super) fn unhooked(&self) -> impl Iterator<Item = (&Path, &Unhooked)> {
        let own = self.unhooked.iter().filter(|((program, _), _)| *program == 0);
        let hooked = |path: &Path| self.hooked_libraries().any(|(library, _)| library.binary == path);
        own.map(|((_, path), why)| (path.as_path(), why)).filter(move |(path, _)| !hooked(path))
    }

    /// Returns the time that the samples in gprofinject's own code stand for, in seconds of CPU time.
    pub(super) fn own_seconds(&self) -> f64 {
        self.placed.own as f64 / f64::from(self.rate.max(1))
    }

    /// Returns how many instructions of another profiler were removed.
    pub(super) fn removed(&self) -> usize {
        let agent = self.planned.plan.is_some() && self.account.trouble.is_none();
        self.planned.image().filter(|_| agent).map_or(0, |image| image.removed.len())
    }
}
