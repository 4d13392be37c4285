//! Where a thunk goes on when a slow path is done.

use crate::program::agent::Agent;
use gprofinject_abi::plan::{CALL_LEN, FunctionRecord};

/// Where a thunk goes on.
#[repr(C)]
pub(crate) struct Next {
    /// Runtime address; 0 from `arcs::known`: ask `arcs::rare`.
    pub(crate) target: u64,
    /// [`RESUME`], [`BODY`] or [`CALL`].
    pub(crate) way: u64,
}

/// The thunk goes on behind its count: rsp = CFA, all registers as they were but rax.
pub(crate) const RESUME: u64 = 0;
/// The function's body is entered as if nothing were hooked: rsp = CFA - 8.
pub(crate) const BODY: u64 = 1;
/// The thunk goes on with its `call`, because the frame's cell is filled: rsp = CFA, all registers as they were.
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
