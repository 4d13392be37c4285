//! Programs with many functions in libraries: the time that passes before `main`, and what a thread takes of memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gprofinject_skip as skip;
use gprofinject_tests::{compile, generate, run, tool};

use crate::measure::{LIMIT, Work, number, stats_cached};
use crate::real::{answer, median};

/// Compiles a program with so many libraries of as many functions each.
fn program(folder: &Path, libraries: usize, functions: usize) -> Result<PathBuf> {
    let folder = folder.join(format!("many-{libraries}"));
    std::fs::create_dir_all(&folder)?;
    let mut files = Vec::new();
    for library in 0..libraries {
        let source = folder.join(format!("many{library}.c"));
        std::fs::write(&source, generate::library_of_many(library, functions))?;
        let file = folder.join(format!("libmany{library}.so"));
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-w", "-fPIC", "-shared", "-o"]).arg(&file).arg(&source);
        compile::compile(gcc)?;
        files.push(file);
    }
    let (source, program) = (folder.join("prog.c"), folder.join("prog"));
    std::fs::write(&source, generate::program_of_many(libraries, functions))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-w", "-pthread", "-Wl,-rpath,$ORIGIN", "-o"]).arg(&program).arg(&source).args(&files);
    compile::compile(gcc)?;
    Ok(program)
}

/// Prints the time from the start of gprofinject to the program's `main`, with the libraries of `--libs auto` and kept plans:
/// the median of at least eight runs of each program, in turn. The goals are 80 ms for the compiler `cc1`, and 150 ms for
/// 100,000 functions in 40 libraries.
///
/// # Errors
/// A program cannot be compiled or run.
pub(crate) fn set_up(folder: &Path, rounds: usize) -> Result<()> {
    let caches = folder.canonicalize()?.join("caches-of-libraries");
    let source = folder.join("tiny-file.c");
    std::fs::write(&source, "int main(void) { return 0; }\n")?;
    let mut programs = Vec::new();
    match answer("gcc", &["-print-prog-name=cc1"]) {
        Some(cc1) => {
            let assembly = folder.join("tiny-file.s").display().to_string();
            let args = vec!["-quiet".to_owned(), source.display().to_string(), "-o".to_owned(), assembly];
            programs.push(("cc1", 80, Work { program: cc1, args, stdin: None }));
        }
        None => skip::skipped("set-up with libraries, cc1", "it is not installed"),
    }
    let many = program(folder, 40, 2500)?;
    programs.push(("40 libraries", 150, Work { program: many, args: Vec::new(), stdin: None }));
    let mut figures = vec![[const { Vec::new() }; 3]; programs.len()];
    let mut functions = vec![0; programs.len()];
    for (_, _, work) in &programs {
        // The run that keeps the plans is not measured.
        stats_cached(&caches, work, folder)?;
    }
    for _ in 0..rounds.max(8) {
        for (n, (_, _, work)) in programs.iter().enumerate() {
            let (stats, _) = stats_cached(&caches, work, folder)?;
            for (part, figures) in ["total", "injector", "agent"].iter().zip(&mut figures[n]) {
                figures.push(number(&stats, &format!("/setup_ns/{part}"))? as f64 / 1e6);
            }
            let of_libraries =
                stats.pointer("/libraries").and_then(|l| l.as_array()).context("no libraries")?;
            functions[n] = number(&stats, "/functions/found")?
                + of_libraries.iter().map(|l| number(l, "/functions/found").unwrap_or(0)).sum::<u64>();
        }
    }
    println!("\n| set-up with libraries, plans kept | functions | ms | of that before the program | goal |");
    println!("|---|---:|---:|---:|---:|");
    for (((name, goal, _), functions), [total, injector, _]) in programs.iter().zip(functions).zip(figures) {
        println!("| {name} | {functions} | {:.0} | {:.0} | {goal} |", median(total), median(injector));
    }
    Ok(())
}

/// Prints what a thread takes of memory beyond that of the plain program, by the number of functions that it calls: those of
/// different threads are not the same.
///
/// # Errors
/// The program cannot be compiled or run.
pub(crate) fn memory(folder: &Path) -> Result<()> {
    const THREADS: u64 = 50;
    let program = program(folder, 4, 1500)?;
    // `Pss` of the process, in KiB.
    let pss = |command: Command| -> Result<f64> {
        let outcome = run::run(command, None, LIMIT)?;
        if !outcome.status.success() {
            bail!("{}: {}", program.display(), outcome.stderr_text());
        }
        let text = outcome.stdout_text();
        Ok(text.split_whitespace().next().context("no figure")?.parse()?)
    };
    println!(
        "\n| memory of a thread | functions hooked | called | plain KiB | ours, both KiB |\n|---|---:|---:|---:|---:|"
    );
    for called in [1_u64, 10, 50] {
        let mut each = [0.0; 2];
        for (ours, each) in [false, true].into_iter().zip(&mut each) {
            let of = |threads: u64| {
                let args = [threads.to_string(), called.to_string()];
                if ours {
                    let options = ["-q", "--rate=0", "--libs=libmany*"];
                    return pss(tool::command(&options, &folder.join("gmon.out"), &program, &args)?);
                }
                let mut command = Command::new(&program);
                command.args(&args);
                pss(command)
            };
            *each = (of(1 + THREADS)? - of(1)?) / THREADS as f64;
        }
        println!("| {THREADS} threads | 6000 | {called} | {:.0} | {:.0} |", each[0], each[1]);
    }
    Ok(())
}
