//! What gprofinject and gmon write where another user can write too. Root plays that user; without root, most
//! of these tests are skipped.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_tests::place::{HELLO, Place, complains, finish};
use gprofinject_skip as skip;
use gprofinject_tests::{compile, gprofdata, tool, view};

gprofinject_tests::trials! {
    together:
        modes_of_old_files,
        links_of_another_user_lead_nowhere,
        a_file_of_another_user_is_replaced,
        as_another_user,
        what_is_open_already,
        stats_on_standard_output_come_last,
        the_summary_counts_what_can_be_called,
        recordings_replace_recordings_only,
        a_full_disk_costs_no_recording,
        builds_without_an_id_are_told_apart;
}

/// Another user, who needs no entry in a password file.
const OTHER: u32 = 54_321;

/// Returns the permissions that a new file may have.
fn allowed() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    0o666 & !u32::from_str_radix(umask.trim(), 8).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn with_mode(path: &Path, mode: u32) {
    fs::write(path, "old").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn is_root(test: &str) -> bool {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        skip::skipped(test, "it takes root to play two users");
    }
    root
}

/// Makes a folder that belongs to the other user, who can reach it.
fn theirs(place: &Place) -> PathBuf {
    fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let folder = place.path("theirs");
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(OTHER), Some(OTHER)).unwrap();
    folder
}

fn gmon() -> Command {
    Command::new(tool::gmon().unwrap())
}

/// The profile of the first process, those of others, the `--stats` file and gmon's output: none keeps a
/// permission that a new file would not have.
fn modes_of_old_files() {
    let place = Place::new();
    place.c("hello", HELLO, &["-g"]);
    for old in [0o6777, 0o4755, 0o640] {
        for file in ["gmon.out", "stats", "sum", "lcov"] {
            with_mode(&place.path(file), old);
        }
        let outcome = place.run(&["-q", "--count", "lines", "--stats", "stats", "./hello"]);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        let here = |mut command: Command, args: &[&str]| {
            let done = command.args(args).current_dir(place.folder.path()).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        };
        here(gmon(), &["merge", "-o", "sum", "gmon.out", "gmon.out"]);
        here(gmon(), &["lines", "--lcov", "lcov"]);
        for file in ["gmon.out", "stats", "sum", "lcov"] {
            assert_eq!(mode(&place.path(file)), old & allowed(), "{file}, which had {old:o}");
            assert_ne!(fs::read(place.path(file)).unwrap(), b"old", "{file}");
        }
    }
}

fn links_of_another_user_lead_nowhere() {
    if !is_root("links_of_another_user_lead_nowhere") {
        return;
    }
    let place = Place::new();
    let program = place.c("hello", HELLO, &[]);
    let folder = theirs(&place);
    let victim = place.path("victim");
    with_mode(&victim, 0o600);
    for (link, to) in [("gmon.out", victim.as_path()), ("stats", &victim), ("way", place.folder.path())] {
        symlink(to, folder.join(link)).unwrap();
        lchown(folder.join(link), Some(OTHER), Some(OTHER)).unwrap();
    }
    let run = |args: &[&str]| {
        let mut command = place.command(args);
        command.arg(&program).current_dir(&folder);
        finish(command)
    };
    complains(&run(&["-q"]), 125, "the symbolic link gmon.out belongs to another user (number 54321)");
    complains(&run(&["-q", "-o", "way/new"]), 125, "the symbolic link way");
    complains(&run(&["-q", "-o", "/dev/null", "--stats", "stats"]), 125, "the symbolic link stats");
    // The other user can guess the name with the prefix once there is a process.
    let merged = gmon().args(["merge", "-o"]).arg(folder.join("gmon.out")).arg("/dev/null").output().unwrap();
    assert!(!merged.status.success());
    assert_eq!(fs::read(&victim).unwrap(), b"old");
    assert!(!place.path("new").exists());
    // Links of the user's own and of root are followed.
    symlink(&victim, folder.join("own")).unwrap();
    assert_eq!(run(&["-q", "-o", "own"]).code(), 0);
    assert!(gprofdata::read(&victim).unwrap().calls() > 100);
    assert_eq!(mode(&victim), 0o600);
}

/// Root's file replaces the other user's and belongs to root. A file that the other user has open or linked
/// does not change.
fn a_file_of_another_user_is_replaced() {
    if !is_root("a_file_of_another_user_is_replaced") {
        return;
    }
    let place = Place::new();
    let program = place.c("hello", HELLO, &[]);
    let folder = theirs(&place);
    let (file, kept) = (folder.join("gmon.out"), folder.join("kept"));
    with_mode(&file, 0o666);
    chown(&file, Some(OTHER), Some(OTHER)).unwrap();
    fs::hard_link(&file, &kept).unwrap();
    let mut command = place.command(&["-q"]);
    command.arg(&program).current_dir(&folder);
    assert_eq!(finish(command).code(), 0);
    assert_eq!(fs::read(&kept).unwrap(), b"old");
    let now = fs::metadata(&file).unwrap();
    assert_eq!((now.uid(), now.mode() & 0o7777), (0, allowed()));
    assert!(gprofdata::read(&file).unwrap().calls() > 100);
}

/// What an unprivileged user could do before still works: a file in a folder that takes no new ones, a link,
/// a long name, pipes.
fn as_another_user() {
    if !is_root("as_another_user") {
        return;
    }
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let folder = theirs(&place);
    let gprofinject = place.path("gprofinject");
    compile::copy(tool::gprofinject().unwrap(), &gprofinject).unwrap();
    let run = |args: &[&str], prefix: Option<&str>| {
        let mut command = tool::uncached(&gprofinject);
        command.args(args).arg("../hello").current_dir(&folder).env_remove("GMON_OUT_PREFIX");
        command.env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
        command.envs(prefix.map(|prefix| ("GMON_OUT_PREFIX", prefix)));
        command.uid(OTHER).gid(OTHER);
        finish(command)
    };
    let good = |path: &Path| gprofdata::read(path).unwrap().calls() > 100;
    let closed = place.path("closed");
    fs::create_dir(&closed).unwrap();
    with_mode(&closed.join("mine"), 0o644);
    chown(closed.join("mine"), Some(OTHER), None).unwrap();
    let outcome = run(&["-q", "-o", "../closed/mine"], None);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(good(&closed.join("mine")));
    // In a folder to which everybody can write, the file would have to belong to the user.
    fs::create_dir(place.path("open")).unwrap();
    fs::set_permissions(place.path("open"), fs::Permissions::from_mode(0o1777)).unwrap();
    with_mode(&place.path("open/roots"), 0o666);
    complains(&run(&["-o", "../open/roots"], None), 125, "the file roots belongs to another user (number 0)");
    with_mode(&closed.join("roots"), 0o644);
    complains(&run(&["-o", "../closed/roots"], None), 125, "Permission denied");

    let long = "x".repeat(255);
    assert_eq!(run(&["-q", "-o", &long], None).code(), 0);
    assert!(good(&folder.join(&long)));
    symlink(&long, folder.join("link")).unwrap();
    lchown(folder.join("link"), Some(OTHER), None).unwrap();
    assert_eq!(run(&["-q", "-o", "link"], None).code(), 0);
    assert!(fs::symlink_metadata(folder.join("link")).unwrap().is_symlink() && good(&folder.join(&long)));
    assert_eq!(run(&["-q"], Some("prefix")).code(), 0);
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.collect();
    assert!(names.iter().any(|name| name.starts_with("prefix.")), "{names:?}");
    assert!(!names.iter().any(|name| name.starts_with('.')), "something temporary is left: {names:?}");
}

/// A file that is already open is written to: /dev/stdout, process substitution.
fn what_is_open_already() {
    let place = Place::new();
    let program = place.c("hello", HELLO, &[]);
    let script = format!(
        "'{}' -q -o >(cat > piped) '{}' >/dev/null; '{}' -q -o /dev/stdout '{}' 2>&1 >redirected; sleep 1",
        tool::gprofinject().unwrap().display(),
        program.display(),
        tool::gprofinject().unwrap().display(),
        program.display(),
    );
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).current_dir(place.folder.path());
    let outcome = finish(bash);
    assert_eq!((outcome.code(), outcome.stderr_text().as_str()), (0, ""));
    for file in ["piped", "redirected"] {
        assert!(gprofdata::read(&place.path(file)).unwrap().calls() > 100, "{file}");
    }
}

fn stats_on_standard_output_come_last() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let outcome = place.run(&["-q", "--stats", "-", "./hello"]);
    let text = outcome.stdout_text();
    let json = text.strip_prefix("100\n").unwrap_or_else(|| panic!("the program's output first: {text}"));
    let stats: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!((outcome.code(), stats["calls"].as_u64().unwrap() > 100), (0, true), "{stats}");
    assert!(!place.path("-").exists());
}

/// The summary says that everything is hooked, and does not use the plural for one function.
fn the_summary_counts_what_can_be_called() {
    let place = Place::new();
    let source =
        "int f(void) { return 0; } __asm__(\".globl _start\\n_start: call f\\nxor %edi,%edi\\ncall exit\");";
    place.c("few", source, &["-nostartfiles", "-no-pie"]);
    let outcome = place.run(&["-v", "--rate", "0", "./few"]);
    let said = outcome.stderr_text();
    assert!(said.contains("hooked 1 of 1 function, 1 call, 0 samples"), "{said}");
    assert!(said.contains(", 1 call\n") && said.contains("gprofinject: f 1 call\n"), "{said}");
    let list = place.run(&["--list", "./few"]).stdout_text();
    assert!(list.contains("_start") && list.contains("entry-point"), "{list}");
}

/// The name of the recording follows from that of the profile, so that another file with it was not meant.
fn recordings_replace_recordings_only() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let program = fs::read(place.path("hello")).unwrap();
    for (file, options) in [
        ("gmon.pb.gz", &["./gmon.pb.gz"][..]),
        ("x.pb.gz", &["-o", "x", "./x.pb.gz"]),
        ("kid.pb.gz", &["-o", "kid.out", "sh", "-c", "./kid.pb.gz"]),
    ] {
        fs::copy(place.path("hello"), place.path(file)).unwrap();
        let outcome = place.run(options);
        complains(&outcome, 125, &format!("cannot write the recording to {file}; name another file with -o FILE"));
        assert!(fs::read(place.path(file)).unwrap() == program, "{file}");
    }
    fs::create_dir(place.path("folder.pb.gz")).unwrap();
    complains(&place.run(&["-o", "folder", "./hello"]), 125, "is a directory");
    complains(&place.run(&["-o", "y.pb.gz", "./hello"]), 125, "name the profile without .pb.gz");
    // An empty file, as mktemp makes it, and an earlier recording.
    fs::write(place.path("empty.pb.gz"), "").unwrap();
    for _ in 0..2 {
        assert_eq!(place.run(&["-q", "-o", "empty", "./hello"]).code(), 0);
        assert_eq!(view::read(&place.path("empty.pb.gz")).unwrap().programs.len(), 1);
    }
}

fn a_full_disk_costs_no_recording() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    fs::create_dir(place.path("small")).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=8k", "none", "small"]).current_dir(place.folder.path());
    if !mount.output().is_ok_and(|done| done.status.success()) {
        return skip::skipped("outputs::a_full_disk_costs_no_recording", "mount is not permitted");
    }
    let mut command = place.command(&["-v", "--libs", "none", "sh", "-c", "../hello"]);
    command.current_dir(place.path("small")).env("TMPDIR", place.folder.path());
    let outcome = finish(command);
    let mut unmount = Command::new("umount");
    assert!(unmount.arg(place.path("small")).status().unwrap().success());
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    let line = said.lines().find(|line| line.contains("cannot write the recording to gmon.pb.gz: No space left"));
    let (_, path) = line.unwrap_or_else(|| panic!("{said}")).rsplit_once("; it is in ").unwrap();
    let recording = view::read(path.as_ref()).unwrap();
    assert!(recording.programs.iter().any(|program| program.name == "hello"), "{said}");
    assert!(said.contains(&format!("gmon flat --program hello {path}")), "{said}");
}

/// Two programs that lie at one path one after the other, of which nothing but the bytes says that they differ.
fn builds_without_an_id_are_told_apart() {
    const SOURCE: &str = "__attribute__((noinline)) int NAME(int x) { asm volatile(\"\"); return x + 1; }\n\
        int main(void) { int t = 0; for (int i = 0; i < N; i++) t = NAME(t); return 0; }\n";
    let place = Place::new();
    for (file, name) in [("one", "-DNAME=alpha -DN=100"), ("two", "-DNAME=omega -DN=7")] {
        let flags: Vec<&str> = name.split(' ').chain(["-g", "-Wl,--build-id=none"]).collect();
        place.c(file, SOURCE, &flags);
    }
    let line = "cp one p; ./p; rm p; cp two p; ./p";
    let outcome = place.run(&["-q", "--libs", "none", "sh", "-c", line]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let gmon = |args: &[&str]| {
        let mut gmon = Command::new(tool::gmon().unwrap());
        finish({
            gmon.args(args).current_dir(place.folder.path());
            gmon
        })
    };
    let table: serde_json::Value = serde_json::from_slice(&gmon(&["flat", "--json", "--program", "p"]).stdout).unwrap();
    let calls = |name: &str| {
        let functions = table["rows"].as_array().unwrap();
        functions.iter().find(|function| function["name"] == name).and_then(|f| f["calls"].as_u64())
    };
    assert_eq!((calls("alpha"), calls("omega")), (Some(100), Some(7)), "{table}");
    // Counts of lines are not those of another build at the same path.
    fs::copy(place.path("one"), place.path("p")).unwrap();
    assert_eq!(place.run(&["-q", "--count", "lines", "./p"]).code(), 0);
    assert_eq!(gmon(&["lines", "p", "gmon.pb.gz"]).code(), 0);
    fs::copy(place.path("two"), place.path("p")).unwrap();
    let outcome = gmon(&["lines", "p", "gmon.pb.gz"]);
    assert!(outcome.code() == 2 && outcome.stderr_text().contains("rebuilt since the run"), "{}", outcome.stderr_text());
}
