//! The tactics: each is a method that hooks one function or returns the reason why it cannot.

use crate::decide::decider::Decider;
use crate::decide::fit::Fit;
use crate::decide::hook::{Hook, Retarget};
use crate::decide::options::Engine;
use crate::decide::start::{Start, simple_start};
use crate::decide::verdict::{Reason, Tactic};
use crate::decide::{frida, in_place, unwinder};
use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use crate::flow::head::hook_point;
use crate::x86::jump::{JUMP, SHORT_JUMP};
use gprofinject_image::Image;

/// Returns a hook by a jump over whole instructions, if nothing leads to them but calls of the function.
fn plain(image: &Image, flow: &Flow, function: usize) -> Option<Hook> {
    let (at, relocated) = simple_start(image, flow, function)?;
    Some(Hook {
        function,
        tactic: Tactic::Jump,
        at,
        relocated,
        cave: None,
        retargets: Vec::new(),
        dead_used: JUMP,
        call: None,
        sled: None,
        slid_into: false,
    })
}

/// Returns the address of a cave behind the jump over a function's own first bytes, for a short branch back to one of them
/// that ends at `from`, and the number of bytes that are then relocated. Go's functions end with such a branch: they grow
/// the stack there, and begin again.
fn own_cave(start: &Start, fit: &Fit, patch: u64, from: u64) -> Option<(u64, u64)> {
    const REACH: u64 = 128;
    let cave = start.hook + patch;
    let relocated = start.boundary(patch + JUMP)?.max(fit.relocated);
    let is_movable = start.steps.iter().all(|step| step.offset >= relocated || !step.call);
    // None of the branches that were looked at before may be among the instructions.
    let more = start.hook + fit.relocated..start.hook + relocated;
    let is_apart = start.soft.iter().all(|(_, branch)| !more.contains(&branch.site));
    let is_possible = is_movable && is_apart && !start.entered(patch, relocated, relocated);
    (is_possible && from - cave <= REACH && from >= start.hook + relocated).then_some((cave, relocated))
}

impl Decider<'_, '_, '_> {
    /// Hooks a function that has room of its own for a jump.
    pub(crate) fn with_room(&mut self, i: usize) -> Result<Tactic, Reason> {
        match self.means.engine {
            Engine::Builtin => self.near(i, false),
            // The agent needs hooks in these functions.
            Engine::Frida if unwinder::is_needed(self.image, i) => {
                self.frida(i).or_else(|_| self.near(i, false))
            }
            Engine::Frida => self.frida(i),
            Engine::FridaOrBuiltin => self.frida_or_builtin(i),
        }
    }

    /// Hooks the function by gum's `replace_fast`.
    fn frida(&mut self, i: usize) -> Result<Tactic, Reason> {
        let fit = self.frida_fit(i)?;
        Ok(self.by_frida(i, &fit))
    }

    /// Returns the bytes that gum would overwrite.
    fn frida_fit(&self, i: usize) -> Result<frida::Fit, Reason> {
        if let Some(&reason) = self.earlier.failed.get(&i) {
            return Err(reason);
        }
        let fit = frida::fit(self.image, self.flow, i)?;
        if fit.call && self.means.shadow_stack { Err(Reason::ShadowStack) } else { Ok(fit) }
    }

    /// Records gum's hook.
    fn by_frida(&mut self, i: usize, fit: &frida::Fit) -> Tactic {
        self.hooks[i] = Some(Hook {
            function: i,
            tactic: Tactic::Frida,
            at: fit.at,
            relocated: fit.overwritten,
            cave: None,
            retargets: Vec::new(),
            dead_used: fit.overwritten,
            call: None,
            sled: None,
            slid_into: false,
        });
        Tactic::Frida
    }

    /// Hooks the function by gum if possible. The exception is a function in which gum would have to
    /// relocate a call: there the built-in jump is preferred if it can leave the call in its place.
    fn frida_or_builtin(&mut self, i: usize) -> Result<Tactic, Reason> {
        match self.frida_fit(i) {
            Ok(fit) if fit.call => self.near(i, false).or_else(|_| Ok(self.by_frida(i, &fit))),
            Ok(fit) => Ok(self.by_frida(i, &fit)),
            Err(_) => self.near(i, false),
        }
    }

    /// Hooks the function by a near jump over its own bytes and the padding after them. With `over_call`,
    /// the relocated instructions may end with a call.
    pub(crate) fn near(&mut self, i: usize, over_call: bool) -> Result<Tactic, Reason> {
        if let Some(hook) = plain(self.image, self.flow, i) {
            self.hooks[i] = Some(hook);
            return Ok(Tactic::Jump);
        }
        if self.is_shorter(i, JUMP) {
            return Err(Reason::NoRoom);
        }
        let start = Start::of(self.image, self.flow, i).ok_or(Reason::NoCode)?;
        let (fit, padded) = self.fit(i, &start, JUMP, over_call)?;
        let tactic = if padded {
            Tactic::JumpIntoPadding
        } else if fit.over_call {
            Tactic::JumpOverCall
        } else {
            Tactic::Jump
        };
        if padded {
            self.padding_used[i] = JUMP - start.end;
        }
        self.accept(i, &start, fit, tactic, None, JUMP)
    }

    /// Hooks the function by a short jump to a cave.
    pub(crate) fn short(&mut self, i: usize) -> Result<Tactic, Reason> {
        let end = hook_point(self.image, &self.image.functions[i]) + SHORT_JUMP;
        if !self.flow.functions[i].undecodable && !self.may_have_cave(end, i) {
            return Err(Reason::NoRoom);
        }
        let start = Start::of(self.image, self.flow, i).ok_or(Reason::NoCode)?;
        let (fit, padded) = match self.fit(i, &start, SHORT_JUMP, false) {
            Ok(fit) => fit,
            Err(_) => self.fit(i, &start, SHORT_JUMP, true)?,
        };
        let Some(cave) = self.cave(start.hook + SHORT_JUMP, i) else { return Err(Reason::NoRoom) };
        if padded {
            self.padding_used[i] = self.padding_used[i].max(SHORT_JUMP - start.end);
        }
        self.accept(i, &start, fit, Tactic::ShortJump, Some(cave), SHORT_JUMP)
    }

    /// Accepts a fit: finds a new target for each branch into the overwritten bytes, and makes the hook.
    pub(crate) fn accept(
        &mut self,
        i: usize,
        start: &Start,
        mut fit: Fit,
        tactic: Tactic,
        cave: Option<u64>,
        patch: u64,
    ) -> Result<Tactic, Reason> {
        let mut dead_used = patch;
        let live_tail = start.entered(patch, fit.relocated, fit.relocated);
        let mut retargets = Vec::new();
        for &(offset, branch) in &start.soft {
            if offset >= patch {
                continue;
            }
            let is_foreign = self.image.owner(branch.function as usize) != i;
            if !start.is_boundary(offset) || is_foreign && self.earlier.unredirected.contains(&i) {
                return Err(Reason::JumpedInto);
            }
            let inside = branch.site >= start.hook && branch.end() <= start.hook + fit.relocated;
            if inside && !(live_tail && branch.site >= start.hook + patch) {
                continue;
            }
            let cave = match branch.width {
                // If there is no cave, the hook of the other function has to relocate the branch: see
                // `foreign::settle`.
                1 if is_foreign => self.cave(branch.end(), i),
                1 => Some(match self.cave(branch.end(), i) {
                    Some(cave) => cave,
                    None if tactic == Tactic::Jump && dead_used == patch => {
                        let (cave, relocated) =
                            own_cave(start, &fit, patch, branch.end()).ok_or(Reason::NoRoom)?;
                        fit.relocated = relocated;
                        dead_used += JUMP;
                        cave
                    }
                    None => return Err(Reason::NoRoom),
                }),
                _ => None,
            };
            retargets.push(Retarget { branch, offset, cave, moved: false });
        }
        self.hooks[i] = Some(Hook {
            function: i,
            tactic,
            at: start.hook,
            relocated: fit.relocated,
            cave,
            retargets,
            call: in_place::site(self.image, self.flow, i, start, &fit, tactic, patch),
            sled: None,
            slid_into: false,
            dead_used,
        });
        Ok(tactic)
    }

    /// Hooks the function at its call sites. Nothing of the function itself is overwritten.
    pub(crate) fn call_sites(&mut self, i: usize) -> Result<Tactic, Reason> {
        let f = &self.image.functions[i];
        if self.flow.is_taken(f.address) {
            return Err(Reason::NoRoom);
        }
        let branches = self.flow.branches_into(i, f.address + 1);
        let mut retargets = Vec::new();
        for &branch in branches {
            let from = branch.function as usize;
            let own_loop = self.image.owner(from) == i && branch.kind != BranchKind::Call;
            if own_loop {
                continue; // a loop, which goes on as it is
            }
            // The branch must either stay in its place or be relocated as a whole, and it must really be
            // an instruction.
            let hook = self.hooks[from].as_ref();
            let touched = hook.is_some_and(|h| {
                let touched = h.at..h.at + h.relocated.max(JUMP);
                touched.contains(&branch.site) || touched.contains(&(branch.end() - 1))
            });
            let moved = hook.is_some_and(|h| branch.site >= h.at && branch.end() <= h.at + h.relocated);
            let leads = if touched { moved } else { branch.width == 4 };
            if !leads || self.flow.functions[from].undecodable {
                return Err(Reason::NoRoom);
            }
            retargets.push(Retarget { branch, offset: 0, cave: None, moved });
        }
        let hook = Hook {
            function: i,
            tactic: Tactic::CallSites,
            at: f.address,
            relocated: 0,
            cave: None,
            retargets,
            call: None,
            sled: None,
            slid_into: false,
            dead_used: 0,
        };
        self.hooks[i] = Some(hook);
        Ok(Tactic::CallSites)
    }
}
