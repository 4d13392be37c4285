//! The place of a counter in its basic block: before an instruction where no later instruction needs the
//! flags that the counter changes. `inc` does not change the carry flag; `add`, which advances the clock, does.
//!
//! The analysis goes backwards over the unit. A flag is needed if an instruction reads it, or if a later
//! one reads it before another overwrites it. A return or a jump out of the unit passes no flags on
//! (System V ABI).

use crate::blocks::graph::Graph;
use crate::blocks::steps::{Steps, Way};
use crate::blocks::uncounted::Uncounted;

/// Finds the place for a counter in each basic block. `changed` are the flags that counters change.
///
/// # Errors
///
/// Returns [`Uncounted::NotRelocatable`] if there is no place.
pub(super) fn place(steps: &Steps, graph: &mut Graph, changed: u8) -> Result<(), Uncounted> {
    let live = live_in(steps, graph);
    for b in 0..graph.blocks.len() {
        let mut now = live_out(steps, graph, &live, b);
        graph.blocks[b].leaves_no_flags = now == 0;
        let block = &graph.blocks[b];
        let mut found = None;
        // The first place, but for one between a lock prefix and its instruction.
        let first = block.first + usize::from(block.first > 0 && steps.list[block.first - 1].is_lock);
        for n in (block.first..block.end).rev() {
            let step = &steps.list[n];
            now = now & !step.writes | step.reads;
            if now & changed == 0 && n >= first {
                found = Some(n);
            }
        }
        if first == block.end {
            return Err(Uncounted::NotRelocatable);
        }
        let block = &mut graph.blocks[b];
        block.keeps_flags = found.is_none();
        block.place = found.unwrap_or(first);
    }
    Ok(())
}

/// Returns the flags that are needed after a basic block.
fn live_out(steps: &Steps, graph: &Graph, live: &[u8], b: usize) -> u8 {
    let block = &graph.blocks[b];
    let last = &steps.list[block.end - 1];
    match last.way {
        Way::Return => 0,
        _ => graph.successors(b).map(|s| live[s]).fold(0, |a, b| a | b),
    }
}

/// Returns the flags that are needed at the start of each basic block.
fn live_in(steps: &Steps, graph: &Graph) -> Vec<u8> {
    let mut live = vec![0; graph.blocks.len()];
    loop {
        let mut changed = false;
        for b in (0..graph.blocks.len()).rev() {
            let mut now = live_out(steps, graph, &live, b);
            for step in steps.list[graph.blocks[b].first..graph.blocks[b].end].iter().rev() {
                now = now & !step.writes | step.reads;
            }
            changed |= live[b] != now;
            live[b] = now;
        }
        if !changed {
            return live;
        }
    }
}
