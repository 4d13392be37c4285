//! Programs that change their environment: files, limits, users, permitted system calls.

#![allow(unsafe_code, reason = "system calls between fork and exec")]

use std::os::unix::process::CommandExt;
use std::time::Duration;

use gprofinject_tests::family::{MODES, NO_FOLLOW, Subject};
use gprofinject_skip as skip;
use gprofinject_tests::{run, tool};

gprofinject_tests::trials! {
    together:
        changes_that_matter_to_nobody,
        changes_that_keep_children_from_the_folder,
        limits_of_memory,
        seccomp,
        no_counter,
        seccomp_that_is_not_entered,
        instructions_of_the_programs_own,
        instructions_of_a_static_program,
        dispatched_calls,
        dispatched_calls_of_a_static_program,
        no_new_code,
        no_new_code_in_executed_programs;
}

/// After these changes, children and executed programs are still followed.
fn changes_that_matter_to_nobody() {
    let program = Subject::new("surroundings");
    let own = program.name().to_owned();
    for way in
        ["none", "close", "closefrom", "chdir", "mprotect", "mlock", "clearenv", "environ", "undumpable"]
    {
        program.check(&[way, &own], &[[3, 7, 0], [5, 0, 0], [3, 11, 0]]);
    }
}

/// A child that cannot reach the run folder counts in its parent's file. The program that it executes is not
/// followed, which gprofinject reports.
fn changes_that_keep_children_from_the_folder() {
    let program = Subject::new("surroundings");
    let own = program.name().to_owned();
    for way in ["chroot", "nobody", "nofile"] {
        program.check(&[way, &own], &[[3, 7, 0], [5, 0, 0]]);
    }
    let fixed = program.place().c("static", "int main(void) { return 0; }", &["-static"]);
    for (way, executed) in
        [("chroot-with", fixed.to_str().unwrap()), ("nobody", "/bin/true"), ("nofile", &own)]
    {
        let run = program.profiled(&[], &[way, executed], &[]);
        assert!(
            run.said.contains("some programs that were executed were not followed"),
            "{way}: {}",
            run.said
        );
    }
    // A program that cannot be executed there was not missed.
    let run = program.profiled(&[], &["chroot", &own], &[]);
    assert!(!run.said.contains("not followed"), "{}", run.said);
    // No file can be created, but everything else works.
    program.check(&["fsize", &own], &[[3, 7, 0], [5, 0, 0], [3, 11, 0]]);
}

/// If there is no memory, no call of the child is charged to its parent.
fn limits_of_memory() {
    let program = Subject::new("surroundings");
    for mode in MODES {
        let run = program.same_as_alone(&["-q", mode], &["as"], &[]);
        assert_eq!(run.calls(&run.path("gmon.out")), [3, 7, 0], "{mode}");
    }
}

/// No system call of the agent violates the filter, and what is lost is reported.
fn seccomp() {
    let program = Subject::new("seccomp");
    for way in ["prctl", "syscall"] {
        for action in ["kill", "errno"] {
            for then in ["none", "vfork", "exec"] {
                program.check(&[way, action, then], &[[5, 7, 0]]);
            }
            for then in ["fork", "thread"] {
                for mode in MODES {
                    let run = program.same_as_alone(&["-q", mode], &[way, action, then], &[]);
                    assert_eq!(run.outcome.code(), 6, "{way} {action} {then} {mode}");
                    run.made(&[[5, 7, 0]], &format!("{way} {action} {then} {mode}"));
                    if then == "thread" || mode != NO_FOLLOW {
                        let said = &run.said;
                        assert!(said.contains("calls lost: the program entered seccomp"), "{mode} {said}");
                    } else {
                        assert_eq!(run.said, "");
                    }
                }
            }
        }
    }
    program.check(&["strict", "kill", "strict"], &[[5, 7, 0]]);
}

/// Nothing reads the time stamp counter when the program has forbidden that, and what is not measured is reported.
fn no_counter() {
    let program = Subject::new("seccomp");
    for args in [["tsc", "errno", "fork"], ["tsc-syscall", "errno", "fork"], ["strict", "kill", "strict"]] {
        for options in [&["-q", "--times"][..], &["-q", "--paths"], &["-q", "--times", "--clock=gettime"]] {
            let run = program.same_as_alone(options, &args, &[]);
            let said = &run.said;
            let is_measured = args[0] != "strict" && options.contains(&"--clock=gettime");
            assert_eq!(said.contains("the program has forbidden the clock"), !is_measured, "{args:?} {options:?} {said}");
        }
    }
}

/// Asking whether seccomp is in use is not the same as entering it.
fn seccomp_that_is_not_entered() {
    let program = Subject::new("seccomp");
    program.check(&["asks", "errno", "fork"], &[[5, 7, 0], [9, 0, 9]]);
}

/// A program may make system calls by instructions of its own.
fn instructions_of_the_programs_own() {
    check_instructions(&[]);
}

fn instructions_of_a_static_program() {
    check_instructions(&["-static"]);
}

fn check_instructions(flags: &[&str]) {
    let program = Subject::with("instructions", flags);
    for way in ["fork", "any-fork", "clone"] {
        program.check(&[way], &[[3, 7, 0], [9, 0, 9]]);
    }
    for way in ["exec", "execat"] {
        program.check(&[way], &[[3, 7, 0], [3, 0, 11]]);
    }
    program.check(&["vfork"], &[[3, 7, 0]]);
    program.check(&["seccomp"], &[[3, 7, 5]]);
    let run = program.same_as_alone(&["-q", "--times"], &["tsc"], &[]);
    assert_eq!(run.calls(&run.path("gmon.out")), [3, 7, 5]);
    assert!(run.said.contains("the program has forbidden the clock"), "{}", run.said);
}

/// No system call of the agent's is dispatched to the program, and everything is counted.
fn dispatched_calls() {
    check_dispatched(&[]);
}

fn dispatched_calls_of_a_static_program() {
    check_dispatched(&["-static"]);
}

fn check_dispatched(flags: &[&str]) {
    let program = Subject::with("dispatch", flags);
    let other_modes = [&["-q", "--times"][..], &["-q", "--trace", "trace"], &["-q", "--paths", "--clock=gettime"]];
    for way in ["prctl", "syscall", "instruction"] {
        for range in ["none", "range"] {
            program.check(&[way, range, "none"], &[[5, 7, 0]]);
            program.check(&[way, range, "thread"], &[[5, 7, 9]]);
            program.check(&[way, range, "fork"], &[[5, 7, 0], [9, 0, 9]]);
            for mode in other_modes {
                let run = program.same_as_alone(mode, &[way, range, "thread"], &[]);
                assert_eq!(run.calls(&run.path("gmon.out")), [5, 7, 9], "{mode:?} {way} {range}: {}", run.said);
            }
        }
    }
}

/// If no memory may be made executable any more (PR_SET_MDWE, Linux 6.3), nothing can be hooked, and no page
/// of code may be changed, because it could not be made executable again.
fn no_new_code() {
    const PR_SET_MDWE: libc::c_int = 65;
    let program = Subject::new("surroundings");
    let refused = |mut command: std::process::Command| {
        // SAFETY: this is a system call without memory.
        unsafe {
            command.pre_exec(|| match libc::prctl(PR_SET_MDWE, 1, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        command
    };
    if refused(std::process::Command::new("true")).status().is_err() {
        return skip::skipped("no_new_code", "the kernel has no PR_SET_MDWE");
    }
    let args = ["none".to_owned(), program.name().to_owned()];
    let mut alone = std::process::Command::new(&program.path);
    alone.args(&args);
    let alone = run::run(refused(alone), None, Duration::from_secs(60)).unwrap();
    for mode in MODES {
        let file = program.place().path("gmon.out");
        let command = tool::command(&[mode], &file, &program.path, &args).unwrap();
        let ours = run::run(refused(command), None, Duration::from_secs(60)).unwrap();
        assert_eq!((ours.code(), ours.stdout_text()), (alone.code(), alone.stdout_text()), "{mode}");
        assert!(ours.stderr_text().contains("nothing was hooked"), "{mode}: {}", ours.stderr_text());
    }
}

/// A program that has refused itself new code hands that on to those that it executes, in which nothing can be hooked. gprofinject says so of
/// each, whether it is linked dynamically or statically, and whether or not it is the first program once more.
fn no_new_code_in_executed_programs() {
    const PR_SET_MDWE: libc::c_int = 65;
    let mut probe = std::process::Command::new("true");
    // SAFETY: this is a system call without memory.
    unsafe {
        probe.pre_exec(|| match libc::prctl(PR_SET_MDWE, 1, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        })
    };
    if probe.status().is_err() {
        return skip::skipped("no_new_code_in_executed_programs", "the kernel has no PR_SET_MDWE");
    }
    const EXECUTED: &str = "__attribute__((noinline)) void work(void) { asm volatile(\"\"); }\n\
        int main(void) { work(); return 5; }\n";
    let program = Subject::new("mdwe");
    for flags in [&[][..], &["-static"]] {
        let executed = program.place().c("executed", EXECUTED, flags);
        for options in [&["--hooks=both"][..], &["--per-process"]] {
            let run = program.same_as_alone(options, &[executed.to_str().unwrap()], &[]);
            assert_eq!(run.calls(&run.path("gmon.out")), [3, 7, 0], "{flags:?}");
            let about = format!("nothing was hooked in a process of {}: ", executed.display());
            assert!(run.said.contains(&about), "{flags:?} {options:?}: {}", run.said);
        }
    }
}
