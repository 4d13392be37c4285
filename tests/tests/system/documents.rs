//! The documentation: every link leads somewhere, the book has every page, and what it names of the sources is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::{place::Place, tool, tree::Tree};

gprofinject_tests::trials! {
    together:
        links_lead_somewhere,
        files_that_are_named_exist,
        identifiers_that_are_named_exist,
        sources_name_documents_that_exist,
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

/// Returns the pages in `docs` and in its folders.
fn pages() -> Vec<PathBuf> {
    let mut folders = vec![root().join("docs")];
    let mut pages = Vec::new();
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    pages
}

/// Returns the path of a page below `docs`.
fn in_docs(page: &Path) -> String {
    page.strip_prefix(root().join("docs")).unwrap().to_str().unwrap().to_owned()
}

/// A page without its blocks of code.
struct Page {
    links: Vec<String>,
    anchors: BTreeSet<String>,
    /// What stands between backticks.
    spans: BTreeSet<String>,
}

impl Page {
    fn read(path: &Path) -> Page {
        let text = fs::read_to_string(path).unwrap();
        let mut page = Page { links: Vec::new(), anchors: BTreeSet::new(), spans: BTreeSet::new() };
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
        page.spans = prose.split('`').skip(1).step_by(2).map(str::to_owned).collect();
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

/// Files of users that pages take for examples, and of other projects.
const EXAMPLES: [&str; 5] =
    ["CMakeLists.txt", "conftest.py", "gcc/auto-profile.cc", "parse.c", "sample_reader.cc"];

/// Words that pages on internals name and no source does: parts of other programs, and notation.
const FOREIGN: [&str; 8] = [
    "FRIDA_DOWNLOAD_CDN",
    "F_SEAL_WRITE",
    "PERF_RECORD_EXIT",
    "PR_SET_CHILD_SUBREAPER",
    "_ExternalCode",
    "__start_X",
    "__stop_X",
    "__syscall_cp_asm",
];

/// Documents that are elsewhere than here: the changelog, in the Debian package.
const ELSEWHERE: &str = "docs/CHANGELOG.md";

/// Returns the path that is named between backticks, if a path is: a file with an ending that sources have, or a folder with a slash
/// at its end.
fn path_of(span: &str) -> Option<&str> {
    let endings = [".rs", ".sh", ".c", ".cc", ".py", ".go", ".md", ".toml", ".mjs", ".rb", ".txt", "/"];
    let is_path = span.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    let is_ours = !span.starts_with('/') && !span.starts_with('.') && !endings.contains(&span);
    (is_path && is_ours && endings.iter().any(|ending| span.ends_with(ending))).then_some(span)
}

/// Returns the identifiers that are named between backticks, if only a program can be meant: `a::b`, `name()`, `Type.field`,
/// `with_underscore`, `CamelCase`.
fn identifiers_of(span: &str) -> Vec<&str> {
    let (name, is_call) = span.strip_suffix("()").map_or((span, false), |name| (name, true));
    let parts: Vec<&str> = name.split("::").flat_map(|part| part.split('.')).collect();
    let is_identifier = |part: &&str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let is_camel = |part: &str| {
        let pairs = part.as_bytes().windows(2);
        part.starts_with(|c: char| c.is_ascii_uppercase())
            && pairs.clone().any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
    };
    let is_field = parts.len() == 1 || name.contains("::") || is_camel(parts[0]);
    let is_program = is_call || name.contains("::") || name.contains('_') || is_camel(parts[0]);
    if parts.iter().all(is_identifier) && is_field && is_program { parts } else { Vec::new() }
}

fn files_that_are_named_exist() {
    let tree = Tree::read(&root()).unwrap();
    let mut wrong = Vec::new();
    let mut count = 0;
    // The changelog also names what was there once.
    for file in files().iter().filter(|file| !file.ends_with("CHANGELOG.md")) {
        for span in Page::read(file).spans {
            let Some(path) = path_of(&span) else { continue };
            count += 1;
            if !tree.has_path(path) && !EXAMPLES.contains(&path) {
                wrong.push(format!("{}: there is no {path}", file.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(count > 200, "{count} paths");
}

fn identifiers_that_are_named_exist() {
    let tree = Tree::read(&root()).unwrap();
    let mut wrong = Vec::new();
    let mut count = 0;
    let internals = root().join("docs/internals");
    let written_for_developers = |file: &&PathBuf| file.starts_with(&internals) || file.ends_with("CONTRIBUTING.md");
    for file in files().iter().filter(written_for_developers) {
        for span in Page::read(file).spans {
            for name in identifiers_of(&span) {
                count += 1;
                if !tree.has_word(name) && !FOREIGN.contains(&name) {
                    let file = file.strip_prefix(root()).unwrap().display();
                    wrong.push(format!("{file}: `{span}`: no source has {name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    let needless: Vec<&&str> = FOREIGN.iter().filter(|name| tree.has_word(name)).collect();
    assert!(needless.is_empty(), "{needless:?} are in sources");
    assert!(count > 150, "{count} identifiers");
}

fn sources_name_documents_that_exist() {
    let tree = Tree::read(&root()).unwrap();
    let here = tree.documents.iter().filter(|(document, _)| document != ELSEWHERE);
    let gone = here.filter(|(document, _)| !tree.files.contains(document));
    let gone: Vec<String> = gone.map(|(document, source)| format!("{source}: there is no {document}")).collect();
    assert!(gone.is_empty(), "\n{}", gone.join("\n"));
    assert!(tree.documents.len() > 20, "{:?}", tree.documents);
}

fn the_book_has_every_page() {
    let summary = Page::read(&root().join("docs/SUMMARY.md"));
    let listed: BTreeSet<&str> = summary.links.iter().map(String::as_str).collect();
    assert_eq!(listed.len(), summary.links.len(), "a page twice");
    let pages = pages();
    let names: Vec<String> = pages.iter().map(|path| in_docs(path)).collect();
    let expected: BTreeSet<&str> = names.iter().map(String::as_str).filter(|name| *name != "SUMMARY.md").collect();
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
        let html = place.path("book").join(in_docs(page)).with_extension("html");
        assert!(html.is_file(), "{}", html.display());
    }
}
