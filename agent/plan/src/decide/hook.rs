//! Hooks.

use crate::decide::sled::Sled;
use crate::decide::verdict::Tactic;
use crate::flow::branch::Branch;
use crate::x86::jump::{JUMP, SHORT_JUMP};
use crate::x86::relocate::call::CALL_R11;

/// A branch that must lead to relocated code from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retarget {
    pub branch: Branch,
    /// Offset of its target from the hook point.
    pub offset: u64,
    /// Where its short displacement leads: a cave that jumps on. None: its own displacement reaches.
    pub cave: Option<u64>,
    /// The branch is among instructions that another function's hook relocates: its copy leads here.
    pub moved: bool,
}

/// A function to be hooked.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    /// Index in the image.
    pub function: usize,
    pub tactic: Tactic,
    /// Address of the patch.
    pub at: u64,
    /// Bytes from there on that are relocated; 0 with [`Tactic::CallSites`].
    pub relocated: u64,
    /// Cave of a [`Tactic::ShortJump`].
    pub cave: Option<u64>,
    pub retargets: Vec<Retarget>,
    /// Where the call that ends the relocated instructions is made in its place: see [`crate::x86::relocate::call`].
    pub call: Option<u64>,
    /// Of a [`Tactic::Sled`].
    pub sled: Option<Sled>,
    /// Another function slides into this one's patch.
    pub(crate) slid_into: bool,
    /// Bytes behind the jump handed out as caves: up to here, from the hook point.
    pub(crate) dead_used: u64,
}

impl Hook {
    /// The bytes of the program that the hook overwrites, as half-open ranges.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let entry = match (self.tactic, self.cave) {
            (Tactic::CallSites, _) => None,
            (Tactic::Frida, _) => Some((self.at, self.at + self.relocated)),
            (Tactic::Sled, _) => self.sled.map(|s| (self.at, self.at + s.len)),
            (_, Some(_)) => Some((self.at, self.at + SHORT_JUMP)),
            (_, None) => Some((self.at, self.at + JUMP)),
        };
        let caves = self.cave.into_iter().chain(self.retargets.iter().filter_map(|r| r.cave));
        let stay = self.retargets.iter().filter(|r| !r.moved);
        let sites = stay.map(|r| (r.branch.end() - u64::from(r.branch.width), r.branch.end()));
        let call = self.call.map(|at| (at, at + CALL_R11.len() as u64));
        entry.into_iter().chain(caves.map(|c| (c, c + JUMP))).chain(sites).chain(call)
    }
}

/// Whether a hook relocates what stands at an address. The hooks are in the order of their addresses.
pub(crate) fn relocates(hooks: &[Hook], address: u64) -> bool {
    let after = hooks.partition_point(|h| h.at <= address);
    after.checked_sub(1).is_some_and(|n| address < hooks[n].at + hooks[n].relocated)
}
