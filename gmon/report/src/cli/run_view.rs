//! What the tables of a run have in common: the selection, the order, and how names and shares are shown.

use std::cmp::{Ordering, Reverse};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Result, bail};
use clap::ValueEnum;
use gmon_export::{Function, Run, Time, View};
use serde_json::{Value, json};

use crate::cli::run_args::{Order, TableArgs};
use crate::cli::similar::similar;
use crate::cli::text::{Style, chosen_function, chosen_path, plain};
use crate::cli::units::duration;

/// The name that is shown for a caller that is not known.
pub(crate) const NOT_KNOWN: &str = "[not hooked]";

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
            .map(|function| in_module(function) && chosen_function(&args.function, &function.name))
            .collect();
        let view =
            RunView { args, run, style: Style::new(args.shown.color), chosen, total_ns: run.total_ns() };
        if !args.function.is_empty() && !view.chosen.contains(&true) {
            let wanted = args.function.join(" or ");
            let near = similar(&args.function, run.functions.iter().map(|function| view.name(function)));
            match near.is_empty() {
                true => bail!("no function is called {wanted}"),
                false => bail!("no function is called {wanted}; similar names: {}", near.join(", ")),
            }
        }
        Ok(view)
    }

    /// Returns a function's name as it is shown.
    pub(crate) fn name(&self, function: &Function) -> String {
        plain(if self.args.shown.no_demangle { &function.name } else { &function.demangled })
    }

    /// Returns the file name of a function's module, or an empty text if that is not known.
    pub(crate) fn module(&self, function: &Function) -> String {
        self.run.module_of(function).map_or_else(String::new, |module| plain(module.name()))
    }

    /// Whether the table has to name modules.
    pub(crate) fn has_modules(&self) -> bool {
        self.run.modules.len() > 1
    }

    /// Returns a time's share of all time, in percent.
    pub(crate) fn share(&self, ns: u64) -> String {
        match self.total_ns {
            0 => String::new(),
            total => format!("{:.2}", 100.0 * ns as f64 / total as f64),
        }
    }

    /// Returns the indexes of the functions to show, in the order that the user wants.
    ///
    /// # Errors
    /// The run has not measured that.
    pub(crate) fn sorted(&self, order: Option<Order>, usual: Order) -> Result<Vec<u32>> {
        let order = order.unwrap_or(if self.run.time.is_some() { usual } else { Order::Calls });
        let missing = match order {
            Order::Own | Order::Inclusive | Order::PerCall => !self.run.time.is_some(),
            Order::Instructions => !self.run.has_instructions,
            Order::Calls | Order::Name | Order::Module => false,
        };
        if missing {
            let name = order.to_possible_value().map_or_else(String::new, |name| name.get_name().to_owned());
            bail!("--sort {name}: that was not measured in this run");
        }
        let mut indexes: Vec<u32> =
            (0..self.run.functions.len() as u32).filter(|&index| self.chosen[index as usize]).collect();
        let function = |index: &u32| &self.run.functions[*index as usize];
        // Equal ones are sorted as in gprof: by calls, then by name.
        let rest = |a: &Function, b: &Function| (b.calls, &a.demangled).cmp(&(a.calls, &b.demangled));
        let first = |a: &Function, b: &Function| -> Ordering {
            let key = |function: &Function| match order {
                Order::Own => function.self_ns,
                Order::Inclusive => function.inclusive_ns,
                Order::Calls => function.calls,
                Order::PerCall => per_call(function.inclusive_ns, function).unwrap_or(0),
                Order::Instructions => function.instructions,
                Order::Name | Order::Module => 0,
            };
            match order {
                Order::Name => a.demangled.cmp(&b.demangled),
                Order::Module => self.module(a).cmp(&self.module(b)).then(b.self_ns.cmp(&a.self_ns)),
                _ => Reverse(key(a)).cmp(&Reverse(key(b))),
            }
        };
        indexes.sort_by(|a, b| {
            let (a, b) = (function(a), function(b));
            first(a, b).then_with(|| rest(a, b))
        });
        Ok(indexes)
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
        let period = duration(run.sample_period_ns);
        match run.time {
            Time::None => writeln!(out, "time: none was measured"),
            Time::Estimated => writeln!(
                out,
                "time: CPU time, {}, one for each {}. Inclusive times are estimates, as gprof's: the time of a function is \
                 divided among its callers by their numbers of calls; --times measures them",
                gmon::counted(run.samples, "sample", "samples"),
                period.trim_end(),
            ),
            Time::Measured { error_ns } => {
                writeln!(
                    out,
                    "time: wall time, measured in each call; error up to {error_ns:.1} ns a call, more right after a long chain of operations"
                )
            }
        }
    }

    /// Returns the members with which each JSON report begins.
    pub(crate) fn json_head(&self) -> String {
        json_head(self.run)
    }

    /// Returns a function in JSON.
    pub(crate) fn json_function(&self, function: &Function) -> Value {
        json_function(self.run, function)
    }
}

/// Returns the members of a JSON object that say what a run is.
pub(crate) fn json_head(run: &Run) -> String {
    let modules: Vec<_> = run
        .modules
        .iter()
        .map(|module| json!({"path": module.path, "build_id": hexadecimal(&module.build_id)}))
        .collect();
    let (time, error_ns) = match run.time {
        Time::None => (Value::Null, Value::Null),
        Time::Estimated => (json!("estimated"), Value::Null),
        Time::Measured { error_ns } => (json!("measured"), json!(error_ns)),
    };
    format!(
        "\"program\":{},\"time\":{time},\"error_ns\":{error_ns},\"samples\":{},\"sample_period_ns\":{},\n\"modules\":{}",
        json!(run.program),
        run.samples,
        run.sample_period_ns,
        json!(modules),
    )
}

/// Returns a function in JSON.
pub(crate) fn json_function(run: &Run, function: &Function) -> Value {
    let module = run.module_of(function).map(|module| &module.path);
    json!({"name": function.name, "demangled": function.demangled, "module": module})
}

/// Returns the part of a time that belongs to each call that is not recursive, as gprof has it.
pub(crate) fn per_call(ns: u64, function: &Function) -> Option<u64> {
    ns.checked_div(function.primitive)
}

fn hexadecimal(bytes: &[u8]) -> Value {
    match bytes {
        [] => Value::Null,
        bytes => json!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}
