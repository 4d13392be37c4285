//! How each function is hooked, or why not.
//!
//! First every function that has room gets a near jump; then those that have none look for a *cave*,
//! five unused bytes within reach of a short jump: padding between functions, or bytes behind another
//! function's near jump that are dead because the instructions there were relocated. What is left slides
//! into its neighbour's patch ([`sled`]).

mod caves;
mod fit;
pub(crate) mod foreign;
pub mod frida;
mod in_place;
pub mod sled;
mod verdict;

pub use verdict::{Reason, Tactic};

use crate::falls;
use crate::flow::{Branch, BranchKind, Flow, NEAR};
use crate::parallel;
use crate::plan::Engine;
use crate::relocate::call::CALL_R11;
use crate::start::{Start, hook_point, owner, simple_start};
use crate::unwinder;
use fit::{Fit, fit};
use gprofinject_image::{FunctionKind, Image};
use sled::Sled;
use std::collections::{BTreeSet, HashMap};
use std::ops::{Index, IndexMut, Range};

/// Bytes of `jmp rel32` and `jmp rel8`.
pub const JUMP: u64 = 5;
pub const SHORT_JUMP: u64 = 2;

/// A branch that must lead to relocated code from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retarget {
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
pub struct Hook {
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
    /// Where the call that ends the relocated instructions is made in its place: see [`crate::relocate::call`].
    pub call: Option<u64>,
    /// Of a [`Tactic::Sled`].
    pub sled: Option<Sled>,
    /// Another function slides into this one's patch.
    slid_into: bool,
    /// Bytes behind the jump handed out as caves: up to here, from the hook point.
    dead_used: u64,
}

impl Hook {
    /// The bytes of the program that the hook overwrites, as half-open ranges.
    pub fn spans(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
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

/// The decision for each function of the image.
pub struct Decisions {
    pub verdicts: Vec<Result<Tactic, Reason>>,
    /// In the order of the image's functions.
    pub hooks: Vec<Hook>,
}

/// Functions that turned out not to be hookable after all.
pub type Failed = HashMap<usize, Reason>;

/// Decides. `selected` says which functions the user wants.
pub fn decide(
    image: &Image,
    flow: &Flow,
    selected: &(dyn Fn(usize) -> bool + Sync),
    engine: Engine,
    failed: &Failed,
) -> Decisions {
    let given = (image, flow, failed, engine);
    let count = image.functions.len();
    let mut verdicts = vec![Err(Reason::NoRoom); count];
    let mut hooks: Vec<_> = (0..count).map(|_| None).collect();
    let mut padding_used = vec![0; count];
    // Only who finds no room among its neighbours needs a look at all others.
    let part = count.div_ceil(parallel::parts(count)).max(1);
    let slices = verdicts.chunks_mut(part).zip(hooks.chunks_mut(part)).zip(padding_used.chunks_mut(part));
    let parts = (0..).step_by(part).zip(slices).map(|(first, ((verdicts, hooks), padding_used))| {
        Decider::new(given, first, verdicts, hooks, padding_used)
    });
    let with_cave: [Way; 3] = [|d, i| d.with_room(i), |d, i| d.short(i), |d, i| d.near(i, true)];
    let cut = parallel::each(parts.collect(), |mut part: Decider| {
        part.without_caves(selected);
        let wanting = std::mem::take(&mut part.cut);
        part.look_for_caves();
        if !wanting.is_empty() {
            part.in_turn(wanting.into_iter(), &with_cave[..1]);
            part.look_for_caves();
        }
        part.in_turn(part.hooks.functions(), &with_cave[1..]);
        part.cut
    });
    let mut all = Decider::new(given, 0, &mut verdicts, &mut hooks, &mut padding_used);
    if (0..count).any(|i| all.is_open(i)) {
        all.look_for_caves();
        all.in_turn(cut.into_iter().flatten(), &with_cave);
        all.in_turn(0..count, &[|d, i| d.call_sites(i)]);
        all.sleds();
    }
    for hook in hooks.iter().flatten() {
        verdicts[hook.function] = Ok(hook.tactic);
    }
    // In place, as flatten() does not do it.
    #[expect(clippy::filter_map_identity)]
    let hooks = hooks.into_iter().filter_map(|hook| hook).collect();
    Decisions { verdicts, hooks }
}

/// Why it is not to be hooked at all.
fn refuse(
    image: &Image,
    flow: &Flow,
    engine: Engine,
    failed: &Failed,
    i: usize,
    selected: &dyn Fn(usize) -> bool,
) -> Option<Reason> {
    let f = &image.functions[i];
    if matches!(f.kind, FunctionKind::Cold(_)) {
        return Some(Reason::ColdPart);
    }
    if f.kind == FunctionKind::Start {
        return Some(Reason::EntryPoint);
    }
    if !selected(i) {
        return Some(Reason::NotSelected);
    }
    if falls::is_no_start(image, flow, i) {
        return Some(Reason::RunInto);
    }
    if f.size == 0 || image.code_at(f.address, f.size).is_none() {
        return Some(Reason::NoCode);
    }
    let relocations = &image.facts.text_relocations;
    let next = relocations.partition_point(|&r| r + 8 <= f.address);
    if relocations.get(next).is_some_and(|&r| r < f.address + NEAR) {
        return Some(Reason::TextRelocation);
    }
    if image.facts.runtime.is_some() && flow.functions[i].table_loops {
        return Some(Reason::LoopsThroughTable);
    }
    let failed = failed.get(&i).copied();
    failed.filter(|reason| engine != Engine::FridaOrBuiltin || *reason != Reason::FridaNotRelocatable)
}

/// A jump over whole instructions, where nothing but calls of the function leads to them.
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

/// Values of the functions in a part of the image, by the functions' indices in the image.
struct Part<'s, T> {
    first: usize,
    values: &'s mut [T],
}

impl<T> Part<'_, T> {
    fn functions(&self) -> Range<usize> {
        self.first..self.first + self.values.len()
    }
}

impl<T> Index<usize> for Part<'_, T> {
    type Output = T;

    fn index(&self, function: usize) -> &T {
        &self.values[function - self.first]
    }
}

impl<T> IndexMut<usize> for Part<'_, T> {
    fn index_mut(&mut self, function: usize) -> &mut T {
        &mut self.values[function - self.first]
    }
}

/// Decides for the functions of a part of the image, which need not be all.
struct Decider<'s, 'a, 'd> {
    image: &'a Image<'d>,
    flow: &'a Flow,
    failed: &'a Failed,
    engine: Engine,
    verdicts: Part<'s, Result<Tactic, Reason>>,
    hooks: Part<'s, Option<Hook>>,
    /// Bytes handed out of the padding behind each function.
    padding_used: Part<'s, u64>,
    /// Sorted: functions that may have bytes for a cave, as far as is known.
    roomy: Vec<usize>,
    /// It is known.
    looked: bool,
    /// Functions for which no cave was found, and not all of their neighbours were looked at.
    cut: Vec<usize>,
    /// First and last byte of each call that leads to a thunk ([`Tactic::CallSites`]); while sleds are made.
    led_calls: BTreeSet<(u64, u64)>,
}

/// A way to hook a function.
type Way = fn(&mut Decider, usize) -> Result<Tactic, Reason>;

impl<'s, 'a, 'd> Decider<'s, 'a, 'd> {
    /// For the functions from `first` on that the slices have values for.
    fn new(
        (image, flow, failed, engine): (&'a Image<'d>, &'a Flow, &'a Failed, Engine),
        first: usize,
        verdicts: &'s mut [Result<Tactic, Reason>],
        hooks: &'s mut [Option<Hook>],
        padding_used: &'s mut [u64],
    ) -> Self {
        Decider {
            image,
            flow,
            failed,
            engine,
            verdicts: Part { first, values: verdicts },
            hooks: Part { first, values: hooks },
            padding_used: Part { first, values: padding_used },
            roomy: Vec::new(),
            looked: false,
            cut: Vec::new(),
            led_calls: BTreeSet::new(),
        }
    }

    /// Those that are not refused and need no cave.
    fn without_caves(&mut self, selected: &dyn Fn(usize) -> bool) {
        for i in self.hooks.functions() {
            let refused = refuse(self.image, self.flow, self.engine, self.failed, i, selected);
            self.verdicts[i] = refused.map_or_else(|| self.with_room(i), Err);
        }
    }

    /// Where the function has room of its own for a jump.
    fn with_room(&mut self, i: usize) -> Result<Tactic, Reason> {
        match self.engine {
            Engine::Builtin => self.near(i, false),
            // The agent cannot do without them.
            Engine::Frida if unwinder::is_needed(self.image, i) => {
                self.frida(i).or_else(|_| self.near(i, false))
            }
            Engine::Frida => self.frida(i),
            Engine::FridaOrBuiltin => self.frida_or_builtin(i),
        }
    }

    /// Each way for all functions, then the next, which costs more, for those that are left.
    fn in_turn(&mut self, functions: impl Iterator<Item = usize> + Clone, ways: &[Way]) {
        for way in ways {
            for i in functions.clone() {
                if self.is_open(i) {
                    match way(self, i) {
                        Err(Reason::NoRoom) => {}
                        better => self.verdicts[i] = better,
                    }
                }
            }
        }
    }

    /// Whether it is neither hooked nor refused for good.
    fn is_open(&self, i: usize) -> bool {
        matches!(self.verdicts[i], Err(Reason::NoRoom | Reason::JumpedInto)) && !self.failed.contains_key(&i)
    }

    /// gum's `replace_fast`.
    fn frida(&mut self, i: usize) -> Result<Tactic, Reason> {
        let fit = self.frida_fit(i)?;
        Ok(self.by_frida(i, &fit))
    }

    fn frida_fit(&self, i: usize) -> Result<frida::Fit, Reason> {
        match self.failed.get(&i) {
            Some(&reason) => Err(reason),
            None => frida::fit(self.image, self.flow, i),
        }
    }

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

    /// gum where it can, but for functions in which the built-in jump leaves a call where it is and gum does not.
    fn frida_or_builtin(&mut self, i: usize) -> Result<Tactic, Reason> {
        match self.frida_fit(i) {
            Ok(fit) if fit.call => self.near(i, false).or_else(|_| Ok(self.by_frida(i, &fit))),
            Ok(fit) => Ok(self.by_frida(i, &fit)),
            Err(_) => self.near(i, false),
        }
    }

    /// Whether it ends, and the next one begins, within that many bytes. What cannot be decoded has other troubles.
    fn is_shorter(&self, i: usize, patch: u64) -> bool {
        let f = &self.image.functions[i];
        let end = hook_point(self.image, f) + patch;
        end > f.address + f.size && end > f.limit && !self.flow.functions[i].undecodable
    }

    /// A near jump over the function's own bytes and the padding behind them. With `over_call`, the
    /// relocated instructions may end with a call.
    fn near(&mut self, i: usize, over_call: bool) -> Result<Tactic, Reason> {
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

    /// A short jump to a cave.
    fn short(&mut self, i: usize) -> Result<Tactic, Reason> {
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

    fn fit(&self, i: usize, start: &Start, patch: u64, over_call: bool) -> Result<(Fit, bool), Reason> {
        fit(self.image, self.flow, i, start, patch, over_call, self.padding_used[i])
    }

    /// Takes the fit, after the branches into the overwritten bytes have found their new ways.
    fn accept(
        &mut self,
        i: usize,
        start: &Start,
        fit: Fit,
        tactic: Tactic,
        cave: Option<u64>,
        patch: u64,
    ) -> Result<Tactic, Reason> {
        let live_tail = start.entered(patch, fit.relocated, fit.relocated);
        let mut retargets = Vec::new();
        for &(offset, branch) in &start.soft {
            if offset >= patch {
                continue;
            }
            if !start.is_boundary(offset) {
                return Err(Reason::JumpedInto);
            }
            let inside = branch.site >= start.hook && branch.end() <= start.hook + fit.relocated;
            if inside && !(live_tail && branch.site >= start.hook + patch) {
                continue;
            }
            let cave = match branch.width {
                // Without one, the hook of the other function has to relocate the branch: see `foreign::settle`.
                1 if owner(self.image, branch.function as usize) != i => self.cave(branch.end(), i),
                1 => Some(self.cave(branch.end(), i).ok_or(Reason::NoRoom)?),
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
            call: self.call_in_place(i, start, &fit, tactic, patch),
            sled: None,
            slid_into: false,
            dead_used: patch,
        });
        Ok(tactic)
    }

    /// Nothing of the function is touched; who calls it is.
    fn call_sites(&mut self, i: usize) -> Result<Tactic, Reason> {
        let f = &self.image.functions[i];
        if self.flow.is_taken(f.address) {
            return Err(Reason::NoRoom);
        }
        let branches = self.flow.branches_into(i, f.address + 1);
        let mut retargets = Vec::new();
        for &branch in branches {
            let from = branch.function as usize;
            let own_loop = owner(self.image, from) == i && branch.kind != BranchKind::Call;
            if own_loop {
                continue; // a loop, which goes on as it is
            }
            // The site must stay where it is, or be relocated whole, and be what it looks like.
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
