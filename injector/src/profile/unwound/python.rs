//! Python functions in place of the interpreter's native frames.
//!
//! The native frames are those of the sample, and the Python functions were read a little later. A run of functions takes the place of the
//! native frame in which it is; one that is in no frame of the interpreter began after the sample and is left out, and a frame without a run
//! has ended since and stays.

use std::collections::HashMap;
use std::sync::Arc;

use crate::profile::stacks::{Frame, Tree};
use crate::profile::totals::Seed;
use crate::profile::unwound::code::Code;
use crate::python::{Frames, Function, Run};
use crate::sampling::records::Python;

/// A function on a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Its number in the tree.
    frame: u32,
    /// The address behind its frame.
    pub(super) end: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Native,
    /// `_PyEval_EvalFrameDefault`.
    Interpreter,
    /// Made at run time, as CPython's trampolines are.
    Generated,
}

impl Step {
    /// Returns the step to a function by the code that was found.
    pub(super) fn of(frame: u32, code: &Code) -> Step {
        let kind = match (code.is_interpreter, code.is_generated) {
            (true, _) => Kind::Interpreter,
            (false, true) => Kind::Generated,
            (false, false) => Kind::Native,
        };
        Step { frame, end: 0, kind }
    }

    /// Returns the step to a function of a file.
    pub(super) fn native(frame: u32) -> Step {
        Step { frame, end: 0, kind: Kind::Native }
    }
}

/// Merges native stacks and Python functions.
#[derive(Default)]
pub(super) struct Merger {
    path: Vec<u32>,
    interpreter: Option<u32>,
    /// The numbers of Python functions in the tree, by the addresses that they have here.
    known: HashMap<usize, u32, Seed>,
    /// What is outside of the outermost Python function, by what is known of it. Not all of a deep stack is copied.
    roots: HashMap<u64, Vec<u32>>,
}

/// The number of them.
const ROOTS: usize = 1 << 12;

impl Merger {
    /// Returns the functions of the last stack, from the innermost one on.
    pub(super) fn path(&self) -> &[u32] {
        &self.path
    }

    /// Returns the interpreter's function, if the last stack's sample was in it and is the innermost Python function's.
    pub(super) fn interpreter(&self) -> Option<u32> {
        self.interpreter
    }

    /// Merges a stack, of which `is_whole` says whether all was found, with what was read of Python. Returns whether all is known.
    pub(super) fn merge(&mut self, steps: &[Step], is_whole: bool, python: &Python, tree: &mut Tree) -> bool {
        self.path.clear();
        self.interpreter = None;
        match python {
            Python::Frames(frames) => self.put(steps, is_whole, frames, tree),
            // Nothing is known of the callers of an interpreter whose functions are not known.
            Python::Unknown => {
                let inner = steps.iter().take_while(|step| step.kind != Kind::Interpreter);
                self.path.extend(inner.map(|step| step.frame));
                if let Some(first) = steps.first().filter(|_| self.path.is_empty()) {
                    self.path.push(first.frame);
                }
                is_whole && steps.iter().all(|step| step.kind != Kind::Interpreter)
            }
            Python::None => {
                self.path.extend(steps.iter().map(|step| step.frame));
                is_whole
            }
        }
    }

    fn put(&mut self, steps: &[Step], is_whole: bool, frames: &Frames, tree: &mut Tree) -> bool {
        let mut runs = frames.runs().peekable();
        if frames.runs().next().is_some_and(|run| run.place == 0) {
            self.put_in_order(steps, is_whole, frames, tree);
            return self.close(steps, is_whole, frames);
        }
        let (mut start, mut last) = (0, None);
        let mut is_after_interpreter = false;
        for (index, step) in steps.iter().enumerate() {
            // Those before it are in frames that were not there yet.
            while runs.next_if(|run| run.place < start).is_some() {}
            let in_frame = |run: &Run| run.place < step.end;
            if step.kind == Kind::Interpreter
                && let Some(run) = runs.next_if(in_frame)
            {
                self.add(index, step, run, tree);
                (last, is_after_interpreter) = (Some(self.path.len()), true);
            } else if !(is_after_interpreter && step.kind == Kind::Generated) {
                is_after_interpreter = false;
                self.path.push(step.frame);
            }
            start = step.end;
        }
        if !is_whole {
            for run in runs.filter(|run| run.place >= start) {
                self.add(steps.len(), &Step::native(0), run, tree);
            }
        } else if let Some(last) = last {
            self.remember(frames, last);
        }
        self.close(steps, is_whole, frames)
    }

    /// Does the same where each native frame of the interpreter has one run.
    fn put_in_order(&mut self, steps: &[Step], is_whole: bool, frames: &Frames, tree: &mut Tree) {
        let native = steps.iter().filter(|step| step.kind == Kind::Interpreter).count();
        let runs = frames.runs().len();
        // The outermost ones belong together, if all are known: they change least. Otherwise the innermost ones do.
        let knows_all = is_whole && frames.is_whole;
        let (spare, mut alone) =
            if knows_all { (runs.saturating_sub(native), native.saturating_sub(runs)) } else { (0, 0) };
        let mut runs = frames.runs().skip(spare);
        let (mut last, mut is_after_interpreter) = (None, false);
        for (index, step) in steps.iter().enumerate() {
            if step.kind == Kind::Interpreter {
                match alone {
                    0 => {
                        if let Some(run) = runs.next() {
                            self.add(index, step, run, tree);
                            (last, is_after_interpreter) = (Some(self.path.len()), true);
                            continue;
                        }
                    }
                    _ => alone -= 1,
                }
            } else if is_after_interpreter && step.kind == Kind::Generated {
                continue;
            }
            is_after_interpreter = false;
            self.path.push(step.frame);
        }
        if !is_whole {
            for run in runs {
                self.add(steps.len(), &Step::native(0), run, tree);
            }
        } else if let Some(last) = last {
            self.remember(frames, last);
        }
    }

    /// Adds what is outside of the outermost Python function, if it was not copied, and returns whether all is known.
    fn close(&mut self, steps: &[Step], is_whole: bool, frames: &Frames) -> bool {
        if is_whole || !frames.is_whole || steps.is_empty() {
            return is_whole;
        }
        match self.roots.get(&frames.outermost) {
            Some(root) => {
                self.path.extend(root);
                true
            }
            None => false,
        }
    }

    /// Notes what is outside of the outermost Python function, which is before this index of the path.
    fn remember(&mut self, frames: &Frames, last: usize) {
        if frames.is_whole && (self.roots.len() < ROOTS || self.roots.contains_key(&frames.outermost)) {
            self.roots.insert(frames.outermost, self.path.split_off(last));
            self.path.extend(self.roots.get(&frames.outermost).into_iter().flatten());
        }
    }

    /// Adds the functions of a run, which are in place of the step of this index.
    fn add(&mut self, index: usize, step: &Step, run: Run<'_>, tree: &mut Tree) {
        if index == 0 && !run.functions.is_empty() {
            self.interpreter = Some(step.frame);
        }
        for function in run.functions {
            let frame = self.frame(function, tree);
            self.path.push(frame);
        }
    }

    fn frame(&mut self, function: &Arc<Function>, tree: &mut Tree) -> u32 {
        let address = Arc::as_ptr(function).addr();
        *self.known.entry(address).or_insert_with(|| tree.frame(Frame::Python(Arc::clone(function))))
    }
}
