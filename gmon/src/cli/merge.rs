//! `gmon merge`.

use anyhow::{Context, Result, bail};
use gmon::{Code, Merger, Profile};

use super::args::MergeArgs;
use super::{files, load};

pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    let mut profiles = Vec::with_capacity(args.files.len());
    for file in &args.files {
        let bytes = files::read_any(file)?;
        let reading = args.form.options().read(&bytes).with_context(|| file.display().to_string())?;
        if reading.ambiguous_width {
            eprintln!("gmon: {}: makes sense as 32-bit too, read as 64-bit; --width decides", file.display());
        }
        profiles.push(reading.profile);
    }
    match &args.program {
        Some(path) => {
            let code = Code::parse(&files::read_elf(path)?).with_context(|| path.display().to_string())?;
            for (profile, file) in profiles.iter().zip(&args.files) {
                load::fits(&code, path, profile, file)?;
            }
            gmon::align(&mut profiles, &code);
        }
        None => same_blocks(args, &profiles)?,
    }
    let mut merger = Merger::default();
    for (profile, file) in profiles.into_iter().zip(&args.files) {
        merger.add(profile).with_context(|| file.display().to_string())?;
    }
    let sum = merger.finish();
    files::replace(&args.output, |out| Ok(gmon::write(&sum, out)?))
        .with_context(|| args.output.display().to_string())
}

/// Without the program nobody can say what a count of one file means at an address of which only another
/// has one: it may lie within a block of the first, or in a function that was not counted there.
fn same_blocks(args: &MergeArgs, profiles: &[Profile]) -> Result<()> {
    let with_blocks = || profiles.iter().zip(&args.files).filter(|(profile, _)| !profile.blocks.is_empty());
    let Some((first, first_file)) = with_blocks().next() else { return Ok(()) };
    for (other, file) in with_blocks().skip(1) {
        let differ = first.blocks.iter().zip(&other.blocks).find(|(a, b)| a.addr != b.addr);
        let longer = if first.blocks.len() > other.blocks.len() { first } else { other };
        let shorter = first.blocks.len().min(other.blocks.len());
        let at = differ.map(|(a, b)| a.addr.min(b.addr)).or(longer.blocks.get(shorter).map(|b| b.addr));
        if let Some(at) = at {
            bail!(
                "{}: block counts at other addresses than in {}, the first {at:#x} (a crash within a block, \
                 or other functions counted); --program PROG lets them be summed",
                file.display(),
                first_file.display(),
            );
        }
    }
    Ok(())
}
