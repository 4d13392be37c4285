//! Attacks of a hostile user on a user who profiles programs in the hostile user's folders, or attaches to
//! that user's process. They can only make the profile wrong. Root runs each test against an unprivileged
//! user; docs/security.md has the list.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use gprofinject_tests::place::{HELLO, Place, complains};
use gprofinject_tests::run::Outcome;
use gprofinject_skip as skip;
use gprofinject_tests::{compile, run, tool};

gprofinject_tests::trials! {
    together:
        a_forged_run_folder,
        a_run_folder_of_ours_that_is_open,
        a_lock_that_is_never_released,
        counters_are_overwritten_and_cut_off,
        what_looks_like_libraries,
        strangers_who_ask,
        an_impostor_who_answers,
        told_to_end_while_another_is_at_work,
        recovering_another_users_run,
        another_users_runtime_folder,
        names_with_escape_sequences;
    busy:
        a_table_without_end,
        a_helper_that_is_killed;
}

/// The unprivileged user with the name nobody.
const USER: u32 = 65534;
/// The longest run, however the target behaves: the time of an order and of leaving, and delays by other work
/// of the machine.
const LIMIT: Duration = Duration::from_secs(150);

/// Returns a folder that everybody may enter, with one in it that belongs to the unprivileged user. Without
/// root, returns `None` and reports the test as skipped.
fn attack(test: &str) -> Option<(Place, PathBuf)> {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        skip::skipped(test, "only root can be attacked by a second user");
        return None;
    }
    let place = Place::new();
    fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let own = place.path("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(USER), Some(USER)).unwrap();
    Some((place, own))
}

/// Compiles a program of tests/security into the place.
fn compiled(place: &Place, name: &str) -> PathBuf {
    let mut compiler = Command::new("gcc");
    compiler.args(["-O1", "-w", "-pthread", "-o"]).arg(place.path(name));
    compiler.arg(tool::folder().join(format!("security/{name}.c")));
    compile::compile(compiler).unwrap();
    place.path(name)
}

/// A process of the unprivileged user. It is killed when this is dropped.
struct Hostile {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Hostile {
    /// Starts the process and waits until it is ready.
    fn new(program: &Path, arguments: &[&str]) -> Hostile {
        let mut command = Command::new(program);
        command.args(arguments).uid(USER).gid(USER).current_dir("/").stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut hostile = Hostile { child, stdout };
        hostile.hear("ready\n");
        hostile
    }

    fn hear(&mut self, what: &str) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line, what);
    }

    fn pid(&self) -> String {
        self.child.id().to_string()
    }

    fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs gprofinject as root to its end.
fn gprofinject(place: &Place, arguments: &[&str]) -> Outcome {
    let mut command = place.command(arguments);
    command.env("XDG_RUNTIME_DIR", place.folder.path());
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert!(!outcome.timed_out, "hangs: {arguments:?}: {}", outcome.stderr_text());
    outcome
}

/// The owner of the folder decides: neither attaching nor asking does what a forged folder says.
fn a_forged_run_folder() {
    let Some((place, own)) = attack("a_forged_run_folder") else { return };
    let (victim, forged) = (place.path("victim"), own.join("gprofinject-forged"));
    fs::write(&victim, "precious").unwrap();
    let arguments = [forged.to_str().unwrap(), victim.to_str().unwrap()];
    let mut hostile = Hostile::new(&compiled(&place, "forged"), &arguments);
    let pid = hostile.pid();
    for more in [&["--duration", "0", "-o", "profile"][..], &["--dump"], &["--reset"], &["--pause"]] {
        let outcome = gprofinject(&place, &[&["--pid", pid.as_str()], more].concat());
        complains(&outcome, 125, "run this as that user: sudo -u '#65534'");
        assert_eq!(fs::read(&victim).unwrap(), b"precious", "{}", outcome.stderr_text());
    }
    assert!(hostile.lives() && !place.path("profile").exists());
}

/// A folder that others may enter, and a link to one that they may not enter, are not private.
fn a_run_folder_of_ours_that_is_open() {
    let Some((place, own)) = attack("a_run_folder_of_ours_that_is_open") else { return };
    let (victim, forged) = (place.path("victim"), own.join("gprofinject-forged"));
    fs::write(&victim, "precious").unwrap();
    let arguments = [forged.to_str().unwrap(), victim.to_str().unwrap()];
    let hostile = Hostile::new(&compiled(&place, "forged"), &arguments);
    // As if root had made it.
    chown(&forged, Some(0), Some(0)).unwrap();
    fs::set_permissions(&forged, fs::Permissions::from_mode(0o777)).unwrap();
    let outcome = gprofinject(&place, &["--pid", &hostile.pid(), "--duration", "0"]);
    complains(&outcome, 125, "cannot be taken out");
    // A private folder of root's is found by its name, but the file in it is not the one that is mapped.
    let files =
        ["0.region", "attached.json", "lock"].map(|name| (name, fs::read(forged.join(name)).unwrap()));
    fs::remove_dir_all(&forged).unwrap();
    fs::create_dir(&forged).unwrap();
    fs::set_permissions(&forged, fs::Permissions::from_mode(0o700)).unwrap();
    files.iter().for_each(|(name, bytes)| fs::write(forged.join(name), bytes).unwrap());
    let outcome = gprofinject(&place, &["--pid", &hostile.pid(), "--duration", "0"]);
    complains(&outcome, 125, "cannot be taken out");
    assert_eq!(fs::read(&victim).unwrap(), b"precious", "{}", outcome.stderr_text());
}

/// A process can lock its own files in /proc.
fn a_lock_that_is_never_released() {
    let Some((place, _)) = attack("a_lock_that_is_never_released") else { return };
    let hostile = Hostile::new(&compiled(&place, "hostile"), &["lock"]);
    let start = Instant::now();
    let outcome = gprofinject(&place, &["--pid", &hostile.pid(), "--duration", "0"]);
    complains(&outcome, 125, "keeps process");
    assert!(start.elapsed() < Duration::from_secs(30), "it has waited for {:?}", start.elapsed());
}

/// The process gets the file of the counters open for writing.
fn counters_are_overwritten_and_cut_off() {
    let Some((place, _)) = attack("counters_are_overwritten_and_cut_off") else { return };
    let program = compiled(&place, "hostile");
    for way in ["scribble", "cut", "grow"] {
        let mut hostile = Hostile::new(&program, &[way]);
        let arguments = ["--rate", "0", "--pid", &hostile.pid(), "--duration", "1", "-o", "profile"];
        let outcome = gprofinject(&place, &arguments);
        assert_eq!(outcome.code(), 0, "{way}: {}", outcome.stderr_text());
        assert!(outcome.stderr_text().contains("next: gmon"), "{way}: {}", outcome.stderr_text());
        // In these seconds, no processor counts more than some 10^12 of anything.
        let numbers = outcome.stderr_text();
        let numbers = numbers.split(|c: char| !c.is_ascii_digit()).filter(|digits| digits.len() > 15);
        assert_eq!(numbers.count(), 0, "{way}: {}", outcome.stderr_text());
        gprofinject_tests::gprofdata::read(&place.path("profile")).unwrap();
        fs::remove_file(place.path("profile")).unwrap();
        // The program did what it was meant to do.
        if way == "scribble" {
            hostile.hear("done\n");
        }
    }
}

/// The process has mapped many files that are no libraries, some of them longer than what gprofinject reads.
fn what_looks_like_libraries() {
    let Some((place, _)) = attack("what_looks_like_libraries") else { return };
    let mut hostile = Hostile::new(&compiled(&place, "hostile"), &["libraries"]);
    let arguments = ["--rate", "0", "--libs", "all", "--pid", &hostile.pid(), "--duration", "0.5", "-o", "profile"];
    let outcome = gprofinject(&place, &[&arguments[..], &["--stats", "stats"]].concat());
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    assert!(!said.contains('\x1b') && said.lines().count() < 20, "{said:?}");
    let stats: serde_json::Value = serde_json::from_slice(&fs::read(place.path("stats")).unwrap()).unwrap();
    let libraries = stats["libraries"].as_array().unwrap();
    let of = |name: &str| -> Vec<String> {
        let status = |library: &serde_json::Value| library["status"].as_str().unwrap().to_owned();
        libraries.iter().filter(|library| library["path"].as_str().unwrap().contains(name)).map(status).collect()
    };
    for name in ["libendless.so", "liblong.so", "libzero.so"] {
        assert_eq!(of(name), ["refused"], "{name}: {libraries:?}");
    }
    // Such headers are not even looked at.
    assert!(of("libheaders.so").is_empty() && of("passwd").len() <= 40, "{libraries:?}");
    assert_eq!(of("/libc.so.6"), ["hooked"], "{libraries:?}");
    let profile = gprofinject_tests::gprofdata::read(&place.path("profile")).unwrap();
    assert!(profile.calls() > 0 && hostile.lives());
}

/// Returns the name in the abstract namespace by which a gprofinject with run folders there listens.
fn abstract_name(folder: &Path) -> Option<String> {
    let sockets = fs::read_to_string("/proc/net/unix").unwrap();
    let name = |line: &str| Some(line.split_once('@')?.1.to_owned());
    { sockets.lines() }.filter_map(name).find(|name| name.starts_with(folder.to_str().unwrap()))
}

/// The socket for a process that cannot enter the run folder has a name that everybody knows.
fn strangers_who_ask() {
    const STRANGER: u32 = 65533;
    let Some((place, _)) = attack("strangers_who_ask") else { return };
    let hostile = Hostile::new(&compiled(&place, "hostile"), &["none"]);
    let stranger = compiled(&place, "stranger");
    let mut command = place.command(&["--rate=0", "--pid", &hostile.pid(), "-o", "profile"]);
    command.env("XDG_RUNTIME_DIR", place.folder.path()).stderr(Stdio::piped());
    let mut attached = command.spawn().unwrap();
    until("the socket", || abstract_name(place.folder.path()).is_some());
    let name = abstract_name(place.folder.path()).unwrap();
    let victim = place.path("victim");
    let dump = format!("C{{\"pid\":{},\"verb\":\"Dump\",\"output\":\"{}\"}}", hostile.pid(), victim.display());
    for user in [0, USER, STRANGER] {
        for packet in [dump.as_str(), "E", "Fx", "A", &"L".repeat(80)] {
            let mut command = Command::new(&stranger);
            command.args([&name, packet]).uid(user).gid(user);
            let outcome = run::run(command, None, LIMIT).unwrap();
            assert_eq!(outcome.stdout_text(), "ready\n2000 connections, 0 answers\n", "{user} {packet}");
        }
    }
    signal("-INT", attached.id());
    let status = attached.wait().unwrap();
    assert!(status.success() && !victim.exists(), "{status:?}");
    assert!(gprofinject_tests::gprofdata::read(&place.path("profile")).unwrap().calls() > 0);
}

/// When a gprofinject was killed, anybody can take the name by which it has listened. What an answer contains would be
/// executed, so the process does not even ask.
fn an_impostor_who_answers() {
    const STRANGER: u32 = 65533;
    const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
volatile int sink;
__attribute__((noipa)) void step(void) { sink++; }
int main(void) {
    char line[9];
    puts("ready");
    fflush(stdout);
    for (;;) {
        step();
        if (access(PLACE "/go", F_OK) == 0) break;
        usleep(10000);
    }
    puts(dlopen(PLACE "/late.so", RTLD_NOW) ? "loaded" : "not loaded");
    fflush(stdout);
    for (;;) pause();
}
"#;
    let Some((place, _)) = attack("an_impostor_who_answers") else { return };
    place.c("late.so", "int late(int x) { return x + 1; }", &["-fPIC", "-shared"]);
    let define = format!("-DPLACE=\"{}\"", place.folder.path().display());
    let mut loading = Hostile::new(&place.c("loader", LOADER, &["-ldl", &define]), &[]);
    let mut command = place.command(&["--rate=0", "--pid", &loading.pid(), "-o", "profile"]);
    command.env("XDG_RUNTIME_DIR", place.folder.path()).stderr(Stdio::piped());
    let mut attached = command.spawn().unwrap();
    let mut stderr = BufReader::new(attached.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("Ctrl-C") {
        assert!(stderr.read_line(&mut said).unwrap() > 0, "not attached: {said}");
    }
    let name = abstract_name(place.folder.path()).unwrap();
    attached.kill().unwrap();
    attached.wait().unwrap();
    let mut command = Command::new(compiled(&place, "impostor"));
    command.arg(&name).uid(STRANGER).gid(STRANGER).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut impostor = Hostile { child, stdout };
    impostor.hear("ready\n");
    fs::write(place.path("go"), "").unwrap();
    impostor.hear("nothing\n");
    loading.hear("loaded\n");
    assert!(loading.lives());
    let outcome = gprofinject(&place, &["--pid", &loading.pid(), "--duration", "0", "-o", "profile"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
}

/// The helper works through a table that the process has made as long as possible. All threads are released
/// in time.
fn a_table_without_end() {
    let Some((place, _)) = attack("a_table_without_end") else { return };
    let mut hostile = Hostile::new(&compiled(&place, "hostile"), &["shadows"]);
    let pid = hostile.pid();
    let mut command = place.command(&["--rate", "0", "--pid", &pid, "-o", "profile"]);
    command.env("XDG_RUNTIME_DIR", place.folder.path()).stderr(Stdio::piped());
    let mut attached = command.spawn().unwrap();
    hostile.hear("done\n");
    let start = Instant::now();
    signal("-TERM", attached.id());
    let status = attached.wait().unwrap();
    assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
    assert!(matches!(status.code(), Some(0 | 125)), "{status:?}");
    until("the process is let go", || usual_priorities(&pid) && !is_traced(&pid));
    assert!(hostile.lives());
}

/// The helper is killed in the middle of its work, with the gprofinject for which it works. The threads get
/// their priorities back. The process may crash if a borrowed thread was running the agent's code at that moment
/// (docs/attach.md, "Known gaps"), which on a busy machine happens now and then.
fn a_helper_that_is_killed() {
    let Some((place, _)) = attack("a_helper_that_is_killed") else { return };
    let source = "#include <pthread.h>\n#include <stdio.h>\n#include <unistd.h>\nvolatile int sink;\n\
        __attribute__((noipa)) void step(void) { sink++; }\n\
        __attribute__((noipa)) int deep(int n) { char room[2000]; room[n % 2000] = n; asm volatile(\"\" :: \"r\"(room));\n\
        if (n) return deep(n - 1) + room[n % 2000]; for (;;) { step(); usleep(100000); } }\n\
        static void *run(void *p) { deep(400); return 0; }\n\
        int main(void) { pthread_t t; for (int n = 0; n < 200; n++) pthread_create(&t, 0, run, 0);\n\
        usleep(300000); puts(\"ready\"); fflush(stdout); for (;;) pause(); }\n";
    let program = place.c("many", source, &["-pthread"]);
    let (mut seen, mut survived) = (0, 0);
    for _ in 0..8 {
        let mut hostile = Hostile::new(&program, &[]);
        let pid = hostile.pid();
        let mut command = place.command(&["-q", "--rate", "0", "--pid", &pid, "-o", "profile"]);
        command.env("XDG_RUNTIME_DIR", place.folder.path()).stderr(Stdio::null());
        let mut attached = command.spawn().unwrap();
        let start = Instant::now();
        // Set while threads have another priority.
        let mut is_hit = false;
        while !is_hit && start.elapsed() < Duration::from_secs(5) {
            is_hit = !usual_priorities(&pid);
        }
        let helpers = children(attached.id());
        for helper in &helpers {
            signal("-KILL", *helper);
        }
        let _ = attached.kill();
        attached.wait().unwrap();
        seen += usize::from(is_hit && !helpers.is_empty());
        if hostile.lives() {
            until("usual priorities", || usual_priorities(&pid));
            survived += 1;
        }
    }
    assert!(survived >= 4, "{survived} of 8 processes live");
    if seen == 0 {
        skip::skipped("a_helper_that_is_killed", "no thread was seen with another priority (CAP_SYS_NICE?)");
    }
}

/// A gprofinject that attaches can be asked to end at any time.
fn told_to_end_while_another_is_at_work() {
    let Some((place, _)) = attack("told_to_end_while_another_is_at_work") else { return };
    let hostile = Hostile::new(&compiled(&place, "hostile"), &["none"]);
    let maps = fs::File::open(format!("/proc/{}/maps", hostile.pid())).unwrap();
    rustix::fs::flock(&maps, rustix::fs::FlockOperation::LockExclusive).unwrap();
    // Root holds that lock, so gprofinject waits as long as an order takes.
    let mut attached = place.command(&["--pid", &hostile.pid()]).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(4));
    assert!(attached.try_wait().unwrap().is_none());
    signal("-TERM", attached.id());
    let start = Instant::now();
    attached.wait().unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// The contents of the run folder say where the profile is written.
fn recovering_another_users_run() {
    let Some((place, own)) = attack("recovering_another_users_run") else { return };
    let program = place.c(
        "waits",
        "#include <unistd.h>\nvolatile int sink;\n\
        __attribute__((noipa)) void step(void) { sink++; }\n\
        int main(void) { for (int n = 0; n < 100; n++) step(); for (;;) pause(); }\n",
        &[],
    );
    let mut command = tool::uncached(tool::gprofinject().unwrap());
    command.arg("-q").arg(&program).current_dir(&own).uid(USER).gid(USER).env("XDG_RUNTIME_DIR", &own);
    command.env_remove("GMON_OUT_PREFIX").stdin(Stdio::null()).stderr(Stdio::null());
    let Ok(mut run) = command.spawn() else {
        skip::skipped(
            "recovering_another_users_run",
            "the unprivileged user cannot execute gprofinject here",
        );
        return;
    };
    until("the run folder", || !runs_in(&own).is_empty());
    let folder = runs_in(&own).remove(0);
    until("the record", || folder.join("run.json").exists() && folder.join("lock").exists());
    std::thread::sleep(Duration::from_millis(500));
    let is_heir = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "gpi-heir\n");
    let mut profiled = children(run.id());
    profiled.retain(|pid| !is_heir(pid));
    run.kill().unwrap();
    run.wait().unwrap();
    profiled.iter().for_each(|pid| signal("-KILL", *pid));
    let (record, victim) = (folder.join("run.json"), place.path("victim"));
    fs::write(&victim, "precious").unwrap();
    let text = fs::read_to_string(&record).unwrap();
    let own_output = own.join("gmon.out");
    assert!(text.contains(own_output.to_str().unwrap()), "{text}");
    let forged = text.replace(own_output.to_str().unwrap(), victim.to_str().unwrap());
    fs::write(&record, forged).unwrap();
    let outcome = gprofinject(&place, &["--recover", folder.to_str().unwrap()]);
    complains(&outcome, 125, "belongs to user 65534");
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    // The folder's own user can recover the run.
    fs::write(&record, text).unwrap();
    let mut command = tool::uncached(tool::gprofinject().unwrap());
    command.arg("--recover").arg(&folder).current_dir(&own).uid(USER).gid(USER);
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(own_output.exists() && !folder.exists());
}

/// su and sudo -E do not change XDG_RUNTIME_DIR and TMPDIR; the owner of a folder can replace what is in it.
fn another_users_runtime_folder() {
    let Some((place, own)) = attack("another_users_runtime_folder") else { return };
    place.c(
        "hello",
        "#include <stdio.h>\nint main(void) { char line[4096]; FILE *f = fopen(\"/proc/self/maps\", \"r\");\n\
        while (fgets(line, sizeof line, f)) fputs(line, stdout); return 0; }\n",
        &[],
    );
    let inner = own.join("deep");
    fs::create_dir(&inner).unwrap();
    let open = place.path("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    // The folders belong to that user; or to root, but below one of that user's; or everybody can rename in
    // them.
    for folder in [&own, &inner, &open] {
        let mut command = place.command(&["./hello"]);
        command.env("XDG_RUNTIME_DIR", folder).env("TMPDIR", folder);
        let outcome = run::run(command, None, LIMIT).unwrap();
        let said = outcome.stdout_text();
        assert!(said.contains("libgprofinject.so"), "{}", outcome.stderr_text());
        assert!(!said.contains(&format!("{}/gprofinject-", folder.display())), "{said}");
        assert!(runs_in(folder).is_empty());
    }
    // A folder with the sticky bit is used.
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).unwrap();
    let mut command = place.command(&["./hello"]);
    command.env("XDG_RUNTIME_DIR", &open);
    let said = run::run(command, None, LIMIT).unwrap().stdout_text();
    assert!(said.contains(&format!("{}/gprofinject-", open.display())), "{said}");
}

/// Names are shown with escape sequences replaced.
fn names_with_escape_sequences() {
    let place = Place::new();
    let name = "odd\x1b[2Jname";
    place.c(name, HELLO, &[]);
    for arguments in [
        &["--list", "./odd\x1b[2Jname"][..],
        &["-v", "./odd\x1b[2Jname"],
        &["-o", "a\x1b[2J/b", "./odd\x1b[2Jname"],
    ] {
        let outcome = place.run(arguments);
        assert!(!outcome.stderr_text().contains('\x1b'), "{:?}", outcome.stderr_text());
    }
    let source = place.path("named.s");
    fs::write(&source, ".globl \"f\x1b[2Jg\"\n.type \"f\x1b[2Jg\",@function\n\"f\x1b[2Jg\": mov $1,%eax\n add $2,%eax\n ret\n\
        .size \"f\x1b[2Jg\",.-\"f\x1b[2Jg\"\n.section .note.GNU-stack\n").unwrap();
    place.c("named", "int main(void) { return 0; }", &[source.to_str().unwrap()]);
    let outcome = place.run(&["--list", "./named"]);
    assert!(outcome.stdout_text().contains("\\u{1b}[2Jg"), "{}", outcome.stdout_text());
    assert!(!outcome.stdout_text().contains('\x1b'));
}

fn signal(which: &str, pid: u32) {
    let _ = Command::new("kill").args([which, &pid.to_string()]).stderr(Stdio::null()).status();
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited for: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn children(pid: u32) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn runs_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("gprofinject-")).collect()
}

/// Whether no thread has a realtime priority. (The 41st field of stat is the policy; the name before it may
/// contain blanks.)
fn usual_priorities(pid: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.into_iter().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest).to_owned();
        rest.split_whitespace().nth(41 - 3).is_none_or(|policy| policy == "0")
    })
}

fn is_traced(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
}
