//! The tree of the stacks that samples have found in the processes of a program.

use std::collections::HashMap;
use std::sync::Arc;

use crate::profile::place::{Place, UnhookedPlace};
use crate::profile::totals::Seed;
use crate::python::Function;

/// A function on a stack.
#[derive(Clone, Debug)]
pub(crate) enum Frame {
    /// A function of a module of the profile, by its first address.
    Hooked(Place),
    /// One of another file, without samples.
    Other(UnhookedPlace),
    /// A Python function.
    Python(Arc<Function>),
}

/// A function together with the path of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// The index of the caller's node, which is less than that of this node.
    pub(crate) parent: Option<u32>,
    /// The index of the function. `None` stands for callers that are not known.
    pub(crate) frame: Option<u32>,
    /// The samples in the function itself.
    pub(crate) samples: u64,
}

/// A line of a Python function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Line {
    pub(crate) number: u32,
    /// The index of the function.
    pub(crate) frame: u32,
}

/// The samples of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineSamples {
    /// Those in the interpreter itself while it executed the line.
    pub(crate) own: u64,
    /// Those with the line anywhere on their stacks.
    pub(crate) inclusive: u64,
    /// Those of these that another function further in has as well, on the same line of the same file.
    pub(crate) nested: u64,
}

/// The stacks of samples.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    frames: Vec<Frame>,
    /// What is known of the frames: hooked ones by place, others by file and address or name.
    hooked: HashMap<Place, u32, Seed>,
    others: HashMap<(String, u64, String), u32>,
    python: HashMap<Arc<Function>, u32>,
    /// The samples in the interpreter's own code by the interpreter's function and by the function that it executed, whose they are.
    interpreted: HashMap<(u32, u32), u64, Seed>,
    /// The samples of the lines of Python functions.
    lines: HashMap<Line, LineSamples, Seed>,
    nodes: Vec<Node>,
    /// The nodes by those of their callers and by their functions.
    known: HashMap<u64, u32, Seed>,
}

/// The number of nodes of a program at most. What is deeper belongs to the node that was reached.
const NODES: usize = 1 << 20;
/// The number of lines of a program of which samples are known.
const LINES: usize = 1 << 20;

impl Tree {
    /// Returns the functions.
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns the nodes, callers before what they have called.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the index of a function.
    pub(crate) fn frame(&mut self, frame: Frame) -> u32 {
        let new = self.frames.len() as u32;
        let index = match &frame {
            Frame::Hooked(place) => *self.hooked.entry(*place).or_insert(new),
            Frame::Python(function) => *self.python.entry(Arc::clone(function)).or_insert(new),
            Frame::Other(place) => {
                let name = if place.start == 0 { place.function.clone() } else { String::new() };
                *self.others.entry((place.module.path.clone(), place.start, name)).or_insert(new)
            }
        };
        if index == new {
            self.frames.push(frame);
        }
        index
    }

    /// Returns the node of a function called on a path.
    pub(crate) fn node(&mut self, parent: Option<u32>, frame: Option<u32>) -> Option<u32> {
        let code = |index: Option<u32>| index.map_or(0, |index| u64::from(index) + 1);
        let key = code(parent) << 32 | code(frame);
        if let Some(&known) = self.known.get(&key) {
            return Some(known);
        }
        if self.nodes.len() >= NODES {
            return parent;
        }
        let new = self.nodes.len() as u32;
        self.nodes.push(Node { parent, frame, samples: 0 });
        self.known.insert(key, new);
        Some(new)
    }

    /// Adds samples to a node.
    pub(crate) fn add(&mut self, node: Option<u32>, samples: u64) {
        if let Some(node) = node.and_then(|node| self.nodes.get_mut(node as usize)) {
            node.samples = node.samples.saturating_add(samples);
        }
    }

    /// Notes that samples in a function of the interpreter are those of the function that it has executed. Both are known by their indexes.
    pub(crate) fn interpret(&mut self, frames: (u32, u32), samples: u64) {
        let sum = self.interpreted.entry(frames).or_default();
        *sum = sum.saturating_add(samples);
    }

    /// Returns the functions of interpreters and those that they have executed, by their indexes, and how many samples in the first ones are
    /// those of the second ones.
    pub(crate) fn interpreted(&self) -> impl Iterator<Item = ((u32, u32), u64)> {
        self.interpreted.iter().map(|(&frames, &samples)| (frames, samples))
    }

    /// Adds samples to the lines that Python functions executed, the innermost one first. `own` is that of which the interpreter itself executed
    /// the code. A line that a recursive function executes several times has the samples once.
    pub(crate) fn execute(&mut self, lines: &[Line], own: Option<Line>, samples: u64) {
        let file = |line: Line| match self.frames.get(line.frame as usize) {
            Some(Frame::Python(function)) => function.file.as_str(),
            _ => "",
        };
        let mut once: Vec<(Line, usize)> = lines.iter().copied().zip(0..).collect();
        once.sort_unstable();
        once.dedup_by_key(|(line, _)| *line);
        let mut found = Vec::with_capacity(once.len());
        // Those of the same number follow each other.
        for of_number in once.chunk_by(|(one, _), (other, _)| one.number == other.number) {
            found.extend(of_number.iter().map(|&(line, at)| {
                let is_nested =
                    of_number.iter().any(|&(other, inner)| inner < at && file(other) == file(line));
                let of = |is: bool| if is { samples } else { 0 };
                (line, LineSamples { own: of(own == Some(line)), inclusive: samples, nested: of(is_nested) })
            }));
        }
        found.into_iter().for_each(|(line, samples)| self.add_line(line, samples));
    }

    fn add_line(&mut self, line: Line, samples: LineSamples) {
        if self.lines.len() >= LINES && !self.lines.contains_key(&line) {
            return;
        }
        let sum = self.lines.entry(line).or_default();
        sum.own = sum.own.saturating_add(samples.own);
        sum.inclusive = sum.inclusive.saturating_add(samples.inclusive);
        sum.nested = sum.nested.saturating_add(samples.nested);
    }

    /// Returns the lines of Python functions with their samples, in the order of their functions.
    pub(crate) fn lines(&self) -> Vec<(Line, LineSamples)> {
        let mut lines: Vec<_> = self.lines.iter().map(|(&line, &samples)| (line, samples)).collect();
        lines.sort_unstable_by_key(|(line, _)| (line.frame, line.number));
        lines
    }

    /// Adds the stacks of another process, whose modules have other numbers.
    pub(crate) fn add_all(&mut self, other: &Tree, place: impl Fn(Place) -> Place) {
        let frames = other.frames.iter().map(|frame| match frame {
            Frame::Hooked(at) => self.frame(Frame::Hooked(place(*at))),
            Frame::Other(_) | Frame::Python(_) => self.frame(frame.clone()),
        });
        let frames: Vec<u32> = frames.collect();
        for ((interpreter, function), samples) in other.interpreted() {
            let both = frames.get(interpreter as usize).copied().zip(frames.get(function as usize).copied());
            both.into_iter().for_each(|both| self.interpret(both, samples));
        }
        for (line, samples) in other.lines() {
            let frame = frames.get(line.frame as usize).copied();
            frame.into_iter().for_each(|frame| self.add_line(Line { frame, ..line }, samples));
        }
        let mut nodes: Vec<Option<u32>> = Vec::with_capacity(other.nodes.len());
        for node in &other.nodes {
            let parent = node.parent.and_then(|parent| nodes.get(parent as usize).copied().flatten());
            let frame = node.frame.and_then(|frame| frames.get(frame as usize).copied());
            let index = self.node(parent, frame);
            self.add(index, node.samples);
            nodes.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(module: u32, address: u64) -> Place {
        Place { module, address }
    }

    /// Adds samples on a path, the outermost function first.
    fn add(tree: &mut Tree, path: &[Place], samples: u64) {
        let mut node = None;
        for &place in path {
            let frame = tree.frame(Frame::Hooked(place));
            node = tree.node(node, Some(frame));
        }
        tree.add(node, samples);
    }

    fn samples(tree: &Tree) -> Vec<(Option<u32>, u64)> {
        tree.nodes().iter().map(|node| (node.parent, node.samples)).collect()
    }

    #[test]
    fn trees_of_processes_are_added() {
        let (main, f, g) = (place(0, 1), place(0, 2), place(1, 3));
        let mut tree = Tree::default();
        add(&mut tree, &[main, f], 3);
        add(&mut tree, &[main, g], 4);
        let mut other = Tree::default();
        add(&mut other, &[main, place(2, 3)], 5);
        add(&mut other, &[main], 1);
        tree.add_all(&other, |at| if at.module == 2 { place(1, at.address) } else { at });
        assert_eq!(samples(&tree), [(None, 1), (Some(0), 3), (Some(0), 9)]);
        assert_eq!(tree.frames().len(), 3);
    }

    /// `outer` calls itself on its line 3, on which a comprehension is as well, which calls `f` of another file.
    #[test]
    fn samples_of_lines() {
        let function = |name: &str, file: &str| {
            Frame::Python(Arc::new(Function { name: name.into(), file: file.into(), line: 1 }))
        };
        let mut tree = Tree::default();
        let mut line = |name, file, number| Line { frame: tree.frame(function(name, file)), number };
        let (outer, comprehension) = (line("outer", "a.py", 3), line("<listcomp>", "a.py", 3));
        let f = line("f", "b.py", 3);
        tree.execute(&[f, comprehension, outer, outer], Some(f), 2);
        tree.execute(&[outer], Some(outer), 4);
        tree.execute(&[outer], None, 8);
        let of = |own, inclusive, nested| LineSamples { own, inclusive, nested };
        let expected = [(outer, of(4, 14, 2)), (comprehension, of(0, 2, 0)), (f, of(2, 2, 0))];
        assert_eq!(tree.lines(), expected);
        let mut sum = Tree::default();
        sum.frame(function("other", "a.py"));
        sum.add_all(&tree, |place| place);
        sum.add_all(&tree, |place| place);
        let sums: Vec<_> = sum.lines().into_iter().map(|(line, samples)| (line.frame, samples)).collect();
        assert_eq!(sums, [(1, of(8, 28, 4)), (2, of(0, 4, 0)), (3, of(4, 4, 0))]);
    }
}
