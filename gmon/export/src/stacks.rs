//! A run as weighted stacks, which most formats consist of.
//!
//! Where call paths were recorded or stacks sampled, a stack is the path of a node. Otherwise no more than pairs are known: a stack has a
//! function and its caller, and inclusive times that a reader computes from such stacks go no further. What a function has cost is then
//! divided among its callers by gprof's rule, without a rest: the sums by function are exact.

use std::io;

use gmon_run::paths::{Frame as PathFrame, LEFT_OUT_NAME, Paths};

use crate::model::{Arc, Function, Line, Run, Time};

/// A place in a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Somewhere in the function with this index.
    Function(u32),
    /// At the line of the spot with this index, with the inlined calls around it.
    Spot(u32),
    /// At the call site of the arc with this index.
    Site(u32),
    /// In calls for which there was no room for nodes of their own, or in callers of sampled stacks that are not known.
    Rest,
    /// Any number of frames are left out here.
    LeftOut,
}

/// A stack and its cost.
pub(crate) struct Stack<'a> {
    /// The innermost first.
    pub(crate) places: &'a [Place],
    /// The index of the thread, if it is known.
    pub(crate) thread: Option<u32>,
    /// The calls of the innermost function by this path.
    pub(crate) calls: u64,
    pub(crate) self_ns: u64,
    pub(crate) samples: u64,
    pub(crate) instructions: u64,
}

/// What the one weight of a stack is, in formats that have no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    Time,
    /// Instructions that were counted by path.
    Executed,
    /// Instructions of the basic blocks that were counted.
    Instructions,
    Calls,
}

impl Weight {
    /// Returns the most telling weight that a run has.
    pub(crate) fn of(run: &Run) -> Weight {
        match (run.time.is_some() && run.self_ns() > 0, run.has_instructions) {
            (true, _) if run.time == Time::Executed => Weight::Executed,
            (true, _) => Weight::Time,
            (false, true) => Weight::Instructions,
            (false, false) => Weight::Calls,
        }
    }

    pub(crate) fn get(self, stack: &Stack) -> u64 {
        match self {
            Weight::Time | Weight::Executed => stack.self_ns,
            Weight::Instructions => stack.instructions,
            Weight::Calls => stack.calls,
        }
    }
}

/// One function at a place: an inlined one, or the one that contains it.
pub(crate) struct Level<'r> {
    /// The index of the function; `None` for what is none.
    pub(crate) function: Option<u32>,
    /// The index of the inlined function.
    pub(crate) inlined: Option<u32>,
    pub(crate) name: &'r str,
    pub(crate) line: Option<Line>,
}

/// Returns the functions at a place, the innermost inlined one first.
pub(crate) fn levels(run: &Run, place: Place) -> Vec<Level<'_>> {
    let of = |index: u32, line| Level {
        function: Some(index),
        inlined: None,
        name: &run.functions[index as usize].demangled,
        line,
    };
    let (function, frames) = match place {
        Place::Function(index) => return vec![of(index, run.functions[index as usize].source)],
        Place::Spot(index) => {
            let spot = &run.spots[index as usize];
            (spot.function, &spot.frames)
        }
        Place::Site(index) => {
            let arc = &run.arcs[index as usize];
            (arc.caller.unwrap_or(0), &arc.frames)
        }
        Place::Rest => {
            return vec![Level {
                function: None,
                inlined: None,
                name: run.name_without_function(),
                line: None,
            }];
        }
        Place::LeftOut => {
            return vec![Level { function: None, inlined: None, name: LEFT_OUT_NAME, line: None }];
        }
    };
    let level = |frame: &crate::model::Frame| match frame.inlined {
        Some(inlined) => Level {
            function: Some(function),
            inlined: Some(inlined),
            name: &run.inlined[inlined as usize].demangled,
            line: frame.line,
        },
        None => of(function, frame.line),
    };
    frames.iter().map(level).collect()
}

/// Calls `each` with every stack that has any cost.
///
/// # Errors
/// `each` has returned one.
pub(crate) fn visit(run: &Run, mut each: impl FnMut(&Stack) -> io::Result<()>) -> io::Result<()> {
    if !run.nodes.is_empty() && run.time != Time::Sampled {
        by_path(run, &mut each)
    } else if run.time.is_measured() {
        by_arc(run, &mut each)
    } else {
        by_calls(run, &mut each)
    }
}

type Each<'e> = &'e mut dyn FnMut(&Stack) -> io::Result<()>;

fn by_path(run: &Run, each: Each) -> io::Result<()> {
    let paths = Paths::new(run.nodes.iter().map(|node| node.parent));
    let (mut path, mut places) = (Vec::new(), Vec::new());
    for (index, node) in run.nodes.iter().enumerate() {
        if (node.calls, node.self_ns, node.samples) == (0, 0, 0) {
            continue;
        }
        path.clear();
        paths.append(index, &mut path);
        places.clear();
        places.extend(path.iter().map(|frame| place_of(run, frame)));
        each(&Stack {
            places: &places,
            thread: Some(node.thread),
            calls: node.calls,
            self_ns: node.self_ns,
            samples: node.samples,
            instructions: 0,
        })?;
    }
    // Samples are counted by function where no node has any.
    if run.nodes.iter().all(|node| node.samples == 0) {
        samples_alone(run, each)?;
    }
    Ok(())
}

fn place_of(run: &Run, frame: &PathFrame) -> Place {
    match *frame {
        PathFrame::Node(node) => run.nodes[node as usize].function.map_or(Place::Rest, Place::Function),
        PathFrame::LeftOut => Place::LeftOut,
    }
}

/// What gprofinject's own time was taken out of is never negative, for each function and for each arc. The arcs into a short function may
/// therefore have more time than the function; they then have their parts of the function's.
fn by_arc(run: &Run, each: Each) -> io::Result<()> {
    let mut by_callers = vec![0_u128; run.functions.len()];
    for arc in &run.arcs {
        by_callers[arc.callee as usize] += u128::from(arc.self_ns);
    }
    let mut before = vec![0_u128; run.functions.len()];
    let mut left: Vec<u64> = run.functions.iter().map(|function| function.self_ns).collect();
    for arc in &run.arcs {
        let places = [Some(arc.callee), arc.caller].map(|function| function.map(Place::Function));
        let places: Vec<Place> = places.into_iter().flatten().collect();
        let callee = arc.callee as usize;
        let (whole, sum) = (u128::from(run.functions[callee].self_ns), by_callers[callee]);
        // The arcs are laid end to end, and each is as long as the rounded distance between its ends.
        let scaled = |ns: u128| if sum > whole { part(ns, sum, whole) } else { ns };
        let start = scaled(before[callee]);
        before[callee] += u128::from(arc.self_ns);
        let self_ns = (scaled(before[callee]) - start) as u64;
        left[callee] = left[callee].saturating_sub(self_ns);
        each(&Stack { calls: arc.calls, self_ns, ..empty(&places) })?;
    }
    for (index, self_ns) in (0..).zip(left).filter(|&(_, left)| left > 0) {
        each(&Stack { self_ns, ..empty(&[Place::Function(index)]) })?;
    }
    samples_alone(run, each)
}

/// Returns `whole` times `ns` divided by `sum`, which is at least `ns`. `whole` is less than 2^64.
fn part(ns: u128, sum: u128, whole: u128) -> u128 {
    // Sums of 64-bit numbers may be larger, and their lowest bits do not matter then.
    let excess = (u128::BITS - sum.leading_zeros()).saturating_sub(u64::BITS);
    (ns >> excess) * whole / (sum >> excess)
}

fn samples_alone(run: &Run, each: Each) -> io::Result<()> {
    for (index, function) in (0..).zip(&run.functions).filter(|(_, function)| function.samples > 0) {
        each(&Stack { samples: function.samples, ..empty(&[Place::Function(index)]) })?;
    }
    Ok(())
}

fn empty(places: &[Place]) -> Stack<'_> {
    Stack { places, thread: None, calls: 0, self_ns: 0, samples: 0, instructions: 0 }
}

fn by_calls(run: &Run, each: Each) -> io::Result<()> {
    let mut arcs_of: Vec<Vec<u32>> = vec![Vec::new(); run.functions.len()];
    for (index, arc) in (0..).zip(&run.arcs) {
        arcs_of[arc.callee as usize].push(index);
        let caller = caller_of(index, arc);
        let places: Vec<Place> = [Some(Place::Function(arc.callee)), caller].into_iter().flatten().collect();
        each(&Stack { calls: arc.calls, ..empty(&places) })?;
    }
    let mut spots_of: Vec<Vec<u32>> = vec![Vec::new(); run.functions.len()];
    for (index, spot) in (0..).zip(&run.spots) {
        spots_of[spot.function as usize].push(index);
    }
    let paths = Paths::new(run.nodes.iter().map(|node| node.parent));
    let mut nodes_of: Vec<Vec<u32>> = vec![Vec::new(); run.functions.len()];
    for (index, node) in (0..).zip(&run.nodes).filter(|(_, node)| node.self_ns > 0) {
        if let Some(function) = node.function {
            nodes_of[function as usize].push(index);
        }
    }
    for (index, function) in (0..).zip(&run.functions) {
        let spots = &spots_of[index as usize];
        let callers = match run.time {
            Time::Sampled => by_stacks(run, &nodes_of[index as usize]),
            _ => by_numbers(run, index, &arcs_of[index as usize]),
        };
        times(run, (index, function), spots, (callers, &paths), each)?;
        let mut left = function.instructions;
        for &spot in spots {
            let instructions = run.spots[spot as usize].instructions.min(left);
            left -= instructions;
            if instructions > 0 {
                each(&Stack { instructions, ..empty(&[Place::Spot(spot)]) })?;
            }
        }
        if left > 0 {
            each(&Stack { instructions: left, ..empty(&[Place::Function(index)]) })?;
        }
    }
    Ok(())
}

/// Returns the place of an arc's call.
fn caller_of(index: u32, arc: &Arc) -> Option<Place> {
    let caller = arc.caller?;
    Some(if arc.frames.is_empty() { Place::Function(caller) } else { Place::Site(index) })
}

/// What is above a function on a stack.
#[derive(Clone, Copy)]
enum Above {
    Nothing,
    Caller(Place),
    /// The callers of the node with this index.
    Node(u32),
}

/// Returns the callers of a function, each with the time at which its part of the function's time ends: in proportion to the calls.
fn by_numbers(run: &Run, index: u32, arcs: &[u32]) -> Vec<(Above, u64)> {
    let arc = |&index: &u32| &run.arcs[index as usize];
    let whole = u128::from(run.functions[index as usize].self_ns);
    // Recursive calls have no time of their own, as for gprof.
    let arcs: Vec<u32> = arcs.iter().copied().filter(|at| arc(at).caller != Some(index)).collect();
    let calls = arcs.iter().fold(0_u128, |sum, index| sum + u128::from(arc(index).calls));
    let mut before = 0_u128;
    let callers = arcs.iter().map(|index| {
        before += u128::from(arc(index).calls);
        let end = (whole * before).checked_div(calls).unwrap_or(0) as u64;
        (caller_of(*index, arc(index)).map_or(Above::Nothing, Above::Caller), end)
    });
    callers.collect()
}

/// Returns the nodes of a function, each with the time at which its part of the function's time ends.
fn by_stacks(run: &Run, nodes: &[u32]) -> Vec<(Above, u64)> {
    let mut end = 0_u64;
    let nodes = nodes.iter().map(|&index| {
        end = end.saturating_add(run.nodes[index as usize].self_ns);
        (Above::Node(index), end)
    });
    nodes.collect()
}

/// Divides the time of a function among its lines and its callers. Both are cut at the same times, one after the other, so that
/// there are no more stacks than lines and callers together, and the sums of both are exact:
///
/// ```text
/// lines    |  line 5     |      line 6        |
/// callers  |     f            |      g        |
/// stacks   |   5 < f     |6<f |    6 < g      |
/// ```
fn times(
    run: &Run,
    (index, function): (u32, &Function),
    spots: &[u32],
    (mut callers, paths): (Vec<(Above, u64)>, &Paths),
    each: Each,
) -> io::Result<()> {
    let whole = function.self_ns;
    if whole == 0 {
        return Ok(());
    }
    callers.push((Above::Nothing, whole));
    let mut lines: Vec<(Place, u64)> = Vec::new();
    let mut end = 0_u64;
    for &spot in spots {
        end = end.saturating_add(run.spots[spot as usize].self_ns).min(whole);
        lines.push((Place::Spot(spot), end));
    }
    lines.push((Place::Function(index), whole));
    let (mut lines, mut callers) = (lines.into_iter().peekable(), callers.into_iter().peekable());
    let (mut path, mut places) = (Vec::new(), Vec::new());
    let mut at = 0_u64;
    let samples_at = |ns: u64| {
        // The samples before a time, so that all parts have whole ones.
        (u128::from(function.samples) * u128::from(ns) / u128::from(whole)) as u64
    };
    while let (Some(&(line, line_end)), Some(&(caller, caller_end))) = (lines.peek(), callers.peek()) {
        let to = line_end.min(caller_end).min(whole);
        if to > at {
            places.clear();
            places.push(line);
            match caller {
                Above::Nothing => {}
                Above::Caller(caller) => places.push(caller),
                Above::Node(node) => {
                    path.clear();
                    paths.append(node as usize, &mut path);
                    places.extend(path.iter().skip(1).map(|frame| place_of(run, frame)));
                }
            }
            let samples = samples_at(to) - samples_at(at);
            each(&Stack { self_ns: to - at, samples, ..empty(&places) })?;
            at = to;
        }
        if line_end == to {
            lines.next();
        }
        if caller_end == to {
            callers.next();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Spot;
    use gmon_run::Node;

    /// Returns the self time that the stacks give to each function, and to each caller of the function 0.
    fn sums(run: &Run) -> (Vec<u64>, Vec<u64>) {
        let mut own = vec![0; run.functions.len()];
        let mut callers = vec![0; run.functions.len()];
        visit(run, |stack| {
            if let Place::Function(function) = stack.places[0] {
                own[function as usize] += stack.self_ns;
                if let (0, Some(&Place::Function(caller))) = (function, stack.places.get(1)) {
                    callers[caller as usize] += stack.self_ns;
                }
            }
            Ok(())
        })
        .expect("nothing is written");
        (own, callers)
    }

    /// The lines of a function, and the sampled stacks on which it is the last, share its time; all sums are exact.
    #[test]
    fn sampled_stacks_have_the_lines_of_their_functions() {
        let node = |parent, function, samples| Node {
            parent,
            function,
            samples,
            self_ns: samples * 10,
            ..Node::default()
        };
        let spot = |self_ns| Spot { function: 1, self_ns, ..Spot::default() };
        let run = Run {
            time: Time::Sampled,
            sample_period_ns: 10,
            functions: vec![
                Function { calls: 3, ..Function::default() },
                Function { self_ns: 90, samples: 9, ..Function::default() },
            ],
            arcs: vec![Arc { caller: Some(0), callee: 1, calls: 3, self_ns: 50, ..Arc::default() }],
            nodes: vec![
                node(None, Some(0), 0),
                node(Some(0), Some(1), 5),
                node(None, None, 0),
                node(Some(2), Some(1), 1),
                node(Some(1), Some(1), 3),
            ],
            spots: vec![spot(70), spot(10)],
            ..Run::default()
        };
        let mut found = Vec::new();
        visit(&run, |stack| {
            found.push((stack.places.to_vec(), stack.calls, stack.self_ns, stack.samples));
            Ok(())
        })
        .expect("nothing is written");
        let (main, own) = (Place::Function(0), Place::Function(1));
        let expected = [
            (vec![own, main], 3, 0, 0),
            (vec![Place::Spot(0), main], 0, 50, 5),
            (vec![Place::Spot(0), Place::Rest], 0, 10, 1),
            (vec![Place::Spot(0), own, main], 0, 10, 1),
            (vec![Place::Spot(1), own, main], 0, 10, 1),
            (vec![own, own, main], 0, 10, 1),
        ];
        assert_eq!(found, expected);
    }

    /// Arcs with more time than their callee share its time, and what they leave of it has no caller.
    #[test]
    fn measured_arcs_have_the_time_of_the_function() {
        let function = |self_ns| Function { self_ns, ..Function::default() };
        let arc =
            |caller, self_ns| Arc { caller: Some(caller), callee: 0, calls: 1, self_ns, ..Arc::default() };
        let mut run = Run {
            time: Time::Measured { error_ns: 1.0 },
            functions: vec![function(10), function(5), function(6), function(7)],
            arcs: vec![arc(1, 20), arc(2, 7), arc(3, 13)],
            ..Run::default()
        };
        assert_eq!(sums(&run), (vec![10, 5, 6, 7], vec![0, 5, 1, 4]));
        run.functions[0].self_ns = 0;
        assert_eq!(sums(&run), (vec![0, 5, 6, 7], vec![0; 4]));
        // Merged files may have anything.
        for arc in &mut run.arcs {
            arc.self_ns = u64::MAX;
        }
        run.functions[0].self_ns = u64::MAX - 1;
        let (own, callers) = sums(&run);
        assert_eq!((own[0], callers.iter().sum()), (u64::MAX - 1, u64::MAX - 1));
        assert!(callers[1..].iter().all(|&ns| ns.abs_diff(u64::MAX / 3) < 9), "{callers:?}");
        for (arc, ns) in run.arcs.iter_mut().zip([20, 7, 13]) {
            arc.self_ns = ns;
        }
        run.functions[0].self_ns = 50;
        assert_eq!(sums(&run), (vec![50, 5, 6, 7], vec![0, 20, 7, 13]));
    }
}
