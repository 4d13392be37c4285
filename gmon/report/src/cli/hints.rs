//! What works in place of a command line that names the wrong files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::text::{chosen_function, plain};
use crate::cli::{files, recordings};

/// The commands whose option `-f` selects functions.
const BY_FUNCTION: [&str; 5] = ["asm", "flat", "graph", "lines", "paths"];
/// What stands for a program that is not known.
const ANY_PROGRAM: &str = "PROG";

/// Returns the command that runs, such as `flat`.
fn command() -> String {
    std::env::args_os().nth(1).unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns a word as it is typed into a shell.
fn typed(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-+=.,:/@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => plain(&format!("'{}'", word.replace('\'', r"'\''"))),
    }
}

/// Returns the words that name a profile and its program, as commands take them. The program is known if there is a recording beside
/// the profile.
pub(crate) fn with_program(profile: &Path) -> String {
    let program =
        program_of(profile).map_or_else(|| ANY_PROGRAM.to_owned(), |path| typed(&path.to_string_lossy()));
    format!("{program} {}", typed(&profile.to_string_lossy()))
}

/// Returns the message for a profile that is named without its program.
pub(crate) fn no_program(profile: &Path) -> String {
    let works = format!("gmon {} {}", command(), with_program(profile));
    format!("{}: it has addresses only, and the names are in the program: `{works}`", profile.display())
}

/// Returns the program of a profile, if the recording beside it knows it and it is still there.
fn program_of(profile: &Path) -> Option<PathBuf> {
    let beside = profile.with_extension("pb.gz");
    let recording = recordings::parse(&beside, &files::read_any_kind(&beside).ok()?).ok()?;
    let path = PathBuf::from(&recording.first_module()?.path);
    let here = std::env::current_dir().ok().and_then(|here| Some(path.strip_prefix(here).ok()?.to_owned()));
    path.is_file().then(|| here.unwrap_or(path))
}

/// Returns what is to be said if a profile was written later than the recording beside it. gprofinject writes the recording last, so that
/// another program, such as one that was built with -pg, has written the profile.
pub(crate) fn of_another_run(profile: &Path, recording: &Path) -> Option<String> {
    /// Copies of both files may be made in any order, but not long after each other.
    const COPIED: Duration = Duration::from_secs(1);
    let written = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    let later = written(profile)?.duration_since(written(recording)?).ok()?;
    let (profile, recording) = (profile.display(), recording.display());
    (later > COPIED).then(|| {
        format!(
            "this is {recording}; {profile} is newer and of another run: `gmon flat {ANY_PROGRAM} {profile}` shows that"
        )
    })
}

/// Returns the message if one of the words is no file but a function of the run that the others name, or of `default` if they name
/// none.
pub(crate) fn function_for_file(words: &[PathBuf], default: &Path) -> Option<String> {
    let command = command();
    if !BY_FUNCTION.contains(&command.as_str()) {
        return None;
    }
    let (here, missing): (Vec<&PathBuf>, Vec<&PathBuf>) = words.iter().partition(|path| path.exists());
    let [function] = missing.as_slice() else { return None };
    let name = function.to_str()?;
    let run = here.last().map_or(default, |path| path);
    let recording = recordings::parse(run, &files::read_any_kind(run).ok()?).ok()?;
    let wanted = [name.to_owned()];
    recording.functions.iter().find(|known| chosen_function(&wanted, &known.name))?;
    let files = here.iter().map(|path| format!(" {}", typed(&path.to_string_lossy())));
    let works = format!("gmon {command} -f {}{}", typed(name), files.collect::<String>());
    Some(format!("{name}: no file, but a function of {}: `{works}`", run.display()))
}
