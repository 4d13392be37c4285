//! The user's selection of functions to hook and of basic blocks to count: -I, -X, --min-size, --count and
//! --file.

use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use globset::{Glob, GlobMatcher};

use crate::options::CountArg;
use gprofinject_image::names::demangle;

/// The user's selection.
#[derive(Debug, Default)]
pub(crate) struct Filters {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    min_size: u64,
    count: Option<CountArg>,
    files: Vec<Pattern>,
}

/// A pattern for functions or source files.
#[derive(Debug)]
pub(crate) struct Pattern {
    option: &'static str,
    /// As the user has typed it.
    typed: String,
    matcher: GlobMatcher,
    /// The names of the modules for which the pattern is; `None` if it is for all.
    module: Option<GlobMatcher>,
    /// Whether the pattern has matched anything. One that never matches is probably a mistake.
    used: AtomicBool,
}

impl Filters {
    /// Returns a selection of functions to hook.
    ///
    /// # Errors
    /// A pattern is malformed.
    pub(crate) fn new(include: &[String], exclude: &[String], min_size: u64) -> Result<Filters> {
        let patterns = |option, globs: &[String]| {
            globs.iter().map(|glob| Pattern::new(option, glob)).collect::<Result<Vec<_>>>()
        };
        let (include, exclude) = (patterns("-I", include)?, patterns("-X", exclude)?);
        Ok(Filters { include, exclude, min_size, count: None, files: Vec::new() })
    }

    /// Returns the selection of the functions that match one pattern, which is the value of `option`.
    ///
    /// # Errors
    /// The pattern is malformed.
    pub(crate) fn only(option: &'static str, glob: &str) -> Result<Filters> {
        Filters::any_of(option, std::slice::from_ref(&glob.to_owned()))
    }

    /// Returns the selection of the functions that match one of several patterns, which are the values of `option`.
    ///
    /// # Errors
    /// A pattern is malformed.
    pub(crate) fn any_of(option: &'static str, globs: &[String]) -> Result<Filters> {
        let include = globs.iter().map(|glob| Pattern::new(option, glob)).collect::<Result<_>>()?;
        Ok(Filters { include, ..Filters::default() })
    }

    /// Adds basic-block counts to the selection: in everything that is hooked, or in code from these files.
    ///
    /// # Errors
    /// A pattern is malformed.
    pub(crate) fn counting(mut self, count: Option<CountArg>, files: &[String]) -> Result<Filters> {
        self.count = count;
        self.files = files.iter().map(|glob| Pattern::new("--file", glob)).collect::<Result<_>>()?;
        Ok(self)
    }

    /// What is counted, if anything is.
    pub(crate) fn count(&self) -> Option<CountArg> {
        self.count
    }

    /// Returns the patterns of `--file`.
    pub(crate) fn files(&self) -> Vec<String> {
        self.files.iter().map(|p| p.typed.clone()).collect()
    }

    /// Whether the program must have line information.
    pub(crate) fn needs_lines(&self) -> bool {
        self.count == Some(CountArg::Lines) || self.asks_for_files()
    }

    /// Whether there are patterns for source files.
    pub(crate) fn asks_for_files(&self) -> bool {
        self.count.is_some() && !self.files.is_empty()
    }

    /// Whether code of this source file is counted. A pattern is compared with the path and with the name
    /// alone.
    pub(crate) fn counts_file(&self, path: &Path) -> bool {
        let name = path.file_name().map(Path::new);
        let mut found = false;
        for pattern in &self.files {
            if pattern.matcher.is_match(path) || name.is_some_and(|name| pattern.matcher.is_match(name)) {
                pattern.used.store(true, Ordering::Relaxed);
                found = true;
            }
        }
        found
    }

    /// Whether -I and -X select a function with these names (its own and its aliases). `module` has the names of the file
    /// that contains the function: see [`Planner`](crate::program::planner::Planner).
    pub(crate) fn select<'n>(&self, module: &[&str], names: impl Iterator<Item = &'n str> + Clone) -> bool {
        // Every pattern is compared with every function, so that `unused` is complete.
        let included = any(&self.include, module, &names) || self.include.is_empty();
        let excluded = any(&self.exclude, module, &names);
        included && !excluded
    }

    /// Whether all functions are selected.
    pub(crate) fn selects_all(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// Returns the size in bytes that a function must have to be hooked.
    pub(crate) fn min_size(&self) -> u64 {
        self.min_size
    }

    /// Returns the values of -I, -X and --min-size.
    pub(crate) fn typed(&self) -> (Vec<String>, Vec<String>, u64) {
        let globs = |patterns: &[Pattern]| patterns.iter().map(|p| p.typed.clone()).collect();
        (globs(&self.include), globs(&self.exclude), self.min_size)
    }

    /// Returns the patterns of -I that have matched nothing.
    pub(crate) fn unused_includes(&self) -> impl Iterator<Item = &Pattern> {
        self.include.iter().filter(|pattern| !pattern.is_used())
    }

    /// Returns the patterns that have matched nothing, as typed.
    pub(crate) fn unused(&self) -> impl Iterator<Item = String> {
        let all = self.include.iter().chain(&self.exclude).chain(&self.files);
        all.filter(|pattern| !pattern.is_used()).map(Pattern::to_string)
    }
}

fn any<'n>(patterns: &[Pattern], module: &[&str], names: &(impl Iterator<Item = &'n str> + Clone)) -> bool {
    let mut found = false;
    for pattern in patterns {
        if !pattern.is_for(module) {
            continue;
        }
        if names.clone().any(|name| demangle::any_spelling(name, |text| pattern.matcher.is_match(text))) {
            pattern.used.store(true, Ordering::Relaxed);
            found = true;
        }
    }
    found
}

/// The pattern as the user has typed it.
impl fmt::Display for Pattern {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "{} '{}'", self.option, self.typed)
    }
}

impl Pattern {
    fn new(option: &'static str, glob: &str) -> Result<Pattern> {
        let matcher = |part: &str| {
            let made = Glob::new(part).with_context(|| {
                format!("{option} '{glob}' is not a pattern (a literal [ or {{ is written \\[ or \\{{)")
            });
            Ok::<_, anyhow::Error>(made?.compile_matcher())
        };
        // MODULE!FUNCTION. The names of functions contain no exclamation mark, except those of C++ operators, before
        // which a module's name would end in the word `operator`; inside brackets it negates a set.
        let split = glob
            .match_indices('!')
            .map(|(at, _)| glob.split_at(at))
            .find(|(before, _)| !before.ends_with("operator") && !before.ends_with('['));
        let typed = glob.to_owned();
        let (module, function) = match split {
            Some((module, function)) => (Some(matcher(module)?), &function[1..]),
            None => (None, glob),
        };
        let function = if function.is_empty() { "*" } else { function };
        Ok(Pattern { option, typed, matcher: matcher(function)?, module, used: AtomicBool::new(false) })
    }

    fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// The option of which the pattern is a value.
    pub(crate) fn option(&self) -> &'static str {
        self.option
    }

    /// As the user has typed it, without its option.
    pub(crate) fn typed(&self) -> &str {
        &self.typed
    }

    /// Whether the pattern is for modules that it does not name in full.
    pub(crate) fn is_for_several_modules(&self) -> bool {
        self.module.as_ref().is_some_and(|module| module.glob().glob().contains(['*', '?', '[', '{']))
    }

    /// Whether the pattern names a module.
    pub(crate) fn names_a_module(&self) -> bool {
        self.module.is_some()
    }

    /// The pattern for the names of functions.
    pub(crate) fn of_functions(&self) -> &str {
        self.matcher.glob().glob()
    }

    /// Whether the pattern is for functions of a module that has these names.
    pub(crate) fn is_for(&self, module: &[&str]) -> bool {
        self.module.as_ref().is_none_or(|wanted| module.iter().any(|name| wanted.is_match(name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters(include: &[&str], exclude: &[&str]) -> Filters {
        let own = |globs: &[&str]| globs.iter().map(|&glob| glob.to_owned()).collect::<Vec<_>>();
        Filters::new(&own(include), &own(exclude), 0).expect("good patterns")
    }

    fn selects(filters: &Filters, name: &str) -> bool {
        filters.select(&["", "prog"], std::iter::once(name))
    }

    #[test]
    fn included_and_not_excluded() {
        let both = filters(&["lua_*", "main"], &["*_k"]);
        assert!(selects(&both, "lua_call") && selects(&both, "main") && selects(&both, "main.part.0"));
        assert!(!selects(&both, "lua_call_k") && !selects(&both, "other"));
        assert!(selects(&filters(&[], &["x"]), "y"));
    }

    #[test]
    fn demangled_names_match() {
        assert!(selects(&filters(&["foo::*"], &[]), "_ZN3foo3barEi"));
        assert!(selects(&filters(&["foo::bar"], &[]), "_ZN3foo3barEi"));
        assert!(selects(&filters(&["*::bar(int)"], &[]), "_ZN3foo3barEi"));
        assert!(selects(&filters(&["core::fmt::*"], &[]), "_ZN4core3fmt5write17h0123456789abcdefE"));
    }

    #[test]
    fn modules_have_several_names() {
        let library = |typed: &str| {
            filters(&[typed], &[]).select(&["libz.so.1.2.13", "libz.so.1"], std::iter::once("inflate"))
        };
        for (typed, in_program, in_library) in [
            ("inflate", true, true),
            ("!inflate", true, false),
            ("prog!inflate", true, false),
            ("libz.so.1!inflate", false, true),
            ("libz.so.1.2.*!inflate", false, true),
            ("libz*!", false, true),
            ("liby*!inflate", false, false),
            ("*!inf*", true, true),
            ("[!a]nflate", true, true),
        ] {
            assert_eq!(selects(&filters(&[typed], &[]), "inflate"), in_program, "{typed}");
            assert_eq!(library(typed), in_library, "{typed}");
        }
        assert!(selects(&filters(&["std::optional::operator!*"], &[]), "std::optional::operator!()"));
    }

    #[test]
    fn bad_patterns_are_named_and_idle_ones_known() {
        let error = Filters::new(&["a[".into()], &[], 0).expect_err("unclosed");
        assert!(error.to_string().contains("-I 'a['"));
        let idle = filters(&["a", "b"], &["c"]);
        selects(&idle, "b");
        assert_eq!(idle.unused().collect::<Vec<_>>(), ["-I 'a'", "-X 'c'"]);
    }
}
