//! Shows the program its own limits of memory, where the kernel has higher ones because of the agent's mappings: see
//! [`crate::os::limits`].
//!
//! `setrlimit`, `getrlimit` and `prlimit` are defined here; they call the C library's own functions. A system call that is made in another way
//! sets the kernel's limit, and sees it.
#![allow(unsafe_code, reason = "functions of the C library are defined")]
#![cfg_attr(test, allow(dead_code))]

use crate::os::limits::{self, Pair};
use crate::os::memory;
use crate::os::task;
use crate::process::originals::{GETRLIMIT, PRLIMIT, SETRLIMIT};
use crate::program::agent::Agent;
use crate::program::failure;
use core::sync::atomic::{AtomicU64, Ordering};

type Set = unsafe extern "C" fn(u32, *const Pair) -> i32;
type Get = unsafe extern "C" fn(u32, *mut Pair) -> i32;
type Both = unsafe extern "C" fn(i32, u32, *const Pair, *mut Pair) -> i32;

/// Returns the function whose address is stored there.
///
/// # Safety
/// The function is of that type.
unsafe fn original<F: Copy>(address: &AtomicU64) -> F {
    const { assert!(size_of::<F>() == size_of::<u64>()) };
    // SAFETY: the caller has promised that the word is a pointer to such a function.
    unsafe { core::mem::transmute_copy(&address.load(Ordering::Relaxed)) }
}

/// What the kernel is to have in place of what the program wants, if it is not the same.
struct Change {
    wanted: Pair,
    kernel: Pair,
}

/// Returns how a limit is to be changed, if that is up to the agent.
fn change(resource: u32, wanted: *const Pair) -> Option<Change> {
    failure::guarded(|| {
        let agent = Agent::get();
        // A process of vfork has limits of its own, and shares the agent's memory with its parent.
        if !agent.is_set_up || agent.pid != task::getpid() || memory::is_unreadable(agent.pid, wanted as u64)
        {
            return None;
        }
        // SAFETY: the program has passed a limit to be read, and its first byte can be read.
        let wanted = unsafe { wanted.read_unaligned() };
        Some(Change { wanted, kernel: limits::raised(resource, wanted)? })
    })
    .flatten()
}

/// Notes what has become of a limit.
fn changed(resource: u32, change: Option<&Change>) {
    match change {
        Some(change) => limits::keep(resource, change.wanted, change.kernel),
        None if Agent::get().pid == task::getpid() => limits::let_go(resource),
        None => {}
    }
}

/// setrlimit for one of the two limits.
///
/// # Safety
/// As the C library's function.
unsafe extern "C" fn set(resource: u32, wanted: *const Pair) -> i32 {
    let change = change(resource, wanted);
    let kernel = change.as_ref().map_or(wanted, |change| &raw const change.kernel);
    // SAFETY: the caller keeps the contract of the C library's function, and the kernel only reads.
    let result = unsafe { original::<Set>(&SETRLIMIT)(resource, kernel) };
    if result == 0 {
        changed(resource, change.as_ref());
    }
    result
}

/// getrlimit for one of the two limits.
///
/// # Safety
/// As the C library's function.
unsafe extern "C" fn get(resource: u32, to: *mut Pair) -> i32 {
    // SAFETY: the caller keeps the contract of the C library's function.
    let result = unsafe { original::<Get>(&GETRLIMIT)(resource, to) };
    if result == 0 {
        // SAFETY: the kernel has written a limit there.
        unsafe { show(resource, to) };
    }
    result
}

/// prlimit for one of the two limits.
///
/// # Safety
/// As the C library's function.
unsafe extern "C" fn set_and_get(process: i32, resource: u32, wanted: *const Pair, to: *mut Pair) -> i32 {
    // SAFETY: the C library's function has this type.
    let original = unsafe { original::<Both>(&PRLIMIT) };
    if process != 0 && process != task::getpid() as i32 {
        // SAFETY: the caller keeps the contract of the C library's function.
        return unsafe { original(process, resource, wanted, to) };
    }
    let change = if wanted.is_null() { None } else { change(resource, wanted) };
    let kernel = change.as_ref().map_or(wanted, |change| &raw const change.kernel);
    // SAFETY: the caller keeps the contract of the C library's function, and the kernel only reads the new limit.
    let result = unsafe { original(process, resource, kernel, to) };
    if result == 0 && !to.is_null() {
        // SAFETY: the kernel has written a limit there.
        unsafe { show(resource, to) };
    }
    if result == 0 && !wanted.is_null() {
        changed(resource, change.as_ref());
    }
    result
}

/// Replaces a limit of the kernel's by the one that the program is to see.
///
/// # Safety
/// `at` leads to a limit.
unsafe fn show(resource: u32, at: *mut Pair) {
    // SAFETY: the caller has promised that there is a limit.
    unsafe { at.write_unaligned(limits::shown(resource, at.read_unaligned())) };
}

#[cfg(not(test))]
mod offered {
    use crate::process::originals::{GETRLIMIT, PRLIMIT, SETRLIMIT};
    use core::arch::naked_asm;
    use linux_raw_sys::general::{RLIMIT_AS, RLIMIT_DATA};

    /// Defines a function of the C library. For one of the two limits, which its argument in the register names, it is `ours`; the
    /// others are the C library's business.
    macro_rules! offer {
        ($($name:ident)*: $register:literal, $ours:path, $real:path) => { $(
            /// # Safety
            /// As glibc's function of that name.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                naked_asm!(
                    concat!("cmp ", $register, ", {address_space}"),
                    "je {ours}",
                    concat!("cmp ", $register, ", {data}"),
                    "je {ours}",
                    "jmp [rip + {real}]",
                    address_space = const RLIMIT_AS,
                    data = const RLIMIT_DATA,
                    ours = sym $ours,
                    real = sym $real,
                );
            }
        )* };
    }

    offer!(setrlimit setrlimit64: "edi", super::set, SETRLIMIT);
    offer!(getrlimit getrlimit64: "edi", super::get, GETRLIMIT);
    offer!(prlimit prlimit64: "esi", super::set_and_get, PRLIMIT);
}
