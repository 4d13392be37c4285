//! From the stacks of a process's samples to the functions on them.
//!
//! Frames are found by the unwind tables of the files with the code. What these do not know is what hooks change: the frame of a
//! function whose exit is hooked returns to that function's *exit label*, and its true return address is not on the stack. But each call
//! was counted by its return address, so the caller is one of the callers of the function, and it is the one with which the stack goes on
//! to make sense: its own frame, as long as its unwind table says, ends in its own exit label, or in a return address behind a call of it.
//! The same test finds a frame again behind code without unwind tables.

mod calls;
mod code;

use std::collections::HashMap;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64};
use framehop::{FrameAddress, Unwinder};

use crate::os::signal_frame;
use crate::profile::elsewhere::Names;
use crate::profile::generated::Generated;
use crate::profile::model::{GENERATED, NOWHERE, Place, Profile};
use crate::profile::space::Space;
use crate::profile::stacks::Tree;
use crate::profile::totals::Seed;
use crate::profile::unwound::calls::Calls;
use crate::profile::unwound::code::{Code, Codes, Return};
use crate::sampling::stacks::{Stack, Stacks};

/// The number of frames of a stack at most.
const FRAMES: usize = 1024;
/// The number of callers of a function that are tried for a frame at most.
const CALLERS: usize = 512;
/// The number of exit labels above a frame whose functions are tried first as its caller.
const LABELS: usize = 16;
/// The number of functions that are tried as those that may have made a tail call at most.
const TAIL_CALLERS: usize = 16;
/// How far above a saved frame pointer the frame is at most, in bytes, and the number of them that are tried for a frame.
const FRAME: u64 = 64 << 10;
const SAVED: usize = 8;
/// A cache of the unwinder has room for a few hundred places of code. Each is used for code of so many bits of addresses.
const CACHED_BITS: u32 = 18;
/// The number of frames that are tried for a stack at most, and on the average of all stacks. A program can put anything on its stack.
const TRIES: u64 = 1 << 14;
const TRIES_AVERAGE: u64 = 1 << 9;
/// The number of words that are searched for a frame behind code without unwind tables.
const SEARCH: usize = 128;

/// Returns the stacks of a process's samples. `space` is its address space, if it was hooked. `names` keeps what was read of files.
///
/// `generated` has the functions that the process has made at run time.
pub(crate) fn tree(
    stacks: &Stacks,
    profile: &Profile,
    space: Option<&Space>,
    names: &mut Names<'_>,
    generated: &Generated,
) -> Tree {
    let mut tree = Tree::default();
    if stacks.kept().is_empty() {
        return tree;
    }
    let calls = Calls::new(if space.is_some() { &profile.arcs } else { &[] });
    let codes = Codes::new(profile, space, &stacks.maps, names, generated);
    let mut walker = Walker {
        codes,
        calls,
        root: space.map(Space::root),
        caches: HashMap::default(),
        labels: Vec::new(),
        path: Vec::new(),
        tries: 0,
    };
    let mut left = TRIES + TRIES_AVERAGE * stacks.kept().len() as u64;
    for stack in stacks.kept() {
        walker.tries = TRIES.min(left);
        walker.codes.go_to(stack.time);
        left -= walker.tries;
        let found = walker.walk(stack, &mut tree);
        left += walker.tries;
        if let Some(is_whole) = found {
            let mut node = if is_whole { None } else { tree.node(None, None) };
            for &frame in walker.path.iter().rev() {
                node = tree.node(node, Some(frame));
            }
            tree.add(node, stacks.weight());
        }
    }
    tree
}

/// Whether a caller is in no module.
fn is_outside(caller: Place) -> bool {
    matches!(caller.module, NOWHERE | GENERATED)
}

/// How well the frame of a caller fits on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
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

/// What is above a frame.
enum Outer {
    /// The frame of this code.
    Frame(Code, FrameAddress),
    /// Nothing: the stack ends.
    None,
    Unknown,
}

/// Finds the frames of stacks.
struct Walker<'p, 'n> {
    codes: Codes<'p, 'n>,
    calls: Calls,
    /// What is charged with calls of code that is not hooked, while no hooked function was running.
    root: Option<Place>,
    /// What was found out about code, by a part of its address.
    caches: HashMap<u64, Box<CacheX86_64>, Seed>,
    /// The exit labels on the stack, each with its address and its function.
    labels: Vec<(u64, Place)>,
    /// The functions on the stack, from the innermost one on, by their numbers in the tree.
    path: Vec<u32>,
    /// The number of frames that may still be tried for the stack.
    tries: u64,
}

impl Walker<'_, '_> {
    /// Finds the functions on a stack, and returns whether all were found; `None` if the sample is in gprofinject's own code.
    fn walk(&mut self, stack: &Stack, tree: &mut Tree) -> Option<bool> {
        self.path.clear();
        let Return::Code(mut code) = self.codes.at(stack.pc, tree) else { return None };
        let labels = stack.words_from(stack.sp).filter_map(|(at, word)| Some((at, self.codes.label(word)?)));
        self.labels.clear();
        self.labels.extend(labels);
        let mut registers = UnwindRegsX86_64::new(code.runtime, stack.sp, stack.bp);
        let mut address = FrameAddress::InstructionPointer(code.runtime);
        while self.path.len() < FRAMES {
            self.path.extend(code.frame);
            match self.outer(code, address, &mut registers, stack, tree) {
                Outer::Frame(outer, at) => (code, address) = (outer, at),
                Outer::None => return Some(true),
                Outer::Unknown => return Some(false),
            }
        }
        Some(false)
    }

    /// Goes on from a frame to its caller's.
    fn outer(
        &mut self,
        code: Code,
        address: FrameAddress,
        registers: &mut UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Outer {
        if code.is_restorer {
            let interrupted = interrupted(registers, stack).map(|pc| self.codes.at(pc, tree));
            if let Some(Return::Code(code)) = interrupted {
                return Outer::Frame(code, FrameAddress::InstructionPointer(code.runtime));
            }
        }
        let before = *registers;
        let mut next = self.step(address, registers, stack, code);
        if code.is_generated
            && next != Some(None)
            && !next.flatten().is_some_and(|word| self.is_returned(word, tree))
            && let Some((word, above)) = self.near(before, stack, tree)
        {
            (next, *registers) = (Some(Some(word)), above);
        }
        if next.is_none() && !code.has_tables && registers.sp() == stack.sp {
            // Such code often is a function that calls nothing.
            next = stack.word(stack.sp).filter(|&word| word != 0).map(Some);
            registers.set_sp(stack.sp + 8);
        }
        let mut labelled = None;
        let found = match next {
            Some(None) => return Outer::None,
            Some(Some(word)) => match self.codes.returned(word, tree) {
                Return::Code(code) => Some(code),
                Return::Label(callee) => {
                    labelled = Some(callee);
                    self.caller(callee, *registers, stack, tree)
                }
                Return::Interned => {
                    let found = code.entry.and_then(|callee| self.direct(callee, *registers, stack, tree));
                    let Some((_, code)) = found else { return Outer::Unknown };
                    Some(code)
                }
                Return::Unknown => None,
            },
            None => None,
        };
        if found.is_none() && next.is_some() {
            // The kernel may have called it, as a signal handler.
            let mut above = *registers;
            if let Some(pc) = interrupted(&mut above, stack) {
                let Return::Code(code) = self.codes.at(pc, tree) else { return Outer::Unknown };
                *registers = above;
                return Outer::Frame(code, FrameAddress::InstructionPointer(code.runtime));
            }
        }
        let is_outermost = found.is_none() && labelled.is_some_and(|callee| self.is_outermost(callee));
        let found = found.or_else(|| self.search(registers, stack, is_outermost, tree));
        let found = found.and_then(|code| Some((code, FrameAddress::from_return_address(code.runtime)?)));
        match found {
            Some((code, address)) => Outer::Frame(code, address),
            // Where a process begins, the frame pointer is 0 (System V ABI, 3.4.1).
            None if is_outermost || code.entry.is_none() && registers.bp() == 0 => Outer::None,
            None => Outer::Unknown,
        }
    }

    /// Whether a call has left this word.
    fn is_returned(&mut self, word: u64, tree: &mut Tree) -> bool {
        match self.codes.returned(word, tree) {
            Return::Code(code) => code.follows_call,
            Return::Label(_) | Return::Interned => true,
            Return::Unknown => false,
        }
    }

    /// Searches the few words above the stack pointer for the return address of code that was made at run time and has no frame pointer, as
    /// CPython's trampolines: behind a call in a file, from whose frame the stack goes on.
    fn near(
        &mut self,
        registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Option<(u64, UnwindRegsX86_64)> {
        const NEAR: u64 = 256;
        let sp = registers.sp();
        let words: Vec<(u64, u64)> =
            stack.words_from(sp).take_while(|(at, _)| at.saturating_sub(sp) < NEAR).collect();
        for (at, word) in words {
            let Return::Code(code) = self.codes.returned(word, tree) else { continue };
            let address = FrameAddress::from_return_address(code.runtime);
            let Some(address) = address.filter(|_| code.has_tables && code.follows_call) else { continue };
            self.tries = self.tries.checked_sub(1)?;
            let mut above = registers;
            above.set_sp(at + 8);
            let goes_on = match self.step(address, &mut above.clone(), stack, code) {
                Some(Some(word)) => self.is_returned(word, tree),
                Some(None) => true,
                None => false,
            };
            if goes_on {
                return Some((word, above));
            }
        }
        None
    }

    /// Whether code that is not hooked has called a function while no hooked function was running.
    fn is_outermost(&mut self, function: Place) -> bool {
        let root = self.root;
        self.calls.of(function).iter().any(|arc| is_outside(arc.from) || Some(arc.from) == root)
    }

    /// Goes on to the caller's frame. Returns its return address, `Some(None)` at the end of the stack, and `None` if that is not known.
    fn step(
        &mut self,
        address: FrameAddress,
        registers: &mut UnwindRegsX86_64,
        stack: &Stack,
        code: Code,
    ) -> Option<Option<u64>> {
        let sp = registers.sp();
        let mut reads = 0;
        let mut read = |address| {
            reads += 1;
            stack.word(address).ok_or(())
        };
        let cache = self.caches.entry(address.address() >> CACHED_BITS).or_default();
        let unwound = self.codes.unwinder().unwind_frame(address, registers, cache, &mut read).ok()?;
        match unwound {
            Some(word) => {
                // Without tables, this is a guess by the frame pointer.
                (code.has_tables || registers.sp() > sp).then_some(Some(word))
            }
            // Where a stack ends, the tables say so, or the frame pointer of files without tables. A return address of 0 is one that was
            // not found.
            None => {
                let is_file = code.frame.is_some() && matches!(address, FrameAddress::ReturnAddress(_));
                (reads == 0 && (code.has_tables || is_file)).then_some(None)
            }
        }
    }

    /// Returns the code to which the frame returns that ends in a function's exit label. A function that has ended in a tail call has left
    /// its label to the one that it called, and is itself on the stack no more.
    fn caller(
        &mut self,
        callee: Place,
        registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Option<Code> {
        let direct = self.direct(callee, registers, stack, tree);
        if let Some((Fit::Certain, code)) = direct {
            return Some(code);
        }
        let through = self.through_tails(callee, registers, stack, tree);
        through.or(direct.map(|(_, code)| code))
    }

    /// Returns the call of a function to which its frame returns, and how well that fits; `None` if calls of several functions fit as well.
    fn direct(
        &mut self,
        callee: Place,
        registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Option<(Fit, Code)> {
        if let Some(code) = self.labelled(callee, registers, stack, tree) {
            return Some((Fit::Certain, code));
        }
        let mut best: Option<(Fit, usize, Code)> = None;
        let mut has_rival = false;
        for index in self.calls.range(callee).take(CALLERS) {
            let site = self.calls.site(index);
            if is_outside(site) || Some(site) == self.root {
                continue;
            }
            let Some(code) = self.codes.of_site(site, tree) else { continue };
            let Some(fit) = self.fit(code, registers, stack, tree) else { continue };
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
        best.filter(|_| !has_rival).map(|(fit, _, code)| (fit, code))
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
        let range = self.calls.range(callee);
        let next = self.labels.partition_point(|&(at, _)| at < registers.sp());
        let mut tried = None;
        for label in (next..self.labels.len()).take(LABELS) {
            let (_, caller) = self.labels[label];
            if tried.replace(caller) == Some(caller) {
                continue;
            }
            let Some(part) = self.codes.extent(caller) else { continue };
            for index in range.clone().take(CALLERS) {
                let site = self.calls.site(index);
                if site.module != caller.module || !part.contains(&site.address) {
                    continue;
                }
                let Some(code) = self.codes.of_site(site, tree) else { continue };
                if self.fit(code, registers, stack, tree) == Some(Fit::Certain) {
                    self.calls.found(callee, index);
                    return Some(code);
                }
            }
        }
        None
    }

    /// Returns the call to which a function's frame returns if it was entered by a tail call of a function that was called there, or was
    /// entered by a tail call itself.
    fn through_tails(
        &mut self,
        callee: Place,
        registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Option<Code> {
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
            if let Some(&function) = functions.get(next)
                && let Some((Fit::Certain, code)) = self.direct(function, registers, stack, tree)
            {
                return Some(code);
            }
        }
        None
    }

    /// Returns how well a frame fits that returns to this code.
    fn fit(
        &mut self,
        code: Code,
        mut registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> Option<Fit> {
        self.tries = self.tries.checked_sub(1)?;
        if code.is_restorer {
            let pc = interrupted(&mut registers, stack)?;
            return matches!(self.codes.at(pc, tree), Return::Code(_)).then_some(Fit::Certain);
        }
        let address = FrameAddress::from_return_address(code.runtime)?;
        let Some(word) = self.step(address, &mut registers, stack, code)? else {
            return Some(Fit::Outermost);
        };
        let returned = self.codes.returned(word, tree);
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
        callers.filter_map(|arc| self.codes.function_of(arc.from)).collect()
    }

    /// Whether the stack ends a few frames above one that returns to this code, none of which is one of a hooked function's calls.
    fn ends(
        &mut self,
        mut code: Code,
        mut registers: UnwindRegsX86_64,
        stack: &Stack,
        tree: &mut Tree,
    ) -> bool {
        /// Those of the C library's start of a program.
        const FEW: usize = 4;
        for _ in 0..FEW {
            self.tries = self.tries.saturating_sub(1);
            // The C library's start has tables; a word may look like other code.
            let address = FrameAddress::from_return_address(code.runtime).filter(|_| code.has_tables);
            let Some(address) = address else { return false };
            code = match self.step(address, &mut registers, stack, code) {
                Some(None) => return true,
                Some(Some(word)) => match self.codes.returned(word, tree) {
                    Return::Code(outer) => outer,
                    Return::Label(_) | Return::Interned | Return::Unknown => return false,
                },
                None => return false,
            };
        }
        false
    }

    /// Searches the rest of the stack for the next frame that is certainly one, with a frame pointer that a callee has saved. Above the
    /// outermost hooked function, searches for one from which the stack goes on to its end.
    fn search(
        &mut self,
        registers: &mut UnwindRegsX86_64,
        stack: &Stack,
        is_outermost: bool,
        tree: &mut Tree,
    ) -> Option<Code> {
        let words: Vec<(u64, u64)> = stack.words_from(registers.sp()).take(SEARCH).collect();
        if is_outermost {
            // The last one: the ones before it may be what the start of the program has left there.
            let last = words.into_iter().rev().find_map(|(at, word)| {
                let Return::Code(code) = self.codes.returned(word, tree) else { return None };
                let mut below = *registers;
                below.set_sp(at + 8);
                self.ends(code, below, stack, tree).then_some((code, below))
            });
            let (code, below) = last?;
            *registers = below;
            return Some(code);
        }
        let mut saved = vec![registers.bp()];
        for (at, word) in words {
            if word > at && word - at < FRAME {
                saved.push(word);
                continue;
            }
            for &bp in saved.iter().rev().take(SAVED) {
                let mut below = *registers;
                below.set_sp(at + 8);
                below.set_bp(bp);
                // The function that returns there is on the stack as well.
                let (found, callee) = match self.codes.returned(word, tree) {
                    Return::Label(callee) => (self.caller(callee, below, stack, tree), Some(callee)),
                    Return::Code(code) => (Some(code).filter(|code| code.is_call), code.calls),
                    Return::Interned | Return::Unknown => break,
                };
                let Some(code) = found else { continue };
                if self.fit(code, below, stack, tree) == Some(Fit::Certain) {
                    self.path.extend(callee.map(|callee| self.codes.frame_of(callee, tree)));
                    *registers = below;
                    return Some(code);
                }
            }
        }
        None
    }
}

/// Goes on from a signal handler's frame to what the signal has interrupted, and returns the program counter. Returns `None` if there is
/// no such frame at the stack pointer.
fn interrupted(registers: &mut UnwindRegsX86_64, stack: &Stack) -> Option<u64> {
    let at = |word: u64| stack.word(registers.sp().checked_add(signal_frame::offset(word))?);
    let (bp, sp) = (at(signal_frame::RBP)?, at(signal_frame::RSP)?);
    let (pc, state) = (at(signal_frame::RIP)?, at(signal_frame::STATE)?);
    if pc == 0 || state <= registers.sp() || state >= sp {
        return None;
    }
    *registers = UnwindRegsX86_64::new(pc, sp, bp);
    Some(pc)
}
