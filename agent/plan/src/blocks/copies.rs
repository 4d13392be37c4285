//! All counted functions of a program, and the places of their copies.

use crate::blocks::frames::check::check;
use crate::blocks::graph::Graph;
use crate::blocks::layout::{ALIGN, Layout};
use crate::blocks::steps::{COUNTER_FLAGS, FLAGS, Steps};
use crate::blocks::uncounted::Uncounted;
use crate::blocks::unit::Unit;
use crate::blocks::{entries, flags};
use crate::decide::hook::Hook;
use crate::flow::facts::Flow;
use crate::x86::template::kind::Role;
use gprofinject_image::{FunctionKind, Image};
use std::collections::HashMap;
use std::ops::Range;

/// Which functions are copied, and what for.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    /// Returns whether the basic blocks of a function are counted; `None` if no function's are.
    pub(crate) counted: Option<&'a dyn Fn(usize) -> bool>,
    /// Whether all functions advance the clock of executed instructions.
    pub(crate) clock: bool,
}

impl Wanted<'_> {
    /// Returns whether any function is copied.
    pub(crate) fn any(self) -> bool {
        self.clock || self.counted.is_some()
    }

    /// Returns whether a function is copied.
    fn copies(self, function: usize) -> bool {
        self.clock || self.counts(function)
    }

    /// Returns whether a function's basic blocks are counted.
    fn counts(self, function: usize) -> bool {
        self.counted.is_some_and(|counted| counted(function))
    }
}

/// All counted functions, and the places of their copies. Offsets count from the start of the copies.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// The counted functions, sorted by address.
    pub(crate) units: Vec<Unit>,
    /// For the index of a function in the image: the index of its unit.
    unit_of: HashMap<usize, usize>,
    /// The total size of all copies, in bytes.
    pub(crate) len: u32,
    /// The total number of counters.
    pub(crate) counters: u32,
    /// Why functions are not counted, by address.
    uncounted: HashMap<u64, Uncounted>,
    /// For the number of each hook: the counters of all functions into which control may come from the hooked function
    /// other than by a hook, and those of the function itself.
    pub(crate) reach: Vec<Range<u32>>,
}

/// Returns the bytes that the patches of a copied function must not touch, because hooks overwrite them.
/// Sorted.
fn taken_by(hooks: &[Hook]) -> Vec<Range<u64>> {
    let mut taken: Vec<Range<u64>> = hooks.iter().flat_map(|h| h.spans().map(|(lo, hi)| lo..hi)).collect();
    taken.sort_unstable_by_key(|r| r.start);
    taken
}

/// See [`Copies::reach`]. `hook_of` has the number of the hook of each hooked function.
fn reach(units: &[Unit], hook_of: &HashMap<usize, usize>, hooks: usize) -> Vec<Range<u32>> {
    let mut reach = vec![0..0; hooks];
    for unit in units {
        if let Some(&number) = hook_of.get(&unit.function) {
            reach[number] = unit.first_counter..unit.first_counter + unit.graph.counters;
        }
    }
    let number = |function: &usize| hook_of.get(function).copied();
    let jumps: Vec<(usize, usize)> = units
        .iter()
        .flat_map(|unit| unit.sources.iter().map(|source| (number(source), number(&unit.function))))
        .filter_map(|(from, to)| Some((from?, to?)))
        .collect();
    // A range only grows, and never beyond all counters.
    loop {
        let mut grows = false;
        for &(from, to) in &jumps {
            let joined = joined(&reach[from], &reach[to]);
            grows |= joined != reach[from];
            reach[from] = joined;
        }
        if !grows {
            return reach;
        }
    }
}

/// Returns the smallest range that contains both.
fn joined(one: &Range<u32>, other: &Range<u32>) -> Range<u32> {
    match (one.is_empty(), other.is_empty()) {
        (_, true) => one.clone(),
        (true, false) => other.clone(),
        (false, false) => one.start.min(other.start)..one.end.max(other.end),
    }
}

impl Copies {
    /// Copies those functions that are hooked and that `wanted` wants. `failed` has functions
    /// that could not be copied in an earlier attempt, with the reasons.
    pub(crate) fn new(
        image: &Image,
        flow: &Flow,
        hooks: &[Hook],
        role: Role,
        wanted: Wanted,
        failed: &HashMap<usize, Uncounted>,
    ) -> Copies {
        let mut copies = Copies::default();
        let hook_of: HashMap<usize, usize> = hooks.iter().zip(0..).map(|(h, n)| (h.function, n)).collect();
        let mut cold: HashMap<usize, Vec<(u64, u64)>> = HashMap::new();
        for (i, f) in image.functions.iter().enumerate() {
            match f.kind {
                FunctionKind::Cold(_) => {
                    if let Some(parent) = image.parent(i).filter(|_| f.size > 0) {
                        cold.entry(parent).or_default().push((f.address, f.address + f.size));
                    }
                }
                _ if !wanted.copies(i) => {
                    copies.uncounted.insert(f.address, Uncounted::NotSelected);
                }
                _ => {
                    copies.uncounted.insert(f.address, Uncounted::NotHooked);
                }
            }
        }
        let taken = taken_by(hooks);
        for hook in hooks.iter().filter(|h| wanted.copies(h.function)) {
            let i = hook.function;
            let f = &image.functions[i];
            let mut stretches = vec![(f.address, f.address + f.size)];
            stretches.extend(cold.remove(&i).unwrap_or_default());
            let unit = match failed.get(&i) {
                Some(&reason) => Err(reason),
                None => copies.unit(image, flow, i, wanted, &stretches, &taken),
            };
            // The agent commits a library's counters when a thread first comes through a hook.
            let comes_unseen = |unit: &Unit| unit.sources.iter().any(|source| !hook_of.contains_key(source));
            let unit = match unit {
                Ok(unit) if role.is_library() && comes_unseen(&unit) => Err(Uncounted::JumpedInto),
                // The agent replaces the call in the original, so that it is the first to run in the child.
                Ok(unit) if role.is_library() && unit.steps.forks(image) => Err(Uncounted::SystemCall),
                unit => unit,
            };
            match unit {
                Ok(unit) => {
                    copies.uncounted.remove(&f.address);
                    copies.unit_of.insert(i, copies.units.len());
                    copies.counters += unit.graph.counters;
                    copies.units.push(unit);
                }
                Err(reason) => {
                    copies.uncounted.insert(f.address, reason);
                }
            }
        }
        copies.place();
        copies.reach = reach(&copies.units, &hook_of, hooks.len());
        copies
    }

    /// Reads a function and lays out its copy. `stretches` has the code of the function and of its cold
    /// parts.
    ///
    /// # Errors
    ///
    /// Returns the reason if the function cannot be counted.
    fn unit(
        &self,
        image: &Image,
        flow: &Flow,
        function: usize,
        wanted: Wanted,
        stretches: &[(u64, u64)],
        taken: &[Range<u64>],
    ) -> Result<Unit, Uncounted> {
        // The agent knows an original instruction by its distance from the first function.
        let text = image.functions.first().map_or(0, |first| first.address);
        let is_known = |&(_, hi): &(u64, u64)| u32::try_from(hi.saturating_sub(text)).is_ok();
        if !stretches.iter().all(is_known) {
            return Err(Uncounted::NotRelocatable);
        }
        let steps = Steps::decode(image, flow, stretches)?;
        let targets = entries::targets(image, flow, &steps)?;
        let pads = image.landing_pads_in(stretches);
        let mut graph = Graph::new(&steps, &targets.indirect, &targets.outside, &pads)?;
        if steps.jumps_indirectly && graph.has_unreached(image, &steps) {
            return Err(Uncounted::UnknownJump);
        }
        let ways = entries::redirect(image, flow, &steps, &targets, taken)?;
        let changed = if wanted.clock { FLAGS as u8 } else { COUNTER_FLAGS };
        flags::place(&steps, &mut graph, changed)?;
        graph.choose_counters(image, &steps, wanted.counts(function), wanted.clock)?;
        let layout = Layout::new(&steps, &graph, ways.compared)?;
        check(image, &steps)?;
        let (redirects, sources, first_counter) = (ways.redirects, targets.sources, self.counters);
        Ok(Unit { function, steps, graph, layout, redirects, first_counter, sources })
    }

    /// Assigns a place to each part of each copy. All cold parts come after the functions, so that code that
    /// runs often lies together.
    fn place(&mut self) {
        // An offset of 0 would mean that there is no landing pad, so no part begins there.
        let mut next = ALIGN;
        let parts = self.units.iter().map(|u| u.layout.parts()).max().unwrap_or(0);
        for part in 0..parts {
            for unit in &mut self.units {
                next = unit.layout.place(part, next);
            }
        }
        self.len = next;
    }

    /// Returns the unit that contains a function of the image, or `None` if the function is not counted. A
    /// cold part belongs to the unit of its function.
    pub(crate) fn unit_with(&self, image: &Image, function: usize) -> Option<&Unit> {
        self.unit_of.get(&image.owner(function)).map(|&n| &self.units[n])
    }

    /// Returns the offset of a counted function's first instruction.
    pub(crate) fn start(&self, function: usize) -> Option<u32> {
        self.unit_of.get(&function).map(|&n| self.units[n].layout.offset(0))
    }

    /// Returns the offset of the instruction at an address in function `function`.
    pub(crate) fn offset(&self, image: &Image, function: usize, address: u64) -> Option<u32> {
        self.unit_with(image, function)?.offset(address)
    }

    /// See [`Plan::block_counts`](crate::Plan::block_counts).
    pub(crate) fn counts(&self, counters: &[u64], stopped: Option<u64>) -> (Vec<(u64, u64)>, usize) {
        let mut counts = Vec::new();
        let mut executed = 0;
        for unit in &self.units {
            let own = counters.get(unit.first_counter as usize..).unwrap_or_default();
            let stopped = stopped.and_then(|address| unit.steps.at(address));
            unit.graph.solve(own, stopped, |block, count| {
                let block = unit.graph.blocks[block];
                let address = |step: usize| unit.steps.list[step].ip;
                counts.push((address(block.first), count));
                executed += usize::from(count > 0);
                if let Some(behind) =
                    stopped.map(|step| step + 1).filter(|s| (block.first + 1..block.end).contains(s))
                {
                    counts.push((address(behind), count.saturating_sub(1)));
                }
            });
        }
        counts.sort_unstable();
        (counts, executed)
    }

    /// Returns the code of counted functions: the start and the end of each part.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.units.iter().flat_map(|u| u.steps.parts.iter().map(|p| (p.lo, p.hi)))
    }

    /// See [`Plan::counting`](crate::Plan::counting).
    ///
    /// # Errors
    ///
    /// Returns the reason if the function's basic blocks are not counted.
    pub(crate) fn counting(&self, address: u64) -> Result<(usize, u32), Uncounted> {
        match self.units.binary_search_by_key(&address, |u| u.steps.parts[0].lo) {
            Ok(n) => Ok((self.units[n].graph.blocks.len(), self.units[n].graph.counters)),
            Err(_) => Err(self.uncounted.get(&address).copied().unwrap_or(Uncounted::NotSelected)),
        }
    }

    /// Returns the number of all basic blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.units.iter().map(|u| u.graph.blocks.len()).sum()
    }

    /// Returns the original instruction for each byte of the copies, sorted by offset. An entry applies from
    /// its offset up to that of the next entry; it has the address of the instruction.
    pub(crate) fn originals(&self) -> Vec<(u32, u64)> {
        let mut all: Vec<(u32, u64)> = Vec::new();
        for unit in &self.units {
            all.extend(unit.steps.list.iter().enumerate().map(|(n, s)| (unit.layout.offset(n), s.ip)));
            // A return address belongs to the call, even if the code after the call has been left out of the
            // copy.
            let calls = unit.steps.list.iter().enumerate().filter(|(_, s)| s.way.may_return());
            all.extend(calls.map(|(n, s)| (unit.layout.behind(n), s.end())));
        }
        // If several entries have the same offset, the last one applies.
        all.sort_by_key(|&(offset, _)| offset);
        all.dedup_by(|next, last| {
            let same = next.0 == last.0;
            if same {
                *last = *next;
            }
            same
        });
        all
    }
}
