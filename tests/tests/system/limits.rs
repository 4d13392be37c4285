//! Limits (ulimit, SCHED_DEADLINE, control groups) that the program has or sets itself: it prints and returns what it does alone, and
//! what it is therefore not hooked or not followed for is named. Those that stop gprofinject itself are named, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use gprofinject_skip as skip;
use gprofinject_tests::family::{Run, Subject};
use gprofinject_tests::place::{BURN, HELLO, Place, finish};
use gprofinject_tests::run::Outcome;
use gprofinject_tests::{gprofdata, tool};

gprofinject_tests::trials! {
    together:
        limits_of_executed_programs,
        limits_of_executed_static_programs,
        limits_that_the_program_sets,
        limits_of_memory_that_the_program_sets,
        limits_of_memory_are_those_of_executed_programs,
        the_lowest_limit_of_memory_is_the_same,
        children_of_a_program_that_limits_its_memory,
        soft_limits_are_the_programs_only,
        a_soft_limit_of_file_sizes_is_the_programs_only,
        a_hard_limit_of_file_sizes_leaves_room_for_fewer_threads,
        a_low_limit_of_file_sizes_is_named_and_samples_are_taken,
        files_that_are_too_long_end_nothing,
        a_low_limit_of_files_is_named,
        a_low_limit_of_memory_is_named,
        a_limit_of_memory_that_leaves_gprofinject_none,
        a_small_stack,
        a_limit_of_processes,
        deadlines,
        a_small_control_group;
}

/// The resources, by their numbers.
const FSIZE: &str = "1";
const DATA: &str = "2";
const STACK: &str = "3";
const NOFILE: &str = "7";
const AS: &str = "9";

/// Ways to profile.
const MODES: [&[&str]; 7] = [
    &["--hooks=both"],
    &["--hooks=entry"],
    &["--sampler=timer"],
    &["--times"],
    &["--trace=trace"],
    &["--count=blocks"],
    &["--libs=all"],
];

/// Runs `ulimit LIMIT; gprofinject ARGS`.
fn limited(place: &Place, limit: &str, args: &[&str]) -> Outcome {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$@\""), "sh"]).arg(tool::gprofinject().unwrap());
    // A kept plan would take less memory.
    command.arg("--no-cache").args(args).current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    finish(command)
}

/// How a command has ended whose output goes through pipes. Where the limit of file sizes is low, nothing can be written to files.
struct Piped {
    code: Option<i32>,
    signal: Option<i32>,
    stdout: String,
    said: String,
}

fn piped(mut command: Command) -> Piped {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said.contains("panicked") && !said.contains("RUST_BACKTRACE"), "{said}");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    Piped { code: output.status.code(), signal: output.status.signal(), stdout, said }
}

/// Runs a program under `ulimit LIMIT`, alone and below a gprofinject without limits, in all modes. It prints and returns the same.
fn check_executed(program: &Path, limit: &str, args: &[&str]) {
    let place = Place::new();
    let script = format!("ulimit {limit}; exec \"$@\"");
    let run = |mut command: Command| {
        command.args(["-c", &script, "sh"]).arg(program).args(args).current_dir(place.folder.path());
        piped(command)
    };
    let alone = run(Command::new("sh"));
    for mode in MODES {
        let mut command = tool::uncached(tool::gprofinject().unwrap());
        command.args(["-q", "-o", "gmon.out"]).args(mode).arg("sh").env_remove("GMON_OUT_PREFIX");
        let profiled = run(command);
        let what = format!("ulimit {limit} {mode:?}: {}", profiled.said);
        assert_eq!(profiled.stdout, alone.stdout, "{what}");
        assert_eq!((profiled.code, profiled.signal), (alone.code, alone.signal), "{what}");
    }
}

const EXECUTED: [&str; 12] = [
    "-d 1000", "-d 100000", "-s 40", "-n 5", "-n 3", "-n 0", "-f 0", "-f 10", "-v 30000", "-v 200000", "-l 0", "-c 0",
];

fn limits_of_executed_programs() {
    let program = Subject::new("limited");
    for limit in EXECUTED {
        check_executed(&program.path, limit, &["thread", "fork", "memory", "file"]);
    }
}

fn limits_of_executed_static_programs() {
    let program = Subject::with("limited", &["-static"]);
    for limit in EXECUTED {
        check_executed(&program.path, limit, &["thread", "fork", "memory", "file"]);
    }
}

/// Runs the program alone and profiled in all modes. It prints and returns the same.
fn check(program: &Subject, args: &[&str], each: impl Fn(&Run, &str)) {
    for mode in MODES {
        let options = [&["-q"][..], mode].concat();
        let run = program.same_as_alone(&options, args, &[]);
        each(&run, &format!("{mode:?} {args:?}: {}", run.said));
    }
}

/// The set-up of the child has no room on a small stack, whose soft limit is in force at once.
fn limits_that_the_program_sets() {
    let program = Subject::new("limited");
    let counted = |run: &Run, what: &str| assert_eq!(run.calls(&run.path("gmon.out"))[0], 3, "{what}");
    for (resource, most) in [(FSIZE, "2000"), (STACK, "24576"), (NOFILE, "5"), (NOFILE, "0")] {
        check(&program, &[resource, most, most, "thread", "fork", "file"], counted);
    }
    let own = program.name();
    // The program that is executed cannot open its libraries.
    let run = program.same_as_alone(&[], &[NOFILE, "3", "3", "exec", own], &[]);
    assert!(run.said.contains("the process could open no more files (ulimit -n)"), "{}", run.said);
    for (resource, most) in [(FSIZE, "2000"), (STACK, "65536"), (NOFILE, "5")] {
        check(&program, &[resource, most, most, "exec", own, "thread", "fork", "file"], |_, _| {});
    }
}

/// What the agent has mapped is not taken from the program, and the program sees the limits that it has set.
fn limits_of_memory_that_the_program_sets() {
    let program = Subject::new("limited");
    let counted = |run: &Run, what: &str| assert_eq!(run.calls(&run.path("gmon.out"))[0], 3, "{what}");
    for (resource, soft, hard) in [
        (AS, "200000000", "200000000"),
        (AS, "200000000", "18446744073709551615"),
        (AS, "30000000", "30000000"),
        (DATA, "100000000", "100000000"),
        (DATA, "1000000", "1000000"),
        (AS, "7", "5"),
    ] {
        check(&program, &[resource, soft, hard, "memory", "thread", "fork"], counted);
    }
    let again = [AS, "200000000", "300000000", AS, "300000000", "300000000", "memory", AS, "150000000", "250000000"];
    check(&program, &again, counted);
}

fn limits_of_memory_are_those_of_executed_programs() {
    let program = Subject::new("limited");
    let own = program.name();
    for most in ["200000000", "30000000"] {
        check(&program, &[AS, most, most, "exec", own, "memory", "thread"], |_, _| {});
        check(&program, &[DATA, most, most, "exec", own, "memory", "thread"], |_, _| {});
    }
    // A shell that has limited itself goes on.
    let place = Place::new();
    let script = "ulimit -v 1000000; x=$(seq 1 20000); echo ${#x}; ulimit -v";
    for shell in ["sh", "bash"].into_iter().filter(|shell| skip::have(shell)) {
        let run = |mut command: Command| {
            command.args(["-c", script]).current_dir(place.folder.path());
            finish(command).stdout_text()
        };
        let mut command = tool::uncached(tool::gprofinject().unwrap());
        command.args(["-q", "-o", "gmon.out", shell]);
        assert_eq!(run(command), run(Command::new(shell)), "{shell}");
    }
}

/// coreutils' tests look for the lowest limit under which a tool runs, and want it to do more under that.
fn the_lowest_limit_of_memory_is_the_same() {
    let place = Place::new();
    let program = Subject::new("limited");
    // The limit counts pages, so this is exact.
    let script = "for kib in $(seq 1000 4 9000); do x=$(ulimit -v $kib; \"$0\" memory 2>&1) || [ $? != 6 ] || { echo $kib; break; }; done";
    let run = |mut command: Command| {
        command.args(["-c", script]).arg(&program.path).current_dir(place.folder.path());
        finish(command)
    };
    let alone = run(Command::new("sh")).stdout_text();
    assert!(!alone.is_empty());
    let mut command = tool::uncached(tool::gprofinject().unwrap());
    command.args(["-o", "gmon.out", "sh"]).env_remove("GMON_OUT_PREFIX");
    let profiled = run(command);
    let said = profiled.stderr_text();
    assert_eq!(profiled.stdout_text(), alone, "{said}");
    let reason = "was not followed: its limit of address space (ulimit -v) leaves no room";
    assert!(said.contains(reason), "{said}");
}

/// What the agent maps for a forked child is not taken from it either.
fn children_of_a_program_that_limits_its_memory() {
    if !skip::have("bash") {
        return skip::skipped("children_of_a_program_that_limits_its_memory", "it takes bash");
    }
    let place = Place::new();
    let outcome = place.run(&["-o", "gmon.out", "bash", "-c", "ulimit -v 30000; (echo of a child); exit 3"]);
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, "of a child\n"), "{said}");
    assert!(!said.contains("could not be profiled"), "{said}");
}

/// gprofinject raises its own, and the program has those that were there. Soft limits leave room for a whole profile.
fn soft_limits_are_the_programs_only() {
    let program = Subject::new("limited");
    let place = Place::new();
    for limit in ["-S -d 20000", "-S -v 300000", "-S -s 64", "-S -n 6", "-S -f 4", "-S -t 7", "-S -l 3"] {
        let script = format!("ulimit {limit}; exec \"$@\"");
        let run = |first: &[&str]| {
            let mut command = Command::new("sh");
            command.args(["-c", &script, "sh"]).args(first).arg(&program.path).args(["thread", "fork", "memory"]);
            command.current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
            finish(command)
        };
        let alone = run(&[]);
        let gprofinject = tool::gprofinject().unwrap().to_str().unwrap();
        let profiled = run(&[gprofinject, "--no-cache", "-q", "-o", "gmon.out"]);
        let what = format!("{limit}: {}", profiled.stderr_text());
        assert_eq!((profiled.stdout_text(), profiled.code()), (alone.stdout_text(), alone.code()), "{what}");
        assert!(gprofdata::read(&place.path("gmon.out")).unwrap().calls() > 3, "{what}");
    }
}

/// The region file is larger than all of these limits, and extending it beyond the last one causes SIGXFSZ.
fn a_soft_limit_of_file_sizes_is_the_programs_only() {
    let place = Place::new();
    let source = "#include <stdio.h>\n#include <sys/resource.h>\nint main(void) { struct rlimit r; \
                  getrlimit(RLIMIT_FSIZE, &r); printf(\"%lu\\n\", r.rlim_cur); return 7; }";
    place.c("limit", source, &[]);
    for blocks in [100u64, 1000, 400_000] {
        let outcome = limited(&place, &format!("-S -f {blocks}"), &["-q", "./limit"]);
        assert_eq!(outcome.code(), 7, "{}", outcome.stderr_text());
        assert_eq!(outcome.stdout_text(), format!("{}\n", blocks * 512));
        assert!(gprofdata::read(&place.path("gmon.out")).unwrap().calls() > 0);
    }
}

/// A SIGXFSZ for the region file concerns gprofinject and not the program.
fn a_hard_limit_of_file_sizes_leaves_room_for_fewer_threads() {
    let place = Place::new();
    place.c("burn", BURN, &[]);
    let outcome = limited(&place, "-f 400000", &["-q", "./burn"]);
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, "burnt\n"), "{}", outcome.stderr_text());
    assert!(gprofdata::read(&place.path("gmon.out")).unwrap().calls() > 2);
}

fn a_low_limit_of_file_sizes_is_named_and_samples_are_taken() {
    let place = Place::new();
    place.c("burn", BURN, &[]);
    let outcome = limited(&place, "-f 1000", &["./burn"]);
    let said = outcome.stderr_text();
    let limit = " MiB: File too large (the limit of file sizes, ulimit -f, is 512000 bytes)";
    assert!(said.contains("no place for the counters, of ") && said.contains(limit), "{said}");
    assert!(!said.contains("TMPDIR"), "{said}");
    // Without perf, no samples are possible.
    if outcome.code() != 125 {
        assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (3, "burnt\n"), "{said}");
        let profile = gprofdata::read(&place.path("gmon.out")).unwrap();
        assert!(profile.samples() > 0 && profile.calls() == 0, "{said}");
    }
}

/// No file can be written. gprofinject says so, and no SIGXFSZ ends it.
fn files_that_are_too_long_end_nothing() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    for options in [&[][..], &["--times"], &["--trace=trace"], &["--stats=s"], &["--export=json=e"]] {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -f 0; exec \"$@\"", "sh"]).arg(tool::gprofinject().unwrap()).args(options);
        command.arg("./hello").current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
        let ended = piped(command);
        assert_eq!((ended.code, ended.signal), (Some(125), None), "{options:?} {}", ended.said);
        let limit = "(the limit of file sizes, ulimit -f, is 0 bytes)";
        assert!(ended.said.contains(limit), "{options:?} {}", ended.said);
    }
}

fn a_low_limit_of_files_is_named() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    for files in [5, 6, 8] {
        let outcome = limited(&place, &format!("-n {files}"), &["-q", "./hello"]);
        let said = outcome.stderr_text();
        assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "100\n"), "{said}");
        let limit = format!("the limit of open files, ulimit -n, is {files}, too little for gprofinject; the program runs without a profile");
        assert!(said.contains(&limit), "{said}");
    }
    // The program is executed as it would be alone.
    let outcome = limited(&place, "-n 5", &["./missing"]);
    assert_eq!(outcome.code(), 127, "{}", outcome.stderr_text());
}

fn a_low_limit_of_memory_is_named() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let outcome = limited(&place, "-v 30000", &["./hello"]);
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "100\n"), "{said}");
    assert!(said.contains("nothing was hooked") && said.contains("ulimit -v"), "{said}");
}

/// gprofinject ends with a reason. If the program runs by then, gprofinject waits for it.
fn a_limit_of_memory_that_leaves_gprofinject_none() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let outcome = limited(&place, "-d 1000", &["./hello"]);
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (125, ""), "{said}");
    let limit = "no memory for gprofinject itself: the limit of data, ulimit -d, is 1024000 bytes; the program was not started\n";
    assert!(said.ends_with(limit), "{said}");
    for kibibytes in (2000..24_000).step_by(2000) {
        for options in [&["--hooks=both"][..], &["--libs=all"], &["--times"]] {
            let args = [options, &["./hello"]].concat();
            let outcome = limited(&place, &format!("-d {kibibytes}"), &args);
            let (said, printed) = (outcome.stderr_text(), outcome.stdout_text());
            assert!(matches!(outcome.code(), 0 | 125), "{kibibytes} {options:?} {}: {said}", outcome.code());
            assert_eq!(printed.is_empty(), said.contains("the program was not started"), "{kibibytes} {options:?} {said}");
            assert!(said.contains("ulimit -d"), "{kibibytes} {options:?} {said}");
        }
    }
    // Some of these leave room for a thread, but none for the stack of its signal handlers.
    for kibibytes in (2200..2500).step_by(4) {
        let said = limited(&place, &format!("-d {kibibytes}"), &["./hello"]).stderr_text();
        assert!(said.contains("ulimit -d"), "{kibibytes} {said}");
    }
}

/// gprofinject itself needs more stack than that, and a child's set-up more than is left.
fn a_small_stack() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    for kibibytes in [40, 64, 200] {
        let outcome = limited(&place, &format!("-s {kibibytes}"), &["-q", "./hello"]);
        let said = outcome.stderr_text();
        assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "100\n"), "{said}");
        assert!(gprofdata::read(&place.path("gmon.out")).unwrap().calls() > 0, "{said}");
    }
}

/// Whether the tests run as root.
fn is_root() -> bool {
    Command::new("id").arg("-u").output().unwrap().stdout.starts_with(b"0\n")
}

/// Root has no such limit.
fn a_limit_of_processes() {
    if !is_root() || !skip::have("setpriv") || !skip::have("prlimit") {
        return skip::skipped("a_limit_of_processes", "it takes root, setpriv and prlimit");
    }
    let place = Place::new();
    let folder = place.folder.path();
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let gprofinject = place.path("gprofinject");
    fs::copy(tool::gprofinject().unwrap(), &gprofinject).unwrap();
    place.c("hello", HELLO, &[]);
    // A user without other processes.
    let run = |most: &str, args: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=64123", "--regid=64123", "--clear-groups", "prlimit"]);
        command.arg(format!("--nproc={most}")).arg(&gprofinject).args(args).current_dir(folder);
        finish(command)
    };
    let outcome = run("1", &["./hello"]);
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 125, "{said}");
    assert!(said.contains("the limit of the user's processes and threads, ulimit -u, is 1"), "{said}");
    for args in [&["./hello"][..], &["--libs=all", "./hello"], &["--trace", "trace", "./hello"]] {
        let outcome = run("2", args);
        let said = outcome.stderr_text();
        assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "100\n"), "{args:?} {said}");
        assert!(said.contains("ulimit -u, is 2, and gprofinject's own ones count as well"), "{args:?} {said}");
    }
}

/// A process under SCHED_DEADLINE cannot fork, so gprofinject leaves that to the program.
fn deadlines() {
    let (place, program) = (Place::new(), Subject::new("limited"));
    for policy in [&["--deadline"][..], &["--deadline", "--reset-on-fork"], &["--fifo", "--reset-on-fork"]] {
        let mut first: Vec<&str> = vec!["chrt"];
        first.extend(policy);
        match policy {
            ["--deadline", ..] => {
                first.extend(["--sched-runtime", "10000000", "--sched-deadline", "30000000", "--sched-period", "30000000", "0"])
            }
            _ => first.push("1"),
        }
        let run = |first: &[&str]| {
            let mut command = Command::new(first[0]);
            command.args(&first[1..]).arg(&program.path).args(["thread", "fork"]).current_dir(place.folder.path());
            command.env_remove("GMON_OUT_PREFIX");
            finish(command)
        };
        if !skip::have("chrt") || run(&first).code() != 6 {
            return skip::skipped("deadlines", "it takes chrt, and the right to use it");
        }
        let alone = run(&first);
        for mode in MODES {
            let gprofinject = tool::gprofinject().unwrap().to_str().unwrap();
            let profiled = run(&[&first[..], &[gprofinject, "--no-cache", "-q", "-o", "gmon.out"], mode].concat());
            let what = format!("{policy:?} {mode:?}: {}", profiled.stderr_text());
            assert_eq!((profiled.stdout_text(), profiled.code()), (alone.stdout_text(), alone.code()), "{what}");
        }
    }
}

/// A control group for this test.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

impl Group {
    /// Makes a group whose processes may use so many bytes, if that is possible here.
    fn new(bytes: u64) -> Option<Group> {
        for (root, file) in [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")] {
            let group = Group(Path::new(root).join(format!("gprofinject-test-{}", std::process::id())));
            if fs::create_dir(&group.0).is_ok() && fs::write(group.0.join(file), bytes.to_string()).is_ok() {
                return Some(group);
            }
        }
        None
    }
}

/// A program that would exceed its group's memory by its hooks is not hooked.
fn a_small_control_group() {
    let Some(group) = Group::new(4 << 20) else {
        return skip::skipped("a_small_control_group", "no control group can be made");
    };
    let (place, program) = (Place::new(), Subject::new("limited"));
    let script = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", group.0.display());
    let run = |mut command: Command| {
        command.args(["-c", &script, "sh"]).arg(&program.path).args(["thread", "fork"]).current_dir(place.folder.path());
        finish(command)
    };
    let alone = run(Command::new("sh"));
    for mode in MODES {
        let mut command = tool::uncached(tool::gprofinject().unwrap());
        command.args(["-v", "-o", "gmon.out"]).args(mode).arg("sh").env_remove("GMON_OUT_PREFIX");
        let profiled = run(command);
        let said = profiled.stderr_text();
        assert_eq!((profiled.stdout_text(), profiled.code()), (alone.stdout_text(), alone.code()), "{mode:?} {said}");
        if mode == ["--libs=all"] {
            assert!(said.contains("may use only 4194304 bytes of memory (memory.max)"), "{said}");
        }
    }
    // gprofinject has no room in the group.
    let mut inside = Command::new("sh");
    inside.args(["-c", &script, "sh"]).arg(tool::gprofinject().unwrap()).args(["-q", "-o", "gmon.out"]);
    inside.arg(&program.path).args(["thread", "fork"]).current_dir(place.folder.path());
    let profiled = finish(inside);
    let said = profiled.stderr_text();
    assert_eq!((profiled.stdout_text(), profiled.code()), (alone.stdout_text(), alone.code()), "{said}");
    let limit = "the control group may use only 4194304 bytes of memory (memory.max), too little for gprofinject; the program runs";
    assert!(said.contains(limit), "{said}");
}
