//! The command as its user sees it: what is passed through, the messages, and the behaviour with wrong input.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::place::{HELLO, LIMIT, Place, complains, finish};
use gprofinject_tests::{gprofdata, run};

gprofinject_tests::trials! {
    together:
        profile_is_where_gprofinject_was_started,
        output_option_and_prefix,
        programs_that_cannot_run,
        bad_options,
        help_and_version,
        unwritable_output_is_found_before_the_program_runs,
        the_program_is_not_overwritten,
        full_disk_is_reported,
        input_and_output_pass_through,
        arguments_pass_through,
        exit_statuses_and_signals,
        environment_and_files_are_the_programs_own,
        preloads_of_the_user_stay,
        list_runs_nothing,
        functions_are_chosen_by_name_and_size,
        tiny_functions_are_chosen_without_their_neighbours,
        stats_are_json,
        signals_to_gprofinject_reach_the_program,
        nothing_is_left_behind;
}

fn profile_is_where_gprofinject_was_started() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let outcome = place.run(&["./hello"]);
    assert_eq!(
        (outcome.code(), outcome.stdout_text()),
        (0, "100\n".to_string()),
        "{}",
        outcome.stderr_text()
    );
    assert!(gprofdata::read(&place.path("gmon.out")).unwrap().calls() >= 101);
    let said = outcome.stderr_text();
    assert!(said.starts_with("gprofinject: hello: ") && said.contains(" calls"), "the first line says what ran: {said}");
    assert!(said.ends_with("gprofinject: next: gmon\n"), "the last line says what comes next: {said}");
    assert!(said.lines().count() <= 4 && said.lines().all(|line| line.starts_with("gprofinject: ")), "{said}");
}

fn output_option_and_prefix() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    assert_eq!(place.run(&["-q", "-o", "other.out", "./hello"]).code(), 0);
    assert!(place.path("other.out").is_file() && !place.path("gmon.out").exists());
    let mut command = place.command(&["-q", "./hello"]);
    command.env("GMON_OUT_PREFIX", place.path("mine"));
    assert_eq!(finish(command).code(), 0);
    let names = fs::read_dir(place.folder.path()).unwrap().map(|e| e.unwrap().file_name());
    let names: Vec<String> = names.map(|n| n.to_string_lossy().into_owned()).collect();
    let numbered = |n: &String| n.strip_prefix("mine.").is_some_and(|pid| pid.parse::<u32>().is_ok());
    assert!(names.iter().any(numbered), "{names:?}");
}

fn programs_that_cannot_run() {
    let place = Place::new();
    complains(&place.run(&["./nothing-here"]), 127, "nothing-here");
    complains(&place.run(&["nothing-on-the-path"]), 127, "nothing-on-the-path");
    fs::write(place.path("text"), "hello").unwrap();
    complains(&place.run(&["./text"]), 126, "text");
    complains(&place.run(&["."]), 126, ".");
    complains(&place.run(&[""]), 127, "gprofinject: '': No such file or directory");
    assert!(!place.path("gmon.out").exists());
}

fn bad_options() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let cases: &[&[&str]] = &[
        &["--hooks=some", "./hello"],
        &["--rate=fast", "./hello"],
        &["--rate=-1", "./hello"],
        &["--sampler=none", "./hello"],
        &["--engine=steam", "./hello"],
        &["--engine=frida", "./hello"],
        &["--min-size=big", "./hello"],
        &["--no-such-option", "./hello"],
        &["-I", "[", "./hello"],
        &["-o"],
        &[],
    ];
    for case in cases {
        let outcome = place.run(case);
        assert_eq!(outcome.code(), 125, "{case:?}: {}", outcome.stderr_text());
        assert!(outcome.stdout.is_empty(), "{case:?}: {}", outcome.stdout_text());
        let said = outcome.stderr_text();
        assert!(said.starts_with("gprofinject: ") && !said.contains("error:"), "{case:?}: {said}");
    }
    complains(&place.run(&["--hook", "both", "./hello"]), 125, "--hooks");
    complains(&place.run(&["--rate=-1", "./hello"]), 125, "0..=100000");
    complains(&place.run(&["--rate", "-1", "./hello"]), 125, "0..=100000");
}

fn help_and_version() {
    let place = Place::new();
    let help = place.run(&["--help"]);
    assert_eq!(help.code(), 0);
    let options = [
        "--output",
        "--hooks",
        "--rate",
        "--sampler",
        "--engine",
        "--include",
        "--exclude",
        "--min-size",
        "--list",
        "--stats",
        "--version",
    ];
    for option in options {
        assert!(help.stdout_text().contains(option), "{option}");
    }
    let version = place.run(&["--version"]);
    assert_eq!((version.code(), version.stdout_text().lines().count()), (0, 1));
}

fn unwritable_output_is_found_before_the_program_runs() {
    let place = Place::new();
    place.c("mark", "#include <stdio.h>\nint main(void) { fopen(\"ran\", \"w\"); return 0; }", &[]);
    complains(&place.run(&["-o", "no/such/folder/gmon.out", "./mark"]), 125, "no/such/folder");
    // A folder cannot be written as a file, not even by root.
    fs::create_dir(place.path("folder")).unwrap();
    complains(&place.run(&["-o", "folder", "./mark"]), 125, "folder");
    complains(&place.run(&["-o", "new/", "./mark"]), 125, "new/");
    complains(&place.run(&["--stats", "no/such/folder/stats", "./mark"]), 125, "no/such/folder");
    assert!(!place.path("ran").exists(), "the program ran although its profile could not be written");
}

fn the_program_is_not_overwritten() {
    let place = Place::new();
    let path = place.c("hello", HELLO, &[]);
    std::os::unix::fs::symlink("hello", place.path("link")).unwrap();
    fs::write(place.path("script"), "#!/bin/sh\n").unwrap();
    for (option, file, program) in [
        ("-o", "hello", "./hello"),
        ("-o", "link", "./hello"),
        ("--stats", "./hello", "./link"),
        ("--trace", "./hello", "./hello"),
        ("-o", "script", "./hello"),
    ] {
        complains(&place.run(&[option, file, program]), 125, "a program, a library or a script");
    }
    // Nothing runs, so nothing is written.
    fs::write(place.path("other"), "text").unwrap();
    complains(&place.run(&["--trace", "other", "-I", "no_such_function", "./hello"]), 125, "no_such_function");
    assert_eq!(fs::read_to_string(place.path("other")).unwrap(), "text");
    assert!(fs::read(&path).unwrap().starts_with(b"\x7fELF"));
    complains(&place.run(&["-o", "one", "--stats", "./one", "./hello"]), 125, "same file");
}

fn full_disk_is_reported() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let mut command = place.command(&["-o", "/dev/full", "./hello"]);
    command.env("TMPDIR", place.folder.path());
    let outcome = finish(command);
    // The result is either an error of gprofinject's, or the program's status and the name of the file that
    // has the profile now.
    let said = outcome.stderr_text();
    assert!(said.contains("/dev/full"), "a lost profile without a word: {} {said}", outcome.code());
    if outcome.code() != 125 {
        let is_profile = |word: &str| gprofdata::read(Path::new(word)).is_ok_and(|p| p.calls() >= 101);
        assert!(said.split_whitespace().any(is_profile), "the profile is in no file that it names: {said}");
    }
}

fn input_and_output_pass_through() {
    let place = Place::new();
    let source = "#include <stdio.h>\n#include <unistd.h>\nint main(void) { int c; while ((c = getchar()) != EOF) \
                  putchar(c ^ 1); fputs(\"to stderr\", stderr); return isatty(0) + isatty(1); }";
    place.c("filter", source, &[]);
    let data: Vec<u8> = (0..200_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    fs::write(place.path("in"), &data).unwrap();
    let outcome = run::run(place.command(&["-q", "./filter"]), Some(&place.path("in")), LIMIT).unwrap();
    assert_eq!(outcome.code(), 0);
    assert!(outcome.stdout.iter().zip(&data).all(|(a, b)| *a == b ^ 1) && outcome.stdout.len() == data.len());
    assert_eq!(outcome.stderr_text(), "to stderr");
}

fn arguments_pass_through() {
    let place = Place::new();
    let source =
        "#include <stdio.h>\nint main(int c, char **v) { for (int i = 0; i < c; i++) puts(v[i]); return 0; }";
    place.c("args", source, &[]);
    let outcome = place.run(&["-q", "./args", "-q", "--help", "", "a b", "--", "-o"]);
    assert_eq!(outcome.stdout_text(), "./args\n-q\n--help\n\na b\n--\n-o\n");
    let outcome = place.run(&["-q", "--", "./args", "x"]);
    assert_eq!(outcome.stdout_text(), "./args\nx\n");
}

fn exit_statuses_and_signals() {
    let place = Place::new();
    let source = "#include <stdlib.h>\n#include <signal.h>\n__attribute__((noinline)) void f(void) { asm volatile(\"\"); }\n\
                  int main(int c, char **v) { f(); f(); int n = atoi(v[1]); if (n < 0) { raise(-n); } return n; }";
    let path = place.c("end", source, &[]);
    for n in [0, 1, 2, 42, 125, 126, 127, 128, 255, -1, -2, -3, -6, -8, -9, -11, -13, -15] {
        let argument = n.to_string();
        let mut alone = Command::new(&path);
        alone.arg(&argument);
        let alone = run::run(alone, None, LIMIT).unwrap();
        let _ = fs::remove_file(place.path("gmon.out"));
        let profiled = place.run(&["-q", "./end", &argument]);
        assert_eq!(profiled.code(), alone.code(), "for {n}: {}", profiled.stderr_text());
        let profile = gprofdata::read(&place.path("gmon.out")).unwrap();
        assert!(profile.calls() >= 3, "for {n}: {} calls", profile.calls());
    }
}

fn environment_and_files_are_the_programs_own() {
    let place = Place::new();
    let source = "#include <stdio.h>\n#include <dirent.h>\n#include <stdlib.h>\n#include <signal.h>\nextern char **environ;\n\
        int main(void) { for (char **e = environ; *e; e++) puts(*e); int n = 0; DIR *d = opendir(\"/proc/self/fd\"); \
        while (readdir(d)) n++; printf(\"%d files\\n\", n); sigset_t s; sigprocmask(SIG_BLOCK, 0, &s); \
        for (int i = 1; i < 65; i++) { struct sigaction a = {0}; if (sigaction(i, 0, &a)) continue; \
        printf(\"%d: %d %d\\n\", i, sigismember(&s, i), a.sa_handler != SIG_DFL); } return 0; }";
    let path = place.c("look", source, &[]);
    let mut alone = Command::new("./look");
    alone.current_dir(place.folder.path()).env("LOOK", "a=b c").env_remove("GMON_OUT_PREFIX");
    let alone = run::run(alone, None, LIMIT).unwrap();
    assert!(path.is_file() && alone.stdout_text().contains("LOOK=a=b c"));
    // perf samples from outside. A timer of the agent's would correctly show up as a SIGPROF handler.
    for options in [&["-q"][..], &["-q", "--hooks=entry"], &["-q", "--rate=0"]] {
        let mut command = place.command(&[options, &["./look"]].concat());
        command.env("LOOK", "a=b c");
        let profiled = finish(command);
        assert_eq!(profiled.stdout_text(), alone.stdout_text(), "{options:?}: {}", profiled.stderr_text());
    }
}

fn preloads_of_the_user_stay() {
    let place = Place::new();
    place.c("other.so", "int other(void) { return 1; }", &["-shared", "-fPIC"]);
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <dlfcn.h>\nint main(void) { \
                  puts(getenv(\"LD_PRELOAD\")); return !dlsym(RTLD_DEFAULT, \"other\"); }";
    place.c("look", &format!("#define _GNU_SOURCE\n{source}"), &[]);
    let mut command = place.command(&["-q", "./look"]);
    command.env("LD_PRELOAD", place.path("other.so"));
    let outcome = finish(command);
    let stdout = outcome.stdout_text();
    assert_eq!((outcome.code(), stdout.trim_end()), (0, place.path("other.so").to_str().unwrap()));
}

fn list_runs_nothing() {
    let place = Place::new();
    let mark = "#include <stdio.h>\n__attribute__((noinline)) void deed(void) { fopen(\"ran\", \"w\"); } \
                int main(void) { deed(); return 0; }";
    place.c("mark", mark, &[]);
    let outcome = place.run(&["--list", "./mark"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(!place.path("ran").exists() && !place.path("gmon.out").exists());
    let stdout = outcome.stdout_text();
    for name in ["main", "deed", "_start"] {
        assert!(stdout.lines().any(|l| l.split_whitespace().any(|w| w == name)), "{name} in {stdout}");
    }
}

/// Returns which of the program's own functions were counted with these options. Each is called once. `body`
/// is the assembly in the small ones.
fn counted(body: &str, options: &[&str]) -> String {
    let place = Place::new();
    let source = format!(
        "#define F(n) __attribute__((noinline)) void n(void) {{ asm volatile(\"{body}\"); }}\n\
         F(alpha_one) F(alpha_two) F(beta_one)\n\
         __attribute__((noinline)) void large(void) {{ asm volatile(\".fill 500, 1, 0x90\"); }}\n\
         int main(void) {{ alpha_one(); alpha_two(); beta_one(); large(); return 0; }}"
    );
    let path = place.c("names", &source, &[]);
    let program = gprofinject_tests::elf::Program::read(&path).unwrap();
    let outcome = place.run(&[&["-q"], options, &["./names"]].concat());
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let profile = gprofdata::read(&place.path("gmon.out")).unwrap();
    let ours = ["alpha_one", "alpha_two", "beta_one", "large", "main"];
    let count = |n: &&&str| profile.arcs.keys().any(|(_, callee)| program.label(*callee) == **n);
    ours.iter().filter(count).copied().collect::<Vec<_>>().join(" ")
}

fn functions_are_chosen_by_name_and_size() {
    let counted = |options: &[&str]| counted(".fill 20, 1, 0x90", options);
    assert_eq!(counted(&[]), "alpha_one alpha_two beta_one large main");
    assert_eq!(counted(&["-I", "alpha_*"]), "alpha_one alpha_two");
    assert_eq!(counted(&["-X", "*_one"]), "alpha_two large main");
    assert_eq!(counted(&["-I", "alpha_*", "-I", "main", "-X", "*_two"]), "alpha_one main");
    assert_eq!(counted(&["--min-size", "400"]), "large");
    assert_eq!(counted(&["--hooks=none"]), "");
}

/// Functions of one byte without padding between them: whether one is hooked must not depend on whether its
/// neighbours are selected.
fn tiny_functions_are_chosen_without_their_neighbours() {
    assert_eq!(counted("", &[]), "alpha_one alpha_two beta_one large main");
    assert_eq!(counted("", &["-X", "*_one"]), "alpha_two large main");
    assert_eq!(counted("", &["-I", "alpha_*", "-I", "main", "-X", "*_two"]), "alpha_one main");
    assert_eq!(counted("", &["-I", "alpha_one"]), "alpha_one");
}

fn stats_are_json() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let outcome = place.run(&["-q", "--stats", "stats.json", "./hello"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let stats: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("stats.json")).unwrap()).unwrap();
    let number = |path: &str| {
        stats.pointer(path).and_then(|v| v.as_u64()).unwrap_or_else(|| panic!("{path}: {stats}"))
    };
    assert!(number("/functions/found") >= 2 && number("/functions/hooked") >= 2);
    assert!(number("/calls") >= 101 && number("/arcs") >= 2);
    number("/samples/inside");
    number("/samples/outside");
    number("/samples/own");
    assert_eq!(number("/lost/calls"), 0);
    assert!(number("/memory/region_bytes") > 0 && number("/setup_ns/total") > 0);
    assert!(stats.pointer("/functions/refused_by_reason").is_some_and(|v| v.is_object()));
}

fn signals_to_gprofinject_reach_the_program() {
    let place = Place::new();
    let source = "#include <signal.h>\n#include <unistd.h>\n#include <stdio.h>\nvolatile int got;\n\
        void h(int s) { got = s; }\nint main(void) { signal(SIGTERM, h); signal(SIGUSR1, h); puts(\"ready\"); fflush(stdout); \
        while (!got) usleep(1000); return got; }";
    place.c("waits", source, &[]);
    for (signal, status) in [("TERM", 15), ("USR1", 10)] {
        let output = fs::File::create(place.path("out")).unwrap();
        let mut command = place.command(&["-q", "./waits"]);
        let mut child = command.stdout(output).spawn().unwrap();
        let started = std::time::Instant::now();
        while fs::read_to_string(place.path("out")).unwrap() != "ready\n" {
            assert!(started.elapsed() < LIMIT, "never ready");
            std::thread::sleep(Duration::from_millis(5));
        }
        let sent =
            Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(status), "SIG{signal}");
        assert!(gprofdata::read(&place.path("gmon.out")).is_ok());
    }
}

fn nothing_is_left_behind() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let home = place.path("run");
    fs::create_dir(&home).unwrap();
    let mut command = place.command(&["-q", "./hello"]);
    command.env("XDG_RUNTIME_DIR", &home).env("TMPDIR", &home);
    assert_eq!(finish(command).code(), 0);
    let left: Vec<_> = fs::read_dir(&home).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(Path::new("/dev/shm").read_dir().is_ok());
}
