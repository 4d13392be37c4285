//! Finds source files where they are now.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use gmon_export::{Function, Run};
use gprofinject_image::debug::Authors;

use crate::cli::report_args::SourceArgs;
use crate::cli::text::plain;

/// Finds and reads source files.
pub(crate) struct Sources {
    substitutes: Vec<(String, String)>,
    folders: Vec<PathBuf>,
    /// The other users who have chosen the names of the files.
    authors: Authors,
    /// What names the files, but for those that an interpreter has named.
    named_by: NamedBy,
    interpreted: HashSet<String>,
    /// When that was made.
    made: Option<SystemTime>,
    /// When the run began in which those were interpreted.
    began: Option<SystemTime>,
    /// The paths of files that were not found.
    missing: Vec<String>,
    /// The paths of files that the authors could not read.
    refused: Vec<String>,
    /// The files that have changed since what names them was made.
    newer: Vec<(PathBuf, NamedBy)>,
}

/// What names source files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedBy {
    /// The line information of a program.
    Program,
    /// An interpreter, of the code that it has executed in a run.
    Run,
}

/// The size in bytes above which a file is not read.
const MAX_SIZE: u64 = 64 << 20;

impl Sources {
    /// Returns a reader for the sources of this program, whose files are named by what `authors` have made.
    ///
    /// # Errors
    /// A substitution has no `=`.
    pub(crate) fn new(args: &SourceArgs, program: &Path, authors: Authors) -> Result<Sources> {
        Sources::named(args, NamedBy::Program, modified(program), authors)
    }

    /// Returns a reader for the sources that a Python interpreter has executed in a run that began then, which `authors` have recorded. What it executes
    /// can say that it is of any file, so only files that look like sources of Python are read.
    ///
    /// # Errors
    /// A substitution has no `=`.
    pub(crate) fn of_python(
        args: &SourceArgs,
        began: Option<SystemTime>,
        authors: Authors,
    ) -> Result<Sources> {
        Sources::named(args, NamedBy::Run, began, authors)
    }

    fn named(
        args: &SourceArgs,
        named_by: NamedBy,
        made: Option<SystemTime>,
        authors: Authors,
    ) -> Result<Sources> {
        let substitute = |text: &String| {
            let (old, new) = text
                .split_once('=')
                .with_context(|| format!("--substitute-path {text}: expected OLD=NEW"))?;
            Ok((old.to_owned(), new.to_owned()))
        };
        let substitutes = args.substitute_path.iter().map(substitute).collect::<Result<_>>()?;
        let folders = args.source_dir.clone();
        let (missing, refused, newer) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Sources {
            substitutes,
            folders,
            authors,
            named_by,
            interpreted: HashSet::new(),
            made,
            began: None,
            missing,
            refused,
            newer,
        })
    }

    /// Sets which files are named by what interpreters have executed in a run: see [`Sources::of_python`].
    pub(crate) fn interpreted_in(mut self, run: &Run) -> Sources {
        let is_interpreted =
            |function: &&Function| run.module_of(function).is_some_and(gmon_export::Module::is_generated);
        let functions = run.functions.iter().filter(is_interpreted);
        let lines = functions.filter_map(|function| function.source);
        self.interpreted.extend(lines.map(|line| run.file_of(line).to_owned()));
        self.began = (run.start_unix_ns > 0).then(|| UNIX_EPOCH + Duration::from_nanos(run.start_unix_ns));
        self
    }

    /// Returns the file's lines, from number 1 on, or `None` if it is not found. Bytes that are not UTF-8 are
    /// replaced.
    pub(crate) fn read(&mut self, path: &str) -> Option<BTreeMap<u32, String>> {
        // Where the user has said that sources are, all of them may be shown. Elsewhere, the authors must be able to read them.
        let nobody = Authors::default();
        let named_by = if self.interpreted.contains(path) { NamedBy::Run } else { self.named_by };
        if named_by == NamedBy::Run && path.starts_with('<') {
            // Code that is in no file has a name such as `<string>`.
            return None;
        }
        let named = self.candidates(path).into_iter().map(|path| (path, &nobody, NamedBy::Program));
        let mut is_refused = false;
        let found = named.chain([(PathBuf::from(path), &self.authors, named_by)]).find_map(
            |(path, authors, named_by)| match read(&path, authors, named_by) {
                Ok(text) => Some((text, path)),
                Err(error) => {
                    is_refused |= error.kind() == ErrorKind::PermissionDenied;
                    None
                }
            },
        );
        let Some((text, found)) = found else {
            let list =
                if is_refused && !self.authors.is_empty() { &mut self.refused } else { &mut self.missing };
            list.push(path.to_owned());
            return None;
        };
        let of_run = named_by == NamedBy::Run && self.named_by == NamedBy::Program;
        let made = if of_run { self.began } else { self.made };
        if made.is_some() && modified(&found) > made {
            self.newer.push((found, named_by));
        }
        Some((1..).zip(text.lines().map(str::to_owned)).collect())
    }

    /// Returns the paths at which the file may be by what the user has said, the most likely one first. None of them is outside
    /// of the folders that the user has named.
    fn candidates(&self, path: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for (old, new) in &self.substitutes {
            // `/a` is not a prefix of `/ab`.
            let rest = path.strip_prefix(old.trim_end_matches('/'));
            let stays = |rest: &&str| !rest.split('/').any(|part| part == "..");
            if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with('/')).filter(stays) {
                found.push(PathBuf::from(format!("{}{rest}", new.trim_end_matches('/'))));
            }
        }
        let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | "." | "..")).collect();
        for folder in &self.folders {
            found.extend((0..parts.len()).map(|first| folder.join(parts[first..].join("/"))));
        }
        found
    }

    /// Reports which files were not found, or are not the ones that were compiled.
    pub(crate) fn complain(&self) {
        for remark in self.remarks() {
            eprintln!("gmon: {remark}");
        }
    }

    /// Returns which files were not found, or are not the ones that were compiled.
    pub(crate) fn remarks(&self) -> Vec<String> {
        let and_more = |number: usize| match number - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let mut remarks = Vec::new();
        for (by, than) in [(NamedBy::Program, "program"), (NamedBy::Run, "run")] {
            let newer = || self.newer.iter().filter(|(_, named_by)| *named_by == by);
            if let Some((first, _)) = newer().next() {
                let (first, more) = (first.display().to_string(), and_more(newer().count()));
                remarks
                    .push(format!("{}{more}: newer than the {than}, so lines may have moved", plain(&first)));
            }
        }
        if let Some(first) = self.refused.first() {
            let more = and_more(self.refused.len());
            let owner = match self.named_by {
                NamedBy::Program => "the program, whose line information names it,",
                NamedBy::Run => "the recording, which names it,",
            };
            remarks.push(format!(
                "source {}{more} not shown: the owner of {owner} could not read it; \
                 --source-dir DIR names a folder whose files may be shown",
                plain(first)
            ));
        }
        if let Some(first) = self.missing.first() {
            let more = and_more(self.missing.len());
            remarks.push(format!(
                "source {}{more} not found; --source-dir DIR or --substitute-path OLD=NEW says where",
                plain(first)
            ));
        }
        remarks
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn read(path: &Path, authors: &Authors, named_by: NamedBy) -> std::io::Result<String> {
    let file = authors.open(path)?;
    let len = file.metadata()?.len();
    if len > MAX_SIZE {
        return Err(ErrorKind::FileTooLarge.into());
    }
    let is_named = named_by == NamedBy::Program || is_named_as_python(&file);
    // Files of /proc say that they are empty, and are no sources.
    let mut bytes = Vec::new();
    file.take(len).read_to_end(&mut bytes)?;
    if !is_named && !is_python_script(&bytes) {
        return Err(ErrorKind::InvalidData.into());
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether an open file has the name of a source of Python. The path by which it was opened may have been a symbolic link.
fn is_named_as_python(file: &File) -> bool {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    path.is_ok_and(|path| path.extension().is_some_and(|extension| extension == "py" || extension == "pyw"))
}

/// Whether a text says that Python executes it.
fn is_python_script(text: &[u8]) -> bool {
    let line = text.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line.starts_with(b"#!") && line.windows(6).any(|part| part == b"python")
}

#[cfg(test)]
mod tests {
    use gmon_export::{Line, Module};
    use gmon_run::PYTHON;

    use super::*;

    #[test]
    fn where_a_file_may_be() {
        let args = SourceArgs {
            source_dir: vec![PathBuf::from("/new")],
            substitute_path: vec!["/build/=/home/me".to_owned(), "/bu=/no".to_owned()],
        };
        let sources = Sources::new(&args, Path::new("/"), Authors::default()).expect("good arguments");
        let expected = ["/home/me/x/a.c", "/new/build/x/a.c", "/new/x/a.c", "/new/a.c"];
        assert_eq!(sources.candidates("/build/x/a.c"), expected.map(PathBuf::from));
        let outside = sources.candidates("/build/../../etc/shadow");
        assert!(outside.iter().all(|path| path.starts_with("/new")), "{outside:?}");
        let bad = SourceArgs { substitute_path: vec!["x".to_owned()], ..args };
        assert!(Sources::new(&bad, Path::new("/"), Authors::default()).is_err());
    }

    /// Code that an interpreter executes can say that it is of any file, also by a link with another name.
    #[test]
    fn only_sources_of_python() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for (name, text) in [
            ("a.py", "x = 1\n"),
            ("script", "#!/usr/bin/env python3\nx = 2"),
            ("secret", "x = 3"),
            ("empty", ""),
        ] {
            std::fs::write(path(name), text).expect("a file");
        }
        std::os::unix::fs::symlink(path("secret"), path("link.py")).expect("a link");
        std::os::unix::fs::symlink(path("a.py"), path("link")).expect("a link");
        let args = SourceArgs::default();
        let mut sources = Sources::of_python(&args, None, Authors::default()).expect("good arguments");
        for (name, first) in [
            ("a.py", Some("x = 1")),
            ("link", Some("x = 1")),
            ("script", Some("#!/usr/bin/env python3")),
            ("secret", None),
            ("link.py", None),
            ("empty", None),
            ("none.py", None),
        ] {
            let lines = sources.read(&path(name).to_string_lossy());
            assert_eq!(lines.and_then(|lines| lines.get(&1).cloned()).as_deref(), first, "{name}");
        }
        // The same in a report of all functions, of which some are in files that a program names.
        let secret = path("secret").to_string_lossy().into_owned();
        let of_program =
            |args| Sources::new(args, Path::new("/"), Authors::default()).expect("good arguments");
        let source = Some(Line { file: 0, line: 1 });
        let run = Run {
            modules: vec![Module { path: PYTHON.to_owned(), ..Module::default() }],
            files: vec![secret.clone()],
            functions: vec![Function { module: Some(0), source, ..Function::default() }],
            ..Run::default()
        };
        assert!(of_program(&args).read(&secret).is_some());
        assert!(of_program(&args).interpreted_in(&run).read(&secret).is_none());
        // Where the user has said that sources are, all of them may be shown.
        let args = SourceArgs { source_dir: vec![folder.path().to_owned()], ..args };
        let mut sources = Sources::of_python(&args, None, Authors::default()).expect("good arguments");
        assert!(sources.read("/build/secret").is_some());
    }
}
