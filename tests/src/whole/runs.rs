//! Runs a program under callgrind and under gprofinject, in the same environment, and compares.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::comparison::{Report, compare};
use super::expected::expected;
use super::modules::Modules;
use crate::callgrind::{self, Profile};
use crate::run;
use crate::tool::{self, Hooks};
use crate::view;

/// How often callgrind runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    One,
    /// So many times, with the stack and the libraries at other addresses. Functions that are not called as often, or not by
    /// the same functions, are left out.
    Several(usize),
}

/// The variables that a program has in all runs. glibc and libcrypto choose their functions by the processor's features,
/// and valgrind's processor has fewer of them. The order of a hash table must not depend on chance.
const FIXED: [(&str, &str); 6] = [
    (
        "GLIBC_TUNABLES",
        "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512CD,-AVX512DQ,-ERMS,-FSRM,-RTM,-Fast_Unaligned_Load,\
         -Fast_Unaligned_Copy,-Fast_Copy_Backward,-Fast_Rep_String,-Slow_BSF,-Prefer_No_VZEROUPPER",
    ),
    // Without SHA and AVX-512.
    ("OPENSSL_ia32cap", ":~0xf0230000"),
    ("PERL_HASH_SEED", "0"),
    ("PERL_PERTURB_KEYS", "0"),
    ("PYTHONHASHSEED", "0"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
];

/// Returns the variables that valgrind adds to a program's environment, under other names if they would have an effect.
/// Programs copy their environment, so their calls depend on the number of variables.
fn added_by_valgrind() -> Result<Vec<(String, String)>> {
    let mut command = callgrind::valgrind();
    command.args(["--tool=none", "-q", "env", "-0"]).envs(FIXED).env("LD_BIND_NOW", "1");
    let ran = run::run(command, None, Duration::from_secs(60))?;
    let text = ran.stdout_text();
    let variables = text.split('\0').filter_map(|variable| variable.split_once('='));
    let is_valgrinds = |name: &str| ["LD_", "GLIBC", "VALGRIND"].iter().any(|start| name.starts_with(start));
    let is_there = |name: &str| {
        name == "LD_BIND_NOW"
            || std::env::var_os(name).is_some()
            || FIXED.iter().any(|(fixed, _)| *fixed == name)
    };
    let added = variables.filter(|(name, _)| is_valgrinds(name) && !is_there(name));
    Ok(added.map(|(name, value)| (name.replace("LD_", "LD-"), value.to_owned())).collect())
}

/// Returns the libraries that are not hooked, and what else there is to know of a run, from its `--stats`.
fn remarks(stats: &Path) -> Result<(Vec<PathBuf>, Vec<String>)> {
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(stats)?)?;
    let mut notes: Vec<String> = Vec::new();
    let mut not_hooked = Vec::new();
    for library in stats["libraries"].as_array().context("no libraries")? {
        if library["status"] == "refused" {
            let path = library["path"].as_str().context("no path")?;
            notes.push(format!("{path} is not hooked: {}", library["reason"]));
            not_hooked.push(PathBuf::from(path));
        }
    }
    notes.extend(stats["notes"].as_array().into_iter().flatten().map(ToString::to_string));
    for (what, count) in stats["lost"].as_object().context("nothing is said of losses")? {
        if count.as_u64().is_some_and(|count| count > 0) {
            notes.push(format!("lost {what}: {count}"));
        }
    }
    Ok((not_hooked, notes))
}

/// Counts the calls of a program under callgrind, without other programs.
pub struct Truth {
    program: PathBuf,
    args: Vec<String>,
    stdin: Option<PathBuf>,
    runs: Vec<Profile>,
    output: Vec<u8>,
}

impl Truth {
    /// Runs a program under callgrind.
    ///
    /// # Errors
    /// It cannot be run, or fails.
    pub fn count(program: &Path, args: &[String], stdin: Option<&Path>, runs: Runs) -> Result<Truth> {
        let mut truth = Truth {
            program: program.to_owned(),
            args: args.to_vec(),
            stdin: stdin.map(Path::to_owned),
            runs: Vec::new(),
            output: Vec::new(),
        };
        let times = match runs {
            Runs::One => 1,
            Runs::Several(times) => times,
        };
        truth.count_again(times)?;
        Ok(truth)
    }

    /// Runs the program under callgrind some more times. Functions whose counts differ between any two runs are left out of
    /// comparisons.
    ///
    /// # Errors
    /// It cannot be run, or fails.
    pub fn count_again(&mut self, times: usize) -> Result<()> {
        let first = self.runs.len();
        for place in first..first + times {
            let fixed = FIXED.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
            let padding = [
                // Other runs have another stack, and the variables in another order.
                (["PADDING", "AA_PADDING", "ZZ_PADDING"][place % 3].to_owned(), "x".repeat(1 + 1000 * place)),
            ];
            let variables: Vec<_> = fixed.chain(padding).collect();
            let stdin = self.stdin.as_deref();
            let (profile, outcome) =
                callgrind::run_whole(&self.program, &self.args, stdin, &variables, place)?;
            ensure!(outcome.code() == 0, "callgrind: {}", outcome.stderr_text());
            self.output = outcome.stdout;
            self.runs.push(profile);
        }
        Ok(())
    }

    /// Profiles the same program and compares.
    ///
    /// # Errors
    /// The program fails, or there is no view of the whole process.
    pub fn compare(&self, libs: &str, hooks: Hooks) -> Result<Report> {
        let folder = tempfile::tempdir()?;
        let gmon = folder.path().join("gmon.out");
        let stats = folder.path().join("stats.json");
        let stats_option = stats.to_str().context("a temporary folder with an unusual name")?;
        // A message before the program's start would change the offset of its standard error, for which programs ask.
        let options =
            ["-q", "--rate", "0", "--no-follow", "--libs", libs, hooks.option(), "--stats", stats_option];
        let mut command = tool::command(&options, &gmon, &self.program, &self.args)?;
        command.envs(FIXED).env("PADDING", "x").envs(added_by_valgrind()?);
        run::as_under_valgrind(&mut command);
        let ran = run::run(command, self.stdin.as_deref(), Duration::from_secs(600))?;
        ensure!(ran.code() == 0, "status {}: {}", ran.code(), ran.stderr_text());
        ensure!(ran.stdout == self.output, "the program's output differs from that under callgrind");
        let (not_hooked, notes) = remarks(&stats)?;
        let [first, others @ ..] = &self.runs[..] else { anyhow::bail!("callgrind has not run") };
        let modules = Modules::read(&self.program, first, hooks, libs, &not_hooked)?;
        let expected_first = expected(&modules, first, hooks);
        let mut changing = BTreeSet::new();
        for other in others {
            changing.extend(expected_first.changing(&expected(&modules, other, hooks)));
        }
        let [symbols, whole] = view::written(&folder.path().join("gmon.pb.gz"))?;
        let mut report = compare(&expected_first, &modules, &changing, &symbols, &whole)?;
        report.notes.extend(notes);
        Ok(report)
    }
}

/// Counts the calls of a program under callgrind and under gprofinject, and compares.
///
/// # Errors
/// Either fails.
pub fn check(
    program: &Path,
    args: &[String],
    stdin: Option<&Path>,
    libs: &str,
    hooks: Hooks,
    runs: Runs,
) -> Result<Report> {
    Truth::count(program, args, stdin, runs)?.compare(libs, hooks)
}
