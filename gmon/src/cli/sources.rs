//! Source files, where they are now.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::report_args::SourceArgs;

/// Finds and reads source files.
pub(crate) struct Sources {
    substitutes: Vec<(String, String)>,
    folders: Vec<PathBuf>,
    /// Paths that were looked for in vain.
    pub(crate) missing: Vec<String>,
}

/// More is no source file.
const MAX_SIZE: u64 = 64 << 20;

impl Sources {
    pub(crate) fn new(args: &SourceArgs) -> Result<Sources> {
        let substitute = |text: &String| {
            let (old, new) = text
                .split_once('=')
                .with_context(|| format!("--substitute-path {text}: expected OLD=NEW"))?;
            Ok((old.to_owned(), new.to_owned()))
        };
        let substitutes = args.substitute_path.iter().map(substitute).collect::<Result<_>>()?;
        Ok(Sources { substitutes, folders: args.source_dir.clone(), missing: Vec::new() })
    }

    /// The file's lines, from 1 on; none if it is not found. What is not UTF-8 is replaced.
    pub(crate) fn read(&mut self, path: &str) -> Option<BTreeMap<u32, String>> {
        let Some(text) = self.candidates(path).iter().find_map(|path| read(path)) else {
            self.missing.push(path.to_owned());
            return None;
        };
        Some((1..).zip(text.lines().map(str::to_owned)).collect())
    }

    /// Where the file may be, the likeliest first.
    fn candidates(&self, path: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for (old, new) in &self.substitutes {
            // `/a` is no prefix of `/ab`.
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

    /// Says what was not found.
    pub(crate) fn complain(&self) {
        if let Some(first) = self.missing.first() {
            let more = match self.missing.len() - 1 {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            eprintln!(
                "gmon: source {}{more} not found; --source-dir DIR or --substitute-path OLD=NEW says where",
                first.escape_debug()
            );
        }
    }
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
        let sources = Sources::new(&args).expect("good arguments");
        let expected = ["/home/me/x/a.c", "/new/build/x/a.c", "/new/x/a.c", "/new/a.c", "/build/x/a.c"];
        assert_eq!(sources.candidates("/build/x/a.c"), expected.map(PathBuf::from));
        assert!(Sources::new(&SourceArgs { substitute_path: vec!["x".to_owned()], ..args }).is_err());
    }
}
