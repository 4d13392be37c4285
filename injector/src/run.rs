//! One run, from the start of the program to the last word about it.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use crate::args::HooksArg;
use crate::collect::{self, Collected};
use crate::failure::Failure;
use crate::histogram::Histogram;
use crate::output::{Output, Target};
use crate::perf::{self, Perf};
use crate::profile;
use crate::profile_plan::Planned;
use crate::region::Layout;
use crate::report::{self, Run};
use crate::resolve::Program;
use crate::run_folder::RunFolder;
use crate::sampler::{Choice, Method, Sampling};
use crate::settings::Settings;
use crate::signals::Signals;
use crate::spawn::{self, Held};
use crate::supervise::{self, Ending};
use crate::sys;
use crate::witness::Witness;

/// All that was found good before the start.
pub(crate) struct Prepared<'s, 'd> {
    pub(crate) settings: Settings,
    pub(crate) program: Program,
    pub(crate) planned: Planned<'s, 'd>,
    pub(crate) choice: Choice,
    pub(crate) output: Output,
    pub(crate) stats: Option<Target>,
    /// When we were started.
    pub(crate) start: Instant,
    pub(crate) inherited: Inherited,
}

/// What we found at our start and the program must find at its own.
pub(crate) struct Inherited {
    /// Open beyond the standard ones. We hold them for the program only.
    pub(crate) descriptors: Vec<i32>,
    pub(crate) file_limit: Option<libc::rlimit>,
}

/// Runs the program and writes its profile.
pub(crate) fn profiled(prepared: Prepared) -> Result<Ending, Failure> {
    let Prepared { settings, program, planned, mut choice, output, stats, start, inherited } = prepared;
    let voice = settings.voice;
    let mut notes: Vec<String> = planned.plan.iter().filter_map(|plan| plan.downgrade.clone()).collect();
    notes.extend(planned.subject.unhookable.clone());

    for reason in &choice.reasons {
        if choice.method == Method::None {
            voice.warn(format_args!("no samples are taken: {reason}"));
        } else {
            voice.detail(format_args!("sampling by {}: {reason}", choice.method.name()));
        }
        notes.push(reason.clone());
    }

    // From here on a limit on file sizes is an error to us and no signal.
    let signals = Signals::take().context("cannot take over signals")?;
    let agent_wanted = planned.hooked() > 0 || choice.method == Method::Timer;
    let (folder, plan_bytes) = match planned.plan.as_ref().filter(|_| agent_wanted) {
        Some(plan) => {
            let file = plan.encode();
            let len: usize = file.iter().map(|piece| piece.len()).sum();
            let layout = Layout::new(planned.shape, plan.slot_bytes);
            let timer_rate = if choice.method == Method::Timer { choice.rate } else { 0 };
            (Some(RunFolder::create(&file, &layout, timer_rate)?), len as u64)
        }
        None => (None, 0),
    };

    let run_folder = folder.as_ref().map(RunFolder::path);
    let held = spawn::hold(&program, run_folder, signals.inherited(), inherited.file_limit)
        .context("cannot start a process")?;
    sys::release(&inherited.descriptors);
    let mut sampling = None;
    if choice.method == Method::Perf {
        match attach(&held, choice.rate, &planned) {
            Ok(attached) => sampling = Some(attached),
            Err(error) => {
                let why = perf::refusal(&error);
                voice.warn(format_args!("no samples are taken: {why}"));
                (choice.method, choice.rate) = (Method::None, 0);
                notes.push(why);
            }
        }
    }
    let witness = Witness::start();
    let injector_ns = start.elapsed().as_nanos() as u64;
    let child = held.release().context("the new process has gone")?;
    let pid = child.pid();
    let ending = supervise::until_end(pid, &signals, witness, sampling.as_mut());
    if let Some(errno) = child.exec_error() {
        let error = anyhow!("{}: {}", program.path.display(), sys::errno_text(errno));
        return Err(Failure::exec(errno, error));
    }

    let sampler_bytes = sampling.as_mut().map_or(0, |sampling| sampling.perf().ring_bytes());
    let (mut histogram, lost_samples, throttled) = match sampling {
        Some(mut sampling) => {
            sampling.finish();
            (sampling.histogram, sampling.lost, sampling.throttled)
        }
        None => (Histogram::new(planned.shape), 0, false),
    };
    let collected = match &folder {
        Some(folder) => collect::collect(&folder.region, &planned, &mut histogram).unwrap_or_else(|error| {
            voice.warn(format_args!("the counters cannot be read: {}", sys::reason(&error)));
            Collected::default()
        }),
        None => Collected::default(),
    };
    let (bytes, placed) = profile::encode(&planned, &collected.arcs, &histogram, choice.rate)?;
    if let Some(trouble) = &collected.trouble {
        voice.warn(format_args!("nothing was hooked: {trouble}"));
        notes.push(trouble.clone());
    }
    let run = Run {
        planned: &planned,
        binary: &program.binary,
        ending,
        collected: &collected,
        placed,
        sampler: choice.method.name(),
        rate: choice.rate,
        lost_samples,
        throttled,
        sampler_bytes,
        plan_bytes,
        injector_ns,
        notes: &notes,
    };
    drop(folder);
    finish(&run, &program, &settings, &output, stats.as_ref(), pid as u32, &bytes)?;
    Ok(ending)
}

fn attach(held: &Held, rate: u32, planned: &Planned) -> std::io::Result<Sampling> {
    let perf = Perf::open(held.pid(), rate)?;
    Ok(Sampling::new(perf, held.pid(), planned.subject.code.clone(), Histogram::new(planned.shape)))
}

/// Writes what there is to write, and says what there is to say.
fn finish(
    run: &Run,
    program: &Program,
    settings: &Settings,
    output: &Output,
    stats: Option<&Target>,
    pid: u32,
    bytes: &[u8],
) -> Result<()> {
    let voice = settings.voice;
    for loss in run.losses() {
        voice.warn(loss);
    }
    run.details(voice);
    if let Some(Err(error)) = stats.map(|target| run.stats().write(target)) {
        voice.warn(sys::plain(&format!("{error:#}")));
    }
    if run.planned.subject.blind {
        voice.warn(format_args!("no profile of {}", program.binary.display()));
        return Ok(());
    }
    let written = output.write(pid, bytes)?;
    if let Some(detour) = &written.detour {
        voice.warn(format_args!("{detour}; it is in {}", written.path.display()));
    }
    let symbols = run.planned.subject.debug_file().map_or_else(|| program.shown.clone(), PathBuf::into);
    let next = format!("gprof {} {}", report::quoted(&symbols), report::quoted(written.path.as_os_str()));
    voice.note(format_args!("{}; next: {next}", run.summary()));
    Ok(())
}

/// Before the start: what will be less than the user may expect.
pub(crate) fn say_what_is_possible(planned: &Planned, program: &Program, settings: &Settings) {
    let voice = settings.voice;
    let shown = program.binary.display();
    if let Some(why) = &planned.subject.unhookable {
        let rest = if planned.subject.blind { "it runs without a profile" } else { "it is only sampled" };
        voice.warn(format_args!("{shown} cannot be hooked: {why}; {rest}"));
    } else if settings.hooks != HooksArg::None {
        for pattern in settings.filters.unused() {
            voice.warn(format_args!("{pattern} matches no function of {shown}"));
        }
    }
    if planned.image().is_some_and(|image| !image.facts.has_symtab) {
        let remedy = match planned.subject.debug_file() {
            Some(file) => format!("it has them from {}", file.display()),
            None => "install its debug symbols, or profile a build with them".to_owned(),
        };
        voice.note(format_args!("{shown} is stripped, and gprof needs symbols to show anything: {remedy}"));
    }
    if let Some(downgrade) = planned.plan.as_ref().and_then(|plan| plan.downgrade.as_ref())
        && settings.hooks != HooksArg::None
    {
        voice.note(format_args!("{shown}: {downgrade}"));
    }
}
