//! The harness of the system tests: it runs trials side by side and reports them as libtest does.
//!
//! Cargo's own harness has a fixed list of tests and as many threads as there are processors. Many system
//! tests wait most of the time, some measure, and the matrix of programs and flag sets is read from a folder.
//! So this harness uses [`libtest_mimic`], runs twice as many trials at a time as there are processors, and
//! runs a trial that measures alone. Trials whose programs keep all processors busy run one after the other:
//! two of them at a time would take several times as long, because gprofinject would then get little of the
//! machine beside all their threads.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed};

use crate::run;

/// Whether other trials may run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// They may: what the trial asserts does not depend on how much of the machine it gets.
    Together,
    /// They may, except for others of this kind: the trial's program has threads that never rest.
    Busy,
    /// They may not: the trial asserts a time or a share of time.
    Alone,
}

/// A test, which passes unless it panics.
pub struct Trial {
    name: String,
    company: Company,
    run: Box<dyn FnOnce() + Send>,
}

impl Trial {
    /// Returns a trial of this name. Names are paths such as `module::test`.
    pub fn new(name: String, company: Company, run: impl FnOnce() + Send + 'static) -> Trial {
        Trial { name, company, run: Box::new(run) }
    }
}

/// Lists the tests of a module: it defines `trials()`, which returns them. A test that is not listed is dead
/// code, which does not compile.
///
/// ```ignore
/// trials! {
///     together: one_test, another_one;
///     busy: one_whose_program_never_rests;
///     alone: one_that_measures;
/// }
/// ```
#[macro_export]
macro_rules! trials {
    ($($company:ident: $($name:ident),+;)+) => {
        /// Returns the tests of this module.
        pub(crate) fn trials() -> Vec<$crate::trials::Trial> {
            let module = module_path!().split_once("::").map_or("", |(_, module)| module);
            vec![$($($crate::trials::Trial::new(
                format!("{module}::{}", stringify!($name)),
                $crate::trials!(@ $company),
                $name,
            )),+),+]
        }
    };
    (@ together) => { $crate::trials::Company::Together };
    (@ busy) => { $crate::trials::Company::Busy };
    (@ alone) => { $crate::trials::Company::Alone };
}

thread_local! {
    /// The message of a panic in a trial's thread, with its place. `None` means that no trial runs in this
    /// thread.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A trial that runs together with others holds this shared, and one that runs alone holds it exclusively.
static MACHINE: RwLock<()> = RwLock::new(());

/// A busy trial holds this, after [`MACHINE`].
static BUSY: Mutex<()> = Mutex::new(());

/// How long each trial took, and the processor time that this process and those it started took meanwhile.
static TIMES: Mutex<Vec<(Duration, Duration, String)>> = Mutex::new(Vec::new());

/// Runs the trials that the command line names, and reports the results. The trials that run alone come last.
///
/// The command line is libtest's. With `GPROFINJECT_TIMES=1` the slowest trials and the processor time are printed at the end.
pub fn main(trials: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = Some(2 * thread::available_parallelism().map_or(1, usize::from));
    }
    let trials = in_order(trials);
    let say_otherwise = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let is_trial =
            PANIC.with(|said| said.borrow_mut().as_mut().map(|said| *said = info.to_string()).is_some());
        if !is_trial {
            say_otherwise(info);
        }
    }));
    let trials = trials.into_iter().map(|trial| {
        let (name, company, run) = (trial.name.clone(), trial.company, trial.run);
        libtest_mimic::Trial::test(trial.name, move || one(name, company, run))
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if std::env::var_os("GPROFINJECT_TIMES").is_some() {
        let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
        times.sort();
        for (time, processor, name) in times.iter().rev().take(60) {
            // The processor time of one trial is known only if the trials run one after the other.
            let processor =
                if arguments.test_threads == Some(1) { processor.as_secs_f64() } else { f64::NAN };
            println!("{:7.2} s {processor:7.2} s  {name}", time.as_secs_f64());
        }
        let (own, others) = run::processor_time();
        println!(
            "{:7.2} s  processor time of this process, {:.2} s of those that it started",
            own.as_secs_f64(),
            others.as_secs_f64()
        );
    }
    conclusion.exit_code()
}

/// Returns the trials in the order in which they start: the busy ones spread among the first half of the others, so
/// that few threads wait for another busy trial to end, and those that run alone last.
fn in_order(trials: Vec<Trial>) -> Vec<Trial> {
    let (alone, trials): (Vec<_>, Vec<_>) =
        trials.into_iter().partition(|trial| trial.company == Company::Alone);
    let (busy, others): (Vec<_>, Vec<_>) =
        trials.into_iter().partition(|trial| trial.company == Company::Busy);
    let between = (others.len() / 2).checked_div(busy.len()).unwrap_or(0);
    let mut others = others.into_iter();
    let mut all = Vec::new();
    for trial in busy {
        all.push(trial);
        all.extend(others.by_ref().take(between));
    }
    all.into_iter().chain(others).chain(alone).collect()
}

fn one(name: String, company: Company, trial: Box<dyn FnOnce() + Send>) -> Result<(), Failed> {
    // A trial that has failed panicked while it held the lock. The lock protects no data that could be
    // inconsistent.
    let alone = company == Company::Alone;
    let _alone = alone.then(|| MACHINE.write().unwrap_or_else(PoisonError::into_inner));
    let _shared = (!alone).then(|| MACHINE.read().unwrap_or_else(PoisonError::into_inner));
    let _busy = (company == Company::Busy).then(|| BUSY.lock().unwrap_or_else(PoisonError::into_inner));
    PANIC.with(|said| *said.borrow_mut() = Some(String::new()));
    let processor_time = || {
        let (own, others) = run::processor_time();
        own + others
    };
    let (start, before) = (Instant::now(), processor_time());
    let outcome = panic::catch_unwind(AssertUnwindSafe(trial));
    let taken = (start.elapsed(), processor_time() - before, name);
    TIMES.lock().unwrap_or_else(PoisonError::into_inner).push(taken);
    let said = PANIC.with(|said| said.borrow_mut().take()).unwrap_or_default();
    outcome.map_err(|payload| Failed::from(if said.is_empty() { message(&*payload) } else { said }))
}

/// Returns the message of a panic that came from another thread.
fn message(payload: &(dyn Any + Send)) -> String {
    let text =
        payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_trials_are_spread_and_those_alone_come_last() {
        let trial = |(company, name): (Company, &str)| Trial::new(name.to_owned(), company, || ());
        let others = ["1", "2", "3", "4", "5", "6", "7", "8"].map(|name| (Company::Together, name));
        let named = [(Company::Alone, "a"), (Company::Busy, "b"), (Company::Busy, "c")];
        let ordered = in_order(named.into_iter().chain(others).map(trial).collect());
        let names: Vec<&str> = ordered.iter().map(|trial| trial.name.as_str()).collect();
        assert_eq!(names, ["b", "1", "2", "c", "3", "4", "5", "6", "7", "8", "a"]);
        assert_eq!(in_order(others.map(trial).into()).len(), others.len());
    }
}
