//! Attaching to particular kinds of programs: in Rust, programs that use faults, forked children; and
//! attaching at the same time as a debugger.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use gprofinject_tests::attached::{Subject, until};
use gprofinject_tests::place::{Place, complains, finish};
use gprofinject_skip as skip;
use gprofinject_tests::{compile, tool};

gprofinject_tests::trials! {
    together:
        forked_children,
        a_child_that_is_left_behind,
        another_user_with_another_root,
        the_main_thread_has_ended,
        memory_in_our_place,
        a_process_that_is_stopped_meanwhile,
        a_program_that_executes_itself,
        a_program_by_the_name_of_a_link;
    busy:
        rust_programs,
        programs_with_handlers_for_faults,
        beside_a_debugger,
        numbers_that_look_like_addresses,
        many_threads_with_sockets;
}

/// Starts a program of `processes/`.
fn subject(file: &str, compiler: &str, flags: &[&str]) -> Subject {
    let place = Place::new();
    let mut command = Command::new(compiler);
    command.args(flags).arg("-o").arg(place.path("subject")).arg(tool::folder().join("processes").join(file));
    compile::compile(command).unwrap();
    let mut command = Command::new(place.path("subject"));
    command.current_dir(place.folder.path());
    Subject::start(place, command)
}

/// Attaches and leaves, with both kinds of hooks. The counts are exact, and nothing stays in the process.
fn over_and_over(mut subject: Subject, what: &str) {
    let before = subject.code();
    for n in 0..10_u32 {
        let attached = subject.attached(&["-v", ["--hooks=both", "--hooks=entry"][n as usize % 2]]);
        subject.step(n + 1);
        std::thread::sleep(Duration::from_millis(5));
        let (status, said) = attached.end("-INT");
        assert_eq!((status, subject.calls("step")), (Some(0), u64::from(n) + 1), "{what}, {n}: {said}");
        assert!(subject.is_clean(), "{what}, {n}: {said}");
    }
    assert_eq!(subject.changed(&before), None, "{what}");
    subject.finish();
}

fn rust_programs() {
    for flags in [&["-O", "-Cdebuginfo=1"][..], &["-Copt-level=0"], &["-O", "-Cprefer-dynamic"]] {
        let flags = [&["--edition=2024"], flags].concat();
        let dynamic = flags.contains(&"-Cprefer-dynamic");
        if dynamic {
            // The standard library is found where the compiler is.
            let libraries = Command::new("rustc").args(["--print", "target-libdir"]).output().unwrap().stdout;
            let path = format!("-Clink-arg=-Wl,-rpath,{}", String::from_utf8(libraries).unwrap().trim());
            over_and_over(subject("panics.rs", "rustc", &[&flags[..], &[&path]].concat()), "dynamic");
        } else {
            over_and_over(subject("panics.rs", "rustc", &flags), flags[1]);
        }
    }
}

fn programs_with_handlers_for_faults() {
    for flags in [&["-O2", "-w", "-pthread"][..], &["-O0", "-w", "-pthread"]] {
        over_and_over(subject("faults.c", "gcc", flags), flags[0]);
    }
}

/// What a child has inherited from its parent counts nowhere, and is taken out of the child separately.
fn forked_children() {
    let mut subject = subject("parent.c", "gcc", &["-O2", "-w"]);
    let before = subject.code();
    let attach = |subject: &Subject, child: &str| {
        let mut command = subject.place.command(&["--rate", "0", "-q", "--pid", child, "--duration", "0.05"]);
        command.args(["-o", "child.out"]).env("XDG_RUNTIME_DIR", subject.place.folder.path());
        finish(command)
    };
    let maps = |pid: &str| fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let attached = subject.attached(&[]);
    subject.step(5);
    subject.tell("fork");
    subject.hear("done\n");
    let child = fs::read_to_string(subject.place.path("child")).unwrap();
    assert!(maps(&child).contains("/gprofinject-"));
    let outcome = attach(&subject, &child);
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    assert!(!maps(&child).contains("gprofinject"), "{said}");
    assert_eq!(subject.changed_in(&child, &before), None, "{said}");
    subject.step(6);
    let (status, said) = attached.end("-INT");
    assert_eq!((status, subject.calls("step")), (Some(0), 11), "{said}");
    // The child can be profiled like any other process.
    let outcome = attach(&subject, &child);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(subject.place.path("child.out").exists());
    subject.finish();
}

/// The parent's run folder has been removed meanwhile.
fn a_child_that_is_left_behind() {
    let mut subject = subject("parent.c", "gcc", &["-O2", "-w"]);
    let attached = subject.attached(&[]);
    subject.tell("fork");
    subject.hear("done\n");
    attached.end("-INT");
    let child = fs::read_to_string(subject.place.path("child")).unwrap();
    let outcome = subject.place.run(&["--pid", &child, "--duration", "0"]);
    let said = outcome.stderr_text();
    assert!(outcome.code() == 125 && said.contains("was forked by a process that was"), "{said}");
    subject.finish();
}

/// A server that was started as root and is another user now, in a root folder that contains nothing of
/// gprofinject.
fn another_user_with_another_root() {
    if !Command::new("id").arg("-u").output().unwrap().stdout.starts_with(b"0\n") {
        return skip::skipped("another_user_with_another_root", "only root can become another user");
    }
    let mut subject = Subject::new("ax", &[]);
    let before = subject.code();
    let descriptors =
        |subject: &Subject| fs::read_dir(format!("/proc/{}/fd", subject.pid())).unwrap().count();
    subject.tell("elsewhere");
    subject.hear("done\n");
    let open = descriptors(&subject);
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let attached = subject.attached(&["-v", hooks]);
        assert_eq!(descriptors(&subject), open);
        subject.step(1234);
        let (status, said) = attached.end("-INT");
        assert_eq!((status, subject.calls("step")), (Some(0), 1234), "{hooks}: {said}");
        assert!(subject.is_clean(), "{hooks}: {said}");
    }
    let attached = subject.attached(&["-v"]);
    assert_eq!(attached.end("-KILL").0, None);
    let again = subject.attach(&["--duration", "0"]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert!(subject.is_clean() && descriptors(&subject) == open, "{again:?}");
    assert_eq!(subject.changed(&before), None);
    subject.finish();
}

/// A debugger attaches while the program is profiled, and again after it has been left.
fn beside_a_debugger() {
    let tools = [
        ("gdb", &["-batch", "-nx", "-ex", "thread apply all backtrace", "-p"][..], "main"),
        ("strace", &["-f", "-p"], "attached"),
    ];
    for (debugger, arguments, says) in tools {
        if !skip::have(debugger) {
            skip::skipped("beside_a_debugger", &format!("no {debugger}"));
            continue;
        }
        let mut subject = subject("steps.c", "gcc", &["-O2", "-w", "-g", "-pthread"]);
        let before = subject.code();
        let debug = |subject: &Subject| {
            let mut command = Command::new(debugger);
            command.args(arguments).arg(subject.pid().to_string()).stdin(Stdio::null());
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            if debugger == "strace" {
                // It continues until it is asked to stop.
                let status = format!("/proc/{}/status", subject.pid());
                let is_traced = || !fs::read_to_string(&status).unwrap().contains("TracerPid:\t0\n");
                until("strace begins", is_traced);
                let outcome = subject.attach(&["--duration", "0"]);
                assert_eq!(outcome.code(), 125, "{}", outcome.stderr_text());
                let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
                assert!(kill.unwrap().success());
            }
            let output = child.wait_with_output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said).into_owned();
            assert!(said.contains(says), "{debugger}: {said}");
        };
        for _ in 0..3 {
            let attached = subject.attached(&[]);
            subject.step(3);
            debug(&subject);
            subject.step(4);
            let (status, said) = attached.end("-INT");
            assert_eq!((status, subject.calls("step")), (Some(0), 7), "{debugger}: {said}");
            assert!(subject.is_clean(), "{debugger}: {said}");
            debug(&subject);
            subject.step(1);
        }
        assert_eq!(subject.changed(&before), None, "{debugger}");
        subject.finish();
    }
}

/// /proc/PID of such a process looks empty.
fn the_main_thread_has_ended() {
    let gone = |subject: &Subject| {
        let status = format!("/proc/{}/status", subject.pid());
        until("a zombie", || fs::read_to_string(&status).unwrap().contains("State:\tZ"));
    };
    let maps = |subject: &Subject| {
        let tasks = fs::read_dir(format!("/proc/{}/task", subject.pid())).unwrap();
        let maps = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("maps")).unwrap());
        maps.collect::<String>()
    };
    // The main thread ends before gprofinject attaches, or while it is attached.
    for before in [true, false] {
        let mut subject = subject("headless.c", "gcc", &["-O2", "-w", "-pthread"]);
        for again in [false, true] {
            if before && !again {
                subject.tell("go on");
                gone(&subject);
            }
            let attached = subject.attached(&[]);
            subject.step(10);
            if !before && !again {
                subject.tell("go on");
                gone(&subject);
            }
            subject.step(5);
            assert!(maps(&subject).contains("/gprofinject-"));
            let (status, said) = attached.end("-INT");
            assert_eq!((status, subject.calls("step")), (Some(0), 15), "{said}");
            assert!(!maps(&subject).contains("gprofinject") && maps(&subject).contains("libc"), "{said}");
        }
        subject.finish();
    }
}

/// gprofinject refuses the process, and the memory does not change.
fn memory_in_our_place() {
    let mut subject = subject("below.c", "gcc", &["-O2", "-w"]);
    let outcome = subject.attach(&["--duration", "0"]);
    complains(&outcome, 125, "no memory near the program's code");
    assert!(subject.is_clean());
    subject.step(3);
    subject.finish();
}

/// The addresses of the program's text are as small as ordinary numbers.
fn numbers_that_look_like_addresses() {
    over_and_over(subject("numbers.c", "gcc", &["-O2", "-w", "-pthread", "-no-pie", "-fno-pie"]), "numbers");
}

fn many_threads_with_sockets() {
    over_and_over(subject("sockets.c", "gcc", &["-O2", "-w", "-pthread"]), "sockets");
}

/// gprofinject leaves the process nevertheless, and it stays stopped.
fn a_process_that_is_stopped_meanwhile() {
    let mut subject = subject("steps.c", "gcc", &["-O2", "-w", "-pthread"]);
    let before = subject.code();
    let status = format!("/proc/{}/status", subject.pid());
    // When no process traces it any longer, the kernel stops it again as soon as it gets a processor.
    let stopped = || until("stopped", || fs::read_to_string(&status).unwrap().contains("State:\tT"));
    for hooks in ["--hooks=both", "--hooks=entry"] {
        let attached = subject.attached(&[hooks]);
        subject.step(12);
        subject.signal("-STOP");
        stopped();
        let (ended, said) = attached.end("-INT");
        assert_eq!((ended, subject.calls("step")), (Some(0), 12), "{said}");
        assert_eq!(subject.changed(&before), None, "{said}");
        assert!(subject.is_clean(), "{said}");
        stopped();
        subject.signal("-CONT");
        subject.step(1);
    }
    subject.finish();
}

/// The process executes another program each time that gprofinject examines it.
fn a_program_that_executes_itself() {
    let place = Place::new();
    let path = place.path("again");
    let mut compiler = Command::new("gcc");
    compiler.args(["-O2", "-w", "-o"]).arg(&path).arg(tool::folder().join("processes/again.c"));
    compile::compile(compiler).unwrap();
    let mut child = Command::new(&path).arg("1500").stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    while child.try_wait().unwrap().is_none() {
        let outcome = place.run(&["--rate", "0", "--pid", &pid, "--duration", "0"]);
        assert!(matches!(outcome.code(), 0 | 125), "{}", outcome.stderr_text());
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(6), &b"the end\n"[..]));
}

/// A program is called as the user has called it, also where that is a link to a file of another name.
fn a_program_by_the_name_of_a_link() {
    let place = Place::new();
    place.c("service-check", "#include <unistd.h>\nint main(void) { for (;;) usleep(1000); }", &[]);
    std::os::unix::fs::symlink("service-check", place.path("service")).unwrap();
    let mut child = Command::new(place.path("service")).stdout(Stdio::null()).spawn().unwrap();
    let outcome = place.run(&["--pid", &child.id().to_string(), "--duration", "0.2", "-o", "profile"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    assert!(said.contains("gprofinject: service: ") && !said.contains("service-check"), "{said}");
}
