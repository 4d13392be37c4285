//! What the typed arguments mean.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::args::{Args, EngineArg, HooksArg, SamplerArg};
use crate::filters::Filters;
use crate::output::{self, Naming};
use crate::say::{Level, Voice};

#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) command: Vec<OsString>,
    pub(crate) output: Naming,
    pub(crate) stats: Option<PathBuf>,
    /// None: not said, which is `both` where hooks do no harm.
    pub(crate) hooks: Option<HooksArg>,
    pub(crate) rate: u32,
    pub(crate) sampler: SamplerArg,
    pub(crate) filters: Filters,
    pub(crate) follow: bool,
    pub(crate) list: bool,
    /// Asks for profiles up to now.
    pub(crate) dump_signal: Option<i32>,
    pub(crate) voice: Voice,
}

impl Settings {
    pub(crate) fn from(args: Args) -> Result<Settings> {
        if args.engine == EngineArg::Frida {
            bail!("--engine frida is not in this version; leave it away to use the built-in one");
        }
        let level = match (args.quiet, args.verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        };
        Ok(Settings {
            filters: Filters::new(&args.include, &args.exclude, args.min_size)?,
            output: output::naming(args.output, std::env::var_os("GMON_OUT_PREFIX")),
            stats: args.stats,
            hooks: args.hooks,
            rate: args.rate,
            sampler: args.sampler,
            follow: !args.no_follow,
            list: args.list,
            dump_signal: args.dump_signal,
            voice: Voice(level),
            command: args.command,
        })
    }
}
