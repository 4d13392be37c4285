//! The directives in a small program of `programs/`: comments that start with `//#` (`!#` in Fortran).
//!
//! ```text
//! //# flags: -lm                    appended to the compiler's command line
//! //# args: 10 x                    the program's arguments
//! //# exit: 3                       its exit status, as the shell shows it; default 0
//! //# stdout: ok                    a line of its output; the lines together are all of it
//! //# arc: main -> f 10             main calls f ten times. `_start` means no caller in the program
//! //# entry-arc: _start -> cmp 10   replaces all arcs into cmp for entry hooks only
//! //# hooks: both                   only that mode
//! //# only: gcc                     only that compiler
//! //# not: O2-lto                   not with that flag set
//! //# needs: tool                   the test is skipped, and reports it, without this tool
//! //# others: allowed               functions other than those named may be called
//! //# callgrind: no                 callgrind cannot count it (signals) or takes too long; give the reason
//! ```
//!
//! The directives of a file that the program includes (`#include "name.h"`) belong to the program as well.
//!
//! A profile must contain exactly the listed arcs. A name means the function of that name, or the only clone that
//! the compiler has made of it (`name.isra.0`, `name.constprop.0`). `_start -> main 1` is always implied.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::flags::Compiler;
use crate::tool::{self, Hooks};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arc {
    pub caller: String,
    pub callee: String,
    pub count: u64,
}

/// A small program and its directives.
#[derive(Debug)]
pub struct Test {
    pub source: PathBuf,
    pub name: String,
    pub flags: Vec<String>,
    pub args: Vec<String>,
    pub exit: i32,
    pub stdout: Option<String>,
    arcs: Vec<Arc>,
    entry_arcs: Vec<Arc>,
    pub hooks: Option<Hooks>,
    pub only: Option<Compiler>,
    pub not: Vec<String>,
    pub needs: Vec<String>,
    pub others_allowed: bool,
    pub callgrind: bool,
}

impl Test {
    pub fn read(source: &Path) -> Result<Test> {
        let text = std::fs::read_to_string(source)?;
        let name = source.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut test = Test {
            source: source.to_path_buf(),
            name,
            flags: Vec::new(),
            args: Vec::new(),
            exit: 0,
            stdout: None,
            arcs: Vec::new(),
            entry_arcs: Vec::new(),
            hooks: None,
            only: None,
            not: Vec::new(),
            needs: Vec::new(),
            others_allowed: false,
            callgrind: true,
        };
        test.apply_all(source, &text)?;
        if !test.arcs.iter().any(|a| a.callee == "main") && !test.others_allowed {
            test.arcs.push(Arc { caller: "_start".into(), callee: "main".into(), count: 1 });
        }
        Ok(test)
    }

    /// Reads the directives of a source and of the project's files that it includes: programs that differ
    /// only in flags share the rest.
    fn apply_all(&mut self, source: &Path, text: &str) -> Result<()> {
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let at = || format!("{}:{}: {line}", source.display(), number + 1);
            if let Some(directive) = line.strip_prefix("//# ").or_else(|| line.strip_prefix("!# ")) {
                self.apply(directive).with_context(at)?;
            }
            let included = line.strip_prefix("#include \"").and_then(|rest| rest.split('"').next());
            if let Some(name) = included {
                let file = source.with_file_name(name);
                let text = std::fs::read_to_string(&file).with_context(at)?;
                self.apply_all(&file, &text)?;
            }
        }
        Ok(())
    }

    fn apply(&mut self, directive: &str) -> Result<()> {
        let (key, value) = directive.split_once(':').context("expected key: value")?;
        let value = value.trim();
        let words = || value.split_whitespace().map(str::to_string);
        match key {
            "flags" => self.flags.extend(words()),
            "args" => self.args.extend(words()),
            "exit" => self.exit = value.parse()?,
            "stdout" => *self.stdout.get_or_insert_default() += &format!("{value}\n"),
            "arc" => self.arcs.push(arc(value)?),
            "entry-arc" => self.entry_arcs.push(arc(value)?),
            "hooks" if value == "both" => self.hooks = Some(Hooks::Both),
            "hooks" if value == "entry" => self.hooks = Some(Hooks::Entry),
            "only" if value == "gcc" => self.only = Some(Compiler::Gnu),
            "only" if value == "clang" => self.only = Some(Compiler::Clang),
            "not" => self.not.extend(words()),
            "needs" => self.needs.extend(words()),
            "others" if value == "allowed" => self.others_allowed = true,
            "callgrind" if value.starts_with("no") => self.callgrind = false,
            _ => bail!("no such directive"),
        }
        Ok(())
    }

    /// Returns the arcs that a profile taken with these hooks must contain.
    pub fn arcs(&self, hooks: Hooks) -> Vec<Arc> {
        if hooks == Hooks::Both {
            return self.arcs.clone();
        }
        let replaced = |arc: &&Arc| !self.entry_arcs.iter().any(|e| e.callee == arc.callee);
        let mut arcs: Vec<Arc> = self.arcs.iter().filter(replaced).cloned().collect();
        arcs.extend(self.entry_arcs.iter().filter(|a| a.count > 0).cloned());
        arcs
    }
}

/// Parses `main -> f 10`.
fn arc(text: &str) -> Result<Arc> {
    let (caller, rest) = text.split_once(" -> ").context("expected caller -> callee count")?;
    let (callee, count) = rest.trim().rsplit_once(' ').context("expected caller -> callee count")?;
    Ok(Arc { caller: caller.trim().into(), callee: callee.trim().into(), count: count.parse()? })
}

/// Returns all small programs, in the order of their names.
///
/// # Errors
/// A source cannot be read, or has an unknown directive.
pub fn all() -> Result<Vec<Test>> {
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(tool::folder().join("programs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e != "h") {
            sources.push(path);
        }
    }
    sources.sort();
    sources.iter().map(|source| Test::read(source)).collect()
}
