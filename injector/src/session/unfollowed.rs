//! The time in programs that were not followed: which, how much, and what helps.

use std::collections::BTreeMap;
use std::time::Duration;

use gmon::counted;

use crate::sampling::unfollowed::Cost;

/// The programs of a run that were not followed and took CPU time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unfollowed {
    /// The path or name of each, with what it has cost, the most expensive first.
    pub(crate) programs: Vec<(String, Cost)>,
    /// Whether gprofinject would profile the first of them if it started it itself.
    starts: bool,
}

/// The CPU time in seconds that is worth a remark: nobody waits for less.
const LONG: f64 = 0.05;

/// The CPU time of a run, from two sides.
pub(crate) struct Time {
    /// That of all processes, if the kernel has counted it, in samples.
    pub(crate) spent: Option<u64>,
    /// The samples that were taken, wherever, or lost.
    pub(crate) sampled: u64,
    /// The number of samples in a second.
    pub(crate) rate: u32,
}

impl Time {
    /// Returns how many samples a CPU time would have at a rate.
    pub(crate) fn samples(time: Duration, rate: u32) -> u64 {
        (time.as_secs_f64() * f64::from(rate)) as u64
    }

    /// Returns the part that nobody has sampled, if it is more than what measures may differ by.
    fn unsampled(&self) -> Option<u64> {
        let spent = self.spent?;
        let left = spent.saturating_sub(self.sampled);
        // In a short time, what the kernel takes to begin and to end processes is much.
        (left > 0 && left >= spent / 5 && left as f64 >= LONG * f64::from(self.rate)).then_some(left)
    }
}

impl Unfollowed {
    /// Returns what is known. `programs` are those with samples, and `alone` has the names of those of which it was said that they are not
    /// followed: true if gprofinject could have started them. `starter` is the name of a program that has started others of which not even
    /// the name is known.
    pub(crate) fn new(
        mut programs: Vec<(String, Cost)>,
        alone: &BTreeMap<String, bool>,
        starter: Option<&str>,
        time: &Time,
    ) -> Unfollowed {
        // The kernel ends its samples of a process that gets other privileges, and timers are part of what is not there.
        let is_any = starter.is_some() || !alone.is_empty();
        if let Some(samples) = time.unsampled().filter(|_| is_any) {
            let mut names =
                alone.keys().filter(|&alone| !programs.iter().any(|(path, _)| name(path) == alone));
            let only = names.next().filter(|_| names.next().is_none());
            let by = |starter| format!("[started by {starter}]");
            let path = only.cloned().or(starter.map(by)).unwrap_or_else(|| "[several programs]".to_owned());
            programs.push((path, Cost { processes: 1, samples }));
            programs.sort_by_key(|(_, cost)| std::cmp::Reverse(cost.samples));
        }
        let first = programs.first().map(|(path, _)| name(path));
        // Of what nobody has announced, it is not known that it cannot be profiled.
        let starts = first.is_some_and(|first| *alone.get(first).unwrap_or(&true));
        Unfollowed { programs, starts }
    }

    /// Says which programs have taken how much CPU time, and what helps, if it is much. `seen` is the number of all other samples, and
    /// `rate` that of a second.
    pub(crate) fn remark(&self, seen: u64, rate: u32) -> Option<String> {
        const MUCH: f64 = 5.0;
        let (first, _) = self.programs.first()?;
        let samples = self.programs.iter().fold(0_u64, |sum, (_, cost)| sum.saturating_add(cost.samples));
        let percent = 100.0 * samples as f64 / samples.saturating_add(seen).max(1) as f64;
        let seconds = samples as f64 / f64::from(rate.max(1));
        if percent < MUCH || seconds < LONG {
            return None;
        }
        let more = match self.programs.len() - 1 {
            0 => String::new(),
            more => format!(" and {}", counted(more, "more program", "more programs")),
        };
        let first = name(first);
        let help = match self.starts {
            true if first.starts_with('[') => ": start gprofinject in front of it, or use --pid".to_owned(),
            true => format!(": start gprofinject in front of {first}, or use --pid"),
            false => String::new(),
        };
        Some(format!("not followed: {first}{more}, {seconds:.2} s ({percent:.0} %){help}"))
    }
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(processes: u32, samples: u64) -> Cost {
        Cost { processes, samples }
    }

    #[test]
    fn what_was_sampled_is_named() {
        let programs = vec![("/bin/busy".to_owned(), cost(1, 270)), ("/bin/id".to_owned(), cost(1, 1))];
        let time = Time { spent: Some(290), sampled: 285, rate: 1000 };
        let unfollowed = Unfollowed::new(programs, &BTreeMap::new(), None, &time);
        assert_eq!(
            unfollowed.remark(15, 1000).as_deref(),
            Some(
                "not followed: busy and 1 more program, 0.27 s (95 %): start gprofinject in front of busy, or use --pid"
            )
        );
        assert_eq!(unfollowed.remark(100_000, 1000), None);
    }

    #[test]
    fn what_nobody_has_sampled_is_that_of_who_is_not_followed() {
        let alone = BTreeMap::from([("sudo".to_owned(), false)]);
        let time = |spent, sampled| Time { spent, sampled, rate: 1000 };
        let of = |alone: &BTreeMap<_, _>, starter, time| Unfollowed::new(Vec::new(), alone, starter, &time);
        let unfollowed = of(&alone, None, time(Some(300), 20));
        assert_eq!(unfollowed.remark(20, 1000).as_deref(), Some("not followed: sudo, 0.28 s (93 %)"));
        let nothing = BTreeMap::new();
        let by_su = of(&nothing, Some("su"), time(Some(300), 20));
        assert_eq!(by_su.programs, [("[started by su]".to_owned(), cost(1, 280))]);
        let remark =
            "not followed: [started by su], 0.28 s (93 %): start gprofinject in front of it, or use --pid";
        assert_eq!(by_su.remark(20, 1000).as_deref(), Some(remark));
        for (alone, time) in [
            (&nothing, time(Some(300), 20)),
            (&alone, time(Some(300), 250)),
            (&alone, time(Some(300), 310)),
            (&alone, time(Some(30), 1)),
            (&alone, time(None, 20)),
        ] {
            assert_eq!(of(alone, None, time).programs, []);
        }
    }
}
