//! Reads the program, its debug information and the profiles from which a report is made.

use std::path::Path;

use anyhow::{Context, Result, bail};
use gmon::{BuildId, Merger, Profile};
use gprofinject_image::debug::{Lines, LinesError};
use gprofinject_image::instructions::Code;

use crate::cli::report_args::ReportArgs;
use crate::cli::{files, recordings, run};

/// Everything from which a report is made.
pub(crate) struct Loaded {
    pub(crate) code: Code,
    pub(crate) lines: Option<Lines>,
    pub(crate) profile: Profile,
}

/// Reads everything.
///
/// # Errors
/// A file cannot be read, or a profile is of another build of the program.
pub(crate) fn load(args: &ReportArgs) -> Result<Loaded> {
    let path = &args.program;
    let bytes = files::read_elf(path)?;
    let mut code = Code::parse(&bytes).with_context(|| path.display().to_string())?;
    let lines = find_lines(args, &bytes, &mut code)?;
    let mut profiles = Vec::new();
    for file in &args.files {
        let profile = read_profile(args, &code, file)?;
        fits(&code, path, &profile, file)?;
        profiles.push(profile);
    }
    gmon_blocks::align(&mut profiles, &code);
    let mut merger = Merger::default();
    for (mut profile, file) in profiles.into_iter().zip(&args.files) {
        // The reports do not use samples, and histograms need not fit together.
        profile.histograms.clear();
        merger.add(profile).with_context(|| file.display().to_string())?;
    }
    Ok(Loaded { code, lines, profile: merger.finish() })
}

/// Checks that a profile is of this build of this program.
///
/// # Errors
/// It is of another one.
pub(crate) fn fits(code: &Code, program: &Path, profile: &Profile, file: &Path) -> Result<()> {
    let (program, file) = (program.display(), file.display());
    if let Err(stale) = code.build_id.agree(profile.build_id) {
        let (first, other) = (stale.first, stale.other);
        bail!(
            "{file}: of the program with build-id {other}.., but {program} has {first}..: rebuilt since the run"
        );
    }
    if profile.format != code.format() && !profile.is_empty() {
        bail!("{file}: a {} profile, but {program} is {}", profile.format, code.format());
    }
    let strays = || profile.blocks.iter().filter(|block| code.section_at(block.addr).is_none());
    if let Some(first) = strays().next() {
        let (number, all, at) = (strays().count(), profile.blocks.len(), first.addr);
        let number = gmon::counted(number, "basic block lies", "basic blocks lie");
        bail!(
            "{file}: {number} outside the code of {program}, of {all} in all, the first at {at:#x}: another program's?"
        );
    }
    Ok(())
}

fn read_profile(args: &ReportArgs, code: &Code, file: &Path) -> Result<Profile> {
    let bytes = files::read_any_kind(file)?;
    if files::is_gzip(&bytes) {
        let mut recording = recordings::parse(file, &bytes)?;
        recordings::select_named(&mut recording, &args.programs)?;
        let program = files::read_elf(&args.program)?;
        let found = run::blocks_of(&recording, code.build_id, &program, &args.program);
        return found.with_context(|| file.display().to_string());
    }
    let mut options = args.form.options();
    let read = |options: gmon::ReadOptions| options.read(&bytes).with_context(|| file.display().to_string());
    let mut reading = read(options)?;
    if reading.ambiguous_width {
        options.width = options.width.or(Some(code.format().width));
        reading = read(options)?;
    }
    let profile = reading.profile;
    if profile.blocks.is_empty() {
        bail!(
            "{}: no counts of basic blocks in it; `gprofinject --count lines PROG` makes such a profile",
            file.display()
        );
    }
    Ok(profile)
}

/// Finds the line information: in the given file, in the program, or in the separate file that debuggers
/// would use. A file that was found without being asked for may be unusable; then there is no line
/// information.
fn find_lines(args: &ReportArgs, program: &[u8], code: &mut Code) -> Result<Option<Lines>> {
    if let Some(path) = &args.debug_file {
        let bytes = files::read_elf(path)?;
        let lines =
            Lines::of(&bytes, &args.program, Some(path)).with_context(|| path.display().to_string())?;
        if code.build_id.agree(lines.build_id).is_err() {
            bail!("{}: its build-id is not that of {}", path.display(), args.program.display());
        }
        code.take_symbols(&bytes).with_context(|| path.display().to_string())?;
        return Ok(Some(lines));
    }
    match Lines::of(program, &args.program, None) {
        Ok(lines) => return Ok(Some(lines)),
        Err(LinesError::None) => {}
        Err(error) => {
            let error = anyhow::Error::from(error);
            eprintln!("gmon: {}: {error:#}; going on without lines", args.program.display());
        }
    }
    for file in gprofinject_image::debug::debug_files(&args.program, program) {
        let Ok(lines) = Lines::of(&file.bytes, &args.program, Some(&file.path)) else { continue };
        if code.take_symbols(&file.bytes).is_ok() {
            return Ok(Some(lines));
        }
    }
    Ok(None)
}

impl Loaded {
    /// Returns the line information for reports that need it.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn need_lines(&self, args: &ReportArgs) -> Result<&Lines> {
        self.lines.as_ref().with_context(|| {
            let program = args.program.display();
            if self.code.build_id == BuildId::UNKNOWN {
                format!("{program}: no line information; compile with -g, or give --debug-file")
            } else {
                let what = "no line information, nor a separate debug file with this build-id";
                format!("{program}: {what}; compile with -g, or give --debug-file")
            }
        })
    }
}
