//! The function that a signal has interrupted.
//!
//! A signal handler is charged to the newest live frame, except where the interrupted program counter itself shows the
//! function: a function that needs no cell is in no frame, and while one of its callees is on its way through a thunk or
//! a slow path, that callee is in none either. So a thread that is in the thunk of a function counts as being in this
//! function, and one that is in a slow path as being in the caller, if that needs no cell.
//!
//! All of this is integer code; see [`crate::hot::gate`].
#![allow(unsafe_code, reason = "the kernel's description of an interrupted thread is read")]

use crate::hot::cells::existing;
use crate::hot::gate;
use crate::os::own_frames::{self, Frame};
use crate::program::agent::Agent;
use crate::program::libraries;
use core::sync::atomic::Ordering;
use gprofinject_abi::plan::NEEDS_NO_CELL;

/// Returns the registers of the code that was interrupted by a signal handler whose frame has this CFA.
pub(crate) fn at(cfa: u64) -> Frame {
    /// Offsets in struct ucontext: flags, link, stack (40 bytes), then registers 10, 15 and 16.
    const REGISTERS: u64 = 40;
    const RBP: u64 = REGISTERS + 10 * 8;
    const RSP: u64 = REGISTERS + 15 * 8;
    const RIP: u64 = REGISTERS + 16 * 8;
    // SAFETY: the frame is a signal handler's, as its return address says, and the kernel has put a struct ucontext
    // where a caller's frame would be (struct rt_sigframe).
    // Two words side by side would be copied by a vector register, if they were not read one by one.
    let register = |offset: u64| unsafe { ((cfa + offset) as *const u64).read_volatile() };
    Frame { pc: register(RIP), sp: register(RSP), base: register(RBP) }
}

/// Returns the function that was interrupted by a signal handler whose frame has this CFA, if the program counter shows
/// it: one that needs no cell, or one that is just being entered or left.
pub(crate) fn function(agent: &Agent, cfa: u64) -> Option<u32> {
    let mut frame = at(cfa);
    let library = libraries::with_arena(frame.pc).or_else(|| libraries::with_return(frame.pc));
    let module = library.unwrap_or(&agent.program);
    if module.is_exit_jump(frame.pc) {
        return in_call(agent, frame.sp);
    }
    if let Some(number) = module.running_at(frame.pc) {
        return Some(number);
    }
    let cfa = call_of(&mut frame)?;
    in_call(agent, cfa)
}

/// Returns the CFA of the call or return for which the agent's code runs, if it runs for one.
fn call_of(frame: &mut Frame) -> Option<u64> {
    /// More frames than a slow path has.
    const MOST: u32 = 64;
    let mut is_suspended = false;
    for _ in 0..MOST {
        if !own_frames::is_own(frame.pc) {
            return None;
        }
        let is_gate = gate::contains(frame.pc);
        let cfa = own_frames::leave(frame, is_suspended)?;
        if is_gate {
            return Some(cfa);
        }
        is_suspended = true;
    }
    None
}

/// Returns the function that makes the call with this CFA, or that returns from it, if it is in no live frame.
fn in_call(agent: &Agent, cfa: u64) -> Option<u32> {
    // SAFETY: the thread is in a slow path for a call with this CFA, whose return slot is on its stack.
    let slot = unsafe { *((cfa - 8) as *const u64) };
    if agent.in_thunks(slot) {
        // A return, or a jump out of a function: the frame is still that of the function in its cell.
        return existing(cfa).map(|cell| cell.function().load(Ordering::Relaxed));
    }
    let module =
        if agent.program.in_text(slot) { Some(&agent.program) } else { libraries::with_return(slot) }?;
    let address = module.original(slot).wrapping_sub(module.bias).wrapping_sub(1);
    let number = module.function_at(address)?;
    (agent.function(number).flags & NEEDS_NO_CELL != 0).then_some(number)
}
