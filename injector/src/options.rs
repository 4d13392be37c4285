//! The choices that a user has, as all layers know them.
//!
//! The command line and the files of a run name these choices, and the other layers act on them.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Where a hooked function is patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum HooksArg {
    Both,
    Entry,
    None,
}

/// What `--count` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum CountArg {
    Blocks,
    Lines,
}

/// Who takes samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SamplerArg {
    Auto,
    Perf,
    Timer,
}

/// Which engine writes the patches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum EngineArg {
    #[default]
    Builtin,
    Frida,
    #[value(name = "frida,builtin")]
    FridaOrBuiltin,
}

/// What a user can ask of a process while it is profiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Verb {
    Dump,
    Reset,
    Pause,
    Resume,
}
