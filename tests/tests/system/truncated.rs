//! Programs that truncate or remove every file of gprofinject's that they can open: they go on as without gprofinject, and what they
//! count is there.

use std::fs;
use std::path::Path;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::elf::Program;
use gprofinject_tests::gprofdata;
use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::run::{self, Outcome};
use gprofinject_tests::view;

gprofinject_tests::trials! {
    together:
        files_are_truncated, files_are_removed, files_of_a_running_process_are_truncated,
        a_process_that_cannot_follow_links_has_its_files, counters_are_not_in_core_dumps;
}

/// Calls `step`, does what the second argument says to all files below the folder that the first one names, to those that the process
/// has mapped, and to those that it has open, as far as gprofinject has made them; calls `step` again, and `later` for the first time, also
/// in a thread, a forked child and an executed program. The file "log" says what could be opened, and whether it could be truncated.
const CUTS: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
volatile int sink;
__attribute__((noipa)) void step(void) { sink++; }
__attribute__((noipa)) void later(void) { sink--; }
static FILE *log_file;
/* What a link leads to, or the path itself. */
static const char *target_of(const char *path) {
    static char target[PATH_MAX];
    ssize_t len = readlink(path, target, sizeof target - 1);
    if (len < 0) return path;
    target[len] = 0;
    return target;
}
static void cut(const char *path) {
    /* Root can truncate the library from which it executes code. */
    if (strstr(target_of(path), ".so") && !geteuid()) return;
    int fd = open(path, O_WRONLY | O_NONBLOCK);
    if (fd < 0) return;
    fprintf(log_file, "%s %d\n", path, ftruncate(fd, 0));
    close(fd);
    close(open(path, O_WRONLY | O_NONBLOCK | O_TRUNC));
}
static void cut_below(const char *folder, const char *wanted) {
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.') continue;
        if (entry->d_type == DT_DIR) cut_below(path, wanted);
        else if (strstr(target_of(path), wanted)) cut(path);
    }
    if (entries) closedir(entries);
}
static void cut_mapped(void) {
    char line[PATH_MAX + 100];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/');
        if (!path || !strstr(path, "/gprofinject-")) continue;
        path[strcspn(path, "\n")] = 0;
        cut(path);
    }
    fclose(maps);
}
static void *in_thread(void *unused) {
    for (int i = 0; i < 20; i++) step(), later();
    return 0;
}
int main(int argc, char **argv) {
    struct timespec pause = {0, 1000000};
    if (!strcmp(argv[2], "again")) return in_thread(0), 7;
    for (int i = 0; i < 1000; i++) step();
    if (!strcmp(argv[2], "wait")) {
        fclose(fopen("ready", "w"));
        while (access("go", F_OK)) step(), nanosleep(&pause, 0);
    }
    if (!strcmp(argv[2], "remove")) {
        char command[PATH_MAX];
        snprintf(command, sizeof command, "rm -rf %s/*", argv[1]);
        system(command);
    } else {
        log_file = fopen("log", "w");
        /* A link to the command gprofinject is not followed. */
        cut_below(argv[1], "/proc/");
        cut_below(argv[1], argv[1]);
        cut_mapped();
        cut_below("/proc/self/fd", "/gprofinject-");
        cut_below("/proc/self/map_files", "/gprofinject-");
        fclose(log_file);
    }
    for (int i = 0; i < 500; i++) step();
    for (int i = 0; i < 300; i++) later();
    pthread_t thread;
    pthread_create(&thread, 0, in_thread, 0);
    pthread_join(thread, 0);
    fflush(stdout);
    int status, again;
    if (!fork()) {
        for (int i = 0; i < 7; i++) step();
        _exit(3);
    }
    wait(&status);
    if (!fork()) {
        execl(argv[0], argv[0], argv[1], "again", NULL);
        _exit(9);
    }
    wait(&again);
    printf("%d %d\n", WEXITSTATUS(status), WEXITSTATUS(again));
    fprintf(stderr, "done\n");
    return 5;
}
"#;

/// The files of a run that its program can reach: a folder in memory, as /dev/shm is one, for this test alone.
fn memory_folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("truncated-").tempdir_in("/dev/shm").unwrap()
}

/// Runs the program with gprofinject, and alone, and compares. Returns what gprofinject has said.
fn goes_on(place: &Place, files: &Path, way: &str) -> String {
    place.c("cuts", CUTS, &["-pthread"]);
    let arguments = [files.to_str().unwrap(), way];
    let mut alone = Command::new("./cuts");
    alone.args(arguments).current_dir(place.folder.path());
    let alone = run::run(alone, None, gprofinject_tests::place::LIMIT).unwrap();
    assert_eq!((alone.code(), alone.stdout_text().as_str()), (5, "3 7\n"), "{}", alone.stderr_text());
    let mut command = place.command(&["--rate", "0", "./cuts"]);
    command.args(arguments).env("XDG_RUNTIME_DIR", files);
    let outcome = finish(command);
    let said = outcome.stderr_text();
    assert_eq!((outcome.code(), outcome.stdout_text()), (5, alone.stdout_text()), "{said}");
    assert!(said.contains("done\n") && said.contains("next: gmon"), "{said}");
    assert!(!said.contains("ld.so") && !said.contains("lost") && !said.contains("overwritten"), "{said}");
    assert_eq!(fs::read_dir(files).unwrap().count(), 0, "the run folder is gone: {said}");
    said
}

/// Returns how often the functions `step` and `later` were called, by a profile.
fn calls(place: &Place, file: &str) -> [u64; 2] {
    view::apart(place.folder.path()).unwrap();
    let profile = gprofdata::read(&place.path(file)).unwrap();
    let program = Program::read(&place.path("cuts")).unwrap();
    ["step", "later"].map(|name| {
        let function = program.named(name).unwrap().address;
        profile.arcs.iter().filter(|((_, callee), _)| *callee == function).map(|(_, count)| count).sum()
    })
}

/// Returns the names of the files that the program could open, each with whether it could truncate it.
fn log(place: &Place) -> Vec<(String, bool)> {
    let log = fs::read_to_string(place.path("log")).unwrap();
    let entries = log.lines().map(|line| line.rsplit_once(' ').unwrap());
    entries.map(|(path, result)| (path.rsplit('/').next().unwrap().to_owned(), result == "0")).collect()
}

fn files_are_truncated() {
    let (place, files) = (Place::new(), memory_folder());
    let said = goes_on(&place, files.path(), "truncate");
    let log = log(&place);
    let could = |name: &str| log.iter().filter(|(file, _)| file == name).map(|(_, could)| *could).next();
    assert_eq!(could("libgprofinject.so"), None, "{log:?}");
    for name in ["0.region", "0.plan"] {
        assert_eq!(could(name), Some(false), "{name}: {log:?}");
    }
    // The calls of the forked child and those of the executed program as well.
    assert_eq!(calls(&place, "gmon.out"), [1547, 340], "{said}");
}

/// Children that begin later count in their parent's file. Programs that are executed later are not followed, because the socket is gone
/// as well.
fn files_are_removed() {
    let (place, files) = (Place::new(), memory_folder());
    let said = goes_on(&place, files.path(), "remove");
    assert!(said.contains("were not followed"), "{said}");
    assert_eq!(calls(&place, "gmon.out"), [1527, 320], "{said}");
}

fn files_of_a_running_process_are_truncated() {
    let (place, files) = (Place::new(), memory_folder());
    place.c("cuts", CUTS, &["-pthread"]);
    let mut program = Command::new("./cuts");
    program.args([files.path().to_str().unwrap(), "wait"]).current_dir(place.folder.path());
    let mut program = program.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut command = place.command(&["--rate", "0", "--pid", &program.id().to_string()]);
    command.env("XDG_RUNTIME_DIR", files.path());
    let go = place.path("go");
    let outcome: Outcome = std::thread::scope(|scope| {
        let attached = scope.spawn(|| finish(command));
        let maps = format!("/proc/{}/maps", program.id());
        while !attached.is_finished() && !fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("0.region")) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // The hooks are in place soon after.
        std::thread::sleep(std::time::Duration::from_millis(500));
        fs::write(&go, "").unwrap();
        attached.join().unwrap()
    });
    assert_eq!(program.wait().unwrap().code(), Some(5), "{}", outcome.stderr_text());
    let said = outcome.stderr_text();
    assert!(outcome.code() == 0 && said.contains("next: gmon") && !said.contains("overwritten"), "{said}");
    let log = log(&place);
    assert!(log.iter().any(|(file, could)| file == "0.region" && !could), "{log:?}");
    let [steps, later] = calls(&place, "gmon.out");
    assert!(steps >= 520 && later == 320, "{steps} {later}: {said}");
}

/// A process without the capabilities of gprofinject may not follow links through the folder of gprofinject's heir in /proc.
fn a_process_that_cannot_follow_links_has_its_files() {
    if !skip::have("setpriv") || !is_root() {
        return skip::skipped("truncated: links", "no setpriv, or no capabilities");
    }
    let (place, files) = (Place::new(), memory_folder());
    place.c("cuts", CUTS, &["-pthread"]);
    let mut command = place.command(&["--rate", "0", "sh", "-c"]);
    command.arg("for n in 1 2; do setpriv --bounding-set=-all --inh-caps=-all ./cuts \"$0\" again; done").arg(files.path());
    command.env("XDG_RUNTIME_DIR", files.path());
    let outcome = finish(command);
    assert_eq!(outcome.code(), 7, "{}", outcome.stderr_text());
    assert_eq!(calls(&place, "gmon.out.cuts"), [40, 40], "{}", outcome.stderr_text());
}

/// A memory file has no name, so the kernel would take the files for memory of the program, and would fill them where they are sparse.
fn counters_are_not_in_core_dumps() {
    const SHOWS: &str = r#"
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
volatile int sink;
__attribute__((noipa)) void step(void) { sink++; }
static int show(void) {
    char line[4096];
    step();
    FILE *maps = fopen("/proc/self/smaps", "r");
    while (fgets(line, sizeof line, maps)) fputs(line, stdout);
    return fflush(stdout);
}
int main(void) {
    show();
    if (!fork()) _exit(show());
    wait(0);
}
"#;
    let place = Place::new();
    place.c("shows", SHOWS, &[]);
    let outcome = place.run(&["-q", "--rate", "0", "--times", "./shows"]);
    let shown = outcome.stdout_text();
    let mut names = Vec::new();
    let mut file = None;
    for line in shown.lines() {
        if line.contains(".region") {
            file = line.rsplit('/').next();
        } else if let (Some(flags), Some(name)) = (line.strip_prefix("VmFlags:"), file.take_if(|_| line.starts_with("VmFlags"))) {
            assert!(flags.split(' ').any(|flag| flag == "dd"), "{name}: {flags}");
            names.push(name);
        }
    }
    assert!(names.iter().any(|name| name.starts_with("0.region")), "{shown}");
    assert!(names.iter().any(|name| name.starts_with('f')), "{shown}");
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::metadata("/proc/self").unwrap().uid() == 0
}
