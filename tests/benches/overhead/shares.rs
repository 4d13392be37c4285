//! The accuracy of times, with a program that measures its shares by the CPU clock, about 75 to 25.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use gprofinject_tests::{compile, elf::Program, gprofdata, run, tool};

pub(crate) fn print(folder: &Path) -> Result<()> {
    let path = folder.join("shares");
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-pthread", "-o"]).arg(&path).arg(tool::folder().join("data/shares.c"));
    compile::compile(gcc)?;
    let program = Program::read(&path)?;
    println!(
        "\n| shares | threads | samples | CPU s | samples a CPU second | burn_three % | true % | off by |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for options in
        [&["-q"][..], &["-q", "--sampler=timer"], &["-q", "--hooks=entry"], &["-q", "--hooks=none"]]
    {
        for threads in ["1", "2"] {
            let gmon = folder.join("gmon.out");
            let command = tool::command(options, &gmon, &path, &[threads.into(), "2000".into()])?;
            let outcome = run::run(command, None, Duration::from_secs(60))?;
            let profile = gprofdata::read(&gmon).with_context(|| outcome.stderr_text())?;
            let samples =
                |name: &str| program.named(name).map_or(0, |f| profile.samples_in(f.address, f.size)) as f64;
            let (three, one) = (samples("burn_three"), samples("burn_one"));
            let cpu = outcome.cpu().as_secs_f64();
            let rate = profile.samples() as f64 / cpu;
            let share = 100.0 * three / (three + one);
            let known: f64 = outcome.stdout_text().trim().parse().context("the program's own share")?;
            let off = (share - known).abs();
            let (how, all) = (options.join(" "), profile.samples());
            println!(
                "| {how} | {threads} | {all} | {cpu:.2} | {rate:.0} | {share:.1} | {known:.1} | {off:.1} |"
            );
        }
    }
    Ok(())
}
