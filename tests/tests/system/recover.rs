//! Runs whose gprofinject is killed: nothing that was counted is lost.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gprofinject_abi::region::RegionHeader;
use gprofinject_tests::elf::Program;
use gprofinject_tests::gprofdata;
use gprofinject_tests::place::Place;
use gprofinject_tests::{tool, view};

gprofinject_tests::trials! {
    together:
        a_program_that_goes_on_writes_its_own_profile_at_its_end,
        a_killed_programs_profile_is_recovered, a_run_with_a_cache_is_recovered_without, a_damaged_region_gives_a_profile, no_symbolic_link_leads_to_a_run,
        what_cannot_be_recovered_is_left_alone,
        the_folder_stays_as_long_as_a_guest_counts_in_it;
}

/// Calls `step` a thousand times, prints "ready", waits for "go", and calls it 500 times more.
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

fn signal(which: &str, pid: &str) {
    assert!(Command::new("kill").args([which, pid]).status().unwrap().success());
}

struct Run {
    place: Place,
    command: Child,
}

impl Run {
    /// Starts the program and waits until it has printed "ready".
    fn start() -> Run {
        Run::of(WAITS, &[])
    }

    fn of(source: &str, args: &[&str]) -> Run {
        let place = Place::new();
        place.c("waits", source, &["-pthread"]);
        let mut command = place.command(&["-q", "./waits"]);
        command.args(args);
        Run::by(place, command)
    }

    /// The same by a command that runs the program in its place.
    fn by(place: Place, mut command: Command) -> Run {
        command.env("XDG_RUNTIME_DIR", place.folder.path()).stdin(Stdio::null());
        let command = command.spawn().unwrap();
        let ready = place.path("ready");
        wait_for("the program", || ready.exists());
        Run { place, command }
    }

    /// Kills gprofinject when it has the files of all forked children: until then, there are empty ones.
    fn kill_gprofinject(&mut self) {
        let folder = self.folder().unwrap();
        wait_for("the files of children", || {
            let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
            files.filter(|file| file.to_string_lossy().ends_with(".region")).all(|file| file.is_symlink())
        });
        self.command.kill().unwrap();
        self.command.wait().unwrap();
    }

    fn kill_program(&self) {
        let pid = fs::read_to_string(self.place.path("ready")).unwrap();
        signal("-9", &pid);
        let folder = PathBuf::from(format!("/proc/{pid}/exe"));
        wait_for("the program's end", || fs::read_link(&folder).is_err());
    }

    /// Returns the run folder, as long as it exists.
    fn folder(&self) -> Option<PathBuf> {
        let entries = fs::read_dir(self.place.folder.path()).unwrap();
        let mut paths = entries.map(|e| e.unwrap().path());
        paths.find(|p| p.file_name().unwrap().to_str().unwrap().starts_with("gprofinject-"))
    }

    fn recover(&self) -> (i32, String) {
        let folder = self.folder().unwrap();
        let outcome = self.place.run(&["--recover", folder.to_str().unwrap()]);
        (outcome.code(), outcome.stderr_text())
    }

    fn steps(&self) -> u64 {
        self.steps_in("gmon.out")
    }

    fn steps_in(&self, file: &str) -> u64 {
        view::apart(self.place.folder.path()).unwrap();
        let profile = gprofdata::read(&self.place.path(file)).unwrap();
        let program = Program::read(&self.place.path("waits")).unwrap();
        let step = program.named("step").unwrap().address;
        profile.arcs.iter().filter(|((_, callee), _)| *callee == step).map(|(_, count)| count).sum()
    }
}

/// After a failed test, no process may be left that has the test's own output open.
impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.command.kill();
        let _ = self.command.wait();
        let pids = fs::read_to_string(self.place.path("ready")).unwrap_or_default();
        for pid in pids.split_whitespace() {
            if fs::read(format!("/proc/{pid}/comm")).unwrap_or_default() == b"waits\n" {
                let _ = Command::new("kill").args(["-9", pid]).status();
            }
        }
    }
}

fn a_program_that_goes_on_writes_its_own_profile_at_its_end() {
    let mut run = Run::start();
    run.kill_gprofinject();
    let (status, said) = run.recover();
    assert_eq!((status, run.steps()), (0, 1000), "{said}");
    assert!(said.contains("some processes still run"), "{said}");
    fs::write(run.place.path("go"), "").unwrap();
    wait_for("the folder to go", || run.folder().is_none());
    assert!(run.place.path("done").exists());
    assert_eq!(run.steps(), 1500);
}

fn a_killed_programs_profile_is_recovered() {
    let mut run = Run::start();
    run.kill_gprofinject();
    run.kill_program();
    assert!(!run.place.path("gmon.out").exists());
    let (status, said) = run.recover();
    assert_eq!((status, run.steps()), (0, 1000), "{said}");
    assert!(run.folder().is_none(), "{said}");
}

/// The run knows its program by the version of the file. Recovery has no cache, and knows it nevertheless: the agent, which asks for it in
/// the end, hands on no variables.
fn a_run_with_a_cache_is_recovered_without() {
    let place = Place::new();
    place.c("waits", WAITS, &["-pthread"]);
    crate::cache::settle();
    let folder = place.folder.path().canonicalize().unwrap();
    let mut command = Command::new(tool::gprofinject().unwrap());
    command.args(["-q", "-o", "gmon.out", "./waits"]).current_dir(&folder).env_remove("GMON_OUT_PREFIX");
    command.env("XDG_CACHE_HOME", folder.join("caches"));
    let mut run = Run::by(place, command);
    run.kill_gprofinject();
    run.kill_program();
    let (status, said) = run.recover();
    assert_eq!((status, run.steps()), (0, 1000), "{said}");
}

/// The program can write to its counters until its end. Whatever it leaves there, a profile is written.
fn a_damaged_region_gives_a_profile() {
    const STATE: u64 = std::mem::offset_of!(RegionHeader, state) as u64;
    // The file is replaced by nothing, or by its header; or the word with the agent's state is set to zero.
    for (kept, zeroed) in [(0, 0..0), (4096, 0..0), (u64::MAX, STATE..STATE + 4)] {
        let mut run = Run::start();
        let path = run.folder().unwrap().join("0.region");
        let region = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        run.kill_gprofinject();
        // When the program has ended, the heir forbids writing.
        region.write_all_at(&vec![0; zeroed.clone().count()], zeroed.start).unwrap();
        run.kill_program();
        assert!(region.set_len(0).is_err(), "a file in memory cannot be truncated");
        if kept < u64::MAX {
            let mut bytes = vec![0; kept as usize];
            region.read_exact_at(&mut bytes, 0).unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(&path, bytes).unwrap();
        }
        // A process that has the file open for writing might count in it.
        drop(region);
        let (status, said) = run.recover();
        assert_eq!(status, 0, "{kept}: {said}");
        assert!(run.folder().is_none(), "{kept}: {said}");
        let mut gprof = Command::new("gprof");
        let shown =
            gprof.args(["-b", "waits", "gmon.out"]).current_dir(run.place.folder.path()).output().unwrap();
        assert!(shown.status.success() && shown.stderr.is_empty(), "{kept}: {shown:?}");
        if kept == u64::MAX {
            assert_eq!(run.steps(), 1000, "{said}");
        } else {
            assert!(said.contains("overwritten"), "{kept}: {said}");
        }
    }
}

/// A user who can change a link on the way to the folder could choose which run is recovered.
fn no_symbolic_link_leads_to_a_run() {
    let mut run = Run::start();
    run.kill_gprofinject();
    run.kill_program();
    let folder = run.folder().unwrap();
    let name = folder.file_name().unwrap().to_str().unwrap();
    symlink(&folder, run.place.path("link")).unwrap();
    symlink(run.place.folder.path(), run.place.path("above")).unwrap();
    for link in ["link", &format!("above/{name}")] {
        let outcome = run.place.run(&["--recover", link]);
        let said = outcome.stderr_text();
        assert_eq!(outcome.code(), 125, "{said}");
        assert!(said.contains("leads through a symbolic link to") && said.contains(name), "{said}");
    }
    let place = run.place.folder.path().file_name().unwrap();
    let outcome = run.place.run(&["--recover", &format!("./../{}/{name}/.", place.to_str().unwrap())]);
    assert_eq!((outcome.code(), run.steps()), (0, 1000), "{}", outcome.stderr_text());
}

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
    assert!(said.contains("is no longer the file that was run"), "{said}");
    assert!(run.folder().is_some() && !run.place.path("gmon.out").exists());
    // A folder that is not a run folder.
    let outcome = run.place.run(&["--recover", "/etc"]);
    assert_eq!(outcome.code(), 125);
    assert!(outcome.stderr_text().contains("/etc is not the folder of a run"), "{}", outcome.stderr_text());
}

/// A child that does what the argument says, so that its own child cannot reach the run folder, counts in its
/// parent's file, and outlives the parent. "ready" has the numbers of both processes that stay; SIGUSR1 makes
/// them continue.
const LEAVES_A_GUEST: &str = r#"
#define _GNU_SOURCE
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
volatile int sink;
__attribute__((noipa)) void step(void) { sink++; }
static void steps(int n) { while (n--) step(); }
static void pause_here(void) {
    sigset_t set;
    int got;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigwait(&set, &got);
}
static void *goes_on(void *p) {
    pause_here();
    steps(500);
    _exit(0);
}
static int change(const char *way) {
    struct rlimit none = {3, 3};
    if (!strcmp(way, "chroot")) return mkdir("root", 0777) || chroot("root");
    if (!strcmp(way, "nobody")) return setgroups(0, 0) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534);
    if (!strcmp(way, "newpid")) return unshare(CLONE_NEWPID);
    return setrlimit(RLIMIT_NOFILE, &none);
}
int main(int argc, char **argv) {
    sigset_t set;
    int ready[2];
    char c;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, 0);
    pipe(ready);
    steps(1000);
    FILE *f = fopen("pids", "w");
    fprintf(f, "%d ", getpid());
    fflush(f);
    if (!fork()) {
        steps(10);
        if (change(argv[1])) _exit(99);
        pid_t guest = fork();
        if (guest) {
            fprintf(f, "%d", guest);
            fclose(f);
            _exit(0);
        }
        steps(7);
        write(ready[1], "", 1);
        // Its first thread ends: /proc/PID/maps is empty from then on.
        pthread_t t;
        pthread_create(&t, 0, goes_on, 0);
        syscall(SYS_exit, 0); // pthread_exit would load a library
    }
    int status;
    wait(&status);
    if (status) return 98;
    read(ready[0], &c, 1);
    rename("pids", "ready");
    pause_here();
    return 4;
}
"#;

fn the_folder_stays_as_long_as_a_guest_counts_in_it() {
    // The runs wait most of the time.
    std::thread::scope(|scope| {
        // The last one has a file of its own, but another number there.
        for way in ["nofile", "chroot", "nobody", "newpid"] {
            scope.spawn(move || guest_outlives(way));
        }
    });
}

fn guest_outlives(way: &str) {
    let mut run = Run::of(LEAVES_A_GUEST, &[way]);
    let pids = fs::read_to_string(run.place.path("ready")).unwrap();
    let (first, guest) = pids.split_once(' ').unwrap();
    run.kill_gprofinject();
    // At its end it makes `--recover` write the profiles: its own, and that of its child, which has ended.
    signal("-USR1", first);
    let own = run.place.path("gmon.out");
    wait_for("the first process's profile", || own.exists());
    let recover = || {
        let mut answer = (125, String::new());
        wait_for("the lock", || {
            answer = run.recover();
            !answer.1.contains("belongs to a gprofinject that still runs")
        });
        answer
    };
    let (status, said) = recover();
    assert_eq!((status, run.steps()), (0, 1000), "{way}: {said}");
    assert!(said.contains("some processes still run"), "{way}: {said}");
    let file = format!("gmon.out.{}", if way == "newpid" { "1" } else { guest });
    assert_eq!(run.steps_in(&file), 7, "{way}: {said}");
    signal("-USR1", guest);
    let process = PathBuf::from(format!("/proc/{guest}/task"));
    wait_for("the guest's end", || !process.exists() || is_zombie(guest));
    let (status, said) = recover();
    assert_eq!((status, run.steps_in(&file)), (0, 507), "{way}: {said}");
    assert!(run.folder().is_none(), "{way}: {said}");
}

/// No process may wait for it here.
fn is_zombie(pid: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut states = tasks.map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default());
    states.all(|stat| stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z')))
}
