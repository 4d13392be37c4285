//! Reads from the source which file of a crate imports which: the layers of the project.
//!
//! A file imports another one if a path in its code (in a `use`, or in an expression, a type or a macro)
//! leads into that file's module. Code under `#[cfg(test)]` does not count. A `mod` declaration is not an
//! import.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};

/// The module path of a file, without `crate`; that of the root is empty.
pub type Module = Vec<String>;

/// The files of one crate and their imports.
#[derive(Debug, Default)]
pub struct House {
    /// Each module that has a file, with its path below the crate's source folder.
    pub files: BTreeMap<Module, PathBuf>,
    /// From a module to the modules that it imports.
    pub imports: BTreeMap<Module, BTreeSet<Module>>,
}

impl House {
    /// Reads a crate, beginning with its root file, `lib.rs` or `main.rs`.
    ///
    /// # Errors
    /// A file cannot be read, or is not Rust.
    pub fn read(root: &Path) -> Result<House> {
        let source = root.parent().context("a root file has a folder")?;
        let mut house = House::default();
        let mut parsed = Vec::new();
        let mut left = vec![(Vec::new(), root.to_owned())];
        while let Some((module, path)) = left.pop() {
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let file = syn::parse_file(&text).with_context(|| path.display().to_string())?;
            for name in declared(&file.items) {
                let child: Module = module.iter().cloned().chain([name]).collect();
                let below = source.join(child.iter().collect::<PathBuf>());
                let plain = below.with_extension("rs");
                left.push((child, if plain.exists() { plain } else { below.join("mod.rs") }));
            }
            house.files.insert(module.clone(), path.strip_prefix(source)?.to_owned());
            parsed.push((module, file));
        }
        for (module, file) in parsed {
            let mut reader = Reader { house: &house, at: module.clone(), found: BTreeSet::new() };
            reader.visit_file(&file);
            let mut found = reader.found;
            found.remove(&module);
            house.imports.insert(module, found);
        }
        Ok(house)
    }

    /// Returns the module with a file into which a path leads: the longest prefix of the path that has a
    /// file.
    fn file_of(&self, path: &[String]) -> Module {
        (0..=path.len())
            .rev()
            .map(|len| &path[..len])
            .find(|path| self.files.contains_key(*path))
            .unwrap_or(&[])
            .to_vec()
    }

    /// Returns the groups of files that import each other in a circle, each with the imports that close it.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let keys: Vec<&Module> = self.files.keys().collect();
        let arrows = self.imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
        circles(&keys, arrows)
    }

    /// Returns the circles between what is directly in each folder: files, and folders with everything in
    /// them.
    pub fn circles_of_folders(&self) -> Vec<Vec<String>> {
        let mut all = Vec::new();
        let folders: BTreeSet<Module> = self
            .files
            .keys()
            .filter_map(|module| module.split_last())
            .map(|(_, folder)| folder.to_vec())
            .collect();
        for folder in folders {
            let place = |module: &Module| {
                module.starts_with(&folder).then(|| module[..module.len().min(folder.len() + 1)].to_vec())
            };
            let arrows: BTreeSet<(Module, Module)> = self
                .arrows()
                .filter_map(|(from, to)| Some((place(from)?, place(to)?)))
                // The folder's own file re-exports what is in the folder.
                .filter(|(from, to)| from != to && *from != folder)
                .collect();
            let keys: BTreeSet<&Module> = arrows.iter().flat_map(|(from, to)| [from, to]).collect();
            let keys: Vec<&Module> = keys.into_iter().collect();
            all.extend(circles(&keys, arrows.iter().map(|(from, to)| (from, to))));
        }
        all
    }

    fn arrows(&self) -> impl Iterator<Item = (&Module, &Module)> {
        self.imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)))
    }

    /// Returns the files that import through the crate's root, which imports them.
    pub fn through_the_root(&self) -> Vec<String> {
        let root = Module::new();
        let through = self.arrows().filter(|(from, to)| **to == root && **from != root);
        through.map(|(from, _)| from.join("::")).collect()
    }

    /// Returns the files and folders directly in the source folder, from the bottom up. What is in a layer
    /// imports only from the layers before it.
    pub fn layers(&self) -> Vec<Vec<String>> {
        let top = |module: &Module| module.first().cloned().unwrap_or_default();
        let mut below: BTreeMap<String, BTreeSet<String>> =
            self.files.keys().map(|module| (top(module), BTreeSet::new())).collect();
        for (from, to) in self.arrows() {
            if top(from) != top(to) {
                below.entry(top(from)).or_default().insert(top(to));
            }
        }
        let mut layers: Vec<Vec<String>> = Vec::new();
        let mut done = BTreeSet::new();
        while done.len() < below.len() {
            let next: Vec<String> = below
                .iter()
                .filter(|(name, needs)| !done.contains(*name) && needs.is_subset(&done))
                .map(|(name, _)| name.clone())
                .collect();
            if next.is_empty() {
                break;
            }
            done.extend(next.iter().cloned());
            layers.push(next);
        }
        layers
    }
}

fn circles<'m>(
    keys: &[&'m Module],
    arrows: impl Iterator<Item = (&'m Module, &'m Module)>,
) -> Vec<Vec<String>> {
    let number = |module: &Module| keys.binary_search(&module).ok();
    let mut graph = DiGraphMap::<usize, ()>::new();
    for (from, to) in arrows {
        if let (Some(from), Some(to)) = (number(from), number(to)) {
            graph.add_edge(from, to, ());
        }
    }
    let name = |n: usize| keys[n].join("::");
    let groups = tarjan_scc(&graph).into_iter().filter(|group| group.len() > 1);
    let ties = groups.map(|group| {
        let edges = group.iter().flat_map(|&from| graph.neighbors(from).map(move |to| (from, to)));
        edges
            .filter(|(_, to)| group.contains(to))
            .map(|(from, to)| format!("{} -> {}", name(from), name(to)))
            .collect()
    });
    ties.collect()
}

/// Returns the modules of a file that have files of their own.
fn declared(items: &[syn::Item]) -> Vec<String> {
    let modules = items.iter().filter_map(|item| match item {
        syn::Item::Mod(module) if module.content.is_none() && !is_test(&module.attrs) => {
            Some(module.ident.to_string())
        }
        _ => None,
    });
    modules.collect()
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_of_tests = |list: &syn::MetaList| list.tokens.to_string() == "test";
        attribute.path().is_ident("cfg") && attribute.meta.require_list().is_ok_and(is_of_tests)
    })
}

/// Walks through a file and records where its paths lead.
struct Reader<'h> {
    house: &'h House,
    /// The module in which the walk is.
    at: Module,
    found: BTreeSet<Module>,
}

impl Reader<'_> {
    fn note(&mut self, path: &[String]) {
        let Some(first) = path.first() else { return };
        let mut base = self.at.clone();
        let rest = match first.as_str() {
            "crate" => {
                base.clear();
                &path[1..]
            }
            "self" => &path[1..],
            "super" => path,
            // A module below this one, by its name.
            name => {
                let child: Module = base.iter().cloned().chain([name.to_owned()]).collect();
                if !self.house.files.contains_key(&child) {
                    return;
                }
                path
            }
        };
        let ups = rest.iter().take_while(|name| *name == "super").count();
        base.truncate(base.len().saturating_sub(ups));
        base.extend_from_slice(&rest[ups..]);
        self.found.insert(self.house.file_of(&base));
    }

    fn note_tree(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.note_tree(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Name(name) => self.note_leaf(&name.ident, before),
            syn::UseTree::Rename(name) => self.note_leaf(&name.ident, before),
            syn::UseTree::Glob(_) => self.note(before),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(tree, before)),
        }
    }

    fn note_leaf(&mut self, name: &syn::Ident, before: &[String]) {
        let mut path = before.to_vec();
        path.extend(Some(name.to_string()).filter(|name| name != "self"));
        self.note(&path);
    }

    /// Records the paths among the tokens of a macro.
    fn note_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if colons == 2 && !path.is_empty() => path.push(name.to_string()),
                TokenTree::Ident(name) => {
                    self.note_long(&path);
                    path = vec![name.to_string()];
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => {
                    self.note_tokens(group.stream());
                    self.note_long(&std::mem::take(&mut path));
                }
                _ => self.note_long(&std::mem::take(&mut path)),
            }
            colons = 0;
        }
        self.note_long(&path);
    }

    fn note_long(&mut self, path: &[String]) {
        if path.len() > 1 {
            self.note(path);
        }
    }
}

impl<'a> Visit<'a> for Reader<'_> {
    fn visit_item(&mut self, item: &'a syn::Item) {
        let attributes = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Const(item) => &item.attrs,
            syn::Item::Static(item) => &item.attrs,
            syn::Item::Struct(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if module.content.is_some() {
            self.at.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.at.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.note_tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if path.leading_colon.is_none() {
            self.note_long(&names);
        }
        visit::visit_path(self, path);
    }

    // `pub(in crate::a)` and `pub(crate)` are permissions, not imports.
    fn visit_visibility(&mut self, _: &'a syn::Visibility) {}

    fn visit_macro(&mut self, item: &'a syn::Macro) {
        self.note_tokens(item.tokens.clone());
    }
}

#[cfg(test)]
// A test that cannot write its files has failed.
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn house(files: &[(&str, &str)]) -> House {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        House::read(&folder.path().join("lib.rs")).unwrap()
    }

    #[test]
    fn layers_of_a_small_house() {
        let house = house(&[
            ("lib.rs", "mod a; mod b; mod c; pub use a::A;"),
            ("a.rs", "mod x; use crate::b::B; pub struct A(B, x::X);"),
            ("a/x.rs", "pub struct X; #[cfg(test)] mod tests { use crate::a::A; }"),
            ("b.rs", "pub struct B; fn f() { println!(\"{}\", crate::c::one()); }"),
            ("c.rs", "pub fn one() -> u8 { 1 }"),
        ]);
        assert_eq!(house.circles(), Vec::<Vec<String>>::new());
        assert_eq!(house.circles_of_folders(), Vec::<Vec<String>>::new());
        assert_eq!(house.layers(), [vec!["c"], vec!["b"], vec!["a"], vec![""]]);
    }

    #[test]
    fn circles_are_found() {
        let through_a_macro = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "pub fn f() { crate::b::g() }"),
            ("b.rs", "pub fn g() { assert!(super::a::f() == ()) }"),
        ];
        assert_eq!(house(&through_a_macro).circles(), [["b -> a", "a -> b"].map(String::from)]);
        let of_folders = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "mod x; mod y;"),
            ("a/x.rs", "pub fn f() { crate::b::g() }"),
            ("a/y.rs", "pub fn h() {}"),
            ("b.rs", "pub fn g() { crate::a::y::h() }"),
        ];
        let house = house(&of_folders);
        assert!(house.circles().is_empty());
        assert_eq!(house.circles_of_folders().len(), 1);
    }

    #[test]
    fn the_root_is_no_way() {
        let files =
            [("lib.rs", "mod a; mod b; pub use a::A;"), ("a.rs", "pub struct A;"), ("b.rs", "use crate::A;")];
        assert_eq!(house(&files).through_the_root(), ["b"]);
    }
}
