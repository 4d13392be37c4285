//! The user's selection of modules: `--libs` and `--outermost`.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Error, ensure};
use globset::{Glob, GlobSet, GlobSetBuilder};

/// Which libraries are hooked.
#[derive(Debug)]
pub(crate) struct Libs {
    /// As the user has typed it.
    typed: String,
    choice: Choice,
    /// The modules of which only calls from outside are counted. Those that are libraries are hooked.
    outermost: Option<Outermost>,
}

/// The values of `--outermost`.
#[derive(Debug)]
struct Outermost {
    typed: Vec<String>,
    patterns: Patterns,
}

#[derive(Debug)]
enum Choice {
    /// All but the runtime libraries of C, C++ and Fortran.
    Auto,
    None,
    All,
    /// Those that have a name that matches.
    Matching(Patterns),
}

#[derive(Debug)]
struct Patterns {
    set: GlobSet,
    /// Whether each of the patterns has matched a library. One that never does is probably a mistake.
    used: Vec<AtomicBool>,
}

/// The names of runtime libraries up to their `.so`: the dynamic linker, glibc's, and those of compilers. What they do is
/// rarely what a profile is about, they are called very often, and parts of them run before and below everything else.
const RUNTIME: [&str; 36] = [
    "ld-linux-x86-64",
    "ld-musl-x86_64",
    "libBrokenLocale",
    "libanl",
    "libasan",
    "libatomic",
    "libc",
    "libc++",
    "libc++abi",
    "libdl",
    "libgcc_s",
    "libgfortran",
    "libgomp",
    "libhwasan",
    "libitm",
    "liblsan",
    "libm",
    "libmvec",
    "libnsl",
    "libnss_compat",
    "libnss_dns",
    "libnss_files",
    "libomp",
    "libpthread",
    "libquadmath",
    "libresolv",
    "librt",
    "libssp",
    "libstdc++",
    "libthread_db",
    "libtsan",
    "libubsan",
    "libunwind",
    "libutil",
    "libvtv",
    "libmemusage",
];

impl Patterns {
    /// Returns the patterns in a list that commas separate.
    ///
    /// # Errors
    /// One of them is empty or malformed.
    fn new(globs: &str) -> Result<Patterns, Error> {
        let mut set = GlobSetBuilder::new();
        let mut used = Vec::new();
        for glob in globs.split(',') {
            ensure!(!glob.is_empty(), "a pattern is empty (auto, none, all or patterns are expected)");
            let glob = Glob::new(glob).with_context(|| {
                format!("'{glob}' is not a pattern (a literal [ or {{ is written \\[ or \\{{)")
            })?;
            set.add(glob);
            used.push(AtomicBool::new(false));
        }
        Ok(Patterns { set: set.build()?, used })
    }

    /// Returns those of the patterns, as typed, that have matched nothing.
    fn unused<'t>(&self, typed: impl Iterator<Item = &'t str>) -> impl Iterator<Item = &'t str> {
        typed.zip(&self.used).filter(|(_, used)| !used.load(Ordering::Relaxed)).map(|(glob, _)| glob)
    }

    /// Whether a pattern matches the name. Those that do are noted.
    fn match_name(&self, name: &str) -> bool {
        let matching = self.set.matches(name);
        for used in matching.iter().filter_map(|&index| self.used.get(index)) {
            used.store(true, Ordering::Relaxed);
        }
        !matching.is_empty()
    }
}

impl FromStr for Libs {
    type Err = Error;

    fn from_str(typed: &str) -> Result<Libs, Error> {
        let choice = match typed {
            "auto" => Choice::Auto,
            "none" => Choice::None,
            "all" => Choice::All,
            globs => Choice::Matching(Patterns::new(globs)?),
        };
        Ok(Libs { typed: typed.to_owned(), choice, outermost: None })
    }
}

impl Libs {
    /// Returns the selection that the values of `--libs` and of `--outermost` mean. Without the first, the libraries that the second
    /// names are hooked.
    ///
    /// # Errors
    /// A pattern is empty or malformed.
    pub(crate) fn new(libs: Option<&str>, outermost: &[String]) -> Result<Libs, Error> {
        let modules = outermost.join(",");
        if outermost.is_empty() {
            return libs.unwrap_or("auto").parse::<Libs>().context("--libs");
        }
        let patterns = Patterns::new(&modules).context("--outermost")?;
        let typed = modules.split(',').map(str::to_owned).collect();
        let libs = libs.unwrap_or("none").parse::<Libs>().context("--libs")?;
        Ok(Libs { outermost: Some(Outermost { typed, patterns }), ..libs })
    }

    /// The values of `--outermost`.
    pub(crate) fn outermost(&self) -> &[String] {
        self.outermost.as_ref().map_or(&[], |outermost| &outermost.typed)
    }

    /// Whether only calls from outside are counted of a module with these names.
    pub(crate) fn is_outermost(&self, names: &[&str]) -> bool {
        let Some(outermost) = &self.outermost else { return false };
        names.iter().any(|name| !name.is_empty() && outermost.patterns.match_name(name))
    }

    /// Returns the values of `--outermost` that have matched no module.
    pub(crate) fn unused_outermost(&self) -> impl Iterator<Item = &str> {
        self.outermost
            .iter()
            .flat_map(|outermost| outermost.patterns.unused(outermost.typed.iter().map(String::as_str)))
    }

    /// No libraries.
    #[cfg(test)]
    pub(crate) fn none() -> Libs {
        Libs { typed: "none".to_owned(), choice: Choice::None, outermost: None }
    }

    /// As the user has typed it.
    pub(crate) fn typed(&self) -> &str {
        &self.typed
    }

    /// Whether any library may be hooked.
    pub(crate) fn wants_any(&self) -> bool {
        !matches!(self.choice, Choice::None) || self.outermost.is_some()
    }

    /// Whether the user has named libraries, or wants all of them, and not only those that are hooked anyway.
    pub(crate) fn are_named(&self) -> bool {
        matches!(self.choice, Choice::All | Choice::Matching(_)) || self.outermost.is_some()
    }

    /// Whether a library whose file has this name is hooked. `soname` returns the name by which others need the library,
    /// which is often shorter: both `libz.so.1.2.13` and `libz.so.1` select that one.
    pub(crate) fn wants(&self, name: &str, soname: impl Fn() -> Option<String>) -> bool {
        if self.outermost.is_some() {
            let other = soname();
            let names = [name, other.as_deref().unwrap_or(name)];
            if self.is_outermost(&names) {
                return true;
            }
        }
        match &self.choice {
            Choice::None => false,
            Choice::All => true,
            Choice::Matching(patterns) => {
                patterns.match_name(name) || soname().is_some_and(|soname| patterns.match_name(&soname))
            }
            Choice::Auto => !is_runtime(name),
        }
    }

    /// Returns the patterns that have matched no library.
    pub(crate) fn unused(&self) -> impl Iterator<Item = &str> {
        let patterns = match &self.choice {
            Choice::Matching(patterns) => Some(patterns),
            _ => None,
        };
        patterns.into_iter().flat_map(|patterns| patterns.unused(self.typed.split(',')))
    }
}

/// Whether a file name is that of a runtime library: one of the names, then `.so`, or a version as in `libc-2.31.so`.
pub(crate) fn is_runtime(name: &str) -> bool {
    RUNTIME.iter().any(|runtime| {
        name.strip_prefix(runtime).is_some_and(|rest| {
            let version =
                rest.strip_prefix('-').and_then(|rest| rest.split_once(".so")).map(|(version, _)| version);
            let is_version = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            rest == ".so" || rest.starts_with(".so.") || version.is_some_and(is_version)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_libraries_are_known_by_their_names() {
        for name in ["libc.so.6", "libc-2.31.so", "ld-linux-x86-64.so.2", "libstdc++.so.6.0.30", "libm.so.6"]
        {
            assert!(is_runtime(name), "{name}");
        }
        for name in
            ["libcrypto.so.3", "libcap.so.2", "libmagic.so.1", "libm-extra.so", "libc.txt", "libgmp.so"]
        {
            assert!(!is_runtime(name), "{name}");
        }
    }

    #[test]
    fn the_selection_is_as_typed() {
        let wants =
            |typed: &str, name: &str| typed.parse::<Libs>().expect("a selection").wants(name, || None);
        assert!(wants("auto", "libz.so.1") && !wants("auto", "libc.so.6"));
        assert!(wants("all", "libc.so.6") && !wants("none", "libz.so.1"));
        assert!(wants("libz*,libm.so.*", "libm.so.6") && !wants("libz*,libm.so.*", "libc.so.6"));
        assert!(
            "a[".parse::<Libs>().is_err() && "".parse::<Libs>().is_err() && "a,".parse::<Libs>().is_err()
        );
        assert!(!"none".parse::<Libs>().expect("a selection").wants_any());
        let two: Libs = "libq.so.1,libr*".parse().expect("a selection");
        assert!(two.wants("libq.so.1.2", || Some("libq.so.1".to_owned())));
        assert_eq!(two.unused().collect::<Vec<_>>(), ["libr*"]);
    }
}
