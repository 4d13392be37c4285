//! The function that a signal has interrupted.
//!
//! A signal handler is charged to the newest live frame, except where the interrupted program counter itself shows the
//! function: a function that needs no cell is in no frame, and while one of its callees is on its way through a thunk or
//! a slow path, that callee is in none either. So a thread that is in the thunk of a function counts as being in this
//! function, and one that is in a slow path as being in the caller, if that needs no cell.
//!
//! All of this is integer code; see [`crate::hot::gate`].
#![allow(unsafe_code, reason = "the kernel's description of an interrupted thread is read")]

use crate::hot::cells::{self, existing};
use crate::hot::gate_code;
use crate::os::own_frames::{self, Frame};
use crate::program::agent::Agent;
use crate::program::libraries;

/// Offsets in struct ucontext: flags, link, stack (40 bytes), then registers 10, 13, 15 and 16.
const REGISTERS: u64 = 40;
const RBP: u64 = REGISTERS + 10 * 8;
const RAX: u64 = REGISTERS + 13 * 8;
const RSP: u64 = REGISTERS + 15 * 8;
const RIP: u64 = REGISTERS + 16 * 8;

/// Returns a register of the code that was interrupted by a signal handler whose frame has this CFA.
fn register(handler: u64, offset: u64) -> u64 {
    // SAFETY: the frame is a signal handler's, as its return address says, and the kernel has put a struct ucontext
    // where a caller's frame would be (struct rt_sigframe). Two words side by side would be copied by a vector register, if
    // they were not read one by one.
    unsafe { ((handler + offset) as *const u64).read_volatile() }
}

/// Returns the registers of the code that was interrupted by a signal handler whose frame has this CFA.
pub(crate) fn at(handler: u64) -> Frame {
    Frame { pc: register(handler, RIP), sp: register(handler, RSP), base: register(handler, RBP) }
}

/// Returns the function that was interrupted by a signal handler whose frame has this CFA, if the program counter shows
/// it: one that needs no cell, or one that is just being entered or left.
pub(crate) fn function(agent: &Agent, handler: u64) -> Option<u32> {
    let mut frame = at(handler);
    let library = libraries::with_arena(frame.pc).or_else(|| libraries::with_return(frame.pc));
    let module = library.unwrap_or(&agent.program);
    if module.is_exit_jump(frame.pc) {
        return in_call(agent, frame.sp);
    }
    if let Some(number) = module.running_at(frame.pc) {
        return Some(number);
    }
    let (gate, cfa) = call_of(&mut frame)?;
    if gate_code::is_tail(gate.pc) { jumped_to(agent, handler, &gate, cfa) } else { in_call(agent, cfa) }
}

/// Returns the function to which a jump leads that is counted for the first time, if it or the function that jumps needs no
/// cell. `gate` is the frame
/// of the gate, whose CFA is `cfa`.
fn jumped_to(agent: &Agent, handler: u64, gate: &Frame, cfa: u64) -> Option<u32> {
    let is_suspended = register(handler, RIP) != gate.pc;
    let rax = register(handler, RAX);
    // The gate has the index of the jump in rax, then also in its frame, and afterwards the address at which the thunk
    // continues in rax, then also in the place from which it loads the address at its end.
    let index = match (is_suspended, gate_code::is_tail_called(gate.pc)) {
        // SAFETY: `save_registers!` has saved rax there.
        (true, _) => unsafe { *((gate.base - 8) as *const u32) },
        (false, false) => rax as u32,
        (false, true) => {
            let running = |pc: u64| {
                let library = libraries::with_arena(pc);
                library.unwrap_or(&agent.program).running_at(pc)
            };
            // SAFETY: the thread is in the gate, whose frame this is.
            return running(rax).or_else(|| running(unsafe { *((cfa - 32) as *const u64) }));
        }
    };
    let is_library = gate_code::is_library(gate.pc);
    let tail = if is_library { libraries::tail(index) } else { agent.program.tails.get(index as usize)? };
    let is_shown = agent.function(tail.callee).is_shown() || tail.fills != 0;
    is_shown.then_some(tail.callee)
}

/// Returns the frame of the gate in which the thread is, and the CFA of the call or return for which it is there. The
/// frame becomes that of its caller.
fn call_of(frame: &mut Frame) -> Option<(Frame, u64)> {
    /// More frames than a slow path has.
    const MOST: u32 = 64;
    let mut is_suspended = false;
    for _ in 0..MOST {
        if !own_frames::is_own(frame.pc) {
            return None;
        }
        let (pc, sp, base) = (frame.pc, frame.sp, frame.base);
        let cfa = own_frames::leave(frame, is_suspended)?;
        if gate_code::contains(pc) {
            return Some((Frame { pc, sp, base }, cfa));
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
        return existing(cfa).map(|cell| cells::function(cell, cfa, slot));
    }
    let module =
        if agent.program.in_text(slot) { Some(&agent.program) } else { libraries::with_return(slot) }?;
    let address = module.original(slot).wrapping_sub(module.bias).wrapping_sub(1);
    let number = module.function_at(address)?;
    agent.function(number).is_shown().then_some(number)
}
