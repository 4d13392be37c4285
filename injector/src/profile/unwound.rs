//! From the stacks of a process's samples to the functions on them.
//!
//! Frames are found by the unwind tables of the files with the code ([`frames`]), and the callers of hooked functions by the calls that were
//! counted ([`callers`]). The same finds a frame again behind code without unwind tables.

mod callers;
mod calls;
mod code;
mod frames;
mod python;

use framehop::FrameAddress;
use framehop::x86_64::UnwindRegsX86_64;

use crate::profile::elsewhere::Names;
use crate::profile::generated::Generated;
use crate::profile::model::{Place, Profile};
use crate::profile::space::Space;
use crate::profile::stacks::Tree;
use crate::profile::unwound::callers::{Caller, Callers, Fit};
use crate::profile::unwound::calls::Calls;
use crate::profile::unwound::code::{Code, Codes, Return};
use crate::profile::unwound::frames::{Above, Frames, interrupted};
use crate::profile::unwound::python::{Merger, Step};
use crate::sampling::stacks::{Stack, Stacks};

/// The number of frames of a stack at most.
const FRAMES: usize = 1024;
/// How far above a saved frame pointer the frame is at most, in bytes, and the number of them that are tried for a frame.
const FRAME: u64 = 64 << 10;
const SAVED: usize = 8;
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
    names: &mut Names,
    generated: &Generated,
) -> Tree {
    let mut tree = Tree::default();
    if stacks.kept().is_empty() {
        return tree;
    }
    let calls = Calls::new(if space.is_some() { &profile.arcs } else { &[] });
    let frames = Frames::new(Codes::new(profile, space, &stacks.maps, names, generated));
    let callers = Callers::new(frames, calls, space.map(Space::root));
    let mut walker = Walker { callers, path: Vec::new() };
    let mut merger = Merger::default();
    let mut left = TRIES + TRIES_AVERAGE * stacks.kept().len() as u64;
    for stack in stacks.kept() {
        walker.callers.frames.tries = TRIES.min(left);
        walker.callers.frames.codes.go_to(stack.time);
        left -= walker.callers.frames.tries;
        let found = walker.walk(stack, &mut tree);
        left += walker.callers.frames.tries;
        if let Some(is_whole) = found {
            let is_whole = merger.merge(&walker.path, is_whole, &stack.python, &mut tree);
            let mut node = if is_whole { None } else { tree.node(None, None) };
            for &frame in merger.path().iter().rev() {
                node = tree.node(node, Some(frame));
            }
            tree.add(node, stacks.weight());
            let (lines, own) = merger.lines();
            tree.execute(lines, own, stacks.weight());
            merger.interpreted().into_iter().for_each(|frames| tree.interpret(frames, stacks.weight()));
        }
    }
    tree
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
struct Walker<'p> {
    callers: Callers<'p>,
    /// The functions on the stack, from the innermost one on.
    path: Vec<Step>,
}

impl Walker<'_> {
    /// Finds the functions on a stack, and returns whether all were found; `None` if the sample is in gprofinject's own code.
    fn walk(&mut self, stack: &Stack, tree: &mut Tree) -> Option<bool> {
        self.path.clear();
        let Return::Code(mut code) = self.callers.frames.codes.at(stack.pc, tree) else { return None };
        self.callers.begin(stack);
        let mut registers = UnwindRegsX86_64::new(code.runtime, stack.sp, stack.bp);
        let mut address = FrameAddress::InstructionPointer(code.runtime);
        while self.path.len() < FRAMES {
            let first = self.path.len();
            self.path.extend(code.frame.map(|frame| Step::of(frame, &code)));
            let outer = self.outer(code, address, &mut registers, stack, tree);
            self.path.iter_mut().skip(first).for_each(|step| step.end = registers.sp());
            match outer {
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
            let interrupted = interrupted(registers, stack).map(|pc| self.callers.frames.codes.at(pc, tree));
            if let Some(Return::Code(code)) = interrupted {
                return Outer::Frame(code, FrameAddress::InstructionPointer(code.runtime));
            }
        }
        let before = *registers;
        let mut above = self.callers.frames.step(address, registers, stack, code);
        let is_returned = |walker: &mut Self, tree: &mut Tree| match above {
            Above::Returns(word) => walker.callers.frames.is_returned(word, tree),
            Above::End => true,
            Above::Cut | Above::Unknown => false,
        };
        if code.is_generated
            && !is_returned(self, tree)
            && let Some((word, registers_above)) = self.near(before, stack, tree)
        {
            (above, *registers) = (Above::Returns(word), registers_above);
        }
        if above == Above::Unknown && !code.has_tables && registers.sp() == stack.sp {
            // Such code often is a function that calls nothing.
            let word = stack.word(stack.sp).filter(|&word| word != 0);
            above = word.map_or(Above::Unknown, Above::Returns);
            registers.set_sp(stack.sp + 8);
        }
        let mut callee = None;
        let caller = match above {
            Above::End => return Outer::None,
            // What is still on the stack is the frame's own, and what earlier calls have left in it.
            Above::Cut => return Outer::Unknown,
            Above::Unknown => Caller::None,
            Above::Returns(word) => match self.callers.frames.codes.returned(word, tree) {
                Return::Code(code) => Caller::Found(Fit::Possible, code),
                Return::Label(label) => {
                    callee = Some(label);
                    self.callers.caller(label, *registers, stack, tree)
                }
                Return::Interned => {
                    let called = code.entry;
                    let direct = called.map(|callee| self.callers.direct(callee, *registers, stack, tree));
                    let Some(found @ Caller::Found(..)) = direct else { return Outer::Unknown };
                    found
                }
                Return::Unknown => Caller::None,
            },
        };
        let found = match caller {
            Caller::Found(_, code) => Some(code),
            Caller::Unclear | Caller::None => None,
        };
        if found.is_none() && matches!(above, Above::Returns(_)) {
            // The kernel may have called it, as a signal handler.
            let mut above = *registers;
            if let Some(pc) = interrupted(&mut above, stack) {
                let Return::Code(code) = self.callers.frames.codes.at(pc, tree) else {
                    return Outer::Unknown;
                };
                *registers = above;
                return Outer::Frame(code, FrameAddress::InstructionPointer(code.runtime));
            }
        }
        if matches!(caller, Caller::Unclear) {
            return Outer::Unknown;
        }
        let is_outermost = found.is_none() && callee.is_some_and(|callee| self.callers.is_outermost(callee));
        let found = found.or_else(|| self.search(registers, stack, callee, is_outermost, tree));
        let found = found.and_then(|code| Some((code, FrameAddress::from_return_address(code.runtime)?)));
        match found {
            Some((code, address)) => Outer::Frame(code, address),
            // Where a process begins, the frame pointer is 0 (System V ABI, 3.4.1).
            None if is_outermost || code.entry.is_none() && registers.bp() == 0 => Outer::None,
            None => Outer::Unknown,
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
            let Return::Code(code) = self.callers.frames.codes.returned(word, tree) else { continue };
            let address = FrameAddress::from_return_address(code.runtime);
            let Some(address) = address.filter(|_| code.has_tables && code.follows_call) else { continue };
            self.callers.frames.tries = self.callers.frames.tries.checked_sub(1)?;
            let mut above = registers;
            above.set_sp(at + 8);
            let goes_on = match self.callers.frames.step(address, &mut above.clone(), stack, code) {
                Above::Returns(word) => self.callers.frames.is_returned(word, tree),
                Above::End => true,
                Above::Cut | Above::Unknown => false,
            };
            if goes_on {
                return Some((word, above));
            }
        }
        None
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
            self.callers.frames.tries = self.callers.frames.tries.saturating_sub(1);
            // The C library's start has tables; a word may look like other code.
            let address = FrameAddress::from_return_address(code.runtime).filter(|_| code.has_tables);
            let Some(address) = address else { return false };
            code = match self.callers.frames.step(address, &mut registers, stack, code) {
                Above::End => return true,
                Above::Returns(word) => match self.callers.frames.codes.returned(word, tree) {
                    Return::Code(outer) => outer,
                    Return::Label(_) | Return::Interned | Return::Unknown => return false,
                },
                Above::Cut | Above::Unknown => return false,
            };
        }
        false
    }

    /// Searches the rest of the stack for the next frame that is certainly one, with a frame pointer that a callee has saved. Above the
    /// outermost hooked function, searches for one from which the stack goes on to its end.
    ///
    /// If the hooked function is known that was called from there through other code, the next frame is one of a function that has called it.
    /// An earlier call may have left others, in a part of a frame that nobody has written to since.
    fn search(
        &mut self,
        registers: &mut UnwindRegsX86_64,
        stack: &Stack,
        called: Option<Place>,
        is_outermost: bool,
        tree: &mut Tree,
    ) -> Option<Code> {
        let words: Vec<(u64, u64)> = stack.words_from(registers.sp()).take(SEARCH).collect();
        if is_outermost {
            // The last one: the ones before it may be what the start of the program has left there.
            let last = words.into_iter().rev().find_map(|(at, word)| {
                let Return::Code(code) = self.callers.frames.codes.returned(word, tree) else { return None };
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
                let (found, callee) = match self.callers.frames.codes.returned(word, tree) {
                    Return::Label(callee) => {
                        let Caller::Found(_, code) = self.callers.caller(callee, below, stack, tree) else {
                            continue;
                        };
                        (Some(code), Some(callee))
                    }
                    Return::Code(code) => {
                        let function = code.calls.and_then(|at| self.callers.frames.codes.function_of(at));
                        (Some(code).filter(|code| code.is_call), function)
                    }
                    Return::Interned | Return::Unknown => break,
                };
                let Some(code) = found else { continue };
                let calling = callee.or(code.entry);
                let has_called = |callers: &mut Callers, called| {
                    calling.is_some_and(|calling| callers.has_called(calling, called))
                };
                if self.callers.fit(code, below, stack, tree) == Some(Fit::Certain)
                    && called.is_none_or(|called| has_called(&mut self.callers, called))
                {
                    self.path.extend(
                        callee.map(|callee| Step::native(self.callers.frames.codes.frame_of(callee, tree))),
                    );
                    *registers = below;
                    return Some(code);
                }
            }
        }
        None
    }
}
