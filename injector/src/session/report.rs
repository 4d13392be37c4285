//! The report after a run, for people: what was lost, and the details that -v adds.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use gmon::counted;
use gprofinject_abi::region::{UNSEEN_EXECUTED, UNSEEN_LOADED, UNSEEN_WITHOUT_FILES};

use crate::os::say::Voice;
use crate::sampling::sampler::Tally;
use crate::session::member::{Other, Unhooked};
use crate::session::outcome::Run;
use crate::session::stats::{Blocks, Memory, Samples, Setup};
use crate::session::words::{calls_and_samples, in_hooked_code, left_out, not_patched, quoted};

/// What an agent may be unable to see of its process, by the bits of [`Account::unseen`](crate::profile::collect::Account::unseen).
const UNSEEN: [(u64, &str); 2] = [
    (
        UNSEEN_EXECUTED,
        "programs that it executes are not followed: the code of libc's execve could not be changed",
    ),
    (
        UNSEEN_LOADED,
        "libraries that it loads later are not hooked: the code of the dynamic linker could not be changed",
    ),
];

impl Run<'_> {
    /// Returns a sentence for each kind of data that is missing in the profile.
    pub(crate) fn losses(&self) -> Vec<String> {
        let account = self.account;
        let mut losses = Vec::new();
        let mut say = |count: u64, text: String| {
            if count > 0 {
                losses.push(text);
            }
        };
        let calls = account.lost_calls;
        let threads = account.lost_threads;
        if let Some(why) = account.why_silent() {
            let lost = counted(calls, "call", "calls");
            say(calls, format!("{lost} lost: the program {why}"));
        } else {
            let (lost, without) = (counted(calls, "call", "calls"), counted(threads, "thread", "threads"));
            say(calls, format!("{lost} could not be counted: no memory for counters"));
            say(threads, format!("{without} could not be counted: no memory for counters"));
        }
        let unmeasured = account.unmeasured;
        let unkept = counted(account.unkept, "call are", "calls are");
        let lost = counted(unmeasured, "call was", "calls were");
        say(
            unmeasured,
            format!(
                "{lost} counted but not measured: no room (-X leaves functions out), or the program has forbidden the clock"
            ),
        );
        say(
            account.unkept,
            format!("the values of {unkept} missing: no room for more callers (-I and -X select functions)"),
        );
        let timers = account.lost_timers;
        let without = counted(timers, "thread", "threads");
        say(timers, format!("{without} could not be sampled: no timer to be had"));
        if account.trouble.is_none() {
            let unpatched = account.unpatched;
            say(unpatched, not_patched(unpatched));
        }
        let libraries = account.lost_libraries;
        let unhooked = counted(libraries, "more library was", "more libraries were");
        say(
            libraries,
            format!("{unhooked} not hooked, because a process could not ask about them or had no memory"),
        );
        for (bit, text) in UNSEEN {
            say(account.unseen & bit, text.to_owned());
        }
        say(self.tally.matters().into(), self.lost_samples());
        losses
    }

    fn lost_samples(&self) -> String {
        let Tally { taken, lost, .. } = self.tally;
        let were_lost = counted(lost, "sample was", "samples were");
        format!("{were_lost} lost, {taken} taken; a lower --rate helps")
    }

    /// Prints one line for each other profile with -v, and what was lost of them in any case. `recording` is the file of the run's
    /// recording.
    pub(crate) fn list_others(&self, recording: Option<&Path>, voice: Voice) {
        for other in self.others {
            let samples = other.placed.all();
            let title = other.title();
            let own = left_out(&other.placed, self.rate).map(|own| format!("; {own}")).unwrap_or_default();
            let command =
                other.item.commands(recording).map_or_else(String::new, |command| format!("; {command}"));
            voice.detail(format_args!(
                "{title}: {}{}{own}{command}",
                calls_and_samples(other.calls, samples),
                in_hooked_code(other.inside, &other.placed),
            ));
        }
        let unpatched = |other: &&Other| other.account.trouble.is_none() && other.account.unpatched > 0;
        for other in self.others.iter().filter(unpatched) {
            voice.warn(format_args!("{}: {}", other.title(), not_patched(other.account.unpatched)));
        }
        let others = || self.others.iter().map(|other| &other.account);
        let mut silent: BTreeMap<&str, u64> = BTreeMap::new();
        for account in others().filter(|c| c.lost_calls > 0) {
            if let Some(why) = account.why_silent() {
                *silent.entry(why).or_default() += account.lost_calls;
            }
        }
        for (why, lost) in silent {
            let lost = counted(lost, "call", "calls");
            voice.warn(format_args!("{lost} of other processes lost: they {why}"));
        }
        let lost: u64 = others().filter(|c| c.why_silent().is_none()).map(|c| c.lost_calls).sum();
        if lost > 0 {
            let lost = counted(lost, "call", "calls");
            voice.warn(format_args!("{lost} of other processes could not be counted: no memory"));
        }
        for (bit, text) in UNSEEN {
            let processes = others().filter(|account| account.unseen & bit != 0).count() as u64;
            if processes > 0 {
                let processes = counted(processes, "other process", "other processes");
                voice.warn(format_args!("in {processes}, {text}"));
            }
        }
        let all = || others().chain([self.account]);
        let children: u64 = all().map(|c| c.lost_children).sum();
        if children > 0 {
            let children = counted(children, "forked child", "forked children");
            voice.note(format_args!("{children} could not be profiled: no memory"));
        }
        if all().any(|c| c.unseen & UNSEEN_WITHOUT_FILES != 0) {
            voice.note(
                "some programs that were executed were not followed: the process could open no more files \
                 (ulimit -n)",
            );
        }
        if all().any(|c| c.lost_programs > 0) {
            voice.note(
                "some programs that were executed were not followed: the process had changed its root, its user \
                 or its limits, entered seccomp, or has a very large environment",
            );
        }
    }

    /// Returns a line with everything that was counted of the first program.
    fn counts(&self) -> String {
        let (hooked, found) = (self.hooked(), self.planned.found());
        let found = counted(found, "function", "functions");
        let calls = counted(self.profile.calls(), "call", "calls");
        let samples = counted(self.placed.all(), "sample", "samples");
        let of_libraries =
            self.hooked_libraries().filter_map(|(_, m)| Blocks::of(m.program, m.blocks().1, false));
        let mut blocks = String::new();
        if let Some(own) = self.blocks() {
            let (mut executed, mut found, mut functions) = (own.executed, own.found, own.functions);
            for blocks in of_libraries {
                executed += blocks.executed;
                found += blocks.found;
                functions += blocks.functions;
            }
            let found = counted(found, "block", "blocks");
            let functions = counted(functions, "function", "functions");
            blocks = format!(", {executed} of {found} of {functions} ran");
        }
        let processes = match self.processes.number {
            1 => String::new(),
            processes => format!(" in {processes} processes"),
        };
        let libraries = self.libraries();
        let own = left_out(self.placed, self.rate).map(|own| format!("; {own}")).unwrap_or_default();
        // Without hooks, no code is hooked, and there is nothing to be said of it.
        let is_hooked = self.hooked() > 0 || self.hooked_libraries().next().is_some();
        let share = if is_hooked {
            in_hooked_code(self.profile.samples_inside(), self.placed)
        } else {
            String::new()
        };
        format!("hooked {hooked} of {found}{libraries}, {calls}{processes}{blocks}, {samples}{share}{own}")
    }

    /// Returns the part of the summary about libraries.
    fn libraries(&self) -> String {
        let (hooked, found) = self.hooked_libraries().fold((0, 0), |(hooked, found), (_, module)| {
            (hooked + module.program.hooked(), found + module.program.found())
        });
        let number = self.hooked_libraries().count();
        let refused = self.unhooked().filter(|(_, why)| matches!(why, Unhooked::Refused(_))).count();
        let left_out = self.unhooked().count() - refused;
        let mut less = Vec::new();
        if left_out > 0 {
            less.push(format!("{left_out} left out by --libs {}", quoted(OsStr::new(self.libs))));
        }
        if refused > 0 {
            less.push(format!("{refused} refused"));
        }
        let less = if less.is_empty() { String::new() } else { format!(" ({})", less.join(", ")) };
        match number {
            // Every program has a C library.
            0 if refused == 0 => String::new(),
            0 => format!(" and no library{less}"),
            number => {
                let libraries = counted(number, "library", "libraries");
                let found = counted(found, "function", "functions");
                format!(" and {hooked} of {found} of {libraries}{less}")
            }
        }
    }

    /// Prints which libraries are not hooked.
    fn list_unhooked(&self, voice: Voice) {
        let refused = self.unhooked().filter_map(|(path, why)| match why {
            Unhooked::Refused(why) => Some((path, why)),
            Unhooked::LeftOut => None,
        });
        for (path, why) in refused {
            voice.detail(format_args!("{} is not hooked: {why}", path.display()));
        }
        for (path, _) in self.unhooked().filter(|(_, why)| **why == Unhooked::LeftOut) {
            voice.detail(format_args!("{} is left out by --libs {}", path.display(), self.libs));
        }
        for ((_, path), why) in self.unhooked.iter().filter(|((program, _), _)| *program != 0) {
            if let Unhooked::Refused(why) = why {
                voice.detail(format_args!("{} is not hooked in another program: {why}", path.display()));
            }
        }
    }

    /// Prints what `-v` adds.
    pub(crate) fn details(&self, voice: Voice) {
        let stats = self.stats();
        voice.detail(self.counts());
        for (reason, count) in &stats.functions.refused_by_reason {
            voice.detail(format_args!("not hooked, {reason}: {count}"));
        }
        for (tactic, count) in &stats.functions.hooked_by_tactic {
            voice.every(format_args!("hooked, {tactic}: {count}"));
        }
        for (reason, count) in stats.blocks.iter().flat_map(|blocks| &blocks.uncounted_by_reason) {
            voice.detail(format_args!("blocks not counted, {reason}: {count}"));
        }
        for library in stats.libraries.iter().flatten() {
            let name = library.path.rsplit('/').next().unwrap_or_default();
            for (reason, count) in library.functions.iter().flat_map(|functions| &functions.refused_by_reason)
            {
                voice.detail(format_args!("{name}: not hooked, {reason}: {count}"));
            }
            for (tactic, count) in library.functions.iter().flat_map(|functions| &functions.hooked_by_tactic)
            {
                voice.every(format_args!("{name}: hooked, {tactic}: {count}"));
            }
            for (reason, count) in library.blocks.iter().flat_map(|blocks| &blocks.uncounted_by_reason) {
                voice.detail(format_args!("{name}: blocks not counted, {reason}: {count}"));
            }
        }
        self.list_unhooked(voice);
        let removed = stats.functions.instructions_removed;
        if removed > 0 {
            let removed = counted(removed, "instruction", "instructions");
            voice.detail(format_args!("removed calls of another profiler: {removed}"));
        }
        let Samples { sampler, rate, inside, outside, own, own_seconds, own_percent } = stats.samples;
        voice.detail(format_args!(
            "samples by {sampler}, {rate} per second: {inside} in the program, {outside} outside of it, {own} in \
             gprofinject's own code ({own_seconds:.2} s, {own_percent:.1} %)"
        ));
        if let Some(measured) = &stats.measured {
            let threads = counted(measured.threads as u64, "thread", "threads");
            let arcs = counted(measured.arcs as u64, "arc", "arcs");
            let paths = counted(measured.paths as u64, "path", "paths");
            let bytes = measured.record_bytes;
            let calibrated = counted(measured.calibrations, "time", "times");
            voice.detail(format_args!(
                "measured: {threads}, {arcs}, {paths}, {bytes} bytes of records; calibrated {calibrated} while it ran"
            ));
        }
        let Memory { arena_bytes, region_bytes, plan_bytes, sampler_bytes } = stats.memory;
        voice.detail(format_args!(
            "memory: arena {arena_bytes}, counters {region_bytes}, plan {plan_bytes}, sampler {sampler_bytes} bytes"
        ));
        let Setup { plan, agent, frida, injector, .. } = stats.setup_ns;
        voice.detail(format_args!(
            "set-up: {:.1} ms here ({:.1} {}), {:.1} ms in the program",
            injector as f64 / 1e6,
            plan as f64 / 1e6,
            if stats.plan_cached { "for a plan from the cache" } else { "planning" },
            (agent + frida) as f64 / 1e6
        ));
        let deep = stats.lost.bare_calls;
        if deep > 0 {
            let deep = counted(deep, "call", "calls");
            voice.detail(format_args!(
                "the exits of {deep} were not hooked: no memory for a shadow stack, or too many frames that take turns on one stack"
            ));
        }
        if self.tally.lost > 0 && !self.tally.matters() {
            voice.detail(self.lost_samples());
        }
        if stats.lost.throttled {
            voice.detail("the kernel throttled the sampling");
        }
    }
}
