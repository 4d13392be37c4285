//! Runs whose gprofinject is killed: nothing that was counted is lost.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gprofinject_tests::elf::Program;
use gprofinject_tests::gprofdata;
use gprofinject_tests::place::Place;

/// Calls `step` a thousand times, says "ready", waits for "go", calls it 500 times more.
const WAITS: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
volatile int sink;
__attribute__((noipa)) void step(void) { sink++; }
int main(void) {
    for (int i = 0; i < 1000; i++) step();
    FILE *f = fopen("pid.new", "w");
    fprintf(f, "%d", getpid());
    fclose(f);
    rename("pid.new", "ready");
    while (access("go", F_OK)) usleep(1000);
    for (int i = 0; i < 500; i++) step();
    fclose(fopen("done", "w"));
    return 4;
}
"#;

const PATIENCE: Duration = Duration::from_secs(20);

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Run {
    place: Place,
    command: Child,
}

impl Run {
    /// The program is in its pause.
    fn start() -> Run {
        let place = Place::new();
        place.c("waits", WAITS, &[]);
        let mut command = place.command(&["-q", "./waits"]);
        command.env("XDG_RUNTIME_DIR", place.folder.path()).stdin(Stdio::null());
        let command = command.spawn().unwrap();
        let ready = place.path("ready");
        wait_for("the program", || ready.exists());
        Run { place, command }
    }

    fn kill_gprofinject(&mut self) {
        self.command.kill().unwrap();
        self.command.wait().unwrap();
    }

    fn kill_program(&self) {
        let pid = fs::read_to_string(self.place.path("ready")).unwrap();
        assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
        let folder = PathBuf::from(format!("/proc/{pid}/exe"));
        wait_for("the program's end", || fs::read_link(&folder).is_err());
    }

    fn folder(&self) -> Option<PathBuf> {
        let mut entries = fs::read_dir(self.place.folder.path()).unwrap();
        entries.find_map(|e| Some(e.unwrap().path()).filter(|p| p.is_dir()))
    }

    fn recover(&self) -> (i32, String) {
        let folder = self.folder().unwrap();
        let outcome = self.place.run(&["--recover", folder.to_str().unwrap()]);
        (outcome.code(), outcome.stderr_text())
    }

    fn steps(&self) -> u64 {
        let profile = gprofdata::read(&self.place.path("gmon.out")).unwrap();
        let program = Program::read(&self.place.path("waits")).unwrap();
        let step = program.named("step").unwrap().address;
        profile.arcs.iter().filter(|((_, callee), _)| *callee == step).map(|(_, count)| count).sum()
    }
}

#[test]
fn a_program_that_goes_on_writes_its_own_profile_at_its_end() {
    let mut run = Run::start();
    run.kill_gprofinject();
    let (status, said) = run.recover();
    assert_eq!((status, run.steps()), (0, 1000), "{said}");
    assert!(said.contains("1 processes still run"), "{said}");
    fs::write(run.place.path("go"), "").unwrap();
    wait_for("the folder to go", || run.folder().is_none());
    assert!(run.place.path("done").exists());
    assert_eq!(run.steps(), 1500);
}

#[test]
fn a_killed_programs_profile_is_recovered() {
    let mut run = Run::start();
    run.kill_gprofinject();
    run.kill_program();
    assert!(!run.place.path("gmon.out").exists());
    let (status, said) = run.recover();
    assert_eq!((status, run.steps()), (0, 1000), "{said}");
    assert!(run.folder().is_none(), "{said}");
}

#[test]
fn what_cannot_be_recovered_is_left_alone() {
    let mut run = Run::start();
    let (status, said) = run.recover();
    assert_eq!(status, 125);
    assert!(said.contains("belongs to a gprofinject that still runs"), "{said}");
    run.kill_gprofinject();
    run.kill_program();
    // Another program under the same name.
    run.place.c("waits", &WAITS.replace("500", "501").replace("sink++", "sink += 2 * sink"), &["-O2"]);
    let (status, said) = run.recover();
    assert_eq!(status, 125, "{said}");
    assert!(said.contains("is not the file any more that was run"), "{said}");
    assert!(run.folder().is_some() && !run.place.path("gmon.out").exists());
    // And what is none.
    let outcome = run.place.run(&["--recover", "/etc"]);
    assert_eq!(outcome.code(), 125);
    assert!(outcome.stderr_text().contains("/etc is not the folder of a run"), "{}", outcome.stderr_text());
}
