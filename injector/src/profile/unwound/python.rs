//! Python functions in place of the interpreter's native frames.
//!
//! The native frames are those of the sample, and the Python functions were read a little later. A run of functions takes the place of the
//! native frame in which it is; one that is in no frame of the interpreter began after the sample and is left out, and a frame without a run
//! has ended since and stays.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::profile::stacks::{Frame, Line, Tree};
use crate::profile::totals::Seed;
use crate::profile::unwound::code::Code;
use crate::python::{Executed, Frames, Function, Run};
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
    /// The lines that the last stack's Python functions execute, each once.
    lines: Vec<Line>,
    /// The one of them of which the interpreter itself executed the code.
    own: Option<Line>,
    /// The numbers of Python functions in the tree, by the addresses that they have here.
    known: HashMap<usize, u32, Seed>,
    /// What is outside of the outermost Python function, by what is known of it. Not all of a deep stack is copied.
    roots: HashMap<u64, Vec<u32>>,
}

/// How many more functions a thread plausibly executes when it is read than when the sample was taken.
const CHANGED: usize = 3;

/// The number of [roots](Merger::roots) that are kept.
const ROOTS: usize = 1 << 12;

/// Returns the number of native frames of the interpreter.
fn count(steps: &[Step]) -> usize {
    steps.iter().filter(|step| step.kind == Kind::Interpreter).count()
}

impl Merger {
    /// Returns the functions of the last stack, from the innermost one on.
    pub(super) fn path(&self) -> &[u32] {
        &self.path
    }

    /// Returns the interpreter's function and the one that it executed, if the last stack's sample was in the interpreter itself.
    pub(super) fn interpreted(&self) -> Option<(u32, u32)> {
        self.interpreter.zip(self.path.first().copied())
    }

    /// Returns the lines that the last stack's Python functions execute, the innermost one first, and that of which the interpreter itself
    /// executed the code, if the sample was there.
    pub(super) fn lines(&self) -> (&[Line], Option<Line>) {
        (&self.lines, self.own)
    }

    /// Merges a stack, of which `is_whole` says whether all was found, with what was read of Python. Returns whether all is known.
    pub(super) fn merge(&mut self, steps: &[Step], is_whole: bool, python: &Python, tree: &mut Tree) -> bool {
        self.path.clear();
        self.interpreter = None;
        self.lines.clear();
        self.own = None;
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
        let is_in_order = frames.runs().next().is_some_and(|run| run.place == 0);
        // A stack may seem to end where the copy does. Then it does not reach the outermost Python function.
        let reaches_it = match is_in_order {
            true => frames.runs().len() <= count(steps) + CHANGED,
            false => steps
                .last()
                .is_some_and(|step| frames.runs().next_back().is_some_and(|run| run.place < step.end)),
        };
        let is_whole = is_whole && reaches_it;
        let last = match is_in_order {
            true => self.put_in_order(steps, is_whole, frames, tree),
            false => self.put_by_place(steps, is_whole, frames, tree),
        };
        if let Some(last) = last.filter(|_| is_whole && frames.is_whole)
            && (self.roots.len() < ROOTS || self.roots.contains_key(&frames.outermost))
        {
            self.roots.insert(frames.outermost, self.path.get(last..).unwrap_or_default().to_vec());
        }
        if is_whole || !frames.is_whole {
            return is_whole;
        }
        let root = self.roots.get(&frames.outermost);
        root.into_iter().for_each(|root| self.path.extend(root));
        root.is_some()
    }

    /// Returns how long the path is up to the outermost run, if there is one.
    fn put_by_place(
        &mut self,
        steps: &[Step],
        is_whole: bool,
        frames: &Frames,
        tree: &mut Tree,
    ) -> Option<usize> {
        let mut runs = frames.runs().peekable();
        let (mut start, mut last) = (0, None);
        for (index, step) in steps.iter().enumerate() {
            // Those before it are in frames that were not there yet.
            while runs.next_if(|run| run.place < start).is_some() {}
            let in_frame = |run: &Run| run.place < step.end;
            let run = if step.kind == Kind::Interpreter { runs.next_if(in_frame) } else { None };
            match run {
                Some(run) => last = Some(self.add(steps, index, run, tree)),
                None => self.path.push(step.frame),
            }
            start = step.end;
        }
        if !is_whole {
            for run in runs.filter(|run| run.place >= start) {
                self.add(&[], 0, run, tree);
            }
        }
        last
    }

    /// Does the same where each native frame of the interpreter has one run.
    fn put_in_order(
        &mut self,
        steps: &[Step],
        is_whole: bool,
        frames: &Frames,
        tree: &mut Tree,
    ) -> Option<usize> {
        let native = count(steps);
        let runs = frames.runs().len();
        // The outermost ones belong together, if all are known: they change least. Otherwise the innermost ones do.
        let knows_all = is_whole && frames.is_whole;
        let (spare, mut alone) =
            if knows_all { (runs.saturating_sub(native), native.saturating_sub(runs)) } else { (0, 0) };
        let mut runs = frames.runs().skip(spare);
        let mut last = None;
        for (index, step) in steps.iter().enumerate() {
            let run = match (step.kind, alone) {
                (Kind::Interpreter, 0) => runs.next(),
                (Kind::Interpreter, _) => {
                    alone -= 1;
                    None
                }
                _ => None,
            };
            match run {
                Some(run) => last = Some(self.add(steps, index, run, tree)),
                None => self.path.push(step.frame),
            }
        }
        if !is_whole {
            for run in runs {
                self.add(&[], 0, run, tree);
            }
        }
        last
    }

    /// Adds the functions of a run, which are in place of the step of this index, and returns how long the path is with them. CPython's
    /// trampoline calls the interpreter for one function, whose name it has.
    fn add(&mut self, steps: &[Step], index: usize, run: Run<'_>, tree: &mut Tree) -> usize {
        let is_named = steps.get(index + 1).is_some_and(|step| step.kind == Kind::Generated);
        let functions = match run.functions.split_last() {
            Some((_, inner)) if is_named => inner,
            _ => run.functions,
        };
        let is_innermost = index == 0 && !steps.is_empty();
        for (number, executed) in run.functions.iter().enumerate() {
            let frame = self.frame(&executed.function, tree);
            // The one whose name the trampoline has executes a line as well.
            if number < functions.len() {
                self.path.push(frame);
            }
            self.add_line(frame, executed, is_innermost && number == 0);
        }
        if let Some(step) = steps.first().filter(|_| is_innermost && !run.functions.is_empty()) {
            self.interpreter = Some(step.frame);
        }
        self.path.len()
    }

    fn add_line(&mut self, frame: u32, executed: &Executed, is_own: bool) {
        let Some(number) = executed.line.map(NonZeroU32::get) else { return };
        let line = Line { frame, number };
        self.own = self.own.or(Some(line).filter(|_| is_own));
        self.lines.push(line);
    }

    fn frame(&mut self, function: &Arc<Function>, tree: &mut Tree) -> u32 {
        let address = Arc::as_ptr(function).addr();
        *self.known.entry(address).or_insert_with(|| tree.frame(Frame::Python(Arc::clone(function))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(frame: u32, end: u64, kind: Kind) -> Step {
        Step { frame, end, kind }
    }

    fn frames(runs: &[(u64, &[&str])], is_whole: bool) -> Python {
        let function = |name: &&str| Arc::new(Function { name: (*name).into(), ..Function::default() });
        let line = |name: &&str| NonZeroU32::new(name.len() as u32 + 9);
        let executed = |name| Executed { function: function(name), line: line(name) };
        let functions = runs.iter().flat_map(|(_, names)| names.iter().map(executed)).collect();
        let mut end = 0;
        let ends = runs.iter().map(|(place, names)| {
            end += names.len() as u32;
            (*place, end)
        });
        let outermost = runs.last().map_or(0, |run| run.0.max(7));
        Python::Frames(Frames::new(functions, ends.collect(), outermost, is_whole))
    }

    /// Merges, and returns the path from the innermost function on: names, or the numbers of native ones.
    fn merged(merger: &mut Merger, steps: &[Step], is_whole: bool, python: &Python) -> (String, bool) {
        let mut tree = Tree::default();
        // Native functions have the first numbers.
        for number in 0..10 {
            let name = Arc::new(Function { name: number.to_string(), ..Function::default() });
            tree.frame(Frame::Python(name));
        }
        merger.known.clear();
        let is_whole = merger.merge(steps, is_whole, python, &mut tree);
        let name = |&frame: &u32| match &tree.frames()[frame as usize] {
            Frame::Python(function) => function.name.clone(),
            Frame::Hooked(_) | Frame::Other(_) => String::new(),
        };
        (merger.path().iter().map(name).collect::<Vec<_>>().join(" "), is_whole)
    }

    /// A C function, called by the interpreter, called by a C function, called by the interpreter, called by main.
    fn stack() -> [Step; 5] {
        use Kind::{Interpreter, Native};
        [
            step(1, 100, Native),
            step(2, 200, Interpreter),
            step(3, 300, Native),
            step(2, 400, Interpreter),
            step(4, 500, Native),
        ]
    }

    #[test]
    fn runs_take_the_places_of_native_frames() {
        let merger = &mut Merger::default();
        for places in [[150, 350], [0, 0]] {
            let python = match places {
                [0, 0] => frames(&[(0, &["h"]), (0, &["f"])], true),
                _ => frames(&[(places[0], &["h", "g"]), (places[1], &["f"])], true),
            };
            let inner = if places[0] == 0 { "h" } else { "h g" };
            let all = format!("1 {inner} 3 f 4");
            assert_eq!(merged(merger, &stack(), true, &python), (all, true));
            assert_eq!((merger.interpreted(), merger.lines().1), (None, None));
            // Each function's line.
            assert_eq!(merger.lines().0.len(), inner.split(' ').count() + 1);
            // The sample is in the interpreter.
            let (path, _) = merged(merger, &stack()[1..], true, &python);
            assert_eq!(path, format!("{inner} 3 f 4"));
            assert!(merger.interpreted().is_some_and(|(interpreter, _)| interpreter == 2));
            let (lines, own) = merger.lines();
            assert!(own == lines.first().copied() && own.is_some_and(|line| line.number == 10));
            // The rest of the stack was not copied, and is known from before.
            let (path, is_whole) = merged(merger, &stack()[..2], false, &python);
            assert_eq!((path, is_whole), (format!("1 {inner} f 4"), true));
        }
        // It seems to be whole.
        let deep =
            frames(&[(0, &["h"]), (0, &["g"]), (0, &["g"]), (0, &["g"]), (0, &["g"]), (0, &["f"])], true);
        assert_eq!(merged(merger, &stack()[..4], true, &deep).0, "1 h 3 g g g g f 4");
        let unknown = frames(&[(150, &["h"]), (351, &["f"])], true);
        assert_eq!(merged(merger, &stack()[..2], false, &unknown), ("1 h f".into(), false));
    }

    #[test]
    fn what_has_changed_since_the_sample() {
        let merger = &mut Merger::default();
        // The inner call has ended; it has, and another one was made, by another function; another one was made as well.
        for (runs, expected) in [
            (&[(350, &["f"][..])][..], "1 2 3 f 4"),
            (&[(250, &["h"]), (350, &["f"])], "1 2 3 f 4"),
            (&[(50, &["i"]), (150, &["h"]), (350, &["f"])], "1 h 3 f 4"),
            (&[(250, &["g"]), (450, &["f"])], "1 2 3 2 4"),
            (&[(0, &["f"])], "1 2 3 f 4"),
            (&[(0, &["i"]), (0, &["h"]), (0, &["f"])], "1 h 3 f 4"),
        ] {
            let python = frames(runs, true);
            assert_eq!(merged(merger, &stack(), true, &python), (expected.into(), true), "{runs:?}");
        }
    }

    #[test]
    fn functions_that_were_not_read() {
        let merger = &mut Merger::default();
        assert_eq!(merged(merger, &stack(), true, &Python::Unknown), ("1".into(), false));
        assert_eq!(merged(merger, &stack()[1..], true, &Python::Unknown), ("2".into(), false));
        assert_eq!(merged(merger, &stack()[4..], true, &Python::Unknown), ("4".into(), true));
        assert_eq!(merged(merger, &stack(), true, &Python::None), ("1 2 3 2 4".into(), true));
    }

    #[test]
    fn trampolines_name_what_they_call() {
        let merger = &mut Merger::default();
        let mut steps = stack();
        (steps[2].kind, steps[4].kind) = (Kind::Generated, Kind::Generated);
        let python = frames(&[(150, &["h"]), (350, &["f"])], true);
        assert_eq!(merged(merger, &steps, true, &python), ("1 3 4".into(), true));
        // The functions whose names they have execute lines nevertheless.
        assert_eq!((merger.lines().0.len(), merger.lines().1), (2, None));
        merged(merger, &steps[1..], true, &python);
        assert_eq!(merger.interpreted(), Some((2, 3)));
        assert_eq!((merger.lines().0.len(), merger.lines().1), (2, merger.lines().0.first().copied()));
    }
}
