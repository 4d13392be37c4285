//! The limits of memory (RLIMIT_AS and RLIMIT_DATA), which the agent's mappings must not take from the program.
//!
//! The kernel counts the agent's mappings like the program's. So a limit of the program's is higher in the kernel, as far as that is
//! permitted: by what the agent has mapped. The program sees and sets its own limit ([`crate::process::limits`]), and so does a program that
//! it executes.
#![allow(unsafe_code, reason = "system calls read and write limits")]
// Only the C library calls most of this, which a standalone program does not share with the agent.
#![cfg_attr(feature = "standalone", allow(dead_code))]

use crate::os::kernel::{self, call};
use crate::os::own_image;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use linux_raw_sys::general;

/// A limit, as the kernel has it: the soft one and the hard one.
pub(crate) type Pair = [u64; 2];

const INFINITY: u64 = u64::MAX;
/// How much more the agent may map after a limit was set. The hard limit in the kernel is higher than the program's by so much, because an
/// unprivileged process cannot raise it.
const LATER: u64 = 1 << 40;

/// A limit of the program's that differs from the kernel's.
struct Limit {
    resource: u32,
    /// The bytes that the agent has mapped.
    mapped: AtomicU64,
    /// Whether the other fields are in use.
    is_kept: AtomicBool,
    program: [AtomicU64; 2],
    kernel: [AtomicU64; 2],
}

impl Limit {
    const fn new(resource: u32) -> Limit {
        Limit {
            resource,
            mapped: AtomicU64::new(0),
            is_kept: AtomicBool::new(false),
            program: [const { AtomicU64::new(0) }; 2],
            kernel: [const { AtomicU64::new(0) }; 2],
        }
    }

    /// Returns the program's limit, if it is not the kernel's.
    fn kept(&self) -> Option<Pair> {
        self.is_kept.load(Ordering::Acquire).then(|| load(&self.program))
    }

    /// Sets the kernel's soft limit anew after `mapped` has changed. If somebody else has changed the limit in the kernel, it stays.
    fn adapt(&self) {
        let Some([soft, _]) = self.kept() else { return };
        let Some(now) = read(self.resource).filter(|&now| now == load(&self.kernel) && soft != INFINITY)
        else {
            return;
        };
        let wanted = soft.saturating_add(self.mapped.load(Ordering::Relaxed)).min(now[1]);
        if wanted != now[0] && write(self.resource, [wanted, now[1]]).is_ok() {
            self.kernel[0].store(wanted, Ordering::Relaxed);
        }
    }
}

static ADDRESS_SPACE: Limit = Limit::new(general::RLIMIT_AS);
static DATA: Limit = Limit::new(general::RLIMIT_DATA);

/// Whether the program's limits may differ from the kernel's. They may if the program is shown its own, and if the agent learns when the
/// process executes another program, which must not get the kernel's. Stored by `begin` and `end`.
static IN_USE: AtomicBool = AtomicBool::new(false);

fn load(pair: &[AtomicU64; 2]) -> Pair {
    [pair[0].load(Ordering::Relaxed), pair[1].load(Ordering::Relaxed)]
}

fn of(resource: u32) -> Option<&'static Limit> {
    [&ADDRESS_SPACE, &DATA].into_iter().find(|limit| limit.resource == resource)
}

/// Returns a limit as the kernel has it.
fn read(resource: u32) -> Option<Pair> {
    let mut pair = [0; 2];
    // SAFETY: the kernel writes the limit.
    let result = unsafe { call(general::__NR_prlimit64, [0, resource.into(), 0, &raw mut pair as u64]) };
    // SAFETY: the kernel has written it; it is read as it has left it.
    result.ok().map(|_| unsafe { (&raw const pair).read_volatile() })
}

fn write(resource: u32, pair: Pair) -> Result<u64, i32> {
    // SAFETY: the kernel reads the limit.
    unsafe { call(general::__NR_prlimit64, [0, resource.into(), &raw const pair as u64, 0]) }
}

/// Takes over the limits with which the process begins. To be called before the agent maps anything large.
pub(crate) fn begin() {
    IN_USE.store(true, Ordering::Relaxed);
    let own = own_image::end().saturating_sub(own_image::start());
    for limit in [&ADDRESS_SPACE, &DATA] {
        limit.mapped.fetch_add(own, Ordering::Relaxed);
        if let Some(pair @ [soft, _]) = read(limit.resource)
            && soft != INFINITY
        {
            keep(limit.resource, pair, pair);
            limit.adapt();
        }
    }
}

/// Undoes [`begin`].
pub(crate) fn end() {
    IN_USE.store(false, Ordering::Relaxed);
    give_back();
    [&ADDRESS_SPACE, &DATA].into_iter().for_each(|limit| limit.is_kept.store(false, Ordering::Relaxed));
}

/// Returns whether the process has a limit of memory.
pub(crate) fn are_there() -> bool {
    [&ADDRESS_SPACE, &DATA]
        .into_iter()
        .any(|limit| read(limit.resource).is_some_and(|[soft, _]| soft != INFINITY))
}

/// Returns whether a program that the process executes has less address space than so many bytes, and cannot raise that limit.
pub(crate) fn are_hard_below(len: u64) -> bool {
    let kernel = read(general::RLIMIT_AS);
    kernel.is_some_and(|kernel| shown(general::RLIMIT_AS, kernel)[1] < len)
}

/// Notes that the agent is about to map so many bytes, of which `data` are private and writable.
pub(crate) fn map(len: u64, data: u64) {
    for (limit, len) in [(&ADDRESS_SPACE, len), (&DATA, data)] {
        limit.mapped.fetch_add(len, Ordering::Relaxed);
        limit.adapt();
    }
}

/// Notes that it has unmapped so many bytes, or could not map them.
pub(crate) fn unmap(len: u64, data: u64) {
    for (limit, len) in [(&ADDRESS_SPACE, len), (&DATA, data)] {
        limit.mapped.fetch_sub(len, Ordering::Relaxed);
        limit.adapt();
    }
}

/// Returns the limit that the kernel is to have where the program wants to have `wanted`, or `None` if it is the same.
pub(crate) fn raised(resource: u32, wanted: Pair) -> Option<Pair> {
    let limit = of(resource)?;
    let [soft, hard] = wanted;
    // Without a limit there is nothing to raise, and the kernel is to refuse what it refuses.
    if !IN_USE.load(Ordering::Relaxed) || kernel::is_frozen() || soft == INFINITY || soft > hard {
        return None;
    }
    let [_, most] = read(resource)?;
    let mapped = limit.mapped.load(Ordering::Relaxed);
    let above = match limit.kept() {
        // What is more than the program's hard limit has to be more than the kernel's, too.
        Some([_, before]) if before != INFINITY => most.saturating_sub(before),
        _ if most == INFINITY => mapped.saturating_add(LATER),
        _ => most.saturating_sub(hard).min(mapped.saturating_add(LATER)),
    };
    let hard = if hard == INFINITY { INFINITY } else { hard.saturating_add(above) };
    Some([soft.saturating_add(mapped).min(hard), hard])
}

/// Notes that the kernel has `kernel` where the program has set `program`.
pub(crate) fn keep(resource: u32, program: Pair, kernel: Pair) {
    let Some(limit) = of(resource) else { return };
    limit.is_kept.store(false, Ordering::Relaxed);
    for (to, from) in limit.program.iter().chain(&limit.kernel).zip(program.iter().chain(&kernel)) {
        to.store(*from, Ordering::Relaxed);
    }
    limit.is_kept.store(true, Ordering::Release);
}

/// Notes that the kernel has the limit that the program has set.
pub(crate) fn let_go(resource: u32) {
    if let Some(limit) = of(resource) {
        limit.is_kept.store(false, Ordering::Relaxed);
    }
}

/// Returns the limit that the program is to see where the kernel has this one.
pub(crate) fn shown(resource: u32, kernel: Pair) -> Pair {
    match of(resource) {
        Some(limit) if load(&limit.kernel) == kernel => limit.kept().unwrap_or(kernel),
        _ => kernel,
    }
}

/// Returns whether a program that the process executes would have other limits than this one.
pub(crate) fn are_kept() -> bool {
    [&ADDRESS_SPACE, &DATA]
        .into_iter()
        .any(|limit| limit.kept().is_some_and(|pair| pair != load(&limit.kernel)))
}

/// Gives the process the program's limits, because it is about to execute another program. Others that it was given from outside stay.
pub(crate) fn give_back() {
    for limit in [&ADDRESS_SPACE, &DATA] {
        if let Some(pair) = limit.kept()
            && read(limit.resource) == Some(load(&limit.kernel))
        {
            let _ = write(limit.resource, pair);
        }
    }
}

/// Undoes [`give_back`] as far as that is permitted. A process of vfork shares all of this with its parent, but not the kernel's limits, so
/// nothing is noted.
pub(crate) fn take_again() {
    for limit in [&ADDRESS_SPACE, &DATA] {
        if let Some(pair) = limit.kept()
            && read(limit.resource) == Some(pair)
        {
            let [soft, hard] = load(&limit.kernel);
            if write(limit.resource, [soft, hard]).is_err() {
                let _ = write(limit.resource, [soft.min(pair[1]), pair[1]]);
            }
        }
    }
}
