//! The bytes that are overwritten and relocated for a hooked function.

use crate::decide::sled::Sled;
use crate::decide::verdict::Tactic;
use crate::flow::branch::Branch;
use crate::flow::facts::Flow;
use crate::x86::jump::{JUMP, SHORT_JUMP};
use crate::x86::relocate::call::CALL_R11;

/// A branch that is redirected to relocated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Retarget {
    /// The branch.
    pub branch: Branch,
    /// Offset of its target from the hook point, in bytes.
    pub offset: u64,
    /// The cave to which the branch's short displacement leads, and from which a jump continues; `None` if
    /// the branch's own displacement reaches the target.
    pub cave: Option<u64>,
    /// Whether the branch is among instructions that another function's hook relocates. Its copy then
    /// leads to the target.
    pub moved: bool,
}

/// A function to be hooked.
#[derive(Clone, Debug)]
pub(crate) struct Hook {
    /// The function's index in the image.
    pub function: usize,
    /// How it is hooked.
    pub tactic: Tactic,
    /// Address of the patch.
    pub at: u64,
    /// The number of bytes from there on that are relocated; 0 with [`Tactic::CallSites`].
    pub relocated: u64,
    /// The cave of a [`Tactic::ShortJump`].
    pub cave: Option<u64>,
    /// Branches into the overwritten bytes, or with [`Tactic::CallSites`] the branches to the function.
    pub retargets: Vec<Retarget>,
    /// Address at which the call that ends the relocated instructions is still made, if it stays there:
    /// see [`crate::x86::relocate::call`].
    pub call: Option<u64>,
    /// For a [`Tactic::Sled`]: the patch, and the function that it leads to.
    pub sled: Option<Sled>,
    /// Whether another function slides into this one's patch.
    pub(crate) slid_into: bool,
    /// The number of bytes from the hook point on that the jump and the caves after it use.
    pub(crate) dead_used: u64,
}

impl Hook {
    /// Returns the bytes of the program that the hook overwrites, as half-open ranges of addresses.
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

    /// Returns whether the hook relocates a jump out of its function, or `None` if the jump cannot be redirected.
    pub(crate) fn redirects(&self, flow: &Flow, jump: Branch) -> Option<bool> {
        if flow.functions[jump.function as usize].undecodable {
            return None;
        }
        let touched = self.at..self.at + self.relocated.max(JUMP);
        let relocated = touched.contains(&jump.site);
        let inside = jump.site >= self.at && jump.end() <= self.at + self.relocated;
        let straddles = !relocated && touched.contains(&(jump.end() - 1));
        let fits = if relocated { inside } else { !straddles && jump.width == 4 };
        fits.then_some(relocated)
    }
}

/// Returns whether a hook relocates the instruction at an address. The hooks must be sorted by address.
pub(crate) fn relocates(hooks: &[Hook], address: u64) -> bool {
    let after = hooks.partition_point(|h| h.at <= address);
    after.checked_sub(1).is_some_and(|n| address < hooks[n].at + hooks[n].relocated)
}
