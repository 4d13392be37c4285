//! The `gprofinject` command: profiles a program that was built without -pg.
//!
//! ```text
//! args -> settings      what was typed, what it means
//! resolve -> subject    the file that is profiled, and what kind it is (elf, memory)
//! profile_plan          what is hooked, and how (filters, names)
//! output, run_folder    where the profile and the counters go (region)
//! sampler               who samples: perf (records) or the agent's timers, into a histogram
//! spawn -> supervise    the program runs (early, signals, witness)
//! collect -> profile    counters and samples to a gmon.out
//! report                what there is to say
//! ```

mod args;
mod collect;
mod early;
mod elf;
mod failure;
mod filters;
mod histogram;
mod list;
mod memory;
mod names;
mod output;
mod perf;
mod profile;
mod profile_plan;
mod records;
mod region;
mod report;
mod resolve;
mod run;
mod run_folder;
mod sampler;
mod say;
mod settings;
mod signals;
mod spawn;
mod subject;
mod supervise;
mod sys;
mod witness;

use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use crate::args::Args;
use crate::failure::Failure;
use crate::run::Inherited;
use crate::settings::Settings;
use crate::supervise::Ending;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(answer) => {
            let _ = answer.print();
            return if answer.use_stderr() { ExitCode::from(failure::OURS) } else { ExitCode::SUCCESS };
        }
    };
    match run(args) {
        Ok(ending) => end_like(ending),
        Err(failure) => {
            say::line(format_args!("{}", sys::plain(&format!("{:#}", failure.error))));
            ExitCode::from(failure.status)
        }
    }
}

fn run(args: Args) -> Result<Ending, Failure> {
    let start = std::time::Instant::now();
    let inherited =
        Inherited { descriptors: sys::inherited_descriptors(), file_limit: sys::raise_file_limit() };
    let settings = Settings::from(args)?;
    let voice = settings.voice;
    let program = resolve::find(&settings.command)?;
    if let Some(note) = &program.note {
        voice.note(note);
    }
    let binary = subject::Binary::open(&program.binary);
    memory::expect_plan(binary.len());
    let subject = binary.examine();
    if settings.list {
        let planned = profile_plan::make(&subject, settings.hooks, &settings.filters, true);
        run::say_what_is_possible(&planned, &program, &settings);
        list::print(&planned, voice.0 == say::Level::Verbose)?;
        return Ok(Ending::Exited(0));
    }
    let output = settings.output.check()?;
    let stats = match &settings.stats {
        Some(path) => Some(output::target(path).with_context(|| {
            format!("cannot write to {}; name another file with --stats FILE", path.display())
        })?),
        None => None,
    };
    let rate = if subject.blind { 0 } else { settings.rate };
    let choice = sampler::choose(settings.sampler, rate, subject.takes_agent());
    let agent_wanted = choice.method == sampler::Method::Timer;
    let planned = profile_plan::make(&subject, settings.hooks, &settings.filters, agent_wanted);
    memory::plan_made();
    run::say_what_is_possible(&planned, &program, &settings);
    run::profiled(run::Prepared { settings, program, planned, choice, output, stats, start, inherited })
}

/// Whoever waits for us sees what it would have seen of the program.
fn end_like(ending: Ending) -> ExitCode {
    match ending {
        Ending::Exited(status) => ExitCode::from(status),
        Ending::Killed(signal) => {
            signals::die(signal);
            ExitCode::from(128u8.wrapping_add(signal as u8))
        }
    }
}
