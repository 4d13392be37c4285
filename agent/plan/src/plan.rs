//! The whole plan for a program.

use crate::blocks::{COUNTER, Copies, Uncounted};
use crate::emit::patch::{recursions, removals};
use crate::emit::{Emitted, Input, Wish, emit};
use crate::falls::{self, Fall};
use crate::flow::{BranchKind, Flow};
use crate::own_text;
use crate::slots::Homes;
use crate::start::owner;
use crate::tactic::{Decisions, Failed, Hook, Reason, Tactic, decide, foreign};
use crate::tails;
use crate::unwinder;
use gprofinject_abi::plan::{CodeRange, FunctionRecord, Patch};
use gprofinject_image::sort;
use gprofinject_image::{Function, FunctionKind, Image};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hooks {
    /// Entry and exit, with a shadow stack.
    Both,
    /// Entry only.
    Entry,
}

/// Who patches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    #[default]
    Builtin,
    /// Frida's gum, and what it cannot do safely is refused.
    Frida,
    /// Frida's gum, and what it cannot do safely is left to the built-in tactics.
    FridaOrBuiltin,
}

pub struct Options<'a> {
    pub hooks: Hooks,
    pub engine: Engine,
    /// Whether the user wants the function hooked.
    pub selected: &'a (dyn Fn(&Function) -> bool + Sync),
    /// The user insists on hooks in a program that may look at its own code.
    pub insist: bool,
    /// Whether the function's blocks are to be counted. None: no function's.
    pub counted: Option<&'a dyn Fn(&Function) -> bool>,
}

/// The decision for one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Hooked(Tactic),
    Refused(Reason),
}

#[derive(Debug)]
pub struct Plan {
    /// As done, which may be less than was asked for; then `downgrade` says why.
    pub hooks: Hooks,
    pub downgrade: Option<String>,
    /// What hooks may change in the program, where the user insists on them.
    pub caution: Option<String>,
    /// One for each function of the image, in its order.
    pub verdicts: Vec<Verdict>,
    /// Hooked functions; the index is the function's number.
    pub records: Vec<FunctionRecord>,
    /// From function numbers to indices in the image.
    pub function_of: Vec<usize>,
    /// Extents of all functions, link addresses.
    pub text: (u64, u64),
    pub arena: u64,
    pub arena_len: u64,
    /// Bytes of home slots in a thread block.
    pub slot_bytes: u64,
    /// Sorted: arena offset from which on the bytes belong to the function with that number
    /// (`u32::MAX`: to none).
    pub arena_owners: Vec<(u32, u32)>,
    pub(crate) tail_sites: HashMap<(u32, u32), Option<u64>>,
    /// Sorted by the function that is run into.
    pub(crate) falls: Vec<Fall>,
    pub(crate) emitted: Emitted,
    pub(crate) hooked: Vec<CodeRange>,
    pub(crate) code: (u64, u64),
    pub(crate) entry: u64,
    pub(crate) phdr: u64,
    /// Sorted: where hooks begin that overwrite something.
    pub(crate) hook_points: Vec<u64>,
    /// Some patches take out calls of hooks, which must be the C library's empty ones.
    pub(crate) hooks_removed: bool,
    pub engine: Engine,
    /// The functions whose blocks are counted.
    pub(crate) copies: Copies,
    /// Sorted: arena offsets in the copies, from which on the bytes are those of the instruction at this address.
    pub(crate) originals: Vec<(u32, u64)>,
    /// The plan file of a plan that was stored. Then `emitted` has only what is asked for after planning.
    pub(crate) file: Option<Vec<u8>>,
}

/// Returns twice, or to another frame, or takes its caller's registers down: its exit must not be hooked.
/// (Those that read their return address are found by that; the names are for those whose way is hidden.)
const OWN_RETURN: [&str; 11] = [
    "setjmp",
    "_setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "savectx",
    "vfork",
    "getcontext",
    "swapcontext",
    "unw_getcontext",
    "__unw_getcontext",
    "uw_init_context_1",
];

impl Plan {
    pub fn new(image: &Image, options: &Options) -> Plan {
        let selected = |i: usize| (options.selected)(&image.functions[i]);
        let reader = own_text::reader(image);
        let none = match &reader {
            _ if image.facts.go => Some(Reason::Go),
            Some(_) if !options.insist => Some(Reason::OwnText),
            _ => None,
        };
        let downgrade = downgrade(image, options.hooks, none, reader.as_deref());
        let entry_only = options.hooks == Hooks::Entry || downgrade.is_some();
        // Where a runtime forbids hooks at exits, no function gets one: see `table_loops` in `tactic`. Where blocks are counted, it
        // matters what a called function does with its return address.
        let exits = !entry_only || image.facts.runtime.is_none() || options.counted.is_some();
        let flow = Flow::of(image, exits);
        let counted = options.counted.map(|counted| move |i: usize| counted(&image.functions[i]));
        let counted = counted.as_ref().map(|counted| counted as &dyn Fn(usize) -> bool);
        let Decided { verdicts, hooks, mut emitted, homes, copies } = if let Some(reason) = none {
            let verdicts = vec![Err(reason); image.functions.len()];
            Decided::emit(image, &flow, Decisions { verdicts, hooks: Vec::new() }, entry_only, counted)
        } else {
            Decided::that_can_be_emitted(image, &flow, &selected, options.engine, entry_only, counted)
        };
        let mut number_of = vec![u32::MAX; image.functions.len()];
        for (hook, number) in hooks.iter().zip(0..) {
            number_of[hook.function] = number;
        }
        let mut more = removals(image, &hooks, &copies);
        more.extend(recursions(image, &flow, &hooks, &emitted, &copies));
        emitted.add_patches(more);
        Plan {
            hooks: if entry_only { Hooks::Entry } else { Hooks::Both },
            downgrade,
            caution: reader.filter(|_| none.is_none()).map(|why| format!("{why}, and finds hooks there")),
            records: std::mem::take(&mut emitted.records),
            function_of: hooks.iter().map(|h| h.function).collect(),
            text: extents(image),
            arena: emitted.code.arena,
            arena_len: emitted.code.bytes.len() as u64,
            slot_bytes: homes.bytes,
            arena_owners: std::mem::take(&mut emitted.owners),
            tail_sites: tail_sites(image, &flow, &hooks, &number_of),
            falls: falls::all(image, &flow),
            hooked: hooked_ranges(image, &verdicts, &emitted),
            code: code_extents(image),
            entry: image.entry,
            phdr: image.phdr,
            hook_points: hook_points(&hooks),
            hooks_removed: image.facts.hooks_removed,
            engine: options.engine,
            verdicts: verdicts
                .into_iter()
                .map(|v| v.map_or_else(Verdict::Refused, Verdict::Hooked))
                .collect(),
            originals: copies.originals().into_iter().map(|(at, ip)| (emitted.copies + at, ip)).collect(),
            copies,
            emitted,
            file: None,
        }
    }

    /// Where an instruction stands now that was moved with its function's first ones: its arena offset.
    pub fn moved(&self, address: u64) -> Option<u32> {
        let moved = &self.emitted.moved;
        let after = moved.partition_point(|&(from, ..)| from <= address);
        let &(from, len, to) = moved.get(after.checked_sub(1)?)?;
        let offset = address - from;
        (offset < len.into()).then_some(to + offset as u32)
    }

    /// Bytes of counters in a thread block.
    pub fn counter_bytes(&self) -> u64 {
        u64::from(self.copies.counters) * COUNTER
    }

    /// Sorted: address and count of each block of the counted functions, from the counters' values, and how many of
    /// them have run. `stopped`: the link address of the instruction at which a thread came to its end; then what is
    /// behind it in its block has a count of its own.
    pub fn block_counts(&self, counters: &[u64], stopped: Option<u64>) -> (Vec<(u64, u64)>, usize) {
        self.copies.counts(counters, stopped)
    }

    /// How many functions and blocks are counted.
    pub fn counted(&self) -> (usize, usize) {
        (self.copies.units.len(), self.copies.blocks())
    }

    /// Blocks and counters of the function at an address, or why they are not counted.
    pub fn counting(&self, function: u64) -> Result<(usize, u32), Uncounted> {
        self.copies.counting(function)
    }

    /// The link address of the instruction whose copy is at an arena offset.
    pub fn original(&self, offset: u32) -> Option<u64> {
        if offset < self.emitted.copies || u64::from(offset) >= self.arena_len {
            return None;
        }
        let after = self.originals.partition_point(|&(from, _)| from <= offset);
        self.originals.get(after.checked_sub(1)?).map(|&(_, ip)| ip)
    }

    /// Link address of the program headers.
    pub fn phdr(&self) -> u64 {
        self.phdr
    }

    /// All bytes that are overwritten, sorted by address.
    pub fn patches(&self) -> &[Patch] {
        &self.emitted.patches
    }

    /// Whether a function's hook begins there: who is there has not begun with the function.
    pub fn is_hook_point(&self, address: u64) -> bool {
        self.hook_points.binary_search(&address).is_ok()
    }

    /// Whether function `caller` jumps to `callee`, as far as is known.
    pub fn jumps_to(&self, caller: u32, callee: u32) -> bool {
        self.tail_sites.contains_key(&(caller, callee))
    }

    /// How control may run on into the function at an address.
    pub fn fall_into(&self, address: u64) -> Option<&Fall> {
        let index = self.falls.binary_search_by_key(&address, |fall| fall.into).ok()?;
        self.falls.get(index)
    }

    /// The link address of the jump by which function `caller` tail-calls `callee`, where there is one
    /// only.
    pub fn tail_site(&self, caller: u32, callee: u32) -> Option<u64> {
        self.tail_sites.get(&(caller, callee)).copied().flatten()
    }
}

/// Why less can be hooked than was asked for.
fn downgrade(image: &Image, asked: Hooks, none: Option<Reason>, reader: Option<&str>) -> Option<String> {
    match image.facts.runtime {
        _ if none == Some(Reason::Go) => {
            Some("it is a Go program, which moves its stacks: it is only sampled".to_owned())
        }
        _ if none.is_some() => {
            reader.map(|why| format!("{why}: it is only sampled; --hooks both hooks it all the same"))
        }
        Some(runtime) if asked == Hooks::Both => {
            Some(format!("its runtime ({runtime}) relies on true return addresses: only entries are hooked"))
        }
        _ => None,
    }
}

struct Decided {
    verdicts: Vec<Result<Tactic, Reason>>,
    hooks: Vec<Hook>,
    emitted: Emitted,
    homes: Homes,
    copies: Copies,
}

impl Decided {
    fn emit(
        image: &Image,
        flow: &Flow,
        decisions: Decisions,
        entry_only: bool,
        counted: Option<&dyn Fn(usize) -> bool>,
    ) -> Decided {
        let Decisions { verdicts, hooks } = decisions;
        let mut failed = HashMap::new();
        loop {
            let copies = counted
                .map_or_else(Copies::default, |wanted| Copies::new(image, flow, &hooks, wanted, &failed));
            let (mut emitted, homes) = emit_all(image, flow, &hooks, entry_only, &copies);
            if emitted.uncounted.is_empty() {
                return Decided { verdicts, hooks, emitted, homes, copies };
            }
            failed.extend(emitted.uncounted.drain(..));
        }
    }

    /// A hook that cannot be emitted is not just left out: others count on it. Their caves lie in bytes that
    /// its relocation was to free, their call sites among the instructions it was to move, their sleds lead
    /// into its patch. So all is decided once more without it.
    fn that_can_be_emitted(
        image: &Image,
        flow: &Flow,
        selected: &(dyn Fn(usize) -> bool + Sync),
        engine: Engine,
        entry_only: bool,
        counted: Option<&dyn Fn(usize) -> bool>,
    ) -> Decided {
        /// Two are enough for what compilers make.
        const ROUNDS: u32 = 20;
        let mut failed = if entry_only { Failed::new() } else { unwinder::steps(image, flow) };
        for _ in 0..ROUNDS {
            let mut decisions = decide(image, flow, selected, engine, &failed);
            // A copy of the function that branches would still lead there.
            let astray = foreign::settle(image, flow, &mut decisions.hooks, counted.is_none());
            if !astray.is_empty() {
                failed.extend(astray.into_iter().map(|function| (function, Reason::JumpedInto)));
                continue;
            }
            let decided = Decided::emit(image, flow, decisions, entry_only, counted);
            let overlapping = if decided.emitted.overlaps() { overlaps(&decided.hooks) } else { Vec::new() };
            failed.extend(overlapping.iter().map(|&function| (function, Reason::Overlap)));
            if decided.emitted.failed.is_empty() && overlapping.is_empty() {
                return decided;
            }
            let by_frida = |i| decided.verdicts[i] == Ok(Tactic::Frida);
            let reason = |i, other| if by_frida(i) { Reason::FridaNotRelocatable } else { other };
            failed.extend(decided.emitted.failed.iter().map(|&(i, other)| (i, reason(i, other))));
        }
        let verdicts = decide(image, flow, selected, engine, &failed).verdicts;
        let verdicts = verdicts.into_iter().map(|v| v.and(Err(Reason::NotRelocatable))).collect();
        Decided::emit(image, flow, Decisions { verdicts, hooks: Vec::new() }, entry_only, counted)
    }
}

fn emit_all(
    image: &Image,
    flow: &Flow,
    hooks: &[Hook],
    entry_only: bool,
    copies: &Copies,
) -> (Emitted, Homes) {
    let wishes: Vec<Wish> = hooks
        .iter()
        .map(|h| {
            let f = &image.functions[h.function];
            let facts = flow.functions[h.function];
            let own_return = f.names().any(|name| OWN_RETURN.contains(&name) || unwinder::drives(name));
            let leaf = facts.leaf && !facts.table_loops && !facts.odd_return;
            // Only a shadow stack tells a loop from a call.
            let both = !entry_only || facts.table_loops;
            Wish {
                both: both && !own_return && !facts.odd_return && !leaf,
                leaf,
                loops: facts.table_loops,
                // Nothing is led to an instruction among them.
                movable: h.relocated == 0
                    || facts.head.movable
                        && u64::from(facts.head.len) == h.relocated
                        && h.retargets.is_empty(),
                registers: facts.registers,
            }
        })
        .collect();
    let tails = tails::find(image, flow, hooks, &wishes);
    let homes = Homes::new(image, flow, hooks, &tails, copies);
    let led = unwinder::led(image, hooks);
    let emitted =
        emit(Input { image, hooks, wishes: &wishes, homes: &homes, tails: &tails, led: &led, copies });
    (emitted, homes)
}

/// The functions whose patches touch the same bytes. The tactics see to it that there are none; this is the
/// check that they did.
fn overlaps(hooks: &[Hook]) -> Vec<usize> {
    let mut spans: Vec<(u64, u64, usize)> = Vec::new();
    for h in hooks {
        spans.extend(h.spans().map(|(lo, hi)| (lo, hi, h.function)));
    }
    sort::by_key(&mut spans, |&(lo, ..)| lo);
    let mut bad: Vec<usize> = Vec::new();
    let mut last: Option<(u64, usize)> = None;
    for &(lo, hi, function) in &spans {
        if let Some((end, other)) = last
            && lo < end
        {
            bad.extend([function, other]);
        }
        if last.is_none_or(|(end, _)| hi > end) {
            last = Some((hi, function));
        }
    }
    bad
}

fn hook_points(hooks: &[Hook]) -> Vec<u64> {
    let overwrite = hooks.iter().filter(|h| h.tactic != Tactic::CallSites);
    let mut points: Vec<u64> = overwrite.map(|h| h.at).collect();
    points.sort_unstable();
    points
}

pub(crate) fn extents(image: &Image) -> (u64, u64) {
    let lo = image.functions.first().map_or(image.lo, |f| f.address);
    let hi = image.functions.iter().map(|f| f.address + f.size).max().unwrap_or(image.hi);
    (lo, hi)
}

pub(crate) fn code_extents(image: &Image) -> (u64, u64) {
    let lo = image.code.iter().map(|c| c.address).min().unwrap_or(0);
    let hi = image.code.iter().map(|c| c.address + c.bytes.len() as u64).max().unwrap_or(0);
    (lo, hi)
}

fn hooked_ranges(image: &Image, verdicts: &[Result<Tactic, Reason>], emitted: &Emitted) -> Vec<CodeRange> {
    let mut ranges: Vec<CodeRange> = Vec::new();
    // Where the last function begins that is not hooked.
    let mut other = None;
    for (i, f) in image.functions.iter().enumerate() {
        let hooked = match f.kind {
            FunctionKind::Cold(Some(parent)) => verdicts.get(parent).is_some_and(|v| v.is_ok()),
            _ => verdicts[i].is_ok(),
        };
        if !hooked {
            other = Some(f.address);
            continue;
        }
        // A return address may be the first byte behind a function that ends with a call.
        let (lo, hi) = (f.address + 1, f.address + f.size + 1);
        match ranges.last_mut() {
            Some(last) if last.hi + 16 >= lo && other.is_none_or(|other| other + 1 < last.hi) => last.hi = hi,
            _ => ranges.push(CodeRange { lo, hi }),
        }
    }
    let arena = &emitted.code;
    let copies = emitted.copies as usize;
    if copies < arena.bytes.len() {
        ranges.push(CodeRange { lo: arena.address(copies), hi: arena.address(arena.bytes.len()) });
        // The arena of a PIE may lie below address 0, that is at the top.
        ranges.sort_unstable_by_key(|r| r.lo);
    }
    ranges
}

fn tail_sites(
    image: &Image,
    flow: &Flow,
    hooks: &[Hook],
    number_of: &[u32],
) -> HashMap<(u32, u32), Option<u64>> {
    let mut sites: HashMap<(u32, u32), Option<u64>> = HashMap::new();
    for (hook, number) in hooks.iter().zip(0..) {
        let address = image.functions[hook.function].address;
        for b in flow.branches_into(hook.function, address + 1) {
            if b.kind == BranchKind::Call {
                continue;
            }
            let from = owner(image, b.function as usize);
            let caller = number_of[from];
            if caller != u32::MAX && from != hook.function {
                sites.entry((caller, number)).and_modify(|s| *s = None).or_insert(Some(b.site));
            }
        }
    }
    sites
}
