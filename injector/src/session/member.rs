//! The members of a family: programs in processes, while they run and after their end.

use std::os::fd::RawFd;

use crate::generated::Origin;
use crate::os::child::Ending;
use crate::os::clock::Moment;
use crate::os::sys::Handle;
use crate::profile::baseline::Baseline;
use crate::profile::collect::Account;
use crate::profile::costs::Advice;
use crate::profile::elsewhere::InFile;
use crate::profile::placement::Placed;
use crate::program::choice::Switched;
use crate::program::library::Refusal;
use crate::program::profilee::Profilee;
use crate::sampling::maps::Maps;
use crate::session::label::Label;
use crate::session::results::Item;
use crate::target::grip::Grip;

impl Other {
    /// Returns the words for it in messages.
    pub(crate) fn title(&self) -> String {
        match self.who {
            Who::Process(pid) => format!("process {pid}, {}", self.profilee.name()),
            Who::Program { processes: 1 } => self.profilee.name(),
            Who::Program { processes } => format!("{} ({processes} processes)", self.profilee.name()),
        }
    }
}

/// One program in one process. A process that executes another program becomes another member.
pub(crate) struct Member {
    pub(crate) pid: i32,
    pub(crate) profilee: &'static Profilee,
    /// The name of its files in the run folder; empty when its process has ended and another one may have them.
    pub(crate) name: String,
    /// The number of the process's parent when it began, or 0 if that is not known.
    pub(crate) parent: u32,
    /// What it is labelled with.
    pub(crate) label: Label,
    /// When it was noticed that it had begun.
    pub(crate) began: Moment,
    /// The memory that its counters took before it began, in bytes.
    pub(crate) committed_before: u64,
    /// The hold on the program while it runs.
    pub(crate) grip: Grip,
    /// What had been counted when its counts were last set to zero.
    pub(crate) baseline: Option<Baseline>,
    /// Whether counting is paused.
    pub(crate) is_paused: bool,
    /// The functions that were switched off or on.
    pub(crate) switched: Switched,
    /// The code that the process has mapped, as far as it is needed for the agent's samples.
    pub(crate) maps: Maps,
    /// What its process says of code that it makes at run time.
    pub(crate) origin: Origin,
    /// The instruction by which gprofinject has had the process make system calls, if it has attached to it.
    pub(crate) own_call: Option<InFile>,
    /// When it was noticed that it has ended, or has begun to execute another program.
    pub(crate) ended: Option<Moment>,
    /// How its process has ended, if it was this program then and that is known.
    pub(crate) ending: Option<Ending>,
}

/// A process that has not ended, as far as is known.
pub(crate) struct Living {
    /// The handle that reports the process's end; `None` for the first process, whose end its target reports.
    pub(crate) handle: Option<Handle>,
    /// The members that the process is, or was before it executed another program, in their order, as long as
    /// their profiles are not written.
    pub(crate) members: Vec<usize>,
}

impl Living {
    /// Whether the process has ended, by the descriptors that poll has reported. Always false for the first process.
    pub(crate) fn has_ended(&self, readable: &[RawFd]) -> bool {
        self.handle.as_ref().is_some_and(|handle| handle.has_ended(readable))
    }
}

/// Why a library is not hooked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unhooked {
    /// The user does not want it hooked.
    LeftOut,
    /// It cannot be, for this reason.
    Refused(Refusal),
}

/// Whose profile it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Process(i32),
    /// All processes of a program, of which there are so many.
    Program {
        processes: u32,
    },
}

/// The profile of a process other than the first one, or of a program other than the first process's.
pub(crate) struct Other {
    pub(crate) who: Who,
    pub(crate) profilee: &'static Profilee,
    /// What was written of it.
    pub(crate) item: Item,
    pub(crate) calls: u64,
    /// The number of samples in hooked modules.
    pub(crate) inside: u64,
    pub(crate) threads: u64,
    pub(crate) placed: Placed,
    pub(crate) account: Account,
    /// Why most of its samples are in gprofinject's own code, if they are.
    pub(crate) advice: Option<Advice>,
}
