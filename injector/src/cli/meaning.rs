//! What the typed arguments mean.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::cli::args::Args;
use crate::cli::min_time::MinTime;
use crate::live::view::Look;
use crate::options::{Clock, ClockArg, EngineArg, Export, Measure, Paths, Tracing, Verb};
use crate::os::say::{Level, Voice};
use crate::os::{clock, reporter, shadow_stack};
use crate::program::arguments::ArgsChoice;
use crate::program::filters::Filters;
use crate::program::libs::Libs;
use crate::program::plan_cache::PlanCache;
use crate::session::settings::{Kept, Settings, SlowCalls, TraceFile};
use crate::store::output;
use crate::store::rank::Suffix;

/// Returns what is to be measured of the durations of calls. `chosen` are the values that are kept.
fn measure(args: &Args, chosen: Option<&ArgsChoice>) -> Result<Option<Measure>> {
    let values = chosen.is_some();
    let results = chosen.is_some_and(ArgsChoice::wants_results);
    if values && !args.times && !args.paths {
        // No clock is read.
        let clock = Clock::Gettime;
        return Ok(Some(Measure {
            clock,
            paths: None,
            is_result: false,
            min_ns: 0,
            most_ns: 0,
            trace: None,
            values,
            results,
        }));
    }
    let is_slow = !args.slow.is_empty();
    let executed = args.clock == ClockArg::Instructions;
    if !args.times && !args.paths && args.trace.is_none() && !is_slow && !executed {
        return Ok(None);
    }
    let clock = match args.clock {
        ClockArg::Auto if clock::is_stable() => Clock::Tsc,
        ClockArg::Auto => Clock::Gettime,
        ClockArg::Tsc if !clock::is_stable() => {
            bail!("the time stamp counter of this machine does not run evenly; omit --clock tsc")
        }
        ClockArg::Tsc => Clock::Tsc,
        ClockArg::Gettime => Clock::Gettime,
        ClockArg::Instructions => Clock::Instructions,
    };
    let paths = args.paths.then_some(Paths { nodes_max: args.max_paths, folds: !args.no_fold });
    let trace = (args.trace.is_some() || is_slow).then_some(Tracing {
        full: args.trace_full,
        depth: args.trace_depth.unwrap_or(0),
        args: args.args.is_some(),
        least_ns: args.trace_min_time.map_or(0, |us| (us * 1000.0) as u64),
    });
    if args.min_time.is_some() && clock == Clock::Gettime {
        bail!(
            "--min-time needs the time stamp counter: clock_gettime takes longer than the calls that it leaves out"
        );
    }
    let (min_ns, most_ns) = args.min_time.map_or((0, 0), MinTime::limits);
    let is_result = args.times || args.paths || is_slow || executed;
    Ok(Some(Measure { clock, paths, is_result, min_ns, most_ns, trace, values, results }))
}

/// Returns the file of the trace, and what is kept of it.
fn trace_file(args: &Args, rank: &Suffix) -> Result<Option<TraceFile>> {
    let Some(path) = args.trace.clone() else { return Ok(None) };
    let triggers = args
        .trace_trigger
        .iter()
        .map(|glob| Filters::only("--trace-trigger", glob))
        .collect::<Result<_>>()?;
    let kept = args.trace_size.map(|mebibytes| Kept { bytes: mebibytes << 20, triggers });
    Ok(Some(TraceFile { path: rank.of(path), kept }))
}

/// Returns which calls are kept.
fn slow_calls(args: &Args) -> Result<Option<SlowCalls>> {
    if args.slow.is_empty() {
        return Ok(None);
    }
    let most = args.slow_top.unwrap_or(if args.slow_above.is_some() { 1000 } else { 10 });
    Ok(Some(SlowCalls {
        typed: args.slow.clone(),
        wanted: SlowCalls::filters(&args.slow)?,
        most: most as usize,
        least: args.slow_above.map_or(Duration::ZERO, |us| Duration::from_nanos((us * 1000.0) as u64)),
    }))
}

/// Returns what is added to the names of files if this process is part of a parallel job.
fn rank(args: &Args) -> Suffix {
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    Suffix::new(args.ranks, |name| std::env::var_os(name), host)
}

/// Samples per second of CPU time, unless the user asks for another number.
const RATE: u32 = 1000;
/// The same of a run whose calls are measured. What the kernel takes for a sample is part of the call in which it comes: on a
/// virtual machine 20 us, which is two percent of the time at the other rate. The samples only tell running from waiting here.
const MEASURED_RATE: u32 = 250;

/// Returns the settings that the arguments mean.
///
/// # Errors
/// Options contradict each other, or the engine cannot do what is asked of it.
pub(crate) fn settings(args: Args) -> Result<Settings> {
    args.engine.check(args.pid.is_some() && args.verb().is_none())?;
    if args.count.is_some() && args.engine != EngineArg::Builtin {
        bail!("--count copies whole functions, which Frida's gum cannot lead to; omit --engine");
    }
    let asked =
        [(args.dump_signal, Verb::Dump), (args.reset_signal, Verb::Reset), (args.pause_signal, Verb::Pause)];
    let signals: Vec<(i32, Verb)> =
        asked.into_iter().filter_map(|(signal, verb)| Some((signal?, verb))).collect();
    if (1..signals.len()).any(|n| signals[..n].iter().any(|(signal, _)| *signal == signals[n].0)) {
        bail!("two options name the same signal; give one of them another");
    }
    let level = match (args.quiet, args.verbose) {
        (true, _) => Level::Quiet,
        (_, 0) => Level::Normal,
        (_, 1) => Level::Verbose,
        _ => Level::Exhaustive,
    };
    if !args.outermost.is_empty() && args.engine != EngineArg::Builtin {
        bail!(
            "--outermost needs gprofinject's own hooks, which Frida does not make in libraries; omit --engine"
        );
    }
    let values = args.values.as_deref().map(ArgsChoice::parse_values).transpose()?;
    let measure = measure(&args, values.as_ref())?;
    // Whoever attaches to a process names the files of that one profile.
    let rank = if args.pid.is_some() { Suffix::default() } else { rank(&args) };
    let trace = trace_file(&args, &rank)?;
    let slow = slow_calls(&args)?;
    let look = (args.top.is_some() || args.plain.is_some()).then(|| {
        let is_plain = args.plain.is_some();
        let typed = args.plain.flatten().or(args.top.flatten());
        Look { interval: typed.unwrap_or(Duration::from_secs(if is_plain { 2 } else { 1 })), is_plain }
    });
    Ok(Settings {
        look,
        filters: Filters::new(&args.include, &args.exclude, args.min_size)?
            .counting(args.count, &args.file)?,
        libs: Libs::new(args.libs.as_deref(), &args.outermost)?,
        running: args.pid.is_some(),
        shadow_stacks: args.pid.is_none() && shadow_stack::comes_with_programs(),
        arena: None,
        output: output::naming(args.output, std::env::var_os("GMON_OUT_PREFIX"), &rank),
        stats: args.stats.map(|path| rank.of(path)),
        exports: args
            .export
            .into_iter()
            .map(|export| Export { file: rank.of(export.file), ..export })
            .collect(),
        hooks: args.hooks,
        engine: args.engine,
        measure,
        args: match values {
            Some(values) => Some(values),
            None => args.args.as_deref().map(ArgsChoice::parse).transpose()?,
        },
        trace,
        slow,
        rate: args.rate.unwrap_or(if measure.is_some_and(|of| of.min_ns == 0 && of.measures()) {
            MEASURED_RATE
        } else {
            RATE
        }),
        sampler: args.sampler,
        follow: !args.no_follow,
        python: args.python,
        per_process: args.per_process,
        list: args.list,
        opener: args.open.then(|| reporter::find("--open")).transpose()?,
        signals,
        voice: Voice(level),
        cache: Arc::new(PlanCache::new(!args.no_cache, Voice(level))),
        command: args.command,
    })
}
