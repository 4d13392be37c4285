//! A folder for one test of the command: programs are compiled into it, and gprofinject runs in it.
// A test that cannot make its folder or its program has failed.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::run::{self, Outcome};
use crate::{compile, tool};

/// The time after which a run is killed. No run of a small program takes so long.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A folder with a program in it, in which gprofinject is started.
pub struct Place {
    pub folder: tempfile::TempDir,
}

impl Default for Place {
    fn default() -> Place {
        Place { folder: tempfile::tempdir().unwrap() }
    }
}

impl Place {
    pub fn new() -> Place {
        Place::default()
    }

    /// Returns the path of a name in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles C into `name`.
    pub fn c(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        self.compile("gcc", name, source, flags).unwrap()
    }

    /// Compiles with another compiler. The error is its output.
    pub fn compile(
        &self,
        compiler: &str,
        name: &str,
        source: &str,
        flags: &[&str],
    ) -> anyhow::Result<PathBuf> {
        let file = self.path(&format!("{name}.c"));
        fs::write(&file, source).unwrap();
        let mut command = Command::new(compiler);
        command.args(["-O1", "-w", "-o"]).arg(self.path(name)).arg(&file).args(flags);
        compile::compile(command)?;
        Ok(self.path(name))
    }

    /// Returns the command gprofinject with these arguments, to be changed further.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = tool::uncached(tool::gprofinject().unwrap());
        command.args(args).current_dir(self.folder.path()).env_remove("GMON_OUT_PREFIX");
        command
    }

    /// Runs gprofinject with these arguments.
    pub fn run(&self, args: &[&str]) -> Outcome {
        finish(self.command(args))
    }
}

/// Runs a command of [`Place::command`].
pub fn finish(command: Command) -> Outcome {
    let what = format!("{command:?}");
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert!(!outcome.timed_out, "hangs: {what}");
    sane(&outcome);
    outcome
}

/// Checks that there was no panic, whatever has happened.
fn sane(outcome: &Outcome) {
    let said = outcome.stderr_text();
    assert!(!said.contains("panicked") && !said.contains("RUST_BACKTRACE"), "{said}");
}

/// Checks for an error of gprofinject's: the status, nothing on standard output, and a message.
pub fn complains(outcome: &Outcome, status: i32, about: &str) {
    assert_eq!(outcome.code(), status, "{}", outcome.stderr_text());
    assert!(outcome.stdout.is_empty(), "{}", outcome.stdout_text());
    assert!(outcome.stderr_text().contains(about), "says nothing of {about:?}: {}", outcome.stderr_text());
}

/// A program that calls `f` a hundred times and prints a line.
pub const HELLO: &str = "#include <stdio.h>\n\
    __attribute__((noinline)) int f(int x) { asm volatile(\"\"); return x + 1; }\n\
    int main(void) { int t = 0; for (int i = 0; i < 100; i++) t = f(t); printf(\"%d\\n\", t); return 0; }\n";

/// A program that works for 0.2 s, mostly in `heavy`, and has the status 3. Its steps vary in length: a loop that takes
/// exactly a quarter of a millisecond would be met at the same places by each sample.
pub const BURN: &str = "#include <stdio.h>\n#include <time.h>\n\
    static unsigned seed = 1;\n\
    static int about(int n) { seed = seed * 1103515245u + 12345u; return n / 2 + (seed >> 8) % n; }\n\
    #define SPIN(f) __attribute__((noinline)) void f(int n) \\\n\
    { for (int i = 0; i < n; i++) asm volatile(\"\"); }\n\
    SPIN(heavy) SPIN(light)\n\
    int main(void) { while (clock() < CLOCKS_PER_SEC / 5) { heavy(about(900000)); light(about(100000)); } \
    puts(\"burnt\"); return 3; }\n";
