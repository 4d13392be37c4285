//! The files of this repository and the words in them, by which documents are checked.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// What is read: the folders with sources, and the files beside them.
const ROOTS: [&str; 11] = [
    "agent",
    "docs",
    "gmon",
    "injector",
    "tests",
    ".ci",
    "Cargo.toml",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "LICENSE",
];

/// The endings of files whose words are read: sources, scripts, manifests and lists.
const SOURCES: [&str; 14] =
    ["rs", "c", "cc", "h", "S", "s", "go", "py", "sh", "mjs", "js", "toml", "txt", "f90"];

/// The files of the repository.
#[derive(Debug, Default)]
pub struct Tree {
    /// The path of each file, relative to the repository's folder.
    pub files: BTreeSet<String>,
    /// The words in sources: letters, digits and underscores.
    words: BTreeSet<String>,
    /// The paths of documents that sources name, from `docs` on, with the file that names each.
    pub documents: BTreeSet<(String, String)>,
}

impl Tree {
    /// Reads all files below a folder that belong to the repository.
    ///
    /// # Errors
    /// A folder or a source cannot be read.
    pub fn read(root: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        let mut left: Vec<String> = ROOTS.map(str::to_owned).to_vec();
        while let Some(name) = left.pop() {
            let path = root.join(&name);
            if path.is_dir() {
                for entry in fs::read_dir(&path).with_context(|| name.clone())? {
                    let child = entry?.file_name().to_string_lossy().into_owned();
                    // Cargo's build folder is beside a manifest.
                    let is_built = child == "target" && path.join("Cargo.toml").exists();
                    if !is_built && child != ".git" {
                        left.push(format!("{name}/{child}"));
                    }
                }
            } else if path.is_file() {
                tree.add(&name, &path)?;
            }
        }
        Ok(tree)
    }

    fn add(&mut self, name: &str, path: &Path) -> Result<()> {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if SOURCES.contains(&ending) {
            let bytes = fs::read(path).with_context(|| name.to_owned())?;
            let text = String::from_utf8_lossy(&bytes);
            // The test of documents lists words that no source has.
            if name != "tests/tests/system/documents.rs" {
                let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                self.words.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
            }
            for (at, _) in text.match_indices("docs/") {
                let document = document(&text[at..]);
                // A folder may precede it: ../docs/, but not that of another project.
                let is_ours = !text[..at].ends_with('/') || text[..at].ends_with("../");
                if is_ours && document.ends_with(".md") && !document.contains("//") {
                    self.documents.insert((document.to_owned(), name.to_owned()));
                }
            }
        }
        self.files.insert(name.to_owned());
        Ok(())
    }

    /// Returns whether there is a file or a folder (`emit/`) of this path, or of one that ends with it.
    #[must_use]
    pub fn has_path(&self, path: &str) -> bool {
        let inner = format!("/{path}");
        match path.ends_with('/') {
            true => self.files.iter().any(|file| file.starts_with(path) || file.contains(&inner)),
            false => self.files.iter().any(|file| file == path || file.ends_with(&inner)),
        }
    }

    /// Returns whether some source contains this word.
    #[must_use]
    pub fn has_word(&self, word: &str) -> bool {
        self.words.contains(word)
    }
}

/// Returns the path at the beginning of a text, without the stop after a sentence.
fn document(text: &str) -> &str {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "/-_.".contains(c))).unwrap_or(text.len());
    text[..end].trim_end_matches('.')
}
