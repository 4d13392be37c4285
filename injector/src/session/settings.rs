//! What the typed arguments mean.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::cli::args::{Args, EngineArg, HooksArg, SamplerArg};
use crate::os::say::{Level, Voice};
use crate::program::filters::Filters;
use crate::program::plan_cache::PlanCache;
use crate::session::family::control::Verb;
use crate::store::output::{self, Naming};

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) command: Vec<OsString>,
    pub(crate) output: Naming,
    pub(crate) stats: Option<PathBuf>,
    /// None: not said, which is `both` where hooks do no harm.
    pub(crate) hooks: Option<HooksArg>,
    pub(crate) engine: EngineArg,
    pub(crate) rate: u32,
    pub(crate) sampler: SamplerArg,
    pub(crate) filters: Filters,
    pub(crate) follow: bool,
    pub(crate) list: bool,
    /// What we do when we get a signal. A pause is followed by going on.
    pub(crate) signals: Vec<(i32, Verb)>,
    pub(crate) voice: Voice,
    pub(crate) cache: PlanCache,
}

impl Settings {
    pub(crate) fn from(args: Args) -> Result<Settings> {
        args.engine.check(args.pid.is_some() && args.verb().is_none())?;
        if args.count.is_some() && args.engine != EngineArg::Builtin {
            bail!("--count copies whole functions, which Frida's gum cannot lead to; leave --engine away");
        }
        let asked = [
            (args.dump_signal, Verb::Dump),
            (args.reset_signal, Verb::Reset),
            (args.pause_signal, Verb::Pause),
        ];
        let signals: Vec<(i32, Verb)> =
            asked.into_iter().filter_map(|(signal, verb)| Some((signal?, verb))).collect();
        if (1..signals.len()).any(|n| signals[..n].iter().any(|(signal, _)| *signal == signals[n].0)) {
            bail!("two options name the same signal; give one of them another");
        }
        let level = match (args.quiet, args.verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        };
        Ok(Settings {
            filters: Filters::new(&args.include, &args.exclude, args.min_size)?
                .counting(args.count, &args.file)?,
            output: output::naming(args.output, std::env::var_os("GMON_OUT_PREFIX")),
            stats: args.stats,
            hooks: args.hooks,
            engine: args.engine,
            rate: args.rate,
            sampler: args.sampler,
            follow: !args.no_follow,
            list: args.list,
            signals,
            voice: Voice(level),
            cache: PlanCache::new(!args.no_cache, Voice(level)),
            command: args.command,
        })
    }

    /// Whether plans may come from the cache.
    pub(crate) fn caches_plans(&self) -> bool {
        self.cache.takes(&self.filters)
    }
}
