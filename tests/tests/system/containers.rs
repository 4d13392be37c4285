//! Attaching to programs in containers, and to others with seccomp filters. The filters end a program at each call that they refuse.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};

use gprofinject_skip as skip;
use gprofinject_tests::attached::Subject;
use gprofinject_tests::container::{self, Kind, Refusal};
use gprofinject_tests::place::{self, Place, complains};
use gprofinject_tests::elf::Program;
use gprofinject_tests::{gprofdata, measured, tool};

use crate::attach::{again_and_again, cycles};
use crate::libraries::{has, whole};

gprofinject_tests::trials! {
    together:
        counts_are_exact,
        libraries_that_are_loaded_later,
        numbers_in_a_container,
        filters_that_leave_no_way,
        a_filter_of_one_thread,
        strict_mode,
        calls_that_are_refused_are_not_made,
        a_program_that_enters_seccomp_while_it_is_profiled,
        filters_that_cannot_be_read,
        a_program_in_a_container_of_gprofinjects_own,
        files_of_nobody_in_a_container;
    busy:
        under_load,
        static_programs_under_load;
}

/// Calls `work` for each kind of container that can be made here.
fn each(test: &str, work: impl Fn(Kind)) {
    for kind in [Kind::Filter, Kind::Namespaces, Kind::Rootless] {
        match container::impossible(kind) {
            None => work(kind),
            Some(why) => skip::skipped(&format!("{test} {kind:?}"), &why),
        }
    }
}

/// A program in a container is profiled from outside of it, and then is as it was before.
fn counts_are_exact() {
    each("counts_are_exact", |kind| {
        let mut subject = Subject::contained("", &["-O2"], kind);
        let before = subject.code();
        subject.step(1000);
        for (n, hooks) in [(1, "--hooks=both"), (100, "--hooks=entry"), (12_345, "--hooks=both")] {
            for libraries in ["--libs=none", "--libs=all"] {
                let attached = subject.attached(&["-v", hooks, libraries]);
                subject.step(n);
                subject.ask("--pause");
                subject.step(77);
                subject.ask("--resume");
                subject.step(n);
                subject.ask("--dump");
                assert_eq!(subject.calls("step"), 2 * u64::from(n), "{kind:?} {hooks} {libraries}");
                let (status, said) = attached.end("-INT");
                let calls = (status, subject.calls("step"));
                assert_eq!(calls, (Some(0), 2 * u64::from(n)), "{kind:?} {hooks} {libraries}: {said}");
                subject.step(1000);
                assert!(subject.is_clean(), "{kind:?} {hooks} {libraries}: {said}");
                assert_eq!(subject.changed(&before), None, "{kind:?} {hooks} {libraries}: {said}");
            }
        }
        subject.finish();
    });
}

/// The process asks gprofinject about them, which has another user there, another network and no process number.
fn libraries_that_are_loaded_later() {
    each("libraries_that_are_loaded_later", |kind| {
        let place = Place::new();
        place.c("later.so", "__attribute__((noipa)) int later(int x) { return x + 1; }", &["-shared", "-fPIC"]);
        place.c(
            "prog",
            "#include <dlfcn.h>\n#include <stdio.h>\n\
             int main(void) {\n\
                 char line[16];\n\
                 puts(\"ready\"); fflush(stdout);\n\
                 while (fgets(line, sizeof line, stdin)) {\n\
                     int (*later)(int) = dlsym(dlopen(\"./later.so\", RTLD_NOW), \"later\"), x = 0;\n\
                     for (int i = 0; i < 1000; i++) x = later(x);\n\
                     puts(x == 1000 ? \"done\" : \"wrong\"); fflush(stdout);\n\
                 }\n\
             }",
            &["-ldl"],
        );
        let mut command = Command::new(place.path("prog"));
        command.current_dir(place.folder.path());
        let mut subject = Subject::start_contained(place, command, kind);
        let attached = subject.attached(&["-v", "--libs=all"]);
        subject.step(1);
        let (status, said) = attached.end("-INT");
        assert_eq!(status, Some(0), "{kind:?} {said}");
        has(&whole(&subject.place), &[("main", "later", 1000)], &format!("{kind:?} {said}"));
        assert!(subject.is_clean(), "{kind:?} {said}");
        subject.finish();
    });
}

/// A number that only a process in a container has stands for that process; one that processes of several containers have does not.
fn numbers_in_a_container() {
    let test = "numbers_in_a_container";
    if !skip::have("unshare") || container::impossible(Kind::Namespaces).is_some() {
        return skip::skipped(test, "no PID namespace can be made");
    }
    let is_free = |number: &u32| !fs::exists(format!("/proc/{number}")).unwrap();
    let number = (2000..32_000).rev().find(is_free).unwrap();
    let script = format!("echo {} >/proc/sys/kernel/ns_last_pid || exit; sleep 60 & echo ready; wait", number - 1);
    let start = || {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &script]).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (child, line == "ready\n")
    };
    let end = |mut child: Child| {
        child.kill().unwrap();
        child.wait().unwrap();
    };
    let attach = || Place::new().run(&["--pid", &number.to_string(), "--duration", "0"]);
    let (first, is_first_ready) = start();
    let of_one = attach();
    let (second, is_second_ready) = start();
    let of_two = attach();
    end(first);
    end(second);
    if !is_first_ready || !is_second_ready || !is_free(&number) {
        return skip::skipped(test, "the next process's number cannot be chosen");
    }
    let said = of_one.stderr_text();
    assert_eq!(of_one.code(), 0, "{said}");
    assert!(said.contains(&format!("process {number} of a container is process ")) && said.contains("(sleep) here"), "{said}");
    complains(&of_two, 125, &format!("there is no process {number} here; in containers, these are processes "));
    complains(&of_two, 125, "(sleep)");
}

/// Threads are made, children forked, programs executed and exceptions thrown meanwhile.
fn under_load() {
    each("under_load", |kind| {
        again_and_again(Subject::contained("axtfvbs", &[], kind), "axtfvbs", &[], cycles(6));
        again_and_again(Subject::contained("at", &[], kind), "at", &["--libs=all"], cycles(3));
    });
}

/// The agent compares the numbers of threads with those that the kernel tells the threads.
fn static_programs_under_load() {
    each("static_programs_under_load", |kind| {
        again_and_again(Subject::contained("at", &["-static"], kind), "at", &[], cycles(4));
    });
}

/// A program that installs a filter, prints a line, and then counts lines until its input ends. The filter ends it at the system calls
/// whose numbers are its arguments: for "thread", in another thread; for "strict", the other thread may only read and write; and with
/// "executable" before a number only if the third argument of the call has the bit of PROT_EXEC, and with "noreplace" if the fourth one
/// has that of MAP_FIXED_NOREPLACE. With "later", it installs the filter when it gets the line "f".
const SUBJECT: &str = r#"
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <errno.h>
volatile int sink;
__attribute__((noipa)) void step(void) { sink++; }
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RETURN(action) BPF_STMT(BPF_RET | BPF_K, action)
static void install(int bits, unsigned number) {
    unsigned argument = offsetof(struct seccomp_data, args[bits > 4 ? 3 : 2]);
    struct sock_filter filter[] = {
        LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 1, 0), RETURN(SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument), BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0),
        RETURN(bits ? SECCOMP_RET_ALLOW : SECCOMP_RET_KILL_PROCESS), RETURN(SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) _exit(99);
}
static int count; static char **arguments; static pthread_barrier_t ready;
static void all(int first) {
    int bits = 0;
    for (int i = first; i < count; i++) {
        if (!strcmp(arguments[i], "executable")) bits = 4;
        else if (!strcmp(arguments[i], "noreplace")) bits = 0x100000;
        else { install(bits, atoi(arguments[i])); bits = 0; }
    }
}
static void *other(void *strict) {
    if (strict) { pthread_barrier_wait(&ready); usleep(100000); syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT); for (;;) ; }
    all(2);
    pthread_barrier_wait(&ready);
    for (;;) pause();
}
int main(int argc, char **argv) {
    count = argc; arguments = argv;
    setlinebuf(stdout);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    int in_thread = argc > 1 && (!strcmp(argv[1], "thread") || !strcmp(argv[1], "strict"));
    if (in_thread) {
        pthread_t t;
        pthread_barrier_init(&ready, 0, 2);
        pthread_create(&t, 0, other, argv[1][0] == 's' ? argv : 0);
        pthread_barrier_wait(&ready);
        if (argv[1][0] == 's') usleep(300000);
    } else if (argc > 1 && strcmp(argv[1], "later")) all(1);
    printf("ready\n");
    char line[16];
    int lines = 0;
    while (fgets(line, sizeof line, stdin)) { step(); lines++; if (line[0] == 'f') all(2); if (line[0] == 'x') printf("%d lines\n", lines); }
    printf("%d lines\n", lines);
    fflush(stdout);
    syscall(SYS_exit_group, lines);
}
"#;

/// The running program. It is killed when this is dropped.
struct Filtered {
    place: Place,
    child: Child,
    stdout: BufReader<ChildStdout>,
    lines: u32,
}

impl Filtered {
    fn new(arguments: &[&str]) -> Filtered {
        let place = Place::new();
        place.c("subject", SUBJECT, &["-pthread"]);
        let mut command = Command::new(place.path("subject"));
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{arguments:?}");
        Filtered { place, child, stdout, lines: 0 }
    }

    /// Makes the program call `step` so many times, and waits until it has.
    fn step(&mut self, times: u32) {
        let lines = "a\n".repeat(times as usize - 1) + "x\n";
        self.child.stdin.as_mut().unwrap().write_all(lines.as_bytes()).unwrap();
        self.lines += times;
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line, format!("{} lines\n", self.lines));
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    /// Attaches, and returns gprofinject with what it says.
    fn attach(&self, options: &[&str]) -> (Child, BufReader<ChildStderr>, String) {
        let mut command = self.place.command(&["--rate", "0", "--pid", &self.pid(), "-v", "-o", "profile"]);
        command.args(options).stderr(Stdio::piped());
        let mut command = command.spawn().unwrap();
        let mut stderr = BufReader::new(command.stderr.take().unwrap());
        let mut said = String::new();
        while !said.contains("Ctrl-C") {
            assert!(stderr.read_line(&mut said).unwrap() > 0, "not attached: {said}");
        }
        (command, stderr, said)
    }

    /// Returns how often `step` was called, by the profile.
    fn calls(&self) -> u64 {
        let profile = gprofdata::read(&self.place.path("profile")).unwrap();
        let step = Program::read(&self.place.path("subject")).unwrap().named("step").unwrap().address;
        profile.arcs.iter().filter(|((_, to), _)| *to == step).map(|(_, count)| count).sum()
    }

    /// Checks that gprofinject does not attach, for this reason, and that the program runs as before.
    fn refuses(mut self, about: &str) {
        let maps = || fs::read_to_string(format!("/proc/{}/maps", self.pid())).unwrap();
        let before = maps();
        let outcome = self.place.run(&["--pid", &self.pid(), "--duration", "0", "-o", "profile"]);
        complains(&outcome, 125, about);
        assert_eq!(outcome.stderr_text().lines().count(), 1, "{}", outcome.stderr_text());
        assert!(!self.place.path("profile").exists());
        assert_eq!(before, maps());
        self.step(3);
        self.ends();
    }

    /// Closes the program's input, and checks how it ends.
    fn ends(mut self) {
        drop(self.child.stdin.take());
        assert_eq!(self.child.wait().unwrap().code(), Some(self.lines as i32 & 0xff));
    }
}

impl Drop for Filtered {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(of: libc::c_long) -> String {
    of.to_string()
}

fn filters_that_leave_no_way() {
    for (call, name) in [
        (libc::SYS_mmap, "mmap"),
        (libc::SYS_munmap, "munmap"),
        (libc::SYS_mprotect, "mprotect"),
        (libc::SYS_recvmsg, "recvmsg"),
        (libc::SYS_getpid, "getpid"),
    ] {
        Filtered::new(&[&number(call)]).refuses(&format!("does not allow the system call {name},"));
    }
    let executable = Filtered::new(&["executable", &number(libc::SYS_mprotect)]);
    executable.refuses("does not allow the system call mprotect to make memory executable");
    // All filters count.
    let both = Filtered::new(&[&number(libc::SYS_mremap), &number(libc::SYS_kcmp)]);
    both.refuses("does not allow the system call mremap,");
}

/// Any thread may make the agent's system calls.
fn a_filter_of_one_thread() {
    Filtered::new(&["thread", &number(libc::SYS_mmap)]).refuses("does not allow the system call mmap,");
}

fn strict_mode() {
    Filtered::new(&["strict"]).refuses("is in seccomp's strict mode");
}

/// The agent does without those calls that it does not need.
fn calls_that_are_refused_are_not_made() {
    let all: Vec<String> = [
        libc::SYS_pause,
        libc::SYS_kcmp,
        libc::SYS_prlimit64,
        libc::SYS_process_vm_readv,
        libc::SYS_open,
        libc::SYS_openat,
        libc::SYS_stat,
        libc::SYS_fstat,
        libc::SYS_fcntl,
        libc::SYS_tgkill,
        libc::SYS_tkill,
        libc::SYS_getrusage,
        libc::SYS_sigaltstack,
        libc::SYS_sched_yield,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigaction,
        libc::SYS_prctl,
        libc::SYS_arch_prctl,
        libc::SYS_socket,
        libc::SYS_connect,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
        libc::SYS_ppoll,
        libc::SYS_nanosleep,
        libc::SYS_memfd_create,
        libc::SYS_ftruncate,
        libc::SYS_clone,
        libc::SYS_fork,
        libc::SYS_execve,
        libc::SYS_timer_create,
        libc::SYS_madvise,
    ]
    .map(number)
    .to_vec();
    let mut arguments: Vec<&str> = all.iter().map(String::as_str).collect();
    // As in the sandbox of Chromium's renderers.
    let mmap = number(libc::SYS_mmap);
    arguments.extend(["noreplace", &mmap]);
    // The last filter forbids further ones.
    let last = number(libc::SYS_seccomp);
    arguments.push(&last);
    let mut filtered = Filtered::new(&arguments);
    for options in [&[][..], &["--libs=all", "--times"], &["--hooks=entry"], &["--paths"]] {
        let (mut command, mut stderr, mut said) = filtered.attach(options);
        filtered.step(1234);
        assert!(Command::new("kill").args(["-INT", &command.id().to_string()]).status().unwrap().success());
        while stderr.read_line(&mut said).unwrap() > 0 {}
        assert_eq!(command.wait().unwrap().code(), Some(0), "{options:?} {said}");
        assert_eq!(filtered.calls(), 1234, "{options:?} {said}");
        let maps = fs::read_to_string(format!("/proc/{}/maps", filtered.pid())).unwrap();
        assert!(!maps.contains("gprofinject"), "{options:?} {said}");
    }
    filtered.step(3);
    filtered.ends();
}

/// The agent makes no system calls of its own any more, except those that lead out of the process, if the filter allows these.
fn a_program_that_enters_seccomp_while_it_is_profiled() {
    for (call, is_left) in [(libc::SYS_kcmp, true), (libc::SYS_pause, true), (libc::SYS_mprotect, false)] {
        for is_paused in [false, true] {
            let mut filtered = Filtered::new(&["later", &number(call)]);
            let (mut command, mut stderr, mut said) = filtered.attach(&[]);
            filtered.step(100);
            if is_paused {
                let outcome = filtered.place.run(&["--pid", &filtered.pid(), "--pause"]);
                assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
            }
            filtered.child.stdin.as_mut().unwrap().write_all(b"f\n").unwrap();
            filtered.lines += 1;
            filtered.step(100);
            assert!(Command::new("kill").args(["-INT", &command.id().to_string()]).status().unwrap().success());
            while stderr.read_line(&mut said).unwrap() > 0 {}
            let status = command.wait().unwrap().code();
            assert_eq!(status, Some(if is_left { 0 } else { 125 }), "{call} {is_paused} {said}");
            assert_eq!(filtered.calls(), if is_paused { 100 } else { 201 }, "{call} {is_paused} {said}");
            let maps = fs::read_to_string(format!("/proc/{}/maps", filtered.pid())).unwrap();
            assert_eq!(maps.contains("gprofinject"), !is_left, "{call} {is_paused} {said}");
            assert!(is_left || said.contains("does not allow the system call mprotect"), "{said}");
            filtered.step(3);
            filtered.ends();
        }
    }
}

/// Without CAP_SYS_ADMIN, the kernel shows no filters.
fn filters_that_cannot_be_read() {
    if !skip::have("setpriv") || !Command::new("id").arg("-u").output().unwrap().stdout.starts_with(b"0\n") {
        return skip::skipped("filters_that_cannot_be_read", "only root can try");
    }
    let mut filtered = Filtered::new(&[&number(libc::SYS_kcmp)]);
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]).arg(tool::gprofinject().unwrap());
    command.args(["--pid", &filtered.pid(), "--duration", "0", "-o", "profile"]).current_dir(filtered.place.folder.path());
    let outcome = place::finish(command);
    if outcome.stderr_text().contains("setpriv") {
        return skip::skipped("filters_that_cannot_be_read", outcome.stderr_text().trim());
    }
    complains(&outcome, 125, "which only root outside of all containers can read");
    filtered.step(3);
    filtered.ends();
}

/// gprofinject runs in a container itself, starts a program there, and may do with it what the program may do.
fn a_program_in_a_container_of_gprofinjects_own() {
    let work = |kind| {
        let place = Place::new();
        place.c(
            "program",
            "#include <sys/wait.h>\n#include <unistd.h>\n\
             __attribute__((noipa)) void step(void) {}\n\
             int main(void) { for (int i = 0; i < 1000; i++) step(); if (!fork()) { step(); _exit(0); } wait(0); return 3; }",
            &[],
        );
        fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let output = if kind == Kind::ReadOnly { "/dev/shm/profile" } else { "profile" };
        let mut command = place.command(&["-v", "-I", "step", "-o", output, "./program"]);
        command.env_remove("HOME").env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
        container::contain(&mut command, kind, Refusal::Error);
        let outcome = place::finish(command);
        let said = outcome.stderr_text();
        assert_eq!(outcome.code(), 3, "{kind:?} {said}");
        assert!(said.contains("1001 calls in 2 processes"), "{kind:?} {said}");
    };
    each("a_program_in_a_container_of_gprofinjects_own", work);
    match container::impossible(Kind::ReadOnly) {
        None => work(Kind::ReadOnly),
        Some(why) => skip::skipped("a_program_in_a_container_of_gprofinjects_own ReadOnly", &why),
    }
}

/// The machine's files, which are mounted into the container, belong to nobody there. Their functions have names all the same.
fn files_of_nobody_in_a_container() {
    each("files_of_nobody_in_a_container", |kind| {
        let place = Place::new();
        place.c(
            "program",
            "#include <time.h>\n#include <unistd.h>\n\
             __attribute__((noipa)) void work(void) { for (int i = 0; i < 1000; i++) getppid(); }\n\
             int main(void) { while (clock() < CLOCKS_PER_SEC / 2) work(); return 3; }",
            &[],
        );
        fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let mut command = place.command(&["-o", "profile", "./program"]);
        command.env_remove("HOME").env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
        container::contain(&mut command, kind, Refusal::Error);
        let outcome = place::finish(command);
        assert_eq!(outcome.code(), 3, "{kind:?} {}", outcome.stderr_text());
        let recording = measured::read(&place.path("profile.pb.gz")).unwrap();
        let samples = |of: &dyn Fn(&str) -> bool| -> u64 {
            let is_it = |hits: &&gmon_run::Hits| of(&recording.functions[hits.function as usize].name);
            recording.hits.iter().filter(is_it).map(|hits| hits.samples).sum()
        };
        let (found, all) = (samples(&|name| name == "getppid"), samples(&|_| true));
        assert!(all > 20 && found * 2 > all, "{kind:?} {found} of {all}: {}", outcome.stderr_text());
    });
}
