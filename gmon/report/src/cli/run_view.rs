//! What the tables of a run have in common: the selection, the order, and how names and shares are shown.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Result, bail};
use gmon_export::{ClockSource, Function, Module, Run, Time, View};
use gprofinject_image::names::similar::similar;
use gprofinject_image::names::unambiguous;
use serde_json::{Value, json};

use crate::cli::table_args::TableArgs;
use crate::cli::text::{Style, chosen_in_module, chosen_path, file_name, percent, plain};
use crate::cli::units::{amount_if_seen, duration, is_seen};

/// The name that is shown for a caller that is not known.
pub(crate) const NOT_KNOWN: &str = "[not hooked]";

/// What stands before a time that is an estimate.
pub(crate) const ESTIMATE: &str = "~";

/// The names of functions as they are shown.
pub(crate) struct Names(HashMap<u32, String>);

impl Names {
    /// Returns the name of one of the functions for which this was made.
    pub(crate) fn of(&self, function: u32) -> &str {
        self.0.get(&function).map_or("", String::as_str)
    }
}

/// A run and the user's selection.
pub(crate) struct RunView<'a> {
    pub(crate) args: &'a TableArgs,
    pub(crate) run: &'a Run,
    pub(crate) style: Style,
    /// Whether each function was selected.
    chosen: Vec<bool>,
    /// The time of which shares are, in nanoseconds.
    total_ns: u64,
}

impl<'a> RunView<'a> {
    /// Returns the view of a run.
    ///
    /// # Errors
    /// The user's patterns match nothing.
    pub(crate) fn new(args: &'a TableArgs, run: &'a Run, library: Option<&Path>) -> Result<RunView<'a>> {
        let library = library.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let wanted: Vec<String> = args.module.iter().cloned().chain(library).collect();
        let modules: Vec<bool> =
            run.modules.iter().map(|module| chosen_path(&wanted, &module.path)).collect();
        if !wanted.is_empty() && !modules.contains(&true) {
            let names: Vec<_> = run.modules.iter().map(|module| plain(module.name())).collect();
            bail!("no module is called {}; there are {}", wanted.join(" or "), names.join(", "));
        }
        let in_module = |function: &Function| match function.module {
            Some(module) => modules.get(module as usize).copied().unwrap_or(false),
            None => wanted.is_empty(),
        };
        let chosen: Vec<bool> = run
            .functions
            .iter()
            .map(|function| {
                let module = run.module_of(function).map_or("", |module| &module.path);
                in_module(function) && chosen_in_module(&args.function, module, &function.name)
            })
            .collect();
        let view =
            RunView { args, run, style: Style::new(args.shown.color), chosen, total_ns: run.total_ns() };
        if !args.function.is_empty() && !view.chosen.contains(&true) {
            let wanted = args.function.join(" or ");
            let near =
                similar(&args.function, run.functions.iter().map(|function| plain(&function.demangled)));
            match near.is_empty() {
                true => bail!("no function is called {wanted}"),
                false => bail!("no function is called {wanted}; similar names: {}", near.join(", ")),
            }
        }
        Ok(view)
    }

    /// Returns the names of functions as they are shown. Names that are the same in short but differ are told apart.
    pub(crate) fn names(&self, functions: impl IntoIterator<Item = u32>) -> Names {
        let mut functions: Vec<u32> = functions.into_iter().collect();
        functions.sort_unstable();
        functions.dedup();
        let known =
            functions.iter().filter_map(|&index| Some((index, self.run.functions.get(index as usize)?)));
        let shown = &self.args.shown;
        if shown.no_demangle || shown.full_names {
            // A function without a name is called by its address.
            let name = |function: &Function| match shown.no_demangle && !function.name.is_empty() {
                true => plain(&function.name),
                false => plain(&function.demangled),
            };
            return Names(known.map(|(index, function)| (index, name(function))).collect());
        }
        // The same name in two modules is told apart by the module.
        let mut of_module: HashMap<Option<u32>, Vec<(u32, &str)>> = HashMap::new();
        for (index, function) in known {
            of_module.entry(function.module).or_default().push((index, &function.demangled));
        }
        let mut names = HashMap::new();
        for functions in of_module.into_values() {
            let full: Vec<&str> = functions.iter().map(|&(_, name)| name).collect();
            let is_generated = functions.iter().any(|&(index, _)| self.is_generated(index));
            let short = match is_generated {
                true => full.iter().copied().map(Cow::Borrowed).collect(),
                false => unambiguous(&full),
            };
            names.extend(functions.iter().zip(short).map(|(&(index, _), name)| (index, plain(&name))));
        }
        Names(names)
    }

    /// Whether a function was made at run time.
    fn is_generated(&self, index: u32) -> bool {
        let function = self.run.functions.get(index as usize);
        function.and_then(|function| self.run.module_of(function)).is_some_and(gmon_run::Module::is_generated)
    }

    /// Returns the file name of a function's module, or an empty text if that is not known.
    pub(crate) fn module(&self, function: &Function) -> String {
        self.run.module_of(function).map_or_else(String::new, |module| file_name(&module.path))
    }

    /// Whether the table has to name modules.
    pub(crate) fn has_modules(&self) -> bool {
        self.run.modules.len() > 1
    }

    /// Returns a time's share of all time, in percent.
    pub(crate) fn share(&self, ns: u64) -> String {
        match self.total_ns {
            0 => String::new(),
            _ if !is_seen(self.run.time, ns) => String::new(),
            total => format!("{:.2}", 100.0 * ns as f64 / total as f64),
        }
    }

    /// Whether the user has selected a function.
    pub(crate) fn chooses(&self, function: u32) -> bool {
        self.chosen.get(function as usize).copied().unwrap_or(false)
    }

    /// Whether the user has selected all functions.
    pub(crate) fn chooses_all(&self) -> bool {
        !self.chosen.contains(&false)
    }

    /// Returns the indexes of the functions that the user has selected.
    pub(crate) fn chosen(&self) -> impl Iterator<Item = u32> {
        (0..self.run.functions.len() as u32).filter(|&index| self.chooses(index))
    }

    /// Returns an inclusive time, or one of an arc, in words: marked if it is an estimate.
    pub(crate) fn estimate(&self, ns: u64) -> String {
        let mark = if self.run.time == Time::Estimated && ns > 0 { ESTIMATE } else { "" };
        format!("{mark}{}", self.amount(ns))
    }

    /// Returns a time in words, or a number of instructions if these take the place of times. It is blank if no sample has seen it.
    pub(crate) fn amount(&self, ns: u64) -> String {
        amount_if_seen(self.run.time, ns)
    }

    /// Prints what the numbers are.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub(crate) fn head(&self, out: &mut impl Write) -> io::Result<()> {
        let run = self.run;
        let view = match run.view {
            View::Program => "",
            View::Process if run.programs.len() > 1 => ", with their libraries",
            View::Process if run.modules.len() > 1 => " and its libraries",
            View::Process => "",
        };
        writeln!(out, "{}{view}: {}", plain(&run.program), gmon::counted(run.calls(), "call", "calls"))?;
        if run.runs.len() > 1 {
            let hosts: BTreeSet<&str> = run.runs.iter().map(|run| run.host.as_str()).collect();
            let runs = gmon::counted(run.runs.len(), "run", "runs");
            writeln!(out, "the sum of {runs} on {}", gmon::counted(hosts.len(), "host", "hosts"))?;
        }
        let period = duration(run.sample_period_ns);
        match run.time {
            Time::None => writeln!(out, "time: none was measured"),
            Time::Sampled | Time::Estimated => {
                let samples = gmon::counted(run.samples, "sample", "samples");
                let inclusive = match run.time {
                    Time::Sampled => sampled_stacks(run),
                    _ => format!(
                        "{ESTIMATE}: an estimate, as gprof's: the time of a function is divided among its callers by their numbers of \
                         calls; --times measures"
                    ),
                };
                let time = format!("time: CPU time, {samples}, one for each {}", period.trim_end());
                writeln!(out, "{}", self.style.wrap(&time))?;
                writeln!(out, "{}", self.style.wrap(&inclusive))
            }
            Time::Executed => {
                let time = "self, inclusive: instructions, counted as each call executed them; those of functions that are not hooked are \
                            in none";
                writeln!(out, "{}", self.style.wrap(time))?;
                match run.sample_period_ns {
                    0 => Ok(()),
                    _ => writeln!(out, "cpu: CPU time, a sample for each {}", period.trim_end()),
                }
            }
            Time::Measured { error_ns } => {
                let took = match run.duration_ns {
                    0 => String::new(),
                    ns => format!(" in {}", duration(ns).trim_end()),
                };
                let counters = if run.has_instructions { ", with that of counting basic blocks" } else { "" };
                let time = format!(
                    "time: wall time, measured in each call{took}{counters}; error up to {error_ns:.1} ns a call, more right after a long \
                     chain of operations"
                );
                writeln!(out, "{}", self.style.wrap(&time))?;
                if let Some(short) = counted_only(run) {
                    writeln!(out, "{}", self.style.wrap(&short))?;
                }
                let cpu = match (run.ready_ns, run.sample_period_ns) {
                    (Some(ready), _) => format!(
                        "cpu: time without waiting; {} more, for which others had the processor, are in no time",
                        duration(ready).trim_end()
                    ),
                    (None, 0) => return Ok(()),
                    (None, _) => format!("cpu: CPU time, a sample for each {}", period.trim_end()),
                };
                writeln!(out, "{}", self.style.wrap(&cpu))
            }
        }
    }

    /// Returns the members with which each JSON report begins. `schema` is the name of the report (docs/json.md).
    pub(crate) fn json_head(&self, schema: &str) -> String {
        format!("\"schema\":\"{schema}\",\"version\":1,{}", json_head(self.run))
    }

    /// Returns a function in JSON.
    pub(crate) fn json_function(&self, function: &Function) -> Value {
        json_function(self.run, function)
    }

    /// Returns a function of a path in JSON, by its index; `other` is the name of what is no function.
    pub(crate) fn json_node(&self, function: Option<u32>, other: &str) -> Value {
        match function.and_then(|function| self.run.functions.get(function as usize)) {
            Some(function) => self.json_function(function),
            None => json!({"name": other, "demangled": other, "module": null}),
        }
    }

    /// Returns a thread in JSON, by its index.
    pub(crate) fn json_thread(&self, thread: u32) -> Value {
        let thread = self.run.threads.get(thread as usize);
        thread
            .map_or(Value::Null, |thread| json!({"pid": thread.pid, "tid": thread.tid, "name": thread.name}))
    }
}

/// Returns which calls were only counted, in words; `None` if none were.
pub(crate) fn counted_only(run: &Run) -> Option<String> {
    let counted: Vec<u64> =
        run.functions.iter().map(|of| of.counted).filter(|&counted| counted > 0).collect();
    let calls = counted.iter().fold(0_u64, |sum, &counted| sum.saturating_add(counted));
    let below = run.clock.map_or(0.0, |clock| clock.counted_below_ns);
    (calls > 0).then(|| {
        format!(
            "short: {} of {} took less than {} a call: they were only counted, and their time is in their callers'",
            gmon::counted(calls, "call", "calls"),
            gmon::counted(counted.len(), "function", "functions"),
            duration(below as u64).trim_end()
        )
    })
}

/// Returns what inclusive times are by sampled stacks, in words.
fn sampled_stacks(run: &Run) -> String {
    let inclusive = "inclusive time: by sampled stacks";
    match run.samples_without_callers() {
        0 => inclusive.to_owned(),
        samples => {
            let share = percent(samples, run.samples);
            format!("{inclusive}; not all callers are known of {share} of the samples")
        }
    }
}

/// Returns the members of a JSON object that say what a run is.
pub(crate) fn json_head(run: &Run) -> String {
    let modules: Vec<_> = run
        .modules
        .iter()
        .map(|module| json!({"path": module.path, "build_id": hexadecimal(&module.build_id)}))
        .collect();
    let programs: Vec<_> = run
        .programs
        .iter()
        .map(|program| {
            json!({
                "name": program.name,
                "processes": program.processes,
                "pid": Some(program.pid).filter(|&pid| pid > 0),
            })
        })
        .collect();
    let runs: Vec<_> = run
        .runs
        .iter()
        .map(|run| {
            json!({
                "id": format!("{:016x}", run.id),
                "host": run.host,
                "rank": run.rank,
                "start_unix_ns": run.start_unix_ns,
                "duration_ns": run.duration_ns,
            })
        })
        .collect();
    let (time, error_ns) = match run.time {
        Time::None => (Value::Null, Value::Null),
        Time::Sampled => (json!("sampled"), Value::Null),
        Time::Estimated => (json!("estimated"), Value::Null),
        Time::Measured { error_ns } => (json!("measured"), json!(error_ns)),
        Time::Executed => (json!("instructions"), Value::Null),
    };
    let clock = run.clock.map_or(Value::Null, |clock| {
        json!({
            "source": match clock.source {
                ClockSource::Tsc => "tsc",
                ClockSource::ClockGettime => "clock_gettime",
                ClockSource::Instructions => "instructions",
            },
            "ticks_per_second": clock.ticks_per_second,
            "inside_ns": clock.inside_ns,
            "outside_ns": clock.outside_ns,
            "counted_below_ns": Some(clock.counted_below_ns).filter(|&below| below > 0.0),
        })
    });
    format!(
        "\"program\":{},\"start_unix_ns\":{},\"duration_ns\":{},\n\"time\":{time},\"error_ns\":{error_ns},\"clock\":{clock},\
         \"samples\":{},\"sample_period_ns\":{},\n\"runs\":{},\n\"programs\":{},\n\"modules\":{}",
        json!(run.program),
        run.start_unix_ns,
        run.duration_ns,
        run.samples,
        run.sample_period_ns,
        json!(runs),
        json!(programs),
        json!(modules),
    )
}

/// Returns a function in JSON.
pub(crate) fn json_function(run: &Run, function: &Function) -> Value {
    let module = run.module_of(function).map(|module| &module.path);
    json!({"name": symbol(run, function), "demangled": function.demangled, "module": module})
}

/// Returns the name of a function's symbol: an empty text if it has none, and is called by its place.
fn symbol<'r>(run: &Run, function: &'r Function) -> &'r str {
    let name = function.name.as_str();
    let place = match run.module_of(function).map_or("", Module::name) {
        "" => format!("{:#x}", function.address),
        file => format!("{file}+{:#x}", function.address),
    };
    if name == place { "" } else { name }
}

fn hexadecimal(bytes: &[u8]) -> Value {
    match bytes {
        [] => Value::Null,
        bytes => json!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}
