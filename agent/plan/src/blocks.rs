//! Counting blocks: counted functions are copied into the arena as a whole, with counters in the copy.
//!
//! ```text
//! decode     the instructions of a function and its cold parts, or why it is not counted
//! entries    where indirect jumps may lead, and how the original's places are led to the copy
//! graph      basic blocks, and which of them need a counter
//! flags      where in its block a counter may stand
//! layout     the copy, instruction by instruction
//! unwind     its frame descriptions and exception tables
//! ```
//!
//! The original stays where it is. Its entry leads to the function's thunk and from there to the copy; other
//! places that something may jump to lead straight to the copy. See docs/blocks.md.

mod decode;
mod entries;
mod flags;
mod graph;
mod layout;
mod unwind;

use crate::flow::Flow;
use crate::start::owner;
use crate::tactic::Hook;
use decode::{Steps, Way};
use entries::Redirect;
use gprofinject_image::{FunctionKind, Image};
use graph::Graph;
use layout::Layout;
use std::collections::HashMap;
use std::ops::Range;
use std::{error, fmt};

/// Why a function's blocks are not counted. Its calls are, if it is hooked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Uncounted {
    NotSelected,
    NotHooked,
    NotDecodable,
    DataInCode,
    Overlapping,
    NotRelocatable,
    UsesGs,
    UnknownJump,
    NoRoom,
    Frames,
}

impl Uncounted {
    pub fn name(self) -> &'static str {
        match self {
            Uncounted::NotSelected => "not-selected",
            Uncounted::NotHooked => "not-hooked",
            Uncounted::NotDecodable => "not-decodable",
            Uncounted::DataInCode => "data-in-code",
            Uncounted::Overlapping => "overlapping",
            Uncounted::NotRelocatable => "not-relocatable",
            Uncounted::UsesGs => "uses-gs",
            Uncounted::UnknownJump => "unknown-jump",
            Uncounted::NoRoom => "no-room",
            Uncounted::Frames => "frames",
        }
    }
}

impl fmt::Display for Uncounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Uncounted::NotSelected => "not to be counted",
            Uncounted::NotHooked => "it is not hooked, so nothing leads to a copy of it",
            Uncounted::NotDecodable => "some of its bytes are no instructions",
            Uncounted::DataInCode => "it reads data among its instructions",
            Uncounted::Overlapping => "something branches into the middle of an instruction",
            Uncounted::NotRelocatable => "an instruction cannot be moved",
            Uncounted::UsesGs => "it uses the gs register, as counters do",
            Uncounted::UnknownJump => {
                "it jumps to an address that it computes, and where that may lead is not known"
            }
            Uncounted::NoRoom => "a place that is jumped to has no room for a jump to the copy",
            Uncounted::Frames => "its frame description or exception table cannot be moved",
        })
    }
}

impl error::Error for Uncounted {}

/// A counted function.
#[derive(Debug)]
pub(crate) struct Unit {
    /// Index in the image.
    pub(crate) function: usize,
    steps: Steps,
    graph: Graph,
    layout: Layout,
    redirects: Vec<Redirect>,
    /// Number of its first counter.
    first_counter: u32,
}

/// All counted functions, and where their copies are.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    pub(crate) units: Vec<Unit>,
    /// From a function's index (a cold part's is its parent's) to its unit.
    unit_of: HashMap<usize, usize>,
    /// Bytes of the copies.
    pub(crate) len: u32,
    /// Counters in use.
    pub(crate) counters: u32,
    /// Why functions are not counted, by address.
    uncounted: HashMap<u64, Uncounted>,
}

/// A counter's bytes.
pub(crate) const COUNTER: u64 = 8;

/// The bytes that a patch of one function must leave alone, because hooks overwrite them: sorted.
fn taken_by(hooks: &[Hook]) -> Vec<Range<u64>> {
    let mut taken: Vec<Range<u64>> = hooks.iter().flat_map(|h| h.spans().map(|(lo, hi)| lo..hi)).collect();
    taken.sort_unstable_by_key(|r| r.start);
    taken
}

impl Copies {
    /// Copies of those `wanted` functions that are hooked.
    pub(crate) fn new(
        image: &Image,
        flow: &Flow,
        hooks: &[Hook],
        wanted: &dyn Fn(usize) -> bool,
        failed: &HashMap<usize, Uncounted>,
    ) -> Copies {
        let mut copies = Copies::default();
        let mut cold: HashMap<usize, Vec<(u64, u64)>> = HashMap::new();
        for (i, f) in image.functions.iter().enumerate() {
            match f.kind {
                FunctionKind::Cold(Some(parent)) if f.size > 0 => {
                    cold.entry(parent).or_default().push((f.address, f.address + f.size));
                }
                FunctionKind::Cold(_) => {}
                _ if !wanted(i) => {
                    copies.uncounted.insert(f.address, Uncounted::NotSelected);
                }
                _ => {
                    copies.uncounted.insert(f.address, Uncounted::NotHooked);
                }
            }
        }
        let taken = taken_by(hooks);
        for hook in hooks.iter().filter(|h| wanted(h.function)) {
            let i = hook.function;
            let f = &image.functions[i];
            let mut stretches = vec![(f.address, f.address + f.size)];
            stretches.extend(cold.remove(&i).unwrap_or_default());
            let unit = match failed.get(&i) {
                Some(&reason) => Err(reason),
                None => copies.unit(image, flow, i, &stretches, &taken),
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
        copies
    }

    fn unit(
        &self,
        image: &Image,
        flow: &Flow,
        function: usize,
        stretches: &[(u64, u64)],
        taken: &[Range<u64>],
    ) -> Result<Unit, Uncounted> {
        let steps = Steps::decode(image, flow, stretches)?;
        let targets = entries::targets(image, flow, &steps)?;
        let pads = image.landing_pads_in(stretches);
        let mut graph = Graph::new(&steps, &targets.indirect, &targets.outside, &pads)?;
        if steps.jumps_indirectly && graph.has_unreached(image, &steps) {
            return Err(Uncounted::UnknownJump);
        }
        let ways = entries::redirect(image, flow, &steps, &targets, taken)?;
        flags::place(&steps, &mut graph);
        graph.choose_counters(&steps);
        let layout = Layout::new(&steps, &graph, ways.compared)?;
        unwind::check(image, &steps)?;
        Ok(Unit { function, steps, graph, layout, redirects: ways.redirects, first_counter: self.counters })
    }

    /// Gives each part its place: what is hot first.
    fn place(&mut self) {
        // No landing pad's offset is 0, which would mean that there is none.
        let mut next = layout::ALIGN;
        let parts = self.units.iter().map(|u| u.layout.parts()).max().unwrap_or(0);
        for part in 0..parts {
            for unit in &mut self.units {
                next = unit.layout.place(part, next);
            }
        }
        self.len = next;
    }

    /// The unit that a function of the image, or a cold part, belongs to.
    pub(crate) fn unit_with(&self, image: &Image, function: usize) -> Option<&Unit> {
        self.unit_of.get(&owner(image, function)).map(|&n| &self.units[n])
    }

    /// Offset in the copies of a counted function's first instruction.
    pub(crate) fn start(&self, function: usize) -> Option<u32> {
        self.unit_of.get(&function).map(|&n| self.units[n].layout.offset(0))
    }

    /// Offset in the copies of the instruction at an address in function `function`.
    pub(crate) fn offset(&self, image: &Image, function: usize, address: u64) -> Option<u32> {
        self.unit_with(image, function)?.offset(address)
    }

    /// Each block's address and count, from the counters' values. `stopped`: the address of the instruction at which a
    /// thread came to its end; what is behind it in its block has a count of its own. Also how many blocks have run.
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

    /// The code of counted functions: start and end of each part.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.units.iter().flat_map(|u| u.steps.parts.iter().map(|p| (p.lo, p.hi)))
    }

    /// Blocks and counters of a function.
    pub(crate) fn counting(&self, address: u64) -> Result<(usize, u32), Uncounted> {
        match self.units.binary_search_by_key(&address, |u| u.steps.parts[0].lo) {
            Ok(n) => Ok((self.units[n].graph.blocks.len(), self.units[n].graph.counters)),
            Err(_) => Err(self.uncounted.get(&address).copied().unwrap_or(Uncounted::NotSelected)),
        }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.units.iter().map(|u| u.graph.blocks.len()).sum()
    }

    /// Sorted: offset in the copies from which on the bytes are this instruction's, and its address.
    pub(crate) fn originals(&self) -> Vec<(u32, u64)> {
        let mut all: Vec<(u32, u64)> = Vec::new();
        for unit in &self.units {
            all.extend(unit.steps.list.iter().enumerate().map(|(n, s)| (unit.layout.offset(n), s.ip)));
            // A return address, whatever has been left out behind it.
            let calls = unit.steps.list.iter().enumerate().filter(|(_, s)| s.way.may_return());
            all.extend(calls.map(|(n, s)| (unit.layout.behind(n), s.end())));
        }
        // Of several at one place the last one counts that was put there.
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

impl Unit {
    /// Offset in the copies of the instruction at an address (and of the counter before it).
    fn offset(&self, address: u64) -> Option<u32> {
        self.steps.at(address).map(|n| self.layout.offset(n))
    }

    /// Offset of a call's return address; None: it is the original's.
    pub(crate) fn behind(&self, site: u64) -> Option<u32> {
        let call = self.steps.at(site)?;
        let told = matches!(self.steps.list[call].way, Way::Told(_));
        (!told).then(|| self.layout.behind(call))
    }

    /// The bytes that lead from the original to the copy: address, what is written there. `base` is the address
    /// of the copies.
    pub(crate) fn redirects(&self, base: u64) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
        let target = move |to: u64| self.offset(to).map(|offset| base.wrapping_add(offset.into()));
        self.redirects.iter().filter_map(move |r| Some((r.at, r.bytes(target(r.to)?)?)))
    }

    /// Writes the copy into `bytes`, the copies. `base` is their address, `counters` the offset of the first
    /// counter from what gs points to; `elsewhere` says where a call or jump at a site leads that does not stay
    /// in the unit. Answers with the offsets of words that hold link addresses.
    pub(crate) fn write(
        &self,
        image: &Image,
        bytes: &mut [u8],
        base: u64,
        counters: u64,
        elsewhere: &dyn Fn(u64, u64) -> u64,
    ) -> Result<Vec<u32>, Uncounted> {
        let first = counters + COUNTER * u64::from(self.first_counter);
        self.layout.write(image, &self.steps, &self.graph, bytes, base, first, elsewhere)
    }
}

/// The frame descriptions and exception tables of all copies, to stand at `at`; `base` is the copies' address.
/// None: they cannot be written for these functions.
pub(crate) fn tables(image: &Image, copies: &Copies, base: u64, at: u64) -> Result<Vec<u8>, Vec<usize>> {
    unwind::tables(image, copies, base, at)
}
