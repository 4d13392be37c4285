//! Program, debug information and profiles -> what a report is made of.

use std::path::Path;

use anyhow::{Context, Result, bail};
use gmon::{BuildId, Merger, Profile};
use gprofinject_image::debug::{Lines, LinesError};
use gprofinject_image::instructions::Code;

use crate::cli::files;
use crate::cli::report_args::ReportArgs;

/// All that a report is made of.
pub(crate) struct Loaded {
    pub(crate) code: Code,
    pub(crate) lines: Option<Lines>,
    pub(crate) profile: Profile,
}

/// Reads everything. A profile of another build of the program is an error.
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
    gmon_report::align(&mut profiles, &code);
    let mut merger = Merger::default();
    for (mut profile, file) in profiles.into_iter().zip(&args.files) {
        // Of samples the reports know nothing; theirs need not fit together.
        profile.histograms.clear();
        merger.add(profile).with_context(|| file.display().to_string())?;
    }
    Ok(Loaded { code, lines, profile: merger.finish() })
}

/// A profile of another program, or of another build of it, is an error.
pub(crate) fn fits(code: &Code, program: &Path, profile: &Profile, file: &Path) -> Result<()> {
    let (program, file) = (program.display(), file.display());
    if let Err(stale) = code.build_id.agree(profile.build_id) {
        let (first, other) = (stale.first, stale.other);
        bail!(
            "{file}: of the program with build-id {other}.., but {program} has {first}..: built anew since the run"
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
    let bytes = files::read_any(file)?;
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

/// Line information: of the file given, of the program, or of the separate file that debuggers would take.
/// That which is found without being asked for may be unusable; then there is none.
fn find_lines(args: &ReportArgs, program: &[u8], code: &mut Code) -> Result<Option<Lines>> {
    if let Some(path) = &args.debug_file {
        let bytes = files::read_elf(path)?;
        let lines = Lines::parse(&bytes).with_context(|| path.display().to_string())?;
        if code.build_id.agree(lines.build_id).is_err() {
            bail!("{}: its build-id is not that of {}", path.display(), args.program.display());
        }
        code.take_symbols(&bytes).with_context(|| path.display().to_string())?;
        return Ok(Some(lines));
    }
    match Lines::parse(program) {
        Ok(lines) => return Ok(Some(lines)),
        Err(LinesError::None) => {}
        Err(error) => {
            let error = anyhow::Error::from(error);
            eprintln!("gmon: {}: {error:#}; going on without lines", args.program.display());
        }
    }
    for file in gprofinject_image::debug::debug_files(&args.program, program) {
        let Ok(lines) = Lines::parse(&file.bytes) else { continue };
        if code.take_symbols(&file.bytes).is_ok() {
            return Ok(Some(lines));
        }
    }
    Ok(None)
}

impl Loaded {
    /// For reports that are nothing without lines.
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
