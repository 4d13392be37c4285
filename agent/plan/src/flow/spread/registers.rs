//! Propagates the use of registers from each function to its callers and callees, over the whole program.
//! See [`crate::flow::registers`].

use crate::flow::branch::{Branch, BranchKind};
use crate::flow::facts::Flow;
use crate::flow::registers::facts::Registers;
use crate::x86::scratch::{R10, R11};
use gprofinject_image::{FunctionKind, Image, is_stub};

/// Length in bytes of the longest stub of a library function (a PLT entry).
const STUB: u64 = 11;

/// A branch to a function's start, reduced to what matters for registers. It takes half as many bytes as a
/// [`Branch`], because all of them are read many times.
#[derive(Clone, Copy)]
struct Arrival {
    /// The function that contains the branch.
    function: u32,
    /// The function that this is a part of: see [`Image::owner`].
    owner: u32,
    /// Whether the branch is a call.
    is_call: bool,
    /// Whether r10 may still hold the value that it had when the function was entered.
    passes_r10: bool,
}

/// The branches to the starts of functions.
struct Arrivals {
    /// All branches, by function.
    all: Vec<Arrival>,
    /// For each function, the index of its first branch; at the end, the number of all branches.
    first: Vec<u32>,
}

impl Arrivals {
    /// Collects the branches to starts of functions, and returns with them the branches that lead elsewhere,
    /// except those inside of one function. `owners` has the owner of each function.
    fn of(image: &Image, flow: &Flow, owners: &[u32]) -> (Arrivals, Vec<Branch>) {
        let is_inside = |b: &Branch| {
            let own = &image.functions[b.function as usize];
            (own.address..own.address + own.size).contains(&b.target)
        };
        let leaves = |b: &&Branch| b.kind == BranchKind::Call || !is_inside(b);
        let mut branches = flow.branches().iter().peekable();
        let mut arrivals =
            Arrivals { all: Vec::with_capacity(branches.len()), first: Vec::with_capacity(owners.len() + 1) };
        let mut others = Vec::new();
        for f in &image.functions {
            while let Some(b) = branches.next_if(|b| b.target < f.address) {
                others.extend(Some(b).filter(leaves));
            }
            arrivals.first.push(arrivals.all.len() as u32);
            while let Some(b) = branches.next_if(|b| b.target == f.address) {
                arrivals.all.push(Arrival {
                    function: b.function,
                    owner: owners[b.function as usize],
                    is_call: b.kind == BranchKind::Call,
                    passes_r10: b.passes_r10,
                });
            }
        }
        arrivals.first.push(arrivals.all.len() as u32);
        others.extend(branches.filter(leaves));
        (arrivals, others)
    }

    /// Returns the branches to the start of a function.
    fn at(&self, function: usize) -> &[Arrival] {
        &self.all[self.first[function] as usize..self.first[function + 1] as usize]
    }

    /// Adds the elements of each function's set to the sets of the functions that branch to its start,
    /// until nothing changes. `along` returns the elements that a branch lets through, and `caller` the
    /// function that a branch counts for.
    fn spread(&self, sets: &mut [u8], along: impl Fn(&Arrival) -> u8, caller: impl Fn(&Arrival) -> u32) {
        let mut work: Vec<usize> = (0..sets.len()).filter(|&i| sets[i] != 0).collect();
        while let Some(callee) = work.pop() {
            for a in self.at(callee) {
                let caller = caller(a) as usize;
                let more = sets[callee] & along(a);
                if sets[caller] | more != sets[caller] {
                    sets[caller] |= more;
                    work.push(caller);
                }
            }
        }
    }
}

/// Completes the facts about each function's registers by means of its callees, of the functions that it
/// jumps to, and of its callers.
pub(crate) fn spread(image: &Image, flow: &mut Flow) {
    // The facts about code outside all functions, such as a PLT stub, are unknown. If some functions
    // restore r10, callers may rely on that.
    let preserving = flow.functions.iter().any(|f| f.registers.saves & R10 != 0);
    let unknown = if preserving { R11 } else { R10 | R11 };
    let mut changes: Vec<u8> = flow
        .functions
        .iter()
        .map(|f| f.registers.changes | if f.registers.calls_unknown { unknown } else { 0 })
        .collect();
    // A cold part counts as the function that it belongs to.
    let owners: Vec<u32> = (0..flow.functions.len()).map(|i| image.owner(i) as u32).collect();
    let (arrivals, others) = Arrivals::of(image, flow, &owners);
    // A function that calls its own code pops the address or replaces it, as code does that jumps through a register without an
    // indirect branch. The call changes nothing that the function does not, and may be a jump to anywhere.
    let (into_itself, others): (Vec<Branch>, Vec<Branch>) =
        others.into_iter().partition(|b| is_call_into_itself(image, b));
    for b in &into_itself {
        flow.functions[b.function as usize].registers.follows_pointers = true;
    }
    for b in others.iter().filter(|b| b.kind == BranchKind::Call) {
        changes[b.function as usize] |= unknown;
    }
    let saves: Vec<u8> = flow.functions.iter().map(|f| f.registers.saves).collect();
    for (changes, saves) in changes.iter_mut().zip(&saves) {
        *changes &= !saves;
    }
    arrivals.spread(&mut changes, |a| !saves[a.function as usize], |a| a.function);
    let of_owners = |of: &dyn Fn(&Registers) -> u8| {
        let mut sets = vec![0; owners.len()];
        for (f, &owner) in flow.functions.iter().zip(&owners) {
            sets[owner as usize] |= of(&f.registers);
        }
        sets
    };
    let mut leaves = of_owners(&|r| r.leaves);
    let mut takes = of_owners(&|r| u8::from(r.takes_r10));
    let mut chain = vec![0; owners.len()];
    for (i, f) in flow.functions.iter().enumerate() {
        let owner = owners[i] as usize;
        chain[i] |= u8::from(f.registers.chain && owner == i);
        // If the function continues in a cold part, any instruction there may read the value that r10 had
        // on entry.
        let part = &image.functions[i];
        let comes = || flow.branches_to(part.address, part.address + part.size).iter();
        if owner != i && comes().any(|b| b.passes_r10 && b.function == owners[i]) {
            chain[owner] |= takes[owner];
        }
    }
    let elsewhere = others.iter().filter(|b| goes_elsewhere(image, b)).chain(&into_itself);
    let elsewhere: Vec<u32> = elsewhere.map(|b| owners[b.function as usize]).collect();
    for &owner in &elsewhere {
        takes[owner as usize] = 1;
        leaves[owner as usize] = R10 | R11;
    }
    let jumps = |a: &Arrival| if a.is_call { 0 } else { u8::MAX };
    arrivals.spread(&mut leaves, jumps, |a| a.owner);
    for (leaves, results) in leaves.iter_mut().zip(results(image, flow, &owners, &arrivals)) {
        *leaves |= results;
    }
    arrivals.spread(&mut chain, |a| u8::from(a.passes_r10), |a| a.owner);
    for (takes, chain) in takes.iter_mut().zip(&chain) {
        *takes |= chain;
    }
    arrivals.spread(&mut takes, jumps, |a| a.owner);
    let kept = kept(image, flow, &owners, &arrivals, &changes, &takes, &elsewhere);
    for (i, f) in flow.functions.iter_mut().enumerate() {
        f.registers.takes_r10 = takes[i] != 0 || f.runs_on;
        (f.registers.changes, f.registers.leaves, f.registers.kept) = (changes[i], leaves[i], kept[i]);
    }
}

/// Returns, for each function, the registers that callers read as its results: those of the function itself, or of one that jumps to it.
fn results(image: &Image, flow: &Flow, owners: &[u32], arrivals: &Arrivals) -> Vec<u8> {
    let mut results = vec![0; owners.len()];
    for &(target, registers) in &flow.results {
        if let Some(callee) = image.function_at(target) {
            results[owners[callee] as usize] |= registers;
        }
    }
    if results.iter().all(|&registers| registers == 0) {
        return results;
    }
    // Longer chains of jumps are rare. For them, all functions are assumed to have results.
    const MOST: usize = 64;
    for _ in 0..MOST {
        let mut changed = false;
        for callee in 0..results.len() {
            let jumps = arrivals.at(callee).iter().filter(|a| !a.is_call);
            let all = jumps.fold(results[callee], |all, a| all | results[a.owner as usize]);
            changed |= all != results[callee];
            results[callee] = all;
        }
        if !changed {
            return results;
        }
    }
    vec![R10 | R11; owners.len()]
}

/// Returns, for each function, the registers in which its callers may keep values. `elsewhere` has the
/// functions with branches into the middle of another.
fn kept(
    image: &Image,
    flow: &Flow,
    owners: &[u32],
    arrivals: &Arrivals,
    changes: &[u8],
    takes_r10: &[u8],
    elsewhere: &[u32],
) -> Vec<u8> {
    let unchanged = |f: usize| !changes[f] & (R10 | R11);
    let count = flow.functions.len();
    // The undecodable part may contain a call by a caller that keeps values.
    if flow.functions.iter().any(|f| f.undecodable) {
        return (0..count).map(unchanged).collect();
    }
    // Cold parts count as the functions that they belong to.
    let mut names = vec![0_u8; count];
    for (i, f) in flow.functions.iter().enumerate() {
        let chain = if takes_r10[i] != 0 { R10 } else { 0 };
        names[owners[i] as usize] |= f.registers.names | chain;
        if is_orphan(image, i) {
            // The cold part's function is unknown; it may be any function that jumps there.
            names[i] = R10 | R11;
            for a in arrivals.at(i) {
                names[a.owner as usize] = R10 | R11;
            }
        }
    }
    // A function that continues in the middle of another one is treated like a part of it.
    for &owner in elsewhere {
        names[owner as usize] = R10 | R11;
    }
    let mut wanted = vec![0_u8; count];
    for address in &flow.entered_unseen {
        if let Ok(callee) = image.functions.binary_search_by_key(address, |f| f.address) {
            wanted[callee] = R10 | R11;
        }
    }
    // The callers of such functions are in other modules.
    for (wanted, _) in wanted.iter_mut().zip(&flow.functions).filter(|(_, f)| f.registers.takes_rax) {
        *wanted = R10 | R11;
    }
    if names.iter().chain(&wanted).all(|&r| r == 0) {
        return wanted;
    }
    let pointers = (0..count).filter(|&f| flow.functions[f].registers.follows_pointers);
    let through_pointers = pointers.map(|f| names[owners[f] as usize]).fold(0, |all, names| all | names);
    for (wanted, _) in wanted.iter_mut().zip(&image.functions).filter(|(_, f)| flow.is_taken(f.address)) {
        *wanted |= through_pointers;
    }
    // If a caller does not change a register, it may preserve a value of its own callers across the call.
    let mut passed_on: Vec<(usize, usize)> = Vec::new();
    for (callee, wanted) in wanted.iter_mut().enumerate() {
        for caller in arrivals.at(callee).iter().map(|a| a.owner as usize) {
            *wanted |= names[caller];
            if unchanged(caller) != 0 && passed_on.last() != Some(&(caller, callee)) {
                passed_on.push((caller, callee));
            }
        }
        if let Some(before) = callee.checked_sub(1).filter(|&before| flow.functions[before].runs_on) {
            passed_on.push((before, callee));
        }
    }
    // Longer chains of calls are rare. For them, callers are assumed to keep values.
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

/// Returns whether a branch is a call that leads into the function that contains it, but not to the function's start.
fn is_call_into_itself(image: &Image, b: &Branch) -> bool {
    let own = &image.functions[b.function as usize];
    b.kind == BranchKind::Call && (own.address + 1..own.address + own.size).contains(&b.target)
}

/// Returns whether the function is a cold part whose parent is unknown.
fn is_orphan(image: &Image, function: usize) -> bool {
    matches!(image.functions[function].kind, FunctionKind::Cold(_)) && image.parent(function).is_none()
}

/// Returns whether a branch is a jump into another function, or to code that is neither in a function nor
/// a stub of a library function. The branch must lead neither to a function's start nor into its own
/// function.
fn goes_elsewhere(image: &Image, b: &Branch) -> bool {
    b.kind != BranchKind::Call
        && match image.function_at(b.target) {
            Some(target) => image.owner(target) != image.owner(b.function as usize),
            None => !is_stub(image.code_at(b.target, STUB).unwrap_or_default()),
        }
}
