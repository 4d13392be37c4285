//! Decodes every function once and notes what the tactics need: who branches where, which call sites a
//! function has, whose address is taken, who reads its own return address.
//!
//! Decoding is linear within a function's extent, as compilers emit it. A function in which the decoder
//! meets bytes that are no instruction is marked [`FunctionFlow::undecodable`]: what was read of it still
//! warns ("something seems to branch there") but is never patched. So does what belongs to no function (`unread`).

mod label;
mod part;
mod seen;
mod unread;

use crate::parallel;
use crate::registers::{self, Registers};
use crate::return_slot;
use crate::start::{Head, owner};
use gprofinject_image::Image;
use part::{Part, Wanted};

/// Branches inside a function are of interest only where they lead near its start: no tactic overwrites
/// or relocates more than this many bytes.
pub const NEAR: u64 = 96;

/// A direct call, jump or conditional jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Branch {
    pub target: u64,
    /// Address of the branch instruction.
    pub site: u64,
    /// Index of the function that contains the site.
    pub function: u32,
    /// Bytes of the instruction.
    pub len: u8,
    /// Bytes of its displacement, the instruction's last ones: 1 or 4.
    pub width: u8,
    pub kind: BranchKind,
    /// r10 may be as it was when the function was entered.
    pub passes_r10: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BranchKind {
    Call,
    /// Unconditional.
    Jump,
    /// jcc, loop, jrcxz, xbegin.
    Conditional,
}

impl Branch {
    /// Address after the instruction: for a call, the return address.
    pub fn end(&self) -> u64 {
        self.site + u64::from(self.len)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct FunctionFlow {
    pub undecodable: bool,
    /// Has an own way with its return slot: reads it (`__builtin_return_address(0)`), or takes its
    /// arguments off the stack when it returns, or jumps to a function that does.
    pub odd_return: bool,
    /// A bit for each frame above its own whose return address it reads: see [`return_slot::Uses::callers`].
    pub(crate) reads_callers: u8,
    /// A jump table or label table leads back to its first instruction.
    pub table_loops: bool,
    /// It calls nothing, makes no system call, and ends with its own return: control is nowhere else between
    /// its entry and its exit.
    pub leaf: bool,
    /// Its last instruction is neither a jump, a return nor a call: control runs on into the next function.
    pub runs_on: bool,
    /// Its last instruction is a call. Compilers write this where the callee never returns; if it does, control runs on.
    pub ends_in_call: bool,
    /// It calls itself directly.
    pub recursive: bool,
    pub registers: Registers,
    pub head: Head,
}

#[derive(Debug, Default)]
pub struct Flow {
    /// Sorted by target, then by site. Branches inside a function only when they lead to its first
    /// [`NEAR`] bytes.
    branches: Vec<Branch>,
    /// For each function of the image, the first branch that leads to its start or behind.
    first: Vec<usize>,
    /// One for each function of the image.
    pub functions: Vec<FunctionFlow>,
    /// Sorted: addresses in code that instructions compute (`lea`, immediates) or read, or data holds.
    pub taken: Vec<u64>,
    /// Sorted: addresses near the start of the function that they lie in, but behind it, which indirect branches
    /// lead to or may lead to.
    pub indirect: Vec<u64>,
    /// Starts of functions to which code that was not decoded seems to branch.
    pub(crate) entered_unseen: Vec<u64>,
}

impl Flow {
    /// `exits`: exits of functions may be hooked. If not, only of leaves it is found out what they do with their return
    /// addresses, for which large functions have to be decoded once more: [`FunctionFlow::odd_return`] is unknown of others.
    pub fn of(image: &Image, exits: bool) -> Flow {
        let count = image.functions.len();
        let bounds = even_bounds(image, parallel::parts(count));
        let ranges = bounds.windows(2).map(|w| w[0]..w[1]).collect();
        let wanted = Wanted { predecodes: true, exits };
        let parts = parallel::each(ranges, |functions| Part::decode(image, functions, wanted));
        let mut flow = Flow::default();
        flow.branches.reserve(parts.iter().map(|part| part.branches.len()).sum());
        flow.functions.reserve(count);
        let mut unread = Vec::new();
        for part in parts {
            unread.extend(part.unread);
            flow.branches.extend(part.branches);
            flow.functions.extend(part.functions);
            flow.taken.extend(part.taken);
            flow.indirect.extend(part.indirect);
        }
        let references = unread::references(image, &unread);
        flow.taken.extend(references.taken);
        flow.indirect.extend(references.indirect);
        flow.entered_unseen = references.entered;
        flow.functions.resize(count, FunctionFlow { undecodable: true, ..Default::default() });
        // Sorted runs, which a stable sort only merges.
        flow.branches.sort_by_key(|b| b.target);
        flow.first = first_branches(image, &flow.branches);
        flow.spread_to_callers(image);
        flow.spread_odd_returns(image);
        flow.indirect.extend(image.landing_pads.iter().copied());
        for &pointer in &image.code_pointers {
            // A pointer to a function's start is the function's address; one to its inside is a label.
            match function_at(image, pointer) {
                Some(i) if image.functions[i].address == pointer => flow.taken.push(pointer),
                Some(i) if pointer - image.functions[i].address < NEAR => flow.indirect.push(pointer),
                _ => {}
            }
        }
        flow.taken.extend(image.exported.iter().copied());
        flow.taken.sort_unstable();
        flow.indirect.extend(label::entered(image, &flow.taken));
        flow.taken.dedup();
        flow.indirect.sort_unstable();
        flow.indirect.dedup();
        registers::spread(image, &mut flow);
        flow
    }

    /// A function that reads the return address of its caller's frame must find the true one there, and so up the
    /// stack, as far as the callers are known: who calls through a pointer is not.
    fn spread_to_callers(&mut self, image: &Image) {
        for reader in 0..self.functions.len() {
            let levels = self.functions[reader].reads_callers;
            let mut callees = vec![reader];
            for level in 1..=return_slot::FARTHEST {
                if levels >> level == 0 {
                    break;
                }
                self.add_jumpers(image, &mut callees);
                let mut callers = Vec::new();
                for &callee in &callees {
                    let into = self.branches_into(callee, image.functions[callee].address + 1);
                    let calls = into.iter().filter(|b| b.kind == BranchKind::Call);
                    callers.extend(calls.map(|b| owner(image, b.function as usize)));
                }
                callers.sort_unstable();
                callers.dedup();
                if levels & 1 << level != 0 {
                    for &caller in &callers {
                        self.functions[caller].odd_return = true;
                    }
                }
                callees = callers;
            }
        }
    }

    /// Adds the functions that jump to one of these: their frames are one and the same.
    fn add_jumpers(&self, image: &Image, functions: &mut Vec<usize>) {
        let mut next = 0;
        while let Some(&to) = functions.get(next) {
            next += 1;
            for b in self.branches_into(to, image.functions[to].address + 1) {
                let from = owner(image, b.function as usize);
                if b.kind != BranchKind::Call && !functions.contains(&from) {
                    functions.push(from);
                }
            }
        }
    }

    /// A function that tail-calls one with an odd return returns as oddly.
    fn spread_odd_returns(&mut self, image: &Image) {
        let mut work: Vec<usize> =
            (0..self.functions.len()).filter(|&i| self.functions[i].odd_return).collect();
        while let Some(to) = work.pop() {
            let f = &image.functions[to];
            let coming = self.branches_into(to, f.address + f.size.max(1));
            let jumps = coming.iter().filter(|b| b.kind != BranchKind::Call);
            let callers: Vec<usize> = jumps.map(|b| b.function as usize).collect();
            for from in callers {
                if !std::mem::replace(&mut self.functions[from].odd_return, true) {
                    work.push(from);
                }
            }
        }
    }

    /// Branches with targets in `lo..hi`, sorted by target.
    pub fn branches_to(&self, lo: u64, hi: u64) -> &[Branch] {
        let from = self.branches.partition_point(|b| b.target < lo);
        let len = self.branches[from..].partition_point(|b| b.target < hi);
        &self.branches[from..from + len]
    }

    /// The same for targets from the start of function `index` on, without a search.
    pub fn branches_into(&self, index: usize, hi: u64) -> &[Branch] {
        let from = &self.branches[self.first[index]..];
        &from[..from.iter().take_while(|b| b.target < hi).count()]
    }

    /// All branches, sorted by target.
    pub(crate) fn branches(&self) -> &[Branch] {
        &self.branches
    }

    pub fn is_taken(&self, address: u64) -> bool {
        self.taken.binary_search(&address).is_ok()
    }

    /// Whether an instruction computes or reads an address in `lo..hi`.
    pub fn is_taken_in(&self, lo: u64, hi: u64) -> bool {
        self.taken.get(self.taken.partition_point(|&t| t < lo)).is_some_and(|&t| t < hi)
    }

    /// Indirect targets in `lo..hi`.
    pub fn indirect_in(&self, lo: u64, hi: u64) -> &[u64] {
        let from = self.indirect.partition_point(|&t| t < lo);
        let len = self.indirect[from..].partition_point(|&t| t < hi);
        &self.indirect[from..from + len]
    }
}

/// The function whose extent holds `address`.
pub fn function_at(image: &Image, address: u64) -> Option<usize> {
    let i = image.functions.partition_point(|f| f.address <= address).checked_sub(1)?;
    let f = &image.functions[i];
    (address < f.address + f.size.max(1)).then_some(i)
}

fn first_branches(image: &Image, branches: &[Branch]) -> Vec<usize> {
    let mut next = 0;
    let first = image.functions.iter().map(|f| {
        next += branches[next..].iter().take_while(|b| b.target < f.address).count();
        next
    });
    first.collect()
}

/// Splits the functions so that each part has about the same number of bytes.
fn even_bounds(image: &Image, parts: usize) -> Vec<usize> {
    let total: u64 = image.functions.iter().map(|f| f.size).sum();
    let mut bounds = vec![0];
    let mut seen = 0;
    for (i, f) in image.functions.iter().enumerate() {
        seen += f.size;
        if seen * parts as u64 >= total * bounds.len() as u64 && bounds.len() < parts {
            bounds.push(i + 1);
        }
    }
    bounds.push(image.functions.len());
    bounds
}
