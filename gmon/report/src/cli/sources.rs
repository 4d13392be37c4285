//! Finds source files where they are now.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};

use crate::cli::report_args::SourceArgs;

/// Finds and reads source files.
pub(crate) struct Sources {
    substitutes: Vec<(String, String)>,
    folders: Vec<PathBuf>,
    /// When the program was made.
    program: Option<SystemTime>,
    /// The paths of files that were not found.
    missing: Vec<String>,
    /// The files that have changed since the program was made.
    newer: Vec<PathBuf>,
}

/// The size in bytes above which a file is not read.
const MAX_SIZE: u64 = 64 << 20;

impl Sources {
    /// Returns a reader for the sources of this program.
    ///
    /// # Errors
    /// A substitution has no `=`.
    pub(crate) fn new(args: &SourceArgs, program: &Path) -> Result<Sources> {
        let substitute = |text: &String| {
            let (old, new) = text
                .split_once('=')
                .with_context(|| format!("--substitute-path {text}: expected OLD=NEW"))?;
            Ok((old.to_owned(), new.to_owned()))
        };
        let substitutes = args.substitute_path.iter().map(substitute).collect::<Result<_>>()?;
        let (folders, program) = (args.source_dir.clone(), modified(program));
        Ok(Sources { substitutes, folders, program, missing: Vec::new(), newer: Vec::new() })
    }

    /// Returns the file's lines, from number 1 on, or `None` if it is not found. Bytes that are not UTF-8 are
    /// replaced.
    pub(crate) fn read(&mut self, path: &str) -> Option<BTreeMap<u32, String>> {
        let found = self.candidates(path).into_iter().find_map(|path| Some((read(&path)?, path)));
        let Some((text, found)) = found else {
            self.missing.push(path.to_owned());
            return None;
        };
        if self.program.is_some() && modified(&found) > self.program {
            self.newer.push(found);
        }
        Some((1..).zip(text.lines().map(str::to_owned)).collect())
    }

    /// Returns the paths at which the file may be, the most likely one first.
    fn candidates(&self, path: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for (old, new) in &self.substitutes {
            // `/a` is not a prefix of `/ab`.
            let rest = path.strip_prefix(old.trim_end_matches('/'));
            if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with('/')) {
                found.push(PathBuf::from(format!("{}{rest}", new.trim_end_matches('/'))));
            }
        }
        let parts: Vec<_> = path.split('/').filter(|part| !matches!(*part, "" | "." | "..")).collect();
        for folder in &self.folders {
            found.extend((0..parts.len()).map(|first| folder.join(parts[first..].join("/"))));
        }
        found.push(PathBuf::from(path));
        found
    }

    /// Reports which files were not found, or are not the ones that were compiled.
    pub(crate) fn complain(&self) {
        let and_more = |number: usize| match number - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        if let Some(first) = self.newer.first() {
            let (first, more) = (first.display().to_string(), and_more(self.newer.len()));
            eprintln!(
                "gmon: {}{more}: newer than the program, so lines may have moved",
                first.escape_debug()
            );
        }
        if let Some(first) = self.missing.first() {
            let more = and_more(self.missing.len());
            eprintln!(
                "gmon: source {}{more} not found; --source-dir DIR or --substitute-path OLD=NEW says where",
                first.escape_debug()
            );
        }
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn read(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    let readable = metadata.is_file() && metadata.len() <= MAX_SIZE;
    let bytes = readable.then(|| std::fs::read(path).ok()).flatten()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
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
        let sources = Sources::new(&args, Path::new("/")).expect("good arguments");
        let expected = ["/home/me/x/a.c", "/new/build/x/a.c", "/new/x/a.c", "/new/a.c", "/build/x/a.c"];
        assert_eq!(sources.candidates("/build/x/a.c"), expected.map(PathBuf::from));
        let bad = SourceArgs { substitute_path: vec!["x".to_owned()], ..args };
        assert!(Sources::new(&bad, Path::new("/")).is_err());
    }
}
