//! Finds source files where they are now.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use gprofinject_image::debug::Authors;

use crate::cli::report_args::SourceArgs;
use crate::cli::text::plain;

/// Finds and reads source files.
pub(crate) struct Sources {
    substitutes: Vec<(String, String)>,
    folders: Vec<PathBuf>,
    /// The other users who have chosen the names of the files.
    authors: Authors,
    /// When the program was made.
    program: Option<SystemTime>,
    /// The paths of files that were not found.
    missing: Vec<String>,
    /// The paths of files that the authors could not read.
    refused: Vec<String>,
    /// The files that have changed since the program was made.
    newer: Vec<PathBuf>,
}

/// The size in bytes above which a file is not read.
const MAX_SIZE: u64 = 64 << 20;

impl Sources {
    /// Returns a reader for the sources of this program, whose files are named by what `authors` have made.
    ///
    /// # Errors
    /// A substitution has no `=`.
    pub(crate) fn new(args: &SourceArgs, program: &Path, authors: Authors) -> Result<Sources> {
        let substitute = |text: &String| {
            let (old, new) = text
                .split_once('=')
                .with_context(|| format!("--substitute-path {text}: expected OLD=NEW"))?;
            Ok((old.to_owned(), new.to_owned()))
        };
        let substitutes = args.substitute_path.iter().map(substitute).collect::<Result<_>>()?;
        let (folders, program) = (args.source_dir.clone(), modified(program));
        let (missing, refused, newer) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Sources { substitutes, folders, authors, program, missing, refused, newer })
    }

    /// Returns the file's lines, from number 1 on, or `None` if it is not found. Bytes that are not UTF-8 are
    /// replaced.
    pub(crate) fn read(&mut self, path: &str) -> Option<BTreeMap<u32, String>> {
        // Where the user has said that sources are, all of them may be shown. Elsewhere, the authors must be able to read them.
        let nobody = Authors::default();
        let named = self.candidates(path).into_iter().map(|path| (path, &nobody));
        let mut is_refused = false;
        let found =
            named.chain([(PathBuf::from(path), &self.authors)]).find_map(|(path, authors)| {
                match read(&path, authors) {
                    Ok(text) => Some((text, path)),
                    Err(error) => {
                        is_refused |= error.kind() == ErrorKind::PermissionDenied;
                        None
                    }
                }
            });
        let Some((text, found)) = found else {
            let list =
                if is_refused && !self.authors.is_empty() { &mut self.refused } else { &mut self.missing };
            list.push(path.to_owned());
            return None;
        };
        if self.program.is_some() && modified(&found) > self.program {
            self.newer.push(found);
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
        if let Some(first) = self.newer.first() {
            let (first, more) = (first.display().to_string(), and_more(self.newer.len()));
            remarks.push(format!("{}{more}: newer than the program, so lines may have moved", plain(&first)));
        }
        if let Some(first) = self.refused.first() {
            let more = and_more(self.refused.len());
            remarks.push(format!(
                "source {}{more} not shown: the owner of the program, whose line information names it, could not read it; \
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

fn read(path: &Path, authors: &Authors) -> std::io::Result<String> {
    let file = authors.open(path)?;
    let len = file.metadata()?.len();
    if len > MAX_SIZE {
        return Err(ErrorKind::FileTooLarge.into());
    }
    // Files of /proc say that they are empty, and are no sources.
    let mut bytes = Vec::new();
    file.take(len).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
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
}
