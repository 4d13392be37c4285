//! The arguments as typed. [`crate::cli::contradictions`] checks that each has an effect, and [`crate::cli::meaning`] has what they mean.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueHint};
use gmon_export::formats::UnknownFormat;
use gprofinject_usage::Kind;

use crate::cli::min_time::MinTime;
use crate::live::model::{LONGEST, SHORTEST};
use crate::options::{ClockArg, CountArg, EngineArg, Export, FullArg, HooksArg, RanksArg, SamplerArg, Verb};

const EXAMPLES: &str = "\
Examples:
  gprofinject ./prog && gprof ./prog gmon.out      # calls and samples
  gprofinject make -j4 && gmon flat                # all programs of a run, with their libraries
  gprofinject --times ./prog && gmon flat          # how long calls take
  gprofinject --paths ./prog && gmon paths         # by call path
  gprofinject --slow handle ./prog && gmon paths --slow # its slowest calls
  gprofinject --count lines ./prog && gmon lines   # the source, with counts
  gprofinject -I 'parse_*' -X '*::~*' --libs none ./prog
  gprofinject --list ./prog                        # what would be hooked, and how
  gprofinject --pid 4711 --duration 10             # a process that already runs
  gprofinject --pid 4711 --dump -o now.out         # the profile up to now
  mpirun -np 4 gprofinject ./prog                  # gmon.out.rank0 to gmon.out.rank3
  gprofinject --generate complete-bash > ~/.local/share/bash-completion/completions/gprofinject
";

const EXIT_STATUS: &str = "Exit status: the program's; 125 if gprofinject itself fails, 126 if PROGRAM cannot be \
                           executed, 127 if it is not found.";

/// Profiles a program that was built without -pg: counts every call, samples the time, and leaves gmon.out for gprof and
/// gmon.pb.gz with everything.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "gprofinject",
    version,
    override_usage = "gprofinject [OPTIONS] [--] PROGRAM [ARGS]...\n       \
                      gprofinject [OPTIONS] --pid PID [--duration SECONDS]\n       \
                      gprofinject --pid PID --dump [-o FILE] | --reset | --pause | --resume\n       \
                      gprofinject --pid PID --enable GLOB | --disable GLOB\n       \
                      gprofinject --top [OPTIONS] [--pid PID | PROGRAM [ARGS]...]\n       \
                      gprofinject --recover FOLDER",
    args_override_self = true,
    after_help = EXIT_STATUS,
    after_long_help = format!("{EXAMPLES}\n{EXIT_STATUS}\n\nSee also: gmon(1), gprof(1)")
)]
pub(crate) struct Args {
    /// Profile to write, and NAME.pb.gz beside it [default: gmon.out in the current folder, or $GMON_OUT_PREFIX.PID]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// What to hook: entry and exit, entry only, or nothing (sampling only) [default: both; entry with --count alone;
    /// nothing in a program that may check its own code]
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) hooks: Option<HooksArg>,

    /// Samples per second of CPU time, 0 for none [default: 1000, and 250 with --times and --paths without --min-time, where each sample
    /// is part of some call's time]
    #[arg(long, value_name = "HZ", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub(crate) rate: Option<u32>,

    /// What takes the samples: the kernel's perf events, or timers inside the program
    #[arg(long, value_name = "WHO", value_enum, default_value_t = SamplerArg::Auto)]
    pub(crate) sampler: SamplerArg,

    /// Which engine patches the program: gprofinject's own, Frida's gum (functions that it cannot patch safely are not
    /// hooked), or gum first and gprofinject's own for the rest
    #[arg(long, value_name = "WHO", value_enum, default_value_t = EngineArg::Builtin)]
    pub(crate) engine: EngineArg,

    /// Hook only functions whose name, mangled or demangled, matches (repeatable)
    #[arg(short = 'I', long, value_name = "GLOB")]
    pub(crate) include: Vec<String>,

    /// Do not hook functions whose name, mangled or demangled, matches (repeatable)
    #[arg(short = 'X', long, value_name = "GLOB")]
    pub(crate) exclude: Vec<String>,

    /// Which shared libraries to hook: all but the runtime of C, C++ and Fortran (auto), none, all, or those whose file
    /// names match [default: auto; with --outermost, the libraries that it names]
    #[arg(long, value_name = "auto|none|all|GLOB[,GLOB]")]
    pub(crate) libs: Option<String>,

    /// The interface of a library: of the modules (libraries or programs) whose file names match, count, measure and trace only calls from
    /// outside, whose call site is in other code (repeatable); gmon flat --by module has their sums
    #[arg(long, value_name = "GLOB[,GLOB]")]
    pub(crate) outermost: Vec<String>,

    /// Do not hook functions smaller than this
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 0,
        hide_default_value = true,
        allow_negative_numbers = true
    )]
    pub(crate) min_size: u64,

    /// Count how often each basic block runs, for gprof -l -A -x and gmon's reports; lines does the same and requires
    /// that the program has line information
    #[arg(long, value_name = "WHAT", value_enum, conflicts_with = "pid")]
    pub(crate) count: Option<CountArg>,

    /// Count only functions with code from source files whose path or name matches (repeatable)
    #[arg(long, value_name = "GLOB", requires = "count")]
    pub(crate) file: Vec<String>,

    /// Keep the values of arguments and results of functions, with the number of calls that had them, for gmon values: 'auto', or
    /// FUNCTION@VALUES as in 'malloc@arg1/u64,write@arg1/i32,arg3/u64,retval' (the language of --args)
    #[arg(long, value_name = "auto|SPEC")]
    pub(crate) values: Option<String>,

    /// Measure how long each call takes, by itself and with the calls that it makes, for gmon flat and gmon graph; the
    /// times in gmon.out are then the measured ones
    #[arg(long)]
    pub(crate) times: bool,

    /// The same for each path of calls, as in a flame graph, for gmon paths
    #[arg(long)]
    pub(crate) paths: bool,

    /// With --times and --paths: measure only functions whose calls take at least so many nanoseconds on average; others are counted,
    /// and their time is their callers'. Without a number 200, and up to 10,000 in threads that would otherwise take more than three
    /// times as long
    #[arg(long, value_name = "NANOSECONDS", num_args = 0..=1, require_equals = true, default_missing_value = MinTime::WORD,
          value_parser = MinTime::of)]
    pub(crate) min_time: Option<MinTime>,

    /// With --paths: give recursive calls nodes of their own
    #[arg(long)]
    pub(crate) no_fold: bool,

    /// With --paths: the greatest number of different paths of a thread; further ones are measured together
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000_000, hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub(crate) max_paths: u32,

    /// Write every call, with the time at which it begins and ends, to FILE, for gmon trace
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,

    /// With --trace: write only calls that are made within fewer than NUMBER others; the rest costs no more than a counted call
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(crate) trace_depth: Option<u32>,

    /// With --trace: write only calls that take at least so many microseconds, and those that have made them
    #[arg(long, value_name = "MICROSECONDS", value_parser = microseconds)]
    pub(crate) trace_min_time: Option<f64>,

    /// With --trace: keep the last part, of at most so many mebibytes, and write it when the program ends, however it ends, at a
    /// call of a function of --trace-trigger, and with --dump-signal and --dump
    #[arg(long, value_name = "MEBIBYTES", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(crate) trace_size: Option<u64>,

    /// With --trace-size: write the kept part when a function is called whose name matches, or MODULE!FUNCTION (repeatable)
    #[arg(long, value_name = "GLOB", requires = "trace_size")]
    pub(crate) trace_trigger: Vec<String>,

    /// With --trace and --slow: what a thread does whose buffer is full: wait until it has been read, or lose the newest or oldest calls
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = FullArg::Wait)]
    pub(crate) trace_full: FullArg,

    /// With --trace and --slow: write arguments and results too: auto (those that debug information or the prototypes of the C library tell),
    /// FUNCTION@VALUES in uftrace's terms, as in 'main@arg1/i32,arg2/s,retval', or several separated by ;
    #[arg(long, value_name = "SPEC")]
    pub(crate) args: Option<String>,

    /// Keep the slowest calls of functions whose names match, or MODULE!FUNCTION, with the tree of what each called and waited for, for
    /// gmon paths --slow (repeatable)
    #[arg(long, value_name = "GLOB")]
    pub(crate) slow: Vec<String>,

    /// With --slow: the greatest number of calls that are kept [default: 10, and 1000 with --slow-above]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) slow_top: Option<u32>,

    /// With --slow: keep only calls that take at least so many microseconds
    #[arg(long, value_name = "MICROSECONDS", value_parser = microseconds)]
    pub(crate) slow_above: Option<f64>,

    /// With --times and --paths: what measures, the processor's time stamp counter or clock_gettime
    #[arg(long, value_name = "CLOCK", value_enum, default_value_t = ClockArg::Auto)]
    pub(crate) clock: ClockArg,

    /// Profile this process only, not its children or the programs that it executes
    #[arg(long)]
    pub(crate) no_follow: bool,

    /// Have CPython 3.12 and later name its functions, so that calls are counted by the Python function that makes them; it runs somewhat
    /// slower (sets PYTHONPERFSUPPORT=1). Samples show Python functions without it
    #[arg(long)]
    pub(crate) python: bool,

    /// Keep the processes of a program apart in gmon.pb.gz
    #[arg(long)]
    pub(crate) per_process: bool,

    /// In a parallel job (Open MPI, PMIx, MPICH, Slurm): add the process's rank to the names of files (auto), the rank and
    /// the name of the host, or nothing
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = RanksArg::Auto)]
    pub(crate) ranks: RanksArg,

    /// Make a new plan: neither use nor keep plans in $XDG_CACHE_HOME/gprofinject
    #[arg(long)]
    pub(crate) no_cache: bool,

    /// Print what would be hooked, and how, and run nothing
    #[arg(long)]
    pub(crate) list: bool,

    /// Write the profiles of a run whose gprofinject was killed; FOLDER is its run folder, gprofinject-* in
    /// $XDG_RUNTIME_DIR, /dev/shm, $TMPDIR or /tmp
    #[arg(long, value_name = "FOLDER")]
    pub(crate) recover: Option<PathBuf>,

    /// Profile a process that already runs
    #[arg(short = 'p', long, value_name = "PID", conflicts_with_all = ["recover", "list"], allow_negative_numbers = true)]
    pub(crate) pid: Option<i32>,

    /// With --pid: leave the process after this many seconds [default: when it ends, or on Ctrl-C]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<Duration>,

    /// With --pid: have the gprofinject that profiles the process write its profile up to now (to FILE with -o)
    #[arg(long, group = "control")]
    pub(crate) dump: bool,

    /// With --pid: set the counts to zero
    #[arg(long, group = "control")]
    pub(crate) reset: bool,

    /// With --pid: stop counting, so that the process runs at its own speed
    #[arg(long, group = "control")]
    pub(crate) pause: bool,

    /// With --pid: resume counting after --pause
    #[arg(long, group = "control")]
    pub(crate) resume: bool,

    /// With --pid: switch functions off whose names match, as with -X, or all of MODULE!; their own code runs then, and calls of them are
    /// not counted
    #[arg(long, value_name = "GLOB", group = "control")]
    pub(crate) disable: Option<String>,

    /// With --pid: switch functions on again
    #[arg(long, value_name = "GLOB", group = "control")]
    pub(crate) enable: Option<String>,

    /// Show a live table of what is counted, every second or as often as SECONDS say; with --pid also for a process that another
    /// gprofinject profiles
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, value_parser = interval)]
    pub(crate) top: Option<Option<Duration>>,

    /// The same as text, every two seconds or as often as SECONDS say, without a terminal: on standard error, with --pid on
    /// standard output
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, value_parser = interval)]
    pub(crate) plain: Option<Option<Duration>>,

    /// Write the profiles up to now when gprofinject gets this signal, which is then not passed on
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    pub(crate) dump_signal: Option<i32>,

    /// Set the counts to zero when gprofinject gets this signal, which is then not passed on
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    pub(crate) reset_signal: Option<i32>,

    /// Pause counting, or resume it, when gprofinject gets this signal, which is then not passed on
    #[arg(long, value_name = "SIGNAL", value_parser = signal)]
    pub(crate) pause_signal: Option<i32>,

    /// Write facts about the run to FILE as JSON (`-`: standard output, after the program's own)
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,

    /// At the end, also write the profile for other tools: callgrind (KCachegrind), pprof, folded (flame graphs), svg, speedscope,
    /// firefox, dot (Graphviz), html (for a browser), json. Other programs of the run get FILE.PROGRAM
    #[arg(long, value_name = "FORMAT=FILE[,FORMAT=FILE]", value_delimiter = ',', value_parser = export)]
    pub(crate) export: Vec<Export>,

    /// At the end, write a report for a browser beside gmon.pb.gz (gmon.html; with -o NAME.out, NAME.html) and open it
    #[arg(long)]
    pub(crate) open: bool,

    /// Print no summary and no notes; errors and lost data are still reported
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Print more about what gprofinject does and why; twice: also the tactics of hooks, and each function without one
    #[arg(short, long, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Print a man page or completions for a shell, and run nothing
    #[arg(long, value_name = "KIND", value_enum, exclusive = true)]
    pub(crate) generate: Option<Kind>,

    /// The program and its arguments, which are passed on unchanged
    #[arg(value_names = ["PROGRAM", "ARGS"], required_unless_present_any = ["recover", "pid", "generate"],
          num_args = 1.., trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// Parses a signal with which a user can ask for something: a name with or without SIG, or a number.
fn signal(text: &str) -> Result<i32, String> {
    const KNOWN: [(&str, i32); 6] = [
        ("USR1", libc::SIGUSR1),
        ("USR2", libc::SIGUSR2),
        ("HUP", libc::SIGHUP),
        ("WINCH", libc::SIGWINCH),
        ("URG", libc::SIGURG),
        ("QUIT", libc::SIGQUIT),
    ];
    let name = text.to_ascii_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let named = KNOWN.iter().find(|(known, _)| *known == name).map(|&(_, number)| number);
    let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
    let numbered = name
        .parse()
        .ok()
        .filter(|number| real_time.contains(number) || KNOWN.iter().any(|(_, known)| known == number));
    named
        .or(numbered)
        .ok_or_else(|| "name one of USR1, USR2, HUP, WINCH, URG, QUIT, or a real-time signal".to_owned())
}

/// Parses what to export, and where.
fn export(text: &str) -> Result<Export, String> {
    let (format, file) = text
        .split_once('=')
        .filter(|(_, file)| !file.is_empty())
        .ok_or_else(|| format!("{text:?} names no file: write callgrind=FILE"))?;
    let format = format.parse().map_err(|error: UnknownFormat| error.to_string())?;
    Ok(Export { format, file: file.into() })
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|_| "not a number of seconds".to_owned())
}

/// Parses a number of microseconds.
fn microseconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| format!("'{text}' is not a number of microseconds"))?;
    let is_possible = number > 0.0 && number <= 1e12;
    is_possible.then_some(number).ok_or_else(|| "it must be more than 0, and at most 10^12".to_owned())
}

/// Parses the time between two tables.
fn interval(text: &str) -> Result<Duration, String> {
    let range = SHORTEST..=LONGEST;
    seconds(text)
        .ok()
        .filter(|time| range.contains(time))
        .ok_or_else(|| "name a number of seconds from 0.1 to 3600".to_owned())
}

impl Args {
    /// Returns what a profiled process is asked to do, if one of these options was given.
    pub(crate) fn verb(&self) -> Option<Verb> {
        let verbs = [
            (self.dump, Verb::Dump),
            (self.reset, Verb::Reset),
            (self.pause, Verb::Pause),
            (self.resume, Verb::Resume),
            (self.enable.is_some(), Verb::Enable),
            (self.disable.is_some(), Verb::Disable),
        ];
        verbs.into_iter().find(|(asked, _)| *asked).map(|(_, verb)| verb)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_consistent() {
        <Args as clap::CommandFactory>::command().debug_assert();
    }
}
