//! The arguments of `gmon report`.

use crate::cli::report_args::SourceArgs;
use crate::cli::run_args::RunArgs;

/// What is browsed.
#[derive(clap::Args)]
pub(crate) struct BrowseArgs {
    #[command(flatten)]
    pub(crate) files: RunArgs,
    #[command(flatten)]
    pub(crate) sources: SourceArgs,
}
