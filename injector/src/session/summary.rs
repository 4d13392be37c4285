//! The end of a run in at most four lines: what ran, where the time went, what that cost and hides, and what to type next.

mod functions;

use std::time::Duration;

use gmon::visible;
use gmon_run::By;

use crate::os::child::Ending;
use crate::os::columns::{cut, width};
use crate::session::digest::Digest;
use crate::session::words::{number_of, percent, scaled};

/// What the lines are made of.
pub(crate) struct Facts<'f> {
    /// The name of the program that was started.
    pub(crate) name: String,
    /// The whole command, which is named if other programs have run too.
    pub(crate) command: String,
    pub(crate) duration: Duration,
    pub(crate) ending: Ending,
    pub(crate) digest: &'f Digest,
    /// How many basic blocks have run, and of how many, if they were counted.
    pub(crate) blocks: Option<(usize, usize)>,
    /// What it cost and what was not seen, the most important first.
    pub(crate) remarks: Vec<String>,
    /// The command that shows the result.
    pub(crate) next: Option<String>,
}

/// What a line takes where there is no terminal.
const WITHOUT_TERMINAL: usize = 87;

/// A remark of which fewer columns are seen tells nothing.
const LEAST: usize = 32;

impl Facts<'_> {
    /// Returns the lines for a file, which nobody can make wider: what is remarked is not cut.
    pub(crate) fn log(&self) -> Vec<String> {
        let rows = if self.remarks.is_empty() || self.next.is_none() { 2 } else { 1 };
        let functions = functions::lines(self.digest, WITHOUT_TERMINAL, rows);
        let remarks = (!self.remarks.is_empty()).then(|| self.remarks.join("; "));
        let next = self.next.as_ref().map(|command| format!("next: {command}"));
        let end = remarks.into_iter().chain(next).collect();
        [vec![self.first(WITHOUT_TERMINAL)], functions, end].concat()
    }

    /// Returns the lines, each of which takes at most so many columns. Only the last one may take more: a command is of no use without
    /// its end.
    pub(crate) fn lines(&self, columns: usize) -> Vec<String> {
        let next = self.next.as_ref().map(|command| format!("next: {command}"));
        let joined = next.as_ref().and_then(|next| self.joined(next, columns));
        let is_remarked = !self.remarks.is_empty() && columns >= LEAST;
        let is_full = is_remarked && next.is_some();
        let rows = if is_full && joined.is_none() { 1 } else { 2 };
        let functions = functions::lines(self.digest, columns, rows);
        let remarks = is_remarked.then(|| cut(&self.remarks.join("; "), columns).into_owned());
        let end = match joined {
            Some(joined) if functions.len() > 1 => vec![joined],
            _ => remarks.into_iter().chain(next).collect(),
        };
        [vec![self.first(columns)], functions, end].concat()
    }

    /// Returns the remarks for which there is room before the next command, and this command, if there are any and at least the first one can
    /// be read there.
    fn joined(&self, next: &str, columns: usize) -> Option<String> {
        const BETWEEN: &str = " \u{b7} ";
        let room = columns.checked_sub(width(BETWEEN) + width(next)).filter(|&room| room >= LEAST)?;
        let mut whole = (1..=self.remarks.len()).rev().map(|count| self.remarks[..count].join("; "));
        let fitting = whole.find(|joined| width(joined) <= room);
        let remarks = fitting.or_else(|| Some(cut(self.remarks.first()?, room).into_owned()))?;
        Some(format!("{remarks}{BETWEEN}{next}"))
    }

    /// Returns the line about the whole run: as much as there is room for.
    fn first(&self, columns: usize) -> String {
        /// Whether samples, calls and processes are said, and how many programs are named.
        const SAID: [(bool, bool, bool, usize); 9] = [
            (true, true, true, 3),
            (true, true, true, 2),
            (false, true, true, 3),
            (false, true, true, 2),
            (false, true, true, 1),
            (false, false, true, 1),
            (false, false, false, 1),
            (false, true, false, 0),
            (false, false, false, 0),
        ];
        let said = SAID.map(|said| self.first_with(columns, said));
        let fitting = said.iter().find(|line| width(line) <= columns).or(said.last());
        cut(fitting.map_or("", String::as_str), columns).into_owned()
    }

    fn first_with(
        &self,
        columns: usize,
        (samples, calls, has_processes, programs): (bool, bool, bool, usize),
    ) -> String {
        const SHORTEST: usize = 10;
        let Digest { all, processes, .. } = *self.digest;
        let title = if self.digest.programs.len() > 1 { &self.command } else { &self.name };
        let title = cut(title, (columns / 3).max(SHORTEST));
        let time = time(self.duration);
        let mut line = match self.ending {
            Ending::Exited(0) => format!("{title}: {time}"),
            Ending::Exited(status) => format!("{title}: exit status {status} after {time}"),
            Ending::Killed(signal) => format!("{title}: killed by {} after {time}", signal_name(signal)),
        };
        if calls && all.calls > 0 {
            line += &format!(", {}", number_of(all.calls, "call", "calls"));
        }
        if calls && let Some((ran, found)) = self.blocks {
            line += &format!(", {ran} of {} ran", gmon::counted(found, "block", "blocks"));
        }
        if samples && all.samples > 0 {
            line += &format!(", {}", number_of(all.samples, "sample", "samples"));
        }
        if processes > 1 && has_processes {
            line += &format!(", {processes} processes");
        }
        line + &self.programs(programs)
    }

    /// Returns what there is to say of the most expensive programs, if there are several.
    fn programs(&self, most: usize) -> String {
        let Digest { by, all, ref programs, .. } = *self.digest;
        if programs.len() < 2 {
            return String::new();
        }
        let worth = |part: u64| part > 0 && percent(part, by.of(all)) >= 1.0;
        let named = programs.iter().filter(|program| worth(by.of(program.cost))).take(most);
        let named = named.enumerate().map(|(index, program)| {
            let name = cut(&visible(&program.name), 24).into_owned();
            let processes = match (program.processes, index) {
                (1, _) => String::new(),
                (processes, 0) => format!(" ({processes} processes)"),
                (processes, _) => format!(" ({processes})"),
            };
            match by {
                By::Calls if index == 0 => {
                    format!("{name}{processes} {}", number_of(program.cost.calls, "call", "calls"))
                }
                By::Calls => format!("{name}{processes} {}", scaled(program.cost.calls)),
                _ => format!("{name}{processes} {:.0} %", percent(by.of(program.cost), by.of(all))),
            }
        });
        let named: Vec<String> = named.collect();
        if named.is_empty() { String::new() } else { format!(": {}", named.join(", ")) }
    }
}

/// Returns a time in few characters.
fn time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..0.000_95 => format!("{:.1} ms", seconds * 1e3),
        ..0.099_5 => format!("{:.0} ms", seconds * 1e3),
        ..9.995 => format!("{seconds:.2} s"),
        ..59.95 => format!("{seconds:.1} s"),
        _ => {
            let whole = seconds.round() as u64;
            match whole / 3600 {
                0 => format!("{} min {} s", whole / 60, whole % 60),
                hours => format!("{hours} h {} min", whole / 60 % 60),
            }
        }
    }
}

/// Returns the name of a signal.
fn signal_name(signal: i32) -> String {
    const NAMES: [(i32, &str); 16] = [
        (libc::SIGHUP, "HUP"),
        (libc::SIGINT, "INT"),
        (libc::SIGQUIT, "QUIT"),
        (libc::SIGILL, "ILL"),
        (libc::SIGTRAP, "TRAP"),
        (libc::SIGABRT, "ABRT"),
        (libc::SIGBUS, "BUS"),
        (libc::SIGFPE, "FPE"),
        (libc::SIGKILL, "KILL"),
        (libc::SIGUSR1, "USR1"),
        (libc::SIGSEGV, "SEGV"),
        (libc::SIGUSR2, "USR2"),
        (libc::SIGPIPE, "PIPE"),
        (libc::SIGALRM, "ALRM"),
        (libc::SIGTERM, "TERM"),
        (libc::SIGSYS, "SYS"),
    ];
    let known = NAMES.iter().find(|(number, _)| *number == signal);
    known.map_or_else(|| format!("signal {signal}"), |(_, name)| format!("SIG{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gmon_run::Cost;

    use crate::session::digest::{FunctionCost, ProgramCost};

    fn cost(samples: u64, calls: u64) -> Cost {
        Cost { samples, calls, ..Cost::default() }
    }

    fn function(module: &str, name: &str, samples: u64, calls: u64) -> FunctionCost {
        let module = (!module.is_empty()).then(|| module.to_owned());
        FunctionCost { module, name: name.to_owned(), is_nameless: false, cost: cost(samples, calls) }
    }

    fn digest() -> Digest {
        let program = |name: &str, processes, samples| ProgramCost {
            name: name.to_owned(),
            processes,
            cost: cost(samples, 9),
        };
        Digest {
            by: By::Samples,
            all: cost(1000, 11_800_000),
            processes: 13,
            programs: vec![program("cc1", 6, 860), program("as", 6, 130), program("make", 1, 10)],
            functions: vec![
                function("cc1", "ggc_internal_alloc", 450, 1),
                function("", "_ZN5outer5inner7compute17ha0b1c2d3e4f5a6b7E", 300, 12_345),
                function("libc.so.6", "malloc", 50, 0),
            ],
            ..Digest::default()
        }
    }

    fn facts(digest: &Digest) -> Facts<'_> {
        Facts {
            name: "make".to_owned(),
            command: "make -j2".to_owned(),
            duration: Duration::from_millis(1310),
            ending: Ending::Exited(0),
            digest,
            blocks: None,
            remarks: vec!["60 % of the CPU time was gprofinject's own".to_owned(), "more".to_owned()],
            next: Some("gmon".to_owned()),
        }
    }

    #[test]
    fn four_lines_of_a_wide_terminal() {
        let digest = digest();
        assert_eq!(
            facts(&digest).lines(110),
            [
                "make -j2: 1.31 s, 12 M calls, 1.0 k samples, 13 processes: cc1 (6 processes) 86 %, as (6) 13 %, make 1 %",
                "cc1!ggc_internal_alloc 45 % (1 call) · outer::inner::compute 30 % (12 k) · libc!malloc 5 %",
                "60 % of the CPU time was gprofinject's own; more",
                "next: gmon",
            ]
        );
    }

    #[test]
    fn in_a_log_no_remark_is_cut() {
        let digest = digest();
        let long = "a long remark ".repeat(20);
        let facts = Facts { remarks: vec![long.clone(), "more".to_owned()], ..facts(&digest) };
        let lines = facts.log();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(lines[2..], [format!("{long}; more"), "next: gmon".to_owned()]);
        assert!(facts.lines(87).iter().all(|line| width(line) <= 87));
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        let digest = digest();
        let facts = facts(&digest);
        for columns in 20..130 {
            for line in facts.lines(columns) {
                assert!(width(&line) <= columns, "{columns}: {line}");
            }
        }
        let narrow = facts.lines(27);
        assert_eq!(narrow[0], "make -j2: 1.31 s");
        assert_eq!(facts.lines(28)[0], "make -j2: 1.31 s, 12 M calls");
        // Where calls and modules would leave room for one function, more functions say more.
        assert_eq!(narrow[1], "ggc_internal_alloc 45%,");
        assert_eq!(narrow.len(), 4);
    }

    #[test]
    fn what_did_not_happen_is_not_said() {
        let nothing = Digest { processes: 1, ..Digest::default() };
        let quiet = Facts { remarks: Vec::new(), next: None, ..facts(&nothing) };
        assert_eq!(quiet.lines(80), ["make: 1.31 s"]);
        let crashed = Facts { ending: Ending::Killed(libc::SIGSEGV), ..quiet };
        assert_eq!(crashed.lines(80), ["make: killed by SIGSEGV after 1.31 s"]);
        let failed = Facts { ending: Ending::Exited(3), blocks: Some((1, 2)), ..crashed };
        assert_eq!(failed.lines(80), ["make: exit status 3 after 1.31 s, 1 of 2 blocks ran"]);
    }

    /// The functions of `words`, with those that a sample finds in the C library.
    fn five() -> Digest {
        let functions = vec![
            function("libc.so.6", "__memcmp_evex_movbe", 440, 0),
            function("", "put_number", 160, 16_000_000),
            function("", "find_word", 110, 3_200_000),
            function("", "hash.constprop.0", 100, 3_200_000),
            function("", "next_random", 50, 8_000_000),
        ];
        Digest { programs: Vec::new(), processes: 1, functions, ..digest() }
    }

    #[test]
    fn five_functions_take_two_lines_if_one_is_too_short() {
        let five = five();
        let facts = facts(&five);
        let alone = Facts { remarks: Vec::new(), ..facts };
        assert_eq!(
            alone.lines(67)[1..],
            [
                "libc!__memcmp_evex_movbe 44%, put_number 16% 16M calls,",
                "find_word 11% 3.2M, hash 10% 3.2M, next_random 5% 8.0M",
                "next: gmon",
            ]
        );
        let lines = alone.lines(140);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[1].ends_with(" · hash 10 % (3.2 M) · next_random 5 % (8.0 M)"), "{lines:?}");
    }

    #[test]
    fn remarks_stand_beside_the_next_command_if_functions_take_their_line() {
        let five = five();
        let facts = facts(&five);
        let lines = facts.lines(67);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(lines[3], "60 % of the CPU time was gprofinject's own; more · next: gmon");
        // Where one of the remarks has no room, the most important one stays.
        assert_eq!(facts.lines(59)[3], "60 % of the CPU time was gprofinject's own · next: gmon");
        // There is no room for any: they keep their line.
        let lines = facts.lines(40);
        assert_eq!((lines.len(), lines[3].as_str()), (4, "next: gmon"), "{lines:?}");
        // A terminal of 40 columns has 27 beside the name of the command: too few for a remark, and enough for four
        // functions without their calls.
        let lines = facts.lines(27);
        assert_eq!(
            lines[1..],
            ["__me…vbe 44%, put_…ber 16%,", "find_word 11%, hash 10%", "next: gmon"],
            "{lines:?}"
        );
    }

    #[test]
    fn variants_that_differ_by_what_a_compiler_appends_keep_it() {
        let both =
            Digest { functions: vec![function("", "f", 300, 0), function("", "f.part.0", 200, 0)], ..five() };
        assert_eq!(facts(&both).lines(67)[1], "f 30 % · f.part.0 20 %");
    }

    #[test]
    fn without_times_calls_count() {
        let by_calls = Digest {
            by: By::Calls,
            programs: Vec::new(),
            functions: vec![function("", "a\x1b[2J", 0, 1), function("libz.so.1", "b", 1, 1_240_000)],
            ..digest()
        };
        assert_eq!(facts(&by_calls).lines(80)[1], "a\\u{1b}[2J 1 call · libz!b 1.2 M");
    }

    #[test]
    fn times_are_short() {
        let times = [10, 940, 8000, 99_600, 340_000, 12_340_000, 61_000_000, 7_260_000_000]
            .map(|us| time(Duration::from_micros(us)));
        assert_eq!(
            times,
            ["0.0 ms", "0.9 ms", "8 ms", "0.10 s", "0.34 s", "12.3 s", "1 min 1 s", "2 h 1 min"]
        );
    }
}
