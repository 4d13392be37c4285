//! What a run has cost and what was not seen, in a few words each, if it matters for what the numbers mean.

use std::path::Path;
use std::time::Duration;

use crate::os::progress;
use crate::os::say::Voice;
use crate::profile::costs::{self, Advice};
use crate::program::plan_cache::SIZE;
use crate::session::digest::{Digest, FunctionCost};
use crate::session::member::Unhooked;
use crate::session::outcome::Run;
use crate::session::stats::Blocks;
use crate::session::words::scaled;

impl Run<'_> {
    /// Returns the remarks, the most important first.
    pub(crate) fn remarks(&self, digest: &Digest) -> Vec<String> {
        let remarks = [
            self.unfollowed_time(digest),
            self.cost(digest),
            self.planning(),
            self.unhooked_time(digest),
            self.refused(),
            self.unseen(),
            self.trace(digest.all.calls),
            self.slowest(),
            nameless(&digest.functions),
        ];
        remarks.into_iter().flatten().collect()
    }

    /// Returns advice about the program with the most samples for which there is any.
    fn advice(&self) -> Option<(u64, Advice)> {
        let own = costs::advice(self.profile, self.placed, self.processes.number);
        let others = self.others.iter().filter_map(|other| Some((other.placed.all(), other.advice.clone()?)));
        own.map(|advice| (self.placed.all(), advice)).into_iter().chain(others).max_by_key(|(all, _)| *all)
    }

    /// Says why most samples of a program are in gprofinject's own code, if they are.
    pub(crate) fn advise(&self, voice: Voice) {
        if let Some(advice) = costs::advice(self.profile, self.placed, self.processes.number) {
            voice.detail(advice);
        }
        for other in self.others {
            if let Some(advice) = &other.advice {
                voice.detail(format_args!("{}: {advice}", other.title()));
            }
        }
    }

    /// Says which programs were not followed, if they have taken much time.
    fn unfollowed_time(&self, digest: &Digest) -> Option<String> {
        let programs = self.unfollowed.programs.iter();
        let unseen = programs.fold(0_u64, |sum, (_, cost)| sum.saturating_add(cost.samples));
        self.unfollowed.remark(digest.all.samples.saturating_sub(unseen), self.rate)
    }

    /// Says which part of the CPU time was gprofinject's own, and what helps, if it is much.
    fn cost(&self, digest: &Digest) -> Option<String> {
        const MUCH: f64 = 10.0;
        /// In seconds. A run that costs less is none that anybody waits for.
        const LONG: f64 = 0.05;
        let all = digest.own.saturating_add(digest.all.samples);
        let percent = 100.0 * digest.own as f64 / all.max(1) as f64;
        let seconds = digest.own as f64 / f64::from(self.rate.max(1));
        let help = self.advice().map(|(_, advice)| format!(": {}", advice.help)).unwrap_or_default();
        (percent >= MUCH && seconds >= LONG)
            .then(|| format!("{percent:.0} % of the CPU time was gprofinject's own ({seconds:.2} s){help}"))
    }

    /// Says how long planning took, if that was much of the run.
    fn planning(&self) -> Option<String> {
        const LONG: Duration = Duration::from_millis(500);
        let taken = progress::taken();
        if taken < LONG || taken * 5 < self.duration {
            return None;
        }
        let when = match self.cache.finish() {
            true => format!("as in each run, because its plans do not fit the cache: {SIZE}=4G keeps them"),
            false => "as in the first run of each build".to_owned(),
        };
        Some(format!("planning took {:.1} s, {when}", taken.as_secs_f64()))
    }

    /// Says where most samples are, if they are not in hooked code, and what hooks it.
    fn unhooked_time(&self, digest: &Digest) -> Option<String> {
        /// The share of samples in code that is not hooked, in percent, from which on the profile misses what matters.
        const MUCH: f64 = 50.0;
        /// With fewer samples, the share is accidental.
        const FEW: u64 = 100;
        let all = digest.all.samples;
        let (unhooked, (module, samples)) = (digest.unhooked.samples, &digest.unhooked.most);
        let percent = |part: u64| 100.0 * part as f64 / all.max(1) as f64;
        if !self.planned.wants_libraries() || all < FEW || percent(unhooked) < MUCH {
            return None;
        }
        let named = |path: &Path| path.file_name().is_some_and(|name| name == module.as_str());
        let why = self.unhooked.iter().find(|((_, path), _)| named(path)).map(|(_, why)| why);
        let help = match why {
            Some(Unhooked::LeftOut) => " (--libs all hooks it)".to_owned(),
            Some(Unhooked::Refused(why)) => format!(" ({why})"),
            None => String::new(),
        };
        let share = percent(unhooked);
        Some(match module.as_str() {
            "" => format!("{share:.0} % of the time is in code that is not hooked"),
            module => format!(
                "{share:.0} % of the time is in code that is not hooked, {:.0} % in {module}{help}",
                percent(*samples)
            ),
        })
    }

    /// Names the libraries with code of the first program that could not be hooked.
    fn refused(&self) -> Option<String> {
        const NAMED: usize = 2;
        let refused =
            self.unhooked().filter(|(_, why)| matches!(why, Unhooked::Refused(why) if why.hides_code()));
        let names: Vec<_> = refused
            .map(|(path, _)| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned())
            .collect();
        let more = names.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = names.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        (!names.is_empty()).then(|| format!("not hooked: {named}{more} (-v says why)"))
    }

    /// Says how many functions gprof leaves out of its tables, if they matter.
    fn unseen(&self) -> Option<String> {
        let functions = gmon::counted(self.placed.unseen.len(), "function", "functions");
        self.placed.misses_much().then(|| format!("gprof cannot show {functions}, gmon can"))
    }

    /// Returns how many of the counted calls are missing in a trace that is to have all of them.
    pub(crate) fn untraced(&self, counted: u64) -> u64 {
        let is_whole = self.planned.measure.and_then(|measure| measure.trace).is_some_and(|t| t.is_whole());
        let traced = self.traced.filter(|_| is_whole);
        traced.map_or(0, |traced| counted.saturating_sub(traced.calls).saturating_sub(traced.lost))
    }

    /// Says what is in the trace, if that is not what was counted, or in more files than one.
    fn trace(&self, calls: u64) -> Option<String> {
        let traced = self.traced?;
        let missing = self.untraced(calls);
        let mut remarks = Vec::new();
        match traced.files.len() {
            0 => remarks.push("no trace was written".to_owned()),
            1 => {}
            files => remarks.push(format!("{files} files of the trace")),
        }
        if traced.dropped > 0 {
            remarks.push(format!("the last {} of the trace kept", scaled_bytes(traced.bytes)));
        }
        if missing > 0 {
            let is = if missing == 1 { "call is" } else { "calls are" };
            remarks.push(format!("{} counted {is} not in the trace (-v says why)", scaled(missing)));
        }
        (!remarks.is_empty()).then(|| remarks.join(", "))
    }

    /// Says of how many calls the slowest ones were kept.
    fn slowest(&self) -> Option<String> {
        let slow = &self.watched?.slowest.as_ref()?.slow;
        let calls = slow.typical.iter().map(|of| of.calls.saturating_add(of.others));
        let calls = calls.fold(0, u64::saturating_add);
        Some(match (slow.calls.len() as u64, calls) {
            (_, 0) => "no function of --slow was called".to_owned(),
            (0, calls) => format!("none of {} calls was slow enough for --slow-above", scaled(calls)),
            (kept, calls) => format!("the slowest {} of {} calls kept", scaled(kept), scaled(calls)),
        })
    }

    /// Returns how many basic blocks of the program and its libraries have run, and how many there are, if they were counted.
    pub(crate) fn executed_blocks(&self) -> Option<(usize, usize)> {
        let own = self.blocks()?;
        let libraries =
            self.hooked_libraries().filter_map(|(_, m)| Blocks::of(m.program, m.blocks().1, false));
        let add =
            |(ran, found): (usize, usize), blocks: Blocks| (ran + blocks.executed, found + blocks.found);
        Some(libraries.fold((own.executed, own.found), add))
    }
}

fn scaled_bytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Says why functions are shown by address, if some are.
fn nameless(functions: &[FunctionCost]) -> Option<String> {
    let any = functions.iter().any(|function| function.is_nameless);
    any.then(|| "functions shown by address; debug symbols name them".to_owned())
}
