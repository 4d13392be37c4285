//! Parses the command line. Options that would have no effect are errors.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};

use crate::cli::args::Args;
use crate::options::{ClockArg, HooksArg};

impl Args {
    /// Parses the words of the command line. Options that would have no effect are errors.
    pub(crate) fn typed<W: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Args, clap::Error> {
        let mut command = Args::command();
        let matches = command.try_get_matches_from_mut(words)?;
        let args = Args::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        let typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        match args.contradiction(&typed) {
            Some(text) => Err(command.error(ErrorKind::ArgumentConflict, text)),
            None => Ok(args),
        }
    }

    /// Returns an error message if options contradict each other. (clap's `requires` does not help here: it
    /// does not ask for `--pid` if there is a PROGRAM, with which `--pid` cannot be used.)
    fn contradiction(&self, typed: &dyn Fn(&str) -> bool) -> Option<String> {
        const FOR_A_RUN: [&str; 40] = [
            "hooks",
            "rate",
            "sampler",
            "engine",
            "include",
            "exclude",
            "libs",
            "outermost",
            "min_size",
            "count",
            "file",
            "values",
            "times",
            "paths",
            "min_time",
            "no_fold",
            "max_paths",
            "clock",
            "trace",
            "trace_depth",
            "trace_min_time",
            "trace_size",
            "trace_trigger",
            "trace_full",
            "args",
            "slow",
            "slow_top",
            "slow_above",
            "no_follow",
            "python",
            "per_process",
            "ranks",
            "dump_signal",
            "reset_signal",
            "pause_signal",
            "stats",
            "export",
            "open",
            "top",
            "plain",
        ];
        let option = |id: &str| match id {
            "command" => "a PROGRAM".to_owned(),
            id => format!("--{}", id.replace('_', "-")),
        };
        let first = |ids: &[&str]| ids.iter().find(|id| typed(id)).map(|id| option(id));
        let verb = first(&["dump", "reset", "pause", "resume", "enable", "disable"]);
        let of_a_process = verb.clone().or_else(|| first(&["duration"]));
        if self.pid.is_none()
            && let Some(option) = of_a_process
        {
            let else_ = match option.as_str() {
                "--duration" => "to end a program after some time, run it by timeout(1)",
                "--enable" | "--disable" => {
                    "-I and -X say which functions of a program are hooked that gprofinject starts"
                }
                _ => {
                    "a program that gprofinject starts can be asked by --dump-signal, --reset-signal or --pause-signal"
                }
            };
            return Some(format!(
                "{option} is for a process that already runs: name it by --pid PID; {else_}"
            ));
        }
        if typed("pid") && typed("command") {
            return Some(
                "--pid PID is for a process that already runs: leave out either it or PROGRAM".to_owned(),
            );
        }
        if let Some(verb) = verb {
            let useless = first(&FOR_A_RUN).or_else(|| first(&["duration"]));
            let useless = useless.or_else(|| first(&["output"]).filter(|_| !self.dump));
            return useless.map(|other| {
                format!("{verb} is a message to the gprofinject that profiles the process: {other} has no effect there")
            });
        }
        if typed("pid") && typed("no_follow") {
            return Some(
                "--no-follow has no effect with --pid: only the process itself is profiled".to_owned(),
            );
        }
        if typed("pid") && typed("python") {
            return Some(
                "--python sets a variable of a program that gprofinject starts: leave it out, samples of a process that already runs show its \
                 Python functions all the same"
                    .to_owned(),
            );
        }
        if typed("pid") && typed("ranks") {
            return Some("--ranks has no effect with --pid: name the file with -o FILE".to_owned());
        }
        if typed("recover") {
            let useless = first(&["command", "output", "list"]).or_else(|| first(&FOR_A_RUN));
            return useless.map(|other| {
                format!(
                    "--recover writes what another gprofinject was asked for: {other} has no effect on that"
                )
            });
        }
        if let Some(option) = first(&["no_fold", "max_paths"]).filter(|_| !self.paths) {
            return Some(format!("{option} says how --paths measures: add --paths"));
        }
        if self.min_time.is_some() {
            if let Some(option) = first(&["trace", "slow"]) {
                return Some(format!(
                    "--min-time measures long calls only, and {option} tells of all: leave one of them out"
                ));
            }
            if !self.times && !self.paths {
                return Some(
                    "--min-time says which functions --times and --paths measure: add one of them".to_owned(),
                );
            }
        }
        if typed("trace") && typed("slow") {
            return Some(
                "--slow keeps the slowest calls instead of a trace of all: leave --trace or --slow out"
                    .to_owned(),
            );
        }
        if let Some(option) = first(&["slow_top", "slow_above"]).filter(|_| self.slow.is_empty()) {
            return Some(format!("{option} says which calls --slow keeps: add --slow FUNCTION"));
        }
        const OF_BOTH: [&str; 2] = ["args", "trace_full"];
        if let Some(option) = first(&OF_BOTH).filter(|_| self.trace.is_none() && self.slow.is_empty()) {
            return Some(format!(
                "{option} says what is traced, or how: add --trace FILE or --slow FUNCTION"
            ));
        }
        const OF_A_TRACE: [&str; 4] = ["trace_depth", "trace_min_time", "trace_size", "trace_trigger"];
        if let Some(option) = first(&OF_A_TRACE).filter(|_| self.trace.is_none()) {
            return Some(format!("{option} says what is traced, or how: add --trace FILE"));
        }
        if self.args.is_some() && self.trace_min_time.is_some() {
            return Some(
                "--args writes what a call begins with, and --trace-min-time knows only at its end whether it is written: \
                 leave one of them out"
                    .to_owned(),
            );
        }
        if let Some(option) = first(&["times", "paths"]).filter(|_| self.trace_depth.is_some()) {
            return Some(format!(
                "--trace-depth leaves deeper calls unmeasured, so {option} would lack them: run gprofinject twice"
            ));
        }
        let counts_instructions = self.clock == ClockArg::Instructions;
        if counts_instructions && typed("pid") {
            return Some(
                "--clock instructions runs copies of functions, which a process that runs already cannot get: start the program with it"
                    .to_owned(),
            );
        }
        if counts_instructions && let Some(option) = first(&["trace", "slow", "min_time"]) {
            return Some(format!(
                "--clock instructions counts instructions, and {option} tells of time: leave one of them out"
            ));
        }
        if self.values.is_some()
            && let Some(option) = first(&["trace", "slow", "min_time"])
                .or_else(|| counts_instructions.then(|| "--clock instructions".to_owned()))
        {
            return Some(format!(
                "--values keeps values by caller, and with --paths by path, of all calls, which {option} does not leave room for: run gprofinject twice, or count those of a trace by gmon trace --values"
            ));
        }
        if self.values.is_some() && self.hooks == Some(HooksArg::None) {
            return Some("--values needs hooks: omit --hooks".to_owned());
        }
        if !self.outermost.is_empty() {
            if let Some(option) =
                first(&["count"]).or_else(|| counts_instructions.then(|| "--clock instructions".to_owned()))
            {
                return Some(format!(
                    "--outermost leaves calls within a module alone, and {option} runs copies of all of its functions: run gprofinject twice"
                ));
            }
            if self.hooks == Some(HooksArg::None) {
                return Some("--outermost needs hooks: omit --hooks".to_owned());
            }
        }
        let is_measured = self.times || self.paths || self.trace.is_some() || !self.slow.is_empty();
        if typed("clock") && !is_measured && !counts_instructions {
            return Some(
                "--clock says what measures durations: add --times, --paths, --slow FUNCTION or --trace FILE"
                    .to_owned(),
            );
        }
        if let Some(option) = first(&["paths", "times", "trace", "slow"])
            .or_else(|| counts_instructions.then(|| "--clock instructions".to_owned()))
            && matches!(self.hooks, Some(HooksArg::Entry | HooksArg::None))
        {
            return Some(format!(
                "{option} measures from the entry of a function to its exit: omit --hooks, or say --hooks both"
            ));
        }
        if self.list {
            let useless = first(&[
                "stats",
                "export",
                "open",
                "trace",
                "slow",
                "dump_signal",
                "reset_signal",
                "pause_signal",
                "top",
                "plain",
            ]);
            return useless.map(|other| format!("--list runs nothing: {other} has no effect there"));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn command(words: &[&str]) -> Vec<String> {
        let args = Args::typed([&["gprofinject"], words].concat()).expect("accepted");
        args.command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn everything_after_the_program_is_its_own() {
        assert_eq!(command(&["p", "-x", "--rate", "5", "--", "-q"]), ["p", "-x", "--rate", "5", "--", "-q"]);
        assert_eq!(command(&["-q", "p", "--help"]), ["p", "--help"]);
        assert_eq!(command(&["-q", "p", "--", "a"]), ["p", "--", "a"]);
        assert_eq!(command(&["--", "-p", "--", "--version"]), ["-p", "--", "--version"]);
        assert_eq!(command(&["-o", "f", "--", "p", "-q", "-v"]), ["p", "-q", "-v"]);
    }

    #[test]
    fn options_are_checked() {
        for words in [
            &["--bogus", "p"][..],
            &["--rate", "100001", "p"],
            &["--rate", "-1", "p"],
            &["--hooks", "exit", "p"],
            &["--min-size", "x", "p"],
            &["-q", "-v", "p"],
            &[],
            &["-q"],
            &["--dump"],
            &["--pid", "1", "--dump", "--reset"],
            &["--pid", "1", "p"],
            &["--dump-signal", "KILL", "p"],
            &["--export", "dot", "p"],
            &["--export", "dot=", "p"],
            &["--export", "dot=f,xls=g", "p"],
        ] {
            assert!(Args::typed([&["gprofinject"], words].concat()).is_err(), "{words:?}");
        }
    }

    #[test]
    fn options_without_effect_are_errors_with_advice() {
        for (words, advice) in [
            (&["--duration", "1", "p"][..], "name it by --pid PID; to end a program after some time"),
            (&["--dump", "p"], "--dump is for a process that already runs: name it by --pid PID; a program"),
            (&["--reset", "p", "--pid", "1"], "--reset is for a process"),
            (&["--pause", "p"], "--pause-signal"),
            (&["--resume", "p"], "--resume is for"),
            (&["--dump"], "--pid PID"),
            (&["--dump", "--recover", "f"], "--pid PID"),
            (&["--pid", "1", "p"], "leave out either it or PROGRAM"),
            (&["--pid", "1", "--dump", "--duration", "1"], "--duration has no effect"),
            (&["--pid", "1", "--dump", "--stats", "f"], "--stats has no effect"),
            (&["--pid", "1", "--pause", "--rate", "1000"], "--rate has no effect"),
            (&["--pid", "1", "--reset", "-o", "f"], "--output has no effect"),
            (&["--pid", "1", "--resume", "--dump-signal", "USR1"], "--dump-signal has no effect"),
            (&["--pid", "1", "--no-follow"], "only the process itself"),
            (&["--recover", "f", "-o", "g"], "--output has no effect"),
            (&["--recover", "f", "p"], "a PROGRAM has no effect"),
            (&["--recover", "f", "--hooks", "both"], "--hooks has no effect"),
            (&["--list", "--stats", "f", "p"], "--stats has no effect"),
            (&["--list", "--export", "dot=f", "p"], "--export has no effect"),
            (&["--list", "--open", "p"], "--open has no effect"),
            (&["--pid", "1", "--dump", "--open"], "--open has no effect"),
            (&["--recover", "f", "--export", "dot=f"], "--export has no effect"),
            (&["--generate", "man", "p"], "--generate"),
            (&["--generate", "man", "--list"], "--generate"),
            (&["--list", "--dump-signal", "USR1", "p"], "--dump-signal has no effect"),
            (&["--outermost", "libz*", "--count", "blocks", "p"], "run gprofinject twice"),
            (&["--outermost", "libz*", "--clock", "instructions", "p"], "run gprofinject twice"),
            (&["--outermost", "libz*", "--hooks", "none", "p"], "omit --hooks"),
            (&["--pid", "1", "--dump", "--outermost", "libz*"], "--outermost has no effect"),
        ] {
            let error = Args::typed([&["gprofinject"], words].concat()).expect_err("a contradiction");
            let text = error.render().to_string();
            assert!(text.contains(advice), "{words:?}: {text}");
        }
        for words in [
            &["--pid", "1"][..],
            &["--pid", "1", "--duration", "1.5", "--rate", "0", "-o", "f", "--stats", "g"],
            &["--pid", "1", "--dump", "-o", "f", "-q"],
            &["--recover", "f", "-v"],
            &["--list", "-o", "f", "p", "--dump"],
            &["p", "--duration", "1"],
            // The last one of several counts, and flags may be repeated.
            &["--rate", "7", "-o", "a", "--rate", "8", "-o", "b", "--times", "--times", "-q", "-q", "p"],
            &["-v", "-vv", "--hooks", "none", "--hooks", "both", "p"],
            &["--generate", "man"],
        ] {
            Args::typed([&["gprofinject"], words].concat()).expect("no contradiction");
        }
    }

    #[test]
    fn exports() {
        let words = ["gprofinject", "--export", "dot=a=b,json=c", "--export", "folded=d", "p"];
        let args = Args::typed(words).expect("accepted");
        let exports = args.export.iter().map(|export| (export.format.to_string(), export.file.clone()));
        let expected = [("dot", "a=b"), ("json", "c"), ("folded", "d")];
        let expected = expected.map(|(format, file)| (format.to_owned(), PathBuf::from(file)));
        assert_eq!(exports.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn the_last_of_several_counts() {
        let words = ["gprofinject", "--rate", "7", "-I", "a", "-v", "--rate", "8", "-I", "b", "-v", "p"];
        let args = Args::typed(words).expect("repeated options");
        assert_eq!((args.rate, args.include.join(" "), args.verbose), (Some(8), "a b".to_owned(), 2));
    }
}
