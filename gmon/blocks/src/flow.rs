//! Which basic blocks of a function exclude each other, as far as direct branches show.

use iced_x86::FlowControl;

use crate::counts::BlockCounts;
use gprofinject_image::instructions::Code;
use gprofinject_image::x86::{goes_on, is_call};

/// The number of steps for one function, after which blocks are treated as not excluding each other. Only
/// generated functions of tens of thousands of basic blocks need more.
const MAX_STEPS: usize = 20_000_000;

/// The basic blocks of one function and of its `.cold` part, and the edges between them that lead forward.
/// Edges back, around a loop, are left out.
pub(crate) struct Flow {
    blocks: Vec<BlockCounts>,
    /// For each block, the blocks that may come next.
    next: Vec<Vec<usize>>,
    /// The rank of each block, which decreases along every edge.
    rank: Vec<usize>,
    /// The search by which a block was visited last.
    visited: Vec<usize>,
    searches: usize,
    steps: usize,
}

impl Flow {
    /// Analyses a function. `blocks` is sorted by address, without overlap; the function is entered at
    /// `entry`.
    pub(crate) fn new(code: &Code, blocks: Vec<BlockCounts>, entry: u64) -> Flow {
        let at = |address: u64| blocks.binary_search_by_key(&address, |block| block.start).ok();
        let mut next = vec![Vec::new(); blocks.len()];
        let mut entered = vec![false; blocks.len()];
        let mut anywhere = Vec::new();
        // Executions that can only have come by edges other than a call's return, and the returns of calls.
        let mut certain = vec![0u64; blocks.len()];
        let mut returns = Vec::new();
        for (index, block) in blocks.iter().enumerate() {
            let within = code.instructions(block.start).take_while(|i| i.next_ip() <= block.end);
            let Some(last) = within.last() else { continue };
            let target = match last.flow_control() {
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    at(last.near_branch_target())
                }
                FlowControl::IndirectBranch => {
                    anywhere.push(index);
                    None
                }
                _ => None,
            };
            // A call that returns continues here.
            let behind = (goes_on(&last) || is_call(&last)).then(|| at(block.end)).flatten();
            for to in [target, behind].into_iter().flatten() {
                // Control has never passed an edge to or from a block that never ran.
                if block.count > 0 && blocks[to].count > 0 {
                    next[index].push(to);
                }
                entered[to] = true;
            }
            match (target, behind) {
                (None, Some(to)) if is_call(&last) => returns.push((index, to)),
                (Some(to), None) | (None, Some(to)) => certain[to] = certain[to].saturating_add(block.count),
                _ => {}
            }
        }
        // A call that never returns may be followed by anything. For example, a call of _Unwind_Resume may
        // precede the function's end.
        for (from, to) in returns {
            if certain[to] >= blocks[to].count {
                next[from].retain(|&other| other != to);
            }
        }
        // A jump through a table leads to the blocks to which nothing else leads.
        let others: Vec<usize> = (0..blocks.len())
            .filter(|&to| !entered[to] && blocks[to].count > 0 && blocks[to].start != entry)
            .collect();
        for index in anywhere {
            next[index].extend(&others);
        }
        let first = at(entry);
        let visited = vec![0; blocks.len()];
        let rank = ranks(&next, first);
        for (index, next) in next.iter_mut().enumerate() {
            next.retain(|&to| rank[to] < rank[index]);
        }
        Flow { blocks, next, rank, visited, searches: 0, steps: 0 }
    }

    fn block_at(&self, address: u64) -> Option<usize> {
        let index = self.blocks.partition_point(|block| block.start <= address).checked_sub(1)?;
        (address < self.blocks[index].end).then_some(index)
    }

    /// Returns how often control came to a set of places, each within a block and with its count. If one
    /// place leads to another, the higher count is taken; if neither leads to the other, both are added.
    pub(crate) fn executions(&mut self, places: &[(u64, u64)]) -> u64 {
        let mut ran: Vec<(Option<usize>, u64)> = places
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|&(at, count)| (self.block_at(at), count))
            .collect();
        if ran.len() < 2 {
            return ran.first().map_or(0, |&(_, count)| count);
        }
        ran.sort_by_key(|&(block, _)| std::cmp::Reverse(block.map_or(0, |block| self.rank[block])));
        let lowest =
            ran.iter().filter_map(|&(block, _)| block).map(|block| self.rank[block]).min().unwrap_or(0);
        // The group of each place: the index of its first member.
        let mut group: Vec<usize> = (0..ran.len()).collect();
        for from in 0..ran.len() {
            let reached = ran[from].0.map(|block| self.reach(block, lowest));
            for to in 0..ran.len() {
                let meets = match (&reached, ran[to].0) {
                    (Some(search), Some(block)) => self.visited[block] == *search,
                    _ => true,
                };
                let (kept, gone) = (group[from].min(group[to]), group[from].max(group[to]));
                if meets && kept != gone {
                    group.iter_mut().filter(|group| **group == gone).for_each(|group| *group = kept);
                }
            }
        }
        let mut most = vec![0; ran.len()];
        for (index, &(_, count)) in ran.iter().enumerate() {
            most[group[index]] = count.max(most[group[index]]);
        }
        most.into_iter().fold(0, u64::saturating_add)
    }

    /// Marks everything to which a block leads, and the block itself, with the number that is returned.
    fn reach(&mut self, from: usize, lowest: usize) -> usize {
        self.searches += 1;
        let search = self.searches;
        if self.steps > MAX_STEPS {
            self.visited.fill(search);
            return search;
        }
        let mut left = vec![from];
        self.visited[from] = search;
        while let Some(block) = left.pop() {
            self.steps += 1;
            for &to in &self.next[block] {
                if self.visited[to] != search && self.rank[to] >= lowest {
                    self.visited[to] = search;
                    left.push(to);
                }
            }
        }
        search
    }
}

/// Returns the order in which a depth-first search leaves the blocks. An edge to a block of the same or a
/// higher rank leads back.
fn ranks(next: &[Vec<usize>], first: Option<usize>) -> Vec<usize> {
    let mut rank = vec![usize::MAX; next.len()];
    let mut seen = vec![false; next.len()];
    let mut ends = 0;
    for root in first.into_iter().chain(0..next.len()) {
        if std::mem::replace(&mut seen[root], true) {
            continue;
        }
        let mut path = vec![(root, 0)];
        while let Some((block, tried)) = path.last_mut() {
            if let Some(&to) = next[*block].get(*tried) {
                *tried += 1;
                if !std::mem::replace(&mut seen[to], true) {
                    path.push((to, 0));
                }
            } else {
                rank[*block] = ends;
                ends += 1;
                path.pop();
            }
        }
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;
    use gmon::{Block, Profile};

    fn flow(bytes: &[u8], records: &[(u64, u64)]) -> Flow {
        let code = Code::of_bytes(&[(0x1000, "f", bytes)]);
        let mut profile = Profile::new(gmon::Format::LITTLE_64);
        profile.blocks = records.iter().map(|&(addr, count)| Block { addr, count }).collect();
        let report = Report::new(&profile, &code, None);
        let blocks = report.functions[0].blocks.clone().expect("records");
        assert_eq!(blocks.len(), records.len());
        Flow::new(&code, blocks, 0x1000)
    }

    #[test]
    fn a_loop_runs_as_often_as_its_test() {
        let bytes = [
            0xeb, 0x02, // 1000: jmp 1004
            0xff, 0xc0, // 1002: inc eax
            0x39, 0xd0, // 1004: cmp eax, edx
            0x75, 0xfa, // 1006: jne 1002
            0xc3, // 1008: ret
        ];
        let mut flow = flow(&bytes, &[(0x1000, 1), (0x1002, 50), (0x1004, 51), (0x1008, 1)]);
        assert_eq!(flow.executions(&[(0x1000, 1), (0x1002, 50), (0x1006, 51)]), 51);
        assert_eq!(flow.executions(&[(0x1000, 1), (0x1008, 1)]), 1);
        assert_eq!(flow.executions(&[]), 0);
    }

    /// Two ways out of a function that both clean up, the second one by a call that never returns.
    #[test]
    fn ways_that_exclude_each_other_add_up() {
        let bytes = [
            0x85, 0xff, // 1000: test edi, edi
            0x74, 0x07, // 1002: je 100b
            0xe8, 0, 0, 0, 0, // 1004: call
            0xeb, 0x0a, // 1009: jmp 1015
            0xe8, 0, 0, 0, 0, // 100b: call
            0xe8, 0, 0, 0, 0,    // 1010: call, which never returns
            0xc3, // 1015: ret
        ];
        let records = [(0x1000, 10), (0x1004, 6), (0x1009, 6), (0x100b, 4), (0x1010, 4), (0x1015, 6)];
        let mut never = flow(&bytes, &records);
        assert_eq!(never.executions(&[(0x1004, 6), (0x100b, 4)]), 10);
        assert_eq!(never.executions(&[(0x1000, 10), (0x1004, 6), (0x100b, 4)]), 10);
        assert_eq!(never.executions(&[(0x1009, 6), (0x1010, 4), (0x1015, 6)]), 10);
        // If the call returns, both have the same way out.
        let records = [(0x1000, 10), (0x1004, 6), (0x1009, 6), (0x100b, 4), (0x1010, 4), (0x1015, 10)];
        let mut returns = flow(&bytes, &records);
        assert_eq!(returns.executions(&[(0x1009, 6), (0x1010, 4), (0x1015, 10)]), 10);
        assert_eq!(returns.executions(&[(0x1010, 4), (0x1015, 10)]), 10);
    }
}
