//! The cost of profiling: gprofinject compared with the plain program, gcc -pg, uftrace and callgrind,
//! alternating in one run.
//!
//!     cargo bench -p gprofinject-tests
//!     BENCH_ROUNDS=15 BENCH_ONLY=lua cargo bench -p gprofinject-tests
//!
//! The figures are the CPU time, user and system, of the whole process tree, on which other work of the
//! machine has little effect. The minimum of all rounds counts. Wall time is printed beside it.

mod blocks;
mod callbacks;
mod calls;
mod frida;
mod libraries;
mod many;
mod measure;
mod profilers;
mod real;
mod scale;
mod shares;
mod standalone;
mod times;
mod traces;

use anyhow::Result;
use gprofinject_skip as skip;
use gprofinject_tests::tool;

fn main() -> Result<()> {
    // `cargo test --all-targets` also starts benches, without this argument.
    if !std::env::args().any(|arg| arg == "--bench") {
        return Ok(());
    }
    let rounds = std::env::var("BENCH_ROUNDS").ok().and_then(|r| r.parse().ok()).unwrap_or(9);
    let only = std::env::var("BENCH_ONLY").unwrap_or_default();
    let wanted = |name: &str| name.contains(&only);
    tool::gprofinject()?;
    let folder = tempfile::tempdir()?;

    calls::heading();
    let mut ratios = Vec::new();
    if wanted("fib") {
        calls::compare(&calls::fib(folder.path())?, rounds)?;
    }
    for name in ["lua", "speedtest1", "bzip2", "zstd"].into_iter().filter(|name| wanted(name)) {
        match tool::make_corpus(&[name], &["O2", "pg"]) {
            Ok(corpus) => {
                ratios.push(calls::compare(&calls::real(name, &corpus, folder.path())?, rounds)?);
            }
            Err(error) => skip::skipped(name, &format!("no corpus: {error:#}")),
        }
    }
    calls::print_means(&ratios);
    if wanted("threads") {
        calls::threads(folder.path(), rounds)?;
    }
    if wanted("callbacks") {
        callbacks::compare(folder.path(), rounds)?;
    }
    if wanted("libraries") {
        libraries::compare(folder.path(), rounds)?;
    }
    if wanted("standalone") {
        standalone::compare(folder.path(), rounds)?;
    }
    if wanted("blocks") {
        match tool::corpus() {
            Ok(corpus) => blocks::compare(corpus, folder.path(), rounds)?,
            Err(error) => skip::skipped("blocks", &format!("no corpus: {error:#}")),
        }
    }
    if wanted("times") {
        times::compare(folder.path(), rounds)?;
    }
    if wanted("traces") {
        traces::compare(folder.path(), rounds)?;
    }
    if wanted("traces") || wanted("ltrace") {
        traces::compare_ltrace(folder.path(), rounds)?;
    }
    if wanted("mcount") {
        profilers::compare(folder.path(), rounds)?;
    }
    if wanted("frida") {
        frida::compare(folder.path(), rounds)?;
    }
    if wanted("setup") {
        real::set_up(folder.path(), rounds)?;
        real::short_commands(folder.path(), rounds)?;
        scale::set_up(folder.path(), rounds)?;
        many::set_up(folder.path(), rounds)?;
    }
    if wanted("programs") {
        real::programs(folder.path(), rounds)?;
    }
    if wanted("memory") {
        scale::memory(folder.path())?;
        many::memory(folder.path())?;
    }
    if wanted("shares") {
        shares::print(folder.path())?;
    }
    Ok(())
}
