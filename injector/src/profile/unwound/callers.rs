//! The callers of hooked functions on a stack.
//!
//! The frame of a function whose exit is hooked returns to that function's *exit label*, and its true return address is not on the stack.
//! But each call was counted by its return address, so the caller is one of the callers of the function, and it is the one with which the
//! stack goes on to make sense: its own frame, as long as its unwind table says, ends in its own exit label, or in a return address behind a
//! call of it.

use framehop::FrameAddress;
use framehop::x86_64::UnwindRegsX86_64;

use crate::profile::model::{GENERATED, NOWHERE, Place};
use crate::profile::stacks::Tree;
use crate::profile::unwound::calls::Calls;
use crate::profile::unwound::code::{Code, Return};
use crate::profile::unwound::frames::{Above, Frames, interrupted};
use crate::sampling::stacks::Stack;

/// The number of callers of a function that are tried for a frame at most.
const CALLERS: usize = 512;
/// The number of exit labels above a frame whose functions are tried first as its caller.
const LABELS: usize = 16;
/// The size of a return address. The CFA is the address after it (System V ABI, figure 3.3).
const WORD: u64 = 8;
/// The number of functions that are tried as those that may have made a tail call at most.
const TAIL_CALLERS: usize = 16;

/// How well the frame of a caller fits on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fit {
    /// It ends above the part of the stack that was copied, where nobody knows to what it returns.
    Cut,
    /// It returns behind a call.
    Possible,
    /// It returns behind a call of a function that calls it, or has the exit label of such a function, which may have been a tail call; or
    /// it has an interned label.
    Jumped,
    /// It ends where stacks end.
    Outermost,
    /// It returns behind a call of it, or has its own exit label.
    Certain,
}

/// What the calls of a function say about its caller.
#[derive(Clone, Copy, Debug)]
pub(super) enum Caller {
    /// It goes on at this code.
    Found(Fit, Code),
    /// One of them has made this one, and nobody knows which: several fit as well, or the frame of one ends above the part of the stack that
    /// was copied.
    Unclear,
    /// None of them fits.
    None,
}

impl Caller {
    /// Returns the code to which the function certainly returns.
    fn certain(self) -> Option<Code> {
        match self {
            Caller::Found(Fit::Certain, code) => Some(code),
            Caller::Found(..) | Caller::Unclear | Caller::None => None,
        }
    }
}

/// The calls of a process, and its frames.
pub(super) struct Callers<'p> {
    pub(super) frames: Frames<'p>,
    calls: Calls,
    /// What is charged with calls of code that is not hooked, while no hooked function was running.
    root: Option<Place>,
    /// The exit labels on the stack, each with its address and its function.
    labels: Vec<(u64, Place)>,
}

impl<'p> Callers<'p> {
    pub(super) fn new(frames: Frames<'p>, calls: Calls, root: Option<Place>) -> Callers<'p> {
        Callers { frames, calls, root, labels: Vec::new() }
    }

    /// Begins another stack.
    pub(super) fn begin(&mut self, stack: &Stack) {
        let codes = &self.frames.codes;
        let labels = stack.words_from(stack.sp).filter_map(|(at, word)| Some((at, codes.label(word)?)));
        self.labels.clear();
        self.labels.extend(labels);
    }

    /// Whether code that is not hooked has called a function while no hooked function was running.
    pub(super) fn is_outermost(&mut self, function: Place) -> bool {
        let root = self.root;
        self.calls.of(function).iter().any(|arc| is_outside(arc.from) || Some(arc.from) == root)
    }

    /// Returns the code to which the frame returns that ends in a function's exit label. A function that has ended in a tail call has left
    /// its label to the one that it called, and is itself on the stack no more.
    pub(super) fn caller(
        &mut self,
        callee: Place,
        registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Caller {
        // Nearly always, the function that calls has an exit label, and few calls have to be tried to find it by that.
        let labelled = self.labelled(callee, registers, stack, tree);
        let jumping = self.tail_callers(callee);
        let labelled = labelled
            .or_else(|| jumping.iter().find_map(|&function| self.labelled(function, registers, stack, tree)));
        if let Some(code) = labelled {
            return Caller::Found(Fit::Certain, code);
        }
        let direct = self.tried(callee, registers, stack, tree);
        if direct.certain().is_some() {
            return direct;
        }
        let through = |&function: &Place| self.tried(function, registers, stack, tree).certain();
        if let Some(code) = jumping.iter().find_map(through) {
            return Caller::Found(Fit::Certain, code);
        }
        if !matches!(direct, Caller::None) {
            return direct;
        }
        // A frame that was there before the hooks came returns to its caller itself, and nobody has counted its call.
        let nearest = self.jumping(callee);
        let tried = nearest.into_iter().map(|function| self.tried(function, registers, stack, tree));
        let mut found = tried.filter(|caller| !matches!(caller, Caller::None));
        match (found.next(), found.next()) {
            (Some(only), None) => only,
            _ => direct,
        }
    }

    /// Whether a function has called another one, or one that may have ended in a tail call of it.
    pub(super) fn has_called(&mut self, function: Place, callee: Place) -> bool {
        let is_of = |callers: &mut Self, callee| {
            let arcs = callers.calls.of(callee).iter();
            let codes = &callers.frames.codes;
            arcs.map(|arc| codes.function_of(arc.from)).any(|from| from == Some(function))
        };
        is_of(self, callee) || self.tail_callers(callee).into_iter().any(|jumping| is_of(self, jumping))
    }

    /// Returns the call of a function to which its frame returns.
    pub(super) fn direct(
        &mut self,
        callee: Place,
        registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Caller {
        match self.labelled(callee, registers, stack, tree) {
            Some(code) => Caller::Found(Fit::Certain, code),
            None => self.tried(callee, registers, stack, tree),
        }
    }

    /// The same by trying all calls of the function, the likeliest ones first.
    fn tried(
        &mut self,
        callee: Place,
        registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Caller {
        let mut best: Option<(Fit, usize, Code)> = None;
        let (mut has_rival, mut is_cut) = (false, false);
        for index in self.calls.range(callee).take(CALLERS) {
            let site = self.calls.site(index);
            if is_outside(site) || Some(site) == self.root {
                continue;
            }
            let Some((fit, code)) = self.fit_of(site, registers, stack, tree) else { continue };
            if fit == Fit::Cut {
                is_cut = true;
                continue;
            }
            if best.is_none_or(|(other, ..)| fit > other) {
                best = Some((fit, index, code));
                has_rival = false;
            } else if let Some((other, _, rival)) = best {
                has_rival |= fit == other && rival.frame != code.frame;
            }
            if fit == Fit::Certain {
                break;
            }
        }
        if let Some((Fit::Certain, index, _)) = best {
            self.calls.found(callee, index);
        }
        match best {
            _ if has_rival => Caller::Unclear,
            // What is below may have left a word that looks like a return address.
            None | Some((Fit::Possible, ..)) if is_cut => Caller::Unclear,
            Some((fit, _, code)) => Caller::Found(fit, code),
            None => Caller::None,
        }
    }

    /// Returns the call of a function to which its frame returns, if the function that makes it has one of the next exit labels on the stack:
    /// nearly always, that of its caller is the next one.
    fn labelled(
        &mut self,
        callee: Place,
        registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Option<Code> {
        let next = self.labels.partition_point(|&(at, _)| at < registers.sp());
        for label in (next..self.labels.len()).take(LABELS) {
            let (at, caller) = self.labels[label];
            let Some(part) = self.frames.codes.extent(caller) else { continue };
            // A large function may have thousands of calls of one function. Few of them leave a frame of this size.
            for index in self.calls.within(callee, caller.module, &part) {
                self.frames.tries = self.frames.tries.checked_sub(1)?;
                let site = self.calls.place(index);
                let cfa = self.frames.codes.cfa(caller, site.address, &registers);
                if cfa.is_some_and(|cfa| cfa != at.wrapping_add(WORD)) {
                    continue;
                }
                if let Some((Fit::Certain, code)) = self.fit_of(site, registers, stack, tree) {
                    return Some(code);
                }
            }
        }
        None
    }

    /// Returns functions that may have ended in a tail call of a function, or of one that has ended in one, the likeliest ones first.
    fn tail_callers(&mut self, callee: Place) -> Vec<Place> {
        let mut functions = vec![callee];
        let mut next = 0;
        while let Some(&function) = functions.get(next) {
            for jumping in self.jumping(function).into_iter().take(TAIL_CALLERS - next) {
                if !functions.contains(&jumping) {
                    functions.push(jumping);
                }
            }
            functions.truncate(TAIL_CALLERS);
            next += 1;
        }
        functions.split_off(1)
    }

    /// Returns the code behind a call, and how well a frame fits that returns there.
    fn fit_of(
        &mut self,
        site: Place,
        registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Option<(Fit, Code)> {
        // A function that jumps to another one does not go on there.
        let code = self.frames.codes.of_site(site, tree).filter(|code| code.follows_call)?;
        Some((self.fit(code, registers, stack, tree)?, code))
    }

    /// Returns how well a frame fits that returns to this code.
    pub(super) fn fit(
        &mut self,
        code: Code,
        mut registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Option<Fit> {
        self.frames.tries = self.frames.tries.checked_sub(1)?;
        if code.is_restorer {
            let pc = interrupted(&mut registers, stack)?;
            return matches!(self.frames.codes.at(pc, tree), Return::Code(_)).then_some(Fit::Certain);
        }
        // To read the table of each function whose calls are tried takes longer than all the rest. Where it is known, most end here.
        if let (Some(entry), Some(site)) = (code.entry, code.site)
            && let Some(cfa) = self.frames.codes.inner_cfa(entry, site.address, &registers)
        {
            let at = cfa.wrapping_sub(WORD);
            if stack.is_above(at) {
                return Some(Fit::Cut);
            }
            let word = stack.word(at)?;
            if matches!(self.frames.codes.returned(word, tree), Return::Unknown) {
                return None;
            }
        }
        let address = FrameAddress::from_return_address(code.runtime)?;
        let word = match self.frames.step(address, &mut registers, stack, code) {
            Above::Returns(word) => word,
            Above::End => return Some(Fit::Outermost),
            Above::Cut => return Some(Fit::Cut),
            Above::Unknown => return None,
        };
        let returned = self.frames.codes.returned(word, tree);
        let Some(entry) = code.entry else {
            return matches!(returned, Return::Code(of) if of.is_call).then_some(Fit::Possible);
        };
        match returned {
            Return::Label(callee) if callee == entry => Some(Fit::Certain),
            Return::Label(callee) => self.jumping(entry).contains(&callee).then_some(Fit::Jumped),
            Return::Code(of) if of.is_call => {
                let is_called =
                    |calls: &mut Calls, callee| of.site.is_some_and(|site| calls.has(site, callee));
                let is_direct = of.calls == Some(entry) || is_called(&mut self.calls, entry);
                Some(match () {
                    () if is_direct => Fit::Certain,
                    () if self
                        .jumping(entry)
                        .into_iter()
                        .any(|callee| is_called(&mut self.calls, callee)) =>
                    {
                        Fit::Jumped
                    }
                    () => Fit::Possible,
                })
            }
            Return::Interned => Some(Fit::Jumped),
            Return::Code(_) | Return::Unknown => None,
        }
    }

    /// Returns functions that have called a function, and so may have ended in a tail call of it.
    fn jumping(&mut self, function: Place) -> Vec<Place> {
        let callers = self.calls.of(function).iter().take(TAIL_CALLERS);
        callers.filter_map(|arc| self.frames.codes.function_of(arc.from)).collect()
    }
}

/// Whether a caller is in no module.
fn is_outside(caller: Place) -> bool {
    matches!(caller.module, NOWHERE | GENERATED)
}
