//! The processes of a run as a tree: whose children they are, and what each has done.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use gmon_run::{Ending, Process};

use crate::model::Run;

/// A process in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its index in [`Run::processes`].
    pub process: usize,
    /// The number of its ancestors in the tree.
    pub depth: usize,
}

/// The processes of a run, each behind its parent, siblings in the order in which they began, and those of one run before those of the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    pub branches: Vec<Branch>,
    /// The number of processes that are not in it.
    pub left_out: u64,
}

/// Whether somebody has seen when the process began and ended.
pub fn is_seen(process: &Process) -> bool {
    process.end_us > 0
}

/// Returns how long a process took, in nanoseconds, if that is known.
pub fn duration_ns(process: &Process) -> Option<u64> {
    is_seen(process).then(|| process.end_us.saturating_sub(process.begin_us).saturating_mul(1000))
}

/// Returns how a process has ended, in words, if it has failed: `exit status 3`, `signal 9`.
pub fn failure(process: &Process) -> Option<String> {
    match process.ending {
        Ending::Unknown | Ending::Exited(0) => None,
        Ending::Exited(status) => Some(format!("exit status {status}")),
        Ending::Killed(signal) => Some(format!("signal {signal}")),
    }
}

impl Run {
    /// Returns the time of a process's functions themselves, measured or by samples, in nanoseconds.
    pub fn self_ns_of(&self, process: &Process) -> u64 {
        match self.time.is_measured() {
            true => process.self_ns,
            false => process.samples.saturating_mul(self.sample_period_ns),
        }
    }

    /// Returns at most so many processes as a tree.
    pub fn process_tree(&self, most: usize) -> Tree {
        Tree::of(&self.processes, self.processes_left_out, most)
    }
}

impl Tree {
    /// Returns the tree of at most so many of these processes, those with the most time. `left_out` is the number of those that are not among
    /// them. A process whose parent is not in the tree stands behind the nearest ancestor that is.
    pub fn of(processes: &[Process], left_out: u64, most: usize) -> Tree {
        let parents = parents(processes);
        let mut order: Vec<usize> = (0..processes.len()).collect();
        let more = order.len().saturating_sub(most);
        if more > 0 {
            order.sort_by_key(|&index| {
                let process = &processes[index];
                Reverse((process.self_ns, process.samples, process.calls, duration_ns(process)))
            });
            order.truncate(most);
        }
        let shown: HashSet<usize> = order.iter().copied().collect();
        let nearest = |of: usize| {
            let mut ancestor = parents[of];
            while let Some(index) = ancestor.filter(|index| !shown.contains(index)) {
                ancestor = parents[index];
            }
            ancestor
        };
        order.sort_by_key(|&index| (processes[index].run, processes[index].begin_us, index));
        let mut children: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
        for &index in &order {
            children.entry(nearest(index)).or_default().push(index);
        }
        let mut branches = Vec::with_capacity(order.len());
        // The last one is the next one.
        let mut open: Vec<Branch> = Vec::new();
        let mut add = |open: &mut Vec<Branch>, parent, depth| {
            let of: Vec<usize> = children.remove(&parent).unwrap_or_default();
            open.extend(of.into_iter().rev().map(|process| Branch { process, depth }));
        };
        add(&mut open, None, 0);
        while let Some(branch) = open.pop() {
            branches.push(branch);
            add(&mut open, Some(branch.process), branch.depth + 1);
        }
        Tree { branches, left_out: left_out.saturating_add(more as u64) }
    }
}

/// Returns the index of each process's parent, if it is among them: of several with that number, the last one that had begun before. A process
/// that executes another program stands behind what it was before.
fn parents(processes: &[Process]) -> Vec<Option<usize>> {
    let mut order: Vec<usize> = (0..processes.len()).collect();
    order.sort_by_key(|&index| (processes[index].begin_us, index));
    let mut last: HashMap<(u64, u32), usize> = HashMap::new();
    let mut parents = vec![None; processes.len()];
    for index in order {
        let process = &processes[index];
        let of = |pid: u32| last.get(&(process.run, pid)).copied().filter(|_| pid > 0);
        let before = of(process.pid).filter(|&before| {
            let before = &processes[before];
            before.ending == Ending::Unknown && before.parent == process.parent && is_seen(before)
        });
        parents[index] = before.or_else(|| of(process.parent));
        last.insert((process.run, process.pid), index);
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, begin_us: u64, samples: u64) -> Process {
        Process { pid, parent, begin_us, end_us: begin_us + 10, samples, ..Process::default() }
    }

    fn shown(run: &Run, most: usize) -> (Vec<(u32, usize)>, u64) {
        let tree = run.process_tree(most);
        let pids = tree.branches.iter().map(|branch| (run.processes[branch.process].pid, branch.depth));
        (pids.collect(), tree.left_out)
    }

    #[test]
    fn children_stand_behind_their_parents() {
        let processes = vec![
            process(9, 7, 6, 1),
            process(5, 1, 0, 1),
            process(7, 5, 4, 9),
            // The same process as another program.
            process(7, 5, 5, 3),
            process(6, 5, 2, 5),
            // Of another run, in which 5 is nobody.
            Process { run: 3, ..process(8, 5, 3, 2) },
        ];
        let run = Run { processes, sample_period_ns: 10, processes_left_out: 4, ..Run::default() };
        assert_eq!(shown(&run, 99), (vec![(5, 0), (6, 1), (7, 1), (7, 2), (9, 3), (8, 0)], 4));
        // Those with the most time, and whose ancestors they are.
        assert_eq!(shown(&run, 3), (vec![(6, 0), (7, 0), (7, 1)], 7));
        assert_eq!(shown(&run, 0), (vec![], 10));
    }

    #[test]
    fn a_number_is_that_of_the_last_process_that_had_it() {
        let mut reused = process(7, 5, 8, 1);
        reused.ending = Ending::Exited(0);
        let first = Process { ending: Ending::Exited(1), ..process(7, 5, 2, 1) };
        let processes = vec![process(5, 1, 0, 1), first, process(8, 7, 3, 1), reused, process(9, 7, 9, 1)];
        let run = Run { processes, ..Run::default() };
        assert_eq!(shown(&run, 99).0, [(5, 0), (7, 1), (8, 2), (7, 1), (9, 2)]);
    }

    #[test]
    fn no_number_makes_a_circle() {
        // Each is its own parent, or the other's.
        let processes =
            vec![process(1, 1, 0, 0), process(2, 3, 1, 0), process(3, 2, 1, 0), Process::default()];
        let run = Run { processes, ..Run::default() };
        assert_eq!(shown(&run, 99).0.len(), 4);
        let chain = (0..50_000).map(|at| process(at + 1, at, u64::from(at), 1)).collect();
        let run = Run { processes: chain, ..Run::default() };
        assert_eq!(shown(&run, usize::MAX).0.last(), Some(&(50_000, 49_999)));
        assert_eq!(shown(&run, 100).0.len(), 100);
    }

    #[test]
    fn endings_in_words() {
        let ended = |ending| failure(&Process { ending, ..Process::default() });
        assert_eq!([ended(Ending::Unknown), ended(Ending::Exited(0))], [None, None]);
        assert_eq!(ended(Ending::Exited(3)).as_deref(), Some("exit status 3"));
        assert_eq!(ended(Ending::Killed(9)).as_deref(), Some("signal 9"));
        assert_eq!(duration_ns(&Process::default()), None);
        assert_eq!(duration_ns(&process(1, 0, 5, 0)), Some(10_000));
    }
}
