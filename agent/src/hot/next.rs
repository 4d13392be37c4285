//! Where a thunk continues after a slow path.

use crate::program::agent::Agent;
use gprofinject_abi::plan::{CALL_LEN, FunctionRecord, ISLAND, NOTE};

/// Where a thunk continues.
#[repr(C)]
pub(crate) struct Next {
    /// The runtime address, or 0 if `arcs::known` cannot answer and `arcs::rare` must be called.
    pub(crate) target: u64,
    /// [`RESUME`], [`BODY`] or [`CALL`].
    pub(crate) way: u64,
}

/// The thunk continues after its count: rsp = CFA, all registers except rax are unchanged.
pub(crate) const RESUME: u64 = 0;
/// The function's body is entered as if it were not hooked: rsp = CFA - 8.
pub(crate) const BODY: u64 = 1;
/// The thunk continues with its `call`, because the frame's cell is filled: rsp = CFA, all registers are unchanged.
pub(crate) const CALL: u64 = 2;

impl Next {
    pub(crate) const RARE: Next = Next { target: 0, way: RESUME };

    pub(crate) fn resume(agent: &Agent, number: u32, record: &FunctionRecord) -> Next {
        Next { target: agent.base(number).wrapping_add(record.resume.into()), way: RESUME }
    }

    /// Continues as if the function were not hooked. Such a call is not measured.
    pub(crate) fn body(agent: &Agent, number: u32, record: &FunctionRecord) -> Next {
        let begin = u64::from(record.begin_len(agent.program.outer));
        Next { target: agent.base(number).wrapping_add(u64::from(record.body) + begin), way: BODY }
    }

    /// Continues in a frame that another function has handed over, whose exit label is in the return slot.
    pub(crate) fn handed_over(agent: &Agent, number: u32, record: &FunctionRecord) -> Next {
        Next { target: agent.base(number).wrapping_add(record.body.into()), way: BODY }
    }

    /// Continues on the slow path for a stack pointer outside of the thread's window, which fills the cell of a function that
    /// has one only if unhooked code calls it. The way there is the second island, behind the thunk's exit.
    pub(crate) fn outside(agent: &Agent, number: u32, record: &FunctionRecord) -> Next {
        let island = record.body - NOTE - 2 * ISLAND;
        Next { target: agent.base(number).wrapping_add(island.into()), way: CALL }
    }

    pub(crate) fn call(agent: &Agent, number: u32, record: &FunctionRecord) -> Next {
        Next { target: agent.base(number).wrapping_add(u64::from(record.exit - CALL_LEN)), way: CALL }
    }
}
