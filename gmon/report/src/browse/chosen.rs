//! The part of a recording that is of one program or one thread.

use gmon_export::Time;
use gmon_export::processes::{Branch, Tree, duration_ns, failure};
use gmon_run::{ClockSource, Hits, Recording};

use crate::cli::text::plain;
use crate::cli::units::{amount, duration};

/// What is shown of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Chosen {
    #[default]
    All,
    /// The program with this index in the whole recording.
    Program(usize),
    /// The thread with this index in the whole recording.
    Thread(usize),
}

/// A program, a process or a thread that can be chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) chosen: Chosen,
    pub(crate) name: String,
    /// The number of processes, or of the process and the thread.
    pub(crate) which: String,
    /// The counted calls, if they are known by program or by thread.
    pub(crate) calls: Option<u64>,
    /// The samples of CPU time, if they are known.
    pub(crate) samples: Option<u64>,
    /// The length of the life of a process or thread as text.
    pub(crate) life: String,
    /// Whether it is only a part of what it chooses: a process of a program.
    pub(crate) is_part: bool,
}

/// Returns what can be chosen: everything, then each program, the processes, and each thread.
pub(crate) fn choices(recording: &Recording) -> Vec<Choice> {
    let mut calls = vec![0_u64; recording.programs.len()];
    let mut samples: Vec<u64> = recording.programs.iter().map(|program| program.elsewhere).collect();
    let add = |sums: &mut Vec<u64>, index: u32, number: u64| {
        if let Some(sum) = sums.get_mut(index as usize) {
            *sum = sum.saturating_add(number);
        }
    };
    recording.calls.iter().for_each(|of| add(&mut calls, of.program, of.calls));
    recording.hits.iter().for_each(|of| add(&mut samples, of.program, of.samples));
    let mut by_thread = vec![0_u64; recording.threads.len()];
    recording.rows.iter().for_each(|row| add(&mut by_thread, row.thread, row.calls));
    if recording.calls.is_empty() {
        for (thread, &number) in recording.threads.iter().zip(&by_thread) {
            add(&mut calls, thread.program, number);
        }
    }
    let has_samples = recording.sample_period_ns > 0;
    let sum = |list: &[u64]| list.iter().fold(0, |sum: u64, &number| sum.saturating_add(number));
    let mut choices = vec![Choice {
        chosen: Chosen::All,
        name: "everything".to_owned(),
        which: gmon::counted(recording.programs.len(), "program", "programs"),
        calls: Some(sum(&calls)),
        samples: has_samples.then(|| sum(&samples)),
        life: String::new(),
        is_part: false,
    }];
    choices.extend(recording.programs.iter().enumerate().map(|(index, program)| Choice {
        chosen: Chosen::Program(index),
        name: plain(&program.name),
        which: match program.pid {
            0 => gmon::counted(program.processes, "process", "processes"),
            pid => format!("process {pid}"),
        },
        calls: Some(calls[index]),
        samples: has_samples.then(|| samples[index]),
        life: String::new(),
        is_part: false,
    }));
    choices.extend(processes(recording));
    choices.extend(recording.threads.iter().enumerate().map(|(index, thread)| Choice {
        chosen: Chosen::Thread(index),
        name: plain(&thread.name),
        which: match (thread.pid, thread.tid) {
            (0, 0) => "thread".to_owned(),
            (0, tid) => format!("thread {tid}"),
            (pid, tid) => format!("thread {tid} of {pid}"),
        },
        calls: Some(by_thread[index]),
        samples: Some(thread.samples).filter(|&samples| samples > 0),
        life: match recording.clock.source {
            ClockSource::Instructions => amount(Time::Executed, thread.life_ns),
            ClockSource::Tsc | ClockSource::ClockGettime => duration(thread.life_ns),
        },
        is_part: false,
    }));
    choices
}

/// Returns the processes with the most time as a tree, if there are several. Each chooses its program, of which the run has counts.
fn processes(recording: &Recording) -> Vec<Choice> {
    /// A list of more is of no use.
    const MOST: usize = 200;
    if recording.processes.len() < 2 {
        return Vec::new();
    }
    let tree = Tree::of(&recording.processes, recording.processes_left_out, MOST);
    let row = |branch: &Branch| {
        let process = recording.processes.get(branch.process)?;
        let program = process.program as usize;
        let name = recording.programs.get(program).map_or_else(String::new, |program| plain(&program.name));
        let failure = failure(process).map_or_else(String::new, |failure| format!(", {failure}"));
        Some(Choice {
            chosen: Chosen::Program(program),
            name: format!("{}{name}", "  ".repeat(branch.depth.min(8) + 1)),
            which: format!("process {}{failure}", process.pid),
            calls: Some(process.calls),
            samples: (recording.sample_period_ns > 0).then_some(process.samples),
            life: duration_ns(process).map_or_else(String::new, duration),
            is_part: true,
        })
    };
    let left_out = (tree.left_out > 0).then(|| Choice {
        chosen: Chosen::All,
        name: "  ...".to_owned(),
        which: gmon::counted(tree.left_out, "more process", "more processes"),
        calls: None,
        samples: None,
        life: String::new(),
        is_part: true,
    });
    tree.branches.iter().filter_map(row).chain(left_out).collect()
}

/// Returns the part of a recording that was chosen.
pub(crate) fn part(recording: &Recording, chosen: Chosen) -> Recording {
    let mut part = recording.clone();
    let mut index = 0..;
    match chosen {
        Chosen::All => {}
        Chosen::Program(wanted) => part.retain_programs(|_| index.next() == Some(wanted)),
        Chosen::Thread(wanted) => {
            let program = recording.threads.get(wanted).map_or(0, |thread| thread.program);
            part.retain_threads(|_| index.next() == Some(wanted));
            // What is not known by thread is left out, and samples are known by function only.
            part.calls.clear();
            part.blocks.clear();
            part.programs.iter_mut().for_each(|program| program.elsewhere = 0);
            let hits = part.rows.iter().filter(|row| row.samples > 0);
            part.hits = hits
                .map(|row| Hits { program, function: row.function, address: 0, samples: row.samples })
                .collect();
        }
    }
    part
}
