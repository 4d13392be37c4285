//! What one function's registers mean to its callers and callees, over the whole program.

use super::{R10, R11, Registers};
use crate::flow::{Branch, BranchKind, Flow, function_at};
use crate::image::{FunctionKind, Image, is_stub};
use crate::start::owner;

/// Bytes of the longest stub of a library's function.
const STUB: u64 = 11;

/// Carries changes from called functions to their callers, and unused values from where a function goes on
/// by a jump.
pub fn spread(image: &Image, flow: &mut Flow) {
    // What is called outside of all functions (a PLT stub) is not known. Where some functions give r10 back, others may
    // know that what they call does.
    let preserving = flow.functions.iter().any(|f| f.registers.saves & R10 != 0);
    let unknown = if preserving { R11 } else { R10 | R11 };
    let mut changes: Vec<u8> = flow
        .functions
        .iter()
        .map(|f| f.registers.changes | if f.registers.calls_unknown { unknown } else { 0 })
        .collect();
    let to_no_start: Vec<Branch> = flow.to_no_start(image).copied().collect();
    for b in to_no_start.iter().filter(|b| b.kind == BranchKind::Call) {
        changes[b.function as usize] |= unknown;
    }
    let saves: Vec<u8> = flow.functions.iter().map(|f| f.registers.saves).collect();
    for (changes, saves) in changes.iter_mut().zip(&saves) {
        *changes &= !saves;
    }
    spread_one(image, flow, &mut changes, |b| !saves[b.function as usize], |b| b.function as usize);
    // A cold part is its function's.
    let owners: Vec<usize> = (0..flow.functions.len()).map(|i| owner(image, i)).collect();
    let of_owners = |of: &dyn Fn(&Registers) -> u8| {
        let mut sets = vec![0; owners.len()];
        for (f, &owner) in flow.functions.iter().zip(&owners) {
            sets[owner] |= of(&f.registers);
        }
        sets
    };
    let mut leaves = of_owners(&|r| r.leaves);
    let mut takes = of_owners(&|r| u8::from(r.takes_r10));
    let mut chain = vec![0; owners.len()];
    for (i, f) in flow.functions.iter().enumerate() {
        chain[i] |= u8::from(f.registers.chain && owners[i] == i);
        // Where it goes on in a cold part, any of their instructions may read what was there on entry.
        let part = &image.functions[i];
        let comes = || flow.branches_to(part.address, part.address + part.size).iter();
        if owners[i] != i && comes().any(|b| b.passes_r10 && b.function as usize == owners[i]) {
            chain[owners[i]] |= takes[owners[i]];
        }
    }
    let elsewhere: Vec<Branch> = to_no_start.into_iter().filter(|b| goes_elsewhere(image, b)).collect();
    for b in &elsewhere {
        takes[owners[b.function as usize]] = 1;
        leaves[owners[b.function as usize]] = R10 | R11;
    }
    let caller = |b: &Branch| owners[b.function as usize];
    let jumps = |b: &Branch| if b.kind == BranchKind::Call { 0 } else { u8::MAX };
    spread_one(image, flow, &mut leaves, jumps, caller);
    spread_one(image, flow, &mut chain, |b| u8::from(b.passes_r10), caller);
    for (takes, chain) in takes.iter_mut().zip(&chain) {
        *takes |= chain;
    }
    spread_one(image, flow, &mut takes, jumps, caller);
    let kept = kept(image, flow, &changes, &takes, &elsewhere);
    for (i, f) in flow.functions.iter_mut().enumerate() {
        f.registers.takes_r10 = takes[i] != 0 || f.runs_on;
        (f.registers.changes, f.registers.leaves, f.registers.kept) = (changes[i], leaves[i], kept[i]);
    }
}

/// The registers in which callers of each function may keep values; `elsewhere`: the branches from one function into
/// the middle of another.
fn kept(image: &Image, flow: &Flow, changes: &[u8], takes_r10: &[u8], elsewhere: &[Branch]) -> Vec<u8> {
    let unchanged = |f: usize| !changes[f] & (R10 | R11);
    let count = flow.functions.len();
    // A call that is not seen might be by one that does.
    if flow.functions.iter().any(|f| f.undecodable) {
        return (0..count).map(unchanged).collect();
    }
    // By the function that a cold part belongs to.
    let mut names = vec![0_u8; count];
    for (i, f) in flow.functions.iter().enumerate() {
        let chain = if takes_r10[i] != 0 { R10 } else { 0 };
        names[owner(image, i)] |= f.registers.names | chain;
        if is_orphan(image, i) {
            // Whose part it is is not known, but for who jumps to it.
            names[i] = R10 | R11;
            for b in flow.branches_into(i, image.functions[i].address + 1) {
                names[owner(image, b.function as usize)] = R10 | R11;
            }
        }
    }
    // Who goes on in the middle of another function is as good as part of it.
    for b in elsewhere {
        names[owner(image, b.function as usize)] = R10 | R11;
    }
    let mut wanted = vec![0_u8; count];
    for callee in called_unseen(image) {
        wanted[callee] = R10 | R11;
    }
    if names.iter().chain(&wanted).all(|&r| r == 0) {
        return wanted;
    }
    let pointers = (0..count).filter(|&f| flow.functions[f].registers.follows_pointers);
    let through_pointers = pointers.map(|f| names[owner(image, f)]).fold(0, |all, names| all | names);
    for (wanted, _) in wanted.iter_mut().zip(&image.functions).filter(|(_, f)| flow.is_taken(f.address)) {
        *wanted |= through_pointers;
    }
    // From callers that leave a register alone, and so keep their own callers' values, to what they call.
    let mut passed_on: Vec<(usize, usize)> = Vec::new();
    for (callee, wanted) in wanted.iter_mut().enumerate() {
        let calling = flow.branches_into(callee, image.functions[callee].address + 1);
        for caller in calling.iter().map(|b| owner(image, b.function as usize)) {
            *wanted |= names[caller];
            if unchanged(caller) != 0 && passed_on.last() != Some(&(caller, callee)) {
                passed_on.push((caller, callee));
            }
        }
        if let Some(before) = callee.checked_sub(1).filter(|&before| flow.functions[before].runs_on) {
            passed_on.push((before, callee));
        }
    }
    // Longer chains of calls than this are rare: then callers are taken to keep values.
    const MOST: usize = 64;
    for _ in 0..MOST {
        let mut changed = false;
        for &(caller, callee) in &passed_on {
            let all = wanted[callee] | wanted[caller] & unchanged(caller);
            changed |= all != wanted[callee];
            wanted[callee] = all;
        }
        if !changed {
            return (0..count).map(|f| wanted[f] & unchanged(f)).collect();
        }
    }
    (0..count).map(unchanged).collect()
}

fn is_orphan(image: &Image, function: usize) -> bool {
    matches!(image.functions[function].kind, FunctionKind::Cold(None))
}

/// Functions to whose start something in code that no symbol describes seems to branch. Any byte may be where an
/// instruction begins.
fn called_unseen(image: &Image) -> Vec<usize> {
    let mut called = Vec::new();
    for f in &image.functions {
        let end = f.address + f.size;
        let gap = image.code_at(end, f.limit.saturating_sub(end)).unwrap_or_default();
        for (i, window) in gap.windows(5).enumerate() {
            let &[opcode, a, b, c, d] = window else { continue };
            // call, jmp; the second byte of a jcc.
            if matches!(opcode, 0xe8 | 0xe9 | 0x80..=0x8f) {
                let distance = i32::from_le_bytes([a, b, c, d]) as u64;
                let target = (end + i as u64 + 5).wrapping_add(distance);
                called.extend(image.functions.binary_search_by_key(&target, |f| f.address));
            }
        }
    }
    called
}

/// Whether a branch that does not lead to a function's start is a jump to something that is neither the function itself
/// nor a stub of a library's.
fn goes_elsewhere(image: &Image, b: &Branch) -> bool {
    let target = function_at(image, b.target);
    let elsewhere = target.map(|t| owner(image, t)) != Some(owner(image, b.function as usize));
    b.kind != BranchKind::Call
        && elsewhere
        && !(target.is_none() && is_stub(image.code_at(b.target, STUB).unwrap_or_default()))
}

/// From each function to those that branch to its start: what `along` lets through.
fn spread_one(
    image: &Image,
    flow: &Flow,
    sets: &mut [u8],
    along: impl Fn(&Branch) -> u8,
    caller: impl Fn(&Branch) -> usize,
) {
    let mut work: Vec<usize> = (0..sets.len()).filter(|&i| sets[i] != 0).collect();
    while let Some(callee) = work.pop() {
        for b in flow.branches_into(callee, image.functions[callee].address + 1) {
            let caller = caller(b);
            let more = sets[callee] & along(b);
            if sets[caller] | more != sets[caller] {
                sets[caller] |= more;
                work.push(caller);
            }
        }
    }
}
