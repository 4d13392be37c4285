//! The contract between a session and the process that it profiles, which is the same for a process that
//! gprofinject starts and for one to which it attaches.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::os::child::Ending;
use crate::os::failure::Failure;
use crate::os::say::Voice;
use crate::os::signals::Arrived;
use crate::program::library::Library;
use crate::program::numbered::Numbered;
use crate::program::planned::Planned;
use crate::sampling::maps::Mapped as Code;
use crate::sampling::perf::Scope;
use crate::store::run_folder::RunFolder;
use crate::target::agent::libraries::Wanted;
use crate::target::grip::Grip;
use crate::target::loaded::Mapped;

/// What a target needs to know about the run to become ready.
pub(crate) struct Readying<'r> {
    /// The run folder, if the process gets the agent.
    pub(crate) folder: Option<&'r RunFolder>,
    pub(crate) planned: &'r Planned<'static, 'static>,
    /// The libraries of the run.
    pub(crate) libraries: &'r Numbered<Library>,
    /// Those that the process has mapped already and that are to be hooked.
    pub(crate) wanted: &'r [Wanted],
    /// Whether children are followed.
    pub(crate) follows: bool,
    pub(crate) voice: Voice,
}

/// A target that is ready.
pub(crate) struct Ready {
    /// The hold on the program that counts.
    pub(crate) grip: Grip,
    /// Code that the kernel's records of mappings do not show: the agent's, if gprofinject has put it into the process.
    pub(crate) agent: Option<Code>,
    /// The reasons why libraries of [`Readying::wanted`] will not be hooked.
    pub(crate) unhooked: Vec<(PathBuf, String)>,
}

/// For how long a session may wait for events before it asks again whether the process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// For ever: a signal or the target's descriptor announces the end.
    Endless,
    AtMost(Duration),
    /// Not at all: the target is to be left now.
    Over,
}

/// A process that is profiled. A session calls the methods in the order in which they are declared.
pub(crate) trait Target {
    fn pid(&self) -> i32;

    /// The processes and threads whose events the kernel has to sample.
    fn scope(&self) -> Scope;

    /// Returns the difference between runtime addresses and link addresses, if the program is already mapped.
    fn bias(&self, planned: &Planned) -> Option<u64>;

    /// Returns why the target cannot be profiled: its end, if that is why there is an error.
    fn failed(&self, error: anyhow::Error) -> anyhow::Error {
        error
    }

    /// Returns the libraries that the process has mapped, if it already runs.
    fn loaded(&mut self) -> Mapped;

    /// Does everything that can be done before the profile begins.
    ///
    /// # Errors
    /// No profile is possible. [`Target::is_clean`] says whether something stays behind.
    fn make_ready(&mut self, readying: &Readying) -> Result<Ready>;

    /// Makes the profile begin.
    ///
    /// # Errors
    /// The process has ended.
    fn begin(&mut self, voice: Voice) -> Result<()>;

    /// Whether the injector may have several threads from now on. A target whose work is done by forked
    /// helpers forbids them.
    fn allows_threads(&self) -> bool;

    /// Returns how the process has ended, or `None` if it has not.
    fn ending(&mut self) -> Option<Ending>;

    /// Returns how long to wait before [`Target::ending`] is called again.
    fn patience(&self) -> Patience;

    /// Returns a descriptor that becomes readable when the process ends, if there is one.
    fn descriptor(&self) -> Option<RawFd>;

    /// Handles a signal that the injector has received. Returns false if the profile has to end now.
    fn hear(&mut self, arrived: Arrived) -> bool;

    /// Leaves the process alone from now on. `ending` says how it has ended, if it has.
    ///
    /// # Errors
    /// The program was never executed.
    fn leave(&mut self, grip: Option<&mut Grip>, ending: Option<Ending>, voice: Voice)
    -> Result<(), Failure>;

    /// Whether nothing of gprofinject is in the process any more.
    fn is_clean(&self) -> bool;

    /// Whether the hooks are known to have been in place, whatever the agent's report says.
    fn was_hooked(&self) -> bool;

    /// Returns why the agent was not put into the process, if gprofinject puts it there itself and knows.
    fn not_entered(&self) -> Option<&str>;

    /// Returns how the run ends after the profile has been written.
    ///
    /// # Errors
    /// The process could not be left.
    fn result(self, ending: Ending) -> Result<Ending, Failure>;
}
