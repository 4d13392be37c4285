//! Samples of processes that execute a program which is not followed: how many, by program.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The programs of a run that are not followed, by the file that the kernel names.
#[derive(Debug, Default)]
pub(crate) struct Unfollowed {
    programs: BTreeMap<Arc<str>, Cost>,
}

/// What is known of a program that is not followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// How often it was executed.
    pub(crate) processes: u32,
    /// The samples of CPU time in it.
    pub(crate) samples: u64,
}

impl Unfollowed {
    /// Notes that a process has begun to execute the program with this file.
    pub(crate) fn begin(&mut self, program: &Arc<str>) {
        let cost = self.of(program);
        cost.processes = cost.processes.saturating_add(1);
    }

    /// Adds a sample of a program; `None` if its file is not mapped yet.
    pub(crate) fn add(&mut self, program: Option<&Arc<str>>) {
        if let Some(program) = program {
            self.of(program).samples += 1;
        }
    }

    fn of(&mut self, program: &Arc<str>) -> &mut Cost {
        /// A process can execute any number of files.
        const MOST: usize = 256;
        const OTHERS: &str = "[other programs]";
        let is_room = self.programs.len() < MOST || self.programs.contains_key(program);
        let name = if is_room { program.clone() } else { OTHERS.into() };
        self.programs.entry(name).or_default()
    }

    /// Returns the path and the cost of each that has any samples, those with most of them first.
    pub(crate) fn by_samples(&self) -> Vec<(String, Cost)> {
        let all = self.programs.iter().filter(|(_, cost)| cost.samples > 0);
        let mut all: Vec<_> = all.map(|(path, &cost)| (path.to_string(), cost)).collect();
        all.sort_by_key(|(_, cost)| Reverse(cost.samples));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_program() {
        let mut unfollowed = Unfollowed::default();
        let (a, b): (Arc<str>, Arc<str>) = ("/bin/a".into(), "/bin/b".into());
        unfollowed.add(None);
        unfollowed.begin(&a);
        for program in [&b, &a, &b] {
            unfollowed.begin(program);
            unfollowed.add(Some(program));
        }
        let cost = |processes, samples| Cost { processes, samples };
        assert_eq!(
            unfollowed.by_samples(),
            [("/bin/b".to_owned(), cost(2, 2)), ("/bin/a".to_owned(), cost(2, 1))]
        );
    }

    #[test]
    fn any_number_of_programs() {
        let mut unfollowed = Unfollowed::default();
        for number in 0..10_000 {
            unfollowed.add(Some(&number.to_string().into()));
        }
        let programs = unfollowed.by_samples();
        assert_eq!(programs.len(), 257);
        assert_eq!(
            programs[0],
            ("[other programs]".to_owned(), Cost { processes: 0, samples: 10_000 - 256 })
        );
    }
}
