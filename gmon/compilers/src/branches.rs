//! How often control passed from each basic block to others, and from functions to those that they call.
//!
//! Of the branches in a function, [conservation of flow](crate::flow) tells most. What each kind of last instruction adds:
//!
//! ```text
//! branch or plain instruction    its target and what follows it
//! call                           what follows it, as often as both blocks ran: calls return
//! jump through a table           the targets in the table, and labels to which data has pointers
//! jump elsewhere                 nothing: it leaves the function
//! ```
//!
//! To a function's entry, landing pads, and places where other functions jump to, control also comes from outside.

use std::collections::{BTreeMap, BTreeSet};

use gprofinject_image::Image;
use gprofinject_image::x86::{goes_on, is_call, is_direct_branch};
use iced_x86::{FlowControl, Instruction};

use crate::flow::{Edge, solve};
use crate::module::Module;
use crate::targets::Targets;

/// The most edges of indirect jumps in a function that are told apart.
const JUMPS_MAX: usize = 1 << 22;

/// The branches of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Branches {
    /// The basic blocks that ran.
    pub blocks: Vec<Block>,
    /// Taken branches, from the branch instruction to their target.
    pub taken: BTreeMap<(u64, u64), u64>,
    /// Control that went straight on, from the last instruction of a block to the next block.
    pub through: BTreeMap<(u64, u64), u64>,
    /// Calls and jumps to other functions, from the instruction to the first one of the function.
    pub calls: BTreeMap<(u64, u64), u64>,
    /// Calls from outside of the module, or from places that are not known.
    pub entries: BTreeMap<u64, u64>,
    /// The address at which the file begins in memory, as it is linked.
    pub base: u64,
    pub facts: Facts,
}

/// A basic block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub start: u64,
    /// The address of its last instruction.
    pub last: u64,
    pub count: u64,
}

/// What branches cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The functions that ran and whose blocks were counted.
    pub functions: usize,
    /// The functions that were called and whose blocks were not counted.
    pub uncounted: usize,
    /// The functions of which a part is elsewhere (`.cold`).
    pub split: usize,
    /// The edges between blocks that ran, and how often control passed them.
    pub edges: usize,
    pub passed: u64,
    /// Those of them that conservation leaves open.
    pub open: usize,
    pub open_passed: u64,
}

impl Branches {
    /// Returns the branches of a module with this image.
    pub fn of(module: &Module, image: &Image) -> Branches {
        let base = image.segments.iter().map(|segment| segment.address).min().unwrap_or(0);
        let mut branches = Branches { base, ..Branches::default() };
        let report = &module.report;
        let units: Vec<Unit> = (0..report.functions.len())
            .filter(|&index| report.functions[index].part_of.is_none())
            .filter_map(|index| Unit::of(module, index, &mut branches.facts))
            .collect();
        // Where code of other functions leads to, other than by a call.
        let entered: BTreeSet<u64> = units.iter().flat_map(|unit| unit.leaves_to()).collect();
        for unit in &units {
            unit.add(module, image, &entered, &mut branches);
        }
        // Each function is entered as often as its calls say; those that no counted instruction made come from outside.
        let mut inside: BTreeMap<u64, u64> = BTreeMap::new();
        for (&(_, to), &calls) in &branches.calls {
            let sum = inside.entry(to).or_default();
            *sum = sum.saturating_add(calls);
        }
        for unit in &units {
            let known = inside.get(&unit.entry).copied().unwrap_or(0);
            let rest = module.calls_of(unit.entry).saturating_sub(known);
            if rest > 0 {
                branches.entries.insert(unit.entry, rest);
            }
        }
        branches
    }
}

/// A block of a unit.
struct Node {
    start: u64,
    end: u64,
    count: u64,
    last: Instruction,
}

/// A function with its `.cold` parts.
struct Unit {
    entry: u64,
    /// Sorted by address.
    nodes: Vec<Node>,
}

/// How control passes along an edge.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Taken,
    Through,
    /// Behind a call, which is no branch for those who read profiles.
    Back,
    Outside,
}

impl Unit {
    fn of(module: &Module, index: usize, facts: &mut Facts) -> Option<Unit> {
        let report = &module.report;
        let function = &report.functions[index];
        if function.blocks.is_none() {
            facts.uncounted += usize::from(module.calls_of(function.symbol.start) > 0);
            return None;
        }
        let mut unit = Unit { entry: function.symbol.start, nodes: Vec::new() };
        for &part in [index].iter().chain(report.parts(index)) {
            for block in report.functions[part].blocks.iter().flatten() {
                let inside = module.code().instructions(block.start).take_while(|i| i.next_ip() <= block.end);
                let Some(last) = inside.last() else { continue };
                unit.nodes.push(Node { start: block.start, end: block.end, count: block.count, last });
            }
        }
        unit.nodes.sort_by_key(|node| node.start);
        if unit.nodes.iter().all(|node| node.count == 0) {
            return None;
        }
        facts.functions += 1;
        facts.split += usize::from(!report.parts(index).is_empty());
        Some(unit)
    }

    fn at(&self, address: u64) -> Option<usize> {
        self.nodes.binary_search_by_key(&address, |node| node.start).ok()
    }

    /// The targets of branches that are not in the unit.
    fn leaves_to(&self) -> impl Iterator<Item = u64> + '_ {
        let branches = self.nodes.iter().filter(|node| is_direct_branch(&node.last));
        let targets = branches.map(|node| node.last.near_branch_target());
        targets.filter(|&target| self.at(target).is_none())
    }

    /// Adds the unit's branches.
    fn add(&self, module: &Module, image: &Image, entered: &BTreeSet<u64>, out: &mut Branches) {
        let (edges, ways) = self.edges(module, image, entered);
        let counts: Vec<u64> = self.nodes.iter().map(|node| node.count).collect();
        let solved = solve(&counts, &edges);
        for node in self.nodes.iter().filter(|node| node.count > 0) {
            out.blocks.push(Block { start: node.start, last: node.last.ip(), count: node.count });
            self.add_calls(module, node, out);
        }
        let facts = &mut out.facts;
        for (index, (edge, way)) in edges.iter().zip(ways).enumerate() {
            let count = solved.counts[index];
            let (Some(from), Some(to)) = (edge.from, edge.to) else { continue };
            if way == Way::Back || count == 0 && solved.open.binary_search(&index).is_err() {
                continue;
            }
            facts.edges += 1;
            facts.passed = facts.passed.saturating_add(count);
            if solved.open.binary_search(&index).is_ok() {
                facts.open += 1;
                facts.open_passed = facts.open_passed.saturating_add(count);
            }
            let (from, to) = (self.nodes[from].last.ip(), self.nodes[to].start);
            let sums = match way {
                Way::Taken => &mut out.taken,
                _ => &mut out.through,
            };
            if count > 0 {
                let sum = sums.entry((from, to)).or_default();
                *sum = sum.saturating_add(count);
            }
        }
    }

    /// Adds the calls at a block's end, and jumps to other functions.
    fn add_calls(&self, module: &Module, node: &Node, out: &mut Branches) {
        let last = &node.last;
        let mut add = |to: u64, calls: u64| {
            let sum = out.calls.entry((last.ip(), to)).or_default();
            *sum = sum.saturating_add(calls);
        };
        let functions = module.code().functions();
        let begins = |address| functions.binary_search_by_key(&address, |function| function.start).is_ok();
        match last.flow_control() {
            FlowControl::Call if begins(last.near_branch_target()) => {
                add(last.near_branch_target(), node.count)
            }
            FlowControl::UnconditionalBranch if self.at(last.near_branch_target()).is_none() => {
                add(last.near_branch_target(), node.count);
            }
            FlowControl::Call | FlowControl::IndirectCall => {
                module.callees(last).for_each(|(to, calls)| add(to, calls));
            }
            _ => {}
        }
    }

    fn edges(&self, module: &Module, image: &Image, entered: &BTreeSet<u64>) -> (Vec<Edge>, Vec<Way>) {
        let mut edges = Vec::new();
        let mut ways = Vec::new();
        let mut add = |from: Option<usize>, to: Option<usize>, count: Option<u64>, way: Way| {
            edges.push(Edge { from, to, count });
            ways.push(way);
        };
        let is_jump = |node: &&Node| node.last.flow_control() == FlowControl::IndirectBranch;
        let jumps = self.nodes.iter().filter(is_jump).count();
        let targets = if jumps == 0 { Targets::default() } else { self.targets(module, image) };
        // Where there are too many, jumps leave the function, and control comes to their targets from outside.
        let is_too_much = jumps.saturating_mul(targets.len()) > JUMPS_MAX;
        let targets = if is_too_much { Targets::default() } else { targets };
        let mut has_edge = vec![false; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            let last = &node.last;
            let behind = self.at(node.end);
            if is_direct_branch(last) {
                let target = self.at(last.near_branch_target());
                if let Some(target) = target {
                    has_edge[target] = true;
                }
                add(Some(index), target, None, Way::Taken);
                if last.flow_control() == FlowControl::UnconditionalBranch {
                    continue;
                }
            }
            if last.flow_control() == FlowControl::IndirectBranch {
                let jumped_to = targets.of(index);
                match jumped_to.is_empty() {
                    true => add(Some(index), None, None, Way::Outside),
                    false => jumped_to.iter().for_each(|&to| {
                        has_edge[to] = true;
                        add(Some(index), Some(to), None, Way::Taken);
                    }),
                }
            } else if is_call(last) {
                if let Some(behind) = behind {
                    has_edge[behind] = true;
                    let returns = node.count.min(self.nodes[behind].count);
                    add(Some(index), Some(behind), Some(returns), Way::Back);
                }
                add(Some(index), None, None, Way::Outside);
            } else if goes_on(last) {
                if let Some(behind) = behind {
                    has_edge[behind] = true;
                }
                add(Some(index), behind, None, Way::Through);
            } else {
                add(Some(index), None, None, Way::Outside);
            }
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let is_entry = node.start == self.entry;
            // Calls of a function are known, unless some code jumps to it.
            let calls = module.calls_of(node.start);
            let is_known = is_entry && module.has_arcs() && !entered.contains(&node.start);
            let is_pad = || image.details().landing_pads.binary_search(&node.start).is_ok();
            if is_entry || !has_edge[index] || entered.contains(&node.start) || is_pad() {
                add(None, Some(index), is_known.then_some(calls.min(node.count)), Way::Outside);
            }
        }
        (edges, ways)
    }

    /// Returns the blocks to which the indirect jumps may lead.
    fn targets(&self, module: &Module, image: &Image) -> Targets {
        let instructions = |node: &Node| {
            let end = node.end;
            module.code().instructions(node.start).take_while(move |i| i.next_ip() <= end)
        };
        let blocks = self.nodes.iter().map(|node| (node.start, instructions(node)));
        Targets::read(image, self.entry, blocks)
    }
}
