//! The columns of `gmon flat`: which a table has, and what stands in them.

use gmon_export::processes;
use gmon_export::{Durations, FunctionTimes, Process, Run, Thread, Time};

use crate::cli::reports::modules::{Interface, overhead};
use crate::cli::run_view::ESTIMATE;
use crate::cli::table_args::{By, Column};
use crate::cli::text::percent;
use crate::cli::units::{amount_if_seen, duration, is_seen};

/// The numbers of a row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) calls: u64,
    pub(crate) primitive: u64,
    pub(crate) open: u64,
    /// The calls of a function that were only counted.
    pub(crate) counted: u64,
    /// Whether the times of a function say nothing, because nearly all of its calls were only counted.
    pub(crate) is_short: bool,
    pub(crate) samples: u64,
    pub(crate) self_ns: u64,
    pub(crate) inclusive_ns: u64,
    pub(crate) self_raw_ns: u64,
    pub(crate) inclusive_raw_ns: u64,
    pub(crate) durations: Option<Durations>,
    pub(crate) instructions: u64,
    /// The time of which the CPU time is a part. The rest is waiting.
    pub(crate) wall_ns: u64,
    /// How much of it is waiting, if it was seen when the threads waited.
    pub(crate) waiting_ns: Option<u64>,
    /// The thread, in the table of threads.
    pub(crate) thread: Option<Thread>,
    /// The process, in the table of processes.
    pub(crate) process: Option<Process>,
    /// The calls and times of the module as a whole, in the table of modules.
    pub(crate) interface: Option<Interface>,
}

impl Numbers {
    /// Returns the numbers of a function.
    pub(crate) fn of(function: &gmon_export::Function) -> Numbers {
        Numbers {
            calls: function.calls,
            primitive: function.primitive,
            open: function.open,
            counted: function.counted,
            is_short: function.is_short,
            samples: function.samples,
            self_ns: function.self_ns,
            inclusive_ns: function.inclusive_ns,
            self_raw_ns: function.self_raw_ns,
            inclusive_raw_ns: function.inclusive_raw_ns,
            durations: function.durations,
            instructions: function.instructions,
            wall_ns: function.self_ns,
            waiting_ns: function.waiting_ns,
            thread: None,
            process: None,
            interface: None,
        }
    }

    /// Adds those numbers of another row of which a sum is one: not inclusive times, which contain each other.
    pub(crate) fn add(&mut self, other: &Numbers) {
        for (to, value) in [
            (&mut self.calls, other.calls),
            (&mut self.primitive, other.primitive),
            (&mut self.open, other.open),
            (&mut self.samples, other.samples),
            (&mut self.self_ns, other.self_ns),
            (&mut self.self_raw_ns, other.self_raw_ns),
            (&mut self.instructions, other.instructions),
            (&mut self.wall_ns, other.wall_ns),
        ] {
            *to = to.saturating_add(value);
        }
        if let Some(more) = other.waiting_ns {
            self.waiting_ns = Some(self.waiting_ns.unwrap_or(0).saturating_add(more));
        }
    }

    /// Adds the calls of a function in a thread.
    pub(crate) fn add_times(&mut self, times: &FunctionTimes) {
        self.add(&Numbers {
            calls: times.calls,
            primitive: times.primitive,
            open: times.open,
            samples: times.samples,
            self_ns: times.self_ns,
            self_raw_ns: times.self_raw_ns,
            ..Numbers::default()
        });
    }
}

/// Which columns a table has.
pub(crate) struct Kind {
    by: By,
    time: Time,
    /// The CPU time of a sample, in nanoseconds. 0 if these rows have no CPU time of their own.
    period_ns: u64,
    /// Whether it was seen when the threads waited.
    waits: bool,
    /// Whether a call had not returned at the end.
    open: bool,
    /// Whether some calls are recursive.
    recursive: bool,
    instructions: bool,
    raw: bool,
    /// Whether gprofinject has taken time that was seen.
    overhead: bool,
}

/// The columns that a narrow terminal does without, the first one first.
pub(crate) const OPTIONAL: [&str; 28] = [
    "raw inclusive",
    "raw self",
    "cumulative",
    "open",
    "~overhead",
    "between",
    "from outside",
    "p50",
    "min",
    "self/call",
    "~inclusive/call",
    "inclusive/call",
    "mean",
    "primitive",
    "waiting",
    "p99",
    "max",
    "cpu",
    "outside",
    "overhead",
    "instructions",
    "begin",
    "life",
    "module",
    "~inclusive",
    "inclusive",
    "self %",
    "self",
];

/// The columns that have counts.
pub(crate) const COUNTS: [&str; 5] = ["calls", "from outside", "primitive", "open", "instructions"];

impl Kind {
    pub(crate) fn new(run: &Run, by: By, raw: bool, rows: &[Numbers]) -> Kind {
        let has_samples = rows.iter().any(|row| row.samples > 0);
        Kind {
            by,
            time: run.time,
            // The samples of timers inside the program do not know their thread.
            period_ns: match by {
                _ if !run.time.is_measured() => 0,
                By::Thread if !has_samples => 0,
                _ => run.sample_period_ns,
            },
            waits: rows.iter().any(|row| row.waiting_ns.is_some()),
            open: rows.iter().any(|row| row.open > 0),
            recursive: by == By::Function && rows.iter().any(|row| row.primitive != row.calls),
            instructions: run.has_instructions && matches!(by, By::Function | By::Module),
            raw: raw && run.time.is_measured() && !is_whole(by),
            overhead: overhead(run) > 0,
        }
    }

    /// Returns the columns in front of the names.
    pub(crate) fn columns(&self) -> Vec<Column> {
        use Column::*;
        let (is_function, is_module) = (self.by == By::Function, self.by == By::Module);
        let is_measured = self.time.is_measured();
        [
            (Own, self.time.is_some()),
            (Inclusive, (is_function || is_module) && self.time.is_some()),
            (Between, is_module && self.time.is_some()),
            (Calls, true),
            (FromOutside, is_module),
            (Primitive, self.recursive),
            (Mean, is_function && self.time.is_some()),
            (Min, is_function && is_measured),
            (P50, is_function && is_measured),
            (P99, is_function && is_measured),
            (Max, is_function && is_measured),
            (Begin, self.by == By::Process),
            (Life, matches!(self.by, By::Thread | By::Process)),
            (Outside, self.by == By::Thread),
            (Overhead, self.by == By::Thread || is_module && self.overhead),
            (Cpu, self.waits || self.period_ns > 0),
            (Waiting, self.waits || self.period_ns > 0 && self.time != Time::Executed),
            (Open, self.open),
            (Instructions, self.instructions),
            (SelfRaw, self.raw),
            (InclusiveRaw, self.raw && is_function),
        ]
        .into_iter()
        .filter_map(|(column, has)| has.then_some(column))
        .collect()
    }

    /// Returns the column by which rows are sorted unless the user says otherwise. Where a program waits is not where it works.
    pub(crate) fn order(&self) -> Column {
        match self.time {
            Time::None => Column::Calls,
            _ if self.waits => Column::Cpu,
            _ => Column::Own,
        }
    }

    /// Whether rows can be sorted by a column.
    pub(crate) fn has(&self, column: Column) -> bool {
        match column {
            Column::Name => true,
            Column::Module => self.by == By::Function,
            // The numbers are there, whether or not they are shown.
            Column::Primitive => self.by == By::Function,
            Column::Open | Column::SelfRaw => self.time.is_measured() && !is_whole(self.by),
            Column::InclusiveRaw => self.by == By::Function && self.time.is_measured(),
            column => self.columns().contains(&column),
        }
    }

    /// Returns why there is no such column, for a message.
    pub(crate) fn hint(&self, column: Column) -> &'static str {
        match column {
            Column::Begin => "; --by process has it",
            Column::Life => "; --by process has it, and --by thread of measured times",
            Column::Outside => "; --by thread has it, of measured times",
            Column::Overhead => {
                "; --by thread has it, of measured times, and --by module, if any of it was seen"
            }
            Column::FromOutside | Column::Between => "; --by module has it",
            Column::Imbalance => "; --spread has it",
            Column::Instructions => "; `gprofinject --count lines` counts them",
            Column::Own | Column::Inclusive | Column::Mean if !self.time.is_some() => {
                "; no times were measured"
            }
            _ if !self.time.is_measured() => "; `gprofinject --times` measures it",
            Column::Cpu | Column::Waiting if self.by != By::Thread => "; CPU time was not sampled",
            Column::Cpu | Column::Waiting => {
                "; --by function and --by module have it if CPU time was sampled, and --by thread if perf events have sampled it"
            }
            _ => "; --by function has it",
        }
    }

    /// Returns the headings of a column.
    pub(crate) fn headings(&self, column: Column) -> Vec<&'static str> {
        use Column::*;
        let is_measured = self.time.is_measured();
        match column {
            Own if self.by == By::Function && !is_measured => vec!["self %", "self", "cumulative"],
            Own => vec!["self %", "self"],
            Inclusive if self.time == Time::Estimated => vec!["~inclusive"],
            Inclusive => vec!["inclusive"],
            Calls => vec!["calls"],
            FromOutside => vec!["from outside"],
            Between => vec!["between"],
            Primitive => vec!["primitive"],
            Mean if is_measured => vec!["mean"],
            Mean if self.time == Time::Estimated => vec!["self/call", "~inclusive/call"],
            Mean => vec!["self/call", "inclusive/call"],
            Min => vec!["min"],
            Max => vec!["max"],
            P50 => vec!["p50"],
            P99 => vec!["p99"],
            Cpu => vec!["cpu"],
            Waiting => vec!["waiting"],
            Open => vec!["open"],
            Instructions => vec!["instructions"],
            SelfRaw => vec!["raw self"],
            InclusiveRaw => vec!["raw inclusive"],
            Begin => vec!["begin"],
            Life => vec!["life"],
            Outside => vec!["outside"],
            Overhead if self.by == By::Module => vec!["~overhead"],
            Overhead => vec!["overhead"],
            Imbalance | Name | Module => Vec::new(),
        }
    }

    /// Returns the heading of the column with the numbers by which rows are sorted.
    pub(crate) fn sorted_by(&self, order: Column) -> &'static str {
        match order {
            Column::Own => "self",
            Column::Module => "module",
            // Of the times of a call, the last one is what rows are sorted by.
            order => self.headings(order).last().copied().unwrap_or_default(),
        }
    }

    /// Returns the texts of a column, as many as it has headings. What was not counted or measured is empty. `all` is the time of
    /// which shares are, and `cumulative` the self time of this row and those above.
    pub(crate) fn texts(
        &self,
        column: Column,
        row: &Numbers,
        all: u64,
        cumulative: Option<u64>,
    ) -> Vec<String> {
        let is_real =
            matches!(column, Column::Cpu | Column::Begin) || self.by == By::Process && column == Column::Life;
        let duration = |ns: u64| if is_real { duration(ns) } else { amount_if_seen(self.time, ns) };
        let time = |column| self.value(column, row).map_or_else(String::new, duration);
        if row.is_short
            && !matches!(column, Column::Calls | Column::Primitive | Column::Open | Column::Instructions)
        {
            return vec![String::new(); self.headings(column).len()];
        }
        let estimate = |text: String| match self.time == Time::Estimated && !text.is_empty() {
            true => format!("{ESTIMATE}{text}"),
            false => text,
        };
        match column {
            Column::Own => {
                let has_time = is_seen(self.time, row.self_ns);
                let share = percent(row.self_ns, all).trim_end_matches('%').to_owned();
                let mut texts = vec![if has_time { share } else { String::new() }, time(column)];
                if self.headings(column).len() > 2 {
                    // Rows that add nothing need no sum.
                    let cumulative = cumulative.filter(|_| has_time);
                    texts.push(cumulative.map_or_else(String::new, duration));
                }
                texts
            }
            Column::Inclusive
                if self.time != Time::Estimated && row.interface.is_some_and(|of| of.is_estimate) =>
            {
                vec![format!("{ESTIMATE}{}", time(column))]
            }
            Column::Inclusive => vec![estimate(time(column))],
            Column::Mean if !self.time.is_measured() => {
                let own = mean(row.self_ns, row.primitive);
                vec![own.map_or_else(String::new, duration), estimate(time(column))]
            }
            // A function without calls is not hooked, and one without instructions is in code that was not counted.
            Column::Primitive if row.calls == 0 => vec![String::new()],
            Column::Instructions if row.instructions == 0 => vec![String::new()],
            Column::Calls | Column::FromOutside if self.value(column, row).is_none_or(|calls| calls == 0) => {
                vec![String::new()]
            }
            Column::Calls | Column::FromOutside | Column::Primitive | Column::Open | Column::Instructions => {
                vec![self.value(column, row).unwrap_or(0).to_string()]
            }
            _ => vec![time(column)],
        }
    }

    /// Returns a number, in nanoseconds if it is a time. `None` if the row has none.
    pub(crate) fn value(&self, column: Column, row: &Numbers) -> Option<u64> {
        match column {
            Column::Calls => Some(row.calls),
            Column::Primitive => Some(row.primitive),
            Column::Own => Some(row.self_ns),
            Column::Inclusive => {
                Some(row.interface.map_or(row.inclusive_ns, |interface| interface.inclusive_ns))
            }
            Column::FromOutside => Some(row.interface?.from_outside),
            Column::Between => Some(row.interface?.between_ns),
            Column::Mean => mean(row.inclusive_ns, row.primitive.min(row.calls.saturating_sub(row.counted))),
            Column::Min => Some(row.durations?.min_ns),
            Column::Max => Some(row.durations?.max_ns),
            Column::P50 => Some(row.durations?.p50_ns),
            Column::P99 => Some(row.durations?.p99_ns),
            Column::Cpu => self.cpu(row),
            Column::Waiting => {
                row.waiting_ns.or_else(|| self.cpu(row).map(|cpu| row.wall_ns.saturating_sub(cpu)))
            }
            Column::Open => Some(row.open),
            Column::Instructions => Some(row.instructions),
            Column::SelfRaw => Some(row.self_raw_ns),
            Column::InclusiveRaw => Some(row.inclusive_raw_ns),
            Column::Begin => {
                row.process.filter(processes::is_seen).map(|process| process.begin_us.saturating_mul(1000))
            }
            Column::Life => match &row.thread {
                Some(thread) => Some(thread.life_ns),
                None => {
                    let life = |process: Process| process.end_us.saturating_sub(process.begin_us);
                    row.process.filter(processes::is_seen).map(|process| life(process).saturating_mul(1000))
                }
            },
            Column::Outside => Some(row.thread.as_ref()?.outside_ns),
            Column::Overhead => match &row.interface {
                Some(interface) => Some(interface.overhead_ns),
                None => Some(row.thread.as_ref()?.overhead_ns),
            },
            Column::Imbalance | Column::Name | Column::Module => None,
        }
    }

    /// Returns the CPU time, if it was seen or sampled beside measured times.
    fn cpu(&self, row: &Numbers) -> Option<u64> {
        match row.waiting_ns {
            Some(waiting) => Some(row.wall_ns.saturating_sub(waiting)),
            None => (self.period_ns > 0).then(|| row.samples.saturating_mul(self.period_ns)),
        }
    }

    /// Whether the last row of a table has the sum of a column.
    pub(crate) fn is_sum(column: Column) -> bool {
        use Column::*;
        matches!(column, Calls | Primitive | Own | Cpu | Waiting | Open | SelfRaw | Instructions)
    }
}

/// Whether rows are of programs or processes, of which it is not known how much of gprofinject's own time was taken out of each.
fn is_whole(by: By) -> bool {
    matches!(by, By::Program | By::Label | By::Process)
}

/// Returns a time for each call, rounded. `None` if there are no calls.
fn mean(ns: u64, calls: u64) -> Option<u64> {
    ns.saturating_add(calls / 2).checked_div(calls)
}
