//! The program's standing among process groups and sessions is the one that it has alone: as a job of an interactive shell, as the leader of a
//! session, in a pipeline, in a script. `processes/standing.c` says what it sees.

use std::process::Command;
use std::time::{Duration, Instant};

use gprofinject_skip as skip;
use gprofinject_tests::family::Subject;
use gprofinject_tests::place::Place;
use gprofinject_tests::{run, tool};

gprofinject_tests::trials! {
    together:
        jobs_of_a_shell,
        leaders_of_sessions,
        members_of_groups,
        the_end_of_a_program_with_daemons,
        signals_that_do_not_cease;
}

const LIMIT: Duration = Duration::from_secs(90);

/// The words of a command that runs the program alone, and of one that profiles it.
fn ways(program: &Subject) -> [Vec<String>; 2] {
    let profile = format!("--output={}", program.place().path("profile.out").display());
    let command = tool::gprofinject().unwrap().to_str().unwrap().to_owned();
    let own = program.name().to_owned();
    [vec![own.clone()], vec![command, "--no-cache".into(), "-q".into(), profile, own]]
}

/// Runs both commands in the same surroundings, and compares what the program prints.
fn compare(what: &str, program: &Subject, surroundings: impl Fn(&[String]) -> Command) -> String {
    let [alone, profiled] = ways(program).map(|words| run::run(surroundings(&words), None, LIMIT).unwrap());
    assert_eq!(profiled.stdout_text(), alone.stdout_text(), "{what}: {}", profiled.stderr_text());
    assert_eq!(profiled.code(), alone.code(), "{what}: {}", alone.stdout_text());
    alone.stdout_text()
}

/// Ctrl-Z, fg, bg, Ctrl-C, `kill %1`, and a program that stops itself.
fn jobs_of_a_shell() {
    if !skip::have_for("jobs_of_a_shell", &["python3", "bash", "dash"]) {
        return;
    }
    let program = Subject::new("standing");
    for shell in ["bash", "dash"] {
        let printed = compare(shell, &program, |words| {
            let mut command = Command::new("python3");
            command.arg(tool::folder().join("data/jobs.py")).arg(shell).args(words);
            command
        });
        assert!(printed.contains("@leads its group: 1, its session: 0, terminal: 1, in the foreground: 1"), "{printed}");
        assert!(printed.ends_with("status\n"), "{printed}");
    }
}

/// A program that a service manager starts signals its own group.
fn leaders_of_sessions() {
    let program = Subject::new("standing");
    let printed = compare("setsid", &program, |words| {
        let mut command = Command::new("setsid");
        // setsid forks if it leads a group itself, and waits then.
        command.arg("--wait").args(words).arg("group");
        command
    });
    assert!(printed.contains("@leads its group: 1, its session: 1"), "{printed}");
    assert!(printed.contains("@helper: signal 15"), "{printed}");
}

/// In a script, the program leads no group, and a signal to the group reaches it as well.
fn members_of_groups() {
    let program = Subject::new("standing");
    let printed = compare("sh", &program, |words| {
        let mut command = Command::new("sh");
        command.args(["-c", "\"$@\"; echo status $?", "sh"]).args(words);
        command
    });
    assert!(printed.contains("@leads its group: 0"), "{printed}");
    // A member of a pipeline, whose other programs belong to the same group.
    let printed = compare("pipeline", &program, |words| {
        let mut command = Command::new("setsid");
        command.args(["--wait", "sh", "-c", "exec \"$@\" | cat", "sh"]).args(words);
        command
    });
    assert!(printed.contains("@leads its group: 0"), "{printed}");
}

/// Whoever ends a program by SIGTERM waits no longer for gprofinject than for the program, whatever processes that has left.
fn the_end_of_a_program_with_daemons() {
    const SCRIPT: &str = "rm -f daemon; \"$@\" -c 'sleep 3600 >/dev/null 2>&1 & echo $! >daemon; wait' & program=$!
        until [ -s daemon ]; do sleep 0.1; done
        kill $program; wait $program; echo status $?; kill -0 $(cat daemon) && echo there; kill $(cat daemon)";
    let place = Place::new();
    let ended = |words: &[&str]| {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).args(words).current_dir(place.folder.path());
        run::run(command, None, LIMIT).unwrap()
    };
    let alone = ended(&["sh"]);
    assert_eq!(alone.stdout_text(), "status 143\nthere\n", "{}", alone.stderr_text());
    let command = tool::gprofinject().unwrap();
    let profiled = ended(&[command.to_str().unwrap(), "--no-cache", "sh"]);
    let said = profiled.stderr_text();
    assert_eq!(profiled.stdout_text(), alone.stdout_text(), "{said}");
    assert!(said.contains("1 process still runs"), "{said}");
}

/// Signals arrive faster than gprofinject finds out whether they were sent to its group. It ends with the program all the same.
fn signals_that_do_not_cease() {
    let place = Place::new();
    let mut command = Command::new(tool::gprofinject().unwrap());
    command.args(["--no-cache", "-q", "-o", "gmon.out", "sh", "-c", "sleep 1; exit 3"]);
    let mut profiled = command.current_dir(place.folder.path()).spawn().unwrap();
    let pid = profiled.id().to_string();
    let until = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = profiled.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            profiled.kill().unwrap();
            panic!("gprofinject did not end");
        }
        Command::new("kill").args(["-CONT", &pid]).output().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(3));
}
