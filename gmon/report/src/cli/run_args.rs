//! The arguments that say which run is shown.

use std::path::PathBuf;

use crate::cli::form_args::FormArgs;

/// The files of a run.
#[derive(Clone, Default, clap::Args)]
pub(crate) struct RunArgs {
    /// A gmon.pb.gz, or a program and its gmon.out; several results are summed. A program or library before a gmon.pb.gz shows only
    /// what that did [default: gmon.pb.gz]
    #[arg(value_name = "RUN", num_args = 0..)]
    pub(crate) run: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) part: PartArgs,
    #[command(flatten)]
    pub(crate) form: FormArgs,
}

/// The part of a run.
#[derive(Clone, Default, clap::Args)]
pub(crate) struct PartArgs {
    /// Only what these programs of the run did, by name or process number; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) program: Vec<String>,
    /// Only what processes with this label did, which GPROFINJECT_LABEL in their environment has given them (`''`: those without one);
    /// may be repeated
    #[arg(long, value_name = "GLOB")]
    pub(crate) label: Vec<String>,
}
