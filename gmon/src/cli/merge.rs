//! `gmon merge`.

use anyhow::{Context, Result};
use gmon::Merger;

use super::args::MergeArgs;
use super::files;

pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    let mut merger = Merger::default();
    for file in &args.files {
        let bytes = files::read_any(file)?;
        let reading = args.form.options().read(&bytes).with_context(|| file.display().to_string())?;
        if reading.ambiguous_width {
            eprintln!("gmon: {}: makes sense as 32-bit too, read as 64-bit; --width decides", file.display());
        }
        merger.add(reading.profile).with_context(|| file.display().to_string())?;
    }
    let sum = merger.finish();
    files::replace(&args.output, |out| Ok(gmon::write(&sum, out)?))
        .with_context(|| args.output.display().to_string())
}
