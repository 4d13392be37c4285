//! The records of arcs and functions, and the nodes of the calling-context tree (`gprofinject --paths`).
#![allow(unsafe_code, reason = "records are places in a thread block")]

use crate::hot::times::area;
use crate::hot::times::table::{self, ARCS, Entry, FUNCTIONS, RESTS};
use crate::program::agent::Agent;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gprofinject_abi::region::NO_FUNCTION;
use gprofinject_abi::shared::{ArcTimesRef, BlockRef, FunctionTimesRef, OpenCallRef, PathNodeRef};
use gprofinject_abi::times::{
    ArcTimes, BEFORE_NO_CALL, CONTEXT, FunctionTimes, Kind, NO_CALL, REST, UNIT, bucket,
};

/// Returns the record at an address that a thread block's records contain, or `None` if it is 0.
pub(crate) fn arc(address: u64) -> Option<ArcTimesRef> {
    // SAFETY: addresses in a thread block's records point to other records of that block, which stay mapped and are accessed only
    // by these types and the gates.
    unsafe { ArcTimesRef::at(address) }
}

/// Returns the function record at such an address, or `None` if it is 0.
pub(crate) fn function(address: u64) -> Option<FunctionTimesRef> {
    // SAFETY: as in `arc`.
    unsafe { FunctionTimesRef::at(address) }
}

/// Returns the node at such an address, or `None` if it is 0.
pub(crate) fn node(address: u64) -> Option<PathNodeRef> {
    // SAFETY: as in `arc`.
    unsafe { PathNodeRef::at(address) }
}

/// Applies `change` to the counts of open calls in the records of a call's arc and function.
pub(crate) fn of_open(call: OpenCallRef, change: impl Fn(&AtomicU32) -> u32) {
    if let Some(arc) = arc(call.arc().load(Ordering::Relaxed)) {
        change(arc.open());
        if let Some(function) = function(arc.function().load(Ordering::Relaxed)) {
            change(function.open());
        }
    }
}

/// Returns the records for a call of `callee` by `caller`, which is an open call or a root. Makes the records if they do not exist yet.
/// Returns `None` if there is no room for them.
pub(crate) fn of_call(agent: &Agent, block: BlockRef, caller: OpenCallRef, callee: u32) -> Option<Entry> {
    let times = block.times();
    let context = caller.context().load(Ordering::Relaxed);
    if let Some(entry) = table::find(times, context, callee) {
        return Some(entry);
    }
    let number = arc(caller.arc().load(Ordering::Relaxed))
        .map_or(NO_FUNCTION, |arc| arc.callee().load(Ordering::Relaxed));
    if agent.orders.nodes_max == 0 {
        let entry = Entry { arc: make_arc(agent, block, number, callee)?, node: 0 };
        return table::add(times, context, callee, entry).then_some(entry);
    }
    // Several nodes of the tree share one arc, so arcs have table entries of their own.
    let arc_context = number | CONTEXT | ARCS;
    let arc = match table::find(times, arc_context, callee) {
        Some(entry) => entry.arc,
        None => {
            let arc = make_arc(agent, block, number, callee)?;
            if !table::add(times, arc_context, callee, Entry { arc, node: 0 }) {
                return None;
            }
            arc
        }
    };
    let parent = node(caller.node().load(Ordering::Relaxed))?;
    let entry = Entry { arc, node: node_below(agent, block, parent, callee)? };
    table::add(times, context, callee, entry).then_some(entry)
}

/// Makes the record of an arc.
fn make_arc(agent: &Agent, block: BlockRef, caller: u32, callee: u32) -> Option<u64> {
    let times = block.times();
    let function = match table::find(times, FUNCTIONS, callee) {
        Some(entry) => entry.arc,
        None => {
            let address = make_function(agent, block, callee)?;
            if !table::add(times, FUNCTIONS, callee, Entry { arc: address, node: 0 }) {
                return None;
            }
            address
        }
    };
    let address = area::take(agent, block, Kind::Arc, size_of::<ArcTimes>() as u64 / UNIT)?;
    let record = arc(address)?;
    record.min().store(u64::MAX, Ordering::Relaxed);
    record.function().store(function, Ordering::Relaxed);
    record.caller().store(caller, Ordering::Relaxed);
    record.callee().store(callee, Ordering::Relaxed);
    Some(address)
}

/// Makes the record of a function.
fn make_function(agent: &Agent, block: BlockRef, callee: u32) -> Option<u64> {
    let address = area::take(agent, block, Kind::Function, size_of::<FunctionTimes>() as u64 / UNIT)?;
    let record = function(address)?;
    let place = address + offset_of!(FunctionTimes, histogram) as u64 + 8 * bucket(NO_CALL) as u64;
    // SAFETY: the bucket is a part of the record, to which no other code has a reference yet.
    let first = unsafe { AtomicU64::from_ptr(place as *mut u64) };
    first.store(BEFORE_NO_CALL, Ordering::Relaxed);
    record.pending().store(NO_CALL, Ordering::Relaxed);
    record.number().store(callee, Ordering::Relaxed);
    Some(address)
}

/// Returns the node for a call of `callee` by `parent`. Recursive calls share the node of the function's outermost call on the path,
/// unless the user asked for a node for each level of recursion.
fn node_below(agent: &Agent, block: BlockRef, parent: PathNodeRef, callee: u32) -> Option<u64> {
    if parent.function().load(Ordering::Relaxed) == REST {
        return rest(agent, block, callee);
    }
    if agent.orders.unfolded == 0 {
        let mut above = Some(parent);
        while let Some(ancestor) = above {
            if ancestor.function().load(Ordering::Relaxed) == callee {
                return Some(ancestor.address());
            }
            above = node(ancestor.parent_address().load(Ordering::Relaxed));
        }
    }
    let is_full = block.times().nodes().load(Ordering::Relaxed) >= agent.orders.nodes_max.into();
    if is_full { rest(agent, block, callee) } else { make_node(agent, block, Some(parent), callee) }
}

/// Returns the node to which calls of a function are charged when the tree is full. It has no parent. Each function has one of its own, because the
/// arcs of the calls that it makes are found by its node.
fn rest(agent: &Agent, block: BlockRef, callee: u32) -> Option<u64> {
    let times = block.times();
    if let Some(entry) = table::find(times, RESTS, callee) {
        return Some(entry.node);
    }
    let node = make_node(agent, block, None, REST)?;
    table::add(times, RESTS, callee, Entry { arc: 0, node }).then_some(node)
}

/// Makes a node, or a root if `parent` is `None`.
pub(crate) fn make_node(
    agent: &Agent,
    block: BlockRef,
    parent: Option<PathNodeRef>,
    callee: u32,
) -> Option<u64> {
    let address = area::take(agent, block, Kind::Node, 1)?;
    let record = node(address)?;
    let number = block.times().nodes().fetch_add(1, Ordering::Relaxed) + 1;
    if let Some(parent) = parent {
        record.parent().store(parent.number().load(Ordering::Relaxed), Ordering::Relaxed);
        record.parent_address().store(parent.address(), Ordering::Relaxed);
    }
    record.number().store(number as u32, Ordering::Relaxed);
    record.function().store(callee, Ordering::Relaxed);
    Some(address)
}
