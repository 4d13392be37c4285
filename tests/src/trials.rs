//! The harness of the system tests: it runs trials side by side and reports them as libtest does.
//!
//! Cargo's own harness has a fixed list of tests and as many threads as there are processors. Many system
//! tests wait most of the time, some measure, and the matrix of programs and flag sets is read from a folder.
//! So this harness uses [`libtest_mimic`], runs twice as many trials at a time as there are processors, and
//! runs a trial that measures alone.

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
    (@ alone) => { $crate::trials::Company::Alone };
}

thread_local! {
    /// The message of a panic in a trial's thread, with its place. `None` means that no trial runs in this
    /// thread.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A trial that runs together with others holds this shared, and one that runs alone holds it exclusively.
static MACHINE: RwLock<()> = RwLock::new(());

/// How long each trial took, and the processor time that this process and those it started took meanwhile.
static TIMES: Mutex<Vec<(Duration, Duration, String)>> = Mutex::new(Vec::new());

/// Runs the trials that the command line names, and reports the results. The trials that run alone come last.
///
/// The command line is libtest's. With `GPROFINJECT_TIMES=1` the slowest trials and the processor time are printed at the end.
pub fn main(mut trials: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = Some(2 * thread::available_parallelism().map_or(1, usize::from));
    }
    trials.sort_by_key(|trial| trial.company == Company::Alone);
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
            // Of one trial after another it is known which one took it.
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

fn one(name: String, company: Company, trial: Box<dyn FnOnce() + Send>) -> Result<(), Failed> {
    // A trial that has failed panicked while it held the lock. The lock protects no data that could be
    // inconsistent.
    let (_shared, _alone) = match company {
        Company::Together => (Some(MACHINE.read().unwrap_or_else(PoisonError::into_inner)), None),
        Company::Alone => (None, Some(MACHINE.write().unwrap_or_else(PoisonError::into_inner))),
    };
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
