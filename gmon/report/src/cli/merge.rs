//! `gmon merge`: sums profiles.

use std::path::Path;

use anyhow::{Context, Result, bail};
use gmon::{Merger, Profile};
use gprofinject_image::instructions::Code;

use crate::cli::args::MergeArgs;
use crate::cli::{files, load};

/// Sums the files and writes the sum.
///
/// # Errors
/// A file cannot be read or written, or the profiles cannot be summed.
pub(crate) fn run(args: &MergeArgs) -> Result<()> {
    let sum = match &args.program {
        Some(program) => with_program(args, program)?,
        None => alone(args)?,
    };
    let mut bytes = Vec::new();
    gmon::write(&sum, &mut bytes).with_context(|| args.output.display().to_string())?;
    files::replace(&args.output, &bytes)
}

fn read(args: &MergeArgs, file: &Path) -> Result<Profile> {
    let bytes = files::read_any(file)?;
    let reading = args.form.options().read(&bytes).with_context(|| file.display().to_string())?;
    if reading.ambiguous_width {
        eprintln!("gmon: {}: makes sense as 32-bit too, read as 64-bit; --width decides", file.display());
    }
    Ok(reading.profile)
}

fn with_program(args: &MergeArgs, path: &Path) -> Result<Profile> {
    let code = Code::parse(&files::read_elf(path)?).with_context(|| path.display().to_string())?;
    let mut profiles = Vec::with_capacity(args.files.len());
    for file in &args.files {
        let profile = read(args, file)?;
        load::fits(&code, path, &profile, file)?;
        profiles.push(profile);
    }
    gmon_blocks::align(&mut profiles, &code);
    let mut merger = Merger::default();
    for (profile, file) in profiles.into_iter().zip(&args.files) {
        merger.add(profile).with_context(|| file.display().to_string())?;
    }
    Ok(merger.finish())
}

/// Sums the files without the program. Then it is not known what one file's count means at an address at
/// which only another file has a record: the address may be within a basic block of the first file, or in a
/// function that was not counted there.
fn alone(args: &MergeArgs) -> Result<Profile> {
    let mut merger = Merger::default();
    let mut first: Option<(&Path, Vec<u64>)> = None;
    for file in &args.files {
        let profile = read(args, file)?;
        if !profile.blocks.is_empty() {
            let addresses = profile.blocks.iter().map(|block| block.addr).collect();
            let (first_file, expected) = first.get_or_insert_with(|| (file, Vec::clone(&addresses)));
            if let Some(at) = first_difference(expected, &addresses) {
                bail!(
                    "{}: block counts at other addresses than in {}, the first {at:#x} (a crash within a \
                     block, or other functions counted); --program PROG lets them be summed",
                    file.display(),
                    first_file.display(),
                );
            }
        }
        merger.add(profile).with_context(|| file.display().to_string())?;
    }
    Ok(merger.finish())
}

/// Returns the lowest address that is in only one of two sorted lists.
fn first_difference(a: &[u64], b: &[u64]) -> Option<u64> {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    [a.get(same), b.get(same)].into_iter().flatten().min().copied()
}
