//! Functions that are switched off while the process runs.
//!
//! The thunk of such a function begins with a jump to the function's body, so that it counts nothing, whatever leads to it;
//! and the text has the original bytes, unless other hooks rely on the patches ([`SHARED`]). A jump from one hooked function
//! to another has a thunk of its own. While either of them is off, that begins with a jump to the thunk of the called
//! function, or to its body. The bytes that were there are kept here.
//!
//! The tables are private memory, so a forked child has a copy of them, as it has of the text and the arena.
#![allow(unsafe_code, reason = "the tables are mapped, and code in the arena is overwritten")]

use crate::os::memory;
use crate::program::agent::Agent;
use crate::program::libraries::{self, FUNCTIONS_MAX, TAILS_MAX};
use crate::program::module::Module;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use gprofinject_abi::attach::CHOICE_WORDS;
use gprofinject_abi::plan::{CallJump, LIBRARIES, OFF, Patch, SHARED, Stay};
use gprofinject_abi::region::PAGE;

/// In a word: the function is switched off.
const IS_OFF: u64 = 1 << 63;
/// In a word: the thunk begins with a jump. The lower bits are the bytes that it has replaced.
const IS_BYPASSED: u64 = 1 << 62;
/// The length in bytes of that jump.
const JUMP: usize = 5;

/// One word for each function of the program, then one for each of its tail calls. Null until something is switched off.
static PROGRAM: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
/// The same for all libraries.
static OF_LIBRARIES: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// Maps the tables, if that has not been done.
///
/// # Errors
/// Returns the errno of the failed system call.
pub(crate) fn prepare() -> Result<(), i32> {
    let program = &Agent::get().program;
    let own = (program.functions.len() + program.tails.len()) as u64;
    let of_libraries = if libraries::are_prepared() { FUNCTIONS_MAX + TAILS_MAX } else { 0 };
    for (table, count) in [(&PROGRAM, own), (&OF_LIBRARIES, of_libraries)] {
        if table.load(Ordering::Relaxed).is_null() && count > 0 {
            let len = (count * size_of::<AtomicU64>() as u64).next_multiple_of(PAGE);
            let at = memory::map_zeros(len, memory::PROT_READ | memory::PROT_WRITE)?;
            table.store(at as *mut AtomicU64, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Returns a word of a table, unless the table is not mapped.
fn word(table: &AtomicPtr<AtomicU64>, index: usize) -> Option<&'static AtomicU64> {
    let table = ptr::NonNull::new(table.load(Ordering::Relaxed))?;
    // SAFETY: `prepare` has mapped as many words as there are functions and tail calls, the tables are never unmapped, and
    // the callers pass indices of these.
    Some(unsafe { table.add(index).as_ref() })
}

/// Returns the word of a function by its index in a module.
fn function(module: &Module, index: usize) -> Option<&'static AtomicU64> {
    if index >= module.functions.len() {
        return None;
    }
    match module.first.checked_sub(LIBRARIES) {
        Some(first) => word(&OF_LIBRARIES, first as usize + index),
        None => word(&PROGRAM, index),
    }
}

/// Returns the word of a tail call by its index in a module.
fn tail(module: &Module, index: usize) -> Option<&'static AtomicU64> {
    match module.first.checked_sub(LIBRARIES) {
        Some(_) => word(&OF_LIBRARIES, FUNCTIONS_MAX as usize + libraries::first_tail(module) + index),
        None => word(&PROGRAM, module.functions.len() + index),
    }
}

/// Returns whether a function of a module is switched off.
fn is_off(module: &Module, index: usize) -> bool {
    function(module, index).is_some_and(|word| word.load(Ordering::Relaxed) & IS_OFF != 0)
}

/// Returns whether the text has the original bytes in place of the patches of a function's hook.
fn is_out(module: &Module, index: usize) -> bool {
    is_off(module, index) && module.functions.get(index).is_some_and(|record| record.flags & SHARED == 0)
}

/// Returns whether the text has the original bytes in place of a patch, because its function is switched off.
pub(crate) fn has_original(module: &Module, patch: &Patch) -> bool {
    let index = (patch.hook as usize).checked_sub(1);
    patch.stays == Stay::Not.code() && index.is_some_and(|index| is_out(module, index))
}

/// Returns whether the patch to which a jump in the arena leads is out of the text, because its function is switched off.
pub(crate) fn is_without_call(module: &Module, jump: &CallJump) -> bool {
    if PROGRAM.load(Ordering::Relaxed).is_null() && OF_LIBRARIES.load(Ordering::Relaxed).is_null() {
        return false;
    }
    let at = (module.arena_lo + u64::from(jump.at)).wrapping_sub(module.base);
    let after = module.functions.partition_point(|record| u64::from(record.thunk) <= at);
    after.checked_sub(1).is_some_and(|index| is_out(module, index))
}

/// Switches functions of a module: those from the one with index `first` on whose bits are set in `choice`. [`prepare`] has
/// been called. The code stays as it is.
pub(crate) fn set(module: &Module, first: usize, choice: &[u64; CHOICE_WORDS], off: bool) {
    for (n, bits) in choice.iter().enumerate().filter(|(_, bits)| **bits != 0) {
        for bit in (0..64).filter(|bit| bits >> bit & 1 != 0) {
            if let Some(word) = function(module, first.saturating_add(64 * n + bit)) {
                let old = word.load(Ordering::Relaxed);
                word.store(if off { old | IS_OFF } else { old & !IS_OFF }, Ordering::Relaxed);
            }
        }
    }
}

/// Switches those functions of a library off that its plan says. The code stays as it is. Returns whether there are any.
///
/// # Errors
/// Returns the errno of the failed system call.
pub(crate) fn set_as_planned(module: &Module) -> Result<bool, i32> {
    let is_chosen =
        |index: &usize| module.functions.get(*index).is_some_and(|record| record.flags & OFF != 0);
    let chosen = || (0..module.functions.len()).filter(is_chosen);
    if chosen().next().is_none() {
        return Ok(false);
    }
    prepare()?;
    chosen().filter_map(|index| function(module, index)).for_each(|word| {
        word.fetch_or(IS_OFF, Ordering::Relaxed);
    });
    Ok(true)
}

/// Writes the jumps at the starts of thunks, or what was there before, as the functions of a module are switched.
///
/// # Safety
/// The module's arena is writable, and no thread is at the first bytes of a thunk other than the first one.
pub(crate) unsafe fn write_bypasses(module: &Module) {
    let body = |index: usize| {
        let record = module.functions.get(index)?;
        Some(module.base.wrapping_add(u64::from(record.body) + u64::from(record.begin_len(module.outer))))
    };
    for (index, record) in module.functions.iter().enumerate() {
        let Some(word) = function(module, index) else { continue };
        let goal = if is_off(module, index) { body(index) } else { None };
        // SAFETY: a thunk is in the arena, which is writable, and longer than a jump.
        unsafe { bypass(word, module.base.wrapping_add(record.thunk.into()), goal) };
    }
    for (index, record) in module.tails.iter().enumerate() {
        let Some(word) = tail(module, index) else { continue };
        let [caller, callee] = [record.caller, record.callee].map(|n| n.wrapping_sub(module.first) as usize);
        let goal = if is_off(module, callee) {
            body(callee)
        } else if is_off(module, caller) {
            module.functions.get(callee).map(|record| module.base.wrapping_add(record.thunk.into()))
        } else {
            None
        };
        // SAFETY: as above.
        unsafe { bypass(word, module.base.wrapping_add(record.again.into()), goal) };
    }
}

/// Makes the code at `at` begin with a jump to `goal`, or as it was planned.
///
/// # Safety
/// The code at the address is writable, and no thread is inside of its first bytes.
unsafe fn bypass(word: &AtomicU64, at: u64, goal: Option<u64>) {
    let old = word.load(Ordering::Relaxed);
    if old & IS_BYPASSED == 0 && goal.is_none() {
        return;
    }
    // SAFETY: the caller has promised that these bytes can be written. Any bytes are an array.
    let code = unsafe { &mut *(at as *mut [u8; JUMP]) };
    let mut kept = [0; 8];
    if old & IS_BYPASSED != 0 {
        kept.copy_from_slice(&(old & !(IS_OFF | IS_BYPASSED)).to_le_bytes());
    } else {
        kept[..JUMP].copy_from_slice(code);
    }
    let Some(goal) = goal else {
        code.copy_from_slice(&kept[..JUMP]);
        word.store(old & IS_OFF, Ordering::Relaxed);
        return;
    };
    let displacement = goal.wrapping_sub(at + JUMP as u64) as u32;
    code[0] = 0xe9;
    code[1..].copy_from_slice(&displacement.to_le_bytes());
    word.store(old & IS_OFF | IS_BYPASSED | u64::from_le_bytes(kept), Ordering::Relaxed);
}
