//! What a session asks of the process that it profiles, whichever way it has come to it.

use std::os::fd::RawFd;
use std::time::Duration;

use anyhow::Result;

use crate::os::child::Ending;
use crate::os::failure::Failure;
use crate::os::say::Voice;
use crate::os::signals::Arrived;
use crate::program::planned::Planned;
use crate::sampling::perf::Scope;
use crate::store::run_folder::RunFolder;
use crate::target::grip::Grip;

/// What a target needs to know of the run to become ready.
pub(crate) struct Readying<'r> {
    /// The run folder, where there is an agent.
    pub(crate) folder: Option<&'r RunFolder>,
    pub(crate) planned: &'r Planned<'static, 'static>,
    /// Children are followed.
    pub(crate) follows: bool,
    pub(crate) voice: Voice,
}

/// How long a session may wait for something to happen before it asks for the end once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// The end is announced by a signal, or by the target's descriptor.
    Endless,
    AtMost(Duration),
    /// The target is to be left now.
    Over,
}

/// A process that is profiled. A session calls the methods in the order in which they stand here.
pub(crate) trait Target {
    fn pid(&self) -> i32;

    /// Whose events the kernel has to sample.
    fn scope(&self) -> Scope;

    /// Runtime addresses minus link addresses, if the program is mapped already.
    fn bias(&self, planned: &Planned) -> Option<u64>;

    /// Does all that can be done before the profile begins. Returns the hold on the program that counts.
    ///
    /// # Errors
    /// There can be no profile. [`Target::is_clean`] says whether something stays behind.
    fn make_ready(&mut self, readying: &Readying) -> Result<Grip>;

    /// Lets the profile begin.
    ///
    /// # Errors
    /// The process has ended.
    fn begin(&mut self, voice: Voice) -> Result<()>;

    /// Whether this process may have threads beside its first one from now on. A target whose work is done by forked helpers
    /// forbids them.
    fn allows_threads(&self) -> bool;

    /// How the process has ended; None: it has not.
    fn ending(&mut self) -> Option<Ending>;

    /// How long to wait before [`Target::ending`] is asked again.
    fn patience(&self) -> Patience;

    /// What becomes readable when the process ends, if something does.
    fn descriptor(&self) -> Option<RawFd>;

    /// Takes a signal that has come to this process. Returns false if the profile is to end now.
    fn hear(&mut self, arrived: Arrived) -> bool;

    /// Leaves the process alone from now on. `ending` says how it has ended, if it has.
    ///
    /// # Errors
    /// The program never came to run.
    fn leave(&mut self, grip: Option<&mut Grip>, ending: Option<Ending>, voice: Voice)
    -> Result<(), Failure>;

    /// Whether nothing of ours is in the process any more.
    fn is_clean(&self) -> bool;

    /// Whether the hooks are known to have been in place, whatever the agent's report says.
    fn was_hooked(&self) -> bool;

    /// How the run ends when the profile has been written.
    ///
    /// # Errors
    /// The process could not be left.
    fn result(self, ending: Ending) -> Result<Ending, Failure>;
}
