//! Basic blocks, and which of them need a counter.
//!
//! A basic block ends with a branch or a call, or before an instruction to which something leads. All
//! successors of a basic block form one *class*: a basic block that leads to one of them leads to each of
//! them. The counts of all basic blocks that lead to a class add up to the counts of all basic blocks in
//! the class. That is one equation for each class (Knuth and Stevenson, 1973). As a graph, classes are
//! nodes, and a basic block is an edge from its own class to that of its successors. The counts of the
//! basic blocks of a spanning tree follow from the others, so those need no counter. Everything with
//! unknown sources or targets (entries, indirect jumps, calls that may not return) is in one class,
//! *outside*, which has no equation.

use crate::blocks::code::Added;
use crate::blocks::steps::{Step, Steps, Way};
use crate::blocks::stubs;
use crate::blocks::uncounted::Uncounted;
use gprofinject_image::Image;

/// The opcode of `int3`.
const INT3: u8 = 0xcc;

/// A basic block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Index of its first step.
    pub(super) first: usize,
    /// Index of the first step after it.
    pub(super) end: usize,
    /// The number of its counter among the unit's.
    pub(super) counter: Option<u32>,
    /// What it adds to the clock of executed instructions; mostly 0. It may be negative.
    pub(super) ticks: i32,
    /// Index of the step before which its counter is placed, and what it adds to the clock.
    pub(super) place: usize,
    /// Whether the counter must preserve all flags.
    pub(super) keeps_flags: bool,
    /// Whether no instruction after the basic block needs its flags.
    pub(super) leaves_no_flags: bool,
    /// Whether nothing leads to the basic block, which is then mostly padding. It is not copied, and never
    /// runs.
    pub(super) dead: bool,
    /// Its class.
    class: u32,
    /// The class of its successors.
    out: u32,
}

impl Block {
    /// Returns what is added to its copy.
    pub(super) fn added(&self) -> Added {
        Added { counts: self.counter.is_some(), ticks: self.ticks, keeps_flags: self.keeps_flags }
    }
}

/// The basic blocks of a unit.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// The basic blocks, in the order of the steps.
    pub(super) blocks: Vec<Block>,
    /// By step: the basic block that begins there, or `u32::MAX`.
    begins: Vec<u32>,
    /// By basic block: its successors.
    next: Vec<Next>,
    /// Basic blocks that are possible targets of indirect jumps of the unit.
    indirect: Vec<usize>,
    /// Basic blocks that are entered from elsewhere: the function's start, landing pads, and targets of other
    /// functions' branches.
    entered: Vec<usize>,
    /// The number of counters.
    pub(super) counters: u32,
    /// Basic blocks without a counter, each with the class whose equation yields its count, in an order in
    /// which the equations can be solved.
    derived: Vec<(usize, u32)>,
}

/// The successors of a basic block.
#[derive(Clone, Copy, Debug, Default)]
struct Next {
    /// The next basic block.
    behind: Option<usize>,
    /// The basic block that it branches to.
    target: Option<usize>,
    /// Whether it leads to the targets of indirect jumps.
    indirect: bool,
    /// Whether it may also lead out of the unit, or nowhere.
    leaves: bool,
}

impl Graph {
    /// Divides the steps into basic blocks. `indirect`, `outside` and `pads` are the addresses that indirect
    /// jumps, code outside the unit, and unwinders may enter.
    ///
    /// # Errors
    ///
    /// Returns [`Uncounted::Overlapping`] if one of these addresses is inside an instruction.
    pub(super) fn new(
        steps: &Steps,
        indirect: &[u64],
        outside: &[u64],
        pads: &[u64],
    ) -> Result<Graph, Uncounted> {
        let mut leads = vec![false; steps.list.len() + 1];
        for part in &steps.parts {
            leads[part.first] = true;
        }
        for (n, step) in steps.list.iter().enumerate() {
            if step.way.ends_block() {
                leads[n + 1] = true;
            }
            if let Some(target) = step.way.target().filter(|&t| steps.holds(t)) {
                leads[steps.at(target).ok_or(Uncounted::Overlapping)?] = true;
            }
        }
        for &address in indirect.iter().chain(outside).chain(pads) {
            leads[steps.at(address).ok_or(Uncounted::Overlapping)?] = true;
        }
        let mut graph = Graph { begins: vec![u32::MAX; steps.list.len()], ..Graph::default() };
        let mut first = 0;
        leads[steps.list.len()] = true;
        for (n, _) in leads.iter().enumerate().skip(1).filter(|(_, leads)| **leads) {
            graph.begins[first] = graph.blocks.len() as u32;
            graph.blocks.push(Block {
                first,
                end: n,
                counter: None,
                ticks: 0,
                place: first,
                keeps_flags: false,
                leaves_no_flags: false,
                dead: true,
                class: 0,
                out: 0,
            });
            first = n;
        }
        let block = |address: &u64| graph.block_at(steps, *address);
        let collect = |addresses: &[u64]| addresses.iter().filter_map(block).collect::<Vec<_>>();
        let (indirect, mut entered) = (collect(indirect), collect(outside));
        entered.extend(collect(pads));
        entered.push(0);
        graph.next = (0..graph.blocks.len()).map(|b| graph.next_of(steps, b)).collect();
        (graph.indirect, graph.entered) = (indirect, entered);
        graph.mark_living();
        Ok(graph)
    }

    /// Returns the basic block that begins at an address, or `None` if there is none.
    fn block_at(&self, steps: &Steps, address: u64) -> Option<usize> {
        let block = *self.begins.get(steps.at(address)?)?;
        (block != u32::MAX).then_some(block as usize)
    }

    /// Returns the successors of a basic block.
    fn next_of(&self, steps: &Steps, b: usize) -> Next {
        let last = &steps.list[self.blocks[b].end - 1];
        let part_ends = steps.parts.iter().any(|p| p.end == self.blocks[b].end);
        let behind = (last.way.falls_through() && !part_ends).then_some(b + 1);
        let target = last.way.target().and_then(|t| self.block_at(steps, t));
        let leaves = match last.way {
            Way::Call(_) | Way::CallWithOriginalReturn(_) | Way::Leave | Way::Begin(_) => true,
            Way::JumpIndirect | Way::Return => true,
            Way::Jump(_) | Way::Conditional(_) | Way::Loop(_) => target.is_none(),
            Way::Next | Way::Nop => false,
        };
        let leaves = leaves || last.way.falls_through() && part_ends;
        Next { behind, target, indirect: last.way == Way::JumpIndirect, leaves }
    }

    /// Returns the basic blocks that may follow a basic block.
    pub(super) fn successors(&self, b: usize) -> impl Iterator<Item = usize> + '_ {
        let next = self.next[b];
        let indirect: &[usize] = if next.indirect { &self.indirect } else { &[] };
        next.behind.into_iter().chain(next.target).chain(indirect.iter().copied())
    }

    /// Marks the basic blocks to which something leads.
    fn mark_living(&mut self) {
        let mut work = self.entered.clone();
        // An indirect jump of another function may lead there as well.
        work.extend(&self.indirect);
        while let Some(b) = work.pop() {
            if std::mem::replace(&mut self.blocks[b].dead, false) {
                work.extend(self.successors(b));
            }
        }
    }

    /// Returns whether nothing leads to some instruction that is not padding.
    pub(super) fn has_unreached(&self, image: &Image, steps: &Steps) -> bool {
        let padding = |s: &Step| s.way == Way::Nop || image.code_at(s.ip, s.len.into()) == Some(&[INT3]);
        self.blocks.iter().any(|b| b.dead && !steps.list[b.first..b.end].iter().all(padding))
    }

    /// Chooses the basic blocks that get something added: those that probably run least often. With `counts`, that is a counter.
    /// With `clock`, it is a number of instructions, so that a clock to which the basic blocks add them is exact whenever
    /// control is outside of the unit.
    ///
    /// # Errors
    ///
    /// Returns [`Uncounted::NotRelocatable`] if such a number does not fit into an instruction.
    pub(super) fn choose_counters(
        &mut self,
        image: &Image,
        steps: &Steps,
        counts: bool,
        clock: bool,
    ) -> Result<(), Uncounted> {
        let outside = self.blocks.len();
        let mut classes = Classes::new(outside + 1);
        for &b in self.entered.iter().chain(&self.indirect) {
            classes.join(b, outside);
        }
        for b in (0..self.blocks.len()).filter(|&b| !self.blocks[b].dead) {
            let mut first = self.next[b].leaves.then_some(outside);
            for s in self.successors(b) {
                classes.join(*first.get_or_insert(s), s);
            }
        }
        for b in 0..self.blocks.len() {
            let next = if self.next[b].leaves { None } else { self.successors(b).next() };
            self.blocks[b].class = classes.find(b) as u32;
            self.blocks[b].out = classes.find(next.unwrap_or(outside)) as u32;
        }
        let weights = self.weights(steps);
        let mut order: Vec<usize> = (0..self.blocks.len()).filter(|&b| !self.blocks[b].dead).collect();
        order.sort_by_key(|&b| std::cmp::Reverse(weights[b]));
        let mut tree = Classes::new(outside + 1);
        let (mut unknown, mut others) = (Vec::new(), Vec::new());
        for b in order {
            let (class, out) = (self.blocks[b].class as usize, self.blocks[b].out as usize);
            if tree.find(class) == tree.find(out) {
                others.push(b);
            } else {
                tree.join(class, out);
                unknown.push(b);
            }
        }
        let outside = classes.find(outside);
        if clock {
            self.choose_ticks(image, steps, &unknown, &others, outside).ok_or(Uncounted::NotRelocatable)?;
        }
        if counts {
            for b in others {
                self.blocks[b].counter = Some(self.counters);
                self.counters += 1;
            }
            self.derive(unknown, outside as u32);
        }
        Ok(())
    }

    /// Chooses what each basic block adds to the clock. Each class gets a *lead*, by which the clock is ahead of the instructions that
    /// were executed when control is there; that of `outside` is 0. The leads are such that the basic blocks `tree`, which form a spanning tree,
    /// add nothing: behind each of them, the lead is less by its instructions. The other basic blocks, `others`, add
    /// their instructions and the difference of the leads (Ball, Efficiently Counting Program Events with Support for On-line Queries,
    /// 1994). Returns `None` if a number does not fit.
    fn choose_ticks(
        &mut self,
        image: &Image,
        steps: &Steps,
        tree: &[usize],
        others: &[usize],
        outside: usize,
    ) -> Option<()> {
        let mut at: Vec<Vec<usize>> = vec![Vec::new(); self.blocks.len() + 1];
        for &b in tree {
            at[self.blocks[b].class as usize].push(b);
            at[self.blocks[b].out as usize].push(b);
        }
        let executed = |b: usize| self.executed(image, steps, b);
        let mut leads: Vec<Option<i64>> = vec![None; at.len()];
        for first in std::iter::once(outside).chain(0..at.len()) {
            if leads[first].is_some() {
                continue;
            }
            leads[first] = Some(0);
            let mut work = vec![(first, 0_i64)];
            while let Some((class, lead)) = work.pop() {
                for &b in &at[class] {
                    let (from, to) = (self.blocks[b].class as usize, self.blocks[b].out as usize);
                    let (other, other_lead) = match from == class {
                        true => (to, lead - executed(b)),
                        false => (from, lead + executed(b)),
                    };
                    if leads[other].is_none() {
                        leads[other] = Some(other_lead);
                        work.push((other, other_lead));
                    }
                }
            }
        }
        let lead = |class: u32| leads[class as usize].unwrap_or(0);
        let ticks = others.iter().map(|&b| {
            let block = &self.blocks[b];
            i32::try_from(executed(b) + lead(block.out) - lead(block.class)).ok()
        });
        for (&b, ticks) in others.iter().zip(ticks.collect::<Option<Vec<_>>>()?) {
            self.blocks[b].ticks = ticks;
        }
        Some(())
    }

    /// Returns how many instructions are executed when a basic block is, up to the first one of the next basic block or of another
    /// function: those of a stub in the procedure linkage table are among them.
    fn executed(&self, image: &Image, steps: &Steps, b: usize) -> i64 {
        let block = &self.blocks[b];
        let instructions = steps.list[block.first..block.end].iter().filter(|step| !step.is_lock);
        instructions.count() as i64 + i64::from(stubs::instructions(image, steps, block.end - 1))
    }

    /// Returns an estimate of how often each basic block runs: eight times as often as the code around its
    /// loop.
    fn weights(&self, steps: &Steps) -> Vec<u64> {
        const DEEPEST: u32 = 12;
        let mut depth = vec![0_i32; self.blocks.len() + 1];
        for (b, next) in self.next.iter().enumerate() {
            if let Some(target) = next.target.filter(|&t| t <= b) {
                depth[target] += 1;
                depth[b + 1] -= 1;
            }
        }
        let mut now = 0;
        let hot = steps.parts[0].end;
        self.blocks
            .iter()
            .zip(depth)
            .map(|(block, change)| {
                now += change;
                let cost = if block.keeps_flags { 4 } else { 1 };
                let often = if block.first < hot { 1 << (3 * (now as u32).min(DEEPEST)) } else { 0 };
                often * cost
            })
            .collect()
    }

    /// Orders the basic blocks without a counter so that each count follows from known counts: a class
    /// with one unknown basic block yields its count.
    fn derive(&mut self, unknown: Vec<usize>, outside: u32) {
        let mut degree = vec![0_u32; self.blocks.len() + 1];
        let mut at: Vec<Vec<usize>> = vec![Vec::new(); self.blocks.len() + 1];
        for &b in &unknown {
            for class in [self.blocks[b].class, self.blocks[b].out] {
                degree[class as usize] += 1;
                at[class as usize].push(b);
            }
        }
        let mut done = vec![false; self.blocks.len()];
        let mut leaves: Vec<u32> =
            (0..degree.len() as u32).filter(|&c| c != outside && degree[c as usize] == 1).collect();
        while let Some(class) = leaves.pop() {
            let Some(&b) = at[class as usize].iter().find(|&&b| !done[b]) else { continue };
            done[b] = true;
            self.derived.push((b, class));
            for end in [self.blocks[b].class, self.blocks[b].out] {
                degree[end as usize] -= 1;
                if end != outside && end != class && degree[end as usize] == 1 {
                    leaves.push(end);
                }
            }
        }
    }

    /// Returns the basic block that contains a step.
    pub(super) fn block_of(&self, step: usize) -> Option<usize> {
        self.blocks.iter().position(|b| (b.first..b.end).contains(&step))
    }

    /// Computes each basic block's count from the counters, and calls `visit` with the basic block and its
    /// count. `stopped` is the step at which a thread ended.
    pub(super) fn solve(&self, counters: &[u64], stopped: Option<usize>, mut visit: impl FnMut(usize, u64)) {
        let inside = stopped.and_then(|step| self.block_of(step));
        let mut counts = vec![0_i128; self.blocks.len()];
        for (count, block) in counts.iter_mut().zip(&self.blocks) {
            *count = block.counter.and_then(|c| counters.get(c as usize)).copied().unwrap_or(0).into();
        }
        // The thread had not reached the counter.
        if let (Some(b), Some(step)) = (inside, stopped)
            && self.blocks[b].counter.is_some()
            && step < self.blocks[b].place
        {
            counts[b] += 1;
        }
        // For each class: how often known basic blocks lead to it, minus how often known basic blocks in
        // it began.
        let mut balance = vec![0_i128; self.blocks.len() + 1];
        // The basic block in which the thread ended was entered once more than it was left.
        if let Some(b) = inside {
            balance[self.blocks[b].out as usize] -= 1;
        }
        let known = |b: &Block, count: i128, balance: &mut Vec<i128>| {
            balance[b.out as usize] += count;
            balance[b.class as usize] -= count;
        };
        for (block, &count) in self.blocks.iter().zip(&counts).filter(|(b, _)| b.counter.is_some()) {
            known(block, count, &mut balance);
        }
        for &(b, class) in &self.derived {
            let block = &self.blocks[b];
            let missing = balance[class as usize];
            counts[b] = if block.class == class { missing } else { -missing };
            known(block, counts[b], &mut balance);
        }
        for (b, count) in counts.into_iter().enumerate() {
            // A count below zero means that a thread was stopped between two counters.
            visit(b, u64::try_from(count.max(0)).unwrap_or(u64::MAX));
        }
    }
}

/// Disjoint sets of numbers.
struct Classes(Vec<usize>);

impl Classes {
    /// Returns `count` sets of one number each.
    fn new(count: usize) -> Classes {
        Classes((0..count).collect())
    }

    /// Returns the representative of the set of `x`.
    fn find(&mut self, mut x: usize) -> usize {
        while self.0[x] != x {
            self.0[x] = self.0[self.0[x]];
            x = self.0[x];
        }
        x
    }

    /// Joins two sets.
    fn join(&mut self, a: usize, b: usize) {
        let (a, b) = (self.find(a), self.find(b));
        self.0[a] = b;
    }
}
