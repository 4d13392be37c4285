//! The documentation: every link leads somewhere, and the book has every page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::{place::Place, tool};

gprofinject_tests::trials! {
    together:
        links_lead_somewhere,
        the_book_has_every_page,
        the_book_is_built_without_a_warning;
}

fn root() -> PathBuf {
    tool::folder().join("..").canonicalize().unwrap()
}

/// Returns all files of the documentation.
fn files() -> Vec<PathBuf> {
    let mut files: Vec<_> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "gmon/README.md"].map(|name| root().join(name)).to_vec();
    files.extend(pages());
    files
}

/// Returns the files in `docs`.
fn pages() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<_> = entries.filter(|path| path.extension().is_some_and(|ending| ending == "md")).collect();
    pages.sort();
    pages
}

/// A page without its code.
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
}

impl Page {
    fn read(path: &Path) -> Page {
        let text = fs::read_to_string(path).unwrap();
        let mut page = Page { links: Vec::new(), anchors: BTreeSet::new() };
        let mut is_code = false;
        let mut prose = String::new();
        for line in text.lines() {
            if line.trim_start().starts_with("```") {
                is_code = !is_code;
            } else if !is_code && !line.starts_with("    ") {
                if let Some(heading) = line.strip_prefix('#') {
                    page.add_heading(heading.trim_start_matches('#').trim());
                }
                for (at, _) in line.match_indices("<a id=\"") {
                    page.anchors.extend(line[at + 7..].split('"').next().map(str::to_owned));
                }
                prose += line;
                prose.push('\n');
            }
        }
        // Inline code may contain anything.
        let prose: String = prose.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for (at, _) in prose.match_indices("](") {
            let target = prose[at + 2..].split(')').next().unwrap();
            page.links.push(target.trim().to_owned());
        }
        page
    }

    /// Adds the name by which a heading can be linked, as GitHub and mdBook make it: of several that are equal, the
    /// second one ends in -1.
    fn add_heading(&mut self, heading: &str) {
        let kept = |c: char| c.is_alphanumeric() || c == '-' || c == '_' || c == ' ';
        let slug: String = heading.to_lowercase().chars().filter(|&c| kept(c)).collect();
        let slug = slug.replace(' ', "-");
        let names = std::iter::once(slug.clone()).chain((1..).map(|number| format!("{slug}-{number}")));
        let free = names.into_iter().find(|name| !self.anchors.contains(name)).unwrap();
        self.anchors.insert(free);
    }
}

fn links_lead_somewhere() {
    let pages: BTreeMap<PathBuf, Page> = files().into_iter().map(|path| (path.clone(), Page::read(&path))).collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (path, page) in &pages {
        for link in &page.links {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            count += 1;
            let (file, anchor) = link.split_once('#').map_or((link.as_str(), None), |(file, at)| (file, Some(at)));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let shown = format!("{}: {link}", path.strip_prefix(root()).unwrap().display());
            let Ok(target) = target.canonicalize() else {
                wrong.push(format!("{shown}: there is no such file"));
                continue;
            };
            // A page of the book links only to what is in the book.
            let docs = root().join("docs");
            if path.starts_with(&docs) && !target.starts_with(&docs) {
                wrong.push(format!("{shown}: not in the book"));
            }
            if let (Some(anchor), Some(page)) = (anchor, pages.get(&target))
                && !page.anchors.contains(anchor)
            {
                wrong.push(format!("{shown}: there is no such heading"));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(count > 100, "{count} links");
}

fn the_book_has_every_page() {
    let summary = Page::read(&root().join("docs/SUMMARY.md"));
    let listed: BTreeSet<&str> = summary.links.iter().map(String::as_str).collect();
    assert_eq!(listed.len(), summary.links.len(), "a page twice");
    let pages = pages();
    let names = pages.iter().map(|path| path.file_name().unwrap().to_str().unwrap());
    let expected: BTreeSet<&str> = names.filter(|name| *name != "SUMMARY.md").collect();
    assert_eq!(listed, expected);
}

fn the_book_is_built_without_a_warning() {
    if !skip::have("mdbook") {
        return skip::skipped("the_book_is_built_without_a_warning", "no mdbook");
    }
    let place = Place::new();
    let mut mdbook = Command::new("mdbook");
    mdbook.arg("build").arg(root().join("docs")).arg("--dest-dir").arg(place.path("book"));
    let output = mdbook.output().unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let said_more = said.contains("WARN") || said.contains("ERROR") || said.contains("warning");
    assert!(output.status.success() && !said_more, "{said}");
    for page in pages().iter().filter(|path| !path.ends_with("SUMMARY.md")) {
        let html = place.path("book").join(page.file_name().unwrap()).with_extension("html");
        assert!(html.is_file(), "{}", html.display());
    }
}
