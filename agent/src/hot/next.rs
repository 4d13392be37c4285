//! The place at which a thunk continues after a slow path.

use crate::program::agent::Agent;
use gprofinject_abi::plan::{CALL_LEN, FunctionRecord};

/// The place at which a thunk continues.
#[repr(C)]
pub(crate) struct Next {
    /// The runtime address. If `arcs::known` returns 0, the gate calls `arcs::rare` instead.
    pub(crate) target: u64,
    /// [`RESUME`], [`BODY`] or [`CALL`].
    pub(crate) way: u64,
}

/// The thunk continues after its count: rsp = CFA, all registers except rax are unchanged.
pub(crate) const RESUME: u64 = 0;
/// The function's body runs as if the function were not hooked: rsp = CFA - 8.
pub(crate) const BODY: u64 = 1;
/// The thunk continues at its `call`, because the frame's cell is already filled: rsp = CFA, all registers
/// are unchanged.
pub(crate) const CALL: u64 = 2;

impl Next {
    pub(crate) const RARE: Next = Next { target: 0, way: RESUME };

    pub(crate) fn resume(agent: &Agent, record: &FunctionRecord) -> Next {
        Next { target: agent.arena_lo.wrapping_add(record.resume.into()), way: RESUME }
    }

    pub(crate) fn body(agent: &Agent, record: &FunctionRecord) -> Next {
        Next { target: agent.arena_lo.wrapping_add(record.body.into()), way: BODY }
    }

    pub(crate) fn call(agent: &Agent, record: &FunctionRecord) -> Next {
        Next { target: agent.arena_lo.wrapping_add(u64::from(record.exit - CALL_LEN)), way: CALL }
    }
}
