//! From callgrind's counts to what a gmon.out should contain.
//!
//! For callgrind, a call is whenever control enters a function at its first instruction other than by a return.
//! Its calls into the program are treated as follows:
//!
//! - A jump within one function to that function's first instruction is a loop, and is dropped.
//! - An entry into a `.cold` part is no call, and calls by a `.cold` part are its parent's: they are renamed.
//! - A jump to another function's first instruction, or running on into it, is a tail call. It is kept, and
//!   charged to the function that jumped. (Entry hooks alone cannot see which function that is; see `loose`.)
//! - An entry into the middle of a function (longjmp, or a return that callgrind has lost) is dropped.
//! - In a call through a PLT stub of the program, the stub is removed.
//! - A call from a library (qsort's comparison) belongs to a function of the program that called the library.
//!   Callgrind does not keep the path, but its calls among library functions show which functions that can have
//!   been; see `loose`. If there is none (for main, or a thread's start), the caller is `_start`.
//!
//! Only `_start` as a callee is left out: the dynamic linker jumps there before anything could be loaded, and
//! gprof does not use it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use anyhow::{Context, Result};

use crate::callgrind::{Call, Node, Profile};
use crate::elf::Program;
use crate::gprofdata::GmonOut;
use crate::tool::Hooks;
use crate::x86::{self, Branch};

/// The calls of one function whose callers are known only as a set.
#[derive(Debug, Clone, Default)]
pub struct Loose {
    pub count: u64,
    pub callers: BTreeSet<u64>,
}

/// A call instruction in the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteCount {
    /// The function that contains it.
    pub caller: u64,
    pub length: u64,
    pub count: u64,
}

/// What a profile of the same run should contain. Functions are identified by the addresses of their first
/// instructions.
#[derive(Debug, Default)]
pub struct Expected {
    /// The counts by caller and callee, where the caller is certain.
    pub arcs: BTreeMap<(u64, u64), u64>,
    /// The calls of each callee from outside hooked code.
    pub loose: BTreeMap<u64, Loose>,
    /// The counts by call instruction and callee.
    pub sites: BTreeMap<(u64, u64), SiteCount>,
    /// The tail calls among `arcs`: caller, callee, count.
    pub jumps: Vec<(u64, u64, u64)>,
    /// The calls of addresses in the text at which no function starts, which no profiler can count.
    pub unknown_targets: BTreeMap<u64, u64>,
}

impl Expected {
    pub fn total(&self) -> u64 {
        self.arcs.values().sum::<u64>() + self.loose.values().map(|l| l.count).sum::<u64>()
    }

    /// Returns what is left if some functions are not hooked.
    pub fn with_hooks_but_in(self, left_alone: &BTreeSet<u64>, hooks: Hooks) -> Expected {
        match hooks {
            Hooks::Both => self.without(left_alone),
            Hooks::Entry => self.without_callees(left_alone),
        }
    }

    /// Returns what is left if some functions cannot be hooked (`--list` says which): calls of them are not
    /// counted, and calls that they make come from code that is not hooked.
    pub fn without(mut self, refused: &BTreeSet<u64>) -> Expected {
        let mut above: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for &(caller, callee) in self.arcs.keys().filter(|(_, callee)| refused.contains(callee)) {
            above.entry(callee).or_default().insert(caller);
        }
        for (callee, loose) in self.loose.iter().filter(|(callee, _)| refused.contains(callee)) {
            above.entry(*callee).or_default().extend(&loose.callers);
        }
        let hooked = |caller: u64| {
            let (mut seen, mut open) = (BTreeSet::new(), vec![caller]);
            while let Some(function) = open.pop() {
                if seen.insert(function) && refused.contains(&function) {
                    open.extend(above.get(&function).into_iter().flatten());
                }
            }
            &seen - refused
        };
        self.loose.retain(|callee, _| !refused.contains(callee));
        for loose in self.loose.values_mut() {
            loose.callers = loose.callers.iter().flat_map(|&caller| hooked(caller)).collect();
        }
        for (&(caller, callee), count) in self.arcs.iter().filter(|((caller, _), _)| refused.contains(caller))
        {
            if !refused.contains(&callee) {
                let loose = self.loose.entry(callee).or_default();
                loose.count += count;
                loose.callers.extend(hooked(caller));
            }
        }
        let counted = |caller: u64, callee: u64| !refused.contains(&caller) && !refused.contains(&callee);
        self.arcs.retain(|&(caller, callee), _| counted(caller, callee));
        self.jumps.retain(|&(caller, callee, _)| counted(caller, callee));
        self.sites.retain(|&(_, callee), site| counted(site.caller, callee));
        self
    }

    /// Returns the same for entry hooks, which know the caller by the return address, whether it is hooked or
    /// not.
    fn without_callees(mut self, refused: &BTreeSet<u64>) -> Expected {
        self.loose.retain(|callee, _| !refused.contains(callee));
        self.arcs.retain(|(_, callee), _| !refused.contains(callee));
        self.jumps.retain(|(_, callee, _)| !refused.contains(callee));
        self.sites.retain(|(_, callee), _| !refused.contains(callee));
        self
    }

    /// Returns the profile that a perfect profiler would have left, for tests of the comparison itself.
    pub fn as_profile(&self) -> GmonOut {
        let mut profile = GmonOut::default();
        for ((site, callee), site_count) in &self.sites {
            let inside = site + site_count.length - 1;
            *profile.arcs.entry((inside, *callee)).or_default() += site_count.count;
        }
        // These arcs have no call instruction: tail calls, charged to the caller's first address, and
        // callbacks.
        for (caller, callee, count) in &self.jumps {
            *profile.arcs.entry((*caller, *callee)).or_default() += count;
        }
        for (callee, loose) in &self.loose {
            let caller = loose.callers.first().copied().unwrap_or_default();
            *profile.arcs.entry((caller, *callee)).or_default() += loose.count;
        }
        profile
    }
}

/// Returns what a profile should contain. `object` is the program's index in `profile`.
///
/// # Errors
/// The counts contradict each other.
pub fn normalise(profile: &Profile, object: usize, program: &Program, hooks: Hooks) -> Result<Expected> {
    let start = program.named("_start").context("the program has no _start")?.address;
    let calls = collapse_plt(profile, object, program);
    let callers = Callers::new(&calls, object, program, start);

    let mut expected = Expected::default();
    let mut tail_calls: Vec<(u64, u64, u64)> = Vec::new(); // caller, callee, count
    for call in calls.iter().filter(|c| c.callee.object == object) {
        let inside = call.caller.object == object;
        let branch = if inside { x86::branch(program.code(call.site)) } else { Branch::Other };
        let Some(callee) = program.entry(call.target) else {
            if matches!(branch, Branch::Call { .. }) && !program.is_plt(call.target) {
                *expected.unknown_targets.entry(call.target).or_default() += call.count;
            }
            continue;
        };
        if callee.parent.is_some() || callee.address == start {
            continue;
        }
        if !inside {
            let outside = match hooks {
                Hooks::Both => callers.of(&call.caller),
                Hooks::Entry => BTreeSet::from([start]),
            };
            let loose = expected.loose.entry(callee.address).or_default();
            loose.count += call.count;
            loose.callers.extend(outside);
            continue;
        }
        let Some(caller) = program.owner(call.site) else { continue };
        let is_call = matches!(branch, Branch::Call { .. });
        if !is_call && caller.address == callee.address {
            continue;
        }
        if let Branch::Call { length } = branch {
            let site = expected.sites.entry((call.site, callee.address));
            site.or_insert(SiteCount { caller: caller.address, length, count: 0 }).count += call.count;
        }
        if is_call || hooks == Hooks::Both {
            *expected.arcs.entry((caller.address, callee.address)).or_default() += call.count;
            if !is_call {
                expected.jumps.push((caller.address, callee.address, call.count));
            }
        } else {
            tail_calls.push((caller.address, callee.address, call.count));
        }
    }
    add_tail_calls(&mut expected, &tail_calls, start);
    Ok(expected)
}

/// Adds tail calls for entry hooks. A function g to which f has jumped finds the return address of f's
/// caller, or of that function's caller, and so on; or f itself, if the jump is what was hooked (because g is
/// too short for anything else).
fn add_tail_calls(expected: &mut Expected, tail_calls: &[(u64, u64, u64)], start: u64) {
    let mut possible: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (caller, callee) in expected.arcs.keys() {
        possible.entry(*callee).or_default().insert(*caller);
    }
    for (callee, loose) in &expected.loose {
        possible.entry(*callee).or_default().extend(&loose.callers);
    }
    loop {
        let mut grew = false;
        for (caller, callee, _) in tail_calls {
            let inherited = possible.get(caller).cloned().unwrap_or(BTreeSet::from([start]));
            let callers = possible.entry(*callee).or_default();
            let before = callers.len();
            callers.extend(inherited);
            grew |= callers.len() > before;
        }
        if !grew {
            break;
        }
    }
    for (caller, callee, count) in tail_calls {
        let loose = expected.loose.entry(*callee).or_default();
        loose.count += count;
        loose.callers.insert(*caller);
        loose.callers.extend(possible.get(caller).into_iter().flatten());
    }
}

/// Removes the program's PLT stubs: f -> stub and stub -> g become f -> g.
fn collapse_plt(profile: &Profile, object: usize, program: &Program) -> Vec<Call> {
    let in_plt = |object_of: &Node, address| object_of.object == object && program.is_plt(address);
    let mut behind: HashMap<u64, &Call> = HashMap::new(); // start of a stub -> its one onward call
    for call in profile.calls.iter().filter(|c| in_plt(&c.caller, c.site)) {
        behind.insert(call.site & !7, call);
    }
    let mut calls = Vec::new();
    for call in profile.calls.iter().filter(|c| !in_plt(&c.caller, c.site)) {
        let mut call = call.clone();
        if in_plt(&call.callee, call.target)
            && let Some(onward) = behind.get(&(call.target & !7))
        {
            call.callee = onward.callee.clone();
            call.target = onward.target;
        }
        calls.push(call);
    }
    calls
}

/// The names of the function in which libc starts a thread. For callgrind, the new thread continues where its
/// creator called clone, but its stack is empty. (The name is known only if libc has its symbols: from
/// Debian's libc6-dbg, which valgrind needs anyway.)
const THREAD_START: &[&str] = &["start_thread", "clone", "clone3", "__clone3", "__clone_internal"];

/// Finds the functions of the program that can have been the caller of a library's function.
struct Callers<'c> {
    by_callee: HashMap<&'c Node, Vec<&'c Call>>,
    program: &'c Program,
    object: usize,
    start: u64,
}

impl<'c> Callers<'c> {
    fn new(calls: &'c [Call], object: usize, program: &'c Program, start: u64) -> Self {
        let mut by_callee: HashMap<&Node, Vec<&Call>> = HashMap::new();
        for call in calls.iter().filter(|c| c.callee.object != object) {
            by_callee.entry(&call.callee).or_default().push(call);
        }
        Callers { by_callee, program, object, start }
    }

    /// Walks back from a library's function to all functions of the program that have led to it.
    fn of(&self, node: &Node) -> BTreeSet<u64> {
        let mut found = BTreeSet::new();
        let mut seen: HashSet<&Node> = HashSet::new();
        let mut open = vec![node];
        while let Some(node) = open.pop() {
            let calls = match self.by_callee.get(node) {
                Some(calls) if !THREAD_START.contains(&node.name.as_str()) => calls,
                _ => {
                    found.insert(self.start); // the bottom of a stack
                    continue;
                }
            };
            for call in calls {
                if call.caller.object != self.object {
                    if seen.insert(&call.caller) {
                        open.push(&call.caller);
                    }
                } else if let Some(caller) = self.program.owner(call.site) {
                    found.insert(caller.address);
                }
            }
        }
        found
    }
}
