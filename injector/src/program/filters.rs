//! Which functions the user wants hooked, and whose blocks counted: -I, -X, --min-size, --count and --file.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use globset::{Glob, GlobMatcher};

use crate::options::CountArg;
use gprofinject_image::names::demangle;

#[derive(Debug, Default)]
pub(crate) struct Filters {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
    min_size: u64,
    count: Option<CountArg>,
    files: Vec<Pattern>,
}

#[derive(Debug)]
struct Pattern {
    option: &'static str,
    matcher: GlobMatcher,
    /// Has it ever matched? One that never does is likely a slip.
    used: AtomicBool,
}

impl Filters {
    pub(crate) fn new(include: &[String], exclude: &[String], min_size: u64) -> Result<Filters> {
        let patterns = |option, globs: &[String]| {
            globs.iter().map(|glob| Pattern::new(option, glob)).collect::<Result<Vec<_>>>()
        };
        let (include, exclude) = (patterns("-I", include)?, patterns("-X", exclude)?);
        Ok(Filters { include, exclude, min_size, count: None, files: Vec::new() })
    }

    /// The same, with blocks to be counted: in all that is hooked, or in code from these files.
    pub(crate) fn counting(mut self, count: Option<CountArg>, files: &[String]) -> Result<Filters> {
        self.count = count;
        self.files = files.iter().map(|glob| Pattern::new("--file", glob)).collect::<Result<_>>()?;
        Ok(self)
    }

    pub(crate) fn count(&self) -> Option<CountArg> {
        self.count
    }

    /// The globs of --file.
    pub(crate) fn files(&self) -> Vec<String> {
        self.files.iter().map(|p| p.matcher.glob().glob().to_owned()).collect()
    }

    /// Is nothing to be done in a program without line information?
    pub(crate) fn needs_lines(&self) -> bool {
        self.count == Some(CountArg::Lines) || self.asks_for_files()
    }

    /// Are there patterns of files to be asked?
    pub(crate) fn asks_for_files(&self) -> bool {
        self.count.is_some() && !self.files.is_empty()
    }

    /// Is code of this file to be counted? A pattern is held against the path and against the name alone.
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

    /// Is a function of these names (its own and its aliases) and size to be hooked?
    pub(crate) fn select<'n>(&self, names: impl Iterator<Item = &'n str> + Clone, size: u64) -> bool {
        // Every pattern sees every function, so that `unused` knows.
        let included = any(&self.include, &names) || self.include.is_empty();
        let excluded = any(&self.exclude, &names);
        included && !excluded && size >= self.min_size
    }

    /// What they were made of: -I, -X, --min-size.
    pub(crate) fn typed(&self) -> (Vec<String>, Vec<String>, u64) {
        let globs =
            |patterns: &[Pattern]| patterns.iter().map(|p| p.matcher.glob().glob().to_owned()).collect();
        (globs(&self.include), globs(&self.exclude), self.min_size)
    }

    /// The patterns that matched nothing, as typed.
    pub(crate) fn unused(&self) -> impl Iterator<Item = String> {
        let all = self.include.iter().chain(&self.exclude).chain(&self.files);
        all.filter(|pattern| !pattern.used.load(Ordering::Relaxed))
            .map(|pattern| format!("{} '{}'", pattern.option, pattern.matcher.glob()))
    }
}

fn any<'n>(patterns: &[Pattern], names: &(impl Iterator<Item = &'n str> + Clone)) -> bool {
    let mut found = false;
    for pattern in patterns {
        if names.clone().any(|name| demangle::any_spelling(name, |text| pattern.matcher.is_match(text))) {
            pattern.used.store(true, Ordering::Relaxed);
            found = true;
        }
    }
    found
}

impl Pattern {
    fn new(option: &'static str, glob: &str) -> Result<Pattern> {
        let matcher = Glob::new(glob)
            .with_context(|| {
                format!("{option} '{glob}' is not a pattern (a literal [ or {{ is written \\[ or \\{{)")
            })?
            .compile_matcher();
        Ok(Pattern { option, matcher, used: AtomicBool::new(false) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filters(include: &[&str], exclude: &[&str], min_size: u64) -> Filters {
        let own = |globs: &[&str]| globs.iter().map(|&glob| glob.to_owned()).collect::<Vec<_>>();
        Filters::new(&own(include), &own(exclude), min_size).expect("good patterns")
    }

    fn selects(filters: &Filters, name: &str) -> bool {
        filters.select(std::iter::once(name), 16)
    }

    #[test]
    fn included_and_not_excluded() {
        let both = filters(&["lua_*", "main"], &["*_k"], 0);
        assert!(selects(&both, "lua_call") && selects(&both, "main") && selects(&both, "main.part.0"));
        assert!(!selects(&both, "lua_call_k") && !selects(&both, "other"));
        assert!(selects(&filters(&[], &["x"], 0), "y"));
        assert!(!selects(&filters(&[], &[], 17), "y"));
    }

    #[test]
    fn demangled_names_match() {
        assert!(selects(&filters(&["foo::*"], &[], 0), "_ZN3foo3barEi"));
        assert!(selects(&filters(&["foo::bar"], &[], 0), "_ZN3foo3barEi"));
        assert!(selects(&filters(&["*::bar(int)"], &[], 0), "_ZN3foo3barEi"));
        assert!(selects(&filters(&["core::fmt::*"], &[], 0), "_ZN4core3fmt5write17h0123456789abcdefE"));
    }

    #[test]
    fn bad_patterns_are_named_and_idle_ones_known() {
        let error = Filters::new(&["a[".into()], &[], 0).expect_err("unclosed");
        assert!(error.to_string().contains("-I 'a['"));
        let idle = filters(&["a", "b"], &["c"], 0);
        selects(&idle, "b");
        assert_eq!(idle.unused().collect::<Vec<_>>(), ["-I 'a'", "-X 'c'"]);
    }
}
