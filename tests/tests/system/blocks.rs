//! Basic-block counts: the count of every instruction of every counted function is callgrind's, and the
//! program behaves as it does alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::elf::Program;
use gprofinject_tests::run::Outcome;
use gprofinject_skip as skip;
use gprofinject_tests::{callgrind, compile, generate, gprofdata, run, tool, view};

gprofinject_tests::trials! {
    together:
        ways_through_functions,
        exceptions,
        threads_and_signals,
        assembly,
        split_stacks,
        unknown_targets,
        lua,
        speedtest1,
        bzip2,
        the_assembler,
        functions_that_run_on,
        choosing,
        lines_without_line_information,
        children_and_crashes,
        a_null_pointer;
}

const LIMIT: Duration = Duration::from_secs(120);

fn ways_through_functions() {
    everywhere("flow.c", &[]);
}

fn exceptions() {
    everywhere("exceptions.cc", &[]);
}

fn threads_and_signals() {
    everywhere("threads.c", &["-pthread"]);
}

fn assembly() {
    everywhere("assembly.c", &[]);
}

/// `__morestack` continues after its return address. Functions that call it are not counted, and run.
fn split_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    let mut gcc = Command::new("gcc");
    gcc.args(["-fsplit-stack", "-O2", "-w", "-o"]).arg(&program);
    compile::compile({
        gcc.arg(tool::folder().join("blocks/flow.c"));
        gcc
    })
    .unwrap();
    let alone = run::run(Command::new(&program), None, LIMIT).unwrap();
    let (profiled, _, stats) = count(&program, &["--hooks=both"], &[], None, folder.path());
    assert_eq!((profiled.code(), profiled.stdout), (alone.code(), alone.stdout));
    assert!(stats["blocks"]["uncounted_by_reason"]["not-relocatable"].as_u64() > Some(2), "{stats}");
}

/// If the targets of a jump are not found, the function is not counted at all. Here the table does not begin
/// where its address points, and the sum passes through memory.
fn unknown_targets() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\nlong letters(long letter);\n\
        __asm__(\".globl letters\\n.type letters, @function\\n\"\n\
        \"letters: lea 9f-4*97(%rip), %rdx; movslq (%rdx,%rdi,4), %rax; lea 3f(%rip), %rcx; add %rcx, %rax\\n\"\n\
        \"mov %rax, -8(%rsp); mov -8(%rsp), %rax; jmp *%rax\\n\"\n\
        \"1: mov $1, %eax; ret\\n2: mov $2, %eax; ret\\n3: mov $3, %eax; ret\\n.size letters, .-letters\\n\"\n\
        \".section .rodata\\n.align 4\\n9: .long 1b-3b, 2b-3b, 0\\n.text\\n\");\n\
        int main(void) { for (int i = 0; i < 3; i++) printf(\"%ld\\n\", letters('a' + i)); }\n";
    let program = compiled(folder.path(), source, &["-O1"]);
    let (profiled, _, stats) = count(&program, &["--hooks=both"], &[], None, folder.path());
    assert_eq!((profiled.code(), profiled.stdout_text().as_ref()), (0, "1\n2\n3\n"));
    assert_eq!(stats["blocks"]["uncounted_by_reason"]["unknown-jump"], 1, "{stats}");
}

fn lua() {
    let script = tool::folder().join("data/bench.lua").display().to_string();
    corpus("lua", &["O2", "Os"], &[&script, "1"], None);
}

fn speedtest1() {
    corpus("speedtest1", &["O2"], &["--size", "1", ":memory:"], None);
}

fn bzip2() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    std::fs::write(&data, generate::compressible(100_000)).unwrap();
    corpus("bzip2", &["O2", "Os"], &["-c"], Some(&data));
}

/// Debian's `as` has no symbols, so that cold parts are functions of their own, and tables of jumps begin with entries that lead there.
fn the_assembler() {
    let Some(program) = tool::installed("as") else { return skip::skipped("the_assembler", "no as") };
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("a.s");
    let mut gcc = Command::new("gcc");
    gcc.args(["-S", "-O1", "-w", "-o"]).arg(&source).arg(tool::folder().join("blocks/flow.c"));
    compile::compile(gcc).unwrap();
    let object = folder.path().join("a.o").display().to_string();
    let args = ["-o".to_owned(), object.clone(), source.display().to_string()];
    let mut alone = Command::new(&program);
    alone.args(&args);
    assert_eq!(run::run(alone, None, LIMIT).unwrap().code(), 0);
    let expected = std::fs::read(&object).unwrap();
    std::fs::remove_file(&object).unwrap();
    let (profiled, ..) = count(&program, &["--hooks=both"], &args, None, folder.path());
    assert_eq!((profiled.code(), profiled.stderr_text()), (0, String::new()));
    assert!(std::fs::read(&object).unwrap() == expected);
}

/// A function that ends with a conditional tail call and runs on into another one, as glibc's checked copies do: its copy runs on
/// where it does, and not to where the tail call leads.
fn functions_that_run_on() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <stdio.h>\n\
        __attribute__((noinline)) long fails(long a, long b) { printf(\"fails\\n\"); return a - b; }\n\
        long checked(long a, long b);\n\
        __asm__(\".globl checked, added\\n.type checked, @function\\n.type added, @function\\n\"\n\
        \".p2align 4\\nchecked: cmp %rsi, %rdi; jb fails\\n.size checked, .-checked\\n.p2align 4\\n\"\n\
        \"added: lea (%rdi,%rsi), %rax; imul $3, %rax, %rax; add $1, %rax; ret\\n.size added, .-added\\n\");\n\
        int main(void) { for (long i = 0; i < 4; i++) printf(\"%ld\\n\", checked(i, 2)); }\n";
    let program = compiled(folder.path(), source, &["-O1"]);
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let (profiled, blocks, _) = count(&program, &[hooks], &[], None, folder.path());
        let said = (profiled.code(), profiled.stdout_text());
        assert_eq!(said, (0, "fails\n-2\nfails\n-1\n13\n16\n".to_owned()), "{hooks}");
        // What is run into is not hooked.
        let functions = Program::read(&program).unwrap();
        let counts = spread(&program, &blocks);
        let of = |name: &str| counts[&functions.named(name).unwrap().address].0;
        assert_eq!((of("checked"), of("fails")), (4, 2), "{hooks}");
    }
}

/// Compares with each flag set and each kind of hooks.
fn everywhere(source: &str, flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, level) in
        [("gcc", "-O0"), ("gcc", "-O2"), ("gcc", "-Os"), ("clang", "-O0"), ("clang", "-O2")]
    {
        for pie in ["-pie", "-no-pie"] {
            let compiler = if source.ends_with(".cc") {
                format!("{}++", &compiler.replace("gcc", "g"))
            } else {
                compiler.into()
            };
            if !skip::have(&compiler) {
                skip::skipped(source, &format!("no {compiler}"));
                continue;
            }
            let program = folder.path().join("program");
            let mut command = Command::new(&compiler);
            let code = if pie == "-pie" { "-fPIE" } else { "-fno-pie" };
            command.args(["-g", "-w", level, pie, code]).args(flags).arg("-o").arg(&program);
            compile::compile({
                command.arg(tool::folder().join("blocks").join(source));
                command
            })
            .unwrap();
            compare(&format!("{source} {compiler} {level} {pie}"), &program, &[], None, true);
        }
    }
}

fn corpus(name: &str, kinds: &[&str], args: &[&str], stdin: Option<&Path>) {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    for kind in kinds {
        match tool::corpus() {
            // speedtest1 prints how long it took.
            Ok(corpus) => {
                let program = corpus.join(format!("{name}-{kind}"));
                compare(&format!("{name}-{kind}"), &program, &args, stdin, name != "speedtest1");
            }
            Err(error) => skip::skipped(name, &format!("no corpus: {error:#}")),
        }
    }
}

fn compare(what: &str, program: &Path, args: &[String], stdin: Option<&Path>, same_output: bool) {
    if !callgrind::available() || !skip::have("objdump") {
        return skip::skipped(what, "no valgrind, or no objdump");
    }
    let (expected, _) = callgrind::run_instructions(program, args, stdin).unwrap();
    let object = expected.object(program).unwrap();
    let mut alone = Command::new(program);
    alone.args(args);
    let alone = run::run(alone, stdin, LIMIT).unwrap();
    for options in
        [&["--hooks=both"][..], &["--hooks=entry"], &["--hooks=none"], &["--times", "--paths", "--trace=trace"]]
    {
        let what = format!("{what}, {}", options.join(" "));
        let folder = tempfile::tempdir().unwrap();
        let (profiled, blocks, stats) = count(program, options, args, stdin, folder.path());
        assert_eq!(profiled.code(), alone.code(), "{what}: {}", profiled.stderr_text());
        assert!(!same_output || profiled.stdout == alone.stdout, "{what}: {}", profiled.stdout_text());
        assert_eq!(profiled.stderr_text(), alone.stderr_text(), "{what}");
        let uncounted = stats["blocks"]["uncounted_by_reason"].as_object().unwrap();
        let refused: u64 =
            uncounted.iter().filter(|(why, _)| *why != "not-hooked").map(|(_, n)| n.as_u64().unwrap()).sum();
        assert_eq!(refused, 0, "{what}: {uncounted:?}");
        let counts = spread(program, &blocks);
        assert!(counts.len() > 50, "{what}: {} instructions", counts.len());
        let wrong: Vec<String> = counts
            .iter()
            .filter(|(_, (_, repeats))| !repeats)
            .filter_map(|(&address, &(ours, _))| {
                let theirs = expected.instructions.get(&(object, address)).copied().unwrap_or(0);
                (ours != theirs).then(|| format!("{address:#x}: {ours}, callgrind {theirs}"))
            })
            .collect();
        assert!(
            wrong.is_empty(),
            "{what}: {} of {}: {:#?}",
            wrong.len(),
            counts.len(),
            &wrong[..wrong.len().min(20)]
        );
    }
}

fn count(
    program: &Path,
    options: &[&str],
    args: &[String],
    stdin: Option<&Path>,
    folder: &Path,
) -> (Outcome, Vec<(u64, u64)>, serde_json::Value) {
    let (gmon, stats) = (folder.join("gmon.out"), folder.join("stats"));
    let stats_name = stats.display().to_string();
    let options = [options, &["-q", "--count", "blocks", "--stats", &stats_name]].concat();
    let mut command = tool::command(&options, &gmon, program, args).unwrap();
    command.current_dir(folder);
    let profiled = run::run(command, stdin, LIMIT).unwrap();
    let stats = serde_json::from_slice(&std::fs::read(stats).unwrap()).unwrap();
    (profiled, gprofdata::read(&gmon).unwrap().blocks, stats)
}

/// Returns the count of each instruction, and whether the instruction repeats itself (callgrind counts each
/// repetition). A record's count holds up to the next record, an instruction that never falls through, or the
/// function's end.
pub(crate) fn spread(program: &Path, blocks: &[(u64, u64)]) -> BTreeMap<u64, (u64, bool)> {
    let records: BTreeMap<u64, u64> = blocks.iter().copied().collect();
    assert_eq!(records.len(), blocks.len(), "one record for each block");
    assert!(blocks.is_sorted(), "sorted by address");
    let functions = Program::read(program).unwrap();
    let mut counts = BTreeMap::new();
    let mut now = None;
    let mut end = 0;
    for (address, text) in instructions(program) {
        if address >= end || functions.entry(address).is_some() {
            now = None;
        }
        if let Some(function) = functions.containing(address) {
            end = function.address + function.size;
        }
        now = records.get(&address).copied().or(now);
        let mut words = text.split_whitespace();
        let mut first = words.next().unwrap_or_default();
        let repeats = first.starts_with("rep");
        while matches!(first, "bnd" | "notrack" | "repz" | "rep" | "data16" | "cs") {
            first = words.next().unwrap_or_default();
        }
        if let Some(count) = now {
            counts.insert(address, (count, repeats && first != "ret"));
        }
        if first.starts_with("jmp") || first.starts_with("ret") || matches!(first, "ud2" | "hlt") {
            now = None;
        }
    }
    counts
}

pub(crate) fn instructions(program: &Path) -> Vec<(u64, String)> {
    let mut objdump = Command::new("objdump");
    objdump.args(["-d", "-j", ".text", "--no-show-raw-insn", "-w"]).arg(program);
    let listing = objdump.output().unwrap();
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    let line = |line: &str| {
        let (address, text) = line.split_once(":\t")?;
        Some((u64::from_str_radix(address.trim(), 16).ok()?, text.to_owned()))
    };
    listing.lines().filter_map(line).collect()
}

/// Compiles a small program of one source.
fn compiled(folder: &Path, source: &str, flags: &[&str]) -> PathBuf {
    let program = folder.join("program");
    let file = folder.join("program.c");
    std::fs::write(&file, source).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(flags).arg("-o").arg(&program).arg(&file);
    compile::compile(gcc).unwrap();
    program
}

/// Functions that are not selected are not counted, and a pattern for files selects by line tables.
fn choosing() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#line 1 \"first.c\"\n__attribute__((noipa)) int one(int x) { return x ? x + 1 : 7; }\n\
                  #line 1 \"second.c\"\n__attribute__((noipa)) int two(int x) { return x ? x - 1 : 9; }\n\
                  int main(void) { return one(1) + two(1) - 2; }\n";
    let program = compiled(folder.path(), source, &["-g", "-O1"]);
    let functions = Program::read(&program).unwrap();
    let counted = |options: &[&str]| {
        let gmon = folder.path().join("gmon.out");
        let outcome = run::run(tool::command(options, &gmon, &program, &[]).unwrap(), None, LIMIT).unwrap();
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        let blocks = gprofdata::read(&gmon).unwrap().blocks;
        let mut names: Vec<String> =
            blocks.iter().filter_map(|b| Some(functions.containing(b.0)?.name().to_owned())).collect();
        names.dedup();
        names
    };
    assert_eq!(counted(&["-q", "--count", "lines", "--file", "first.c"]), ["one"]);
    assert_eq!(counted(&["-q", "--count", "blocks", "-I", "two"]), ["two"]);
    assert_eq!(counted(&["-q", "--count", "blocks", "--file", "*.c", "-X", "one"]), ["two", "main"]);
    assert!(counted(&["-q"]).is_empty());
}

/// Counting lines needs line information, and the message says so.
fn lines_without_line_information() {
    let folder = tempfile::tempdir().unwrap();
    let program = compiled(folder.path(), "int main(void) { return 0; }\n", &["-O1"]);
    let gmon = folder.path().join("gmon.out");
    let command = tool::command(&["--count", "lines"], &gmon, &program, &[]).unwrap();
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert_eq!(outcome.code(), 125);
    assert!(outcome.stderr_text().contains("has no line information"), "{}", outcome.stderr_text());
    assert!(!gmon.exists());
}

/// Children count from zero, each in its own profile. What was counted before the end is in the profile
/// whatever the end was.
fn children_and_crashes() {
    let folder = tempfile::tempdir().unwrap();
    let source = "#include <signal.h>\n#include <stdlib.h>\n#include <sys/wait.h>\n#include <unistd.h>\n\
        __attribute__((noipa)) void tick(int n) { do __asm__ volatile(\"\"); while (--n); }\n\
        int main(void) { tick(10); if (fork() == 0) { tick(3); _exit(0); } int s; wait(&s); tick(5); raise(SIGKILL); }\n";
    let program = compiled(folder.path(), source, &["-O1"]);
    let gmon = folder.path().join("gmon.out");
    let outcome =
        run::run(tool::command(&["-q", "--per-process", "--count", "blocks"], &gmon, &program, &[]).unwrap(), None, LIMIT)
            .unwrap();
    assert_eq!(outcome.code(), 128 + 9);
    let functions = Program::read(&program).unwrap();
    let tick = functions.named("tick").unwrap();
    let most = |path: &Path| {
        let blocks = gprofdata::read(path).unwrap().blocks;
        blocks
            .iter()
            .filter(|b| (tick.address..tick.address + tick.size).contains(&b.0))
            .map(|b| b.1)
            .max()
            .unwrap()
    };
    view::apart(folder.path()).unwrap();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("gmon.out")));
    let mut counts: Vec<u64> = files.iter().map(|p| most(p)).collect();
    counts.sort_unstable();
    // The loop's body is one basic block, with its condition at the end.
    assert_eq!(counts, [3, 15], "{files:?}");
}

/// In the basic block that a null pointer ends, only what has run is counted. All other blocks have their
/// usual counts.
fn a_null_pointer() {
    let folder = tempfile::tempdir().unwrap();
    let source = "volatile int a, b;\n\
        __attribute__((noipa)) void set(int *p, int n) {\n  a = n;\n  if (n > 5)\n    a = 5;\n  *p = n;\n  b = n;\n}\n\
        __attribute__((noipa)) void each(int n) {\n  int x;\n  a = 0;\n  set(n < 7 ? &x : 0, n);\n  b = 0;\n}\n\
        int main(void) { for (int n = 0; n < 100; n++) each(n); }\n";
    for level in ["-O0", "-O2"] {
        let program = compiled(folder.path(), source, &["-g", level]);
        let gmon = folder.path().join("gmon.out");
        let command = tool::command(&["-q", "--count", "lines"], &gmon, &program, &[]).unwrap();
        let outcome = run::run(command, None, LIMIT).unwrap();
        assert_eq!(outcome.code(), 128 + 11, "{}", outcome.stderr_text());
        // For each function, the smallest and the largest of its instructions' counts.
        let blocks = gprofdata::read(&gmon).unwrap().blocks;
        let counts = spread(&program, &blocks);
        let functions = Program::read(&program).unwrap();
        let seen = |name: &str| {
            let function = functions.named(name).unwrap();
            let own = counts.range(function.address..function.address + function.size);
            let mut seen: Vec<u64> = own.map(|(_, &(count, _))| count).collect();
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        // For arguments above five: 6 and 7. Up to the store: 0 to 7, and after it one less. The caller ends
        // at its call.
        assert_eq!(seen("set"), [2, 7, 8], "{level}");
        let each = seen("each");
        assert!(each.last() == Some(&8) && each.contains(&7), "{level}: {each:?}");
    }
}
